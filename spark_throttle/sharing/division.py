"""A job's parts of the quotas that it shares, computed from the reports of all; and which changes to report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_throttle.core.arithmetic.rate_codes import decode
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import UNLIMITED, Bools, Int64s
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.core.shares.division import max_min
from spark_throttle.sharing.budget_claims import divide_budgets, is_news_of_budgets
from spark_throttle.sharing.pip82 import drifted, proportional, residual, steal
from spark_throttle.sharing.report import ScopeRows
from spark_throttle.sharing.settings import ShareSettings

Members: TypeAlias = npt.NDArray[np.uint16]

_MILLI = 1000
_PERCENT = 100


@dataclass(frozen=True, slots=True, eq=False)
class OtherSeats:
    """The reports of other jobs on this job's scopes, one position per scope and job."""

    peer: Int64s
    """Position of the other job among the peers."""

    is_dead: Bools
    """Whether the other job is considered dead: it then wants nothing, and keeps its floor."""

    rows: ScopeRows
    """The rows that were reported, not in the order of their scopes."""

    scope: Int64s
    """Position of the scope among this job's."""

    rank: Int64s
    """Rank of the other job among all jobs, including this one: all jobs agree on it."""

    own_rank: int
    """Rank of this job."""

    def kept(self, settings: ShareSettings, quota: Int64s) -> Int64s:
        """Return what dead jobs keep, shape (n, 2): of budgets all that they claim; 0 for live ones."""
        most = most_kept(settings, quota).take(self.scope, axis=0)
        kept = np.minimum(self.rows.floor_rate(), most)
        kept = np.where(self.rows.is_budget[:, None], decode(self.rows.claim), kept)
        return np.where(self.is_dead[:, None], kept, 0)

    def at(self, is_scope: Bools) -> OtherSeats:
        """Return those of some of this job's scopes, which are numbered anew."""
        place, seats = np.cumsum(is_scope) - 1, np.flatnonzero(is_scope[self.scope])
        return OtherSeats(
            self.peer[seats], self.is_dead[seats], self.rows.take(seats), place[self.scope[seats]], self.rank[seats],
            self.own_rank,
        )  # fmt: skip


def divide(settings: ShareSettings, own: ScopeRows, quota: Int64s, others: OtherSeats) -> tuple[Int64s, Members]:
    """Return this job's parts, shape (scopes, 2), 0 where there is no limit; and how many jobs share each scope.

    Parameters
    ----------
    own
        The job's own rows, one per scope.
    quota
        Shape (scopes, 2).
    """
    scopes, is_dead = len(own), others.is_dead
    seats = 1 + np.bincount(others.scope, minlength=scopes)
    members = np.minimum(seats, np.iinfo(np.uint16).max).astype(np.uint16)
    whole = np.where(quota == UNLIMITED, PLENTY, quota)
    reserved = sums(others.scope, others.kept(settings, quota), scopes)
    available = np.where(whole == PLENTY, PLENTY, np.maximum(whole - reserved, 0))
    live = np.flatnonzero(~is_dead)
    rows = others.rows if len(live) == len(is_dead) else others.rows.take(live)
    scope = np.concatenate([np.arange(scopes), others.scope[live]])
    floor = floors(settings, quota, members)
    if settings.policy == "max_min":
        bin_seat = np.concatenate([own.bin_row, scopes + rows.bin_row])
        demand = np.concatenate([decode(own.bin_demand), decode(rows.bin_demand)])
        weight = np.concatenate([own.bin_weight, rows.bin_weight]).astype(np.int64)
        rank = np.concatenate([np.full(scopes, others.own_rank), others.rank[live]])
        part = max_min(scope, floor.take(scope, axis=0), bin_seat, demand, np.maximum(weight, 1), available, rank)[
            :scopes
        ]
    elif settings.policy == "static":
        seats = np.bincount(scope, minlength=scopes)
        earlier = np.bincount(others.scope[live], others.rank[live] < others.own_rank, scopes).astype(np.int64)
        part = _equal(available, seats[:, None], earlier[:, None])
    else:
        usage = np.concatenate([decode(own.usage), decode(rows.usage)])
        part = _by_usage(settings, scope, usage, whole)
    return np.where(whole == PLENTY, 0, np.minimum(part, whole)), members


