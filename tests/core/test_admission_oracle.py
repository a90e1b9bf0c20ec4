"""The kernel against the scalar oracle: every decision, everything remembered, every number reported."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, note

from spark_throttle.core.admission import plan_admission
from spark_throttle.errors import QueueOverflowError
from spark_throttle.testing.comparison import assert_same_plan
from spark_throttle.testing.history import History
from spark_throttle.testing.reference import reference_admission
from spark_throttle.testing.strategies import histories


def assert_same_history(history: History) -> None:
    """Decide each batch twice, on the state that the kernel left; an overflow ends the history."""
    state = history.initial_state()
    for step in history.steps:
        state = step.before(state)
        arguments = {"now_ms": step.now_ms, "shards": history.shards, "shard": history.shard}
        note(f"at {step.now_ms} ms")
        try:
            expected = reference_admission(state, step.arrivals, step.policy, **arguments)
        except QueueOverflowError as overflow:
            with pytest.raises(QueueOverflowError, match=f"^{re.escape(str(overflow))}$"):
                plan_admission(state, step.arrivals, step.policy, **arguments)
            return
        plan = plan_admission(state, step.arrivals, step.policy, **arguments)
        assert_same_plan(plan, expected, step.policy)
        state = plan.state


@given(histories(may_fail=True))
def test_kernel_equals_oracle(history: History) -> None:
    assert_same_history(history)


@given(histories(malformed=False, one_policy=True, monotone=True, max_steps=8))
def test_kernel_equals_oracle_over_longer_histories(history: History) -> None:
    assert_same_history(history)
