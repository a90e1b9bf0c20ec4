"""Budgets that several jobs share, as the control plane of one of them sees them: claims by window, for its epochs.

Each budget of a tenant or a resource group has a scope in the exchange for each window of the calendar, which all jobs
name alike. A job holds an *account* of it from its first row in the window until the next window has ended: other
jobs, whose clocks are behind, may still use the one before. What the decider counts as used in a window is what this
checkpoint used; the account says how much of that this run did (`sharing.budget_claims`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.rate_codes import decode, encode
from spark_throttle.core.arithmetic.segments import name_hash
from spark_throttle.core.limits.budgets import BudgetClaims, Budgets, CalendarWindows, UsedBudgets
from spark_throttle.core.quota import BUDGETS, MICRO, UNBOUNDED, UNLIMITED, Bools, CompiledPolicy, Int64s
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.peers import Share
from spark_throttle.sharing.report import Measurement, found_in, moved

_MOST_ASKED = 1 << 50


@dataclass(frozen=True, slots=True, eq=False)
class NamedWindows:
    """The windows that an epoch pins, and which windows of the calendar they are (`calendar_windows.window_keys`)."""

    windows: CalendarWindows
    keys: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class BudgetScopes:
    """The budgets of a policy that jobs share; arrays run over them, in the order of `ids`."""

    scope: Int64s
    """The position in `CompiledPolicy.shared`."""

    column: Int64s
    """The position among the policy's budgets."""

    period: Int64s
    ids: Int64s
    """Hashes of direction, level, key of the budget, window and name; ascending."""

    @classmethod
    def of(cls, policy: CompiledPolicy, direction: Direction, keys: Int64s) -> BudgetScopes:
        """Return what jobs share of a policy's budgets, in the windows of these keys."""
        scope, column = np.nonzero(are_shared(policy))
        period = np.array(policy.shared.periods, dtype=np.int64)[column]
        names = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
        tenants = len(policy.tenant_names)
        texts = [
            f"{direction}/{'tenant' if at <= tenants else 'resource_group'}.{BUDGETS[policy.shared.budgets[c]][0]}."
            f"{keys[p]}/{names[at]}"
            for at, c, p in zip(scope.tolist(), column.tolist(), period.tolist(), strict=True)
        ]
        ids = name_hash(pa.array(texts, pa.string()))
        order = np.argsort(ids, kind="stable")
        return cls(scope[order], column[order], period[order], ids[order])

    def of_each(self, values: Int64s) -> Int64s:
        """Return the values of the budgets, given a table of shape (scopes, k)."""
        return values[self.scope, self.column]


def are_shared(policy: CompiledPolicy) -> Bools:
    """Return which budgets of the shared scopes jobs share, shape (scopes, k): those that hold rows, but the job's."""
    budgets = Budgets.of(policy.shared)
    if budgets is None:
        return np.zeros((len(policy.shared), 0), dtype=np.bool_)
    found: Bools = budgets.is_enforcing & (budgets.tokens < UNBOUNDED)
    found[0] = False
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Accounts:
    """What this run used of budgets, by window."""

    ids: Int64s
    period: Int64s
    number: Int64s
    """Which window of this checkpoint it is."""

    began: Int64s
    """What the decider counted as used when the account began."""

    own: Int64s
    """What was used since."""

    def take(self, at: Int64s | Bools) -> _Accounts:
        return _Accounts(self.ids[at], self.period[at], self.number[at], self.began[at], self.own[at])

    def and_those(self, more: _Accounts) -> _Accounts:
        columns = [np.concatenate([getattr(self, each), getattr(more, each)]) for each in self.__slots__]
        return _Accounts(*columns).take(np.argsort(np.concatenate([self.ids, more.ids]), kind="stable"))


