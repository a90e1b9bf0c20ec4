"""What the filling leaves of a node's amount goes to crossing rows, in passes from the leaves up.

A *crossing* row begins up to the level v that the fluid reaches and finishes beyond the rows that the filling sent. A
node shows its parent one: the first of its children's, by finish, that its own amount does not suffice for. In a pass:

- A node chooses once its children have chosen; till then it waits, and so do the nodes above.
- Rows that have begun go in the order of their finish, those that have not behind them. Where a row goes whose child
  may have another that has begun, what finishes later waits for the next pass, which shows that one in its place.
- A node gives away all of its amount, but for less than the row that it shows. Where the fluid asked for rows that a
  narrower scope refused, all that have begun may go and leave some: with that it is filled further, without them.

So among the rows that have begun, of all children of a node, those go that finish first, however many a child has. The
top gives out while a row's tokens, and all before them, leave no balance negative (KIP-599).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import begins_run, in_order, running_total, taken
from spark_throttle.core.fair.filling import Entries, Filling, Vessels
from spark_throttle.core.fair.tree import Level
from spark_throttle.core.quota import Bools, Int64s

_KEY_BITS = 10
"""The binary places of a crossing row's key: the virtual time by which it finishes beyond the level."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """The rows that the nodes of a level show their parents."""

    leaf: Int64s
    """The leaf whose row it is, -1 where the node has no row left."""

    work: Int64s
    has_begun: Bools
    height: Int64s
    """The level of the node that has held it since an earlier batch, 0 if none has."""


