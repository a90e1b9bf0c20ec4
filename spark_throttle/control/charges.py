"""What functions charged for every batch, in time and in late costs, on its way to the control plane.

Functions are metered where they run: each task writes what it charged to a record (`checkpoint.batch_records`), before
the batch is committed. Its part says of which run it is, of which work of the batch, and of which attempt at it. Who
writes a part first deletes those of the batch that it replaces: those of other runs, as a batch that is run again may
be divided into other work, and those of other attempts at its own. So a batch is charged for the attempt that was
committed, and not for time that a killed one used. Two attempts at the same work that end at the same moment, as of a
speculative task, may both be charged, and both used their time.

Unlike reports, the charges of a batch that is run again are other numbers. They decide nothing until an epoch has
pinned what was made of them.

The parts of a batch that an epoch has settled are joined to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final

from spark_throttle.checkpoint.batch_records import CHARGES, batch_of, part_of, record_name, records
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.files.storage import Directory, read_block, write_block

_JOINED: Final = "all"
"""The part that stands for all parts of a batch; others beside it were left by a run that was killed."""

_IF_DAMAGED = "delete it: what it charged is then charged to nobody, and the estimates of its rows stand"
"""No decision rests on it yet, so the checkpoint is whole without it."""


def write_charges(directory: Directory, batch: int, charges: TimeCharges, *, part: str) -> None:
    """Write a part of a batch's charges, over what was written for that part before.

    Parameters
    ----------
    part
        Distinguishes the files of one batch, as a function and a task do. It may have no slash.
    """
    write_block(directory, record_name(batch, CHARGES, part), charges)


@dataclass(frozen=True, slots=True)
class Part:
    """Names a part of a batch's charges; no field has a dot or a slash."""

    run: str
    work: str
    """The work within the batch: that of the driver, or a stage and a partition."""

    attempt: int = 0
    process: int = 0
    """Tells processes that work for the same attempt apart."""

    def __str__(self) -> str:
        """Return the part as `write_charges` takes it."""
        return f"{self.run}.{self.work}.{self.attempt}.{self.process}"

    def replaces(self, other: str) -> bool:
        """Return whether another part, by its text, is of another run, or of another attempt at the same work.

        Examples
        --------
        >>> part = Part("5e", "3-0", attempt=7)
        >>> [part.replaces(other) for other in ("5e.3-0.7.81", "5e.3-1.6.0", "5e.3-0.6.0", "4c.3-0.2.0", "all")]
        [False, False, True, True, True]
        """
        run, _, rest = other.partition(".")
        return run != self.run or (rest.startswith(f"{self.work}.") and rest.split(".")[1] != str(self.attempt))


def replace_charges(directory: Directory, batch: int, charges: TimeCharges, part: Part) -> None:
    """Write a part of a batch's charges, in place of all parts that it replaces."""
    for name in _parts(directory, from_batch=batch).get(batch, []):
        if part.replaces(part_of(name)):
            directory.delete(name)
    write_charges(directory, batch, charges, part=str(part))


def read_charges(directory: Directory, *, after_batch: int) -> dict[int, TimeCharges]:
    """Return the charges of all batches after `after_batch` that have any, in the order of the batches."""
    return {batch: _sum_of(directory, parts) for batch, parts in _parts(directory, from_batch=after_batch + 1).items()}


def join_charges(directory: Directory, *, before_batch: int) -> None:
    """Join the parts of each batch before `before_batch` to one."""
    for batch, parts in _parts(directory).items():
        if len(parts) > 1 and batch < before_batch:
            joined = record_name(batch, CHARGES, _JOINED)
            if joined not in parts:
                write_charges(directory, batch, _sum_of(directory, parts), part=_JOINED)
            for name in parts:
                if name != joined:
                    directory.delete(name)


def _parts(directory: Directory, *, from_batch: int = 0) -> dict[int, list[str]]:
    """Return the names of the charges of `from_batch` and later batches, by batch."""
    return {
        batch: list(names) for batch, names in groupby(records(directory, CHARGES, from_batch=from_batch), batch_of)
    }


def _sum_of(directory: Directory, parts: list[str]) -> TimeCharges:
    """Return the charges of a batch."""
    joined = [name for name in parts if part_of(name) == _JOINED]
    found = (read_block(directory, name, TimeCharges, "the charges in", remedy=_IF_DAMAGED) for name in joined or parts)
    return TimeCharges.sum_of([each for each in found if each is not None])
