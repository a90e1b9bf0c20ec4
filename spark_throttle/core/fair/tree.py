"""The fair tree: job, resource groups, tenants and namespaces, as arrays, level by level.

Every level lists its nodes side by side, children of one parent in one piece. Level 0 has the leaves, which are flows.
Their parents, level 1, are the tenants within groups. Level 2 has the children of the job: groups, and tenants that
have no group. A tenant has a node in each group that has a namespace of it.

A *lead* is work (`work`) that a child was served, less what its parent's fluid ideal served it. Leads of one node's
children sum to 0, up to rounding. A child that has neither rows nor a positive lead has no lead.

A *held* row is the row that a node has chosen to send next and that its parent did not take. The node counts it as
sent, so that nothing that comes later changes its turn in the parent. It is the first row of its flow, or the second,
behind one that the next level holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import alike, largest, ranges, running_total, taken
from spark_throttle.core.fair.water import totals
from spark_throttle.core.quota import Bools, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The nodes of one level, as children of the next."""

    parent: Int64s
    """Ascends."""

    bounds: Int64s
    """Where the children of each parent begin, and the number of children; longer than the parents by one."""

    weight: Int64s

    @classmethod
    def of(cls, parent: Int64s, parents: int, weight: Int64s) -> Level:
        """Return the level of children with these parents, which ascend.

        Examples
        --------
        >>> Level.of(np.array([0, 0, 2]), 3, np.ones(3, dtype=np.int64)).bounds.tolist()
        [0, 2, 2, 3]
        """
        return cls(parent, np.searchsorted(parent, np.arange(parents + 1)), alike(weight))

    def __len__(self) -> int:
        return len(self.parent)

    def totals(self, values: Int64s) -> Int64s:
        """Return the sum of the children's values, by parent."""
        return totals(values, self.bounds)

    def has(self, flags: Bools, children: Int64s | None = None) -> Bools:
        """Return the parents that have a child with a flag; `flags` are those of all children, or of some."""
        out = np.zeros(len(self.bounds) - 1, dtype=np.bool_)
        at = np.flatnonzero(flags)
        out[self.parent[at if children is None else children[at]]] = True
        return out

    def largest(self, values: Int64s) -> Int64s:
        """Return the largest of the children's values, none of which is negative, by parent; 0 without children."""
        return largest(self.parent, values, len(self.bounds) - 1, least=0)

    def below(self, parents: Int64s) -> tuple[Level, Int64s]:
        """Return the level below some parents alone, which ascend, and the positions of its children in this one."""
        counts = self.bounds[parents + 1] - self.bounds[parents]
        at = ranges(self.bounds[parents], counts)
        return Level(np.repeat(np.arange(len(parents)), counts), running_total(counts), taken(self.weight, at)), at


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Nodes below the job, or below other tops; `levels[0]` has the leaves."""

    levels: tuple[Level, ...]

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return len(self.levels[0])

    @property
    def tops(self) -> int:
        """The number of nodes above the last level."""
        return len(self.levels[-1].bounds) - 1

    def top_of_leaf(self) -> Int64s:
        """Return the top of each leaf."""
        top = self.levels[0].parent
        for level in self.levels[1:]:
            top = level.parent[top]
        return top

    def sums(self, values: Int64s, height: int) -> Int64s:
        """Return the sum of the leaves' values, by node of the level `height`; `values` may have more leading axes."""
        if values.ndim > 1:
            return np.stack([self.sums(each, height) for each in values])
        for level in self.levels[:height]:
            values = level.totals(values)
        return values

    def upper(self, height: int) -> Tree:
        """Return the lowest `height` levels."""
        return Tree(self.levels[:height])

    def below(self, is_taken: Bools) -> tuple[Tree, list[Int64s]]:
        """Return the tree below some tops, and the positions of its nodes in this one, by level."""
        if is_taken.all():
            return self, [np.arange(len(level)) for level in self.levels]
        parents, levels, at = np.flatnonzero(is_taken), list[Level](), list[Int64s]()
        for level in reversed(self.levels):
            part, parents = level.below(parents)
            levels.insert(0, part)
            at.insert(0, parents)
        return Tree(tuple(levels)), at
