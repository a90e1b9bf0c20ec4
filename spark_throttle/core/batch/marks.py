"""The marks of observing scopes on admitted rows: which rows they would have stopped, and why.

An observing scope marks all admitted rows of a flow from some rank on, because its balance only falls. A row that
several levels would have stopped is marked by the narrowest. Each of these levels treats the row as one that it would
not have let pass: the row adds no debt beyond a burst (`token_bucket.observed_floor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import ranges, sums
from spark_throttle.core.fair.layout import Layout, by_dimension
from spark_throttle.core.limits.size_bounds import bounded_floor
from spark_throttle.core.limits.token_bucket import in_micro, observed_floor
from spark_throttle.core.quota import MIN_BALANCE_MICRO, Dimension, Int64s, Level, Limits


@dataclass(frozen=True, slots=True, eq=False)
class MarkStarts:
    """The first row of every flow that a level marks; it marks all rows from there on."""

    level: Level
    scope: Int64s
    """The shared scope of the level, -1 for the namespace itself."""

    rank: Int64s
    """The rank of the first marked row; the flow's count where no row is marked."""

    ranks: Sequence[Int64s]
    """By dimension: the rank of the first row that finds the balance of this dimension, or of one before it, negative.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The marked rows, in runs: rows of one flow that one level marks for one dimension."""

    row: Int64s
    """The positions of the marked rows among the candidates, run by run."""

    run: Int64s
    """The run of each marked row."""

    flow: Int64s
    """The flow of every run."""

    level: Int64s
    dimension: Int64s
    scope: Int64s

    @classmethod
    def none(cls) -> Marks:
        """Return no marks."""
        return cls(*(np.zeros(0, dtype=np.int64) for _ in range(6)))

    @classmethod
    def narrowest(cls, layout: Layout, count: Int64s, levels: Sequence[MarkStarts]) -> Marks:
        """Return the marks on the first `count` rows of every flow; `levels` ascend."""
        until, found = count, []
        for marked in levels:
            first = np.minimum(marked.rank, until)
            for dimension, rank in enumerate(marked.ranks):
                begin = np.clip(rank, first, until)
                flow = np.flatnonzero(until > begin)
                of_run = np.broadcast_to([[marked.level], [dimension]], (2, len(flow)))
                found.append(np.stack([flow, *of_run, marked.scope[flow], begin[flow], until[flow] - begin[flow]]))
                until = begin
        if not found:
            return cls.none()
        flow, level, dimension, scope, first, rows = np.concatenate(found, axis=1)
        at = ranges(layout.segments.starts[flow] + first, rows)
        run = np.repeat(np.arange(len(flow)), rows)
        return cls(layout.segments.order[at], run, flow, level, dimension, scope)

    def by_flow(self, flows: int) -> Int64s:
        """Return the number of marked rows of each flow."""
        return sums(self.flow, np.bincount(self.run, minlength=len(self.flow)), flows)


@dataclass(frozen=True, slots=True, eq=False)
class DebtFloors:
    """The floors of the debts that a batch leaves: `MIN_BALANCE_MICRO`, except where an observing scope marks rows."""

    own: Int64s | int
    """Shape (flows, 4): the floors of the namespaces' own buckets."""

    shared: Int64s | int
    """Shape (scopes, 4): the floors of the shared scopes."""

    @classmethod
    def none(cls) -> DebtFloors:
        """Return the floors of a batch in which no row is marked."""
        return cls(MIN_BALANCE_MICRO, MIN_BALANCE_MICRO)

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - all that a debt follows from
        cls,
        layout: Layout,
        count: Int64s,
        levels: Sequence[MarkStarts],
        own_micro: Int64s,
        own: Limits,
        shared_micro: Int64s,
        shared: Limits,
        price_ns: Int64s | None,
    ) -> DebtFloors:
        """Return the floors of a batch that admits the first `count` rows of every flow, with the marks of `levels`."""
        own_floor_micro = np.full_like(own_micro, MIN_BALANCE_MICRO)
        is_marking = np.zeros(len(shared), dtype=np.bool_)
        unmarked = np.zeros((len(shared), len(Dimension)), dtype=np.int64)
        for marked in levels:
            marks = marked.rank < count
            passed = by_dimension(layout.cost_of_first(marked.rank, price_ns))
            if marked.level == Level.NAMESPACE:
                floor_micro = observed_floor(own_micro, in_micro(passed), own.burst_micro)
                own_floor_micro = np.where(marks[:, None], floor_micro, MIN_BALANCE_MICRO)
                continue
            held = np.flatnonzero(marked.scope >= 0)
            unmarked += sums(marked.scope[held], passed.take(held, axis=0), len(shared))
            is_marking[marked.scope[held[marks[held]]]] = True
        floor_micro = observed_floor(shared_micro, in_micro(unmarked), shared.burst_micro)
        shared_floor_micro = np.where(is_marking[:, None], floor_micro, MIN_BALANCE_MICRO)
        return cls(
            bounded_floor(own_floor_micro, own_micro, own), bounded_floor(shared_floor_micro, shared_micro, shared)
        )
