"""The kernel against the scalar oracle: every decision, everything remembered, every number reported."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.decisions import Reason
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import MICRO, CompiledPolicy, OnExcess, Overflow, QueueBounds
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import QueueOverflowError
from spark_throttle.policy.model import SETTINGS
from tests.effort import examples, first_of
from tests.oracle.comparison import assert_same_plan, served_by
from tests.oracle.history import History, Step, pins
from tests.oracle.reference import reference_admission
from tests.oracle.reference_change import reference_epoch
from tests.oracle.reference_state import ReferenceState
from tests.oracle.reference_usage import FlowUsage
from tests.oracle.strategies import histories, policies
from tests.oracle.worlds import (
    Namespace,
    Tenant,
    Window,
    limit,
    make_arrivals,
    make_policy,
)

pytestmark = pytest.mark.slow


def assert_same_history(history: History) -> None:
    """Decide each batch twice, on the state that the kernel left; an overflow ends the history."""
    state, policy, memory = history.initial_state(), history.steps[0].policy, MatchMemory()
    for step in history.steps:
        if step.pins is not None:
            pinned = under_epoch(state, step.pins, policy, step.policy, now_ms=step.now_ms)
            told = reference_epoch(state, step.pins, policy, step.policy, now_ms=step.now_ms)
            assert ReferenceState.from_arrays(pinned, step.policy) == told
        state, policy = step.before(state, policy), step.policy
        arguments: dict[str, Any] = {"now_ms": step.now_ms}
        try:
            plan = plan_admission(state, step.arrivals, step.policy, **arguments, memory=memory)
        except QueueOverflowError:
            with pytest.raises(QueueOverflowError):
                reference_admission(state, step.arrivals, step.policy, **arguments)
            return
        expected = reference_admission(state, step.arrivals, step.policy, **arguments, served=served_by(plan))
        assert_same_plan(plan, expected, step.policy)
        state = plan.state


def test_drawn_policies_differ_in_every_field() -> None:
    """A field that always has the same value is not compared: draw it in `tests.oracle.strategies`."""
    seen: dict[str, set[str]] = defaultdict(set)

    @settings(max_examples=150, derandomize=True, database=None)
    @given(policies(may_fail=True))
    def look_at(policy: CompiledPolicy) -> None:
        for part in (policy.namespace_limits, policy.namespace_windows, policy.queue):
            for field in fields(part):
                seen[f"{type(part).__name__}.{field.name}"].add(str(getattr(part, field.name)))
        for limits in (policy.shared, policy.namespace_limits):
            for key, column in limits.settings.items():
                seen[key].add(str(column))

    look_at()
    assert {name for name, values in seen.items() if len(values) < 2} == set()
    assert seen.keys() >= SETTINGS.keys()


def test_oracle_counts_every_number_of_a_report() -> None:
    """A number that the oracle lacks is not compared; others compare what came back, and what is known late."""
    of_flows = {field.name for field in fields(UsageReport) if re.search("Int64s|Times", str(field.type))}
    not_of_flows = {"shared_micro", "shared_granted_micro"}
    late = {"reserved_messages", "reserved_units", "given_back_units", "overdrawn_units", "unsettled_messages"}
    assert {field.name for field in fields(FlowUsage)} == of_flows - not_of_flows - {"returned", *late}


@given(histories(may_fail=True))
def test_kernel_equals_oracle(history: History) -> None:
    assert_same_history(history)


@examples(50, in_search=300)
@given(histories(malformed=False, one_policy=True, monotone=True, max_steps=8))
def test_kernel_equals_oracle_over_longer_histories(history: History) -> None:
    assert_same_history(history)


@pytest.mark.parametrize("seed", first_of(1, range(6)))
def test_kernel_equals_oracle_on_large_batches(seed: int) -> None:
    """Hundreds of flows and thousands of rows: every scope has many flows to divide its tokens between."""
    random = Random(seed)
    on_excess = random.choice((OnExcess.DELAY, OnExcess.REJECT))
    groups = {
        name: limit(
            messages_per_second=random.choice((200, 1_000)),
            bytes_per_second=random.choice((None, 200_000, 10**6)),
            weight=random.choice((1, 3)),
            on_excess=random.choice((on_excess, OnExcess.DELAY, OnExcess.OBSERVE)),
        )
        for name in ("gold", "iron")
    }
    policy = make_policy(
        job=limit(messages_per_second=1_500),
        tenants={
            f"tenant-{i}": Tenant(limit(bytes_per_second=300_000), random.choice((None, "gold"))) for i in range(4)
        },
        groups=groups,
        namespaces={
            f"tenant-{i % 8}/{i}": Namespace(
                limit(messages_per_second=random.choice((None, None, 5, 20)), weight=random.choice((1, 1, 2, 10))),
                group=random.choice((None, "gold", "iron")),
                by_size=Window(delay_units=20_000, delay_ms=1_500) if i % 10 == 0 else Window(),
            )
            for i in range(100)
        },
        default=Namespace(group="iron"),
        queue=QueueBounds(
            messages=1_000, bytes=2**40 if seed % 2 else 600_000, age_ms=3_000, on_overflow=Overflow.REJECT
        ),
    )
    steps = []
    now_ms = 1_760_000_000_000
    for epoch in range(1, 6):
        now_ms += random.choice((400, 1_000))
        names = [f"tenant-{i % 8}/{i}" for i in (min(int(random.paretovariate(0.5)), 199) for _ in range(1_500))]
        arrivals = make_arrivals([(name, int(random.lognormvariate(6, 1))) for name in names])
        scopes = len(policy.shared)
        balances = [(random.randint(-5, 900) * MICRO, random.randint(-5, 500_000) * MICRO, 0, 0) for _ in range(scopes)]
        micro = np.where(policy.shared.is_limited, np.array(balances, dtype=np.int64), 0)
        is_new = random.random() < 0.8 or epoch == 1
        steps.append(Step(now_ms, arrivals, policy, pins(epoch, now_ms) if is_new else None, micro if is_new else None))
    history = History(steps)
    assert_same_history(history)
    assert put_out_of(history) > 0


def put_out_of(history: History) -> int:
    """Return how many rows that had waited are put out of the queue."""
    state, found = history.initial_state(), 0
    for step in history.steps:
        state = step.before(state, step.policy)
        queued = len(state.queue)
        plan = plan_admission(state, step.arrivals, step.policy, now_ms=step.now_ms)
        found += int((plan.decisions.reason[:queued] == Reason.QUEUE_FULL).sum())
        state = plan.state
    return found
