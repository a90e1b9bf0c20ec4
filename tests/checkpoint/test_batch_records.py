"""Records of batches: listed in the order of the batches, kept as long as they may be needed, deleted if undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.checkpoint.batch_records import (
    CHARGES,
    DELIVERY,
    REPORT,
    batch_of,
    forget_old,
    forget_undone,
    part_of,
    record_name,
    records,
)
from spark_throttle.files.storage import Directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path / "control"))


def write(directory: Directory, batch: int, time_ms: int) -> None:
    for kind, part in ((CHARGES, "5e.3-0.7.81"), (DELIVERY, time_ms), (REPORT, time_ms)):
        directory.write(record_name(batch, kind, part), b"")


def left(directory: Directory, kind: str = "") -> list[int]:
    return [batch_of(name) for name in records(directory, kind)]


def test_records_are_listed_by_batch_and_kind_and_other_files_are_not(directory: Directory) -> None:
    for batch in (10, 9, 11):
        write(directory, batch, 1_000)
    for other in ("notes~", "000000000010.orders.5", "000000000010.report", "10.report.5"):
        directory.write(f"batches/{other}", b"")
    assert left(directory) == 3 * [9] + 3 * [10] + 3 * [11]
    assert [part_of(name) for name in records(directory, CHARGES, from_batch=10)] == 2 * ["5e.3-0.7.81"]


def test_records_of_the_newest_batches_are_kept(directory: Directory) -> None:
    for batch in (3, 5, 8, 9, 12):
        write(directory, batch, 1_000)
    for _ in range(2):
        forget_old(directory, but_newest=3)
        assert left(directory) == 3 * [8] + 3 * [9] + 3 * [12]


def test_records_of_batches_that_the_log_has_otherwise_are_deleted(directory: Directory) -> None:
    """Batches 5 and 6 of the log are others than those that left records under these numbers; 8 is not in the log."""
    for batch in range(3, 9):
        write(directory, batch, batch * 1_000)
    asked = []

    def time_of(batch: int) -> int | None:
        asked.append(batch)
        return batch * 1_000 + (batch > 4)

    directory.write(record_name(6, DELIVERY, 6_001), b"of a batch that the log has")
    assert forget_undone(directory, 6, time_of) == [5, 6, 7, 8]
    assert asked == [6, 5, 4]  # each once; older ones have the same history
    assert left(directory) == 3 * [3] + 3 * [4] + [6]
    assert forget_undone(directory, 6, lambda _: None) == []
    assert left(directory, REPORT) == [3, 4]


def test_records_after_the_newest_batch_are_deleted_where_the_log_is_not_known(directory: Directory) -> None:
    for batch in range(3, 6):
        write(directory, batch, 1_000)
    directory.write(record_name(7, CHARGES, "all"), b"of a batch that died before it reported")
    assert forget_undone(directory, 3) == [4, 5]
    assert left(directory) == 3 * [3]
