"""An amount of work fills a tree down to its leaves: rows go that finish up to the level of the fluid, node by node.

The fluid gives the children of a node what the node is given and what their leads owe it (`water`). A child's *budget*
is what the fluid gives it, less its lead; an inner node sends the row that it holds first, and the rest is its *own*.

Rows that finish up to the level of a node may be more than its own: a large row that went early has delayed small ones
of others, which all finish at once. As a thousand nodes may have such rows at the same time, each is kept within its
own: its level is put back, as far as it must be, to one up to which its children's rows fit. What else finishes up to
the level that the fluid reached competes for the rest. What has begun is told by what the fluid gave, also below a
child that sends less now: else its heavy children would not have begun, and light ones would go in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.fair.tree import Tree
from spark_throttle.core.fair.water import covered
from spark_throttle.core.fair.work import Rows
from spark_throttle.core.quota import Bools, Int64s

UNBOUNDED = 1 << 62
"""The room of a scope without a limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The leaves below the tops that run short, as they enter a batch."""

    tree: Tree
    leads: list[Int64s]
    """The leads of the nodes of each level."""

    rows: Rows
    passing: list[Int64s]
    """For each level, how many rows of each leaf its nodes may pass to their parents: those of the last may go. The
    fluid of a level counts also rows that go no further, so that the order of those that do is the same as ever."""

    held: list[Int64s]
    """For each level of inner nodes, the leaf whose row a node holds, -1 for none; the lowest level first."""

    tie: Int64s
    """The order of leaves that are otherwise equal."""

    room: Int64s
    """Shape (resources, tops): the most tokens that may go before a row, -1 if none may."""


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """What the nodes of every level send, as lists by level; the lowest is that of the leaves."""

    got: list[Int64s]
    """What the fluid gives."""

    goes: list[Bools]
    """Whether an inner node's budget suffices for the row that it holds."""

    own: list[Int64s]
    """What is left to it for other rows."""

    count: Int64s
    """The number of rows of each leaf."""

    sent: list[Int64s]
    """The work of a leaf's rows; of an inner node, which gives away all that it is given, its own and what it held."""

    def put(self, at: list[Int64s], part: Filling) -> None:
        """Replace what the nodes at `at`, of the lowest levels, send; what the fluid gives them stays."""
        self.count[at[0]] = part.count
        for k, to in enumerate(at):
            self.sent[k][to] = part.sent[k]
            if k < len(at) - 1:
                self.goes[k + 1][at[k + 1]], self.own[k + 1][at[k + 1]] = part.goes[k + 1], part.own[k + 1]


