"""The waiting rows of a stopped query go to a table or a folder, each once, and its checkpoint is closed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as pads
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from typer.testing import CliRunner

from spark_throttle.admin.refusals import Exit
from spark_throttle.checkpoint.manifest import Drained, read_drained, write_drained
from spark_throttle.command_line.app import app
from spark_throttle.control.notes import read_sign_of_life, write_sign_of_life
from spark_throttle.errors import (
    Backpressure,
    ConfigurationError,
    DrainedError,
    FileUnusableError,
    TakenOverError,
)
from spark_throttle.files.storage import Directory
from spark_throttle.spark import drain, pipeline
from spark_throttle.spark import drained_query as module
from spark_throttle.spark.drained_query import DrainedQuery
from spark_throttle.spark.state_reader import queued_after
from tests.integration.streams import SCHEMA, Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("much_later")

SHUT = policies(tenants={"shut": publish(messages_per_second=0)})


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return what a query has left that was stopped with 40 rows waiting, each in a namespace of its own."""
    lake = Lake(spark, tmp_path_factory.mktemp("stopped"))
    lake.offer((i, f"shut/{i}", 10) for i in range(40))
    lake.run(SHUT)
    return lake


class Killed(BaseException):
    """The death of the process that drains."""


def table_of(path: str) -> list[dict[str, Any]]:
    """Return the rows of a Delta table, without a query of Spark's."""
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def folder_of(path: str) -> list[dict[str, Any]]:
    """Return the rows of a folder of Parquet files, as above."""
    return pads.dataset(path, format="parquet").to_table().to_pylist()


def test_waiting_rows_go_into_a_table_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "INLINE_BYTES", 100)
    lake.offer((i, ("shut/a", "shut/b", "open/c")[i % 3], 10) for i in range(300))
    lake.run(SHUT)
    waiting = [i for i in range(300) if i % 3 < 2]
    assert lake.admitted_ids == [i for i in range(300) if i % 3 == 2]

    def dies(_directory: Directory, note: Drained) -> None:
        if note.is_finished:
            raise Killed
        written(_directory, note)

    written = write_drained
    into = lake.path("waiting")
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_drained", dies)
        with pytest.raises(Killed):
            drain(lake.spark, lake.checkpoint, into)
    with pytest.raises(DrainedError, match="was being drained at batch"):
        lake.run({})
    done = drain(lake.spark, lake.checkpoint, into)
    assert (done.messages, done.batch) == (200, lake.last_batch())
    assert drain(lake.spark, lake.checkpoint, f"{into}/") == done
    (position,) = done.positions
    assert (position.kind, "sources/0" in position.advice) == ("files", True)
    rows = sorted(table_of(into), key=lambda row: row["queue_position"])
    assert list(rows[0]) == ["id", "ns", "size", "namespace", "arrival_ms", "release_ms", "queue_position"]
    for name in ("shut/a", "shut/b"):
        of_one = [row for row in rows if row["namespace"] == name]
        assert [row["id"] for row in of_one] == [i for i in waiting if ("shut/a", "shut/b")[i % 3] == name]
        assert {row["ns"] for row in of_one} == {name}
    assert len(rows) == 200

    with pytest.raises(ConfigurationError, match=r"were drained into .* give that place"):
        drain(lake.spark, lake.checkpoint, lake.path("elsewhere"))
    with pytest.raises(DrainedError, match="was drained at batch"):
        lake.run({})
    assert lake.admitted_ids == [i for i in range(300) if i % 3 == 2]


def test_drain_of_a_query_in_which_no_row_waits_closes_nothing(lake: Lake) -> None:
    lake.offer((i, "open/a", 10) for i in range(5))
    lake.run({})
    done = drain(lake.spark, lake.checkpoint, lake.path("waiting"))
    assert (done.messages, len(done.positions)) == (0, 1)
    assert "the checkpoint is as it was" in str(done)
    lake.offer((i, "open/a", 10) for i in range(5, 9))
    lake.run({})
    assert lake.admitted_ids == list(range(9))


def test_rows_that_wait_as_references_go_into_a_folder(lake: Lake) -> None:
    lake.offer((i, ("shut/a", "open/c")[i % 2], 10) for i in range(40))
    throttle = lake.throttle(SHUT)
    stream = throttle.read_stream(lake.spark).schema(SCHEMA).parquet(lake.path("events"))
    writer = throttle.write_stream(stream).foreachBatch(lake.keep)
    finish(writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True).start())
    assert lake.admitted_ids == list(range(1, 40, 2))
    into, other = lake.path("waiting"), Path(lake.path("taken"))
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    arguments = ["drain", "--checkpoint", lake.checkpoint, "--format", "parquet", "--into"]
    refused = CliRunner().invoke(app, [*arguments, str(other)])
    assert (refused.exit_code, refused.stdout) == (Exit.INVALID, "")
    assert "has files: give a folder of its own" in refused.stderr
    told = CliRunner().invoke(app, [*arguments, into])
    assert (told.exit_code, told.stdout.splitlines()[0]) == (0, f"20 rows that waited after batch 0 are in {into}")
    again = json.loads(CliRunner().invoke(app, [*arguments, into, "--output", "json"]).stdout)
    assert (again["messages"], again["positions"][0]["kind"]) == (20, "files")
    rows = sorted(folder_of(into), key=lambda row: row["queue_position"])
    assert [(row["id"], row["ns"], row["namespace"]) for row in rows] == [
        (i, "shut/a", "shut/a") for i in range(0, 40, 2)
    ]
    assert (other / "mine.txt").read_text() == "mine"


