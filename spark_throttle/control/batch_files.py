"""Files of the control directory that are named by a batch: its number in twelve digits, a dot, and a part."""

from __future__ import annotations

from bisect import bisect_left

from spark_throttle.files.storage import Directory


def batch_of(name: str) -> int:
    """Return the number of the batch that a file belongs to.

    Examples
    --------
    >>> batch_of("000000000012.00003")
    12
    """
    return int(name.partition(".")[0])


def batch_files(directory: Directory, folder: str, *, from_batch: int = 0) -> list[str]:
    """Return the names of the files of `from_batch` and later batches, in order; others there are none of ours."""
    names = directory.names(folder)
    begin = bisect_left(names, f"{from_batch:012d}")  # a plan looks at a folder of hundreds for its newest
    return [name for name in names[begin:] if name.partition(".")[0].isdecimal()]