@dataclass(frozen=True, slots=True, eq=False)
class Vessels:
    """A tree whose nodes ask for work, as lists by level."""

    tree: Tree
    leads: list[Int64s]
    held: list[Int64s]
    """The work of the row that a node holds; leaves hold none."""

    asked: list[Int64s]
    """The work of all rows that a node may send."""

    want: list[Int64s]
    """What the fluid can give it: the work of all rows that it has, and its lead."""

    rows: Rows
    first: Int64s
    until: Int64s

    @classmethod
    def of(cls, entries: Entries) -> Vessels:
        """Return what the nodes ask for, which hold their rows apart."""
        tree, rows = entries.tree, entries.rows
        held_work: list[Int64s] = []
        first = np.zeros(tree.leaves, dtype=np.int64)
        for held in reversed(entries.held):  # the higher level holds the earlier row
            leaf = held[held >= 0]
            work = np.zeros_like(held)
            work[held >= 0] = rows.take(leaf).work(first[leaf], first[leaf] + 1)
            held_work.insert(0, work)
            first[leaf] += 1
        held_work.insert(0, np.zeros_like(first))
        until = entries.passing[-1]
        asked = [rows.work(first, until)]
        for level, work in zip(tree.levels[:-1], held_work[1:], strict=True):
            asked.append(level.totals(asked[-1]) + work)
        want = [
            np.maximum(each + lead + tree.sums(rows.work(until, passing), height), 0)
            for height, (each, lead, passing) in enumerate(zip(asked, entries.leads, entries.passing, strict=True))
        ]
        return cls(tree, entries.leads, held_work, asked, want, rows, first, until)

    def filled(self, amount: Int64s, most: Int64s | None = None) -> Filling:
        """Give every top an amount, 0 or less gives nothing; its children send at most the amount, or `most`."""
        got, budget = self._poured(len(self.leads) - 1, amount)
        filling = self._sent(budget)
        filling.got.append(got)
        limits = [*filling.own, np.maximum(amount, 0) if most is None else most]
        for k in range(len(self.leads), 0, -1):
            is_over = self.tree.levels[k - 1].totals(filling.sent[k - 1]) > limits[k]
            if is_over.any():
                part, at = self._below(k, is_over)
                filling.put(at, part.lowered(limits[k][is_over], filling.got[k - 1][at[-1]]))
        return filling

    def fill_further(self, filling: Filling, height: int, is_taken: Bools) -> list[Int64s]:
        """Fill some nodes at a height further, as if their children had no rows but those that may go.

        What a child is owed that has no such rows goes to the others, but for what went already.

        Returns
        -------
        The positions of the nodes below them, by level.
        """
        part, at = self._below(height, is_taken)
        rest, went = part.behind(filling, at)
        below, left = part.tree.levels[-1], part.asked[-1] + part.leads[-1]
        own, want = filling.own[height][is_taken] - below.totals(went[-1]), np.maximum(left, 0)
        amount = own + below.totals(want - left)
        further = replace(rest, want=[*part.want[:-1], want]).filled(amount, own)
        further.count[:] += filling.count[at[0]]
        for k, before in enumerate(went):
            further.sent[k] += before
            if k < len(went) - 1:
                further.own[k + 1] += part.tree.levels[k].totals(before)
        filling.put(at, further)
        for got, to, gives in zip(filling.got, at, further.got, strict=False):
            got[to] = gives
        return at

    def behind(self, filling: Filling, at: list[Int64s]) -> tuple[Vessels, list[Int64s]]:
        """Return what is left of a part whose nodes, by level, are `at` in `filling`, and the work that they sent."""
        count = filling.count[at[0]]
        goes = [each[to] for each, to in zip(filling.goes[1:], at[1:], strict=False)]
        went = self.served(count, goes)
        held = [self.held[0], *(np.where(gone, 0, row) for gone, row in zip(goes, self.held[1:], strict=True))]
        leads = [lead + sent for lead, sent in zip(self.leads, went, strict=True)]
        asked = [each - sent for each, sent in zip(self.asked, went, strict=True)]
        return replace(self, leads=leads, asked=asked, held=held, first=self.first + count), went

    def served(self, count: Int64s, goes: Sequence[Bools]) -> list[Int64s]:
        """Return the work of all nodes, by level, if so many rows of leaves and these of the held rows go."""
        served = [self.rows.work(self.first, self.first + count)]
        for level, gone, held in zip(self.tree.levels, goes, self.held[1:], strict=False):
            served.append(level.totals(served[-1]) + np.where(gone, held, 0))
        return served

    def _poured(self, k: int, amount: Int64s) -> tuple[Int64s, Int64s]:
        """Return what the fluid gives the nodes of a level, whose parents are given an amount, and their budgets."""
        level, lead = self.tree.levels[k], self.leads[k]
        got = covered(self.want[k], level.weight, level.parent, level.bounds, amount + level.totals(lead))
        budget = np.minimum(np.maximum(got - lead, 0), self.asked[k])
        is_empty = amount <= 0  # who is given nothing serves nothing, not even what is late
        return got, np.where(is_empty[level.parent], 0, budget) if is_empty.any() else budget

    def _sent(self, budget: Int64s) -> Filling:
        """Give every node of the last level its budget."""
        height = len(self.leads)
        nothing = np.zeros(0, dtype=np.int64)
        got, goes, own = [nothing] * (height - 1), [nothing > 0] * height, [nothing] * height
        for k in range(height - 1, 0, -1):
            goes[k] = budget >= self.held[k]
            own[k] = np.where(goes[k], budget - self.held[k], 0)
            got[k - 1], budget = self._poured(k - 1, own[k])
        count = self.rows.within(self.first, self.until, budget)
        sent = [self.rows.work(self.first, self.first + count)]
        for mine, holds, held in zip(own[1:], goes[1:], self.held[1:], strict=True):
            sent.append(mine + np.where(holds, held, 0))
        return Filling(got, goes, own, count, sent)

    def _below(self, height: int, is_taken: Bools) -> tuple[Vessels, list[Int64s]]:
        """Return the part below some nodes at a height, and the positions of its nodes."""
        tree, at = self.tree.upper(height).below(is_taken)
        leads, held, asked, want = (
            [each[to] for each, to in zip(of, at, strict=False)]
            for of in (self.leads, self.held, self.asked, self.want)
        )
        leaf = at[0]
        return Vessels(tree, leads, held, asked, want, self.rows.take(leaf), self.first[leaf], self.until[leaf]), at

    def lowered(self, most: Int64s, got: Int64s) -> Filling:
        """Return what is sent up to the highest level up to which it is at most `most`; `got` leads to more."""
        level, lead, asked, held = self.tree.levels[-1], self.leads[-1], self.asked[-1], self.held[-1]
        starts, brim, of_leaves = level.bounds[:-1], (asked + lead) // level.weight, len(self.leads) == 1
        low = np.minimum.reduceat(lead // level.weight, starts)
        high = np.maximum.reduceat(-(-got // level.weight), starts)

        def up_to(line: Int64s) -> Int64s:
            of_child = line[level.parent]
            over = np.maximum(level.weight * of_child - lead, 0)  # may wrap only above the brim
            return np.where(brim < of_child, asked, over)

        def sent(line: Int64s) -> tuple[Int64s, Int64s]:
            """Return what is sent up to a level, and the rows of each leaf; an inner node sends all that it has."""
            budget = up_to(line)
            if not of_leaves:
                return level.totals(np.where(budget >= held, budget, 0)), budget
            count = self.rows.within(self.first, self.until, budget)
            return level.totals(self.rows.work(self.first, self.first + count)), count

        (least, fewest), (largest, most_rows) = sent(low), sent(high)
        for step in range(128):
            # One row of each leaf can compete for the rest, so the search ends where no level between has two.
            is_open = (high - low > 1) & (np.maximum.reduceat(most_rows - fewest, starts) > 1)
            if not is_open.any():
                break
            part = proportional(high - low, most - least, largest - least, most_bits=60)
            middle = low + (part if step % 3 < 2 else (high - low) // 2)
            middle = np.where(is_open, np.minimum(np.maximum(middle, low + 1), high - 1), low)
            total, number = sent(middle)
            fits = total <= most
            of_child = fits[level.parent]
            low, least = np.where(fits, middle, low), np.where(fits, total, least)
            high, largest = np.where(fits, high, middle), np.where(fits, largest, total)
            fewest, most_rows = np.where(of_child, number, fewest), np.where(of_child, most_rows, number)
        return self._sent(up_to(low))
