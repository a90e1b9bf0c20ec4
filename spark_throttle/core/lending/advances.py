"""How far each shard is ahead of its due in every shared scope, from one epoch to the next (`shard_parts`).

A shard gets ahead by using more than it was lent: the last message overdraws, and a standing grant grows. Tokens that
it did not use give it no credit beyond the credit that it already had. But only whole messages are lent: bytes for
which it lacked a message are due to it as much as the part of a message that was withheld. A scope in which no flow was
held back forgets all of this, as a domain forgets its leads.

Where the limits of a scope changed, or an active flow entered it, left it or has another weight in it, a shard is ahead
by what its flows take with them: each takes the message by which it is ahead itself (`policy_change` carries that,
too). A shard that was behind keeps the part of one token that rounding withheld, for only whole tokens are lent: a
shard that is due a quarter of a message per epoch would else get none while every epoch changes a quota. How much
further it was behind under the old rules does not matter under the new ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, bit_length, quotient, times
from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.lending.grants import Lending, any_by_scope, by_scope, scopes_of
from spark_throttle.core.limits.token_bucket import available_tokens
from spark_throttle.core.policy_change import former_scopes
from spark_throttle.core.quota import MICRO, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.usage import UsageReport

_MICRO_PER_MILLI = MICRO // 1000
_MOST_TOKENS = 1 << 40
"""The largest advance; a larger one would be a burst that was never lent. The bound keeps sums in int64."""

_PART_BITS = 52
"""The bits that the sum of the leads of a seat's flows may take."""


def advance_after(lending: Lending, reports: list[UsageReport], policy: CompiledPolicy) -> Int64s:
    """Return how far each shard is ahead after the batches that spent what it was lent, shape (shards, scopes, 2).

    Parameters
    ----------
    reports
        The reports of those batches, of `policy`'s revision. A shard without a report counts as having used what it was
        lent.
    """
    lent_micro = available_tokens(lending.balance_micro) * MICRO
    used_micro = np.zeros_like(lent_micro)
    is_held_back = np.zeros(lent_micro.shape[:2], dtype=np.bool_)
    for report in reports:
        scopes = scopes_of(report, len(policy.tenant_names))
        used = by_scope(scopes, report.admitted, lent_micro.shape[1])
        used_micro[report.shard] += np.minimum(used, _MOST_TOKENS) * MICRO
        held_back = (report.waiting[:, Dimension.MESSAGES] > 0) | (report.rejected[:, Dimension.MESSAGES] > 0)
        is_held_back[report.shard] |= any_by_scope(scopes, held_back, lent_micro.shape[1])
    missing = np.setdiff1d(np.arange(len(lent_micro)), [report.shard for report in reports])
    used_micro[missing] = lent_micro[missing]
    is_held_back[missing] = True
    ahead = lending.advance_micro + used_micro - lent_micro
    credit_micro = np.maximum(lending.credit_micro, _withheld_micro(ahead, used_micro, lent_micro, policy))
    ahead = np.where(used_micro < lent_micro, np.maximum(ahead, -credit_micro), ahead)
    ahead = np.where(is_held_back[:, :, None], ahead, np.maximum(ahead, 0))
    counts = np.logical_or.reduce(is_held_back, axis=0)[:, None] & policy.shared.is_limited
    most = _MOST_TOKENS * MICRO
    return np.where(counts, np.clip(ahead, -most, most), 0)


