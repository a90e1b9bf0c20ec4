"""The answer to why a namespace is held as it is has what a running job's reports say; `explain` finds the rest.

The reports have the balances and backlogs of the namespace's levels, and its last batch. What the batches since the
newest epoch used of processing time is not known yet: their messages count at what they were estimated to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches, match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import MICRO, UNLIMITED, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.shared_buckets import SharedBuckets, under_share
from spark_throttle.core.usage import UsageReport
from spark_throttle.status.time_status import ScopeTime, time_status_of


@dataclass(frozen=True, slots=True)
class LevelExplanation:
    """One level that a namespace passes through; pairs are messages, then bytes, `None` where there is no limit."""

    level: str
    scope: str
    per_second: tuple[float | None, float | None]
    burst: tuple[float | None, float | None]
    on_excess: str
    weight: int

    bounds: Mapping[str, int] = field(default_factory=dict)
    """Its bounds, by the key of the quota, such as `max_message_bytes`."""

    request_percentage: float | None = None
    """The processing time, in percent of one core; `None` where the level has no such quota."""

    share: tuple[float | None, float | None] = (None, None)
    """What the job may use of the quota, where that is not all of it: its share, or the rate of a destination."""

    balance: tuple[float | None, float | None] = (None, None)
    """What the level's bucket holds after the last batch; negative is debt. `None` also where no job was asked, and for
    the namespace's own bucket."""

    balance_time_ns: int | None = None
    """What the newest epoch left of the quota on processing time; negative is debt. `None` without such a quota, and
    where no job was asked."""

    waiting: tuple[int, int] | None = None
    """The backlog of all the level's namespaces; `None` where no job was asked."""

    release_ms: int | None = None
    """How long until that backlog may have left, if nothing more arrives and the share stays (of nothing, at the
    quota); `None` for never, or if nothing waits."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What became of the namespace's rows in a job's last batch; pairs are messages, then bytes."""

    batch_id: int
    batch_time_ms: int
    epoch: int
    offered: tuple[int, int] = (0, 0)
    admitted: tuple[int, int] = (0, 0)
    rejected: tuple[int, int] = (0, 0)
    waiting: tuple[int, int] = (0, 0)
    observed_messages: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a namespace is held as it is."""

    namespace: str
    direction: str
    rule: str
    """The kind of rule that won: ``exempt``, ``namespace``, ``glob`` or ``defaults``."""

    matched: str
    """The name or glob that won; empty for the defaults."""

    reasons: tuple[str, ...]
    """Why that kind won and the others did not, in the order of precedence."""

    resource_group: str | None
    levels: tuple[LevelExplanation, ...]
    """From the narrowest to the widest; none where the namespace is exempt."""

    revision: str
    last_batch: LastBatch | None = None
    predicted_release_ms: int | None = None
    """How long after the last batch the namespace's backlog will have left, if nothing more arrives; `None` for never,
    if nothing waits, or where a note says that it is not told."""

    notes: tuple[str, ...] = ()
    """Anything else worth knowing, such as a revision that is not in force."""


def pair_of(values: Int64s, unit: int, rates: Int64s) -> tuple[float | None, float | None]:
    """Return values of messages and bytes in a larger unit; `None` where there is no limit."""
    messages, in_bytes = (
        None if rate == UNLIMITED else value / unit
        for value, rate in zip(values[: Dimension.TIME].tolist(), rates[: Dimension.TIME].tolist(), strict=True)
    )
    return messages, in_bytes


def observed_levels(
    explained: Explanation,
    found: Matches,
    policy: CompiledPolicy,
    epoch: Epoch,
    last: UsageReport,
    *,
    is_settled: bool,
) -> list[LevelExplanation]:
    """Return the levels with their buckets' balances and their backlogs.

    Parameters
    ----------
    last
        The report of the last batch.
    is_settled
        Whether the epoch knows what that batch used of processing time.
    """
    is_of_policy = last.revision == policy.revision
    balance_micro = last.shared_micro if is_of_policy else SharedBuckets.full(policy, now_ms=0).balance_micro
    times = _times(explained, epoch, policy)
    scopes = dict(zip([level.name.lower() for level in SHARED_LEVELS], found.shared_scope[0].tolist(), strict=True))
    of_last = match(last.names, policy)
    quota = policy.shared.rate_micro_per_ms
    in_force = under_share(policy, epoch.share_in_force(len(policy.shared))).shared.rate_micro_per_ms
    observed = []
    for level, time in zip(explained.levels, times, strict=True):
        scope = scopes.get(level.level, -1)
        waiting = _waiting(last, of_last, level, scope)
        rates = np.array([UNLIMITED if r is None else round(r * 1000) for r in level.per_second], dtype=np.int64)
        earned = rates if scope < 0 else np.where(in_force[scope] == 0, quota[scope], in_force[scope])
        balance = balance_micro[scope] if scope >= 0 else np.zeros(len(Dimension), dtype=np.int64)
        left_ns = None if time is None else time.balance_ns
        if left_ns is not None and not is_settled:
            left_ns = int(balance[Dimension.TIME]) if scope >= 0 else _own_left_ns(last, level.scope, left_ns)
        free_ms = _release_ms(waiting, balance, earned), _paid_ms(waiting, level, time, left_ns)
        release_ms = None if None in free_ms else max(each for each in free_ms if each is not None)
        messages, size_bytes = waiting[: Dimension.TIME].tolist()
        seen = replace(level, waiting=(messages, size_bytes), release_ms=release_ms, balance_time_ns=left_ns)
        if scope >= 0:
            own = np.where(in_force[scope] == quota[scope], UNLIMITED, in_force[scope])
            seen = replace(seen, balance=pair_of(balance, MICRO, rates), share=pair_of(own, 1000, own))
        observed.append(seen)
    return observed


def _times(explained: Explanation, epoch: Epoch, policy: CompiledPolicy) -> list[ScopeTime | None]:
    """Return the processing time of the levels; `None` where none is known."""
    found = time_status_of(epoch, policy)
    if found is None:
        return [None] * len(explained.levels)
    levels = pa.chunked_array([pa.array([level.level for level in explained.levels], pa.string())])
    names = pa.array([level.scope for level in explained.levels], pa.string())
    rows = found.of(levels, pa.chunked_array([shown(names)])).drop_columns(["level", "scope"]).to_pylist()
    return [None if row["used_ns"] is None else ScopeTime(**row) for row in rows]


def _own_left_ns(report: UsageReport, namespace: str, otherwise_ns: int) -> int:
    """Return what a report leaves of a namespace's own quota on processing time."""
    at = pc.index(report.names, namespace).as_py()
    return otherwise_ns if at < 0 or report.own_time_ns is None else int(report.own_time_ns[at])


