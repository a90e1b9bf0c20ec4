"""The processing time that every batch used, on its way to the control plane.

Functions are metered where they run: each task writes what it charged to a file named by the batch and a part, before
the batch is committed. A part says of which run it is, of which work of the batch, and of which attempt at it. Whoever
writes a part first deletes those of the batch that it replaces: those of other runs, as a batch that is run again may
be divided into other work, and those of other attempts at its own. So a batch is charged for the attempt that was
committed, and not for time that a killed one used. Two attempts at the same work that end at the same moment, as of a
speculative task, may both be charged, and both used their time.

Unlike reports, the charges of a batch that is run again are other numbers. They decide nothing until an epoch has
pinned what was made of them.

A batch whose charges an epoch has settled is put away, in one file, as long as its reports are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from spark_throttle.control.batch_files import batch_files, batch_of
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack, unpack

_FOLDER, _PUT_AWAY = "charges", "settled-charges"

_IF_DAMAGED = "delete it: what it charged is then charged to nobody"
"""No decision rests on it yet, so the checkpoint is whole without it."""


def write_charges(directory: Directory, batch: int, charges: TimeCharges, *, part: str) -> None:
    """Write a part of a batch's charges, over what was written for that part before.

    Parameters
    ----------
    part
        Distinguishes the files of one batch, as a function and a task do. It may have no slash.
    """
    directory.write(f"{_FOLDER}/{batch:012d}.{part}", pack(charges))


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
    prefix = f"{batch:012d}."
    for name in batch_files(directory, _FOLDER, from_batch=batch):
        if name.startswith(prefix) and part.replaces(name.removeprefix(prefix)):
            directory.delete(f"{_FOLDER}/{name}")
    write_charges(directory, batch, charges, part=str(part))


def read_charges(directory: Directory, *, after_batch: int) -> dict[int, TimeCharges]:
    """Return the charges of all batches after `after_batch` that have any, in the order of the batches."""
    found: dict[int, list[TimeCharges]] = defaultdict(list)
    for name in batch_files(directory, _FOLDER, from_batch=after_batch + 1):
        content = directory.read(f"{_FOLDER}/{name}")
        if content is not None:
            what = f"the charges of processing time in {directory.shown(f'{_FOLDER}/{name}')}"
            found[batch_of(name)].append(unpack(TimeCharges, content, what, remedy=_IF_DAMAGED))
    return {batch: TimeCharges.sum_of(parts) for batch, parts in sorted(found.items())}


def forget_charges(directory: Directory, *, from_batch: int) -> None:
    """Delete the charges of `from_batch` and later batches."""
    for folder in (_FOLDER, _PUT_AWAY):
        for name in batch_files(directory, folder, from_batch=from_batch):
            directory.delete(f"{folder}/{name}")


def put_away_charges(directory: Directory, *, before_batch: int) -> None:
    """Put away the charges of batches before `before_batch`, those of a batch in one file."""
    names = [name for name in batch_files(directory, _FOLDER) if batch_of(name) < before_batch]
    if not names:
        return
    away = {batch_of(name) for name in batch_files(directory, _PUT_AWAY, from_batch=batch_of(names[0]))}
    for batch, charges in read_charges(directory, after_batch=batch_of(names[0]) - 1).items():
        if batch < before_batch and batch not in away:  # else a run that was killed here has deleted some of its parts
            directory.write(f"{_PUT_AWAY}/{batch:012d}", pack(charges))
    for name in names:
        directory.delete(f"{_FOLDER}/{name}")


def bring_back_charges(directory: Directory, *, from_batch: int) -> None:
    """Bring back the charges of `from_batch` and later batches that were put away."""
    there: dict[int, list[str]] = defaultdict(list)
    for name in batch_files(directory, _FOLDER, from_batch=from_batch):
        there[batch_of(name)].append(name)
    for name in batch_files(directory, _PUT_AWAY, from_batch=from_batch):
        content = directory.read(f"{_PUT_AWAY}/{name}")
        for left in there[batch_of(name)]:  # by a run that was killed while it put the batch away
            directory.delete(f"{_FOLDER}/{left}")
        if content is not None:
            directory.write(f"{_FOLDER}/{name}.all", content)
        directory.delete(f"{_PUT_AWAY}/{name}")


def forget_charges_put_away(directory: Directory, *, but_newest: int) -> None:
    """Delete the charges that were put away, but those of the newest batches."""
    for name in batch_files(directory, _PUT_AWAY)[:-but_newest]:
        directory.delete(f"{_PUT_AWAY}/{name}")
