"""The buckets of the scopes that many namespaces share: the job, the tenants and the resource groups.

They are part of the decider's state, and it alone refills and debits them. Scopes are indexed as `quota` says.

A job that shares its quotas with other jobs earns at its *share* of a scope's rate, and the same part of the scope's
burst goes with it. So the buckets of all jobs together hold and earn what the scope's one bucket would, as long as the
shares sum to no more than the quota. A bucket whose share grows fills up from its present balance; a bucket whose share
shrinks is cut to its smaller burst. No bucket gains tokens when shares change. A share of 0 admits nothing, and keeps a
debt.

What is guaranteed of these buckets (`fair.guarantees`) has its balances beside them. Jobs that share quotas divide what
is guaranteed, and each guarantees its part, as far as it has that of the quotas on the way: what it guarantees below a
scope sums to no more than its share. Of processing time it guarantees the least part that it has of these quotas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import WHOLE, quotient, times
from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.limits.budgets import BudgetClaims, Budgets, Spent
from spark_throttle.core.limits.token_bucket import debit, full, in_micro, refill, throttle_time_ms
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Int64s, Level

_SHARE_BITS = 30


def rates_of_shares(share_micro_per_ms: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the rates that a job may use with its shares, shape (scopes, 4): never more than the quotas.

    Shares follow a quota that was lowered only when the jobs have divided it anew.
    """
    shared = policy.shared
    return np.where(shared.is_limited, np.clip(share_micro_per_ms, 0, shared.rate_micro_per_ms), UNLIMITED)


def has_no_share(share_micro_per_ms: Int64s, policy: CompiledPolicy) -> Bools:
    """Return where a job may use nothing of a quota, though the quota is not 0; shape (scopes, 4)."""
    return (share_micro_per_ms == 0) & (policy.shared.rate_micro_per_ms > 0)


def under_share(policy: CompiledPolicy, share_micro_per_ms: Int64s | None) -> CompiledPolicy:
    """Return a policy whose shared scopes have a job's shares as their rates, and their bursts in proportion.

    Parameters
    ----------
    share_micro_per_ms
        Shape (scopes, 4), `UNLIMITED` where the scope has no limit; `None` leaves the policy unchanged.
    """
    if share_micro_per_ms is None:
        return policy
    shared = policy.shared
    rate = rates_of_shares(share_micro_per_ms, policy)
    burst = _in_proportion(shared.burst_micro, rate, shared.rate_micro_per_ms)
    return replace(policy, shared=replace(shared, rate_micro_per_ms=rate, burst_micro=burst))


def guaranteed_rates(
    policy: CompiledPolicy, share_micro_per_ms: Int64s | None, parts_micro_per_ms: Int64s | None = None
) -> Int64s:
    """Return the rates that a job guarantees with its shares, shape (guarantees, 4); `UNLIMITED` where none is said.

    Parameters
    ----------
    parts_micro_per_ms
        Shape (guarantees, 4): what it has of what is guaranteed, `UNLIMITED` where that is not divided; `None` if
        nothing is.
    """
    assert policy.guarantees is not None  # noqa: S101 - asked of a policy that has any
    rate = policy.guarantees.rate_micro_per_ms
    if share_micro_per_ms is None:
        return rate
    shared = policy.shared
    quota = np.where(shared.is_limited, shared.rate_micro_per_ms, 0)
    part = np.where(
        quota > 0, quotient(np.minimum(np.maximum(share_micro_per_ms, 0), quota), quota, _SHARE_BITS), WHOLE
    )
    part = np.append(part, np.full((1, part.shape[1]), WHOLE), axis=0)[policy.guarantees.way].min(axis=1)
    scaled = np.where(rate > 0, times(np.maximum(rate, 0), part), rate)
    if parts_micro_per_ms is None:
        return scaled
    wanted = np.where((rate > 0) & (parts_micro_per_ms >= 0), np.minimum(rate, parts_micro_per_ms), scaled)
    return np.where(parts_micro_per_ms >= 0, _within_shares(policy, share_micro_per_ms, wanted), scaled)


