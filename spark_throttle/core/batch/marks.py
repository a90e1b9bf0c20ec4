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
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.limits.size_bounds import bounded_floor
from spark_throttle.core.limits.token_bucket import observed_floor
from spark_throttle.core.quota import MIN_BALANCE_MICRO, Dimension, Int64s, Level, Limits


@dataclass(frozen=True, slots=True, eq=False)
class MarkStarts:
    """The first row of every flow that a level marks; it marks all rows from there on."""

    level: Level
    scope: Int64s
    """The shared scope of the level, -1 for the namespace itself."""

    rank: Int64s
    """The rank of the first marked row; the flow's count where no row is marked."""

    messages_rank: Int64s
    """The rank of the first row that finds the balance of messages negative."""


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The marked rows."""

    row: Int64s
    """The positions of the marked rows among the candidates."""

    level: Int64s
    dimension: Int64s
    scope: Int64s

    @classmethod
    def narrowest(cls, layout: Layout, count: Int64s, levels: Sequence[MarkStarts]) -> Marks:
        """Return the marks on the first `count` rows of every flow; `levels` ascend."""
        first = count.copy()
        for marked in levels:
            np.minimum(first, marked.rank, out=first)
        flow = np.repeat(np.arange(len(count)), count - first)
        rank = ranges(first, count - first)
        level, dimension, scope = (np.full(len(flow), -1, dtype=np.int64) for _ in range(3))
        for marked in levels:
            at = np.flatnonzero((level < 0) & (rank >= marked.rank[flow]))
            is_over_messages = rank[at] >= marked.messages_rank[flow[at]]
            level[at] = marked.level
            dimension[at] = np.where(is_over_messages, Dimension.MESSAGES, Dimension.BYTES)
            scope[at] = marked.scope[flow[at]]
        return cls(layout.segments.order[layout.segments.starts[flow] + rank], level, dimension, scope)


@dataclass(frozen=True, slots=True, eq=False)
class DebtFloors:
    """The floors of the debts that a batch leaves: `MIN_BALANCE_MICRO`, except where an observing scope marks rows."""

    own: Int64s | int
    """Shape (flows, 2): the floors of the namespaces' own buckets."""

    shared: Int64s | int
    """Shape (scopes, 2): the floors of the shared scopes."""

    @classmethod
    def none(cls) -> DebtFloors:
        """Return the floors of a batch in which no row is marked."""
        return cls(MIN_BALANCE_MICRO, MIN_BALANCE_MICRO)

    @classmethod
    def of(
        cls,
        layout: Layout,
        count: Int64s,
        levels: Sequence[MarkStarts],
        own_micro: Int64s,
        own: Limits,
        shared_micro: Int64s,
        shared: Limits,
    ) -> DebtFloors:
        """Return the floors of a batch that admits the first `count` rows of every flow, with the marks of `levels`."""
        own_floor = np.full_like(own_micro, MIN_BALANCE_MICRO)
        is_marking = np.zeros(len(shared), dtype=np.bool_)
        unmarked = np.zeros((len(shared), 2), dtype=np.int64)
        for marked in levels:
            marks = marked.rank < count
            passed = np.stack([marked.rank, layout.bytes_of_first(marked.rank)], axis=1)
            if marked.level == Level.NAMESPACE:
                floor = observed_floor(own_micro, passed, own.burst_micro)
                own_floor = np.where(marks[:, None], floor, MIN_BALANCE_MICRO)
                continue
            held = np.flatnonzero(marked.scope >= 0)
            unmarked += sums(marked.scope[held], passed[held], len(shared))
            is_marking[marked.scope[held[marks[held]]]] = True
        floor = observed_floor(shared_micro, unmarked, shared.burst_micro)
        shared_floor = np.where(is_marking[:, None], floor, MIN_BALANCE_MICRO)
        return cls(bounded_floor(own_floor, own_micro, own), bounded_floor(shared_floor, shared_micro, shared))
