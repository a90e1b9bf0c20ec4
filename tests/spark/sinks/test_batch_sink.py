"""Dead letters in a batch's folder replace it, so a run that was taken over must not write them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.control.run_fence import RunFence, RunWatch
from spark_throttle.errors import TakenOverError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.sinks.batch_sink import BatchSink
from spark_throttle.spark.sinks.targets import Target


def test_run_that_was_taken_over_replaces_no_dead_letters(tmp_path: Path) -> None:
    rows, directory, letters = Mock(), Directory(str(tmp_path)), Target("parquet", path=str(tmp_path / "letters"))
    fence = RunFence(directory)
    frozen = BatchSink(str(tmp_path), Mock(), Mock(), letters, None, "", RunWatch(fence.run))
    frozen.watch.check(directory)  # its source has not begun
    fence.begin()
    frozen.watch.check(directory)
    RunFence(directory).begin()
    with pytest.raises(TakenOverError):
        frozen._write_rejected(directory, rows, BatchMark("q/rejected", 7, ""))
    assert not rows.mock_calls
