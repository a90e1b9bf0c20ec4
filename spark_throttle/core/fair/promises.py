"""The first batch of a policy honours the leads that can be paid: what some siblings are owed, others must pay in time.

A child that is behind finishes its next row early, at the tag (row + L) / w. So it is served at its siblings' cost,
unless those that are ahead stand back meanwhile: each pays its own lead, at the rate of its weight. Under weights that
stay, turns leave such leads only (`turns`): up to any tag, what falls due is at most what is paid, and one row. That is
the largest row that went, which may be larger than all that wait: so nothing is cut while weights stay. Under other
weights, those that are ahead may pay much more slowly than others fall due; or they are in another group. Then a
newcomer would pay for them: a part of a row for each sibling, however many it has.

So a new policy begins with promises that can be kept. If more falls due up to some tag than is paid, and a row (the
largest that waits, or as much as any one is ahead), all that are behind lose as much of virtual time as it takes: each
the same, and none more than it is owed. A heavy child's row is delayed little by that. A light one's share is kept
however often weights change, so that it adds up to a row. Those that are ahead pay what is still owed: who would pay
last is forgiven first.

Of those that are ahead, some have no row any more. The fluid still serves the rows that have gone; who has rows waits
for it. Under a larger weight it does that at once, so those that are heavy would pay for all whose weights a change
raises, a part of a row for each. So such children pay for what is due already, and a row, and no more.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.arithmetic.segments import running_total
from spark_throttle.core.fair.tree import Level
from spark_throttle.core.fair.water import covered
from spark_throttle.core.quota import Bools, Int64s

_MOST_BITS = 61
"""The bits of a tag."""


def kept_promises(level: Level, lead: Int64s, row: Int64s) -> Int64s:
    """Return the leads of a level's children, less what cannot be honoured.

    Parameters
    ----------
    row
        The work of each child's next row, 0 if it has none.

    Examples
    --------
    Six children were equal, and half of them were served. If those that wait weigh more, the others pay too late, but
    for one row:

    >>> lead, zeros = np.array([500, 500, 500, -500, -500, -500]), np.zeros(6, dtype=np.int64)
    >>> for weight in (1, 100):
    ...     level = Level.of(zeros, 1, np.array([1, 1, 1, weight, weight, weight]))
    ...     print(kept_promises(level, lead, zeros + 1_000).tolist())
    [500, 500, 500, -500, -500, -500]
    [400, 400, 400, -400, -400, -400]
    """
    owed, ahead = np.where(row > 0, np.maximum(-lead, 0), 0), np.maximum(lead, 0)
    spare = level.largest(np.maximum(row, ahead)) + level.totals(level.weight)  # levels are rounded by as much
    gone = np.where(row > 0, 0, ahead)
    all_owed, all_gone, due = level.totals(owed), level.totals(gone), level.totals(np.maximum(owed - row, 0))
    is_cut = (level.totals(ahead) - all_owed > spare) | (all_gone > due + spare)
    if is_cut.any():
        ahead = np.where(row > 0, ahead, covered(gone, level.weight, level.parent, level.bounds, due + spare))
    doubtful = np.flatnonzero(all_owed > spare)
    if len(doubtful):
        part, at = level.below(doubtful)
        kept, is_less = _Promises(part, owed[at], ahead[at], row[at], spare[doubtful]).kept()
        owed[at] = kept
        is_cut[doubtful[is_less]] = True
    if not is_cut.any():
        return lead
    pays = covered(ahead, level.weight, level.parent, level.bounds, level.totals(owed))
    return np.where(is_cut[level.parent], pays - owed, lead)


class _Promises:
    """What children are owed, and those of them that are ahead pay."""

    def __init__(self, level: Level, owed: Int64s, ahead: Int64s, row: Int64s, spare: Int64s) -> None:
        self.level, self.owed, self.ahead, self.row, self.spare = level, owed, ahead, row, spare
        self.places = _MOST_BITS - int(owed.sum() + ahead.max()).bit_length()  # no row is above `spare`
        self.time = (owed << self.places) // level.weight
        """The virtual time that each child is owed."""

    def kept(self) -> tuple[Int64s, Bools]:
        """Return what each child is owed still, and for which parents that is less: found to within a half."""
        is_less = ~self.can_be_paid(self.owed)
        if not is_less.any():
            return self.owed, is_less
        low, high = np.full((2, len(is_less)), [[-1], [int(self.time.max()).bit_length()]])
        while (is_open := high - low > 1).any():  # to lose 2 ** high is enough, 2 ** low is not
            middle = (low + high) // 2
            is_enough = self.can_be_paid(self.less(middle))
            low, high = np.where(is_open & ~is_enough, middle, low), np.where(is_open & is_enough, middle, high)
        return np.where(is_less[self.level.parent], self.less(high), self.owed), is_less

    def less(self, bits: Int64s) -> Int64s:
        """Return what each child is owed if all of a parent lose 2 to so many `bits` of virtual time."""
        lost = (np.int64(1) << bits)[self.level.parent]
        return np.where(self.time > lost, self.owed - (lost * self.level.weight >> self.places), 0)

    def can_be_paid(self, owed: Int64s) -> Bools:
        """Return whether up to every tag at most what is paid falls due below each parent, and the spare work."""
        level = self.level
        tag = ((self.row + self.ahead - owed) << self.places) // level.weight
        order = np.lexsort((tag, level.parent))
        weights, total = running_total(level.weight[order]), running_total((owed - self.ahead)[order])
        unpaid = total[1:] - (total[level.bounds[:-1]] + self.spare)[level.parent]
        paying = weights[level.bounds[1:]][level.parent] - weights[1:]
        paid_at = (np.maximum(unpaid, 0) << self.places) // np.maximum(paying, 1)
        is_late = (unpaid > 0) & ((paid_at > tag[order]) | (paying == 0))
        return level.totals(is_late.astype(np.int64)) == 0