def _withheld_micro(ahead_micro: Int64s, used_micro: Int64s, lent_micro: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the bytes that go with the part of a message that rounding withheld, in the proportion of what was lent.

    They count in scopes that limit both resources, for shards that have used up their messages.
    """
    messages, volume = Dimension.MESSAGES, Dimension.BYTES
    is_used_up = (lent_micro[..., messages] > 0) & (used_micro[..., messages] >= lent_micro[..., messages])
    part_micro = np.clip(-ahead_micro[..., messages], 0, MICRO)
    lent_bytes = np.minimum(lent_micro[..., volume] // MICRO, _MOST_TOKENS)
    withheld = np.zeros_like(lent_micro)
    of_message = part_micro * lent_bytes // np.maximum(lent_micro[..., messages] // MICRO, 1)
    withheld[..., volume] = np.where(is_used_up & by_row(np.logical_and, policy.shared.is_limited), of_message, 0)
    return withheld


def scopes_that_stand(
    before: CompiledPolicy, after: CompiledPolicy, reports: list[UsageReport], rematched: list[UsageReport]
) -> Int64s:
    """Return, for every shared scope of `after`, its position in `before` if nothing about it changed, else -1.

    Parameters
    ----------
    reports, rematched
        The flows that were active, under the old policy and under the new one.
    """
    old = former_scopes(before, after)
    is_same = old >= 0
    for name in ("rate_micro_per_ms", "burst_micro", "on_excess", "weight"):
        is_equal = getattr(before.shared, name).take(old, axis=0) == getattr(after.shared, name)
        is_same &= is_equal.reshape(len(old), -1).all(axis=1)
    new_of = np.full(len(before.shared) + 1, -2, dtype=np.int64)
    new_of[old[is_same]] = np.flatnonzero(is_same)
    new_of[-1] = -1
    for was, now in zip(reports, rematched, strict=True):
        was_in, is_in = scopes_of(was, len(before.tenant_names)), scopes_of(now, len(after.tenant_names))
        has_moved = (new_of[was_in] != is_in) | (was.weight != now.weight)[:, None]
        left, entered = new_of[was_in[has_moved]], is_in[has_moved]
        is_same[left[left >= 0]] = False
        is_same[entered[entered >= 0]] = False
    return np.where(is_same, old, -1)


@dataclass(frozen=True, slots=True, eq=False)
class Reseated:
    """The shards in which flows are, for each of several reports."""

    shards: int
    shard_of_flow: list[Int64s]


def carried_advance(
    advance_micro: Int64s,
    before: CompiledPolicy,
    after: CompiledPolicy,
    reports: list[UsageReport],
    rematched: list[UsageReport],
    *,
    resharded: Reseated | None = None,
) -> Int64s:
    """Return how far each shard is ahead in the scopes of `after`, shape (shards, scopes, 2).

    Where nothing about a scope changed, the advance stays. In any other scope, a shard is ahead by the sum over the
    flows that are now in it: each accounts for its part of the shard's advance in the scopes that it was in, and for at
    most one message of its own. So a change forgets the advance for which no remaining flow accounts, and nothing else.
    Where a shard is behind, up to one token of that goes with its flows, in proportion to their weights, to the scopes
    of the same level that they are in now. If the number of shards changed, every scope did.

    Parameters
    ----------
    advance_micro
        How far each shard is ahead in the scopes of `before`.
    reports, rematched
        The flows that were active, by their last reports, under the old policy and under the new one.
    resharded
        The shards in which the flows are now; by default each is where it was.
    """
    scopes = len(after.shared)
    if resharded is None:
        resharded = Reseated(len(advance_micro), [np.full(len(was.weight), was.shard) for was in reports])
        old = scopes_that_stand(before, after, reports, rematched)
    else:
        old = np.full(scopes, -1, dtype=np.int64)
    carried_micro = np.zeros((resharded.shards, scopes, 2), dtype=np.int64)
    behind_micro = np.zeros_like(carried_micro)
    for was, now, shard in zip(reports, rematched, resharded.shard_of_flow, strict=True):
        if was.ahead_milli is None:
            continue
        ahead_milli = np.zeros_like(was.ahead_milli)
        debt_milli = np.maximum(advance_micro[was.shard], 0) // _MICRO_PER_MILLI
        credit_micro = np.clip(-advance_micro[was.shard], 0, MICRO)
        entered = scopes_of(now, len(after.tenant_names))
        for level, scope in enumerate(scopes_of(was, len(before.tenant_names)).T):
            held = np.flatnonzero(scope >= 0)
            owed_milli = _owed_by_those_ahead(debt_milli, was.ahead_milli.take(held, axis=0), scope[held])
            ahead_milli[held] = np.maximum(
                ahead_milli.take(held, axis=0), np.minimum(owed_milli, was.ahead_milli.take(held, axis=0))
            )
            credited_micro = _credited_by_weight(credit_micro, was.weight[held], scope[held])
            for each in np.unique(shard[held]):
                is_there = shard[held] == each
                there = entered[held[is_there], level : level + 1]
                behind_micro[each] += by_scope(there, credited_micro.compress(is_there, axis=0), scopes)
        for each in np.unique(shard):
            is_there = shard == each
            carried_micro[each] += (
                by_scope(entered.compress(is_there, axis=0), ahead_milli.compress(is_there, axis=0), scopes)
                * _MICRO_PER_MILLI
            )
    carried_micro -= np.minimum(behind_micro, MICRO)  # flows' parts are rounded up
    if (old < 0).all():
        return carried_micro
    return np.where((old >= 0)[:, None], advance_micro[:, old], carried_micro)


def _owed_by_those_ahead(debt: Int64s, ahead: Int64s, seat: Int64s) -> Int64s:
    """Return the part of its seat's debt that every flow owes, shape (n, k): in proportion to its lead, and at most it.

    Examples
    --------
    In one seat, one flow is ahead by a large message and one by a small one; the other seat owes more than its flow is
    ahead by:

    >>> debt, ahead = np.array([[0, 55_000], [0, 9]]), np.array([[0, 59_000], [0, 1_000], [0, 7]])
    >>> _owed_by_those_ahead(debt, ahead, np.array([0, 0, 1]))[:, 1].tolist()
    [54083, 916, 7]
    """
    bits = np.maximum(bit_length(ahead.max(axis=0, initial=0)) + len(ahead).bit_length() - _PART_BITS, 0)
    total = sums(seat, ahead >> bits, len(debt))
    known = np.minimum(debt >> bits, total) << bits
    return times(known.take(seat, axis=0), quotient(ahead >> bits, total.take(seat, axis=0), FACTOR_BITS))


def _credited_by_weight(credit: Int64s, weight: Int64s, seat: Int64s) -> Int64s:
    """Return the part of its seat's credit that every flow has, shape (n, k), rounded up.

    Examples
    --------
    >>> _credited_by_weight(np.array([[250_000, 0], [0, 7]]), np.array([1, 4, 2]), np.array([0, 0, 1])).tolist()
    [[50000, 0], [200000, 0], [0, 7]]
    """
    total = sums(seat, weight, len(credit))
    return -(-credit.take(seat, axis=0) * weight[:, None] // np.maximum(total, 1)[seat][:, None])
