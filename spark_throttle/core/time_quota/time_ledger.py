"""The ledger of processing time: what the scopes of a policy have left of their time quotas, from epoch to epoch.

Every epoch of a policy that has such a quota holds the ledger. Before the next one is made, the batches since then are
charged to it, each at its own time: the time that functions used for the rows of a namespace is charged to the
namespace, its tenant, its group and the job. What is left is told in messages, which the epoch pins
(`message_limits`).

The time of exempt namespaces, and that which belongs to no namespace, is counted and charged to no scope. A namespace
is entered when it is charged first, if it has a quota of its own, or if a shared scope has one whose time is divided
by what the namespaces' messages cost (`message_prices`). It is struck out when it has been full and idle for
`REMEMBERED_MS`, or while `MOST_REMEMBERED` others were active later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.limits.message_limits import MessageBuckets, enforced_time
from spark_throttle.core.names.matching import match, positions_in
from spark_throttle.core.policy_change import carried_balances, former_scopes
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Int64s, Limits, TimeQuotas
from spark_throttle.core.time_charges import TimeCharges, sums_of_time
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.usage import UsageReport, admitted_messages

REMEMBERED_MS = 600_000
"""How long the price of an idle namespace is remembered."""

MOST_REMEMBERED = 20_000
"""How many namespaces are remembered, beside those of the last batch and those that owe something: every epoch holds
them."""


@dataclass(frozen=True, slots=True, eq=False)
class UsedTime:
    """The processing time that an epoch settled."""

    shared_ns: Int64s
    """Shape (scopes,): the time charged to every shared scope."""

    own_ns: Int64s
    """The time charged to every namespace of the ledger."""

    exempt_ns: int
    """The time of exempt namespaces, which is charged to no scope."""

    unattributed_ns: int
    """The time that belongs to no namespace."""

    interval_ms: int
    """The time since the previous epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeLease:
    """How long a job has earned of the quotas that it shares with other jobs."""

    is_leased: Bools
    """Shape (scopes,): whether jobs share the scope's time."""

    until_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class TimeLedger:
    """The accounts of all scopes with a time quota, at one time of the control plane's paying clock."""

    as_of_ms: int
    shared: TimeAccounts
    """The accounts of all shared scopes; those without a quota have a price alone."""

    names: pa.StringArray
    """The namespaces that were charged and have a quota of their own, or in a shared scope; in the order of their
    bytes."""

    own: TimeAccounts
    """Their accounts; those without a quota of their own hold nothing back."""

    prices: NamespacePrices
    """The prices of their messages, by which shared scopes are divided."""

    active_ms: Int64s
    """When each namespace was last charged, or sent a message."""

    used: UsedTime

    @classmethod
    def opened(cls, policy: CompiledPolicy, *, now_ms: int) -> TimeLedger:
        """Return the ledger of a policy that gets its first time quota: all buckets are full, and no price is known."""
        nothing = np.zeros(0, dtype=np.int64)
        own = TimeAccounts(nothing, nothing, nothing)
        used = UsedTime(np.zeros(len(policy.shared), dtype=np.int64), nothing, 0, 0, 0)
        shared = TimeAccounts.opened(quotas_of(policy.shared))
        prices = NamespacePrices.unknown(0, scopes=len(policy.shared))
        return cls(now_ms, shared, pa.array([], pa.string()), own, prices, nothing, used)

    def begun(self) -> TimeLedger:
        """Return the ledger with nothing used yet, from which a next epoch settles."""
        none = np.zeros_like
        used = UsedTime(none(self.used.shared_ns), none(self.used.own_ns), 0, 0, 0)
        return replace(self, used=used)

    def refilled(self, policy: CompiledPolicy, *, now_ms: int, lease: TimeLease | None = None) -> TimeLedger:
        """Return the ledger at `now_ms`; a clock that went back pays nothing.

        Parameters
        ----------
        policy
            The policy, with the job's shares as its rates if it has any.
        lease
            Which scopes earn for less time; `None` if all earn until `now_ms`.
        """
        elapsed_ms = max(0, now_ms - self.as_of_ms)
        own, quotas = quotas_of(self.own_limits(policy)), quotas_of(policy.shared)
        shared = self.shared.refilled(quotas, elapsed_ms)
        if lease is not None:
            leased = self.shared.refilled(quotas, max(0, min(lease.until_ms, now_ms) - self.as_of_ms))
            shared = replace(shared, balance_ns=np.where(lease.is_leased, leased.balance_ns, shared.balance_ns))
        return replace(
            self,
            as_of_ms=now_ms,
            shared=shared,
            own=self.own.refilled(own, elapsed_ms),
            used=replace(self.used, interval_ms=self.used.interval_ms + elapsed_ms),
        )

    def settled(
        self,
        charges: TimeCharges,
        reports: list[UsageReport],
        policy: CompiledPolicy,
        *,
        at_ms: int,
        passed_ms: int = 0,
    ) -> TimeLedger:
        """Return the ledger after a batch at `at_ms` was charged; the time before is paid first.

        Parameters
        ----------
        reports
            The batch's reports, which say how many messages the time was used for.
        passed_ms
            The time between the batch before and that of this ledger.
        """
        passed_ms += max(0, at_ms - self.as_of_ms)
        paid = self.refilled(policy, now_ms=max(at_ms, self.as_of_ms)).entered(charges, policy)
        admitted, messages = admitted_messages(reports)
        own_ns, own_messages = paid.of_own(charges.names, charges.time_ns), paid.of_own(admitted, messages)
        shared_ns, exempt_ns = time_by_scope(charges.names, charges.time_ns, policy)
        shared_messages, _ = time_by_scope(admitted, messages, policy)
        quotas, own_quotas = quotas_of(policy.shared), quotas_of(paid.own_limits(policy))
        windows_ms = _windows_ms(paid.names, policy)
        # An account without a quota holds nothing back: it is a price, which falls as slowly as in any scope.
        unlimited_ms = np.where(own_quotas.is_limited, 0, by_row(np.maximum, windows_ms))
        prices = paid.prices.charged(
            paid.of_own(charges.names, charges.specific_ns), own_messages, windows_ms=windows_ms, passed_ms=passed_ms
        )
        common_ns = charges.time_ns - charges.specific_ns
        used = paid.used
        return replace(
            paid,
            shared=paid.shared.charged(quotas, shared_ns, shared_messages, passed_ms=passed_ms),
            own=paid.own.charged(own_quotas, own_ns, own_messages, passed_ms=passed_ms, least_window_ms=unlimited_ms),
            prices=prices.with_common(
                int(sums_of_time(np.zeros_like(common_ns), common_ns, 1)[0]),
                int(messages.sum()),
                passed_ms=passed_ms,
                windows_ms=quotas.window_ms,
            ),
            active_ms=np.where((own_ns > 0) | (own_messages > 0), paid.as_of_ms, paid.active_ms),
            used=replace(
                used,
                shared_ns=used.shared_ns + shared_ns,
                own_ns=used.own_ns + own_ns,
                exempt_ns=used.exempt_ns + exempt_ns,
                unattributed_ns=used.unattributed_ns + charges.unattributed_ns,
            ),
        )

    def carried(self, before: CompiledPolicy, after: CompiledPolicy) -> TimeLedger:
        """Return the ledger, which is paid up under `before`, in the scopes of `after`.

        A scope that keeps a quota keeps its balance, cut to the new window, and its price. One that gets its first
        quota begins full.
        """
        former = former_scopes(before, after)
        begins, kept = TimeAccounts.opened(quotas_of(after.shared)), np.flatnonzero(former >= 0)
        at = former[kept]
        carried = _carried(self.shared.take(at), before.shared.take(at), after.shared.take(kept))
        shared = TimeAccounts(begins.balance_ns.copy(), begins.time_ns.copy(), begins.messages_micro.copy())
        for name in TimeAccounts.__slots__:
            getattr(shared, name)[kept] = getattr(carried, name)
        shared_ns = np.where(former >= 0, self.used.shared_ns[former], 0)
        old, new = (self.own_limits(policy) for policy in (before, after))
        own = replace(self, own=_carried(self.own, old, new)).taken(np.flatnonzero(_is_entered(self.names, after)))
        prices, used = own.prices.in_scopes(former), replace(own.used, shared_ns=shared_ns)
        return replace(own, shared=shared, prices=prices, used=used)

    def without_idle(self, policy: CompiledPolicy) -> TimeLedger:
        """Return the ledger without the namespaces that are full, and have long been idle or longer than many others.

        Those that were active last at one time stay or go together.
        """
        quotas = quotas_of(self.own_limits(policy))
        is_full = self.own.balance_ns >= TimeAccounts.opened(quotas).balance_ns
        is_idle = self.as_of_ms - self.active_ms > REMEMBERED_MS
        if len(self.names) > MOST_REMEMBERED:
            is_idle |= self.active_ms < np.partition(self.active_ms, -MOST_REMEMBERED)[-MOST_REMEMBERED]
        return self.taken(np.flatnonzero(~(is_full & is_idle))) if (is_full & is_idle).any() else self

    def taken(self, at: Int64s) -> TimeLedger:
        """Return the ledger with the namespaces at `at` alone."""
        used = replace(self.used, own_ns=self.used.own_ns[at])
        return replace(
            self, names=self.names.take(pa.array(at)), own=self.own.take(at), prices=self.prices.take(at),
            active_ms=self.active_ms[at], used=used,
        )  # fmt: skip

    def shared_as_messages(self, policy: CompiledPolicy) -> MessageBuckets:
        """Return what the time of the shared scopes lets through, in messages."""
        return self.shared.as_messages(_enforced(policy.shared))

    def own_as_messages(self, policy: CompiledPolicy) -> MessageBuckets:
        """Return what the namespaces' own time lets through, in messages."""
        return self.own.as_messages(_enforced(self.own_limits(policy)))

    def own_limits(self, policy: CompiledPolicy) -> Limits:
        """Return the limits of the ledger's namespaces under a policy."""
        return policy.namespace_limits.take(match(self.names, policy).rule)

    def entered(self, charges: TimeCharges, policy: CompiledPolicy) -> TimeLedger:
        """Return the ledger with those of the charged namespaces that have a quota, their own or a shared scope's."""
        is_new = pc.invert(pc.is_in(charges.names, value_set=self.names)).to_numpy(zero_copy_only=False)
        names = charges.names.filter(pa.array(is_new & (charges.time_ns > 0)))
        names = names.filter(pa.array(_is_entered(names, policy)))
        if not len(names):
            return self
        every, zeros = pa.concat_arrays([self.names, names]), np.zeros(len(names), dtype=np.int64)
        begins = TimeAccounts.opened(quotas_of(policy.namespace_limits.take(match(names, policy).rule)))
        entered = replace(
            self,
            names=every,
            own=self.own.followed_by(begins),
            prices=self.prices.with_unknown(len(names)),
            active_ms=np.concatenate([self.active_ms, zeros]),
            used=replace(self.used, own_ns=np.concatenate([self.used.own_ns, zeros])),
        )
        return entered.taken(pc.sort_indices(every).to_numpy().astype(np.int64))

    def of_own(self, names: pa.StringArray, amount: Int64s) -> Int64s:
        """Return the sums of times, or of messages, over the names that stand in the ledger."""
        at = positions_in(self.names, names, len(self.names))
        return sums_of_time(at, amount, len(self.names) + 1)[:-1]


