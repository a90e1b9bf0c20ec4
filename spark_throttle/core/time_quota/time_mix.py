"""The price at which a shared scope's time is told in messages, by what its namespaces want and what theirs cost.

The messages that the scope's time is enough for depend on whose they are. So its time is divided, by weighted max-min,
among the demand of all flows, each at its own price, and the messages that this gives are counted (`message_prices`).
If that makes a message dearer than the scope's last ones were, the scope has as many messages, and no more: otherwise
dear rows would take the messages that cheap ones leave. Narrower scopes cut the demand first. What nobody wants is told
at the price of the last messages.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.lending.allocation import PLENTY, water_fill
from spark_throttle.core.lending.shard_parts import Claims
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.names.matching import domains_of, enforcing_scopes, weights_in
from spark_throttle.core.quota import MICRO, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.time_quota.time_accounts import TimeAccounts

_MESSAGES = Dimension.MESSAGES
_BITS = 10
"""Messages are counted in units of ``2**-10`` messages, and time in units of ``2**10`` ns."""

_MOST = 1 << 49


def priced_by_demand(
    accounts: TimeAccounts, claims: Claims, prices: MessagePrices, held: Int64s, policy: CompiledPolicy
) -> TimeAccounts:
    """Return the accounts of the shared scopes with the prices by which their time is told.

    Parameters
    ----------
    prices
        The prices of the claims' messages; scopes that they do not divide keep theirs.
    held
        Shape (scopes,): the messages that each scope's own limit lets through; `PLENTY` where it has none.
    policy
        The policy in force, with time quotas as limits on messages.
    """
    scopes, is_divided = len(accounts.time_ns), (prices.shared_ns > 0) & (accounts.balance_ns > 0)
    time = np.where(is_divided, np.clip(accounts.balance_ns >> _BITS, 1, _MOST), PLENTY)
    available = np.stack([np.where(held == PLENTY, PLENTY, np.minimum(held, _MOST >> _BITS) << _BITS), time], axis=1)
    wanted = np.minimum(claims.demand[:, _MESSAGES], _MOST >> _BITS) << _BITS
    domain = domains_of(enforcing_scopes(claims.shared_scope, policy))
    observes, given = policy.shared.on_excess == OnExcess.OBSERVE, np.zeros((scopes, 2), dtype=np.int64)
    for scope in claims.shared_scope.T:
        at = np.flatnonzero(scope >= 0)
        here = scope[at]
        each_ns = np.where(prices.own_ns[at] > 0, prices.own_ns[at], prices.shared_ns[here]) * is_divided[here]
        taken = np.minimum(proportional(wanted[at], each_ns, np.full_like(each_ns, 1 << 2 * _BITS)), _MOST)
        weight = weights_in(here, claims.weight[at], domain[at], policy)
        granted = water_fill(np.stack([wanted[at], taken], axis=1), weight, here, available)
        given += sums(here, granted, scopes)
        wanted[at] = np.where(observes[here], wanted[at], granted[:, 0])
    left_ns = np.maximum(accounts.balance_ns - (given[:, 1] << _BITS), 0)
    messages_micro = proportional(given[:, 0], np.full(scopes, MICRO), np.full(scopes, 1 << _BITS), most_bits=59)
    messages_micro += proportional(left_ns, accounts.messages_micro, accounts.time_ns, most_bits=59)
    told = replace(accounts, time_ns=accounts.balance_ns, messages_micro=messages_micro)
    is_dearer = is_divided & told.has_price & (told.price_ns > accounts.price_ns)
    return replace(
        accounts,
        time_ns=np.where(is_dearer, told.time_ns, accounts.time_ns),
        messages_micro=np.where(is_dearer, told.messages_micro, accounts.messages_micro),
    )
