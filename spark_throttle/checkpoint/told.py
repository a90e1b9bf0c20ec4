"""What the destinations of a batch said, on its way back to the control plane.

It is in one file for each batch, written before the batch's reports, and replaced or removed when a batch of that
number runs again. So a batch whose reports are read has its own. The files of batches whose reports may be needed
again, because a checkpoint can be put back, are kept; none of them is listed on the way of a batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.shares.destinations import Told
from spark_throttle.files.storage import Directory

_FOLDER = "told"
_KIND, _VERSION = "told", 2
"""Version 2 added until when destinations asked not to be called; it is written where one did."""

_NUMBERS = ("accepted", "refused", "part", "quiet_ms", "refused_for_ms", "unsent_messages")
_CLOSED = "closed_until_ms"


def write_told(directory: Directory, batch: int, told: dict[str, Told]) -> None:
    """Write what the destinations said, by resource group; without any, remove what another batch left."""
    if not told:
        directory.delete(_name(batch))
        return
    directory.write(_name(batch), pack_told(told))


def pack_told(told: dict[str, Told]) -> bytes:
    """Return what destinations said as a block."""
    is_closed = any(each.closed_until_ms for each in told.values())
    names = (*_NUMBERS, _CLOSED) if is_closed else _NUMBERS
    numbers = {name: np.array([getattr(each, name) for each in told.values()], dtype=np.int64) for name in names}
    return pack(_KIND, _VERSION if is_closed else 1, {"names": pa.array(told, pa.string()), **numbers})


def unpack_told(block: bytes, what: str) -> dict[str, Told]:
    """Return what `pack_told` packed."""
    f = unpack(block, _KIND, _VERSION, what)
    names = (*_NUMBERS, _CLOSED) if f.has(_CLOSED) else _NUMBERS
    rows = zip(*(f.integers(name).tolist() for name in names), strict=True)
    return {name: Told(*row) for name, row in zip(f.names("names").to_pylist(), rows, strict=True)}


def read_told(directory: Directory, batch: int) -> dict[str, Told]:
    """Return what the destinations of a batch said."""
    content = directory.read(_name(batch))
    return {} if content is None else unpack_told(content, f"the file {directory.shown(_name(batch))}")


def forget_told(directory: Directory, *, but_newest: int) -> None:
    """Delete the files, but those of the newest batches."""
    for name in [name for name in directory.names(_FOLDER) if name.isdecimal()][:-but_newest]:
        directory.delete(f"{_FOLDER}/{name}")


def _name(batch: int) -> str:
    return f"{_FOLDER}/{batch:012d}"
