"""Grants: how the buckets that shards share are refilled, lent and settled.

The control plane holds one bucket for every shared scope. At every epoch it debits each bucket by what the shards used
since the last epoch, overdraft included, at the time of their batches; refills it to its own time; and lends its whole
balance to the shards. What a shard does not use comes back with the next epoch. So a scope admits the messages that one
bucket would admit, except for what the last message of every shard overdraws, which the next epochs repay.

The division is weighted max-min over the demand of every active flow, one by one: first within the tenants, then
within the resource groups, then within the job, where the narrower levels cut each claim first. What nobody claims is
lent equally, as headroom for what the next batch may bring. Only whole messages are lent, so that many shards at a low
rate do not overdraw by one message each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import below, by_row, largest, sums
from spark_throttle.core.lending.allocation import divide_whole
from spark_throttle.core.lending.debts import NOBODY
from spark_throttle.core.lending.deferrals import Outlook, deferrals
from spark_throttle.core.lending.level_parts import Holding
from spark_throttle.core.lending.scope_time import ScopeTime
from spark_throttle.core.lending.shard_parts import Claims, OneShard, divide_among_shards
from spark_throttle.core.limits.message_limits import MessageLimits
from spark_throttle.core.limits.size_bounds import bounded_floor
from spark_throttle.core.limits.token_bucket import available_tokens, debit, full, observed_floor, refill
from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND, NO_CONTEST, Deferral
from spark_throttle.core.usage import UsageReport


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """The buckets of all shared scopes, at one time of the control plane's paying clock."""

    balance_micro: Int64s
    """Shape (scopes, 2): the tokens that the buckets hold, negative in debt."""

    as_of_ms: int

    @classmethod
    def full(cls, policy: CompiledPolicy, *, now_ms: int) -> Buckets:
        """Return new buckets, which hold their burst."""
        return cls(full(policy.shared.rate_micro_per_ms, policy.shared.burst_micro), now_ms)

    def debit(self, used: Int64s, policy: CompiledPolicy) -> Buckets:
        """Return these buckets less `used` tokens, shape (scopes, 2).

        An observing scope is overdrawn by at most a burst, or by a message of the mean size of the admitted ones where
        that is more: the shards do not report which rows they marked in it (`token_bucket.observed_floor`).
        """
        shared = policy.shared
        used = np.where(shared.is_limited, used, 0)
        messages = np.maximum(used[:, Dimension.MESSAGES], 1)
        message = np.stack([np.ones_like(messages), used[:, Dimension.BYTES] // messages], axis=1)
        unmarked = np.where(self.balance_micro < 0, 0, message)
        floor_micro = observed_floor(np.minimum(self.balance_micro, 0), unmarked, shared.burst_micro)
        floor_micro = bounded_floor(floor_micro, self.balance_micro, shared)
        observes = (shared.on_excess == OnExcess.OBSERVE)[:, None]
        return Buckets(
            debit(self.balance_micro, used, np.where(observes, floor_micro, MIN_BALANCE_MICRO)), self.as_of_ms
        )

    def settle(self, used: Int64s, policy: CompiledPolicy, *, at_ms: int) -> Buckets:
        """Return these buckets after `used` tokens, shape (scopes, 2), were taken at `at_ms`.

        The time before `at_ms` is paid first, up to the burst. So after a grant that stood through a pause, the tokens
        that the pause earned are not paid again.
        """
        return self.refill(policy, now_ms=max(at_ms, self.as_of_ms)).debit(used, policy)

    def refill(self, policy: CompiledPolicy, *, now_ms: int) -> Buckets:
        """Return these buckets at `now_ms`; a clock that went back pays nothing."""
        shared = policy.shared
        elapsed_ms = max(0, now_ms - self.as_of_ms)
        return Buckets(refill(self.balance_micro, shared.rate_micro_per_ms, shared.burst_micro, elapsed_ms), now_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Lending:
    """The grants of all shards; see `state.Grants`."""

    balance_micro: Int64s
    """Shape (shards, scopes, 2): the tokens lent."""

    headroom_micro: Int64s
    """Shape (shards, scopes, 2): by how much each balance may grow while the grant stands."""

    advance_micro: Int64s
    """Shape (shards, scopes, 2): how far ahead each shard is once it has used what it is lent (`shard_parts`)."""

    credit_micro: Int64s
    """Shape (shards, scopes, 2): how far behind each shard is; it keeps this credit if it cannot use what it is
    lent."""

    ahead_bound_milli: Int64s | None = None
    """Shape (shards, scopes, 2): the bound for flows that are ahead, as in `state.Grants.ahead_bound_milli`."""

    deferral: Deferral | None = None
    """The tokens for which rows may wait for their verdict, as in `state.Grants.deferral`, in arrays of shape
    (shards, scopes, 2)."""


def claims_of(reports: list[UsageReport], policy: CompiledPolicy, limits: MessageLimits | None = None) -> Claims:
    """Return the claims of all flows in the reports; `limits` have the prices of their messages, if they count."""
    tenants = len(policy.tenant_names)
    pairs = np.zeros((0, 2), dtype=np.int64)
    scopes, shards, weights, demands, ahead = [np.zeros((0, 3), np.int64)], [], [], [pairs], [pairs]
    for report in reports:
        scopes.append(scopes_of(report, tenants))
        shards.append(np.full(len(report.weight), report.shard, dtype=np.int64))
        weights.append(report.weight)
        demands.append(report.demand)
        ahead.append(np.zeros_like(report.demand) if report.ahead_milli is None else report.ahead_milli)
    empty, prices = np.zeros(0, dtype=np.int64), None
    if limits is not None:
        prices = limits.prices_of(pa.concat_arrays([pa.array([], pa.string()), *(each.names for each in reports)]))
    return Claims(
        np.concatenate([empty, *shards]), below(scopes), np.concatenate([empty, *weights]), below(demands),
        below(ahead), prices,
    )  # fmt: skip


def scopes_of(report: UsageReport, tenants: int) -> Int64s:
    """Return the shared scopes of a report's flows, shape (n, 3), as in `matching.Matches.shared_scope`."""
    out = np.full((3, len(report.weight)), -1, dtype=np.int64)
    for to, position, first in zip(out, (report.tenant, report.group), (1, 1 + tenants), strict=False):
        if position.max(initial=-1) >= 0:
            np.copyto(to, np.where(position >= 0, first + position, -1))
    np.subtract(report.weight > 0, 1, out=out[2], dtype=np.int64)  # an exempt namespace is charged nowhere
    return out.T


def used_by_scope(reports: list[UsageReport], policy: CompiledPolicy) -> Int64s:
    """Return the messages and bytes that the shards admitted, by shared scope; shape (scopes, 2).

    The reports must belong to `policy`'s revision.
    """
    used = np.zeros((len(policy.shared), 2), dtype=np.int64)
    for report in reports:
        used += by_scope(scopes_of(report, len(policy.tenant_names)), report.admitted, len(used))
    return used


def has_rejected(reports: list[UsageReport], policy: CompiledPolicy) -> Bools:
    """Return whether a shared quota rejected rows of each shared scope's namespaces, shape (scopes,)."""
    is_rejecting = np.zeros(len(policy.shared), dtype=np.bool_)
    for report in reports:
        messages = report.rejected_by_shared_messages
        messages = report.rejected[:, Dimension.MESSAGES] if messages is None else messages
        is_rejecting |= any_by_scope(scopes_of(report, len(policy.tenant_names)), messages > 0, len(policy.shared))
    return is_rejecting


def any_by_scope(shared_scope: Int64s, is_marked: Bools, scopes: int) -> Bools:
    """Return whether any flow of each scope is marked, shape (scopes,)."""
    out = np.zeros(scopes + 1, dtype=np.bool_)  # with one more position for no scope
    for scope in shared_scope.T:
        if scope.max(initial=-1) >= 0:
            out |= largest(scope, is_marked, scopes + 1, least=0) > 0
    return out[:-1]


def by_scope(shared_scope: Int64s, amount: Int64s, scopes: int) -> Int64s:
    """Return the sums, over the flows of every scope, of an amount of shape (n, 2)."""
    total = np.zeros((scopes + 1, 2), dtype=np.int64)  # with one more position for no scope
    for scope in shared_scope.T:
        if scope.max(initial=-1) >= 0:
            total += sums(scope, amount, scopes + 1)
    return total[:-1]


def lend(  # noqa: PLR0913 - all that a division depends on
    buckets: Buckets,
    claims: Claims,
    policy: CompiledPolicy,
    *,
    shards: int,
    turn: int,
    advance_micro: Int64s | None = None,
    is_by_turn: bool = False,
    outlook: Outlook | None = None,
) -> Lending:
    """Divide what the buckets hold among the shards.

    Parameters
    ----------
    turn
        The number of the epoch, which rotates the first place among equals.
    advance_micro
        Shape (shards, scopes, 2): how far each shard is ahead (`shard_parts`); by default, none is.
    is_by_turn
        Whether `turn` alone decides which shards' parts of a token are rounded up, and which shards are lent any tokens
        where there are fewer tokens than shards: so all scopes open the same shard.
    outlook
        What is known of the last batch; by default, no row may wait for its verdict.
    """
    shape = (shards, len(policy.shared), 2)
    limited = policy.shared.is_limited
    held = available_tokens(buckets.balance_micro)
    is_shut = by_row(np.logical_or, limited & (buckets.balance_micro < 0))
    before = np.zeros(shape, dtype=np.int64) if advance_micro is None else advance_micro
    holding = Holding(held, policy.shared.rate_micro_per_ms, limited, is_shut)
    one_shard = OneShard.of(claims, holding, policy) if shards == 1 else None
    if one_shard is not None:
        return _lent_to_one(buckets, one_shard, policy)
    parts = divide_among_shards(claims, holding, before, policy)
    behind_milli = _behind_milli(-parts.account_micro - parts.due_micro, policy)
    is_both, has_message = by_row(np.logical_and, limited), np.ones(shape[:2], dtype=np.bool_)
    balance, headroom = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for scope, dimension in np.argwhere(limited):
        whole = int(held[scope, dimension])
        micro = int(buckets.balance_micro[scope, dimension])
        part, behind = parts.part_milli[:, scope, dimension], behind_milli[:, scope, dimension]
        part = np.where(has_message[:, scope], part, 0)  # bytes are of no use without a message
        urgency = part % 1000 + behind
        ahead = parts.next_ahead[:, scope], parts.account_micro[:, scope, dimension]
        if is_both[scope] and dimension == Dimension.MESSAGES and whole > 0 and not part.any():
            part[_least_ahead(*ahead, turn)] = 1000  # the shard that may overdraw the bytes needs a message
        if is_by_turn:
            nobody = np.zeros_like(part)
            part, urgency, ahead = part if whole >= shards else nobody, nobody, (nobody, nobody)
        lent = _divided(whole, part, urgency, turn)
        if dimension == Dimension.MESSAGES:
            balance[:, scope, dimension] = _messages_balance(lent, micro)
            has_message[:, scope] = lent > 0
        else:
            nobody_first = np.where(has_message[:, scope], ahead[0], NOBODY), ahead[1]
            needs_none = parts.is_light[:, scope] & has_message[:, scope]
            balance[:, scope, dimension] = _bytes_balance(lent, needs_none, micro, *nobody_first, turn)
        if policy.shared.rate_micro_per_ms[scope, dimension] > 0:
            room = int(policy.shared.burst_micro[scope, dimension]) - micro
            headroom[:, scope, dimension] = max(0, room) // shards
    # What a shut scope lends of the resource that it still has cannot be used, and does not count as used.
    stands = parts.is_counted | is_shut[:, None]
    advance = parts.account_micro + np.where(stands, available_tokens(balance) * MICRO, 0)
    is_filled = parts.is_filled & has_message[:, :, None]
    credit = np.maximum(-np.where(is_filled, parts.before_micro, parts.account_micro), 0)
    bound_milli = np.where(parts.is_loose[:, None], NO_CONTEST, parts.ahead_bound_milli)
    return Lending(
        balance,
        headroom,
        np.maximum(advance, -credit - MICRO),
        credit,
        None if (bound_milli == NO_BOUND).all() else bound_milli,
        deferrals(buckets.balance_micro, parts.part_milli, balance, claims, outlook, policy),
    )


def _lent_to_one(buckets: Buckets, one_shard: OneShard, policy: CompiledPolicy) -> Lending:
    """Lend everything to the only shard, which is neither ahead nor behind of anybody; its own order is exact."""
    shared, micro = policy.shared, buckets.balance_micro
    lent = np.where(shared.is_limited, np.where(micro < 0, micro, micro // MICRO * MICRO), 0)
    headroom = np.where(shared.rate_micro_per_ms > 0, np.maximum(shared.burst_micro - micro, 0), 0)
    counts = one_shard.is_short[:, None] & shared.is_limited
    bound_milli = np.where(one_shard.is_loose[:, None], NO_CONTEST, np.full_like(micro, NO_BOUND))
    return Lending(
        lent[None],
        headroom[None],
        np.where(counts, available_tokens(lent) * MICRO, 0)[None],
        np.zeros_like(lent)[None],
        bound_milli[None] if one_shard.is_loose.any() else None,
    )


def _behind_milli(behind_micro: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return by how many thousandths of a token each seat stays behind, by time where its scope limits both resources.

    A shard that is due many bytes and a part of a message is as urgent as one that is due many messages.
    """
    behind_milli = np.maximum(behind_micro, 0) // 1000
    shared = policy.shared
    is_both = by_row(np.logical_and, shared.is_limited)
    if not is_both.any():
        return behind_milli
    time = ScopeTime(shared.rate_micro_per_ms, shared.is_limited, np.zeros_like(shared.rate_micro_per_ms))
    at = np.flatnonzero(is_both)
    seats, scope = behind_milli[:, at].reshape(-1, 2), np.tile(at, len(behind_milli))
    told = time.tokens_in(time.of(seats, scope), scope).reshape(-1, len(at), 2)
    behind_milli[:, at, Dimension.MESSAGES] = told[:, :, Dimension.MESSAGES]
    return behind_milli


def _divided(whole: int, part_milli: Int64s, urgency: Int64s, turn: int) -> Int64s:
    """Divide whole tokens by parts, which are rounded and may sum to a little more than the whole."""
    parts = np.diff(np.minimum(np.cumsum(part_milli), whole * 1000), prepend=0)
    return divide_whole(whole, parts, turn=turn, urgency=urgency)


def _messages_balance(lent: Int64s, micro: int) -> Int64s:
    """Return every shard's balance of messages in one scope, whose own balance is `micro`."""
    if micro < 0:
        return np.full(len(lent), micro // len(lent), dtype=np.int64)
    return np.where(lent > 0, (lent - 1) * MICRO, -1)


def _bytes_balance(
    lent: Int64s, needs_none: Bools, micro: int, next_ahead: Int64s, account_micro: Int64s, turn: int
) -> Int64s:
    """Return every shard's balance of bytes in one scope, whose own balance is `micro`.

    A balance of 0 lets a message pass. So only the shards that are lent bytes, or need none for the messages that they
    are lent, get a balance of 0 or more. If no shard is lent any, the one whose next flow is least ahead gets it too;
    among equals, the shard that is least ahead itself.
    """
    shards = len(lent)
    if micro < 0:
        return np.full(shards, micro // shards, dtype=np.int64)
    is_open = (lent > 0) | needs_none
    if not lent.any():
        is_open[_least_ahead(next_ahead, account_micro, turn)] = True
    return np.where(is_open, lent * MICRO, -1)


def _least_ahead(next_ahead: Int64s, account_micro: Int64s, turn: int) -> int:
    """Return the shard that may overdraw a scope which has nothing."""
    shards = len(next_ahead)
    return int(np.lexsort(((np.arange(shards) - turn) % shards, account_micro, next_ahead))[0])
