"""The answer to "what if": what a policy would have done to each tenant and group, beside what another would have.

A delay is told of the messages that had to wait and have left; what waits at the end is told by its number and age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import largest, numbers, sums
from spark_throttle.core.batch.decisions import DIMENSIONS, REASONS
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Int64s, Level
from spark_throttle.status.ranking import worst_first
from spark_throttle.what_if.proposal import ProposedQuota, proposed
from spark_throttle.what_if.replay import Delays, Policies, Replay, in_order, replay
from spark_throttle.what_if.traffic import Traffic

LEVELS: Final = ("job", "resource_group", "tenant")
"""The levels that an answer tells, from the widest to the narrowest."""


@dataclass(frozen=True, slots=True)
class ScopeOutcome:
    """What one policy did to a scope's messages; times are `None` where there is no such message."""

    admitted_messages: int
    admitted_bytes: int
    admitted_units: int
    rejected_messages: int
    rejected_by: Mapping[str, int]
    """The rejected messages by reason, such as ``quota`` or ``queue_full``."""

    delayed_messages: int
    """The admitted messages that had to wait."""

    delay_p50_ms: int | None
    """What half of these waited at most."""

    delay_p99_ms: int | None
    delay_longest_ms: int | None
    waiting_messages: int
    """The messages that wait when the replay ends."""

    oldest_waiting_ms: int | None
    held_by: Mapping[str, int]
    """The messages that had to wait when they came, by what held them, such as ``resource_group bytes``."""

    @property
    def longest_ms(self) -> int:
        """The longest that a message waited, whether it has left or not."""
        return max(self.delay_longest_ms or 0, self.oldest_waiting_ms or 0)


