"""Rows that joined a queue leave at a pace that is estimated in numbers which can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from spark_throttle.core.batch.admission import AdmissionPlan, plan_admission
from spark_throttle.core.batch.rows_behind import FREE_MICRO_PER_MS
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s
from spark_throttle.core.state import DeciderState
from tests.oracle.worlds import (
    Limit,
    Namespace,
    Window,
    limit,
    make_arrivals,
    make_policy,
    with_tokens,
)

MICRO_PER_MS = 1_000
"""The pace of one message per second."""


def planned(
    policy: CompiledPolicy,
    rows: Sequence[tuple[str, int]],
    *,
    share_micro_per_ms: Int64s | None = None,
    tokens: dict[str, tuple[float, float]] | None = None,
) -> AdmissionPlan:
    """Return the plan of a first batch in which shared scopes have `tokens`, or none."""
    state = DeciderState.initial(policy, share_micro_per_ms, now_ms=1_000)
    return plan_admission(with_tokens(state, policy, tokens or {}), make_arrivals(rows), policy, now_ms=1_000)


def per_second(plan: AdmissionPlan) -> dict[str, float]:
    """Return the pace of every remembered namespace, in messages per second."""
    names, pace = plan.state.flows.names.to_pylist(), plan.pace_micro_per_ms
    return dict(zip(names, (pace / MICRO_PER_MS).tolist(), strict=True))


def test_namespace_leaves_at_its_own_rate() -> None:
    policy = make_policy(
        namespaces={
            "a/fast": Namespace(limit(messages_per_second=50)),
            "a/slow": Namespace(limit(messages_per_second=2)),
            "a/shut": Namespace(limit(messages_per_second=0)),
        }
    )
    plan = planned(policy, [("a/fast", 1)] * 60 + [("a/slow", 1)] * 9 + [("a/shut", 1)])
    assert per_second(plan) == {"a/fast": 50, "a/slow": 2, "a/shut": 0}


@pytest.mark.parametrize(
    ("share", "together"), [(None, 8), (2_000, 2), (0, 8)], ids=["no other job", "share", "unleased"]
)
def test_namespaces_of_a_group_divide_its_rate_by_weight(share: int | None, together: int) -> None:
    """A job that has no share yet divides the quota itself."""
    light, heavy = Namespace(Limit(), "gold"), Namespace(limit(weight=3), "gold")
    policy = make_policy(groups={"gold": limit(messages_per_second=8)}, namespaces={"a/x": light, "a/y": heavy})
    shares = None if share is None else np.array([[UNLIMITED] * 4, [share, UNLIMITED, UNLIMITED, UNLIMITED]])
    plan = planned(policy, [("a/x", 1), ("a/y", 1)] * 5, share_micro_per_ms=shares)
    assert per_second(plan) == {"a/x": together / 4, "a/y": together * 3 / 4}


@pytest.mark.parametrize(("group", "namespaces"), [(0, 2), (1, 2_000)])
def test_namespaces_of_a_group_that_lets_hardly_anything_pass_wait_for_it_together(
    group: float, namespaces: int
) -> None:
    policy = make_policy(groups={"gold": limit(messages_per_second=group)}, default=Namespace(group="gold"))
    plan = planned(policy, [(f"a/{number}", 1) for number in range(namespaces)])
    assert per_second(plan) == {f"a/{number}": 0.001 for number in range(namespaces)}


def test_namespaces_that_the_job_stopped_divide_its_rate_by_their_weights_times_their_groups() -> None:
    policy = make_policy(
        job=limit(messages_per_second=10),
        groups={"gold": limit(messages_per_second=1_000, weight=4), "iron": limit(messages_per_second=1_000)},
        namespaces={"a/x": Namespace(Limit(), "gold"), "a/y": Namespace(Limit(), "iron")},
    )
    plan = planned(policy, [("a/x", 1), ("a/y", 1)] * 5, tokens={"gold": (100, 100), "iron": (100, 100)})
    assert per_second(plan) == {"a/x": 8, "a/y": 2}


def test_rows_without_bytes_leave_as_if_each_had_one() -> None:
    policy = make_policy(default=Namespace(limit(bytes_per_second=100)))
    assert per_second(planned(policy, [("a/x", 101)] + [("a/x", 0)] * 3)) == {"a/x": 100}


def test_rate_of_bytes_counts_by_the_sizes_of_the_rows_that_wait() -> None:
    policy = make_policy(default=Namespace(limit(bytes_per_second=100)))
    plan = planned(policy, [("a/x", 101)] + [("a/x", 10), ("a/x", 40)] * 3)
    assert per_second(plan) == {"a/x": 4}


@pytest.mark.parametrize(("bytes_per_second", "pace"), [(1_000, 0.001), (0, 0)])
def test_rows_that_are_large_for_their_rate_leave_slowly_and_not_never(bytes_per_second: float, pace: float) -> None:
    policy = make_policy(default=Namespace(limit(bytes_per_second=bytes_per_second, burst_seconds=0)))
    assert per_second(planned(policy, [("a/x", 5_000_000)] * 4)) == {"a/x": pace}


def test_rows_that_only_a_release_time_holds_leave_before_all_others() -> None:
    held = Namespace(by_count=Window(delay_units=1, delay_ms=100))
    plan = planned(make_policy(namespaces={"a/x": held}), [("a/x", 1)] * 3)
    assert plan.pace_micro_per_ms.tolist() == [FREE_MICRO_PER_MS]


def test_pace_is_that_of_the_namespaces_of_which_rows_joined() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=1)))
    first = planned(policy, [("a/x", 1)] * 4)
    second = plan_admission(first.state, make_arrivals([("a/y", 1)] * 4), policy, now_ms=1_001)
    assert per_second(first) == {"a/x": 1}
    assert per_second(second) == {"a/x": 0, "a/y": 1}


def test_batch_of_which_no_row_joins_the_queue_has_no_pace() -> None:
    found: Int64s = planned(make_policy(), [("a/x", 1)]).pace_micro_per_ms
    assert not found.any()
