"""The decider's usage reports of every batch, on their way back to the control plane.

A batch that the decider was called for has one report, a record (`checkpoint.batch_records`) that is written before the
batch is committed. A batch that is run again writes the same bytes under the same name, because its decisions are a
function of what was logged.

A batch without a report is one for which no epoch was due and which brought no row: it moved nothing, and nothing of it
is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_throttle.checkpoint.batch_records import REPORT, batch_of, part_of, record_name, records
from spark_throttle.core.usage import ReportHead, UsageReport, unpack_head, unpack_usage
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import first_block_bytes

_FIRST_BYTES: Final = 1 << 16
"""So much of a file is read for its head: more than the head of a job with a thousand groups, or a small report."""


def write_report(directory: Directory, batch: int, report: bytes) -> None:
    """Write the packed report of a batch."""
    batch_ms = unpack_head(report, f"the usage report of batch {batch}").now_ms
    directory.write(record_name(batch, REPORT, batch_ms), report)


class KeptReport:
    """A report in the control directory; all but its head is read when it is asked for, once."""

    def __init__(self, directory: Directory, name: str, begin: bytes) -> None:
        self._directory, self._name = directory, name
        self._what = f"the report {directory.shown(name)}"
        self._whole: bytes | UsageReport | None = begin if len(begin) < _FIRST_BYTES else None
        if first_block_bytes(begin) > len(begin):
            begin = directory.read_part(name, 0, first_block_bytes(begin)) or begin
        self.head: ReportHead = unpack_head(begin, self._what)

    def whole(self) -> UsageReport:
        """Return the whole report."""
        if not isinstance(self._whole, UsageReport):
            content = self._directory.read(self._name) if self._whole is None else self._whole
            if content is None:
                raise DamagedError(self._what, "it was deleted", RESTORE_CHECKPOINT)
            self._whole = unpack_usage(content, self._what)
        return self._whole


def kept_reports(
    directory: Directory, *, after_batch: int, names: Sequence[str] | None = None
) -> dict[int, KeptReport]:
    """Return the reports of all batches after `after_batch` that have one, in the order of the batches.

    Parameters
    ----------
    names
        The names of reports, if they were listed already.
    """
    found = {}
    for name in records(directory, REPORT, from_batch=after_batch + 1) if names is None else names:
        begin = directory.read_part(name, 0, _FIRST_BYTES) if batch_of(name) > after_batch else None
        if begin is not None:
            found[batch_of(name)] = KeptReport(directory, name, begin)
    return found


def read_reports(directory: Directory, *, after_batch: int) -> dict[int, UsageReport]:
    """Return the whole reports of all batches after `after_batch` that have one, in the order of the batches."""
    return {batch: kept.whole() for batch, kept in kept_reports(directory, after_batch=after_batch).items()}


def report_of(directory: Directory, batch: int) -> UsageReport | None:
    """Return the report of one batch; `None` if it moved nothing, or if it is gone."""
    names = [name for name in records(directory, REPORT, from_batch=batch) if batch_of(name) == batch]
    kept = kept_reports(directory, after_batch=batch - 1, names=names).get(batch)
    return None if kept is None else kept.whole()


def time_before(directory: Directory, batch: int) -> int | None:
    """Return the batch time, in ms, of the newest batch before `batch` that reported; `None` if its report is gone."""
    before = [name for name in records(directory, REPORT) if batch_of(name) < batch]
    return int(part_of(before[-1])) if before else None


def newest_batch(directory: Directory, names: Sequence[str] | None = None) -> int:
    """Return the number of the newest batch that has reported; -1 if none has.

    Parameters
    ----------
    names
        The names of reports, if they were listed already.
    """
    found = records(directory, REPORT) if names is None else names
    return batch_of(found[-1]) if found else -1
