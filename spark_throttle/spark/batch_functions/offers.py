"""How many of the rows for a destination that pushes back a function for `foreachBatch` is offered in a batch.

A function takes all rows of a call or none. So a destination says no more than yes or no to what a batch offers it, and
its rate follows these answers: each refusal takes a quarter of the rate, and the next batch offers what the lower rate
gives in the time since the batch before. Once an offer is accepted, the rate is the one at which it was made, and grows
from there (`core.limits.aimd`). It grows as if a batch took two seconds at most: a step that is too large costs the
offer of a whole batch. The batches that were refused meanwhile change no rate that an epoch pins: what takes
nothing at all does not say how much it would take.

Laws: rows are offered in the order in which they were admitted, and every row is offered or left, never both. At least
one row is offered, unless the destination asked to wait. A rate at the quota offers everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.core.quota import MICRO
from spark_throttle.core.shares.destinations import WHOLE, Told
from spark_throttle.spark.paced.batch_sending import BatchDestination
from spark_throttle.spark.paced.sending import Parcel

GIVEN_UP: Final = -1
"""The offer of a batch that gives the rows for a destination up: none of them is left."""


_LONGEST_STEP_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows for a destination, in the order in which they were admitted."""

    offered: list[Parcel]
    left: list[Parcel]


def cut(parcels: Sequence[Parcel], offered_messages: int) -> Cut:
    """Return the first rows of parcels, and the others."""
    offered, left, room = list[Parcel](), list[Parcel](), max(0, offered_messages)
    for parcel in parcels:
        taken = min(room, parcel.rows.num_rows)
        room -= taken
        if taken:
            offered.append(replace(parcel, rows=parcel.rows.slice(0, taken)))
        if taken < parcel.rows.num_rows:
            key = replace(parcel.key, place=parcel.key.place + taken)
            left.append(replace(parcel, rows=parcel.rows.slice(taken), key=key))
    return Cut(offered, left)


def after_refusals(destination: BatchDestination, refusals: int) -> Aimd:
    """Return what the rate of a destination follows after so many batches that it refused."""
    found, floor, ceiling = destination.heard.aimd, destination.floor_micro_per_ms, destination.ceiling_micro_per_ms
    for _ in range(refusals):
        found = Aimd(found.rate(floor=floor, ceiling=ceiling), 0).after_refusal(floor=floor, ceiling=ceiling)
        if found.base <= floor:
            break
    return found


def offered_messages(destination: BatchDestination, refusals: int, elapsed_ms: int) -> int:
    """Return how many of the rows for a destination a batch offers.

    Parameters
    ----------
    refusals
        The batches that it refused since it accepted one.
    elapsed_ms
        The time since the batch before.

    Examples
    --------
    The quota is 100 messages a second, 900 rows are there, and the batch before was 2 s ago:

    >>> from spark_throttle.spark.paced.kept_sender import Heard
    >>> destination = BatchDestination(
    ...     900, 100_000, 1_000, 100_000, Heard(Aimd(100_000)), is_unavailable=False, gives_up=False
    ... )
    >>> [offered_messages(destination, refusals, 2_000) for refusals in range(4)]
    [900, 150, 112, 84]
    """
    floor, ceiling = destination.floor_micro_per_ms, destination.ceiling_micro_per_ms
    rate = after_refusals(destination, refusals).rate(floor=floor, ceiling=ceiling)
    if destination.heard.closed_until_ms:
        return 0
    if destination.is_unavailable:
        rate = floor
    elif rate >= ceiling:
        return destination.rows
    return min(destination.rows, max(1, rate * elapsed_ms // MICRO))


def told_of_offer(
    destination: BatchDestination,
    *,
    is_accepted: bool,
    refusals: int,
    elapsed_ms: int,
    left_messages: int,
    closed_until_ms: int = 0,
) -> Told:
    """Return what a destination said to what a batch offered it.

    Parameters
    ----------
    refusals
        The batches that it refused before, since it accepted one.
    closed_until_ms
        Until when it asks not to be called; 0 if it does not ask.
    """
    if not is_accepted:
        return Told(0, 1, WHOLE, 0, 0, left_messages, closed_until_ms)
    if not refusals:
        quiet_ms = destination.heard.aimd.after_quiet(min(elapsed_ms, _LONGEST_STEP_MS)).quiet_ms
        return Told(1, 0, WHOLE, quiet_ms, 0, left_messages)
    base = after_refusals(destination, refusals).base
    return Told(1, refusals, base * WHOLE // destination.sent_micro_per_ms, 0, 0, left_messages)