@pytest.mark.thorough
def test_command_drains_with_a_spark_of_its_own_which_may_have_no_delta(lake: Lake) -> None:
    lake.offer((i, "shut/a", 10) for i in range(40))
    lake.run(SHUT)
    settings = Path(lake.path("spark.conf"))
    settings.write_text("spark.master local[1]\nspark.ui.enabled false\n")
    command = [sys.executable, "-m", "spark_throttle.command_line", "drain", "--checkpoint", lake.checkpoint]
    command += ["--properties-file", str(settings), "--into", lake.path("waiting")]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    refused = run()
    assert (refused.returncode, "\tat " in refused.stderr) == (Exit.INVALID, False), refused.stderr  # no Java stack
    assert refused.stderr.splitlines()[-1].startswith("error: the jar of Delta is missing in Spark's session: set ")
    done = run("--format", "parquet")  # the checkpoint was left open
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0, f"40 rows that waited after batch {lake.last_batch()} are in {lake.path('waiting')}"
    ), done.stderr  # fmt: skip
    assert len(folder_of(lake.path("waiting"))) == 40


@pytest.mark.parametrize(("options", "exit_code", "said"), [
    (["--conf", "nonsense"], Exit.INVALID, "--conf is 'nonsense'; give KEY=VALUE"),
    (["--conf", "=1"], Exit.INVALID, "--conf is '=1'; give KEY=VALUE"),
    (["--properties-file", "/nowhere"], Exit.INVALID, "no file /nowhere; give a file"),
    ([], Exit.UNAVAILABLE, "the file s3://lake/checkpoint cannot be used: no such host; mend that"),
])  # fmt: skip
def test_command_that_cannot_work_says_so_in_one_line_of_json(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, options: list[str], exit_code: Exit, said: str
) -> None:
    del spark

    def fails(*_given: object, **_settings: object) -> None:
        raise OSError("no such host")

    monkeypatch.setattr("spark_throttle.spark.drain", fails)
    command = ["drain", "--into", "/lake/waiting", "--checkpoint", "s3://lake/checkpoint", *options, "-o", "json"]
    ended = CliRunner().invoke(app, command)
    (line,) = ended.stderr.splitlines()
    assert (ended.exit_code, ended.stdout, json.loads(line)["exit_code"]) == (exit_code, "", exit_code)
    assert said in json.loads(line)["message"]


def test_what_a_destination_did_not_take_is_drained_as_all_that_waits(lake: Lake) -> None:
    api = {**publish(messages_per_second=300), "destination": {"floor_messages_per_second": 5, "open_after_seconds": 1}}
    document = policies(resource_groups={"api": api}, tenants={"a": {"resource_group": "api"}})
    lake.offer((number, "a/n", 10) for number in range(20))

    def refuse(rows: DataFrame, batch: int) -> None:
        if rows.count():
            raise Backpressure(scope="api", problem="the table is locked")

    finish(lake.writer(lake.throttle(document)).foreachBatch(refuse).start())
    assert drain(lake.spark, lake.checkpoint, lake.path("waiting")).messages == 20
    assert sorted(row["id"] for row in table_of(lake.path("waiting"))) == list(range(20))


@pytest.mark.thorough
def test_rows_of_a_column_that_was_widened_are_drained_and_a_table_that_takes_none_closes_nothing(lake: Lake) -> None:
    for number, value in enumerate(("int(1)", "1L << 40")):
        lake.offer([(number, "shut/a", 10), (number + 10, "open/a", 10)])
        stream = lake.events().withColumn("value", F.expr(value))
        writer = lake.throttle(SHUT).write_stream(stream).option("checkpointLocation", lake.checkpoint)
        finish(writer.trigger(availableNow=True).format("delta").start(lake.path(f"admitted{number}")))
    with pytest.raises(ConfigurationError, match=r"^.*admitted0 does not take the rows that wait, so none was written"):
        drain(lake.spark, lake.checkpoint, lake.path("admitted0"))
    assert drain(lake.spark, lake.checkpoint, lake.path("waiting")).messages == 2
    assert sorted((row["id"], row["value"]) for row in table_of(lake.path("waiting"))) == [(0, 1), (1, 1 << 40)]


