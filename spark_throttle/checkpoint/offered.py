"""How many rows for a destination a batch offers to a function for `foreachBatch`: noted before the function is called.

A batch that is run again calls the function with the same rows, because the function may have taken them. How many rows
of a destination were offered depends on what the process was told meanwhile, which nobody knows after a crash. So it is
noted before a call that has not all of the batch's rows, and replaced before the next.

The name of a batch's file has the batch's number and its time by Spark's log, as those of `unsent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.files.storage import Directory

OFFERED_FOLDER: Final = "offered"
_KIND, _VERSION = "offr", 1


def note_offered(control: Directory, batch: int, batch_ms: int, offered: Mapping[str, int]) -> None:
    """Note how many rows a batch offers, by destination; a destination that is not in it is offered all."""
    control.write(_name(batch, batch_ms), pack_offered(offered))


def noted_offered(control: Directory, batch: int, batch_ms: int) -> dict[str, int] | None:
    """Return what the last attempt at a batch noted; `None` if none offered less than all rows."""
    name = _name(batch, batch_ms)
    content = control.read(name)
    return None if content is None else unpack_offered(content, f"the file {control.shown(name)}")


def pack_offered(offered: Mapping[str, int]) -> bytes:
    """Return numbers of rows by destination as a block."""
    names = sorted(offered)
    messages = np.array([offered[name] for name in names], dtype=np.int64)
    return pack(_KIND, _VERSION, {"names": pa.array(names, pa.string()), "messages": messages})


def unpack_offered(block: bytes, what: str) -> dict[str, int]:
    """Return what `pack_offered` packed."""
    f = unpack(block, _KIND, _VERSION, what)
    return dict(zip(f.names("names").to_pylist(), f.integers("messages").tolist(), strict=True))


def _name(batch: int, batch_ms: int) -> str:
    return f"{OFFERED_FOLDER}/{batch:012d}-{batch_ms}"
