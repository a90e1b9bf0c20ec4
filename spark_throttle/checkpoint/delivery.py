"""The delivery of a batch to destinations is one record: which rows did not get there, and what each destination said.

One record a batch (`batch_records`), written before the batch is committed. The control plane pins in the next epoch
what it says. The decider then puts the rows back that were not delivered (`core.left_rows`), so no other place holds
rows that wait.

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

from spark_throttle.checkpoint.batch_records import DELIVERY, record_name
from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.files.storage import Directory, read_block, write_block


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
    write_block(control, record_name(batch, DELIVERY, batch_ms), delivery)


def read_delivery(control: Directory, batch: int, batch_ms: int) -> Delivery | None:
    """Return what became of a batch; `None` if it has no record."""
    name = record_name(batch, DELIVERY, batch_ms)
    return read_block(control, name, Delivery, "the record of what was delivered")
