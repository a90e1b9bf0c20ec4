"""How long messages wait and waited, who holds them back, and what quotas granted, as the usage table tells it.

What is told is compared with the waits of single rows, which a queue in a list knows.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.policy_change import carried
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.state import DeciderState
from spark_throttle.core.usage import UsageReport
from spark_throttle.core.waiting_times import bin_of, upper_ms
from spark_throttle.status.usage_table import PERCENTS, usage_rows
from tests.effort import thorough_after
from tests.oracle.decider import START_MS
from tests.oracle.worlds import Limit, Namespace, Tenant, limit, make_arrivals, make_policy

Scope = tuple[str, str]
SCOPES: Final[dict[str, list[Scope]]] = {
    name: [("job", "job"), *([("tenant", "a")] if name[0] == "a" else []), ("resource_group", group),
           ("namespace", name)]
    for name, group in (("a/x", "g"), ("a/y", "g"), ("b/x", "g"), ("c/x", "h"))
}  # fmt: skip


def policy_of_four() -> CompiledPolicy:
    """Return a policy under which each of four quotas holds somebody back, sooner or later."""
    return make_policy(
        job=limit(messages_per_second=6),
        groups={"g": limit(messages_per_second=3), "h": Limit()},
        tenants={"a": Tenant(limit(bytes_per_second=40))},
        namespaces={
            **{name: Namespace(group=scopes[-2][1]) for name, scopes in SCOPES.items()},
            "c/x": Namespace(limit(messages_per_second=4), "h"),
        },
    )


def batches(
    policy: CompiledPolicy, seed: int, seconds: int, *, others: CompiledPolicy | None = None
) -> list[tuple[UsageReport, dict[str, list[int]]]]:
    """Return the report of each second, and the waiting times of the rows of each namespace that left in it.

    With another policy, the two take turns: each batch brings the one that the last did not have.
    """
    draw, found = random.Random(seed), []
    state, queues = DeciderState.initial(policy, now_ms=START_MS), defaultdict[str, deque[int]](deque)
    now_ms = START_MS
    for _ in range(seconds):
        now_ms += draw.choice([200, 1_000, 1_000, 7_000])
        if others is not None:
            state = carried(state, policy, others, now_ms=now_ms)
            policy, others = others, policy
        rows = [(name, draw.choice([1, 40])) for name in SCOPES for _ in range(draw.choice([0, 0, 3, 9]))]
        for name, _ in rows:
            queues[name].append(now_ms)
        plan = plan_admission(state, make_arrivals(rows), policy, now_ms=now_ms)
        state = plan.state
        left = Counter(np.array(state.flows.names.to_pylist())[state.queue.flow].tolist())
        gone = {name: [now_ms - queue.popleft() for _ in range(len(queue) - left[name])]
                for name, queue in queues.items()}  # fmt: skip
        found.append((plan.usage, gone))
    return found


def by_scope(report: UsageReport, policy: CompiledPolicy) -> dict[Scope, dict[str, Any]]:
    return {(row["level"], row["scope"]): row for row in usage_rows(report, policy, 0).to_pylist()}


@pytest.mark.parametrize("seed", thorough_after(2, range(8)))
def test_waiting_times_of_a_scope_are_those_of_its_messages(seed: int) -> None:
    """What is told is at least the time of the message that it is told of, and at most a sixteenth more."""
    policy = policy_of_four()
    for report, gone in batches(policy, seed, 30):
        rows = by_scope(report, policy)
        for scope, row in rows.items():
            waits_ms = sorted(wait for name, each in gone.items() if scope in SCOPES[name] for wait in each)
            assert row["admitted_messages"] == len(waits_ms)
            assert sum(each["messages"] for each in row["waited"]) == sum(1 for wait in waits_ms if wait)
            for percent in PERCENTS:
                exact_ms = waits_ms[-(-len(waits_ms) * percent // 100) - 1] if waits_ms else 0
                assert exact_ms <= row[f"waited_p{percent}_ms"] <= exact_ms + exact_ms // 16


def test_histograms_of_batches_and_scopes_add_up() -> None:
    """The bins of all batches of two groups are those of the job over the whole time."""
    policy = policy_of_four()
    total: dict[str, Counter[int]] = defaultdict(Counter)
    exact = Counter[int]()
    for report, gone in batches(policy, 3, 40):
        for (level, _), row in by_scope(report, policy).items():
            total[level].update({each["up_to_ms"]: each["messages"] for each in row["waited"]})
        exact.update(wait for waits in gone.values() for wait in waits if wait)
    assert total["resource_group"] == total["namespace"] == total["job"]
    assert total["job"] == Counter(np.repeat(upper_ms(bin_of(np.array(list(exact)))), list(exact.values())).tolist())


def test_every_waiting_message_is_held_by_one_quota() -> None:
    policy, held = policy_of_four(), Counter[str]()
    for report, _ in batches(policy, 0, 45):
        rows = by_scope(report, policy)
        waiting = rows["job", "job"]["waiting_messages"]
        assert sum(row["held_messages"] for row in rows.values()) == waiting
        for (level, _), row in rows.items():
            held[level] += row["held_messages"]
            assert row["held_messages"] <= row["waiting_messages"]
            assert (row["oldest_waiting_ms"] is None) == (row["waiting_messages"] == 0)
    assert min(held[level] for level in ("job", "tenant", "resource_group", "namespace")) > 0


@pytest.mark.parametrize("changes", [False, True])
def test_what_a_quota_granted_adds_up_to_its_rate(*, changes: bool) -> None:
    """A batch that brings another policy was granted what its quotas earn since the batch before, like any other."""
    policy = policy_of_four()
    others = replace(policy, revision="another") if changes else None
    reports = [report for report, _ in batches(policy, 5, 60, others=others)]
    seconds = (reports[-1].now_ms - reports[0].now_ms) / 1000
    granted, admitted = Counter[Scope](), Counter[Scope]()
    for report in reports:
        for scope, row in by_scope(report, policy).items():
            granted[scope] += row["granted_messages"] or 0
            admitted[scope] += row["admitted_messages"]
    assert granted["resource_group", "g"] == pytest.approx(3 * seconds)
    assert granted["job", "job"] == pytest.approx(6 * seconds)
    assert granted["resource_group", "h"] == 0
    assert by_scope(reports[-1], policy)["resource_group", "h"]["granted_messages"] is None
    assert 0.3 < admitted["resource_group", "g"] / granted["resource_group", "g"] <= 1 + 1 / seconds
