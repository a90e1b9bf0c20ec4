"""Every batch leaves its records in one folder of the control directory; they are listed and deleted here alone.

A record's name is the number of its batch in twelve digits, its kind, and a part, with dots between them:

- a report (`control.reports`) is what the decider says of the batch. It is written last, so a batch that has one has
  all its records. Its part is the batch's time by Spark's log.
- a delivery (`checkpoint.delivery`) is what a paced sink or a function did not deliver; its part is the time as well.
- charges (`control.charges`) are what the functions of one task charged, which does not know the time of its batch.
  Their part names the run.
- a refusal (`spark.metering.charging`) is a task's "not now" on its way to the driver, which takes it away.

Number and time together tell a batch from all others: a checkpoint that was put back gives the numbers of undone
batches to others. A record stays as long as a checkpoint can be put back to its batch: the next epoch is then made from
it again.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import Final

from spark_throttle.files.storage import Directory

REPORT: Final = "report"
DELIVERY: Final = "delivery"
CHARGES: Final = "charges"
REFUSAL: Final = "refusal"
"""Kinds of records."""

FOLDER: Final = "batches"
_DIGITS: Final = 12
_NAME: Final = re.compile(rf"\d{{{_DIGITS}}}\.({REPORT}|{DELIVERY}|{CHARGES}|{REFUSAL})\..+")


def record_name(batch: int, kind: str, part: object) -> str:
    """Return the name of a record in the control directory.

    Examples
    --------
    >>> record_name(12, REPORT, 1_760_000_000_000)
    'batches/000000000012.report.1760000000000'
    """
    return f"{FOLDER}/{batch:0{_DIGITS}d}.{kind}.{part}"


def batch_of(name: str) -> int:
    """Return the number of the batch that a record is of.

    Examples
    --------
    >>> batch_of(record_name(12, CHARGES, "5e.3-0.7.81"))
    12
    """
    return int(name[len(FOLDER) + 1 :][:_DIGITS])


def part_of(name: str) -> str:
    """Return the part of a record's name.

    Examples
    --------
    >>> part_of(record_name(12, CHARGES, "5e.3-0.7.81"))
    '5e.3-0.7.81'
    """
    return name.split(".", 2)[2]


def records(directory: Directory, kind: str = "", *, from_batch: int = 0) -> list[str]:
    """Return the names of the records of `from_batch` and later batches in order, of one kind or of all.

    Other files in the folder are none of ours.
    """
    names = directory.names(FOLDER)
    begin = bisect_left(names, f"{from_batch:0{_DIGITS}d}")  # a plan looks at a folder of hundreds for its newest
    named = (_NAME.fullmatch(name) for name in names[begin:])
    return [f"{FOLDER}/{found.string}" for found in named if found is not None and found[1].startswith(kind)]


def forget_old(directory: Directory, *, but_newest: int) -> None:
    """Delete the records of all but the newest batches that have any."""
    names = records(directory)
    kept = set(list(dict.fromkeys(map(batch_of, names)))[-but_newest:])
    for name in names:
        if batch_of(name) not in kept:
            directory.delete(name)


def forget_undone(
    directory: Directory, newest: int, time_of: Callable[[int], int | None] = lambda _: None
) -> list[int]:
    """Delete the records of undone batches; return those batches that had reported.

    Two histories of a checkpoint agree up to the batch at which they part. So the search goes back to the first report
    that the log has, and deletes the records after it, but those of batches that the log has.

    Parameters
    ----------
    newest
        The newest batch in Spark's log; all records of later ones are of undone batches.
    time_of
        Returns the time of a batch by Spark's log, in ms; `None` where the log does not have it.
    """
    logged_ms = cache(time_of)  # each batch's log is a file

    def is_logged(name: str) -> bool:
        return batch_of(name) <= newest and part_of(name) == str(logged_ms(batch_of(name)))

    undone = newest + 1
    for name in reversed(records(directory, REPORT)):
        if batch_of(name) <= newest and (logged_ms(batch_of(name)) is None or is_logged(name)):
            break
        undone = min(undone, batch_of(name))
    names = [name for name in records(directory, from_batch=undone) if not is_logged(name)]
    for name in names:
        directory.delete(name)
    return [batch_of(name) for name in names if f".{REPORT}." in name]
