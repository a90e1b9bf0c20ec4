"""What a shared scope's time is enough for, by what its namespaces want and what their messages cost.

The messages that the scope's time is enough for depend on whose they are. So its time is divided, by weighted max-min,
among the demand of all flows, each at its own price, and the messages that this gives are counted (`message_prices`).
Narrower scopes cut the demand first. What nobody wants is told at the price of the last messages.

If that makes a message dearer than the scope's last ones were, the scope has as many messages, and no more: otherwise
dear rows would take the messages that cheap ones leave. If it makes a message cheaper, the scope still has the messages
that wait and that its time is enough for: they are there, whatever the last ones cost. So one dear message holds up
cheap ones until its debt is paid, and not until the scope's price has fallen. Messages that are only expected do not
count, as dear ones may come in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.limits.message_limits import MessageBuckets
from spark_throttle.core.names.matching import domains_of, enforcing_scopes, positions_in, weights_in
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.shares.allocation import PLENTY, water_fill
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.usage import UsageReport

_MESSAGES = Dimension.MESSAGES
_BITS = 10
"""Messages are counted in units of ``2**-10`` messages, and time in units of ``2**10`` ns."""

_MOST = 1 << 49


@dataclass(frozen=True, slots=True, eq=False)
class TimeMix:
    """What the time of the shared scopes is enough for; arrays run over the scopes."""

    accounts: TimeAccounts
    """What the scopes have left, with the price of their last messages."""

    is_divided: Bools
    """Whether the scope has time that is divided."""

    given: Int64s
    """Shape (scopes, 2): the messages, in 1024ths, and the time, in 1024 ns, that the scope gives of what is wanted."""

    given_waiting: Int64s
    """The messages, in 1024ths, that it gives of those that wait, if nothing else is wanted."""

    is_short: Bools
    """Whether the scope gives less than is wanted of it, or is in debt."""

    @classmethod
    def of(
        cls,
        accounts: TimeAccounts,
        report: UsageReport,
        prices: NamespacePrices,
        shared_ns: Int64s,
        known: pa.StringArray,
        held: Int64s,
        policy: CompiledPolicy,
    ) -> TimeMix | None:
        """Return what the time is enough for, given the last report; `None` if it has no flow.

        Parameters
        ----------
        prices
            The prices of the messages of the namespaces `known`.
        shared_ns
            Shape (scopes,): the price of every scope that is divided by time; 0 for the others, which keep theirs.
        held
            Shape (scopes,): the messages that each scope's own limit lets through; `PLENTY` where it has none.
        policy
            The policy, with the job's shares as its rates if it has any.
        """
        if not len(report.weight):
            return None
        at = positions_in(known, report.names, len(known))
        own_ns = prices.with_unknown(1).price_ns.take(at, axis=0)
        waiting, demand = report.waiting[:, _MESSAGES], report.demand[:, _MESSAGES]
        is_divided = (shared_ns > 0) & (accounts.balance_ns > 0)
        scope = report.shared_scopes(len(policy.tenant_names))
        each_ns = np.where(own_ns > 0, own_ns + prices.held_up_ns[scope], shared_ns[scope]) * is_divided[scope]
        time_ns = np.where(is_divided, accounts.balance_ns, 0)
        (given, is_short), (of_waiting, _) = (
            _given(scope, report.weight, messages, each_ns, time_ns, held, policy)
            for messages in (demand, np.minimum(demand, waiting))
        )
        is_in_debt = (shared_ns > 0) & ~is_divided
        return cls(accounts, is_divided, given, of_waiting[:, 0], is_short | is_in_debt)

    def told(self) -> TimeAccounts:
        """Return the accounts, with the price of what is wanted where that is higher than that of the last messages."""
        accounts = self.accounts
        left_ns = np.maximum(accounts.balance_ns - (self.given[:, 1] << _BITS), 0)
        messages = self.given[:, 0]
        messages_micro = proportional(
            messages, np.full_like(messages, MICRO), np.full_like(messages, 1 << _BITS), most_bits=59
        )
        messages_micro += proportional(left_ns, accounts.messages_micro, accounts.time_ns, most_bits=59)
        told = replace(accounts, time_ns=accounts.balance_ns, messages_micro=messages_micro)
        is_dearer = self.is_divided & told.has_price & (told.price_ns > accounts.price_ns)
        return replace(
            accounts,
            time_ns=np.where(is_dearer, told.time_ns, accounts.time_ns),
            messages_micro=np.where(is_dearer, told.messages_micro, accounts.messages_micro),
        )

    def with_waiting(self, time: MessageBuckets) -> MessageBuckets:
        """Return what the scopes' time lets through, with at least the messages that wait and that it is enough for.

        Nothing is earned beyond them until the next epoch.
        """
        messages = np.where(self.is_divided, np.minimum(self.given_waiting, self.given[:, 0]) >> _BITS, 0)
        least_micro = np.maximum(messages - 1, 0) * MICRO  # a balance of 0 lets one pass
        has_more = self.is_divided & (least_micro > time.balance_micro)
        return replace(
            time,
            balance_micro=np.where(has_more, least_micro, time.balance_micro),
            burst_micro=np.maximum(time.burst_micro, least_micro),
        )


def _given(
    shared_scope: Int64s,
    weight: Int64s,
    messages: Int64s,
    each_ns: Int64s,
    time_ns: Int64s,
    held: Int64s,
    policy: CompiledPolicy,
) -> tuple[Int64s, Bools]:
    """Return the messages and the time that every scope gives of `messages` of each flow, shape (scopes, 2).

    Returned too is whether each scope gives less than is wanted of it.

    Parameters
    ----------
    each_ns
        Shape (flows, 3): what a message of each flow costs in its scopes; 0 in those that are not divided by time.
    time_ns
        Shape (scopes,): the time that is divided; 0 where the scope is not divided by time.
    """
    scopes, is_divided = len(time_ns), time_ns > 0
    time = np.where(is_divided, np.clip(time_ns >> _BITS, 1, _MOST), PLENTY)
    available = np.stack([np.where(held == PLENTY, PLENTY, np.minimum(held, _MOST >> _BITS) << _BITS), time], axis=1)
    wanted = np.minimum(messages, _MOST >> _BITS) << _BITS
    domain = domains_of(enforcing_scopes(shared_scope, policy))
    observes, given = policy.shared.on_excess == OnExcess.OBSERVE, np.zeros((scopes, 2), dtype=np.int64)
    is_short = np.zeros(scopes, dtype=np.bool_)
    for scope, in_scope_ns in zip(shared_scope.T, each_ns.T, strict=True):
        at = np.flatnonzero(scope >= 0)
        here = scope[at]
        taken = proportional(wanted[at], in_scope_ns[at], np.full_like(here, 1 << 2 * _BITS))
        taken = np.minimum(taken, _MOST)
        in_scope = weights_in(here, weight[at], domain[at], policy)
        granted = water_fill(np.stack([wanted[at], taken], axis=1), in_scope, here, available)
        given += sums(here, granted, scopes)
        is_short[here[granted[:, 0] < wanted[at]]] = True
        wanted[at] = np.where(observes[here], wanted[at], granted[:, 0])
    return given, is_short
