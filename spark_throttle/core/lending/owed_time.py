"""For how long a job has missed its share of a quota, and how many rows may therefore wait for their verdict.

A job has no share of a quota that jobs share until it has a lease: at a start, and after a pause. Meanwhile rows wait
and no token is earned. Once the job has a share, the waiting rows take the first tokens, and rows that arrive meanwhile
find none, although no more is offered than the quota allows. If the scope rejected them, the wait for a lease would
cost messages. So the missed time is *owed*: rows may wait for their verdict (`batch.deferral`) up to the tokens that
the quota earns in it.

While rows wait without a share, owed time grows as fast as time passes. The rows of the first batch arrived before it,
in about the time until the next, so that time counts twice. Then owed time shrinks, a tenth as fast. At a load of `r`
times the quota, the queue that the missed time `T` left, ``r * T`` of it, is worked off in ``r * T / (1 - r)``. So
nothing is rejected for the missed time while ``r`` is at most 10/11. A scope that is offered more rejects its excess
whatever is owed: there owed time shrinks as fast as time passes, and so does the wait of the other rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, quotient, times
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.lending.deferrals import Outlook
from spark_throttle.core.lending.grants import Lending, by_scope, scopes_of
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND, Deferral
from spark_throttle.core.usage import UsageReport

_SHRINKS_TO_ONE_PART = 10
"""Owed time shrinks by the elapsed time divided by this."""

_LONGEST_STEP_MS = 60_000
"""Owed time grows by no more between two epochs: nothing arrived for the rest of a longer time."""

_MOST_OWED_MICRO = 1 << 61


def missed_by(reports: list[UsageReport], is_unleased: Bools, policy: CompiledPolicy) -> Bools:
    """Return at which scopes rows wait that the job has no share for, shape (scopes,).

    A row that waits for one of its scopes misses the time of all of them.

    Parameters
    ----------
    is_unleased
        Shape (scopes,): where the job has no share (`shares.is_unleased`).
    """
    is_missed = np.zeros(len(is_unleased), dtype=np.bool_)
    for report in reports:
        scopes = scopes_of(report, len(policy.tenant_names))
        waits = np.minimum(report.waiting, report.demand)[:, Dimension.MESSAGES] > 0
        misses = waits & by_row(np.logical_or, (scopes >= 0) & is_unleased[scopes])
        missed = scopes.compress(misses, axis=0)
        is_missed[missed[missed >= 0]] = True
    return is_missed & (policy.shared.on_excess == OnExcess.REJECT)


def is_overloaded(owed_ms: Int64s, outlook: Outlook, policy: CompiledPolicy) -> Bools:
    """Return which scopes reject rows while about as many wait as may wait for the owed time, shape (scopes,)."""
    owed = _owed_tokens(owed_ms, policy)
    is_full = (owed > 0) & (outlook.waiting.sum(axis=0) >= owed - (owed >> 3))
    return outlook.has_rejected & by_row(np.logical_or, is_full)


def owed_after(
    owed_ms: Int64s | None, is_missed: Bools, is_overloaded: Bools, *, waited_ms: int, elapsed_ms: int
) -> Int64s | None:
    """Return the owed time of each scope at the next epoch; `None` if no time is owed.

    Parameters
    ----------
    owed_ms
        Shape (scopes,): the owed time at the epoch before.
    is_missed
        Shape (scopes,): whether rows waited in that epoch for want of a share (`missed_by`).
    is_overloaded
        Shape (scopes,): whether the scope is offered more than it could ever serve (`is_overloaded`).
    waited_ms
        The time since the first batch of that epoch.
    elapsed_ms
        The time since that epoch.

    Examples
    --------
    Two batches a second apart without a share, then ten seconds with one:

    >>> yes, no = np.array([True]), np.array([False])
    >>> owed = owed_after(None, yes, no, waited_ms=1_000, elapsed_ms=1_000)
    >>> owed = owed_after(owed, yes, no, waited_ms=1_000, elapsed_ms=1_000)
    >>> owed.tolist(), owed_after(owed, no, no, waited_ms=0, elapsed_ms=10_000).tolist()
    ([3000], [2000])
    """
    before = np.zeros(len(is_missed), dtype=np.int64) if owed_ms is None else owed_ms
    passed_ms = max(elapsed_ms, 0)
    shrunk = np.maximum(before - np.where(is_overloaded, passed_ms, -(-passed_ms // _SHRINKS_TO_ONE_PART)), 0)
    grown = before + min(max(waited_ms, 0), _LONGEST_STEP_MS) * np.where(before == 0, 2, 1)
    after = np.where(is_missed, grown, shrunk)
    return after if after.any() else None


def _owed_tokens(owed_ms: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the tokens that the quotas which reject earn in the owed time, shape (scopes, 2)."""
    rate_micro_per_ms = np.where(
        policy.shared.on_excess[:, None] == OnExcess.REJECT, policy.shared.rate_micro_per_ms, 0
    )
    rate_micro_per_ms = np.maximum(rate_micro_per_ms, 0)
    return (
        rate_micro_per_ms * np.minimum(owed_ms[:, None], _MOST_OWED_MICRO // np.maximum(rate_micro_per_ms, 1)) // MICRO
    )


def waiting_by_scope(reports: list[UsageReport], policy: CompiledPolicy, *, shards: int) -> Int64s:
    """Return the messages and bytes that wait in each shard for its shared scopes, shape (shards, scopes, 2).

    Rows that their namespace's own limits hold back do not count.
    """
    waiting = np.zeros((shards, len(policy.shared), 2), dtype=np.int64)
    for report in reports:
        scopes, free = scopes_of(report, len(policy.tenant_names)), np.minimum(report.waiting, report.demand)
        waiting[report.shard] = by_scope(scopes, free, len(policy.shared))
    return waiting


def with_owed(lending: Lending, owed_ms: Int64s | None, outlook: Outlook | None, policy: CompiledPolicy) -> Lending:
    """Return a lending with which rows may wait up to the tokens of the owed time.

    The shards divide these tokens by what waits in each. Each shard may take all that is then free, because it is not
    known where rows will arrive.
    """
    if owed_ms is None or outlook is None:
        return lending
    owed, waiting = _owed_tokens(owed_ms, policy), outlook.waiting
    total = waiting.sum(axis=0)
    part = quotient(np.minimum(owed, total), total, FACTOR_BITS)
    divided = np.where(waiting > 0, times(waiting, part) + 1, 0)  # rounded up, so that not all of a few are lost
    owed_tokens = np.where(owed > 0, np.maximum(owed - total, 0) + divided, 0)
    owed_micro = np.minimum(owed_tokens, _MOST_OWED_MICRO // MICRO) * MICRO
    if lending.deferral is None:
        return replace(lending, deferral=Deferral(owed_micro, np.full_like(owed_micro, NO_BOUND)))
    room_micro, flow_micro = lending.deferral.room_micro, lending.deferral.flow_micro
    # Rows wait for time in which nobody was served, so no flow had its part of it.
    room_micro = np.where((owed_micro > 0) & (flow_micro < NO_BOUND), owed_micro, room_micro + owed_micro)
    return replace(lending, deferral=Deferral(room_micro, np.where(owed_micro > 0, NO_BOUND, flow_micro)))
