"""Settings of the state store that Spark cannot run a query with are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.start.state_settings import ENCODING, FORMAT, PROVIDER, refuse_state_store

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


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
