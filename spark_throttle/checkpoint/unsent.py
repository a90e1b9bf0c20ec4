"""Calls that a destination did not take in the time of their batch: in a file, from which the next batch sends them.

The file of a batch holds every call that is unsent once the batch is over, those of earlier batches included. It is
written before the batch is committed. So a batch that is run again finds the same calls in the file of the batch before
it, and writes its own anew; and a checkpoint that is put back finds the calls that were unsent then. Its name has the
batch's number and its time by Spark's log: batches of undone histories have files of their own.

Law: while a batch that Spark has logged has such a file, the query sends by the same target, or does not start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_throttle.checkpoint.offset_log import OffsetLog, batch_time_ms
from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.errors import UnsentCallsError
from spark_throttle.files.storage import Directory

_FOLDER: Final = "unsent"
_KIND, _VERSION = "unst", 1
_PRUNED_EVERY: Final = 50


@dataclass(frozen=True, slots=True)
class UnsentCalls:
    """What is unsent after a batch."""

    target: str
    """What sends them, as text."""

    messages: int
    tables: list[bytes]
    """The calls, as `spark.paced.unsent_calls` writes them."""


def write_unsent(control: Directory, batch: int, batch_ms: int, calls: UnsentCalls) -> None:
    """Write what is unsent after a batch; if nothing is, remove what an earlier attempt at it left."""
    if calls.tables:
        control.write(_name(batch, batch_ms), pack_unsent(calls))
    else:
        control.delete(_name(batch, batch_ms))


def read_unsent(control: Directory, batch: int, batch_ms: int | None) -> UnsentCalls | None:
    """Return what is unsent after a batch, whose time is `None` if there was none; `None` if nothing is."""
    content = None if batch_ms is None else control.read(_name(batch, batch_ms))
    if content is None or batch_ms is None:
        return None
    return unpack_unsent(content, f"the file {control.path(_name(batch, batch_ms))}")


def pack_unsent(calls: UnsentCalls) -> bytes:
    """Return calls as a block."""
    return pack(_KIND, _VERSION, {"target": calls.target, "messages": calls.messages, "tables": calls.tables})


def unpack_unsent(block: bytes, what: str) -> UnsentCalls:
    """Return what `pack_unsent` packed."""
    f = unpack(block, _KIND, _VERSION, what)
    return UnsentCalls(f.text("target"), f.integer("messages"), f.blobs("tables"))


def forget_unsent(control: Directory, *, batch: int, batches_kept: int) -> None:
    """Delete, now and then, the files of batches to which no checkpoint is put back any more."""
    if batch % _PRUNED_EVERY:
        return
    for name in control.names(_FOLDER):
        number = name.partition("-")[0]
        if number.isdecimal() and int(number) < batch - batches_kept:
            control.delete(f"{_FOLDER}/{name}")


def refuse_other_target(control: Directory, checkpoint: Directory, log: OffsetLog, target: str | None) -> None:
    """Refuse a query that does not send what is unsent, or sends it elsewhere.

    Parameters
    ----------
    target
        What sends the rows, as text; `None` if they are not sent by calls.

    Raises
    ------
    UnsentCallsError
        If calls are unsent and another target was to send them.
    """
    for batch in sorted({log.committed, log.logged}):
        batch_ms = batch_time_ms(checkpoint, batch)
        found = read_unsent(control, batch, batch_ms)
        if found is not None and batch_ms is not None and found.target != target:
            raise UnsentCallsError(found.messages, batch, found.target, target, control.path(_name(batch, batch_ms)))


def _name(batch: int, batch_ms: int) -> str:
    return f"{_FOLDER}/{batch:012d}-{batch_ms}"
