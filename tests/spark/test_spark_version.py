"""What differs from one Spark to another: the readers as Spark 4.1 calls them, and what a start says of its version."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark import Throttle
from spark_throttle.spark.spark_version import OffsetBefore, told_of_available_now, warn_of_rows_left
from tests.spark.sources.driver import Driver

BEFORE_ALL = {"epoch": 0, "file": ""}


def log(checkpoint: Path, batch: int, *offsets: Any) -> None:
    """Log a batch as Spark does: a version, the batch itself, and a line per source."""
    (checkpoint / "offsets").mkdir(exist_ok=True)
    lines = ["v1", "{}", *("-" if each is None else json.dumps(each) for each in offsets)]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text("{}")
    return tmp_path


def test_reader_that_is_not_told_the_start_goes_on_from_its_own_answer_and_from_the_log(checkpoint: Path) -> None:
    """Each epoch is due by itself, so a reader that began elsewhere would repeat a number or leave one out."""
    driver, start = Driver(checkpoint / "throttle"), BEFORE_ALL
    for batch in range(6):
        if batch in (2, 3):
            driver.reader.stop()
            driver.start()
        driver.offset = end = driver.reader.latestOffset()
        assert end["epoch"] == batch + 1
        assert len(driver.rows(start, end)) == 1
        log(checkpoint, batch, {"logOffset": batch}, end)
        driver.batch(moved=3, due_ms=driver.now_ms)
        start = end
    driver.reader.stop()


def test_start_that_an_epoch_followed_which_no_batch_has_is_the_logs(checkpoint: Path) -> None:
    """A crash between the epoch's file and Spark's log of the offset that names it."""
    driver = Driver(checkpoint / "throttle")
    first = driver.offset = driver.reader.latestOffset()
    log(checkpoint, 0, None, first)
    driver.batch(moved=3, due_ms=driver.now_ms)
    lost = driver.reader.latestOffset()
    driver.reader.stop()
    driver.start()
    assert OffsetBefore().next(str(checkpoint / "throttle"), BEFORE_ALL) == first
    again = driver.reader.latestOffset()
    assert again["epoch"] == lost["epoch"] == 2
    driver.reader.stop()


def test_control_directory_that_is_in_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is in no checkpoint, .*: give apply a folder of the query's"):
        OffsetBefore().next(str(tmp_path / "elsewhere"), BEFORE_ALL)


@pytest.mark.parametrize("offsets", [[{"logOffset": 3}], [BEFORE_ALL, BEFORE_ALL]])
def test_log_without_one_offset_of_this_source_is_refused(checkpoint: Path, offsets: list[Any]) -> None:
    log(checkpoint, 7, *offsets)
    with pytest.raises(ConfigurationError, match=r"batch 7 in the log of .* needs one"):
        OffsetBefore().next(str(checkpoint / "throttle"), BEFORE_ALL)


def test_query_that_may_end_with_waiting_rows_says_so(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_rows_left("4.2.0")
    assert not caplog.messages
    warn_of_rows_left("4.1.4")
    (said,) = caplog.messages
    assert said.startswith("on Spark 4.1.4 a query with availableNow runs one batch, and rows that exceed")


def test_reader_is_used_as_it_is_where_spark_cannot_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    assert told_of_available_now(Path) is Path


def test_pipeline_is_refused_where_it_could_not_go_on() -> None:
    session = SimpleNamespace(conf={"spark.master": "local[1]"}, version="4.1.4")
    events: Any = SimpleNamespace(sparkSession=session)
    with pytest.raises(ConfigurationError, match=r"a pipeline .* on Spark 4\.1\.4, .*: use Spark 4\.2"):
        Throttle({"version": 1}, "ns")._applied(events, "control", is_declared=True)
