"""Rows of a scope that runs short go by hierarchical worst-case-fair weighted fair queueing, a batch at a time.

Every node serves its children by WF2Q (Bennett and Zhang 1996), so the tree is H-WF2Q. A node's virtual time is the
level of the fluid (`water`) that is given what the node was served itself. A child with lead L and weight w begins its
next row at the tag L / w in the virtual time of its parent, and finishes it when its work is done. In one batch:

1. The fluid fills the node's amount, and what it lacks, into the children's demands, leads included, up to a level v.
2. Rows that finish up to v go: a child's budget is what the fluid gives it, less its lead. Where these are more than
   the node's amount, because a large row that went early has delayed them, only those up to an earlier level go, up to
   which they fit (`filling`). So no node sends more than it is given.
3. The rest is given to *crossing* rows, which begin up to v and finish beyond what went, one a child, by their finish.
   The first that does not fit is the node's own crossing row, about which its parent decides. It is held until it goes.
4. A top's amount is the one at which its tokens end: a row goes while no balance is negative (KIP-599). It is known
   beforehand where work is one resource; else a search finds it, to within one row. Where tokens end by two resources,
   there may be no such amount: more work brings a row that takes more of the scarce one. Then the batch goes as far as
   an amount at which tokens do not end yet, to within one row, and another round goes on from there. The child of a
   crossing row that goes may have another that has begun, which the next round shows. So a row that has not begun goes
   only where none goes that has.

*Theorem.* A child that stays backlogged is behind its share of what its parent was served by less than its own largest
row and the largest row of its siblings. Its share is the fluid's; neither number nor history of others counts.

*Proof.* Let p be the last unserved row of the child that finishes up to the virtual time V, at F <= V, and m the last
row served that finishes after F, in a batch whose decisions were made at the level v. (If there is no m, all that was
ever served finishes by V, so the fluid served all of it, and p: more than was given out.) At m's turn, p and every row
that is served after m and finishes by F had not begun by v, else it would have gone before m: both what goes by its
finish up to a level and what crosses it go in the order of their finish, among rows that have begun. Nor can a row that
comes later take the turn of one that had begun: a leaf's rows keep their order, and a node holds what it has chosen. So
after v the fluid served every row that is served after m, and also the child's unserved rows up to p. Since m's batch
both were given the same, except for what m's batch gave out beyond the amount that led to v: less than one row, by 2
and 3 for a node that is given an amount, by 4 for a top. So these unserved rows are less than one row together; and of
the row after them, the fluid has not served all.

*Gap.* An inner node may send a row that has not begun beside one that has, although that one's child has another: the
node shows its parent one row a round, and would lose its turn if it showed none. Where tokens of two resources end at
no amount, that can happen in every batch.

*Change.* The proof is about one set of weights. Leads from other weights enter by `promises`: what falls due by V for
them is at most what others pay by V, a row, and what levels are rounded by. So a change costs a child a row more.

*Hierarchy.* The tree's fluid gives a node its share of what its parent's fluid gets. So a leaf is behind by at most the
sum of these bounds over its levels: two of the largest rows each, whatever the tree holds. A child is ahead by less
than one of its own rows, and one of a sibling's: what it was served had begun by v, and v is at most one row beyond.
Without the condition of having begun, a heavy child is ahead by as many rows as it has siblings. The fluid asks for all
rows of a node, also those that a narrower scope refused to pass (`Entries.passing`), so the order of a group's rows in
the job's contest is a beginning of their order in the group's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import begins_run, in_order, running_total, sums, taken
from spark_throttle.core.fair.filling import Vessels
from spark_throttle.core.fair.tree import Tree
from spark_throttle.core.fair.work import Rows
from spark_throttle.core.quota import Bools, Int64s

_KEY_BITS = 10
"""The binary places of a crossing row's key: the virtual time by which it finishes beyond the level."""

_LOOKS = 60
"""The most steps of the search for an amount."""

