"""What an auditor is shown: the rows that came and left, in which batch and when, and the policies in force then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.life.contract import MICRO, Contracts, Key

DIMENSIONS: Final = ("messages", "bytes", "time")


class Row(NamedTuple):
    """A row, as it was offered and as it was found."""

    id: int
    """Rows of a namespace are ordered by it."""

    namespace: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch."""

    number: int
    time_ms: int
    contracts: Contracts
    """What the policies in force say."""

    arrived: Sequence[Row]
    admitted: Sequence[Row]
    """In the order in which they left."""

    rejected: Sequence[Row] = ()
    over_quota: frozenset[int] = frozenset()
    """Those of the rejected whose reason is a quota: in a fairer order they might have passed."""

    begins_anew: bool = False
    """Whether nothing is known of balances and turns before it: a clock was set, or a checkpoint put back."""

    shares: Mapping[Key, tuple[int | None, int | None]] | None = None
    """Micro-tokens a millisecond that the job had of each shared scope, where other jobs have the rest."""

    held: frozenset[str] = frozenset()
    """Namespaces that something else than a quota on messages or bytes may hold, such as the measured time of rows."""

    windows: tuple[int, ...] | None = None
    """Which hour, day and month of the calendar it counts in, counted from any; `None` where no budget is counted."""

    def rate(self, key: Key, dimension: int, rate: int) -> int:
        """Return what a scope surely earns in a millisecond, of a rate that its policy gives."""
        if self.shares is None or key[0] == "namespace" or dimension > 1:
            return rate
        share = self.shares.get(key, (0, 0))[dimension]
        return rate if share is None else min(rate, share)


@dataclass(slots=True)
class Queue:
    """The rows that wait, as they are counted: what came and did not leave."""

    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    """By namespace and number, in order."""

    _costs: dict[str, list[int]] = field(default_factory=dict)

    def count(self, batch: Batch) -> None:
        """Count a batch."""
        for row in batch.arrived:
            self.rows.setdefault(row.namespace, {})[row.id] = row
            self._add(row, 1)
        for row in (*batch.admitted, *batch.rejected):
            if self.rows.get(row.namespace, {}).pop(row.id, None) is not None:
                self._add(row, -1)
        for name in [name for name, rows in self.rows.items() if not rows]:
            del self.rows[name], self._costs[name]

    def _add(self, row: Row, times: int) -> None:
        costs = self._costs.setdefault(row.namespace, [0, 0])
        for d in (0, 1):
            costs[d] += times * cost_of(row, d)

    def costs(self) -> dict[str, list[int]]:
        """Return what the rows that wait take, by namespace: of messages, and of bytes."""
        return {name: [*costs] for name, costs in self._costs.items()}


def cost_of(row: Row, dimension: int) -> int:
    """Return what a row takes of a scope, in micro-tokens of messages or of bytes."""
    return MICRO * (1 if dimension == 0 else row.size_bytes)


def costs_of(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Return what rows take, by namespace: of messages, and of bytes."""
    costs: dict[str, list[int]] = {}
    for row in rows:
        total = costs.setdefault(row.namespace, [0, 0])
        total[0] += cost_of(row, 0)
        total[1] += cost_of(row, 1)
    return costs
