"""Quotas that several jobs share, as the control plane of one of them sees them: rates by scope, for its epochs.

An epoch pins the rates, and ends when their lease lapses. Between an epoch and its batch nothing looks at the lease: a
process that is stopped there for so long spends late what its share had saved, at most one burst. Times are paying time
(`clock`), which advances with the steady clock that measures leases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.control.demand import DemandMeter
from spark_throttle.control.shared_budgets import NamedWindows, SharedBudgets
from spark_throttle.core.limits.budgets import BudgetClaims
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s
from spark_throttle.core.shared_buckets import has_no_share
from spark_throttle.core.usage import ReportHead, UsageReport
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.lease_keeper import LeaseKeeper
from spark_throttle.sharing.peers import Share
from spark_throttle.sharing.report import moved

_NOTABLE_PART = 10
"""A share that has grown by more than the quota divided by this makes an epoch due, even if nothing waits for it."""

_SHUT_MICRO = 1
"""What a bucket without a share lacks, though it owes nothing."""

_DESTINATIONS_ARE_NOT_SHARED = (
    "the policy has a resource group with a destination, whose rate follows what this job alone is told, and this job "
    "shares its quotas with others: leave out `destination`, or the exchange"
)


@dataclass(frozen=True, slots=True, eq=False)
class PinnedShares:
    """What an epoch pins of the quotas that jobs share."""

    rates: Int64s
    """Shape (scopes, 3), as `SharedQuotas.rates` returns them."""

    claims: BudgetClaims | None = None
    parts: Int64s | None = None
    """What the job has of what is guaranteed (`shared_buckets.guaranteed_rates`)."""


class SharedQuotas:
    """The link between the exchange, which learns what the job wants, and the job's epochs, which pin what it may use.

    Parameters
    ----------
    keeper
        The keeper of the job's lease, whose thread may be running.
    """

    def __init__(self, keeper: LeaseKeeper, direction: Direction) -> None:
        settings = keeper.settings
        self._keeper = keeper
        self._patience_ms = settings.interval_ms * settings.report_every
        self._meter = DemandMeter(direction, settings.interval_ms, self._patience_ms)
        self._budgets = SharedBudgets(keeper.member, direction, settings.hold_ms)
        self._measured_ms = -1
        self._is_new = True
        self._pinned: tuple[str, int, int] | None = None
        self._pinning: tuple[Share, int, int] | None = None

    def add(self, report: UsageReport, *, now_ms: int) -> None:
        """Take in the report of a batch."""
        self._meter.add(report, now_ms=now_ms)
        self._budgets.add(report.revision, report.budgets)
        self._is_new = True

    def begin_after(self, before: BudgetClaims | None) -> None:
        """Note what the last epoch pinned of budgets that an earlier run made."""
        self._budgets.begin_after(before)

    def rates(self, policy: CompiledPolicy, named: NamedWindows | None = None, *, now_ms: int) -> Int64s:
        """Return the job's present rate in each scope; the whole quota where it is not shared.

        Parameters
        ----------
        named
            The windows of budgets in force; `None` if the policy has no budgets.

        Returns
        -------
        Int64s
            Shape (scopes, 4): messages, bytes, units and processing time; `UNLIMITED` where there is no limit.
        """
        if self._is_new or now_ms - self._measured_ms >= self._keeper.settings.interval_ms:
            self._measure(policy, named, now_ms=now_ms)
        return self._by_scope(policy, self._keeper.share())

    def _measure(
        self, policy: CompiledPolicy, named: NamedWindows | None, lost: BudgetClaims | None = None, *, now_ms: int
    ) -> None:
        measured = self._meter.measure(policy, self.parts(policy), now_ms=now_ms)
        if named is not None:
            measured = measured.joined(self._budgets.measure(policy, named, self._meter.wanted, lost))
        self._keeper.measure(measured)
        self._measured_ms, self._is_new = now_ms, False

    def parts(self, policy: CompiledPolicy) -> Int64s | None:
        """Return what this job has of what the policy guarantees (`shared_buckets.guaranteed_rates`)."""
        return self._meter.guarantees(policy).parts(policy, self._keeper.share())

    def is_due(
        self, policy: CompiledPolicy, pinned: PinnedShares, named: NamedWindows | None = None, *, now_ms: int,
        is_waiting: bool,
    ) -> bool:  # fmt: skip
        """Return whether the shares differ so much from those that an epoch pins that another epoch is needed.

        Other jobs wait for a rate that shrinks. A rate that grows is needed by rows that wait or, if it grows by much,
        by rows that may come.
        """
        pairs = [(self.rates(policy, named, now_ms=now_ms), pinned.rates, policy.shared.rate_micro_per_ms)]
        parts = self.parts(policy)
        if parts is not None and policy.guarantees is not None:
            if pinned.parts is None:
                return True
            pairs.append((parts, pinned.parts, policy.guarantees.rate_micro_per_ms))
        if self.may_go_on or any((now < before).any() for now, before, _ in pairs):
            return True
        for now, before, quota in pairs:
            if (now - before > np.where(is_waiting, 0, np.maximum(quota // _NOTABLE_PART, 0))).any():
                return True
        if named is None:
            return False
        claims = self._budgets.claims(policy, named, self._keeper.share())
        return pinned.claims is None or self._budgets.is_due(policy, named, pinned.claims, claims)

    @property
    def may_go_on(self) -> bool:
        """Whether another run of this job took its place in the exchange, wrongly if this run owns the checkpoint."""
        return self._keeper.may_go_on

    def go_on(self) -> None:
        """Take the job's place in the exchange back.

        Only the owner of the checkpoint may do so: check the fence after reading `may_go_on`. A run takes over the
        checkpoint before others can see it. So if the other run is a later one, the fence is already its own.
        """
        self._keeper.go_on()

    def begin_epoch(
        self, policy: CompiledPolicy, named: NamedWindows | None = None, lost: BudgetClaims | None = None, *,
        now_ms: int,
    ) -> PinnedShares:  # fmt: skip
        """Return what to pin in an epoch; from now on the job counts as using it.

        Parameters
        ----------
        lost
            What the epoch before pinned, if its batch did not report.
        """
        self._measure(policy, named, lost, now_ms=now_ms)
        share, steady_ms = self._keeper.begin_pin()
        self._pinning = share, steady_ms, now_ms
        claims = None if named is None else self._budgets.claims(policy, named, share)
        return PinnedShares(self._by_scope(policy, share), claims, self._meter.guarantees(policy).parts(policy, share))

    def end_epoch(self, file: str) -> None:
        """Note that the epoch is written: its rates are now all that the job uses."""
        if self._pinning is not None:
            share, steady_ms, now_ms = self._pinning
            self._pinned = file, steady_ms, now_ms
            self._keeper.end_pin(share)

    def keep_until_repaid(self, policy: CompiledPolicy, balance: Int64s, share: Int64s, *, now_ms: int) -> None:
        """Keep the scopes that are in debt until the share that an epoch pins has repaid it.

        A scope that was given up earns nothing. Its debt would wait with the next message, however long that is away.
        So one that comes into debt afterwards, by costs that are known late, is taken up again as by a message.

        Parameters
        ----------
        balance, share
            Shape (scopes, 4): messages, bytes, units and processing time.
        """
        scopes = self._meter.scopes(policy)
        rate, debt_micro = scopes.taken(share), np.maximum(-scopes.taken(balance), 0)
        quota = scopes.taken(policy.shared.rate_micro_per_ms)
        is_given_up = (rate == 0) & (quota > 0) & (debt_micro > _SHUT_MICRO)
        rate = np.where(is_given_up, quota, rate)
        repaid_ms = np.where(rate > 0, -(-debt_micro // np.maximum(rate, 1)), 0)
        repaid_ms = (repaid_ms + np.where(is_given_up, self._patience_ms, 0)).max(axis=1)
        owes = repaid_ms > 0
        self._meter.keep(scopes.ids[owes], now_ms + repaid_ms[owes])

    def has_lapsed(self, file: str) -> bool:
        """Return whether the rates of an epoch were not leased all the time since; true for another process's epoch."""
        return self._pinned is None or self._pinned[0] != file or self._keeper.has_lapsed(self._pinned[1])

    def paid_until_ms(self, file: str, *, now_ms: int) -> int:
        """Return the paying time up to which an epoch's rates have been leased since it was written.

        Return 0 for an epoch of another process, which may since have pinned less and reported that to the other jobs.
        """
        if self._pinned is None or self._pinned[0] != file:
            return 0
        _, steady_ms, pinned_ms = self._pinned
        return min(now_ms, pinned_ms + self._keeper.paid_ms(steady_ms))

    def stop(self) -> None:
        """Stop visiting the exchange."""
        self._keeper.stop()

    def _by_scope(self, policy: CompiledPolicy, share: Share) -> Int64s:
        scopes = self._meter.scopes(policy)
        leased = moved(share.rate_micro_per_ms, share.ids, scopes.ids)  # nothing of a scope that is not leased
        quota = scopes.taken(whole := policy.shared.rate_micro_per_ms)
        return scopes.spread(np.where(quota == UNLIMITED, UNLIMITED, np.maximum(leased, 0)), whole)


def owes_without_share(policy: CompiledPolicy, last: ReportHead | None, share: Int64s) -> bool:
    """Return whether the last batch left a debt in a quota of which the job has no share, and so earns nothing."""
    if last is None or last.revision != policy.revision:
        return False
    return bool(((last.shared_micro < -_SHUT_MICRO) & has_no_share(share, policy)).any())


def why_not_shared(policy: CompiledPolicy) -> str | None:
    """Return why jobs that share their quotas cannot follow a policy; `None` if they can."""
    if policy.destinations is not None:
        return _DESTINATIONS_ARE_NOT_SHARED
    return None
