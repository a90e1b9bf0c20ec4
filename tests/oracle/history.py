"""Histories: successive batches, and the kernel's decisions on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from spark_throttle.core.batch.admission import AdmissionPlan, plan_admission
from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import MOST_NS, CompiledPolicy, Int64s, Verdict
from spark_throttle.core.state import ControlRow, DeciderState
from tests.oracle.comparison import decisions_of
from tests.oracle.reference_rules import Tokens
from tests.oracle.reference_usage import Decision


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of a history."""

    now_ms: int
    arrivals: Arrivals
    policy: CompiledPolicy
    pins: ControlRow | None
    """What a new epoch pins before the batch; `None` if the batch brings no epoch. Another policy comes with one."""

    shared_micro: Int64s | None = None
    """Balances of the shared buckets that the batch begins with, whatever the last batch left; `None` keeps those."""

    def before(self, state: DeciderState, former: CompiledPolicy) -> DeciderState:
        """Return the state in which the batch begins, given the state that the last batch left under `former`."""
        if self.pins is not None:
            state = under_epoch(state, self.pins, former, self.policy, now_ms=self.now_ms)
        if self.shared_micro is None:
            return state
        return replace(state, shared=replace(state.shared, balance_micro=self.shared_micro))


def pins(epoch: int, paid_ms: int, **pinned: Any) -> ControlRow:
    """Return what an epoch pins that was made at a paying time."""
    return ControlRow(epoch, None, PayingTime(paid_ms, paid_ms), **pinned)


@dataclass(frozen=True, slots=True)
class History:
    """Successive batches."""

    steps: list[Step]

    def initial_state(self) -> DeciderState:
        """Return the state before the first step."""
        return DeciderState.initial(self.steps[0].policy)

    def play(self) -> Iterator[PlayedBatch]:
        """Yield the batches as the kernel decides them, each on the state that the last one left."""
        state, policy, memory = self.initial_state(), self.steps[0].policy, MatchMemory()
        for step in self.steps:
            state, policy = step.before(state, policy), step.policy
            plan = plan_admission(state, step.arrivals, step.policy, now_ms=step.now_ms, memory=memory)
            yield PlayedBatch(self, step, state, plan)
            state = plan.state


@dataclass(frozen=True, slots=True)
class PlayedBatch:
    """A batch of a history that the kernel has decided."""

    history: History
    step: Step
    before: DeciderState
    plan: AdmissionPlan

    @property
    def rows(self) -> list[DecidedRow]:
        """The batch's rows: the queue's, then the arrivals, with the names and sizes that they arrived with."""
        names = self.before.flows.names.to_pylist()
        queue = self.before.queue
        arrivals = self.step.arrivals
        units = [0] * len(arrivals) if arrivals.units is None else arrivals.units.to_pylist()
        most_ns = MOST_NS // max(1, len(queue) + len(arrivals)) if self.step.policy.has_time else 0
        flows, means = self.before.flows, self.before.prices
        each_ns = zip(names, flows.price_ns.tolist(), flows.priced_ms.tolist(), strict=True)
        known = {name: price_ns for name, price_ns, priced_ms in each_ns if priced_ms}
        namespaces = [names[flow] for flow in queue.flow.tolist()] + arrivals.namespaces.to_pylist()
        columns = zip(
            namespaces,
            queue.size_bytes.tolist() + arrivals.size_bytes.to_pylist(),
            queue.amounts(2)[1].tolist() + units,
            queue.arrival_ms.tolist() + [self.step.now_ms] * len(arrivals),
            [False] * len(queue) + [True] * len(arrivals),
            decisions_of(self.plan),
            [min(known.get(name, means.specific_ns) + means.common_ns, most_ns) for name in namespaces],
            strict=True,
        )
        return [DecidedRow(*row) for row in columns]


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """A row as it arrived, and its decision."""

    namespace: str
    size_bytes: int
    units: int
    arrival_ms: int
    is_arrival: bool
    decision: Decision
    time_ns: int
    """The processing time that it was estimated to take."""

    @property
    def tokens(self) -> Tokens:
        """The row's cost in tokens."""
        return 1, self.size_bytes, self.units, self.time_ns

    @property
    def is_admitted(self) -> bool:
        """Whether the row left for the sink."""
        return self.decision.verdict == Verdict.ADMIT
