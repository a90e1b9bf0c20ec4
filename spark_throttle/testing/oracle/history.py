"""Histories: successive batches of one shard, and the kernel's decisions on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.batch.admission import AdmissionPlan, plan_admission
from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.limits.message_limits import under_time
from spark_throttle.core.names.match_memory import MatchMemory
from spark_throttle.core.policy_change import carried, with_leads_carried
from spark_throttle.core.quota import CompiledPolicy, Verdict
from spark_throttle.core.state import DeciderState, Grants
from spark_throttle.testing.oracle.comparison import decisions_of
from spark_throttle.testing.oracle.reference_rules import Pair
from spark_throttle.testing.oracle.reference_usage import Decision


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of a history."""

    now_ms: int
    arrivals: Arrivals
    policy: CompiledPolicy
    grants: Grants | None
    """The grants of a new epoch before the batch; `None` keeps the present ones."""

    deferred_each: int | None = None
    """Every so many of the queued rows wait for their verdict, whatever the last batch left; `None` keeps what it left.
    """

    def before(self, state: DeciderState, former: CompiledPolicy) -> DeciderState:
        """Return the state in which the batch begins, given the state that the last batch left under `former`."""
        state = self.deferred(state)
        time = state.grants.time if self.grants is None else self.grants.time
        was, becomes = under_time(former, state.grants.time), under_time(self.policy, time)
        if former is not self.policy:
            state = carried(state, was, becomes, now_ms=self.now_ms)
        else:
            state = with_leads_carried(state, was, becomes)
        return state if self.grants is None else replace(state, grants=self.grants)

    def deferred(self, state: DeciderState) -> DeciderState:
        """Return a state in which the rows that `deferred_each` asks for wait for their verdict."""
        if self.deferred_each is None or not len(state.queue):
            return state
        is_deferred = np.arange(len(state.queue)) % self.deferred_each == 0
        return replace(state, queue=replace(state.queue, is_deferred=is_deferred))


@dataclass(frozen=True, slots=True)
class History:
    """Successive batches of one shard."""

    shards: int
    shard: int
    steps: list[Step]

    def initial_state(self) -> DeciderState:
        """Return the state before the first step."""
        return DeciderState.initial(len(self.steps[0].policy.shared))

    def play(self) -> Iterator[PlayedBatch]:
        """Yield the batches as the kernel decides them, each on the state that the last one left."""
        state, policy, memory = self.initial_state(), self.steps[0].policy, MatchMemory()
        for step in self.steps:
            state, policy = step.before(state, policy), step.policy
            plan = plan_admission(
                state, step.arrivals, step.policy,
                now_ms=step.now_ms, shards=self.shards, shard=self.shard, memory=memory,
            )  # fmt: skip
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
        columns = zip(
            [names[flow] for flow in queue.flow.tolist()] + arrivals.namespaces.to_pylist(),
            queue.size_bytes.tolist() + arrivals.size_bytes.to_pylist(),
            queue.arrival_ms.tolist() + [self.step.now_ms] * len(arrivals),
            [False] * len(queue) + [True] * len(arrivals),
            decisions_of(self.plan),
            strict=True,
        )
        return [DecidedRow(*row) for row in columns]


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """A row as it arrived, and its decision."""

    namespace: str
    size_bytes: int
    arrival_ms: int
    is_arrival: bool
    decision: Decision

    @property
    def tokens(self) -> Pair:
        """The row's cost in tokens."""
        return 1, self.size_bytes

    @property
    def is_admitted(self) -> bool:
        """Whether the row left for the sink."""
        return self.decision.verdict == Verdict.ADMIT