def quotas_of(limits: Limits) -> TimeQuotas:
    """Return the time quotas of scopes, whether they are enforced or observed."""
    if limits.time is not None:
        return limits.time
    return TimeQuotas(np.full(len(limits), UNLIMITED, dtype=np.int64), np.zeros(len(limits), dtype=np.int64))


def _windows_ms(names: pa.StringArray, policy: CompiledPolicy) -> Int64s:
    """Return the windows of the shared scopes that namespaces pass, shape (n, 3).

    A namespace's price in a scope falls no faster than the scope's: else dear messages that follow cheap ones would be
    told at a price that is too low, as soon as the namespace's own had fallen. At a level without a quota there is
    nothing to tell; the longest of the others stands there.
    """
    windows_ms = np.append(quotas_of(policy.shared).window_ms, 0)[match(names, policy).shared_scope]
    return np.where(windows_ms > 0, windows_ms, by_row(np.maximum, windows_ms)[:, None])


def time_by_scope(names: pa.StringArray, amount: Int64s, policy: CompiledPolicy) -> tuple[Int64s, int]:
    """Return the sums of namespaces' amounts by shared scope, shape (scopes,), and the sum of the exempt ones'."""
    matches = match(names, policy)
    total = np.zeros(len(policy.shared) + 1, dtype=np.int64)  # with one more position for no scope
    for scope in matches.shared_scope.T:
        total += sums_of_time(scope % len(total), amount, len(total))
    is_exempt = matches.is_exempt.astype(np.int64)
    return total[:-1], int(sums_of_time(is_exempt, amount, 2)[1])


