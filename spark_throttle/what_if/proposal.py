"""The smallest quotas whose backlog would never have taken longer than a given time to leave, from recorded traffic.

A bucket of rate r and burst b seconds has a backlog of at most d seconds if no stretch of time from s to t brings more
than ``r * (t - s + b + d)``. So the smallest rate is the largest of ``A(s, t) / (t - s + b + d)`` over all
stretches, where A is what arrived in them (Cruz 1991, the arrival curve). It is found by Dinkelbach's method (1967):
the stretch that exceeds a rate by most gives the next rate, until none exceeds it. That takes a few passes over the
intervals.

A message waits as long as the backlog that it meets, if those of its scope leave in the order in which they came. They
take turns by namespace, so a namespace that sends more than others may wait longer, and the others wait less.

Each scope is looked at alone: what a namespace would have waited for its group is not counted at its tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.segments import begins_run
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.what_if.traffic import Traffic

BURST_MS: Final = 10_000
"""The burst that proposed quotas have, which is a policy's default."""


@dataclass(frozen=True, slots=True)
class ProposedQuota:
    """The quota that a scope would have needed, with a burst of ten seconds; rates are whole, rounded up."""

    level: str
    scope: str
    messages_per_second: int
    bytes_per_second: int
    units_per_second: int = 0
    """0 where no event has units."""


def proposed(traffic: Traffic, policy: CompiledPolicy, *, within_ms: int) -> list[ProposedQuota]:
    """Return for each tenant and group the smallest quota under which its backlog never takes longer to leave.

    Parameters
    ----------
    policy
        Tells which namespaces are in which group.
    within_ms
        The longest that a backlog may take, to within an interval.

    Examples
    --------
    100 messages at once each ten seconds need 10 a second; half of it if they may wait:

    >>> import pyarrow as pa
    >>> from spark_throttle.policy.compile import compile_policy
    >>> from spark_throttle.policy.model import PolicyDocument
    >>> sums = {"interval": [0, 10, 20], "messages": [100] * 3, "bytes": [100] * 3, "largest_bytes": [1] * 3}
    >>> traffic = Traffic.of(pa.table({**sums, "namespace": ["acme/a"] * 3}), interval_ms=1_000)
    >>> nothing = compile_policy(PolicyDocument(), "publish")
    >>> [proposed(traffic, nothing, within_ms=ms)[0].messages_per_second for ms in (0, 30_000)]
    [10, 5]
    """
    slack_ms = max(traffic.interval_ms, BURST_MS) + within_ms
    found = list[ProposedQuota]()
    for level, scopes, at in traffic.groups_and_tenants(policy):
        scope = at[traffic.name]
        order = np.flatnonzero(scope >= 0)
        order = order[np.argsort(scope[order], kind="stable")]
        rates = [
            _least_rates(
                scope[order], traffic.interval[order], amount[order], traffic.interval_ms, slack_ms, len(scopes)
            )
            for amount in (traffic.messages, traffic.bytes, traffic.units)
        ]
        found += [
            ProposedQuota(level, name, *quotas) for name, *quotas in zip(shown(scopes).to_pylist(), *rates, strict=True)
        ]
    return found


def _least_rates(
    scope: Int64s, interval: Int64s, amount: Int64s, interval_ms: int, slack_ms: int, scopes: int
) -> list[int]:
    """Return the least rate per second of each scope, whose arrivals stand together in the order of time."""
    rates = [0] * scopes
    bounds = [*np.flatnonzero(begins_run(scope)).tolist(), len(scope)]
    for first, end in pairwise(bounds):
        rates[int(scope[first])] = _least_rate(interval[first:end] * interval_ms, amount[first:end], slack_ms)
    return rates


def _least_rate(at_ms: Int64s, amount: Int64s, slack_ms: int) -> int:
    """Return the least rate per second at which what arrives at `at_ms`, ascending, is paid in time."""
    until = np.cumsum(amount)
    before = until - amount
    first, last = 0, len(at_ms) - 1
    while True:
        tokens, in_ms = int(until[last] - before[first]), int(at_ms[last] - at_ms[first]) + slack_ms
        # What each stretch brings beyond this rate: the most, over where it ends, with its best beginning.
        paid = at_ms * (tokens / in_ms)
        begun = np.minimum.accumulate(before - paid)
        end = int(np.argmax(until - paid - begun))
        begin = int(np.argmin((before - paid)[: end + 1]))
        more, more_ms = int(until[end] - before[begin]), int(at_ms[end] - at_ms[begin]) + slack_ms
        if more * in_ms <= tokens * more_ms:
            return -(-tokens * 1_000 // in_ms)
        first, last = begin, end
