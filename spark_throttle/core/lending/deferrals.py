"""For how many rows a shard may defer the verdict, where a scope rejects what exceeds its quota (`batch.deferral`).

Tokens are lent by what was wanted in the last batch, so a row may find none in its shard although its scope would let
it pass. The next epoch can lend what the row needs, but the shard does not know how much that will be. It is told:

- *No quota rejected anybody in the last batch, and the scope will have tokens for more rows than wait.* So what was
  wanted is no measure of what will be: whoever sent a burst may send nothing now. Rows may wait for all that the scope
  will hold at the next epoch, if only the waiting rows leave.
- *Otherwise, if the scope has tokens to spare*, rows may wait for what the other shards are lent.
- *If it has none to spare*, others are rejected already, and will use what they are lent. Rows may wait only if their
  flow was not served its part: what one more flow would get if the scope were divided by weight, or one row if that is
  less.

Several shards may be told of the same tokens. The next epoch knows how many rows wait, and the rows that it lends
nothing for get their verdict then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.lending.shard_parts import Claims
from spark_throttle.core.limits.token_bucket import available_tokens
from spark_throttle.core.names.matching import domains_of, enforcing_scopes, weights_in
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND, Deferral


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What the last batch says of the next one."""

    waiting: Int64s
    """Shape (shards, scopes, 2): the messages and bytes that wait."""

    has_rejected: Bools
    """Shape (scopes,): whether a shared quota rejected any row of the scope's namespaces."""

    interval_ms: int
    """The time between two epochs."""


def deferrals(
    balance_micro: Int64s,
    part_milli: Int64s,
    lent_micro: Int64s,
    claims: Claims,
    outlook: Outlook | None,
    policy: CompiledPolicy,
) -> Deferral | None:
    """Return the tokens for which rows may wait in each shard, in arrays of shape (shards, scopes, 2).

    Parameters
    ----------
    balance_micro
        Shape (scopes, 2): the tokens that the buckets hold.
    part_milli
        Shape (shards, scopes, 2): the claimed part of what is lent, in thousandths of a token.
    lent_micro
        Shape (shards, scopes, 2): the balances lent.

    Returns
    -------
    Deferral or None
        `None` where one shard is lent everything, or no scope rejects.
    """
    shared = policy.shared
    rejects = (shared.on_excess == OnExcess.REJECT)[:, None] & (shared.rate_micro_per_ms > 0)
    if outlook is None or len(lent_micro) == 1 or not rejects.any():
        return None
    held = available_tokens(balance_micro)
    is_spare = part_milli.sum(axis=0) + 1000 <= held * 1000 - len(lent_micro)  # a token; parts are rounded down
    elsewhere_micro = np.maximum(held - available_tokens(lent_micro), 0) * MICRO
    next_micro = _next_micro(balance_micro, outlook, policy)
    is_calm = ~outlook.has_rejected[:, None] & (next_micro > 0)
    room_micro = np.where(is_spare, elsewhere_micro, held * MICRO)
    room_micro = np.where(is_calm, np.maximum(next_micro, np.where(is_spare, elsewhere_micro, 0)), room_micro)
    flow_micro = np.where(is_calm | is_spare, NO_BOUND, held * MICRO // (_weights(claims, policy)[:, None] + 1))
    flow_micro = np.broadcast_to(flow_micro, room_micro.shape)
    return Deferral(np.where(rejects, room_micro, 0), np.where(rejects, flow_micro, NO_BOUND))


def _next_micro(balance_micro: Int64s, outlook: Outlook, policy: CompiledPolicy) -> Int64s:
    """Return what the buckets hold at the next epoch if the waiting rows leave, and no others, shape (scopes, 2)."""
    rate, burst_micro = np.maximum(policy.shared.rate_micro_per_ms, 0), policy.shared.burst_micro
    left_micro = balance_micro - np.minimum(outlook.waiting.sum(axis=0), NO_BOUND // MICRO) * MICRO
    to_full_ms = -(-burst_micro // np.maximum(rate, 1))
    earned_micro = rate * np.minimum(max(outlook.interval_ms, 0), to_full_ms)
    return np.clip(left_micro + earned_micro, 0, burst_micro)


def _weights(claims: Claims, policy: CompiledPolicy) -> Int64s:
    """Return the weights of all flows that want tokens of each scope, shape (scopes,)."""
    domain = domains_of(enforcing_scopes(claims.shared_scope, policy))
    wants = by_row(np.logical_or, claims.demand > 0)
    total = np.zeros(len(policy.shared), dtype=np.int64)
    for scope in claims.shared_scope.T:
        at = np.flatnonzero(wants & (scope >= 0))
        total += sums(scope[at], weights_in(scope[at], claims.weight[at], domain[at], policy), len(total))
    return total
