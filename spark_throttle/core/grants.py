"""Grants: how the buckets that shards share are refilled, vended and settled.

The control plane holds one bucket for every shared scope. At every epoch it takes from each what the shards used
since, overdraft included, at the time of their batches; refills it to its own time; and lends what it holds to the
shards, whole. What a shard does not use comes back with the next epoch. So a scope's admitted messages are those of one
bucket, but for what the last message of every shard overdraws, which the next epochs repay.

The division is weighted max-min over the demand of every active flow, one by one: first within the tenants, then
within the resource groups, then within the job, each claim being cut by the levels before. What nobody claims is lent
equally, as headroom for what the next batch may bring. Messages are lent in whole ones, so that many shards at a low
rate do not overdraw by one each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.allocation import PLENTY, divide_whole, water_fill
from spark_throttle.core.matching import SHARED_LEVELS
from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.segments import sums
from spark_throttle.core.size_bounds import bounded_floor
from spark_throttle.core.token_bucket import admissible_messages, byte_room, debit, full, observed_floor, refill
from spark_throttle.core.usage import UsageReport

_MILLI = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """The buckets of all shared scopes, at one time of the control plane's clock."""

    balance_micro: Int64s
    """Shape (scopes, 2)."""

    as_of_ms: int

    @classmethod
    def full(cls, policy: CompiledPolicy, *, now_ms: int) -> Buckets:
        """Return new buckets, holding their burst."""
        return cls(full(policy.shared.rate_micro_per_ms, policy.shared.burst_micro), now_ms)

    def debit(self, used: Int64s, policy: CompiledPolicy) -> Buckets:
        """Return these buckets less `used` tokens, shape (scopes, 2).

        A scope that observes is overdrawn by no more than a burst, or a message of the mean size of those used where
        that is more: which rows the shards marked in it is not reported (`token_bucket.observed_floor`).
        """
        shared = policy.shared
        used = np.where(shared.is_limited, used, 0)
        messages = np.maximum(used[:, Dimension.MESSAGES], 1)
        message = np.stack([np.ones_like(messages), used[:, Dimension.BYTES] // messages], axis=1)
        unmarked = np.where(self.balance_micro < 0, 0, message)
        floor = observed_floor(np.minimum(self.balance_micro, 0), unmarked, shared.burst_micro)
        floor = bounded_floor(floor, self.balance_micro, shared)
        observes = (shared.on_excess == OnExcess.OBSERVE)[:, None]
        return Buckets(debit(self.balance_micro, used, np.where(observes, floor, MIN_BALANCE_MICRO)), self.as_of_ms)

    def settle(self, used: Int64s, policy: CompiledPolicy, *, at_ms: int) -> Buckets:
        """Return these buckets after `used` tokens, shape (scopes, 2), were taken at `at_ms`.

        The time before is paid first, up to the burst: a grant that stood through a pause is not followed by what the
        pause has earned.
        """
        return self.refill(policy, now_ms=max(at_ms, self.as_of_ms)).debit(used, policy)

    def refill(self, policy: CompiledPolicy, *, now_ms: int) -> Buckets:
        """Return these buckets at `now_ms`; a clock that went back pays nothing."""
        shared = policy.shared
        elapsed_ms = max(0, now_ms - self.as_of_ms)
        return Buckets(refill(self.balance_micro, shared.rate_micro_per_ms, shared.burst_micro, elapsed_ms), now_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Lending:
    """What every shard is lent; see `state.Grants`."""

    balance_micro: Int64s
    """Shape (shards, scopes, 2)."""

    headroom_micro: Int64s
    """Shape (shards, scopes, 2)."""


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """The demand of all active flows; arrays run over the flows of all shards."""

    shard: Int64s
    shared_scope: Int64s
    """Shape (n, 3), as `matching.Matches.shared_scope`."""

    weight: Int64s
    demand: Int64s
    """Shape (n, 2), in messages and bytes."""

    @classmethod
    def of(cls, reports: list[UsageReport], policy: CompiledPolicy) -> Claims:
        """Gather the claims of all reports."""
        tenants = len(policy.tenant_names)
        scopes, shards, weights, demands = [np.zeros((0, 3), np.int64)], [], [], [np.zeros((0, 2), np.int64)]
        for report in reports:
            tenant = np.where(report.tenant >= 0, 1 + report.tenant, -1)
            group = np.where(report.group >= 0, 1 + tenants + report.group, -1)
            job = np.where(report.weight > 0, 0, -1)  # an exempt namespace is charged nowhere
            scopes.append(np.stack([tenant, group, job], axis=1))
            shards.append(np.full(len(report.weight), report.shard, dtype=np.int64))
            weights.append(report.weight)
            demands.append(report.demand)
        empty = np.zeros(0, dtype=np.int64)
        return cls(
            np.concatenate([empty, *shards]), np.concatenate(scopes), np.concatenate([empty, *weights]),
            np.concatenate(demands),
        )  # fmt: skip


def used_by_scope(reports: list[UsageReport], policy: CompiledPolicy) -> Int64s:
    """Return the messages and bytes that the shards admitted, by shared scope; shape (scopes, 2).

    The reports are of `policy`'s revision.
    """
    claims = Claims.of(reports, policy)
    admitted = np.concatenate([np.zeros((0, 2), np.int64), *(report.admitted for report in reports)])
    return _by_scope(claims.shared_scope, admitted, len(policy.shared))


def _by_scope(shared_scope: Int64s, amount: Int64s, scopes: int) -> Int64s:
    total = np.zeros((scopes, 2), dtype=np.int64)
    for scope in shared_scope.T:
        held = scope >= 0
        total += sums(scope[held], amount[held], scopes)
    return total


def lend(buckets: Buckets, claims: Claims, policy: CompiledPolicy, *, shards: int, turn: int) -> Lending:
    """Divide what the buckets hold among the shards.

    Parameters
    ----------
    turn
        Rotates who is first among equals; the epoch's number.
    """
    scopes = len(policy.shared)
    limited = policy.shared.is_limited
    messages = admissible_messages(buckets.balance_micro[:, Dimension.MESSAGES])
    room_bytes = byte_room(buckets.balance_micro[:, Dimension.BYTES])
    held = np.stack([messages, np.maximum(room_bytes, 0)], axis=1)
    is_shut = (limited & (np.stack([messages, room_bytes + 1], axis=1) == 0)).any(axis=1)
    available = np.where(limited, np.where(is_shut[:, None], 0, held * _MILLI), PLENTY)
    claim = _claims_by_scope(claims, available, policy, shards)
    shape = (shards, scopes, 2)
    balance, headroom = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for scope, dimension in np.argwhere(limited):
        whole = int(held[scope, dimension])
        micro = int(buckets.balance_micro[scope, dimension])
        part = claim[:, scope, dimension]
        balance[:, scope, dimension] = _lent(part, whole, micro, turn, is_bytes=dimension == Dimension.BYTES)
        if policy.shared.rate_micro_per_ms[scope, dimension] > 0:
            room = int(policy.shared.burst_micro[scope, dimension]) - micro
            headroom[:, scope, dimension] = max(0, room) // shards
    return Lending(balance, headroom)


def _claims_by_scope(claims: Claims, available: Int64s, policy: CompiledPolicy, shards: int) -> Int64s:
    """Return what every shard's flows would get of every scope, in thousandths; shape (shards, scopes, 2)."""
    scopes = len(available)
    out = np.zeros((shards * scopes, 2), dtype=np.int64)
    demand = np.minimum(claims.demand, PLENTY // _MILLI // 4) * _MILLI
    filled = []
    for column in range(len(SHARED_LEVELS)):
        scope = claims.shared_scope[:, column]
        rows = np.flatnonzero(scope >= 0)
        granted = water_fill(demand[rows], claims.weight[rows], scope[rows], available)
        filled.append((rows, scope[rows], granted))
        enforces = (policy.shared.on_excess[scope[rows]] != OnExcess.OBSERVE)[:, None]
        demand[rows] = np.where(enforces, granted, demand[rows])
    for rows, scope, granted in filled:
        observes = (policy.shared.on_excess[scope] == OnExcess.OBSERVE)[:, None]
        out += sums(claims.shard[rows] * scopes + scope, np.where(observes, granted, demand[rows]), len(out))
    return out.reshape(shards, scopes, 2)


def _lent(part: Int64s, whole: int, micro: int, turn: int, *, is_bytes: bool) -> Int64s:
    """Return every shard's balance in one dimension of one scope."""
    shards = len(part)
    if micro < 0:
        return np.full(shards, micro // shards, dtype=np.int64)
    lent = divide_whole(whole, part, turn=turn)
    if is_bytes:
        # A balance of 0 lets a message pass: only a shard that is lent something, or the first claimant, may.
        first = int(np.lexsort(((np.arange(shards) - turn) % shards, -lent))[0])
        is_open = lent > 0
        is_open[first] = True
        return np.where(is_open, lent * MICRO, -1)
    return np.where(lent > 0, (lent - 1) * MICRO, -1)