class SharedBudgets:
    """The accounts of one run.

    Parameters
    ----------
    horizon_ms
        For how long a job claims what it wants: as long as its lease lasts without a word.
    """

    def __init__(self, member: str, direction: Direction, horizon_ms: int) -> None:
        self._member = member
        self._direction: Direction = direction
        self._horizon_ms = horizon_ms
        none = np.zeros(0, dtype=np.int64)
        self._accounts = _Accounts(none, none, none, none, none)
        self._told: tuple[str, UsedBudgets] | None = None
        self._is_ours = True
        self._scopes: tuple[tuple[str, bytes], BudgetScopes] | None = None

    def begin_after(self, before: BudgetClaims | None) -> None:
        """Note what the last epoch pinned that an earlier run made: another member's, if this checkpoint is a copy."""
        self._is_ours = before is None or before.member == self._member

    def add(self, revision: str, used: UsedBudgets | None) -> None:
        """Take in what a batch left used."""
        if used is not None and used.shared_used is not None:
            self._told = revision, used

    def scopes(self, policy: CompiledPolicy, named: NamedWindows) -> BudgetScopes:
        """Return the budgets of a policy that jobs share, in the windows in force."""
        key = policy.revision, named.keys.tobytes()
        if self._scopes is None or self._scopes[0] != key:
            self._scopes = key, BudgetScopes.of(policy, self._direction, named.keys)
        return self._scopes[1]

    def _used(self, policy: CompiledPolicy, windows: CalendarWindows, lost: BudgetClaims | None) -> Int64s:
        """Return what is used of the policy's budgets in the windows in force, shape (scopes, k)."""
        used = np.zeros(are_shared(policy).shape, dtype=np.int64)
        if self._told is not None and self._told[0] == policy.revision:
            told, periods = self._told[1], np.array(policy.shared.periods, dtype=np.int64)
            is_current = (told.windows.number == windows.number)[periods]
            used = np.where(is_current, used if told.shared_used is None else told.shared_used, 0)
        if lost is not None and lost.may_use.shape == used.shape:
            used = np.maximum(used, np.where(lost.may_use < UNBOUNDED, lost.may_use, 0))
        return used

    def measure(
        self,
        policy: CompiledPolicy,
        named: NamedWindows,
        wanted: tuple[Int64s, Int64s] | None,
        lost: BudgetClaims | None = None,
    ) -> Measurement:
        """Return what the job wants and has used of each window that it has an account of.

        Parameters
        ----------
        wanted
            As in `DemandMeter`.
        lost
            What the epoch pinned whose batch did not report: all of it may be used.
        """
        scopes, windows = self.scopes(policy, named), named.windows
        used = scopes.of_each(self._used(policy, windows, lost))
        asked, weight = np.zeros_like(scopes.ids), np.ones_like(scopes.ids)
        if wanted is not None and len(wanted[1]) == len(policy.shared):
            dimension = np.array([BUDGETS[at][1] for at in policy.shared.budgets], dtype=np.int64)[scopes.column]
            rate = np.minimum(wanted[0][scopes.scope, dimension], (1 << 62) // self._horizon_ms)
            asked = np.minimum(-(-rate * self._horizon_ms // MICRO), _MOST_ASKED)
            weight = np.maximum(wanted[1][scopes.scope], 1)
        self._settle(scopes, used, windows, (asked > 0) | (used > 0))
        kept = self._accounts
        is_current = found_in(scopes.ids, kept.ids)
        at, row = np.flatnonzero(is_current & (asked > 0)), np.searchsorted(kept.ids, scopes.ids)
        quota = moved(self._budget(policy, scopes), scopes.ids, kept.ids)
        earlier = kept.began if self._is_ours else np.zeros_like(kept.began)
        nothing = np.zeros_like(at)
        return Measurement(
            kept.ids, np.stack([quota, np.full_like(quota, UNLIMITED)], axis=1), np.stack([kept.own, earlier], axis=1),
            row[at], np.stack([asked[at], nothing], axis=1), weight[at], (1 + kept.period).astype(np.uint8),
        )  # fmt: skip

    def _settle(self, scopes: BudgetScopes, used: Int64s, windows: CalendarWindows, begins: Bools) -> None:
        """Bring the accounts up to what is told, begin those that are due, and end those of two windows ago."""
        kept = self._accounts
        kept = kept.take(kept.number >= windows.number[kept.period] - 1)
        new = np.flatnonzero(begins & ~found_in(scopes.ids, kept.ids))
        period = scopes.period[new]
        kept = kept.and_those(
            _Accounts(scopes.ids[new], period, windows.number[period], used[new], np.zeros_like(period))
        )
        now = moved(used, scopes.ids, kept.ids)
        is_now = found_in(kept.ids, scopes.ids) & (kept.number == windows.number[kept.period])
        self._accounts = replace(kept, own=np.where(is_now, np.maximum(kept.own, now - kept.began), kept.own))

    def claims(self, policy: CompiledPolicy, named: NamedWindows, share: Share) -> BudgetClaims:
        """Return what an epoch pins: what this job may use, by the decider's count, of each budget of the policy."""
        scopes, kept, is_shared = self.scopes(policy, named), self._accounts, are_shared(policy)
        granted = np.maximum(share.rate_micro_per_ms[:, 0] - share.earlier, 0)
        granted, earlier, others = (
            moved(each, share.ids, kept.ids) for each in (granted, share.earlier, share.by_others)
        )
        granted = np.maximum(granted, kept.own)
        is_used = (granted <= kept.own) & (
            others + earlier + kept.own >= moved(self._budget(policy, scopes), scopes.ids, kept.ids)
        )
        by_others = others + np.maximum(earlier - (kept.began if self._is_ours else 0), 0)
        may_use, spent = np.where(is_shared, 0, UNBOUNDED), np.zeros_like(is_shared)
        told, at = np.zeros_like(may_use), (scopes.scope, scopes.column)
        may_use[at], spent[at], told[at] = (
            moved(each, kept.ids, scopes.ids) for each in (kept.began + granted, is_used, by_others)
        )
        return BudgetClaims(may_use, spent, told, self._member)

    @staticmethod
    def _budget(policy: CompiledPolicy, scopes: BudgetScopes) -> Int64s:
        budgets = Budgets.of(policy.shared)
        # As the exchange has it: amounts of more than 2**26 are rounded down by less than a part in 2**25.
        return np.zeros_like(scopes.ids) if budgets is None else decode(encode(scopes.of_each(budgets.tokens)))

    def is_due(self, policy: CompiledPolicy, named: NamedWindows, pinned: BudgetClaims, now: BudgetClaims) -> bool:
        """Return whether claims differ so much from those that an epoch pins that another epoch is needed.

        Other jobs wait for a claim that shrinks. One that grows is needed once the smaller half of it is used.
        """
        used = self._used(policy, named.windows, None)
        is_short = 2 * (pinned.may_use - used) < now.may_use - used
        grows = (now.may_use > pinned.may_use) & is_short
        return bool((grows | (now.may_use < pinned.may_use) | (now.is_spent != pinned.is_spent)).any())
