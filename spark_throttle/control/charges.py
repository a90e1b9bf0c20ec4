"""The processing time that every batch used, on its way to the control plane.

Functions are metered where they run: each task writes what it charged to a file named by the batch and a part, before
the batch is committed. A task that is run again, in another attempt or in a batch that is run again, writes over its
file. A batch that begins again deletes the files of its earlier attempt first (`forget_charges`), because it may have
other parts. So a batch is charged for the attempt that was committed; not for time that a killed attempt used.

Unlike reports, the charges of a batch that is run again are other numbers. They decide nothing until an epoch has
pinned what was made of them.

A batch whose charges an epoch has settled is put away, in one file, as long as its reports are.
"""

from __future__ import annotations

from collections import defaultdict

from spark_throttle.core.charges_codec import pack_charges, unpack_charges
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.files.storage import Directory

_FOLDER, _PUT_AWAY = "charges", "settled-charges"


def write_charges(directory: Directory, batch: int, charges: TimeCharges, *, part: str) -> None:
    """Write a part of a batch's charges, over what was written for that part before.

    Parameters
    ----------
    part
        Distinguishes the files of one batch, as a function and a task do. It may have no slash.
    """
    directory.write(f"{_FOLDER}/{batch:012d}.{part}", pack_charges(charges))


def read_charges(directory: Directory, *, after_batch: int) -> dict[int, TimeCharges]:
    """Return the charges of all batches after `after_batch` that have any, in the order of the batches."""
    found: dict[int, list[TimeCharges]] = defaultdict(list)
    for name in _names(directory, _FOLDER, after_batch + 1):
        content = directory.read(f"{_FOLDER}/{name}")
        if content is not None:
            what = f"the charges of processing time in {directory.path(f'{_FOLDER}/{name}')}"
            found[_batch_of(name)].append(unpack_charges(content, what))
    return {batch: TimeCharges.sum_of(parts) for batch, parts in sorted(found.items())}


def forget_charges(directory: Directory, *, from_batch: int) -> None:
    """Delete the charges of `from_batch` and later batches."""
    for folder in (_FOLDER, _PUT_AWAY):
        for name in _names(directory, folder, from_batch):
            directory.delete(f"{folder}/{name}")


def put_away_charges(directory: Directory, *, before_batch: int) -> None:
    """Put away the charges of batches before `before_batch`, those of a batch in one file."""
    names = [name for name in _names(directory, _FOLDER, 0) if _batch_of(name) < before_batch]
    if not names:
        return
    away = {_batch_of(name) for name in _names(directory, _PUT_AWAY, _batch_of(names[0]))}
    for batch, charges in read_charges(directory, after_batch=_batch_of(names[0]) - 1).items():
        if batch < before_batch and batch not in away:  # else a run that was killed here has deleted some of its parts
            directory.write(f"{_PUT_AWAY}/{batch:012d}", pack_charges(charges))
    for name in names:
        directory.delete(f"{_FOLDER}/{name}")


def bring_back_charges(directory: Directory, *, from_batch: int) -> None:
    """Bring back the charges of `from_batch` and later batches that were put away."""
    there: dict[int, list[str]] = defaultdict(list)
    for name in _names(directory, _FOLDER, from_batch):
        there[_batch_of(name)].append(name)
    for name in _names(directory, _PUT_AWAY, from_batch):
        content = directory.read(f"{_PUT_AWAY}/{name}")
        for left in there[_batch_of(name)]:  # by a run that was killed while it put the batch away
            directory.delete(f"{_FOLDER}/{left}")
        if content is not None:
            directory.write(f"{_FOLDER}/{name}.all", content)
        directory.delete(f"{_PUT_AWAY}/{name}")


def forget_charges_put_away(directory: Directory, *, but_newest: int) -> None:
    """Delete the charges that were put away, but those of the newest batches."""
    for name in _names(directory, _PUT_AWAY, 0)[:-but_newest]:
        directory.delete(f"{_PUT_AWAY}/{name}")


def _names(directory: Directory, folder: str, from_batch: int) -> list[str]:
    """Return the names of the files of `from_batch` and later batches in a folder; others there are none of ours."""
    names = (name for name in directory.names(folder) if name.partition(".")[0].isdecimal())
    return [name for name in names if _batch_of(name) >= from_batch]


def _batch_of(name: str) -> int:
    return int(name.partition(".")[0])
