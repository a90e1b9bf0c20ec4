"""The decider's usage reports of every batch, on their way back to the control plane.

A batch's report is in a file named by its number, written before the batch is committed. A batch that is run again
writes the same bytes under the same name, because its decisions are a function of what was logged.

A batch without a report is one for which no epoch was due and which brought no row: it moved nothing, and nothing of it
is lost. It has no file.

A report stays as long as a checkpoint can be put back to its batch: the epoch after it is then made from it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from spark_throttle.control.batch_files import batch_files, batch_of
from spark_throttle.control.charges import forget_charges
from spark_throttle.core.usage import ReportHead, UsageReport, unpack_head, unpack_usage
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import first_block_bytes

_FOLDER: Final = "feedback"

_FIRST_BYTES: Final = 1 << 16
"""So much of a file is read for its head: more than the head of a job with a thousand groups, or a small report."""


def write_reports(directory: Directory, batch: int, reports: Sequence[bytes]) -> None:
    """Write the packed reports of a batch; without any, remove the one that an undone batch of the same number left."""
    for part, report in enumerate(reports):
        directory.write(_file(batch, part), report)
    if not reports:
        directory.delete(_file(batch, 0))


def report_files(directory: Directory, *, from_batch: int = 0) -> list[str]:
    """Return the names of the files of the reports of `from_batch` and later batches, in the order of the batches."""
    return batch_files(directory, _FOLDER, from_batch=from_batch)


class KeptReport:
    """A report in the control directory; all but its head is read when it is asked for, once."""

    def __init__(self, directory: Directory, name: str, begin: bytes) -> None:
        self._directory, self._name = directory, name
        self._what = f"the feedback file {directory.shown(name)}"
        self._whole: bytes | UsageReport | None = begin if len(begin) < _FIRST_BYTES else None
        if first_block_bytes(begin) > len(begin):
            begin = directory.read_part(name, 0, first_block_bytes(begin)) or begin
        self.head: ReportHead = unpack_head(begin, self._what)

    @classmethod
    def read(cls, directory: Directory, file: str) -> KeptReport | None:
        """Return the report in a file; `None` if there is no such file."""
        begin = directory.read_part(f"{_FOLDER}/{file}", 0, _FIRST_BYTES)
        return None if begin is None else cls(directory, f"{_FOLDER}/{file}", begin)

    def whole(self) -> UsageReport:
        """Return the whole report."""
        if not isinstance(self._whole, UsageReport):
            content = self._directory.read(self._name) if self._whole is None else self._whole
            if content is None:
                raise DamagedError(self._what, "it was deleted", RESTORE_CHECKPOINT)
            self._whole = unpack_usage(content, self._what)
        return self._whole


def kept_reports(
    directory: Directory, *, after_batch: int, files: Sequence[str] | None = None
) -> dict[int, list[KeptReport]]:
    """Return the reports of all batches after `after_batch` that have any, in the order of the batches.

    Parameters
    ----------
    files
        The files of reports, if they were listed already.
    """
    found: dict[int, list[KeptReport]] = defaultdict(list)
    for name in report_files(directory, from_batch=after_batch + 1) if files is None else files:
        if batch_of(name) > after_batch and (report := KeptReport.read(directory, name)) is not None:
            found[batch_of(name)].append(report)
    return dict(found)


def read_reports(directory: Directory, *, after_batch: int) -> dict[int, list[UsageReport]]:
    """Return the whole reports of all batches after `after_batch` that have any, in the order of the batches."""
    found = kept_reports(directory, after_batch=after_batch)
    return {batch: [report.whole() for report in reports] for batch, reports in found.items()}


def newest_reports(directory: Directory) -> tuple[int, list[UsageReport]]:
    """Return the newest batch that reported, and its reports; -1 and no reports before the first."""
    newest = newest_batch(directory)
    return newest, reports_of(directory, newest)


def reports_of(directory: Directory, batch: int) -> list[UsageReport]:
    """Return the reports of one batch; none if it moved nothing, or if they are gone."""
    return [report.whole() for report in _kept_of(directory, batch)]


def time_before(directory: Directory, batch: int) -> int | None:
    """Return the batch time, in ms, of the newest batch before `batch` that reported; `None` if its report is gone."""
    before = [name for name in report_files(directory) if batch_of(name) < batch][-1:]
    reports = [KeptReport.read(directory, name) for name in before]
    return reports[0].head.now_ms if reports and reports[0] is not None else None


def newest_batch(directory: Directory, files: Sequence[str] | None = None) -> int:
    """Return the number of the newest batch that has a file; -1 if none has.

    Parameters
    ----------
    files
        The files of reports, if they were listed already.
    """
    names = report_files(directory) if files is None else files
    return batch_of(names[-1]) if names else -1


def forget_reports(directory: Directory, *, from_batch: int) -> None:
    """Delete the reports of `from_batch` and later batches, and the charges of these batches."""
    forget_charges(directory, from_batch=from_batch)
    for name in report_files(directory, from_batch=from_batch):
        directory.delete(f"{_FOLDER}/{name}")


def forget_undone(directory: Directory, newest: int, time_of: Callable[[int], int | None]) -> list[int]:
    """Delete the reports of undone batches; return those batches whose numbers other batches have in Spark's log.

    A report holds its batch's time, which tells it from the report of another batch of that number. Two histories of a
    checkpoint agree up to the batch at which they part, so the search goes back to the first report that fits.

    Parameters
    ----------
    newest
        The newest batch in Spark's log.
    time_of
        Returns the time of a batch by Spark's log, in ms; `None` where the log does not have it.
    """
    forget_reports(directory, from_batch=newest + 1)
    others = []
    for batch in sorted({batch_of(name) for name in report_files(directory)}, reverse=True):
        logged_ms = time_of(batch)
        reports = _kept_of(directory, batch)
        if logged_ms is None or (reports and all(report.head.now_ms == logged_ms for report in reports)):
            break
        forget_reports(directory, from_batch=batch)
        others += [batch] if reports else []
    return others


def forget_old_reports(directory: Directory, *, but_newest: int) -> None:
    """Delete the reports of all but the newest batches that have one."""
    for name in report_files(directory)[:-but_newest]:
        directory.delete(f"{_FOLDER}/{name}")


def _kept_of(directory: Directory, batch: int) -> list[KeptReport]:
    """Return the reports of one batch."""
    files = [name for name in report_files(directory, from_batch=batch) if batch_of(name) == batch]
    return kept_reports(directory, after_batch=batch - 1, files=files).get(batch, [])


def _file(batch: int, part: int) -> str:
    return f"{_FOLDER}/{batch:012d}.{part}"
