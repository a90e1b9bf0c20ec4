"""What the destinations of a batch said, on its way back to the control plane.

It is in one file for each batch, written before the batch's reports, and replaced or removed when a batch of that
number runs again. So a batch whose reports are read has its own. The files of batches whose reports may be needed
again, because a checkpoint can be put back, are kept; none of them is listed on the way of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_throttle.core.shares.destinations import Told
from spark_throttle.files.records import read_block
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack

_FOLDER = "told"


@dataclass(frozen=True, slots=True)
class ToldInBatch:
    """What the file of a batch holds."""

    by_group: dict[str, Told]
    """What each destination said, by its resource group."""


def write_told(directory: Directory, batch: int, told: dict[str, Told]) -> None:
    """Write what the destinations said, by resource group; without any, remove what another batch left."""
    if not told:
        directory.delete(_name(batch))
        return
    directory.write(_name(batch), pack(ToldInBatch(told)))


def read_told(directory: Directory, batch: int) -> dict[str, Told]:
    """Return what the destinations of a batch said."""
    found = read_block(directory, _name(batch), ToldInBatch)
    return {} if found is None else found.by_group


def forget_told(directory: Directory, *, but_newest: int) -> None:
    """Delete the files, but those of the newest batches."""
    for name in [name for name in directory.names(_FOLDER) if name.isdecimal()][:-but_newest]:
        directory.delete(f"{_FOLDER}/{name}")


def _name(batch: int) -> str:
    return f"{_FOLDER}/{batch:012d}"