@pytest.mark.thorough
def test_two_drains_that_cross_write_each_row_once(lake: Lake, stopped: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query has ended in good order, so nobody takes its directory from it; the table exists, and takes appends."""
    copied, into = lake.path("copied"), lake.path("waiting")
    for each in (lake.checkpoint, copied):
        shutil.copytree(stopped.checkpoint, each)
        control = Directory(f"{each}/throttle")
        sign = read_sign_of_life(control)
        assert sign is not None
        write_sign_of_life(control, replace(sign, has_ended=True))
    drain(lake.spark, copied, into)
    read, crossed = queued_after, list[DrainedQuery]()

    def crosses(*given: Any, **settings: Any) -> DataFrame:
        if not crossed:
            monkeypatch.setattr(module, "queued_after", read)
            crossed.append(drain(lake.spark, lake.checkpoint, into))
        return read(*given, **settings)

    monkeypatch.setattr(module, "queued_after", crosses)
    with pytest.raises(TakenOverError):
        drain(lake.spark, lake.checkpoint, into)
    assert Counter(row["id"] for row in table_of(into)) == dict.fromkeys(range(40), 2), "one by each checkpoint"


def test_rows_of_a_state_that_is_gone_or_cut_are_missed_and_the_checkpoint_stays_open(
    lake: Lake, stopped: Lake
) -> None:
    gone, cut = lake.path("gone"), lake.path("cut")
    for each in (gone, cut):
        shutil.copytree(stopped.checkpoint, each)
    shutil.rmtree(f"{gone}/state/0/0")
    for path in Path(cut, "state", "0").glob("[01]/*.delta"):
        path.write_bytes(path.read_bytes()[:20])
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    said = r"Spark cannot read the states .* restore the checkpoint from a backup"
    for checkpoint in (gone, cut):
        with pytest.raises(FileUnusableError, match=said) as caught:
            drain(lake.spark, checkpoint, lake.path("waiting"), format="parquet")
        assert "\n" not in str(caught.value)
        assert read_drained(Directory(f"{checkpoint}/throttle")) is None
    assert not Path(lake.path("waiting")).exists()


def test_place_that_cannot_take_the_rows_is_refused_in_one_sentence_and_another_may_be_given(
    lake: Lake, stopped: Lake
) -> None:
    shutil.copytree(stopped.checkpoint, lake.checkpoint)
    Path(lake.path("a file")).write_text("mine")
    Path(lake.path("folder")).mkdir()
    Path(lake.path("folder"), "mine").write_text("mine")
    formats: tuple[module.DrainFormat, ...] = ("delta", "parquet")
    for kind in formats:
        for place, said in (
            ("", "no place to go"),
            (lake.path("checkpoint/throttle/waiting"), "is in the checkpoint .* give a place elsewhere"),
            (f"file:{lake.checkpoint}/", "is in the checkpoint .* give a place elsewhere"),
            (lake.path("folder"), "has files.* give"),
            (lake.path("a file"), "is a file: give"),
            (lake.path("a file/below"), r"could not be written to .*not a directory.*: nothing was; give another"),
        ):
            with pytest.raises(ConfigurationError, match=said) as caught:
                drain(lake.spark, lake.checkpoint, place, format=kind)
            assert "\n" not in str(caught.value)
            assert read_drained(Directory(str(lake.control))) is None, (kind, place)
    assert drain(lake.spark, lake.checkpoint, lake.path("waiting"), format="parquet").messages == 40
    assert len(folder_of(lake.path("waiting"))) == 40


@pytest.mark.thorough
def test_names_of_columns_that_delta_does_not_take_go_into_a_folder(lake: Lake) -> None:
    lake.offer((i, "shut/a", 10) for i in range(10))
    stream = lake.events().withColumn("a b", F.lit(1))
    writer = lake.throttle(SHUT).write_stream(stream).option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).foreachBatch(lake.keep).start())
    with pytest.raises(ConfigurationError, match=r"does not take .* column mapping .* or a folder, in the format parq"):
        drain(lake.spark, lake.checkpoint, lake.path("waiting"))
    drain(lake.spark, lake.checkpoint, lake.path("waiting"), format="parquet")
    assert sorted((row["id"], row["a b"]) for row in folder_of(lake.path("waiting"))) == [(i, 1) for i in range(10)]


@pytest.mark.thorough
def test_checkpoint_whose_path_spark_misreads_is_refused_in_one_sentence_and_its_query_starts(lake: Lake) -> None:
    checkpoint = lake.path("my checkpoint")

    def run(document: object, value: str) -> None:
        stream = lake.events().withColumn("value", F.expr(value))
        writer = lake.throttle(document).write_stream(stream).option("checkpointLocation", checkpoint)
        finish(writer.trigger(availableNow=True).foreachBatch(lake.keep).start())

    lake.offer([(1, "shut/a", 10)])
    run(SHUT, "1L")
    with pytest.raises(
        ConfigurationError, match=r"has a space .*/my checkpoint' has: while its query is stopped, move"
    ):
        drain(lake.spark, checkpoint, lake.path("waiting"))
    run({}, "int(1)")
    assert [row[0] for row in lake.admitted] == [1]
