"""The state of the decider as plain Python values: dataclasses, no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.budgets import CalendarWindows, Spent
from spark_throttle.core.measured_time import MeanPrices
from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s, Level, Limits
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import DeciderState, Flows, Queue
from tests.oracle.reference_bucket import TokenBucket
from tests.oracle.reference_budget import KEYS, Tally
from tests.oracle.reference_rules import (
    NamespaceRules,
    Pair,
    ScopeLimits,
    Tokens,
    pair,
    rules_of,
    tokens,
)


@dataclass(frozen=True, slots=True)
class FlowMemory:
    """The stored state of one namespace."""

    balance_micro: Tokens
    cut_micro: Tokens
    """What the largest bucket since it was full lacks, beyond what the bucket lacks."""

    window_second: int
    window_units: Pair
    price_ns: int = 0
    priced_ms: int = 0
    tallies: tuple[Tally, ...] = ()
    """What is used of the namespace's budgets, where anything is."""

    def meaningful(self, rules: NamespaceRules, *, second: int) -> FlowMemory:
        """Return the same memory, with 0 where there is no limit and for a window that has ended or counted nothing."""
        counts = self.window_second == second and self.window_units != (0, 0)
        balance_micro, cut_micro = (rules.limits.meaningful(each) for each in (self.balance_micro, self.cut_micro))
        units, second = (self.window_units, second) if counts else ((0, 0), 0)
        return replace(
            self, balance_micro=balance_micro, cut_micro=cut_micro, window_second=second, window_units=units,
            tallies=those_of(rules.limits, self.tallies),
        )  # fmt: skip