def _waiting(report: UsageReport, found: Matches, level: LevelExplanation, scope: int) -> Int64s:
    if level.level == "namespace":
        rows = pc.equal(report.names, level.scope).to_numpy(zero_copy_only=False)
    else:
        rows = found.shared_scope[:, SHARED_LEVELS.index(Level[level.level.upper()])] == scope
    total: Int64s = report.waiting[rows].sum(axis=0)
    return total


def _release_ms(waiting: Int64s, balance_micro: Int64s, rates: Int64s) -> int | None:
    """Return how long a bucket takes to earn the tokens for a backlog; `None` if nothing waits, or at a rate of 0."""
    if not waiting[Dimension.MESSAGES]:
        return None
    longest = 0
    for dimension in (Dimension.MESSAGES, Dimension.BYTES):
        rate = int(rates[dimension])
        if rate == UNLIMITED:
            continue
        if rate == 0:
            return None
        lacking = int(waiting[dimension]) * MICRO - int(balance_micro[dimension])
        longest = max(longest, -(-lacking // rate))
    return max(0, longest)


def _paid_ms(waiting: Int64s, level: LevelExplanation, time: ScopeTime | None, left_ns: int | None) -> int | None:
    """Return how long a quota on processing time takes to pay for a backlog; `None` if nothing waits, or for ever.

    It pays first what it owes. Messages count at what the last ones took or, if nothing was measured, as estimated.
    """
    if not waiting[Dimension.MESSAGES]:
        return None
    if time is None or time.share_percentage is None or left_ns is None or level.on_excess == "observe":
        return 0
    if time.share_percentage == 0:
        return None
    takes_ns = int(waiting[Dimension.TIME])
    if time.ns_per_message is not None:
        takes_ns = int(waiting[Dimension.MESSAGES]) * time.ns_per_message
    due_ns = takes_ns - left_ns
    return max(0, -(-due_ns // round(time.share_percentage * NS_PER_MS_OF_A_PERCENT)))


def namespace_of_tenant(tenant: str, report: UsageReport) -> str | None:
    """Return the first of a tenant's namespaces that are in a batch, as it is shown, by its report."""
    inside = pc.filter(report.names, pc.starts_with(report.names, f"{tenant}/"))
    return min(shown(inside).to_pylist(), default=None)


def last_batch_of(batch: int, report: UsageReport, namespace: str) -> LastBatch:
    """Return what became of a namespace's rows in a batch."""
    seen = LastBatch(batch, report.now_ms, report.epoch)
    at = pc.index(report.names, namespace).as_py()
    if at < 0:
        return seen
    offered, admitted, rejected, waiting = (
        (int(pair[0]), int(pair[1]))
        for pair in (report.offered[at], report.admitted[at], report.rejected[at], report.waiting[at])
    )
    return replace(
        seen, offered=offered, admitted=admitted, rejected=rejected, waiting=waiting,
        observed_messages=int(report.observed_messages[at]),
    )  # fmt: skip
