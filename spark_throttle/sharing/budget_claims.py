"""Budgets that jobs share: what each may use of them in one window of the calendar.

A budget's window is a scope of its own (`control.shared_budgets`). So a window that begins has no claims yet, whatever
a job's clock says, and what follows is said of one window. In place of a rate a job claims an *amount*: what it, with
all its runs, may have used by the end of the window. Laws, beside those of `sharing`, which hold for amounts too:

- A claim is never less than what the job has used, and what its earlier runs may have used (`earlier`).
- It stays with the job until the window has ended, however long the job is silent.

So the claims of all that ever claimed sum to the budget at most, and nobody uses more than its claim. What returns is
what a run that lives gives back: it knows what it used. A run that ended has used what it claimed. For its checkpoint
may have been put back to before its last rows, and nothing that is written between two reports would tell.

*How much is claimed.* What jobs want for the next half lease is divided by max-min; but together at most half of what
is left, and one unit each where that is more. So a job that dies takes little with it, and the last messages go out.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.arithmetic.rate_codes import decode
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.core.shares.division import max_min
from spark_throttle.sharing.report import ScopeRows, ShareReport, found_in, moved


def divide_budgets(
    own: ScopeRows, budget: Int64s, others: ScopeRows, scope: Int64s, is_dead: Bools, rank: Int64s, carried: Int64s
) -> tuple[Int64s, Int64s]:
    """Return what this job should claim of each budget, and what others used of it, or may have.

    Parameters
    ----------
    own
        The job's own rows, one per budget.
    others, scope, is_dead
        The rows of other jobs, the budget of each, and whether it may not be heard again.
    rank
        The ranks of all seats: first this job's, one per budget, then those of the others.
    carried
        What replaced runs of other jobs may have used beyond what their successors know.
    """
    n, live = len(own), np.flatnonzero(~is_dead)
    used, theirs = decode(own.usage[:, 0]), others.take(live)
    gone = sums(scope[is_dead], others.amount[is_dead], n)
    by_others = gone + carried + sums(scope[live], decode(theirs.usage[:, 0]), n)
    left = np.maximum(budget - used - by_others, 0)
    seats = np.concatenate([np.arange(n), scope[live]])
    bin_seat = np.concatenate([own.bin_row, n + theirs.bin_row])
    wanted = np.concatenate([decode(own.bin_demand[:, 0]), decode(theirs.bin_demand[:, 0])])
    weight = np.concatenate([own.bin_weight, theirs.bin_weight]).astype(np.int64)
    asked = sums(bin_seat, wanted, len(seats))
    askers = np.bincount(seats[asked > 0], minlength=n)
    given = np.minimum(left, np.maximum(left // 2, askers))
    nothing, no_limit = np.zeros_like(wanted), np.full(n, PLENTY)
    part = max_min(
        seats, np.zeros((len(seats), 2), dtype=np.int64), bin_seat, np.stack([wanted, nothing], axis=1),
        np.maximum(weight, 1), np.stack([given, no_limit], axis=1), rank,
    )  # fmt: skip
    return used + np.minimum(part[:n, 0], asked[:n]), by_others


def is_news_of_budgets(new: ScopeRows, old: ScopeRows) -> Bools:
    """Return which rows of budgets must be reported: more than half of what was granted is used, or more is wanted."""
    used, before = decode(new.usage[:, 0]), decode(old.usage[:, 0])
    asked, asked_before = (sums(rows.bin_row, decode(rows.bin_demand[:, 0]), len(rows)) for rows in (new, old))
    is_half_used = (used > before) & (2 * (used - before) > old.amount - before)
    return is_half_used | (used + asked > before + asked_before + asked_before // 4)


def counted(report: ShareReport, carried: tuple[Int64s, Int64s] | None) -> tuple[Int64s, Int64s]:
    """Return the budgets of a job, as ids, and what all its runs may have used of each by the end of its window.

    Parameters
    ----------
    carried
        The same as it was when the run of the report replaced another: it may not know all of that.
    """
    rows = report.rows.take(np.flatnonzero(report.rows.is_budget))
    if carried is None:
        return rows.ids, rows.amount
    ids = np.union1d(rows.ids, carried[0])
    return ids, moved(rows.amount, rows.ids, ids) + moved(unclaimed(report, carried), carried[0], ids)


def unclaimed(report: ShareReport, carried: tuple[Int64s, Int64s]) -> Int64s:
    """Return how much of what is `carried` the claims of a report lack, as its run does not know of it."""
    rows = report.rows.take(np.flatnonzero(report.rows.is_budget))
    return np.maximum(carried[1] - moved(rows.earlier, rows.ids, carried[0]), 0)


def larger(one: tuple[Int64s, Int64s] | None, other: tuple[Int64s, Int64s]) -> tuple[Int64s, Int64s]:
    """Return the larger of two amounts of each budget."""
    if one is None:
        return other
    ids = np.union1d(one[0], other[0])
    return ids, np.maximum(moved(one[1], one[0], ids), moved(other[1], other[0], ids))


def used_by_runs(reports: list[ShareReport], ids: Int64s) -> Int64s:
    """Return what runs of one job, in the order of their marks, may have used of the budgets `ids`."""
    found: tuple[Int64s, Int64s] | None = None
    for report in reports:
        found = counted(report, found)
    return np.zeros(len(ids), dtype=np.int64) if found is None else moved(found[1], found[0], ids)


def are_all_among(rows: ScopeRows, ids: Int64s, budgets: int) -> bool:
    """Return whether rows, of which those of `ids` were read, have all of so many budgets that a report claims."""
    return int((rows.is_budget & (rows.amount > 0) & found_in(rows.ids, ids)).sum()) == budgets