class Crossing:
    """A filled tree whose crossing rows go.

    Parameters
    ----------
    filling
        Is changed: what goes is added to it.
    """

    def __init__(self, entries: Entries, vessels: Vessels, filling: Filling) -> None:
        self._entries, self._vessels, self._filling = entries, vessels, filling
        self._levels, tops = entries.tree.levels, entries.tree.tops
        self._is_further = [np.zeros(len(level), dtype=np.bool_) for level in self._levels]
        self._has_chosen = np.zeros(tops, dtype=np.bool_)
        self.fits = np.ones(tops, dtype=np.bool_)
        """Whether each top's tokens suffice for all that goes without its choice."""

        self.largest = np.zeros(tops, dtype=np.int64)
        """The largest crossing row of each top."""

    @property
    def count(self) -> Int64s:
        """How many rows of each leaf go."""
        count = self._filling.count.copy()
        for goes, held in zip(self._filling.goes[1:], self._entries.held, strict=True):
            count[held[goes & (held >= 0)]] += 1
        return count

    @property
    def used(self) -> Int64s:
        """Shape (resources, tops): the tokens that it takes."""
        return self._used(self.count)

    @property
    def work(self) -> Int64s:
        """The work that each top gives out."""
        return self._levels[-1].totals(self._served()[-1])

    def run(self, most: Int64s) -> None:
        """Let rows go while there are tokens, and what a top gave out before a row is at most `most`."""
        is_open = np.ones(len(most), dtype=np.bool_)
        while is_open.any():
            _, _, is_open = self._passed(most, is_open)

    def held(self) -> list[Int64s]:
        """Return the rows that nodes hold after the batch: of two that show one row, the upper."""
        nothing = np.zeros(len(self.fits), dtype=np.int64)
        shown, chosen, _ = self._passed(nothing, nothing > 0)
        out: list[Int64s] = []
        above = np.zeros(len(self._levels[-1]), dtype=np.bool_)
        for k in range(len(self._levels) - 1, 0, -1):
            keeps = shown[k].has_begun | (shown[k].leaf == self._entries.held[k - 1])
            out.insert(0, np.where(keeps & ~above, shown[k].leaf, -1))
            child = chosen[k - 1][(above | (out[0] >= 0)) & (chosen[k - 1] >= 0)]
            above = np.zeros(len(self._levels[k - 1]), dtype=np.bool_)
            above[child] = True
        return out

    def _used(self, count: Int64s) -> Int64s:
        return self._entries.tree.sums(self._entries.rows.tokens(np.zeros_like(count), count), len(self._levels))

    def _served(self) -> list[Int64s]:
        """Return the work that the nodes of every level send."""
        return self._vessels.served(self._filling.count, self._filling.goes[1:])

    def _passed(self, most: Int64s, is_open: Bools) -> tuple[list[_Shown], list[Int64s], Bools]:
        """Let rows go in one pass; a top that is not open chooses none.

        Returns
        -------
        shown
            By level.
        chosen
            By level of the inner nodes, the child whose row each shows, -1 for none.
        moves
            The tops that another pass may serve more.
        """
        entries, vessels, filling, levels = self._entries, self._vessels, self._filling, self._levels
        served, shown, chosen = self._served(), [self._of_leaves()], list[Int64s]()
        moves = np.zeros(len(levels[0]), dtype=np.bool_)
        for k, level in enumerate(levels):
            lead, got, now, is_top = entries.leads[k], filling.got[k], shown[k], k == len(levels) - 1
            waits = level.has(moves)
            if is_top:
                tokens, room = self._tokens(now, most - level.totals(served[k]), waits)
            else:
                tokens, room = now.work[None], (filling.own[k + 1] - level.totals(served[k]))[None]
            order, parent, fits, key = _in_turn(
                level, now, lead + served[k] - got, tokens, room, entries.tie, may_overdraw=is_top
            )
            may_go = fits & ~waits[parent]
            if is_top:
                may_go &= is_open[parent]
            after = served[k][order] + now.work[order]
            has_more = after < vessels.asked[k][order]
            goes_on = may_go & has_more & (lead[order] + after <= got[order])
            goes = may_go & ~_is_behind(goes_on, parent, key, len(waits))
            moves = waits | level.has(goes_on, order)
            self._send(now, order[goes])
            if is_top:
                break
            served[k][order[goes]] += now.work[order[goes]]
            is_left = level.has(goes & has_more, order) & ~level.has(~fits, order)
            is_further = is_left & ~moves & ~self._is_further[k + 1] & (level.totals(served[k]) < filling.own[k + 1])
            moves |= is_left
            if is_further.any():
                self._fill_further(k + 1, is_further)
            goes_first, held_work = filling.goes[k + 1], vessels.held[k + 1]
            served[k + 1] = level.totals(served[k]) + np.where(goes_first, held_work, 0)
            # A node that could not send the row that it holds shows that one.
            is_next = begins_run(np.where(fits, -1, parent)) & ~fits & goes_first[parent]
            child = np.full(len(waits), -1)
            child[parent[is_next]] = order[is_next]
            chosen.append(child)
            shown.append(self._of_nodes(k + 1, now, child, served[k + 1]))
        return shown, chosen, moves & is_open

    def _fill_further(self, k: int, is_taken: Bools) -> None:
        """Fill nodes of a level further than the fluid did: all their rows that had begun go, and leave some."""
        for is_further, at in zip(
            self._is_further, self._vessels.fill_further(self._filling, k, is_taken), strict=False
        ):
            is_further[at] = False
        self._is_further[k] |= is_taken

    def _of_leaves(self) -> _Shown:
        vessels, filling = self._vessels, self._filling
        first = vessels.first + filling.count
        has_row = first < vessels.until
        work = vessels.rows.work(first, np.minimum(first + 1, vessels.until))
        sent = vessels.rows.work(vessels.first, first)
        has_begun = self._entries.leads[0] + sent <= filling.got[0]
        return _Shown(np.where(has_row, np.arange(len(first)), -1), work, has_begun, np.zeros_like(first))

    def _of_nodes(self, k: int, below: _Shown, child: Int64s, served: Int64s) -> _Shown:
        """Return what the nodes of a level show: the row that they hold and could not send, or that of a child."""
        goes, held, work = self._filling.goes[k], self._entries.held[k - 1], self._vessels.held[k]
        has_child = child >= 0
        return _Shown(
            np.where(has_child, below.leaf[child], np.where(goes, -1, held)),
            np.where(has_child, below.work[child], np.where(goes, 0, work)),
            self._entries.leads[k] + served <= self._filling.got[k],
            np.where(has_child, below.height[child], np.where(goes, 0, k)),
        )

    def _tokens(self, shown: _Shown, work_left: Int64s, waits: Bools) -> tuple[Int64s, Int64s]:
        """Return what the rows of the tops' children take of each resource and of work, and what there is of it."""
        entries, count = self._entries, self.count
        used = self._used(count)
        chooses_first = ~waits & ~self._has_chosen
        self.fits &= ~chooses_first | np.logical_and.reduce(used <= entries.room + 1)
        self._has_chosen |= ~waits
        level = self._levels[-1]
        self.largest = np.maximum(self.largest, level.largest(np.where(shown.leaf >= 0, shown.work, 0)))
        leaf = np.where(shown.leaf >= 0, shown.leaf, 0)
        tokens = entries.rows.take(leaf).tokens(count[leaf], count[leaf] + (shown.leaf >= 0))
        return np.vstack([tokens, shown.work]), np.vstack([entries.room - used, work_left])

    def _send(self, shown: _Shown, nodes: Int64s) -> None:
        """Let the rows go that some nodes of a level show."""
        leaf, height = shown.leaf[nodes], shown.height[nodes]
        self._filling.count[leaf[height == 0]] += 1
        node = leaf
        for k, level in enumerate(self._levels[:-1], start=1):
            node = level.parent[node]
            self._filling.goes[k][node[height == k]] = True


