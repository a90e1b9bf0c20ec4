"""A query's state has one partition, in a store and a format that keep it, whatever the session has."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.start import state_settings
from spark_throttle.spark.start.state_settings import (
    ENCODING,
    FORMAT,
    PROVIDER,
    SHUFFLE_PARTITIONS,
    STATE_PARTITIONS,
    one_state_partition,
    refuse_state_store,
)

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Settings(dict[str, Any]):
    """The settings of a session."""

    def set(self, name: str, value: int) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        del self[name]


def session(**settings: str) -> Any:
    names = {"shuffle": SHUFFLE_PARTITIONS, "state": STATE_PARTITIONS}
    return SimpleNamespace(conf=Settings({names[name]: value for name, value in settings.items()}))


def write_checkpoint(folder: Path, partitions: str) -> None:
    (folder / "offsets").mkdir()
    text = json.dumps({"conf": {SHUFFLE_PARTITIONS: partitions}})
    (folder / "offsets" / "0").write_text(f"v1\n{text}\n{{}}")


@pytest.mark.parametrize("asked", [{}, {"shuffle": "200"}, {"shuffle": "auto"}, {"shuffle": "1"}])
def test_new_query_has_one_state_partition_whatever_shuffles_have(tmp_path: Path, asked: dict[str, str]) -> None:
    spark = session(**asked)
    before = dict(spark.conf)
    with one_state_partition(spark, str(tmp_path / "new")):
        assert spark.conf == before | {STATE_PARTITIONS: 1}
    assert spark.conf == before, "of the session nothing changes"


def test_session_is_as_it_was_if_the_query_does_not_start(tmp_path: Path) -> None:
    spark = session()
    with pytest.raises(OSError, match="no"), one_state_partition(spark, str(tmp_path / "new")):
        raise OSError("no")
    assert not spark.conf


def test_query_starts_with_what_the_session_has_where_the_setting_is_forbidden(tmp_path: Path) -> None:
    def refuse(_name: str, _value: int) -> None:
        raise AnalysisException("CONFIG_NOT_AVAILABLE")

    spark = session(shuffle="200")
    spark.conf.set = refuse
    with one_state_partition(spark, str(tmp_path / "new")):
        assert spark.conf == {SHUFFLE_PARTITIONS: "200"}


def test_query_that_a_listener_starts_while_another_starts_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_settings, "_PATIENCE_SECONDS", 0.01)
    spark = session()
    with one_state_partition(spark, str(tmp_path / "one")):
        with one_state_partition(spark, str(tmp_path / "other")):
            assert spark.conf == {STATE_PARTITIONS: 1}
        assert spark.conf == {STATE_PARTITIONS: 1}
    assert not spark.conf
    with one_state_partition(spark, str(tmp_path / "third")):
        assert spark.conf == {STATE_PARTITIONS: 1}


def test_number_that_the_session_has_for_state_is_kept(tmp_path: Path) -> None:
    spark = session(state="5")
    with one_state_partition(spark, str(tmp_path / "new")):
        assert spark.conf == {STATE_PARTITIONS: "5"}
    assert spark.conf == {STATE_PARTITIONS: "5"}


@pytest.mark.parametrize(("kept", "is_warned"), [("200", True), ("2", True), ("1", False)])
def test_checkpoint_keeps_its_number_and_empty_partitions_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: str, is_warned: bool
) -> None:
    write_checkpoint(tmp_path, kept)
    spark = session(shuffle="200")
    with one_state_partition(spark, str(tmp_path)):
        assert spark.conf == {SHUFFLE_PARTITIONS: "200"}
    said = f"began with {kept} state partitions, of which the throttle uses one"
    assert (said in caplog.text) == is_warned
    assert bool(caplog.records) == is_warned


def test_queries_that_start_at_once_in_one_session_wait_for_each_other(tmp_path: Path) -> None:
    spark = session()
    has_entered, seen = Event(), []

    def start_other() -> None:
        with one_state_partition(spark, str(tmp_path / "other")):
            seen.append(spark.conf[STATE_PARTITIONS])
            has_entered.set()

    with one_state_partition(spark, str(tmp_path / "one")):
        other = Thread(target=start_other)
        other.start()
        assert not has_entered.wait(0.05)
        assert spark.conf[STATE_PARTITIONS] == 1
    other.join(10)
    assert seen == [1]
    assert not spark.conf


def checkpoint(folder: Path, *, version: str, provider: str) -> str:
    """Return a checkpoint of one committed batch, as Spark writes it."""
    for log, lines in (("commits", [version, "{}"]), ("offsets", ["v1", json.dumps({"conf": {PROVIDER: provider}})])):
        (folder / log).mkdir()
        (folder / log / "0").write_text("\n".join(lines))
    return str(folder)


def check(where: str, **settings: str) -> None:
    names = {"provider": PROVIDER, "version": FORMAT, "encoding": ENCODING}
    session = {names[name]: value for name, value in settings.items()}
    refuse_state_store(session.get, where)


@pytest.mark.parametrize("version", ["1", "2"])
def test_new_query_may_take_rocksdb_in_either_format(tmp_path: Path, version: str) -> None:
    check(str(tmp_path / "new"), provider=ROCKSDB, version=version)


def test_new_query_without_settings_is_taken(tmp_path: Path) -> None:
    check(str(tmp_path / "new"))


def test_sparks_default_store_has_no_second_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"HDFSBackedStateStoreProvider has format 1 only: set .*RocksDB"):
        check(str(tmp_path / "new"), version="2")


def test_checkpoint_keeps_its_store_whatever_the_session_asks_for(tmp_path: Path) -> None:
    check(checkpoint(tmp_path, version="v1", provider=HDFS), provider=ROCKSDB)


def test_store_that_a_checkpoint_keeps_has_no_second_format_even_if_the_session_names_one_that_has(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match=r"in format 1, which Spark does not convert: set it to 1"):
        check(checkpoint(tmp_path, version="v1", provider=HDFS), provider=ROCKSDB, version="2")


@pytest.mark.parametrize(("has", "asked"), [("v1", "2"), ("v2", "1")])
def test_other_format_than_that_of_the_checkpoint_is_refused(tmp_path: Path, has: str, asked: str) -> None:
    where = checkpoint(tmp_path, version=has, provider=ROCKSDB)
    check(where, version=has.removeprefix("v"))
    with pytest.raises(ConfigurationError, match=rf"is {asked}, and the state of the checkpoint .* in format {has[1]}"):
        check(where, version=asked)


def test_batch_that_was_planned_and_not_committed_keeps_the_store(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, version="v1", provider=HDFS)
    (tmp_path / "commits" / "0").unlink()
    with pytest.raises(ConfigurationError, match="the checkpoint keeps its store, or set the format to 1"):
        check(where, provider=ROCKSDB, version="2")


def test_avro_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="encodes the state of the throttle's operator as unsaferow only"):
        check(str(tmp_path / "new"), encoding="avro")


def test_other_format_of_the_log_of_offsets_is_refused(tmp_path: Path) -> None:
    setting = {"spark.sql.streaming.offsetLog.formatVersion": "2"}.get
    with pytest.raises(ConfigurationError, match=r"offsetLog.formatVersion is 2, .* in format 1 only: unset it"):
        refuse_state_store(setting, str(tmp_path))
