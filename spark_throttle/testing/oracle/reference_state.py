"""The state of a shard as plain Python values: dataclasses, no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.message_limits import MessageBuckets, MessageLimits
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s, Level
from spark_throttle.core.state import NO_BOUND, DeciderState, Deferral, Flows, Grants, Queue
from spark_throttle.testing.oracle.reference_rules import NamespaceRules, Pair, ScopeLimits, pair, rules_of


@dataclass(frozen=True, slots=True)
class FlowMemory:
    """The stored state of one namespace."""

    balance_micro: Pair
    lead_vt: Pair
    window_second: int
    window_units: Pair

    def meaningful(self, rules: NamespaceRules, *, second: int) -> FlowMemory:
        """Return the same memory, with 0 where there is no limit and for a window that has ended or counted nothing."""
        counts = self.window_second == second and self.window_units != (0, 0)
        balance_micro = rules.limits.meaningful(self.balance_micro)
        return FlowMemory(balance_micro, self.lead_vt, second if counts else 0, self.window_units if counts else (0, 0))


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A waiting row."""

    namespace: str
    size_bytes: int
    arrival_ms: int
    release_ms: int
    is_deferred: bool = False


@dataclass(frozen=True, slots=True)
class GrantMemory:
    """A shard's grant of one shared scope."""

    balance_micro: Pair
    headroom_micro: Pair
    ahead_bound_milli: Pair = (NO_BOUND, NO_BOUND)
    room_micro: Pair | None = None
    """Tokens for which rows may wait for their verdict, beside the balance."""

    flow_micro: Pair = (NO_BOUND, NO_BOUND)
    """Tokens that a flow of weight 1 may take and wait for."""

    share_micro_per_ms: Pair | None = None
    """The job's shares of the rates, if jobs share the quota."""

    time: tuple[int, int, bool] | None = None
    """The rate and the burst in messages that a quota on time puts in force, and whether it is the stricter."""

    price_ns: int = 0
    """The price of a message, if the scope is divided by time."""


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
    for scope, rate in enumerate(limits.shared_rate_micro_per_ms.tolist()):
        if rate != UNLIMITED:
            rates[scope][0], bursts[scope][0] = rate, int(limits.shared_burst_micro[scope])
    return replace(policy, shared=replace(policy.shared, rate_micro_per_ms=_pairs(rates), burst_micro=_pairs(bursts)))


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """A `DeciderState` in plain Python; equal states have the same future."""

    advanced_to_ms: int
    flows: dict[str, FlowMemory]
    queue: list[QueuedRow]
    epoch: int
    granted_as_of_ms: int
    grants: list[GrantMemory]
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
                pair(state.flows.lead_vt[i]),
                int(state.flows.window_second[i]),
                pair(state.flows.window_units[i]),
            )
            flows[name] = memory.meaningful(rules_of(policy, name), second=state.advanced_to_ms // 1000)
        queue = [
            QueuedRow(names[flow], size, arrival_ms, release_ms, is_deferred)
            for flow, size, arrival_ms, release_ms, is_deferred in zip(
                state.queue.flow.tolist(),
                state.queue.size_bytes.tolist(),
                state.queue.arrival_ms.tolist(),
                state.queue.release_ms.tolist(),
                [False] * len(state.queue) if state.queue.is_deferred is None else state.queue.is_deferred.tolist(),
                strict=True,
            )
        ]
        grants, bounds, deferral = [], state.grants.ahead_bound_milli, state.grants.deferral
        shares, time = state.grants.share_micro_per_ms, state.grants.time
        shared = in_force(policy, time).shared
        for scope in range(len(shared)):
            limits = ScopeLimits.from_limits(shared, scope, Level.JOB, scope)
            grants.append(
                GrantMemory(
                    limits.meaningful(pair(state.grants.balance_micro[scope])),
                    limits.meaningful(pair(state.grants.headroom_micro[scope])),
                    (NO_BOUND, NO_BOUND) if bounds is None else pair(bounds[scope]),
                    None if deferral is None else limits.meaningful(pair(deferral.room_micro[scope])),
                    (NO_BOUND, NO_BOUND) if deferral is None else limits.meaningful(pair(deferral.flow_micro[scope])),
                    None if shares is None else pair(shares[scope]),
                    None if time is None else (
                        int(time.shared_rate_micro_per_ms[scope]), int(time.shared_burst_micro[scope]),
                        bool(time.is_by_time[scope]),
                    ),
                    0 if time is None or time.prices is None else int(time.prices.shared_ns[scope]),
                )
            )  # fmt: skip
        own = None
        if time is not None:
            prices = [0] * len(time.names) if time.prices is None else time.prices.own_ns.tolist()
            buckets = zip(*(getattr(time.own, name).tolist() for name in MessageBuckets.__slots__), prices, strict=True)
            own = {name: TimeMemory(*each) for name, each in zip(time.names.to_pylist(), buckets, strict=True)}
        return cls(state.advanced_to_ms, flows, queue, state.grants.epoch, state.grants.as_of_ms, grants, own)

    def to_arrays(self) -> DeciderState:
        """Return the state as a `DeciderState`, so that the oracle can run a history by itself."""
        names = list(self.flows)
        flows = list(self.flows.values())
        queue = [(names.index(row.namespace), row.size_bytes, row.arrival_ms, row.release_ms) for row in self.queue]
        bounds = _pairs([grant.ahead_bound_milli for grant in self.grants])
        flow, size_bytes, arrival_ms, release_ms = np.array(queue, dtype=np.int64).reshape(-1, 4).T
        is_deferred = np.array([row.is_deferred for row in self.queue], dtype=np.bool_)
        rooms = [grant.room_micro for grant in self.grants if grant.room_micro is not None]
        deferral = Deferral(_pairs(rooms), _pairs([grant.flow_micro for grant in self.grants]))
        shares = [grant.share_micro_per_ms for grant in self.grants if grant.share_micro_per_ms is not None]
        return DeciderState(
            self.advanced_to_ms,
            Flows(
                pa.array(names, pa.string()),
                _pairs([flow.balance_micro for flow in flows]),
                _pairs([flow.lead_vt for flow in flows]),
                np.array([flow.window_second for flow in flows], dtype=np.int64),
                _pairs([flow.window_units for flow in flows]),
            ),
            Queue(flow, size_bytes, arrival_ms, release_ms, is_deferred if is_deferred.any() else None),
            Grants(
                self.epoch,
                _pairs([grant.balance_micro for grant in self.grants]),
                _pairs([grant.headroom_micro for grant in self.grants]),
                self.granted_as_of_ms,
                share_micro_per_ms=_pairs(shares) if shares else None,
                ahead_bound_milli=bounds if (bounds < NO_BOUND).any() else None,
                deferral=deferral if rooms else None,
                time=self._limits(),
            ),
        )

    def _limits(self) -> MessageLimits | None:
        shared = [grant.time for grant in self.grants if grant.time is not None]
        if self.time is None:
            return None
        rate, burst, is_by_time = np.array(shared, dtype=np.int64).reshape(-1, 3).T
        own = [(each.balance_micro, each.rate_micro_per_ms, each.burst_micro) for each in self.time.values()]
        columns = np.array(own, dtype=np.int64).reshape(-1, 3).T
        prices = MessagePrices.of(
            np.array([each.price_ns for each in self.time.values()], dtype=np.int64),
            np.array([grant.price_ns for grant in self.grants], dtype=np.int64),
        )
        return MessageLimits(
            rate, burst, is_by_time.astype(np.bool_), pa.array(list(self.time), pa.string()), MessageBuckets(*columns),
            prices,
        )  # fmt: skip


def _pairs(rows: Sequence[Sequence[int]]) -> Int64s:
    return np.array(rows, dtype=np.int64).reshape(-1, 2)
