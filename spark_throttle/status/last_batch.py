"""What a running job's reports say of one namespace: the balances and backlogs of its levels, and its last batch.

The reports since an epoch was made are debited to the epoch's buckets, as the next epoch's plan will do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from spark_throttle.core.codec import Epoch
from spark_throttle.core.lending.grants import used_by_scope
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches, match
from spark_throttle.core.quota import MICRO, UNLIMITED, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.usage import UsageReport
from spark_throttle.status.explanation import Explanation, LastBatch, LevelExplanation, pair_of


def observed_levels(
    explained: Explanation,
    found: Matches,
    policy: CompiledPolicy,
    epoch: Epoch,
    spent: list[UsageReport],
    last: list[UsageReport],
    shard: int,
) -> list[LevelExplanation]:
    """Return the levels with their buckets' balances and their backlogs."""
    now_ms = max((report.as_of_ms for report in spent), default=epoch.buckets.as_of_ms)
    buckets = epoch.buckets.debit(used_by_scope(spent, policy), policy).refill(policy, now_ms=now_ms)
    scopes = dict(zip([level.name.lower() for level in SHARED_LEVELS], found.shared_scope[0].tolist(), strict=True))
    matched = [(report, match(report.names, policy)) for report in last]
    observed = []
    for level in explained.levels:
        scope = scopes.get(level.level, -1)
        waiting = _waiting(matched, level, scope)
        rates = np.array([UNLIMITED if r is None else round(r * 1000) for r in level.per_second], dtype=np.int64)
        balance = buckets.balance_micro[scope] if scope >= 0 else np.zeros(2, dtype=np.int64)
        seen = replace(level, waiting=waiting, release_ms=_release_ms(waiting, balance, rates))
        if scope >= 0:
            lent = epoch.lending.balance_micro[shard, scope]
            seen = replace(seen, balance=pair_of(balance, MICRO, rates), granted=pair_of(lent, MICRO, rates))
        observed.append(seen)
    return observed


def _waiting(matched: list[tuple[UsageReport, Matches]], level: LevelExplanation, scope: int) -> tuple[int, int]:
    total = np.zeros(2, dtype=np.int64)
    for report, found in matched:
        if level.level == "namespace":
            rows = pc.equal(report.names, level.scope).to_numpy(zero_copy_only=False)
        else:
            rows = found.shared_scope[:, SHARED_LEVELS.index(Level[level.level.upper()])] == scope
        total += report.waiting[rows].sum(axis=0)
    return int(total[0]), int(total[1])


def _release_ms(waiting: tuple[int, int], balance_micro: Int64s, rates: Int64s) -> int | None:
    """Return how long a bucket takes to earn the tokens for a backlog; `None` if nothing waits, or at a rate of 0."""
    if not waiting[Dimension.MESSAGES]:
        return None
    longest = 0
    for dimension in Dimension:
        rate = int(rates[dimension])
        if rate == UNLIMITED:
            continue
        if rate == 0:
            return None
        lacking = waiting[dimension] * MICRO - int(balance_micro[dimension])
        longest = max(longest, -(-lacking // rate))
    return max(0, longest)


def last_batch_of(batch: int, reports: list[UsageReport], namespace: str, shard: int) -> LastBatch:
    """Return what became of a namespace's rows in a batch, by the reports of its shards."""
    seen = LastBatch(batch, reports[0].now_ms, reports[0].epoch, shard)
    for report in reports:
        at = pc.index(report.names, namespace).as_py() if report.shard == shard else -1
        if at >= 0:
            offered, admitted, rejected, waiting = (
                (int(pair[0]), int(pair[1]))
                for pair in (report.offered[at], report.admitted[at], report.rejected[at], report.waiting[at])
            )
            return replace(
                seen, offered=offered, admitted=admitted, rejected=rejected, waiting=waiting,
                observed_messages=int(report.observed_messages[at]),
            )  # fmt: skip
    return seen
