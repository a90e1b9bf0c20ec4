"""A dead letter says when to try again: the rows of its namespace that were rejected before it go first."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any, Final

import pytest

from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, OnExcess, Verdict
from tests.oracle.decider import Decider
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

REJECT: Final = OnExcess.REJECT
Rows = list[tuple[str, int]]


def told(policy: CompiledPolicy, rows: Rows) -> tuple[Decider, list[tuple[int, str, int]]]:
    """Return a decider after one batch, and of each rejected row when to try again, its namespace and its size."""
    decider = Decider("kernel", policy)
    decisions = decider.batch(0, rows)
    return decider, [
        (decision.throttle_time_ms, *row)
        for decision, row in zip(decisions, rows, strict=True)
        if decision.verdict == Verdict.REJECT
    ]


def tried_again(decider: Decider, rejected: list[tuple[int, str, int]], every_ms: int = 1_000) -> Counter[str]:
    """Offer rejected rows in the first batch after the time that each was told; return how many are rejected again."""
    due: defaultdict[int, Rows] = defaultdict(list)
    for wait_ms, name, size in rejected:
        due[-(-wait_ms // every_ms)].append((name, size))
    again: Counter[str] = Counter()
    for batch in range(1, max(due) + 1):
        decisions = decider.batch(batch * every_ms, due[batch])
        again.update(
            name for (name, _), each in zip(due[batch], decisions, strict=True) if each.verdict == Verdict.REJECT
        )
    return again


def test_last_of_10_000_rows_at_30_a_second_waits_for_its_turn() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=30, on_excess=REJECT)))
    decider, rejected = told(policy, [("acme/x", 1)] * 10_000)
    assert (len(rejected), rejected[0][0], rejected[-1][0]) == (10_000 - 31, 34, 332_300)
    assert not tried_again(decider, rejected)


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_a_namespace_that_are_tried_again_when_they_were_told_pass(seed: int) -> None:
    draw = random.Random(seed)
    rate = draw.choice([{"messages_per_second": 3}, {"messages_per_second": 20}, {"bytes_per_second": 100}])
    own = limit(**rate, burst_seconds=draw.choice([1, 3]), on_excess=REJECT)
    rows = [(f"acme/{draw.choice('xyz')}", draw.choice([1, 10, 200])) for _ in range(300)]
    decider, rejected = told(make_policy(default=Namespace(own)), rows)
    assert len(rejected) > 100
    assert not tried_again(decider, rejected)


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_a_group_that_are_tried_again_when_they_were_told_pass_but_for_two_of_each(seed: int) -> None:
    """Tenants divide the group by weight, and their namespaces divide what each has, however many they are."""
    draw = random.Random(seed)
    tenants = {name: Tenant(limit(weight=draw.choice([1, 2, 5])), "g") for name in "abc"}
    policy = make_policy(
        groups={"g": limit(messages_per_second=30, burst_seconds=2, on_excess=REJECT)}, tenants=tenants,
        between_namespaces=("g",) if draw.random() < 0.3 else (),
    )  # fmt: skip
    names = [f"a/{n}" for n in range(6)] + ["b/x", "c/x", "c/y"]
    decider, rejected = told(policy, [(name, 1) for name in names for _ in range(60)])
    assert max(tried_again(decider, rejected).values(), default=0) <= 2  # a tie may go to another
    # All are served until the last is due: nobody was told to wait for longer than it takes.
    assert max(wait_ms for wait_ms, *_ in rejected) <= 1_000 * 60 * 9 / 30 * 4


@pytest.mark.parametrize(
    ("of_tenant", "of_group"),
    [
        ({"messages_per_second": 50}, {"messages_per_second": 10, "burst_seconds": 10}),
        ({"messages_per_second": 2, "burst_seconds": 50}, {"messages_per_second": 20}),
        ({"messages_per_second": 20}, {"bytes_per_second": 1_000, "burst_seconds": 20}),
    ],
    ids=["the group is slower", "the tenant is slower", "the group limits bytes"],
)
def test_row_waits_for_the_slowest_of_its_scopes_whichever_stopped_it(
    of_tenant: dict[str, Any], of_group: dict[str, Any]
) -> None:
    policy = make_policy(
        tenants={"a": Tenant(limit(**of_tenant, on_excess=REJECT), "g")},
        groups={"g": limit(**of_group, on_excess=REJECT)},
    )  # fmt: skip
    decider, rejected = told(policy, [("a/x", 500), ("a/y", 500)] * 100)
    assert max(tried_again(decider, rejected).values(), default=0) <= 2
    assert len(rejected) > 90


def test_row_that_its_namespace_stopped_waits_for_its_slower_tenant() -> None:
    tenant, own = limit(messages_per_second=10, burst_seconds=10), limit(messages_per_second=50, on_excess=REJECT)
    policy = make_policy(tenants={"a": Tenant(tenant)}, default=Namespace(own))
    decider, rejected = told(policy, [("a/x", 1)] * 200)
    assert len(rejected) == 200 - 51
    assert not tried_again(decider, rejected)
    assert rejected[-1][0] == 10_000 - 100


def test_row_is_never_due_where_nothing_comes() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=0, on_excess=REJECT)))
    _, rejected = told(policy, [("acme/x", 1)] * 4)
    assert [wait_ms for wait_ms, *_ in rejected] == [NEVER_MS] * 4


def test_row_that_waits_goes_before_one_that_is_rejected() -> None:
    policy = make_policy(tenants={"a": Tenant(limit(messages_per_second=1, on_excess=REJECT))})
    waits = make_policy(tenants={"a": Tenant(limit(messages_per_second=1))})
    decider = Decider("kernel", waits)
    decider.batch(0, [("a/x", 1)] * 12)
    decider.policy = policy
    decisions = decider.batch(0, [("a/x", 1)] * 3)
    assert [each.throttle_time_ms for each in decisions if each.verdict == Verdict.REJECT] == [11_000, 12_000, 13_000]
