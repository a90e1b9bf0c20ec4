"""What became of a batch that left for destinations: which rows were not delivered, and what each destination said.

One record a batch, written before the batch is committed; its name has the batch's number and its time by Spark's log,
so batches of undone histories have records of their own. The control plane pins in the next epoch what it says. The
decider then puts the rows back that were not delivered (`core.left_rows`), so no other place holds rows that wait.

A batch that is run again keeps to the record that an earlier attempt has left:

- Whoever sends call by call writes it when all calls have ended. A later attempt finds it, and sends nothing. Without
  it, calls of an earlier attempt may have been taken, so one that is refused then keeps its key (`undelivered`).
- Whoever offers all rows at once (a function) writes before its next call which destinations it offers none any more.
  A later attempt offers them none either, so each call of the batch has the same rows at each attempt.

Crashes: before the record, the batch is sent again under the same keys. After it, before the commit, nothing more is
sent. After the commit, before the next epoch, that epoch is made from the record. A zombie of an attempt that commits
its state last has other files, and in them the same rows by namespace and place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.files.records import read_block
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack

_FOLDER: Final = "delivery"


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """What became of a batch."""

    told: dict[str, Told] = field(default_factory=dict)
    """What each destination said, by its resource group."""

    undelivered: Undelivered = field(default_factory=lambda: Undelivered.of([]))
    withheld: tuple[str, ...] = ()
    """The destinations of which a function is offered no row, ascending."""


def write_delivery(control: Directory, batch: int, batch_ms: int, delivery: Delivery) -> None:
    """Write what became of a batch, over what an attempt has written before."""
    control.write(_name(batch, batch_ms), pack(delivery))


def read_delivery(control: Directory, batch: int, batch_ms: int) -> Delivery | None:
    """Return what became of a batch; `None` if it has no record."""
    return read_block(control, _name(batch, batch_ms), Delivery, "the record of what was delivered")


def forget_deliveries(control: Directory, *, but_newest: int) -> None:
    """Delete the records, but the newest."""
    for name in sorted(control.names(_FOLDER))[:-but_newest]:
        control.delete(f"{_FOLDER}/{name}")


def delivery_file(control: Directory, batch: int, batch_ms: int) -> str:
    """Return the place of a record, as errors name it."""
    return control.shown(_name(batch, batch_ms))


def _name(batch: int, batch_ms: int) -> str:
    return f"{_FOLDER}/{batch:012d}-{batch_ms}"