def _is_entered(names: pa.StringArray, policy: CompiledPolicy) -> Bools:
    """Return which namespaces have a quota of their own, or pass a shared scope with one that holds rows back."""
    matches, is_timed = match(names, policy), np.append(enforced_time(policy.shared) != UNLIMITED, False)
    is_under = by_row(np.logical_or, is_timed[matches.shared_scope])
    return is_under | quotas_of(policy.namespace_limits.take(matches.rule)).is_limited


def _enforced(limits: Limits) -> TimeQuotas:
    rate_ns_per_ms = enforced_time(limits)
    return TimeQuotas(rate_ns_per_ms, np.where(rate_ns_per_ms == UNLIMITED, 0, quotas_of(limits).burst_ns))


def _carried(accounts: TimeAccounts, before: Limits, after: Limits) -> TimeAccounts:
    """Return accounts whose limits change; a debt stays as it is."""
    old, new = (_as_limits(limits) for limits in (before, after))
    return replace(accounts, balance_ns=carried_balances(accounts.balance_ns[:, None], old, new)[:, 0])


def _as_limits(limits: Limits) -> Limits:
    """Return time quotas in the form of limits with one dimension."""
    time = quotas_of(limits)
    return Limits(time.rate_ns_per_ms[:, None], time.burst_ns[:, None], limits.on_excess, limits.weight)