def _within_shares(policy: CompiledPolicy, share_micro_per_ms: Int64s, wanted: Int64s) -> Int64s:
    """Return guaranteed rates, scaled down where those below a scope sum to more than a job's share of it."""
    assert policy.guarantees is not None  # noqa: S101 - asked of a policy that has any
    level, way = policy.guarantees.level, policy.guarantees.way
    of_tenants = way[level == Level.TENANT]
    is_covered = (level == Level.NAMESPACE) & np.isin(
        way[:, 0] * len(policy.shared) + way[:, 1], of_tenants[:, 0] * len(policy.shared) + of_tenants[:, 1]
    )
    found, shared = wanted, policy.shared
    for above, is_below in ((1, (level < Level.RESOURCE_GROUP) & ~is_covered), (0, level == Level.NAMESPACE)):
        total = sums(way[is_below, above] + 1, np.maximum(wanted[is_below], 0), len(shared) + 1)[1:]
        has = np.where(shared.is_limited, np.maximum(share_micro_per_ms, 0), total)
        part = np.where(total > has, quotient(np.minimum(has, total), np.maximum(total, 1), _SHARE_BITS), WHOLE)
        part = np.append(part, np.full((1, part.shape[1]), WHOLE), axis=0)[way[:, above]]
        part[level >= Level.TENANT + above] = WHOLE
        found = np.minimum(found, times(np.maximum(wanted, 0), part))
    return np.where(wanted < 0, wanted, found)


def _in_proportion(burst: Int64s, share: Int64s, rate: Int64s) -> Int64s:
    """Return the part of each burst that `share` is of `rate`."""
    part = quotient(np.maximum(share, 0), np.maximum(rate, 0), _SHARE_BITS)
    return np.where(share == rate, burst, times(burst, part))