def divide_all(
    settings: ShareSettings, own: ScopeRows, quota: Int64s, others: OtherSeats, unknown: Int64s
) -> tuple[Int64s, Members, Int64s]:
    """Return what `divide` does, with this job's parts of budgets; and what others used of each, shape (scopes,).

    Parameters
    ----------
    unknown
        What runs may have used of budgets that their successors do not know of, shape (scopes,).
    """
    part, members = divide(settings, own, quota, others)
    by_others, budgets = np.zeros(len(own), dtype=np.int64), np.flatnonzero(own.is_budget)
    if len(budgets):
        some = others.at(own.is_budget)
        rank = np.concatenate([np.full(len(budgets), some.own_rank), some.rank[~some.is_dead]])
        part[budgets, 0], by_others[budgets] = divide_budgets(
            own.take(budgets), quota[budgets, 0], some.rows, some.scope, some.is_dead, rank, unknown[budgets]
        )
    return part, members, by_others


def floors(settings: ShareSettings, quota: Int64s, members: Members) -> Int64s:
    """Return a job's floor in scopes that `members` jobs share, shape (scopes, 2); 0 where there is no limit."""
    part = settings.floor_percent * (quota // _PERCENT) // np.maximum(members.astype(np.int64), 1)[:, None]
    return np.where(quota == UNLIMITED, 0, part)


def most_kept(settings: ShareSettings, quota: Int64s) -> Int64s:
    """Return the most that a silent job keeps, shape (scopes, 2): all floors together, of the quota as it stands.

    So a quota that falls while a job is silent is not held by a floor of the old quota.
    """
    return np.where(quota == UNLIMITED, 0, settings.floor_percent * (quota // _PERCENT))


def _equal(available: Int64s, seats: Int64s, earlier: Int64s) -> Int64s:
    """Return this job's equal parts; of fewer units than seats, the first in rank get one each.

    Parameters
    ----------
    earlier
        The number of live jobs before this one in rank, by scope.
    """
    part = available // np.maximum(seats, 1)
    return np.where((part == 0) & (earlier < available), 1, part)


def _by_usage(settings: ShareSettings, scope: Int64s, usage: Int64s, quota: Int64s) -> Int64s:
    """Return this job's parts by one of PIP-82's policies, in whole tokens per second; its seats come first.

    A quota of less than one token counts as one: cut to none, it would never be used.
    """
    scopes = len(quota)
    part = np.zeros((scopes, 2), dtype=np.int64)
    for dimension in range(2):
        whole, used = quota[:, dimension] // _MILLI, usage[:, dimension] // _MILLI
        whole = np.where(quota[:, dimension] > 0, np.maximum(whole, 1), whole)
        total = sums(scope, used, scopes)
        if settings.policy == "proportional":
            part[:, dimension] = proportional(whole, used[:scopes], total)
        elif settings.policy == "residual":
            part[:, dimension] = residual(whole, used[:scopes], total)
        else:
            part[:, dimension] = steal(scope, whole[scope], used, total[scope])[:scopes]
    return part * _MILLI


def is_news(settings: ShareSettings, new: ScopeRows, old: ScopeRows, since: Int64s) -> Bools:
    """Return which rows must be reported: those that changed enough, or were last reported `report_every` reports ago.

    Under `proportional` Pulsar's own rule decides, with our number of cycles.
    """
    if settings.policy == "proportional":
        has_drifted = drifted(decode(new.usage), decode(old.usage), since, np.full_like(since, settings.report_every))
        return has_drifted | new.is_budget & is_news_of_budgets(new, old)
    is_due: Bools = since >= settings.report_every
    is_changed = np.zeros(len(new), dtype=np.bool_)
    for now, then in (
        (decode(new.usage), decode(old.usage)),
        tuple(sums(rows.bin_row, decode(rows.bin_demand), len(rows)) for rows in (new, old)),
    ):
        is_changed = is_changed | (np.abs(now - then) > then // _PERCENT * settings.report_change_percent).any(axis=1)
    return is_due | np.where(new.is_budget, is_news_of_budgets(new, old), is_changed)
