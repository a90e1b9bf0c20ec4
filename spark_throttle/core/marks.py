"""What observing scopes say of rows that are admitted: which would have been stopped, by what.

An observing scope marks all admitted rows of a flow from some rank on, since its balance only falls. A row that several
levels would have stopped is marked by the narrowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.layout import Layout
from spark_throttle.core.quota import Dimension, Int64s, Level
from spark_throttle.core.segments import ranges


@dataclass(frozen=True, slots=True, eq=False)
class MarkedFrom:
    """From which row of every flow on one level marks."""

    level: Level
    scope: Int64s
    """The shared scope of the level, -1 for the namespace itself."""

    rank: Int64s
    """Of the first row that is marked; the flow's count where none is."""

    messages_rank: Int64s
    """Of the first row that finds the messages balance negative."""


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The marked rows."""

    row: Int64s
    """Positions among the candidates."""

    level: Int64s
    dimension: Int64s
    scope: Int64s

    @classmethod
    def narrowest(cls, layout: Layout, count: Int64s, levels: Sequence[MarkedFrom]) -> Marks:
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