def _is_behind(flags: Bools, parent: Int64s, key: Int64s, parents: int) -> Bools:
    """Return which values have a larger key than the first of their parent that is flagged; keys ascend."""
    first = np.full(parents, np.iinfo(np.int64).max)
    at = np.flatnonzero(flags)[::-1]
    first[parent[at]] = key[at]
    return key > first[parent]


def _in_turn(
    level: Level, shown: _Shown, beyond: Int64s, tokens: Int64s, room: Int64s, tie: Int64s, *, may_overdraw: bool
) -> tuple[Int64s, Int64s, Bools, Int64s]:
    """Return the nodes that show rows in the order of turns, their parents, whether there is room, and their keys.

    Parameters
    ----------
    beyond
        The work by which each node is beyond what the fluid gave it.
    tokens
        Shape (resources, nodes): what each row takes.
    room
        Shape (resources, parents): what there is of it.
    tie
        The order of leaves that are otherwise equal.
    may_overdraw
        Whether there is room for a row if what goes before it leaves some, or only if it fits itself.
    """
    at = np.flatnonzero(shown.leaf >= 0)
    parent, parents = taken(level.parent, at), len(level.bounds) - 1  # parent ascends
    groups = _Groups.between(np.searchsorted(at, level.bounds))
    is_late = ~taken(shown.has_begun, at)
    key = taken(beyond, at)
    np.add(key, taken(shown.work, at), out=key, where=~is_late)
    key <<= _KEY_BITS
    key //= taken(level.weight, at)
    key = _packed(parent, is_late, key - key.min(initial=0), parents)
    place = in_order(key)  # equal keys in one order on every processor
    key, untied = key[place], np.full(parents, -1, dtype=np.int64)
    while True:
        order, fits = at[place], np.ones(len(at), dtype=np.bool_)
        for each, most in zip(tokens.take(order, axis=1), room, strict=True):
            fits &= groups.running(each, before=may_overdraw) <= groups.spread(most)
        refused = np.flatnonzero(~fits)
        first = refused[begins_run(parent[refused])]
        cut = untied.copy()
        cut[parent[first]] = key[first]
        # Rows of one key are told apart where some of them go and some do not.
        run = np.flatnonzero(key == groups.spread(cut)) if (cut != untied).any() else first
        if len(run) <= len(first):
            return order, parent, fits, key
        tied = place[run]
        place[run] = tied[np.lexsort((tie[shown.leaf[at[tied]]], key[run]))]
        untied = cut


def _packed(parent: Int64s, is_late: Bools, key: Int64s, parents: int) -> Int64s:
    """Return one number that orders by parent, then those that are not late first, then by key."""
    most_bits, bits = 62 - parents.bit_length(), int(key.max(initial=0)).bit_length()
    if bits > most_bits:
        key, bits = key >> bits - most_bits, most_bits
    return ((parent << 1 | is_late) << bits) | key


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Values that stand group by group."""

    first: Int64s
    """Where each group begins."""

    sizes: Int64s

    @classmethod
    def between(cls, bounds: Int64s) -> _Groups:
        """Return the groups that begin at `bounds`, the last of which is the number of values."""
        return cls(bounds[:-1], bounds[1:] - bounds[:-1])

    def spread(self, of_group: Int64s) -> Int64s:
        """Return the value of the group of each."""
        return of_group if len(of_group) == 1 else of_group.repeat(self.sizes)

    def running(self, values: Int64s, *, before: bool) -> Int64s:
        """Return the running total of each group's values, each one's own included or only those `before` it."""
        total = running_total(values)
        running = total[:-1] if before else total[1:]
        return running if len(self.first) == 1 else running - self.spread(total[self.first])
