"""How many rows for a destination a batch offers to a function for `foreachBatch`: noted before the function is called.

A batch that is run again calls the function with the same rows, because the function may have taken them. How many rows
of a destination were offered depends on what the process was told meanwhile, which nobody knows after a crash. So it is
noted before a call that has not all of the batch's rows, and replaced before the next.

The name of a batch's file has the batch's number and its time by Spark's log, as those of `unsent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_throttle.files.records import read_block
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack

OFFERED_FOLDER: Final = "offered"


@dataclass(frozen=True, slots=True)
class OfferedRows:
    """What the file of a batch holds."""

    messages: dict[str, int]
    """How many rows are offered, by destination."""


def note_offered(control: Directory, batch: int, batch_ms: int, offered: Mapping[str, int]) -> None:
    """Note how many rows a batch offers, by destination; a destination that is not in it is offered all."""
    control.write(_name(batch, batch_ms), pack(OfferedRows(dict(offered))))


def noted_offered(control: Directory, batch: int, batch_ms: int) -> dict[str, int] | None:
    """Return what the last attempt at a batch noted; `None` if none offered less than all rows."""
    found = read_block(control, _name(batch, batch_ms), OfferedRows)
    return None if found is None else found.messages


def _name(batch: int, batch_ms: int) -> str:
    return f"{OFFERED_FOLDER}/{batch:012d}-{batch_ms}"