def those_of(limits: ScopeLimits, tallies: Sequence[Tally]) -> tuple[Tally, ...]:
    """Return the tallies of budgets that a scope has, where anything is used."""
    keys = [key for key, _ in limits.budgets]
    return tuple(tally for tally in tallies if tally.key in keys and (tally.used or tally.over))


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A waiting row."""

    namespace: str
    size_bytes: int
    units: int
    arrival_ms: int
    release_ms: int


@dataclass(frozen=True, slots=True)
class ScopeMemory:
    """The stored state of one shared scope."""

    balance_micro: Tokens
    share_micro_per_ms: Tokens | None = None
    """The job's shares of the rates, if jobs share the quota."""

    tallies: tuple[Tally, ...] = ()

    def bucket(self, quota: ScopeLimits, dimension: Dimension) -> TokenBucket:
        """Return the bucket of a limited dimension: at the job's share, with a burst in proportion."""
        rate, burst = quota.rate_micro_per_ms[dimension], quota.burst_micro[dimension]
        share = rate if self.share_micro_per_ms is None else min(self.share_micro_per_ms[dimension], rate)
        if share != rate:
            burst = burst * ((share << 30) // rate) >> 30
        return TokenBucket(share, burst, self.balance_micro[dimension])


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """A `DeciderState` in plain Python, without what the fair tree remembers."""

    advanced_to_ms: int
    flows: dict[str, FlowMemory]
    queue: list[QueuedRow]
    epoch: int
    shared_as_of_ms: int
    shared: list[ScopeMemory]
    prices: MeanPrices = field(default_factory=MeanPrices)
    paid_ms: int = 0
    windows: tuple[tuple[int, ...], ...] = ()
    """The numbers and the ends of the windows of budgets."""

    @classmethod
    def from_arrays(cls, state: DeciderState, policy: CompiledPolicy) -> ReferenceState:
        """Return `state` under `policy`, with 0 for every value that has no meaning under it."""
        names: list[str] = state.flows.names.to_pylist()
        flows = {}
        for i, name in enumerate(names):
            memory = FlowMemory(
                tokens(state.flows.balance_micro[i]),
                tokens(state.flows.cut_micro[i]),
                int(state.flows.window_second[i]),
                pair(state.flows.window_units[i]),
                int(state.flows.price_ns[i]),
                int(state.flows.priced_ms[i]),
                tallies_of(state.flows.spent, i, policy.namespace_limits),
            )
            flows[name] = memory.meaningful(rules_of(policy, name), second=state.advanced_to_ms // 1000)
        queue = [
            QueuedRow(names[flow], size, units, arrival_ms, release_ms)
            for flow, size, units, arrival_ms, release_ms in zip(
                state.queue.flow.tolist(),
                state.queue.size_bytes.tolist(),
                [0] * len(state.queue) if state.queue.units is None else state.queue.units.tolist(),
                state.queue.arrival_ms.tolist(),
                state.queue.release_ms.tolist(),
                strict=True,
            )
        ]
        shared, share = [], state.shared.share_micro_per_ms
        for scope in range(len(policy.shared)):
            limits = ScopeLimits.from_limits(policy.shared, scope, Level.JOB, scope)
            balance_micro = limits.meaningful(tokens(state.shared.balance_micro[scope]))
            tallies = those_of(limits, tallies_of(state.shared.spent, scope, policy.shared))
            shared.append(ScopeMemory(balance_micro, None if share is None else tokens(share[scope]), tallies))
        return cls(
            state.advanced_to_ms, flows, queue, state.epoch, state.shared.as_of_ms, shared, state.prices,
            state.paid_ms, _columns_of(state.windows),
        )  # fmt: skip

    def to_arrays(self, policy: CompiledPolicy) -> DeciderState:
        """Return the state as a `DeciderState`, so that the oracle can run a history by itself."""
        names = list(self.flows)
        flows = list(self.flows.values())
        queue = [
            (names.index(row.namespace), row.size_bytes, row.arrival_ms, row.release_ms, row.units)
            for row in self.queue
        ]
        columns = np.array(queue, dtype=np.int64).reshape(-1, 5).T
        shares = [scope.share_micro_per_ms for scope in self.shared if scope.share_micro_per_ms is not None]
        return DeciderState(
            self.advanced_to_ms,
            Flows(
                pa.array(names, pa.string()),
                _tokens([flow.balance_micro for flow in flows]),
                _tokens([flow.cut_micro for flow in flows]),
                np.zeros((len(flows), 2), dtype=np.int64),
                np.zeros((len(flows), 2), dtype=np.int64),
                np.array([flow.window_second for flow in flows], dtype=np.int64),
                np.array([flow.window_units for flow in flows], dtype=np.int64).reshape(-1, 2),
                np.array([flow.price_ns for flow in flows], dtype=np.int64),
                np.array([flow.priced_ms for flow in flows], dtype=np.int64),
                _spent([flow.tallies for flow in flows], policy.namespace_limits),
            ),
            Queue(*columns),
            SharedBuckets(
                _tokens([scope.balance_micro for scope in self.shared]),
                self.shared_as_of_ms,
                _tokens(shares) if shares else None,
                spent=_spent([scope.tallies for scope in self.shared], policy.shared),
            ),
            self.epoch,
            prices=self.prices,
            paid_ms=self.paid_ms,
            windows=CalendarWindows(*(np.array(each, dtype=np.int64) for each in self.windows))
            if self.windows
            else None,
        )


def tallies_of(spent: Spent | None, at: int, limits: Limits) -> tuple[Tally, ...]:
    """Return what is used of the budgets of one scope."""
    if spent is None:
        return ()
    columns = zip(limits.budgets, spent.used[at].tolist(), spent.over[at].tolist(), strict=True)
    return tuple(Tally(KEYS[key], used, over) for key, used, over in columns if used or over)


def _spent(tallies: Sequence[Sequence[Tally]], limits: Limits) -> Spent | None:
    if not limits.budgets:
        return None
    spent = Spent(*np.zeros((2, len(tallies), len(limits.budgets)), dtype=np.int64))
    for at, each in enumerate(tallies):
        for tally in each:
            column = limits.budgets.index(KEYS.index(tally.key))
            spent.used[at, column], spent.over[at, column] = tally.used, tally.over
    return spent


def _columns_of(windows: CalendarWindows | None) -> tuple[tuple[int, ...], ...]:
    return () if windows is None else tuple(tuple(getattr(windows, each.name).tolist()) for each in fields(windows))


def _tokens(rows: Sequence[Tokens]) -> Int64s:
    return np.array(rows, dtype=np.int64).reshape(-1, len(Dimension))
