"""Rows of a scope that runs short go by hierarchical worst-case-fair weighted fair queueing, a batch at a time.

Every node serves its children by WF2Q (Bennett and Zhang 1996), so the tree is H-WF2Q. A node's virtual time is the
level of the fluid (`water`) that is given what the node was served itself. A child with lead L and weight w begins its
next row at the tag L / w in the virtual time of its parent, and finishes it when its work is done. In one batch:

1. The fluid fills the node's amount, and what it lacks, into the children's demands, leads included, up to a level v.
2. Rows that finish up to v go: a child's budget is what the fluid gives it, less its lead. Where these are more than
   the node's amount, because a large row that went early has delayed them, only those up to an earlier level go, up to
   which they fit (`filling`). So no node sends more than it is given.
3. The rest is given to *crossing* rows, which begin up to v and finish beyond what went, by their finish (`crossing`).
   The first that does not fit is the node's own crossing row, about which its parent decides. It is held until it goes.
   Where the fluid asked for rows that a narrower scope refused, all that have begun may go and leave some of it.
   Then v rises, for what is left, to the level of the fluid without refused rows: what goes up to it had begun in that
   scope's contest.
4. A top's amount is the one at which its tokens end: a row goes while no balance is negative (KIP-599). It is known
   beforehand where work is one resource; else a search finds it, to within one row. Where tokens end by two resources,
   there may be no such amount: more work brings a row that takes more of the scarce one. Then the batch goes as far as
   an amount at which tokens do not end yet, to within one row, and another round goes on from there.

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

*Change.* The proof is about one policy. Leads from another enter by `promises`: what falls due by V for them is at most
what others pay by V, a row, and what levels are rounded by. A tenant's node chooses anew what it holds behind a row
that its group holds for the job. So a change costs a child a row more.

*Hierarchy.* The tree's fluid gives a node its share of what its parent's fluid gets. So a leaf is behind by at most the
sum of these bounds over its levels: two of the largest rows each, whatever the tree holds. A child is ahead by less
than one of its own rows, and one of a sibling's: what it was served had begun by v, and v is at most one row beyond
what the tree's fluid gives its node.
Without the condition of having begun, a heavy child is ahead by as many rows as it has siblings. The fluid asks for all
rows of a node, also those that a narrower scope refused to pass (`Entries.passing`), so the order of a group's rows in
the job's contest is a beginning of their order in the group's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.fair.crossing import Crossing
from spark_throttle.core.fair.filling import Entries, Vessels
from spark_throttle.core.quota import Bools, Int64s

_LOOKS = 60
"""The most steps of the search for an amount."""

_SURE_LOOKS = 8
"""The first steps of the search, none of which only halves what is in question."""


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """What a batch serves."""

    count: Int64s
    """The number of rows of each leaf that go."""

    held: list[Int64s]
    """As `Entries.held`, after the batch."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What one amount serves."""

    crossing: Crossing
    served: Int64s
    """The work that each top gives out."""

    used: Int64s
    """Shape (resources, tops): the tokens that it takes."""

    ends: Bools
    """Whether the tokens end with the rows that are served, or the rows do."""


class _Search:
    """The search for the amounts at which the tokens of all tops end."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.vessels = Vessels.of(entries)
        self.all_work = entries.tree.levels[-1].totals(self.vessels.asked[-1])

    def look(self, amount: Int64s) -> _Look:
        """Serve an amount of work at each top, and crossing rows while there are tokens, and no more went before."""
        crossing = Crossing(self.entries, self.vessels, self.vessels.filled(amount))
        crossing.run(np.maximum(amount, 0))
        used, work = crossing.used, crossing.work
        ends = np.logical_or.reduce(used > self.entries.room) | (work >= self.all_work)
        return _Look(crossing, work, used, ends)

    def run(self) -> Turns:
        """Return what is served with the amounts that are found."""
        entries, tops = self.entries, self.entries.tree.tops
        until = self.vessels.until
        asked = entries.tree.sums(entries.rows.tokens(np.zeros_like(until), until), len(entries.tree.levels))
        low, high = np.zeros(tops, dtype=np.int64) - 1, self.all_work + 1
        # What the lower amount leaves of each resource, and what the higher lacks: the first guess lies between both.
        under, over = entries.room + 1, asked - entries.room - 1
        is_open, found = np.ones(tops, dtype=np.bool_), np.full(tops, -1, dtype=np.int64)
        rose = ~is_open
        guess = _between(low + 1, self.all_work, under, over)
        look = self.look(guess)
        for step in range(_LOOKS):
            fits, largest = look.crossing.fits, look.crossing.largest
            is_good = fits & look.ends
            is_found = is_open & is_good & (np.abs(look.served - guess) <= largest)
            found = np.where(is_found, guess, found)
            rises = fits & (~look.ends | (look.served > guess))
            low, high = np.where(is_open & rises, guess, low), np.where(is_open & ~rises, guess, high)
            is_open &= ~is_found & (high - low > 1)
            if not is_open.any():
                break
            left = entries.room + 1 - look.used
            # The side that stays counts for half if it stayed before, or the other creeps (Illinois).
            stays = rises == rose
            under = np.where(rises, np.maximum(left, 1), under >> (stays & ~rises))
            over = np.where(rises, over >> (stays & rises), -left)
            rose = rises
            told = _between(low, high, under, over)
            # What this amount served is the better guess where it lies beyond.
            told = np.where(is_good | ((told < look.served) == rises), look.served, told)
            is_within = (told > low) & (told < high)
            told = np.where(is_within & ((step < _SURE_LOOKS) | (step % 3 < 2)), told, low + (high - low) // 2)
            guess = np.where(is_open, told, np.where(found >= 0, found, low))
            look = self.look(guess)
        if not ((found == guess) & (found >= 0)).all():
            look = self.look(np.maximum(found, low))
        return Turns(look.crossing.count, look.crossing.held())


def serve(entries: Entries) -> Turns:
    """Return what the batch serves below the tops of `entries`."""
    return _Search(entries).run()


def _between(low: Int64s, high: Int64s, under: Int64s, over: Int64s) -> Int64s:
    """Return the amount at which the first of the tokens ends, if what an amount takes of each is linear.

    Parameters
    ----------
    under, over
        Shape (resources, tops): the tokens that the lower amount leaves, and that the higher one lacks.
    """
    between = high
    for left, lacks in zip(under, over, strict=True):
        ends = low + proportional(high - low, left, left + np.maximum(lacks, 0), most_bits=61)
        between = np.where(lacks > 0, np.minimum(between, ends), between)
    return between
