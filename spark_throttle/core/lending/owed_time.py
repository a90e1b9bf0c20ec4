"""For how long a job has missed its share of a quota, and how many rows may therefore wait for their verdict.

A job has no share of a quota that jobs share until it has a lease: at a start, and after a pause. Meanwhile rows wait
and no token is earned. Once the job has a share, the waiting rows take the first tokens, and rows that arrive meanwhile
find none, although no more is offered than the quota allows. If the scope rejected them, the wait for a lease would
cost messages. So the missed time is *owed*: rows may wait for their verdict (`batch.deferral`) up to the tokens that
the quota earns in it.

While rows wait without a share, owed time grows as fast as time passes. The rows of the first batch arrived before it,
in about the time until the next, so that time counts twice. Then owed time shrinks, a tenth as fast. At a load of `r`
times the share, the queue that the missed time `T` left, ``r * T`` of it, is worked off in ``r * T / (1 - r)``. So
nothing is rejected for the missed time while ``r`` is at most 10/11; and rows wait no longer than they did at first,
for at most ten times the missed time, if the job is offered more than its share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, quotient, times
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.lending.grants import Lending, by_scope, scopes_of
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND, Deferral
from spark_throttle.core.usage import UsageReport

_SHRINKS_TO_ONE_PART = 10
"""Owed time shrinks by the elapsed time divided by this."""

_LONGEST_STEP_MS = 60_000
"""Owed time grows by no more between two epochs: nothing arrived meanwhile, or the job was down."""

_MOST_OWED_MICRO = 1 << 61


def owed_after(
    owed_ms: Int64s | None, is_missing: Bools, waiting: Int64s, *, waited_ms: int, elapsed_ms: int
) -> Int64s | None:
    """Return the owed time of each scope at the next epoch; `None` if no time is owed.

    Parameters
    ----------
    owed_ms
        Shape (scopes,): the owed time at the epoch before.
    is_missing
        Shape (scopes,): whether the job had no share of the scope in the epoch before.
    waiting
        Shape (scopes, 2): the messages and bytes that wait for the scope.
    waited_ms
        The time since the first batch of that epoch.
    elapsed_ms
        The time since that epoch.

    Examples
    --------
    Two batches a second apart without a share, then ten seconds with one:

    >>> missing, waiting = np.array([True]), np.array([[150, 0]])
    >>> owed = owed_after(None, missing, waiting, waited_ms=1_000, elapsed_ms=1_000)
    >>> owed = owed_after(owed, missing, waiting, waited_ms=1_000, elapsed_ms=1_000)
    >>> owed.tolist(), owed_after(owed, ~missing, waiting, waited_ms=0, elapsed_ms=10_000).tolist()
    ([3000], [2000])
    """
    before = np.zeros(len(is_missing), dtype=np.int64) if owed_ms is None else owed_ms
    shrunk = np.maximum(before + -max(elapsed_ms, 0) // _SHRINKS_TO_ONE_PART, 0)
    waits = is_missing & by_row(np.logical_or, waiting > 0)
    grown = before + min(max(waited_ms, 0), _LONGEST_STEP_MS) * np.where(before == 0, 2, 1)
    after = np.where(waits, grown, shrunk)
    return after if after.any() else None


def waiting_by_scope(reports: list[UsageReport], policy: CompiledPolicy, *, shards: int) -> Int64s:
    """Return the messages and bytes that wait in each shard for its shared scopes, shape (shards, scopes, 2).

    Rows that their namespace's own limits hold back do not count.
    """
    waiting = np.zeros((shards, len(policy.shared), 2), dtype=np.int64)
    for report in reports:
        scopes, free = scopes_of(report, len(policy.tenant_names)), np.minimum(report.waiting, report.demand)
        waiting[report.shard] = by_scope(scopes, free, len(policy.shared))
    return waiting


def with_owed(lending: Lending, owed_ms: Int64s | None, waiting: Int64s, policy: CompiledPolicy) -> Lending:
    """Return a lending with which rows may wait up to the tokens of the owed time.

    The shards divide them by what waits in each, shape (shards, scopes, 2). What is free then may be taken in any
    shard: it is not known where rows will arrive.
    """
    if owed_ms is None:
        return lending
    rate = np.where(policy.shared.on_excess[:, None] == OnExcess.REJECT, policy.shared.rate_micro_per_ms, 0)
    rate = np.maximum(rate, 0)
    owed = rate * np.minimum(owed_ms[:, None], _MOST_OWED_MICRO // np.maximum(rate, 1)) // MICRO
    total = waiting.sum(axis=0)
    part = quotient(np.minimum(owed, total), total, FACTOR_BITS)
    owed_tokens = np.maximum(owed - total, 0) + times(waiting, part)
    owed_micro = np.minimum(owed_tokens, _MOST_OWED_MICRO // MICRO) * MICRO
    if lending.deferral is None:
        return replace(lending, deferral=Deferral(owed_micro, np.full_like(owed_micro, NO_BOUND)))
    room_micro, flow_micro = lending.deferral.room_micro, lending.deferral.flow_micro
    # Rows wait for time in which nobody was served, so no flow had its part of it.
    room_micro = np.where((owed_micro > 0) & (flow_micro < NO_BOUND), owed_micro, room_micro + owed_micro)
    return replace(lending, deferral=Deferral(room_micro, np.where(owed_micro > 0, NO_BOUND, flow_micro)))
