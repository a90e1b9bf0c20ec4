"""Spark's own logs in a checkpoint say which batches were planned and committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.checkpoint.offset_log import OffsetLog, batch_time_ms, read_offset_log
from spark_throttle.files.storage import Directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path))


def test_checkpoint_that_is_not_there_has_no_batch(checkpoint: Directory) -> None:
    assert read_offset_log(checkpoint) == OffsetLog(-1, -1)
    assert read_offset_log(checkpoint).uncommitted is None


def test_newest_batches_are_found_among_what_else_spark_leaves(checkpoint: Directory) -> None:
    for name in ("offsets/9", "offsets/10", "offsets/.10.crc", "offsets/.11.a-b.tmp", "commits/9", "commits/x"):
        checkpoint.write(name, b"v1")
    log = read_offset_log(checkpoint)
    assert log == OffsetLog(10, 9)
    assert log.uncommitted == 10
    checkpoint.write("commits/10", b"v1")
    assert read_offset_log(checkpoint).uncommitted is None


def test_time_of_a_batch_is_what_its_offsets_say(checkpoint: Directory) -> None:
    checkpoint.write("offsets/3", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1760000000123,"conf":{}}\n{"epoch":1}')
    assert batch_time_ms(checkpoint, 3) == 1_760_000_000_123


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\nnot json", b"v1\n{}", b"v1\n[]"])
def test_time_that_offsets_do_not_say_is_unknown(checkpoint: Directory, content: bytes) -> None:
    assert batch_time_ms(checkpoint, 3) is None
    checkpoint.write("offsets/3", content)
    assert batch_time_ms(checkpoint, 3) is None
