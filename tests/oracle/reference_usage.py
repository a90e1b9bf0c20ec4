"""The oracle of a batch's usage report: the decision on each row, and the usage and demand of every flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from spark_throttle.core.quota import Dimension, Verdict
from tests.oracle.reference_bucket import ceil_div
from tests.oracle.reference_flow import Flow, Row, total_tokens
from tests.oracle.reference_rules import DIMENSIONS, UNIT_MICRO, Tokens, tokens


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one row, in the terms of `AdmissionPlan`'s per-row arrays."""

    verdict: Verdict
    reason: str = ""
    level: int = -1
    dimension: int = -1
    scope: int = -1
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class FlowUsage:
    """One flow's usage in one batch."""

    tenant: int
    group: int
    weight: int
    offered: Tokens
    admitted: Tokens
    rejected: Tokens
    waiting: Tokens
    demand: Tokens
    own_micro: tuple[int, ...]
    own_time_ns: int
    observed_messages: int
    delayed_ms: int
    oldest_ms: int
    waited: tuple[tuple[int, int], ...]
    """The messages that waited, by the longest time of their bin."""

    held_by: tuple[int, int]
    """The level and the dimension of the quota that stopped its first row that did not go; -1 for none."""

    granted_micro: tuple[int, ...]


def usage_of(
    flow: Flow,
    rows: list[Row],
    decisions: Mapping[int, Decision],
    now_ms: int,
    since_last_ms: int,
    held_by: tuple[int, int],
) -> FlowUsage:
    """Return the usage of a flow, given the `decisions` on its rows; the last batch was `since_last_ms` ago."""
    by_verdict: dict[Verdict, list[Row]] = {verdict: [] for verdict in Verdict}
    for row in rows:
        by_verdict[decisions[row.index].verdict].append(row)
    arrived = [row for row in rows if row.is_arrival]
    refused = [row for row in by_verdict[Verdict.REJECT] if decisions[row.index].reason.endswith("_too_large")]
    wanted = [row for row in arrived if row not in refused]
    admitted, waiting = by_verdict[Verdict.ADMIT], by_verdict[Verdict.DELAY]
    waits_ms = [now_ms - row.arrival_ms for row in admitted if row.arrival_ms < now_ms]
    return FlowUsage(
        flow.rules.tenant,
        flow.rules.group,
        flow.limits.weight if flow.rules.shared else 0,
        offered=total_tokens(arrived),
        admitted=total_tokens(admitted),
        rejected=total_tokens(by_verdict[Verdict.REJECT]),
        waiting=total_tokens(waiting),
        demand=_demand(flow, wanted, waiting, now_ms, since_last_ms),
        own_micro=tuple(
            flow.buckets[each].balance_micro if each in flow.buckets else 0
            for each in (Dimension.MESSAGES, Dimension.BYTES, Dimension.UNITS)
        ),
        own_time_ns=flow.buckets[Dimension.TIME].balance_micro if Dimension.TIME in flow.buckets else 0,
        observed_messages=sum(1 for row in admitted if decisions[row.index].reason),
        delayed_ms=sum(waits_ms),
        oldest_ms=max((max(0, now_ms - row.arrival_ms) for row in waiting), default=-1),
        waited=tuple(sorted(Counter(_longest_of_bin(wait_ms) for wait_ms in waits_ms).items())),
        held_by=held_by,
        granted_micro=tuple(
            _earned(flow.buckets[d].rate_micro_per_ms, since_last_ms) if d in flow.buckets else -1 for d in DIMENSIONS
        ),
    )


def _earned(rate_micro_per_ms: int, since_last_ms: int) -> int:
    """Return what a bucket earns, of no more milliseconds than 2**62 micro-tokens take."""
    return rate_micro_per_ms * min(since_last_ms, 2**62 // max(rate_micro_per_ms, 1))


def _longest_of_bin(wait_ms: int) -> int:
    """Return the longest time that counts as the same: sixteen bins a power of two, one a millisecond below 32."""
    width_ms = 1
    while wait_ms // width_ms >= 32:
        width_ms *= 2
    return (wait_ms // width_ms + 1) * width_ms - 1


def _demand(flow: Flow, offered: list[Row], waiting: list[Row], now_ms: int, since_last_ms: int) -> Tokens:
    """Return the demand that the flow may have next: its arrivals again, and its backlog.

    Rows behind one that is held for longer do not count, nor does more than its own buckets allow in any dimension.
    """
    free = list(takewhile(lambda row: row.release_ms <= now_ms + since_last_ms, waiting))
    again = total_tokens(offered if len(free) == len(waiting) else [])
    wanted = [again[d] + total_tokens(free)[d] for d in DIMENSIONS]
    passing = list(wanted)
    for d, bucket in flow.buckets.items():
        if flow.limits.is_enforced:
            refill = bucket.rate_micro_per_ms * since_last_ms // UNIT_MICRO[d]
            passing[d] = min(wanted[d], max(0, bucket.balance_micro // UNIT_MICRO[d] + 1 + refill))
    for budget in flow.budgets:
        if budget.is_enforced:
            passing[budget.dimension] = min(passing[budget.dimension], budget.before + 1)
    if passing == wanted:
        return tokens(wanted)
    part = min(ceil_div(passing[d] << 30, wanted[d]) for d in DIMENSIONS if wanted[d])
    return tokens([min((wanted[d] * part >> 30) + 1, passing[d]) if part else 0 for d in DIMENSIONS])