_SURE_LOOKS = 8
"""The first steps of the search, none of which only halves what is in question."""

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
class Turns:
    """What a batch serves."""

    count: Int64s
    """The number of rows of each leaf that go."""

    held: list[Int64s]
    """As `Entries.held`, after the batch."""


@dataclass(frozen=True, slots=True, eq=False)
class _Crossing:
    """The crossing row of every node of a level."""

    leaf: Int64s
    """The leaf whose row it is, -1 where the node has no row left."""

    work: Int64s
    has_begun: Bools


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """The crossing rows of the children of one level's nodes."""

    crossing: _Crossing
    granted: Int64s
    """The children whose rows go."""

    chosen: Int64s
    """The children whose row is their parent's crossing row."""

    node: Int64s
    """Those parents."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What one amount serves."""

    count: Int64s
    steps: list[_Step]
    served: Int64s
    """The work that each top gives out."""

    used: Int64s
    """Shape (resources, tops): the tokens that it takes."""

    fits: Bools
    """Whether the tokens suffice for the rows that finish up to the level."""

    ends: Bools
    """Whether the tokens end with the rows that are served, or the rows do."""

    largest: Int64s
    """The largest crossing row of each top."""


class _Search:
    """The search for the amounts at which the tokens of all tops end."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        tree, rows = entries.tree, entries.rows
        levels = tree.levels
        self.height = len(levels)
        self.leaves = np.arange(tree.leaves)
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
        for level, work in zip(levels[:-1], held_work[1:], strict=True):
            asked.append(level.totals(asked[-1]) + work)
        want = [
            np.maximum(each + lead + tree.sums(rows.work(until, passing), height), 0)
            for height, (each, lead, passing) in enumerate(zip(asked, entries.leads, entries.passing, strict=True))
        ]
        self.vessels = Vessels(tree, entries.leads, held_work, asked, want, rows, first, until)
        self.all_work = levels[-1].totals(asked[-1])

    def look(self, amount: Int64s, most: Int64s) -> _Look:
        """Serve an amount of work at each top, and crossing rows while there are tokens, and work is at most `most`."""
        entries, vessels, levels = self.entries, self.vessels, self.entries.tree.levels
        rows, first, until = entries.rows, vessels.first, vessels.until
        filling = vessels.filled(amount)
        count, served, got, goes = filling.count, filling.sent[0], filling.got, filling.goes
        at = first + count
        crossing = _Crossing(
            np.where(at < until, self.leaves, -1), rows.work(at, np.minimum(at + 1, until)),
            entries.leads[0] + served <= got[0],
        )  # fmt: skip
        steps = []
        for k in range(1, self.height):
            below, held, held_work = levels[k - 1], entries.held[k - 1], vessels.held[k]
            # A node that could not send the row that it holds has nothing for others.
            left = filling.own[k] - below.totals(served)
            order, parent, is_granted = self._served_first(
                k - 1, crossing, served, got[k - 1], crossing.work[None], left[None], may_overdraw=False
            )
            granted = order[is_granted]
            count[crossing.leaf[granted]] += 1
            served[granted] += crossing.work[granted]
            is_next = begins_run(np.where(is_granted, -1, parent))
            is_next &= ~is_granted & goes[k][parent]
            chosen, node = order[is_next], parent[is_next]
            sent = goes[k] & (held >= 0)
            count[held[sent]] += 1
            leaf, work = np.where(goes[k], -1, held), np.where(goes[k], 0, held_work)
            leaf[node], work[node] = crossing.leaf[chosen], crossing.work[chosen]
            steps.append(_Step(crossing, granted, chosen, node))
            served = below.totals(served) + np.where(sent, held_work, 0)
            crossing = _Crossing(leaf, work, entries.leads[k] + served <= got[k])
        return self._top(count, crossing, served, got[-1], steps, most)

    def _served_first(
        self,
        k: int,
        crossing: _Crossing,
        served: Int64s,
        got: Int64s,
        tokens: Int64s,
        room: Int64s,
        *,
        may_overdraw: bool,
    ) -> tuple[Int64s, Int64s, Bools]:
        """Return the nodes that have crossing rows in the order of turns, their parents, and whether their rows go.

        Parameters
        ----------
        tokens
            Shape (resources, nodes): what each row takes.
        room
            Shape (resources, parents): what there is of it.
        may_overdraw
            Whether a row goes if what goes before it leaves room, or only if it fits itself.
        """
        entries, level = self.entries, self.entries.tree.levels[k]
        at = np.flatnonzero(crossing.leaf >= 0)
        parent = taken(level.parent, at)  # ascends
        groups = _Groups.between(np.searchsorted(at, level.bounds))
        is_late = ~taken(crossing.has_begun, at)
        key = taken(entries.leads[k] + served - got, at)
        np.add(key, taken(crossing.work, at), out=key, where=~is_late)
        key <<= _KEY_BITS
        key //= taken(level.weight, at)
        key = _packed(parent, is_late, key - key.min(initial=0), len(level.bounds) - 1)
        place = in_order(key)  # equal keys in one order on every processor
        key, untied = key[place], np.full(len(level.bounds) - 1, -1, dtype=np.int64)
        while True:
            order, sent = at[place], np.ones(len(at), dtype=np.bool_)
            for each, most in zip(tokens.take(order, axis=1), room, strict=True):
                sent &= groups.running(each, before=may_overdraw) <= groups.spread(most)
            refused = np.flatnonzero(~sent)
            first = refused[begins_run(parent[refused])]
            cut = untied.copy()
            cut[parent[first]] = key[first]
            # Rows of one key are told apart where some of them go and some do not.
            run = np.flatnonzero(key == groups.spread(cut)) if (cut != untied).any() else first
            if len(run) <= len(first):
                return order, parent, sent
            tied = place[run]
            place[run] = tied[np.lexsort((entries.tie[crossing.leaf[at[tied]]], key[run]))]
            untied = cut

    def _top(
        self, count: Int64s, crossing: _Crossing, served: Int64s, got: Int64s, steps: list[_Step], most: Int64s
    ) -> _Look:
        """Give what tokens are left to the crossing rows of the tops' children."""
        entries, tree = self.entries, self.entries.tree
        level, tops, room = tree.levels[-1], tree.tops, entries.room
        used = tree.sums(entries.rows.tokens(np.zeros_like(count), count), self.height)
        fits = np.logical_and.reduce(used <= room + 1)
        row = np.where(crossing.leaf >= 0, crossing.leaf, 0)
        rank = count[row]
        tokens = entries.rows.take(row).tokens(rank, rank + (crossing.leaf >= 0))
        order, top, passes = self._served_first(
            self.height - 1, crossing, served, got, np.vstack([tokens, crossing.work]),
            np.vstack([room - used, most - level.totals(served)]), may_overdraw=True,
        )  # fmt: skip
        tokens = tokens[:, order]
        # The child of a row that goes may have another that has begun, which the next round shows.
        has_begun = crossing.has_begun[order]
        passes &= has_begun | (sums(top, (passes & has_begun).astype(np.int64), tops) == 0)[top]
        granted = order[passes]
        count[crossing.leaf[granted]] += 1
        served[granted] += crossing.work[granted]
        used = used + np.stack([sums(top[passes], taken[passes], tops) for taken in tokens])
        work = level.totals(served)
        largest = np.zeros(tops, dtype=np.int64)
        np.maximum.at(largest, top, crossing.work[order])
        steps.append(_Step(crossing, granted, granted[:0], granted[:0]))
        ends = np.logical_or.reduce(used > room) | (work >= self.all_work)
        return _Look(count, steps, work, used, fits, ends, largest)

    def run(self) -> Turns:
        """Return what is served with the amounts that are found."""
        entries, tops = self.entries, self.entries.tree.tops
        until = self.vessels.until
        asked = entries.tree.sums(entries.rows.tokens(np.zeros_like(until), until), self.height)
        low, high = np.zeros(tops, dtype=np.int64) - 1, self.all_work + 1
        guess = _least_part(entries.room + 1, self.all_work, asked, self.all_work)
        unbounded = np.full(tops, UNBOUNDED)
        is_open, found = np.ones(tops, dtype=np.bool_), np.full(tops, -1, dtype=np.int64)
        last, was_good = (guess, guess), ~is_open
        look = self.look(guess, unbounded)
        for step in range(_LOOKS):
            look = self.look(guess, unbounded) if step else look
            is_good = look.fits & look.ends
            is_found = is_open & is_good & (np.abs(look.served - guess) <= look.largest)
            found = np.where(is_found, guess, found)
            rises = look.fits & (~look.ends | (look.served > guess))
            low = np.where(is_open & rises, np.maximum(low, guess), low)
            high = np.where(is_open & ~rises, np.minimum(high, guess), high)
            is_open &= ~is_found & (high - low > 1)
            if not is_open.any():
                break
            part = _least_part(entries.room + 1, look.served, look.used, self.all_work)
            told = np.where(is_good, look.served, np.where(look.fits, part, part - look.largest // 2))
            if step:
                told = np.where(is_good & was_good, _secant(guess, look.served, *last), told)
            last, was_good = (guess, look.served), is_good
            is_within = (told > low) & (told < high)
            told = np.where(is_within & ((step < _SURE_LOOKS) | (step % 3 < 2)), told, low + (high - low) // 2)
            guess = np.where(is_open, told, np.where(found >= 0, found, low))
        if not ((found == guess) & (found >= 0)).all():
            look = self.look(np.maximum(found, low), np.where(found >= 0, UNBOUNDED, np.maximum(low, 0)))
        return Turns(look.count, self._held(look.steps))

    def _held(self, steps: list[_Step]) -> list[Int64s]:
        """Return the rows that nodes hold after the batch: of two that chose one row, the upper."""
        out: list[Int64s] = []
        taken = np.zeros(0, dtype=np.bool_)
        for k in range(self.height - 1, 0, -1):
            step, crossing = steps[k], steps[k].crossing
            is_taken = np.zeros(len(crossing.leaf), dtype=np.bool_)
            is_taken[step.granted] = True
            is_taken[step.chosen[taken[step.node]]] = True
            keeps = crossing.has_begun | (crossing.leaf == self.entries.held[k - 1])
            out.insert(0, np.where(keeps & ~is_taken, crossing.leaf, -1))
            taken = is_taken | (out[0] >= 0)
        return out


def _packed(parent: Int64s, is_late: Bools, key: Int64s, parents: int) -> Int64s:
    """Return one number that orders by parent, then those that are not late first, then by key."""
    most_bits, bits = 62 - parents.bit_length(), int(key.max(initial=0)).bit_length()
    if bits > most_bits:
        key, bits = key >> bits - most_bits, most_bits
    return ((parent << 1 | is_late) << bits) | key


def serve(entries: Entries) -> Turns:
    """Return what the batch serves below the tops of `entries`."""
    return _Search(entries).run()


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


def _secant(amount: Int64s, served: Int64s, amount_before: Int64s, served_before: Int64s) -> Int64s:
    """Return the amount that is served itself, if what is served is linear in it."""
    error, error_before = served - amount, served_before - amount_before
    change = error_before - error
    step = proportional(np.abs(error), np.abs(amount - amount_before), np.abs(change), most_bits=60)
    return amount + np.sign(error) * np.sign(amount - amount_before) * np.sign(change) * step


def _least_part(room: Int64s, work: Int64s, tokens: Int64s, most: Int64s) -> Int64s:
    """Return the work for which the scarcest of the tokens suffice, if `tokens` are those of `work`; at most `most`."""
    part = most
    for have, need in zip(room, tokens, strict=True):
        part = np.where(have < need, np.minimum(part, proportional(work, have, need, most_bits=61)), part)
    return part
