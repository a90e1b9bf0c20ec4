"""A tool takes over the checkpoint of a query that has stopped, and of no other, and says where its sources stood."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_throttle.checkpoint.manifest import Drained, bind, read_drained, refuse_drained, write_drained
from spark_throttle.checkpoint.offset_log import source_positions
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import Pulse, SignOfLife, write_sign_of_life
from spark_throttle.control.run_fence import RunFence, owner_of
from spark_throttle.errors import ConfigurationError, DamagedError, DrainedError, TakenOverError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, SourceFile
from spark_throttle.spark.stopped_query import StoppedQuery, positions_after, stopped_query

CLOCK = Clock(lambda: 1_760_000_000_000, lambda: 500_000, "boot")

CONTROL = '{"epoch": 7, "file": "000000000007-5f-e0"}'


@pytest.fixture
def control(tmp_path: Path) -> Directory:
    """Return the control directory of a query that has committed batch 3 and was killed long ago."""
    checkpoint = Directory(str(tmp_path))
    for batch in range(4):
        checkpoint.write(f"offsets/{batch}", b"v1")
        checkpoint.write(f"commits/{batch}", b"v1")
    control = Directory(str(tmp_path / "throttle"))
    bind(control, direction="publish")
    RunFence(control).begin()
    return control


def sign(control: Directory, *, age_ms: int, has_ended: bool = False) -> None:
    run = owner_of(control) or ""
    steady_ms = 500_000 - age_ms
    write_sign_of_life(control, SignOfLife(run, 3, 10_000, 0, steady_ms, "boot", 10, 10, has_ended))


def opened(tmp_path: Path) -> StoppedQuery:
    return stopped_query(str(tmp_path), str(tmp_path / "throttle"), CLOCK)


def test_run_that_was_killed_loses_the_directory(tmp_path: Path, control: Directory) -> None:
    fence = RunFence(control)
    fence.begin()
    sign(control, age_ms=40_000)
    query = opened(tmp_path)
    assert query.batch == 3
    with pytest.raises(TakenOverError):
        fence.check()


def test_query_that_has_ended_keeps_its_directory(tmp_path: Path, control: Directory) -> None:
    sign(control, age_ms=10, has_ended=True)
    owner = owner_of(control)
    assert opened(tmp_path).batch == 3
    assert owner_of(control) == owner


def test_query_that_gives_signs_of_life_is_left_alone(tmp_path: Path, control: Directory) -> None:
    sign(control, age_ms=9_000)
    owner = owner_of(control)
    with pytest.raises(ConfigurationError, match="runs: it gives signs of life; stop it first"):
        stopped_query(str(tmp_path), control.location, CLOCK, lambda _: sign(control, age_ms=10))
    assert owner_of(control) == owner


@pytest.mark.parametrize("has_ended", [True, False])
def test_query_that_was_just_stopped_is_waited_for(tmp_path: Path, control: Directory, has_ended: bool) -> None:
    """Its source may be killed before the last sign; then it falls silent."""
    sign(control, age_ms=9_000)
    owner, now_ms = owner_of(control), [500_000]

    def pause(seconds: float) -> None:
        now_ms[0] += round(1000 * seconds)
        if has_ended and now_ms[0] == 502_000:
            sign(control, age_ms=10, has_ended=True)

    clock = Clock(CLOCK.wall_ms, lambda: now_ms[0], CLOCK.boot)
    assert stopped_query(str(tmp_path), control.location, clock, pause).batch == 3
    assert now_ms == [502_000 if has_ended else 515_000]
    assert (owner_of(control) == owner) == has_ended


def test_batch_that_is_committed_while_the_end_is_waited_for_is_the_last(tmp_path: Path, control: Directory) -> None:
    sign(control, age_ms=9_000)

    def pause(_: float) -> None:
        for folder in ("offsets", "commits"):
            Directory(str(tmp_path)).write(f"{folder}/4", b"v1")
        sign(control, age_ms=10, has_ended=True)

    assert stopped_query(str(tmp_path), control.location, CLOCK, pause).batch == 4


def test_batch_that_is_not_committed_is_for_the_query_to_finish(tmp_path: Path, control: Directory) -> None:
    Directory(str(tmp_path)).write("offsets/4", b"v1")
    owner = owner_of(control)
    with pytest.raises(ConfigurationError, match=r"batch 4 .* not committed.* trigger\(processingTime='1 day'\)"):
        opened(tmp_path)
    assert owner_of(control) == owner


def test_batch_that_is_planned_meanwhile_ends_the_work(tmp_path: Path, control: Directory) -> None:
    query = opened(tmp_path)
    query.check()
    Directory(str(tmp_path)).write("offsets/4", b"v1")
    with pytest.raises(TakenOverError):
        query.check()
    assert owner_of(control) is not None


@pytest.mark.parametrize("has_ended", [True, False])
def test_query_that_is_started_meanwhile_ends_the_work(tmp_path: Path, control: Directory, has_ended: bool) -> None:
    """It may be idle: a tool that went on would change the checkpoint below it."""
    sign(control, age_ms=40_000, has_ended=has_ended)
    query = opened(tmp_path)
    query.check()
    RunFence(control).begin()
    with pytest.raises(TakenOverError):
        query.check()


def test_tool_that_works_owns_the_directory_and_no_other_takes_it(tmp_path: Path, control: Directory) -> None:
    sign(control, age_ms=10, has_ended=True)
    query, late = opened(tmp_path), opened(tmp_path)
    with query.taken() as taken:
        assert owner_of(control) == taken.owner != query.owner
        with pytest.raises(TakenOverError):
            query.check()
        with pytest.raises(TakenOverError), late.taken():
            pass
        beats = Pulse(control, query.fence, CLOCK, interval_ms=20_000)
        with pytest.raises(ConfigurationError, match="signs of life; stop it first, or let the drain"):
            stopped_query(str(tmp_path), control.location, CLOCK, lambda _: beats.beat())
        taken.check()
    assert opened(tmp_path).owner == taken.owner, "it has ended in good order: nobody waits for it"


def test_offsets_of_a_committed_batch_that_are_gone_are_damage(tmp_path: Path, control: Directory) -> None:
    sign(control, age_ms=10, has_ended=True)
    (tmp_path / "offsets" / "3").unlink()
    with pytest.raises(DamagedError, match=r"offsets of batch 3 .* they are gone, and the batch is committed; restore"):
        opened(tmp_path)


@pytest.mark.parametrize("gone", ["commits", "throttle"])
def test_folder_that_is_no_checkpoint_of_a_query_is_refused(tmp_path: Path, control: Directory, gone: str) -> None:
    del control
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is not the checkpoint of a throttled query that has committed"):
        opened(tmp_path)


@pytest.mark.parametrize(("is_finished", "said"), [(True, "was drained at batch 3"), (False, "was being drained")])
def test_no_query_starts_on_a_checkpoint_that_was_drained(control: Directory, is_finished: bool, said: str) -> None:
    refuse_drained(control)
    note = Drained(3, "/lake/waiting", "delta", "5eed", is_finished=is_finished)
    write_drained(control, note)
    assert read_drained(control) == note
    with pytest.raises(DrainedError, match=f"{said}.*/lake/waiting") as caught:
        bind(control, direction="publish", may_begin=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 1, "batch": -1}', b'{"format": 1, "batch": "3"}'])
def test_damaged_note_of_a_drain_is_damage(control: Directory, content: bytes) -> None:
    control.write("drained.json", content)
    with pytest.raises(DamagedError, match="the note of what was drained"):
        refuse_drained(control)


def logged(checkpoint: Path, *lines: str) -> Directory:
    directory = Directory(str(checkpoint))
    head = '{"batchWatermarkMs":0,"batchTimestampMs":1760000000123,"conf":{}}'
    directory.write("offsets/4", "\n".join(["v1", head, *lines]).encode())
    return directory


def test_source_without_a_position_has_none(tmp_path: Path) -> None:
    assert source_positions(logged(tmp_path, '{"logOffset":3}', "-", CONTROL), 4) == ['{"logOffset":3}', None, CONTROL]
    assert source_positions(Directory(str(tmp_path)), 5) == []


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ('{"events":{"0":12,"1":-2},"more":{"0":5}}', ("startingOffsets", '{"events":{"0":12,"1":-2},"more":{"0":5}}')),
        (
            '{"sourceVersion":1,"reservoirId":"a-b","reservoirVersion":12,"index":-1,"isStartingVersion":false}',
            ("startingVersion", "12"),
        ),
        ('{"sourceVersion":3,"reservoirVersion":12,"index":-100,"isStartingVersion":false}', ("startingVersion", "12")),
    ],
)
def test_position_is_ready_to_paste_where_an_option_takes_it(
    tmp_path: Path, line: str, option: tuple[str, str]
) -> None:
    directory = logged(tmp_path, line, CONTROL)
    (found,) = positions_after(str(tmp_path), directory, 4)
    assert found.option == option
    assert str(found).endswith(f".option({option[0]!r}, {option[1]!r})")
    assert ("once the table has that version" in str(found)) is (option[0] == "startingVersion")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('{"sourceVersion":1,"reservoirVersion":12,"index":3,"isStartingVersion":false}', "version 12 .* read in part"),
        ('{"sourceVersion":1,"reservoirVersion":12,"index":-1,"isStartingVersion":true}', "version 12 .* read in part"),
        ('{"logOffset":3}', "move the files that .*/sources/0 lists out of the folder"),
        ("25", "another source: its documentation"),
        ("not json", "another source: its documentation"),
        ("{}", "another source: its documentation"),
        ("-", "begin where the query began"),
    ],
)
def test_position_that_no_option_takes_comes_with_advice(tmp_path: Path, line: str, advice: str) -> None:
    directory = logged(tmp_path, line, CONTROL)
    (found,) = positions_after(str(tmp_path), directory, 4)
    assert found.option is None
    assert re.search(advice, str(found))


def test_sources_keep_their_order_and_their_folders(tmp_path: Path) -> None:
    directory = logged(tmp_path, '{"events":{"0":12}}', '{"logOffset":3}', CONTROL)
    kafka, files = positions_after(str(tmp_path), directory, 4)
    assert (kafka.kind, files.kind) == ("Kafka", "files")
    assert "sources/1" in files.advice


def of_references(checkpoint: Path, extent: ExtentName) -> str:
    line = {"control": json.loads(CONTROL), "extent": extent.number, "file": extent.file}
    (found,) = positions_after(str(checkpoint), logged(checkpoint, json.dumps(line)), 4)
    return str(found)


def test_references_go_on_after_the_last_file_that_was_read(tmp_path: Path) -> None:
    extents = Extents(Directory(str(tmp_path)))
    assert "none was read" in of_references(tmp_path, NO_EXTENT)
    first = extents.write(NO_EXTENT, [SourceFile(0, "a.parquet", 9, 5), SourceFile(1, "b.parquet", 9, 6)], {})
    assert "2 files were read, the last one is b.parquet" in of_references(tmp_path, first)
    whole = extents.write(first, [SourceFile(2, "c", 9, 0)], {"version": 8, "taken": 0, "is_snapshot": 0})
    assert ".option('startingVersion', '8')" in of_references(tmp_path, whole)
    part = extents.write(whole, [SourceFile(3, "d", 9, 0)], {"version": 9, "taken": 1, "is_snapshot": 0})
    assert "version 9 of the table was read in part" in of_references(tmp_path, part)
