"""The state of the decider as plain Python values: dataclasses, no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import DeciderState, Flows, Queue
from spark_throttle.testing.oracle.reference_bucket import TokenBucket
from spark_throttle.testing.oracle.reference_rules import NamespaceRules, Pair, ScopeLimits, pair, rules_of


@dataclass(frozen=True, slots=True)
class FlowMemory:
    """The stored state of one namespace."""

    balance_micro: Pair
    window_second: int
    window_units: Pair

    def meaningful(self, rules: NamespaceRules, *, second: int) -> FlowMemory:
        """Return the same memory, with 0 where there is no limit and for a window that has ended or counted nothing."""
        counts = self.window_second == second and self.window_units != (0, 0)
        balance_micro = rules.limits.meaningful(self.balance_micro)
        return FlowMemory(balance_micro, second if counts else 0, self.window_units if counts else (0, 0))


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A waiting row."""

    namespace: str
    size_bytes: int
    arrival_ms: int
    release_ms: int


TimeBucket: TypeAlias = tuple[int, int, int]
"""The rate and the burst of what time lets through, in messages, and its balance."""


@dataclass(frozen=True, slots=True)
class ScopeMemory:
    """The stored state of one shared scope."""

    balance_micro: Pair
    share_micro_per_ms: Pair | None = None
    """The job's shares of the rates, if jobs share the quota."""

    time: TimeBucket | None = None
    """What the scope's time lets through; `None` if time does not limit it."""

    is_time_unleased: bool = False
    """Whether the job has no share of the scope's time, though its quota is not 0."""

    price_ns: int = 0
    """The price of a message, if the scope is divided by time."""

    def bucket(self, quota: ScopeLimits, dimension: Dimension) -> TokenBucket:
        """Return the bucket of a limited dimension: at the job's share, with a burst in proportion."""
        rate, burst = quota.rate_micro_per_ms[dimension], quota.burst_micro[dimension]
        share = rate if self.share_micro_per_ms is None else min(self.share_micro_per_ms[dimension], rate)
        if share != rate:
            burst = burst * ((share << 30) // rate) >> 30
        return TokenBucket(share, burst, self.balance_micro[dimension])


@dataclass(frozen=True, slots=True)
class TimeMemory:
    """What the time of one namespace lets through, in messages."""

    balance_micro: int
    rate_micro_per_ms: int
    burst_micro: int
    price_ns: int = 0
    """The price of a message, if the time of shared scopes is divided; 0 if nobody knows."""


def in_force(policy: CompiledPolicy, limits: MessageLimits | None) -> CompiledPolicy:
    """Return a policy in which each shared scope whose time is limited has the limit on messages of the epoch."""
    if limits is None:
        return policy
    rates, bursts = policy.shared.rate_micro_per_ms.tolist(), policy.shared.burst_micro.tolist()
    time = zip(limits.shared.rate_micro_per_ms.tolist(), limits.shared.burst_micro.tolist(), strict=True)
    for scope, (rate, burst) in enumerate(time):
        if rate != UNLIMITED:
            is_both = rates[scope][0] != UNLIMITED
            rates[scope][0] = min(rate, rates[scope][0]) if is_both else rate
            bursts[scope][0] = min(burst, bursts[scope][0]) if is_both else burst
    return replace(policy, shared=replace(policy.shared, rate_micro_per_ms=_pairs(rates), burst_micro=_pairs(bursts)))


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """A `DeciderState` in plain Python, without what the fair tree remembers."""

    advanced_to_ms: int
    flows: dict[str, FlowMemory]
    queue: list[QueuedRow]
    epoch: int
    shared_as_of_ms: int
    shared: list[ScopeMemory]
    time: dict[str, TimeMemory] | None = None
    """What the time of namespaces lets through; `None` if no quota on time is in force."""

    @classmethod
    def from_arrays(cls, state: DeciderState, policy: CompiledPolicy) -> ReferenceState:
        """Return `state` under `policy`, with 0 for every value that has no meaning under it."""
        names: list[str] = state.flows.names.to_pylist()
        flows = {}
        for i, name in enumerate(names):
            memory = FlowMemory(
                pair(state.flows.balance_micro[i]),
                int(state.flows.window_second[i]),
                pair(state.flows.window_units[i]),
            )
            flows[name] = memory.meaningful(rules_of(policy, name), second=state.advanced_to_ms // 1000)
        queue = [
            QueuedRow(names[flow], size, arrival_ms, release_ms)
            for flow, size, arrival_ms, release_ms in zip(
                state.queue.flow.tolist(),
                state.queue.size_bytes.tolist(),
                state.queue.arrival_ms.tolist(),
                state.queue.release_ms.tolist(),
                strict=True,
            )
        ]
        held, time = state.shared, state.shared.time
        shared = []
        for scope in range(len(policy.shared)):
            limits = ScopeLimits.from_limits(policy.shared, scope, Level.JOB, scope)
            bucket: TimeBucket | None = None
            if time is not None and time.shared.rate_micro_per_ms[scope] != UNLIMITED:
                columns = time.shared.rate_micro_per_ms, time.shared.burst_micro, time.shared.balance_micro
                rate, burst, balance = (int(column[scope]) for column in columns)
                bucket = rate, burst, balance
            shared.append(
                ScopeMemory(
                    limits.meaningful(pair(held.balance_micro[scope])),
                    None if held.share_micro_per_ms is None else pair(held.share_micro_per_ms[scope]),
                    bucket,
                    time is not None and bool(time.is_unleased[scope]),
                    0 if time is None or time.prices is None else int(time.prices.shared_ns[scope]),
                )
            )
        own = None
        if time is not None:
            prices = [0] * len(time.names) if time.prices is None else time.prices.own_ns.tolist()
            buckets = zip(*(getattr(time.own, name).tolist() for name in MessageBuckets.__slots__), prices, strict=True)
            own = {name: TimeMemory(*each) for name, each in zip(time.names.to_pylist(), buckets, strict=True)}
        return cls(state.advanced_to_ms, flows, queue, state.epoch, state.shared.as_of_ms, shared, own)

    def to_arrays(self) -> DeciderState:
        """Return the state as a `DeciderState`, so that the oracle can run a history by itself."""
        names = list(self.flows)
        flows = list(self.flows.values())
        queue = [(names.index(row.namespace), row.size_bytes, row.arrival_ms, row.release_ms) for row in self.queue]
        flow, size_bytes, arrival_ms, release_ms = np.array(queue, dtype=np.int64).reshape(-1, 4).T
        shares = [scope.share_micro_per_ms for scope in self.shared if scope.share_micro_per_ms is not None]
        return DeciderState(
            self.advanced_to_ms,
            Flows(
                pa.array(names, pa.string()),
                _pairs([flow.balance_micro for flow in flows]),
                np.zeros((len(flows), 2), dtype=np.int64),
                np.zeros((len(flows), 2), dtype=np.int64),
                np.array([flow.window_second for flow in flows], dtype=np.int64),
                _pairs([flow.window_units for flow in flows]),
            ),
            Queue(flow, size_bytes, arrival_ms, release_ms),
            SharedBuckets(
                _pairs([scope.balance_micro for scope in self.shared]),
                self.shared_as_of_ms,
                _pairs(shares) if shares else None,
                self._limits(),
            ),
            self.epoch,
        )

    def _limits(self) -> MessageLimits | None:
        if self.time is None:
            return None
        shared = [(UNLIMITED, 0, 0) if scope.time is None else scope.time for scope in self.shared]
        rate, burst, balance = np.array(shared, dtype=np.int64).reshape(-1, 3).T
        is_unleased = np.array([scope.is_time_unleased for scope in self.shared], dtype=np.bool_)
        own = [(each.balance_micro, each.rate_micro_per_ms, each.burst_micro) for each in self.time.values()]
        columns = np.array(own, dtype=np.int64).reshape(-1, 3).T
        prices = MessagePrices.of(
            np.array([each.price_ns for each in self.time.values()], dtype=np.int64),
            np.array([scope.price_ns for scope in self.shared], dtype=np.int64),
        )
        return MessageLimits(
            MessageBuckets(balance, rate, burst), is_unleased, pa.array(list(self.time), pa.string()),
            MessageBuckets(*columns), prices,
        )  # fmt: skip


def _pairs(rows: Sequence[Sequence[int]]) -> Int64s:
    return np.array(rows, dtype=np.int64).reshape(-1, 2)