@dataclass(frozen=True, slots=True)
class ScopeChange:
    """A scope under the policy that is asked about, and under the one that it is compared with."""

    level: str
    scope: str
    offered_messages: int
    offered_bytes: int
    offered_units: int
    policy: ScopeOutcome
    against: ScopeOutcome | None = None
    """`None` if there is no other policy, or it has no such group."""

    @property
    def is_held(self) -> bool:
        """Whether a message waits or is rejected, under either policy."""
        of_either = [self.policy] if self.against is None else [self.policy, self.against]
        return any(each.rejected_messages or each.delayed_messages or each.waiting_messages for each in of_either)

    @property
    def gained_messages(self) -> int:
        """How many messages more are admitted than under the other policy, until the replay ends; 0 without one."""
        return 0 if self.against is None else self.policy.admitted_messages - self.against.admitted_messages


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a policy would have done with recorded traffic."""

    first_ms: int
    """When the traffic begins, in milliseconds since 1970."""

    end_ms: int
    interval_ms: int
    """The error of the replay: a message leaves at most so much earlier or later, and a scope passes at most what its
    quota earns in it more."""

    messages: int
    unusable_messages: int
    """The events without a usable namespace, size or time, which are left out."""

    not_replayed: tuple[str, ...]
    """What of the policy is not replayed."""

    scopes: tuple[ScopeChange, ...] = field(repr=False)
    """The job, then its groups and tenants, those that wait longest first."""

    proposed: tuple[ProposedQuota, ...] = field(default=(), repr=False)
    """The smallest quotas whose backlog would never have taken longer to leave than was asked; empty if it was not."""

    def of_level(self, level: str) -> list[ScopeChange]:
        """Return the scopes of a level, in their order."""
        return [each for each in self.scopes if each.level == level]


def what_if(
    traffic: Traffic,
    policy: CompiledPolicy | Policies,
    against: CompiledPolicy | Policies | None = None,
    *,
    propose_within_ms: int | None = None,
) -> WhatIf:
    """Return what a policy would have done with recorded traffic, beside what another would have.

    Raises
    ------
    ConfigurationError
        As `replay`.

    Examples
    --------
    >>> from spark_throttle.policy.compile import compile_policy
    >>> from spark_throttle.policy.model import PolicyDocument
    >>> ones = {"messages": [4] * 2, "bytes": [4] * 2, "largest_bytes": [1] * 2}
    >>> sums = pa.table({"interval": [0, 1], "namespace": ["acme/a"] * 2, **ones})
    >>> quota = {"messages_per_second": 2, "burst_seconds": 1}
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": {"publish": quota}}})
    >>> found = what_if(Traffic.of(sums, interval_ms=1_000), compile_policy(document, "publish"))
    >>> acme = found.of_level("tenant")[0]
    >>> acme.scope, acme.policy.delayed_messages, acme.policy.delay_longest_ms, acme.policy.held_by
    ('acme', 1, 1000, {'tenant messages': 4})
    """
    policies = in_order(policy)
    first = policies[0][1]
    found = _by_scope(traffic, policies)
    other = {} if against is None else _by_scope(traffic, in_order(against))
    scopes = [
        ScopeChange(*key, *offered, outcome, other[key][1] if key in other else None)
        for key, (offered, outcome) in found.items()
    ]
    has_time = any(each.has_time for _, each in policies)
    time = () if not has_time else ("request_percentage: events do not tell what they cost",)
    return WhatIf(
        traffic.first_ms, traffic.end_ms, traffic.interval_ms, int(traffic.messages.sum()), traffic.unusable_messages,
        time, tuple(_worst_first(scopes)),
        () if propose_within_ms is None else tuple(proposed(traffic, first, within_ms=propose_within_ms)),
    )  # fmt: skip


def _worst_first(scopes: list[ScopeChange]) -> list[ScopeChange]:
    ordered = list[ScopeChange]()
    for level in LEVELS:
        part = [each for each in scopes if each.level == level]
        order = worst_first(
            oldest_ms=np.array([each.policy.longest_ms or -1 for each in part], dtype=np.int64),
            rejected=np.array([each.policy.rejected_messages for each in part], dtype=np.int64),
            used_ratio=np.zeros(len(part)),
            waiting=np.array([each.policy.delayed_messages for each in part], dtype=np.int64),
            offered=np.array([each.offered_messages for each in part], dtype=np.int64),
        )
        ordered += [part[at] for at in order.tolist()]
    return ordered


def _by_scope(traffic: Traffic, policies: Policies) -> dict[tuple[str, str], tuple[tuple[int, int, int], ScopeOutcome]]:
    """Return what was offered, and what became of it under policies, by level and scope."""
    found = replay(traffic, policies)
    the_job = "job", pa.array(["job"]), np.zeros(len(traffic.names), dtype=np.int64)
    return {
        (level, scope): outcome
        for level, scopes, at in (the_job, *traffic.groups_and_tenants(policies[0][1]))  # exceptions change no scope
        for scope, outcome in zip(shown(scopes).to_pylist(), _outcomes(found, at, len(scopes)), strict=True)
    }


def _outcomes(found: Replay, at: Int64s, scopes: int) -> list[tuple[tuple[int, int, int], ScopeOutcome]]:
    """Return what was offered to scopes and what became of it; `at` is the scope of each namespace, -1 for none."""
    has = np.flatnonzero(at >= 0)
    of = at[has]
    offered, admitted, rejected = (
        sums(of, each[has], scopes) for each in (found.offered, found.admitted, found.rejected)
    )
    held = sums(of, found.held[has].reshape(len(has), len(Level) * len(DIMENSIONS)), scopes).reshape(
        scopes, len(Level), len(DIMENSIONS)
    )
    waiting = sums(of, found.waiting[has], scopes)
    oldest_ms = largest(of, found.oldest_ms[has], scopes, least=0)
    delays = _delays(found.delays, at, scopes)
    return [
        (
            (int(offered[n, 0]), int(offered[n, 1]), int(offered[n, 2])),
            ScopeOutcome(
                int(admitted[n, 0]), int(admitted[n, 1]), int(admitted[n, 2]),
                int(rejected[n].sum()), {REASONS[k]: int(rejected[n, k]) for k in np.flatnonzero(rejected[n])},
                *delays[n],
                int(waiting[n]), int(oldest_ms[n]) if waiting[n] else None,
                {
                    f"{level.name.lower()} {DIMENSIONS[dimension]}": int(held[n, level, dimension])
                    for level in Level for dimension in range(len(DIMENSIONS))
                    if held[n, level, dimension]
                },
            ),
        )
        for n in range(scopes)
    ]  # fmt: skip


def _delays(delays: Delays, at: Int64s, scopes: int) -> list[tuple[int, int | None, int | None, int | None]]:
    """Return the number of delayed messages of each scope, and of their delays the median, p99 and the longest."""
    scope = at[delays.name]
    order = np.lexsort((delays.delay_ms, scope))[int(np.count_nonzero(scope < 0)) :]
    scope, delay_ms, total = scope[order], delays.delay_ms[order], np.cumsum(delays.messages[order])
    bounds = [0, *np.cumsum(numbers(scope, scopes)).tolist()]
    found = list[tuple[int, int | None, int | None, int | None]]()
    for first, end in pairwise(bounds):
        before = int(total[first - 1]) if first else 0
        messages = int(total[end - 1]) - before if end > first else 0
        # The delay that a part of them waited at most: that of the message with which the part is reached.
        marks = [before + -(-messages * percent // 100) for percent in (50, 99, 100)]
        parts = [int(delay_ms[np.searchsorted(total, mark)]) if messages else None for mark in marks]
        found.append((messages, *parts))  # type: ignore[arg-type]
    return found
