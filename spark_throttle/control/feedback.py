"""What the shards report of every batch, on its way back to the control plane.

The reports of a batch stand in files named by its number, written before the batch is committed. A batch that
is run again writes the same bytes under the same names, for its decisions are a function of what was logged.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from spark_throttle.control.storage import Directory
from spark_throttle.core.codec import unpack_usage
from spark_throttle.core.packing import pack, unpack
from spark_throttle.core.usage import UsageReport

_FOLDER = "feedback"
_KIND, _VERSION = "fdbk", 1


def write_reports(directory: Directory, batch: int, reports: list[bytes], *, part: str = "all") -> None:
    """Write packed reports of a batch.

    Parameters
    ----------
    part
        Tells files of one batch apart: the shard's number where every shard writes its own.
    """
    directory.write(f"{_FOLDER}/{batch:012d}.{part}", pack(_KIND, _VERSION, {"reports": reports}))


def read_reports(directory: Directory, *, after_batch: int) -> dict[int, list[UsageReport]]:
    """Return the reports of all batches after `after_batch` that still have files, in the order of the batches."""
    found: dict[int, list[UsageReport]] = defaultdict(list)
    for name in directory.names(_FOLDER):
        batch = int(name.partition(".")[0])
        content = directory.read(f"{_FOLDER}/{name}") if batch > after_batch else None
        if content is not None:
            what = f"the feedback file {directory.path(f'{_FOLDER}/{name}')}"
            fields = unpack(content, _KIND, _VERSION, what)
            found[batch] += [unpack_usage(report, what) for report in fields.blobs("reports")]
    return dict(sorted(found.items()))


def newest_batch(directory: Directory) -> int:
    """Return the number of the newest batch that reported, -1 for none."""
    names = directory.names(_FOLDER)
    return int(names[-1].partition(".")[0]) if names else -1


def forget_reports(directory: Directory, *, before_batch: int = 0, from_batch: int = sys.maxsize) -> None:
    """Delete the reports of batches before `before_batch`, and of `from_batch` and later ones."""
    for name in directory.names(_FOLDER):
        if not before_batch <= int(name.partition(".")[0]) < from_batch:
            directory.delete(f"{_FOLDER}/{name}")