@dataclass(frozen=True, slots=True, eq=False)
class SharedBuckets:
    """The buckets of all shared scopes, at one paying time."""

    balance_micro: Int64s
    """Shape (scopes, 4), by `Dimension`: the tokens held, negative in debt; 0 where unlimited."""

    as_of_ms: int
    share_micro_per_ms: Int64s | None = None
    """Shape (scopes, 4): this job's shares of the rates, at which the buckets earn; `None` if it has the whole
    quotas."""

    guaranteed_micro: Int64s | None = None
    """Shape (guarantees, 4): the balances of what the policy guarantees; `None` before the first batch that it
    decides, and if it guarantees nothing."""

    spent: Spent | None = None
    """What was used of the scopes' budgets; `None` if no shared scope has any, or before the first batch."""

    claims: BudgetClaims | None = None
    """What this job may use of the budgets; `None` if it has them to itself."""

    parts_micro_per_ms: Int64s | None = None
    """What it has of what is guaranteed (`guaranteed_rates`)."""

    @classmethod
    def full(cls, policy: CompiledPolicy, share_micro_per_ms: Int64s | None = None, *, now_ms: int) -> SharedBuckets:
        """Return new buckets, which hold their burst."""
        shared = under_share(policy, share_micro_per_ms).shared
        return cls(full(shared.rate_micro_per_ms, shared.burst_micro), now_ms, share_micro_per_ms)

    def refilled(self, policy: CompiledPolicy, *, now_ms: int, earns_until_ms: Int64s | None = None) -> SharedBuckets:
        """Return these buckets at `now_ms`; a clock that went back pays nothing.

        Parameters
        ----------
        earns_until_ms
            Shape (scopes,): the paying time up to which each scope earns, where that is before `now_ms`.

        Examples
        --------
        A group of 10 messages per second and a burst of 5 seconds, 2 s after it was emptied, and with a share of half:

        >>> from spark_throttle.policy.compile import compile_policy
        >>> from spark_throttle.policy.model import PolicyDocument
        >>> gold = {"publish": {"messages_per_second": 10, "burst_seconds": 5}}
        >>> policy = compile_policy(PolicyDocument.model_validate({"resource_groups": {"gold": gold}}), "publish")
        >>> spent = SharedBuckets(np.zeros((2, 4), dtype=np.int64), 0)
        >>> (spent.refilled(policy, now_ms=2_000).balance_micro[1] / 1_000_000).tolist()
        [20.0, 0.0, 0.0, 0.0]
        >>> half = replace(spent, share_micro_per_ms=np.array([[-1, -1, -1, -1], [5_000, -1, -1, -1]]))
        >>> (half.refilled(policy, now_ms=2_000).balance_micro[1] / 1_000_000).tolist()
        [10.0, 0.0, 0.0, 0.0]
        """
        elapsed_ms = max(0, now_ms - self.as_of_ms)
        shared = under_share(policy, self.share_micro_per_ms).shared
        rate, burst = shared.rate_micro_per_ms, shared.burst_micro
        filled = refill(self.balance_micro, rate, burst, elapsed_ms)
        if earns_until_ms is not None:
            for end_ms in np.unique(earns_until_ms[earns_until_ms < now_ms]).tolist():
                early = refill(self.balance_micro, rate, burst, max(0, end_ms - self.as_of_ms))
                filled = np.where((earns_until_ms == end_ms)[:, None], early, filled)
        if self.share_micro_per_ms is not None:
            is_shut = has_no_share(self.share_micro_per_ms, policy)
            filled = np.where(is_shut, np.minimum(self.balance_micro, -1), filled)
        spent, guaranteed = self.spent, self._guaranteed(policy, elapsed_ms)
        if spent is None and shared.budgets:
            spent = Spent.nothing(len(shared), len(shared.budgets))
        return replace(self, balance_micro=filled, as_of_ms=now_ms, guaranteed_micro=guaranteed, spent=spent)

    def _guaranteed(self, policy: CompiledPolicy, elapsed_ms: int) -> Int64s | None:
        """Return the balances of the guarantees so much later; each is cut to what it keeps for rows that wait."""
        guarantees, held = policy.guarantees, self.guaranteed_micro
        if guarantees is None:
            return None
        if held is None:
            held = np.zeros_like(guarantees.rate_micro_per_ms)
        rate = np.maximum(guaranteed_rates(policy, self.share_micro_per_ms, self.parts_micro_per_ms), 0)
        earned = rate * np.minimum(elapsed_ms, guarantees.earning_ms)
        return np.minimum(held + earned, rate * guarantees.burst_ms[:, None])

    def under(
        self, policy: CompiledPolicy, share_micro_per_ms: Int64s | None, claims: BudgetClaims | None = None,
        parts_micro_per_ms: Int64s | None = None,
    ) -> SharedBuckets:  # fmt: skip
        """Return these buckets with what a new epoch pins; a balance is cut to its new burst."""
        pinned = replace(
            self, share_micro_per_ms=share_micro_per_ms, claims=claims, parts_micro_per_ms=parts_micro_per_ms
        )
        return pinned.refilled(policy, now_ms=self.as_of_ms)

    def debited(self, taken: Int64s, policy: CompiledPolicy, floor_micro: Int64s | int) -> SharedBuckets:
        """Return these buckets less the tokens that were `taken`, shape (scopes, 4), which count in budgets too."""
        left = debit(self.balance_micro, in_micro(taken), floor_micro)
        budgets, spent = Budgets.of(policy.shared, self.claims), self.spent
        if budgets is not None and spent is not None:
            spent = spent.charged(taken, budgets)
        return replace(
            self, balance_micro=np.where(policy.shared.is_limited, left, self.balance_micro), spent=spent
        )  # fmt: skip

    def lent(self) -> SharedBuckets:
        """Return these buckets after a batch that had enough for all: of what is guaranteed, debts alone are left."""
        if self.guaranteed_micro is None:
            return self
        return replace(self, guaranteed_micro=np.minimum(self.guaranteed_micro, 0))

    def wait_ms(self, policy: CompiledPolicy) -> Int64s:
        """Return how long each bucket owes anything, shape (scopes, 4): at the quota if a share is 0."""
        rate = under_share(policy, self.share_micro_per_ms).shared.rate_micro_per_ms
        return throttle_time_ms(self.balance_micro, np.where(rate == 0, policy.shared.rate_micro_per_ms, rate))

    def expected_micro_per_ms(self, policy: CompiledPolicy) -> Int64s:
        """Return the rates at which the scopes of `policy` earn, shape (scopes, 4).

        In place of a share of 0 stands the quota: nobody knows how long that share lasts.
        """
        rate = under_share(policy, self.share_micro_per_ms).shared.rate_micro_per_ms
        return np.where(rate == 0, policy.shared.rate_micro_per_ms, rate)

    def is_unleased(self, policy: CompiledPolicy) -> Bools:
        """Return which shared scopes this job may use nothing of, though there is a quota or a budget, shape (n,).

        The job waits for a lease there: what it offers is not beyond the quota.
        """
        found = np.zeros(len(policy.shared), dtype=np.bool_)
        if self.share_micro_per_ms is not None:
            found |= by_row(np.logical_or, has_no_share(self.share_micro_per_ms, policy))
        budgets, claims = Budgets.of(policy.shared), self.claims
        if budgets is not None and claims is not None and self.spent is not None:
            used = self.spent.used
            found |= by_row(np.logical_or, (used >= claims.may_use) & (used < budgets.tokens) & ~claims.is_spent)
        return found
