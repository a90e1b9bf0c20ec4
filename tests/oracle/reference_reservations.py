"""The oracle of late costs: the whole history is told again from its beginning, row by row, with lists and integers.

It is shown what was admitted and what was told, batch by batch, and keeps no table: what is open now follows from all
that happened before. A bucket is followed by itself, from full, through every charge and every correction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from spark_throttle.core.quota import MICRO


@dataclass(frozen=True, slots=True)
class LeftRow:
    """A row that left."""

    namespace: str
    identity: int
    """0 for a row that is charged for good."""

    units: int


@dataclass(slots=True)
class Happened:
    """One batch: the costs that it brought, then the rows that left in it."""

    now_ms: int
    costs: list[tuple[int, int]] = field(default_factory=list)
    left: list[LeftRow] = field(default_factory=list)


@dataclass(slots=True)
class Open:
    """A reservation that is open."""

    namespace: str
    identity: int
    since_ms: int
    rows: list[int]
    """The units of each."""

    places: list[tuple[int, int]]
    """The batch of each, and its place among those that left in it."""


@dataclass(slots=True)
class Told:
    """What became of reservations in a history; messages, but for costs."""

    opened: list[Open] = field(default_factory=list)
    settled: int = 0
    ended: int = 0
    unknown: int = 0
    charges: list[list[tuple[str, int]]] = field(default_factory=list)
    """For each batch, what is charged to namespaces before it decides, negative where it is given back."""

    costs: dict[tuple[int, int], int] = field(default_factory=dict)
    """What rows that were settled really cost, by batch and place; of those of one reservation, the first cost all."""

    settled_in: dict[tuple[int, int], int] = field(default_factory=dict)
    """The batch in which each of them was settled."""

    def with_true_costs(self, history: Sequence[Happened]) -> list[Happened]:
        """Return a history in which each row cost that when it left."""
        return [
            Happened(
                batch.now_ms,
                [],
                [
                    replace(row, units=self.costs.get((number, place), row.units))
                    for place, row in enumerate(batch.left)
                ],
            )
            for number, batch in enumerate(history)
        ]


def told_again(history: Sequence[Happened], after_ms: int) -> Told:
    """Return what became of the reservations of a history."""
    told = Told()
    for number, batch in enumerate(history):
        charges: list[tuple[str, int]] = []
        largest: dict[int, int] = {}
        for identity, cost in batch.costs:
            largest[identity] = max(cost, largest.get(identity, 0))
        done = 0
        for identity, cost in largest.items():
            found = next((each for each in told.opened if each.identity == identity), None)
            if found is not None:
                told.opened.remove(found)
                told.settled += len(found.rows)
                charges.append((found.namespace, cost - sum(found.rows)))
                told.settled_in |= dict.fromkeys(found.places, number)
                told.costs |= dict.fromkeys(found.places, 0) | {found.places[0]: cost}
                done += 1
        told.unknown += len(batch.costs) - done
        told.charges.append(charges)
        for place, row in enumerate(batch.left):
            if row.identity:
                same = [e for e in told.opened if (e.identity, e.namespace) == (row.identity, row.namespace)]
                if same:
                    same[0].rows.append(row.units)
                    same[0].places.append((number, place))
                else:
                    opened = Open(row.namespace, row.identity, batch.now_ms, [row.units], [(number, place)])
                    told.opened.append(opened)
        for each in list(told.opened):
            if batch.now_ms - each.since_ms >= after_ms:
                told.opened.remove(each)
                told.ended += len(each.rows)
    return told


def balance_after(
    history: Sequence[Happened],
    charges: Sequence[Sequence[tuple[str, int]]],
    passes: Callable[[str], bool],
    rate_micro_per_ms: int,
    burst_micro: int,
) -> tuple[int, bool]:
    """Return what a bucket holds after a history, and whether it was full at any time after the first batch.

    Parameters
    ----------
    charges
        What is charged before each batch, beside its rows.
    passes
        Whether the bucket is one of a namespace's.
    """
    balance, before_ms, was_full = burst_micro, history[0].now_ms, False
    for batch, charged in zip(history, charges, strict=True):
        balance -= sum(units for namespace, units in charged if passes(namespace)) * MICRO
        filled = balance + rate_micro_per_ms * (batch.now_ms - before_ms)
        was_full |= batch is not history[0] and filled >= burst_micro
        balance = min(filled, burst_micro)
        balance -= sum(row.units for row in batch.left if passes(row.namespace)) * MICRO
        before_ms = batch.now_ms
    return balance, was_full
