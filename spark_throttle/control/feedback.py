"""The shards' usage reports of every batch, on their way back to the control plane.

The reports of a batch are in files named by its number, written before the batch is committed. A batch that is run
again writes the same bytes under the same names, because its decisions are a function of what was logged.

An epoch reaches every shard. So a batch without reports is one for which no epoch was due and which brought no row to
any shard: it moved nothing, and nothing of it is lost. It has no file or, in older checkpoints, a file without reports.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.codec import unpack_usage
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory

_FOLDER = "feedback"
_KIND, _VERSION = "fdbk", 1


def write_reports(directory: Directory, batch: int, reports: list[bytes], *, part: str = "all") -> None:
    """Write the packed reports of a batch; without any, remove those that an undone batch of the same number left.

    Parameters
    ----------
    part
        Distinguishes the files of one batch: the shard's number where every shard writes its own.
    """
    name = f"{_FOLDER}/{batch:012d}.{part}"
    if reports:
        directory.write(name, pack(_KIND, _VERSION, {"reports": reports}))
    else:
        directory.delete(name)


def read_reports(directory: Directory, *, after_batch: int) -> dict[int, list[UsageReport]]:
    """Return the reports of all batches after `after_batch` that have any, in the order of the batches."""
    found: dict[int, list[UsageReport]] = defaultdict(list)
    for name in _files(directory):
        if _batch_of(name) > after_batch:
            found[_batch_of(name)] += _reports_of(directory, name)
    return {batch: reports for batch, reports in sorted(found.items()) if reports}


def newest_reports(directory: Directory) -> tuple[int, list[UsageReport]]:
    """Return the newest batch that reported, and its reports; -1 and no reports before the first."""
    newest, found = -1, list[UsageReport]()
    for name in reversed(_files(directory)):
        if found and _batch_of(name) != newest:
            break
        newest, found = _batch_of(name), [*_reports_of(directory, name), *found]
    return (newest, found) if found else (-1, [])


def time_before(directory: Directory, batch: int) -> int | None:
    """Return the batch time, in ms, of the newest batch before `batch` that reported; `None` if its report is gone."""
    for name in reversed(_files(directory)):
        if _batch_of(name) < batch:
            reports = _reports_of(directory, name)
            if reports:
                return reports[0].now_ms
    return None


def newest_batch(directory: Directory) -> int:
    """Return the number of the newest batch that has a file; -1 if none has."""
    names = _files(directory)
    return _batch_of(names[-1]) if names else -1


def forget_reports(directory: Directory, *, before_batch: int = 0, from_batch: int = sys.maxsize) -> None:
    """Delete the reports of batches before `before_batch`, and those of `from_batch` and later batches."""
    for name in _files(directory):
        if not before_batch <= _batch_of(name) < from_batch:
            directory.delete(f"{_FOLDER}/{name}")


def _files(directory: Directory) -> list[str]:
    """Return the names of the feedback files, in order; other files that lie there are none of ours."""
    return [name for name in directory.names(_FOLDER) if name.partition(".")[0].isdecimal()]


def _batch_of(name: str) -> int:
    return int(name.partition(".")[0])


def _reports_of(directory: Directory, name: str) -> list[UsageReport]:
    """Return the reports in a file; none if the file was deleted meanwhile."""
    content = directory.read(f"{_FOLDER}/{name}")
    if content is None:
        return []
    what = f"the feedback file {directory.path(f'{_FOLDER}/{name}')}"
    return [unpack_usage(report, what) for report in unpack(content, _KIND, _VERSION, what).blobs("reports")]
