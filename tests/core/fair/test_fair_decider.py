"""L3 through the decider: what a backlogged namespace or tenant gets, whatever others are there and come."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_throttle.core.quota import CompiledPolicy, OnExcess
from tests.core.fair.histories import judged, lived
from tests.core.fair.kernel_worlds import DecidedWorld
from tests.effort import crossed, thorough_after
from tests.oracle.decider import Decider
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy


@pytest.mark.slow
@pytest.mark.parametrize("first", thorough_after(1, range(0, 60, 10)))
def test_no_group_tenant_or_namespace_is_apart_from_the_fluid_by_more_than_a_constant(first: int) -> None:
    for seed in range(first, first + 10):
        judged(lived(seed, 12, DecidedWorld), seed)


def group_of(rate: float, *, on_excess: OnExcess = OnExcess.DELAY, **tenants: int) -> CompiledPolicy:
    """Return a policy with one group for all, and weights of tenants."""
    return make_policy(
        groups={"g": limit(messages_per_second=rate, on_excess=on_excess)},
        tenants={name: Tenant(limit(weight=weight), "g") for name, weight in tenants.items()},
        default=Namespace(group="g"),
    )


def test_a_tenant_of_weight_1000_is_not_starved_by_names_that_come_once() -> None:
    """<https://github.com/postel-sh/postel/issues/126>, with new names in each batch."""
    decider, went = Decider("kernel", group_of(100, b=1_000)), 0
    for batch in range(25):
        decider.batch(1_000 * batch, [(f"a{n}/{batch}", 1) for n in range(120)] + [("b/x", 1)] * 10)
        went += decider.admitted()["b/x"]
    assert went >= 25 * 10 - 1


def test_a_quiet_tenant_does_not_wait_behind_one_with_a_hundred_namespaces() -> None:
    """<https://github.com/postel-sh/postel/issues/126>, `triggerdotdev/trigger.dev#2617`, SQS's fair queues."""
    decider = Decider("kernel", group_of(100))
    for batch in range(30):
        busy = [(f"a/{n}", 1) for n in range(100)] * 3
        decider.batch(1_000 * batch, busy + [("b/x", 1)] * 10 + [("c/x", 1)] * 10)
        assert (decider.admitted()["b/x"], decider.admitted()["c/x"]) == (10, 10)


def test_a_light_tenant_has_its_turn_where_a_batch_has_one_row() -> None:
    decider, went = Decider("kernel", group_of(1, b=3)), Counter[str]()
    for batch in range(8):
        decider.batch(1_000 * batch, [] if batch else [("a/x", 1), ("b/x", 1)] * 8, {"g": (0, 0)})
        went += decider.admitted()
    assert went == {"a/x": 2, "b/x": 6}


def test_no_lead_is_kept_of_tenants_that_had_their_turns() -> None:
    decider, kept = Decider("kernel", group_of(1)), []
    for batch in range(6):
        rows = [("a/x", 1), ("b/x", 1), ("c/x", 1)] * 9
        decider.batch(1_000 * batch, [] if batch else rows, {"g": (0, 0)})
        kept.append(len(decider.state.nodes))
    assert kept == [3, 3, 0, 3, 3, 0]


def test_namespaces_that_divide_a_group_have_their_turns_where_a_batch_has_one_row() -> None:
    policy = make_policy(
        groups={"g": limit(messages_per_second=1)}, namespaces={"a/1": Namespace(limit(weight=2), "g")},
        default=Namespace(group="g"), between_namespaces=["g"],
    )  # fmt: skip
    decider, went = Decider("kernel", policy), Counter[str]()
    for batch in range(20):
        rows = [(name, 1) for name in ("a/1", "a/2", "b/1", "b/2")] * 20
        decider.batch(1_000 * batch, [] if batch else rows, {"g": (0, 0)})
        went += decider.admitted()
    assert went == {"a/1": 8, "a/2": 4, "b/1": 4, "b/2": 4}


def test_a_tenant_that_splits_itself_into_a_thousand_namespaces_gains_at_most_a_message() -> None:
    decider, served = Decider("kernel", group_of(37)), Counter[str]()
    rows = [("one/n", 1)] * 2_000 + [(f"split/{n}", 1) for n in range(1_000)] * 2
    for batch in range(12):
        decider.batch(1_000 * batch, [] if batch else rows)
        for name, count in decider.admitted().items():
            served[name.split("/")[0]] += count
        assert abs(served["one"] - served["split"]) <= 1


def test_dominant_resource_is_what_is_shared() -> None:
    """A message of 1,000 bytes takes a tenth of the bytes of a second, an empty one a hundredth of the messages."""
    policy = make_policy(
        groups={"gold": limit(messages_per_second=100, bytes_per_second=10_000)}, default=Namespace(group="gold")
    )
    decider = Decider("kernel", policy)
    decider.batch(0, [("small", 0)] * 200 + [("large", 1_000)] * 20)
    assert decider.admitted() == {"small": 92, "large": 9}


@pytest.mark.parametrize("burst", [3, 10])
def test_rows_that_a_scope_rejects_cost_nobody_a_turn(burst: int) -> None:
    """Rows that were next when the tokens ended are rejected; who lost one is not charged for it."""
    decider, served = Decider("kernel", group_of(7, on_excess=OnExcess.REJECT)), Counter[str]()
    names = ("a/x", "b/x", "c/x")
    for batch in range(90):
        decider.batch(1_000 * batch, [(name, 1) for name in names] * burst)
        assert not len(decider.state.queue)
        served.update(decider.admitted())
    assert max(served.values()) - min(served.values()) <= 4


def test_rows_that_become_too_old_cost_nobody_a_turn() -> None:
    policy = group_of(2)
    decider = Decider("kernel", replace(policy, queue=replace(policy.queue, age_ms=1_500)))
    served = Counter[str]()
    for batch in range(120):
        decider.batch(1_000 * batch, [(name, 1) for name in ("a/x", "b/x", "c/x")] * 2)
        served.update(decider.admitted())
    assert max(served.values()) - min(served.values()) <= 4


def test_row_whose_turn_had_come_and_that_became_too_old_costs_its_namespace_none_of_another_size() -> None:
    policy = make_policy(groups={"g": limit(bytes_per_second=50)}, default=Namespace(group="g"))
    decider = Decider("kernel", replace(policy, queue=replace(policy.queue, age_ms=1_500)))
    served = Counter[str]()
    for batch in range(60):
        rows = [(name, 1 + 99 * ((batch + at) % 2)) for at, name in enumerate(("a/x", "a/y", "b/x"))]
        decider.batch(1_000 * batch, [*rows, *((name, 101 - size) for name, size in rows)])
        served.update({name: usage.admitted[1] for name, usage in decider.plan.usage.items()})
    assert abs(served["a/x"] - served["a/y"]) <= 2 * 100


def test_namespace_that_was_ahead_when_its_rows_ended_is_forgotten_once_nobody_waits_for_it() -> None:
    policy = make_policy(groups={"g": limit(bytes_per_second=10)}, default=Namespace(group="g"))
    decider = Decider("kernel", policy)
    decider.batch(0, [("t/a", 30), ("t/b", 30)])
    assert decider.admitted().total() == 1
    assert decider.state.flows.lead_work.any(axis=1).sum() == 2, "one is ahead, one behind"
    for batch in range(1, 4):
        decider.batch(1_000 * batch)
    assert not len(decider.state.queue)
    assert not len(decider.state.flows)


@pytest.mark.parametrize("is_between_namespaces", [False, True])
def test_a_group_is_divided_between_tenants_unless_it_says_between_namespaces(*, is_between_namespaces: bool) -> None:
    policy = make_policy(
        groups={"g": limit(messages_per_second=60)},
        namespaces={"a/1": Namespace(limit(weight=3), "g")},
        default=Namespace(group="g"),
        between_namespaces=("g",) if is_between_namespaces else (),
    )
    decider, served = Decider("kernel", policy), Counter[str]()
    rows = [(name, 1) for name in ("a/1", "a/2", "a/3", "b/1") for _ in range(300)]
    for batch in range(6):
        decider.batch(1_000 * batch, [] if batch else rows)
        served.update(decider.admitted())
    parts = {"a/1": 3, "a/2": 1, "a/3": 1, "b/1": 1 if is_between_namespaces else 5}
    whole = sum(parts.values())
    for name, part in parts.items():
        assert served[name] == pytest.approx(361 * part / whole, abs=2)


def test_a_tenant_with_a_limit_divides_it_between_its_namespaces_of_a_group_that_namespaces_divide() -> None:
    policy = make_policy(
        groups={"g": limit(messages_per_second=100)},
        tenants={"a": Tenant(limit(messages_per_second=10))},
        default=Namespace(group="g"),
        between_namespaces=("g",),
    )
    decider, served = Decider("kernel", policy), Counter[str]()
    names = [f"a/{n}" for n in range(7)]
    for batch in range(40):
        decider.batch(1_000 * batch, [(name, 1) for name in names] * 3 + [("b/1", 1)] * 200)
        served.update(decider.admitted())
    assert max(served[name] for name in names) - min(served[name] for name in names) <= 2
    assert sum(served[name] for name in names) == pytest.approx(400, abs=2)


def backlogged(
    decider: Decider, offers: dict[str, list[int]], batches: int, before: Callable[[int], list[tuple[str, int]]]
) -> dict[str, int]:
    """Return the bytes that each of some namespaces is served, which send the sizes of their offer again and again.

    `before` is called before every batch, and returns what others send.
    """
    sent, served = Counter[str](), Counter[str]()
    queues: dict[str, deque[int]] = {name: deque() for name in offers}
    for batch in range(batches):
        rows = list(before(batch))
        for name, sizes in offers.items():
            while len(queues[name]) < 60:
                queues[name].append(sizes[sent[name] % len(sizes)])
                rows.append((name, queues[name][-1]))
                sent[name] += 1
        decider.batch(1_000 * batch, rows)
        for name, count in decider.admitted().items():
            served[name] += sum(queues[name].popleft() for _ in range(count)) if name in queues else 0
    return served


@pytest.mark.parametrize("apart", [1, 7])
def test_a_short_job_changes_nothing_of_what_members_of_a_group_owe_each_other_in_messages(apart: int) -> None:
    """The group limits messages, and the job bytes, of which another tenant now and then wants more than there is."""
    members = {name: Namespace(group="g") for name in ("a/x", "b/x")}
    groups = {"g": limit(messages_per_second=1)}
    decider = Decider("kernel", make_policy(job=limit(bytes_per_second=10**7), groups=groups, namespaces=members))
    bulk = [("other/x", 10**7)] * 2
    served = backlogged(decider, {name: [100] for name in members}, 120, lambda batch: [] if batch % apart else bulk)
    assert abs(served["a/x"] - served["b/x"]) <= 6 * 100


def test_what_tenants_of_a_group_owe_each_other_is_kept_the_same_whatever_another_group_limits() -> None:
    kept = []
    for other in (limit(), limit(messages_per_second=5)):
        groups = {"g": limit(bytes_per_second=1_000), "h": other}
        decider = Decider("kernel", make_policy(groups=groups, default=Namespace(group="g")))
        decider.batch(0, [("a/x", 3), ("b/x", 40)] * 3, {"g": (0, 9)})
        kept.append(decider.state.nodes.lead_work.tolist())
    assert kept[0] == kept[1] != []


@pytest.mark.parametrize(("apart", "own", "divided"), crossed(
    [1, 10], [{"messages_per_second": 10**6}, {"bytes_per_second": 10**9}], ["between tenants", "between namespaces"],
    of=2,
))  # fmt: skip
def test_a_tenant_that_changes_its_own_entry_owes_what_it_did(apart: int, own: dict[str, Any], divided: str) -> None:
    """It sends a small message behind each large one, and a limit of its own comes and goes."""
    policies = [
        make_policy(
            tenants={"a": Tenant(each)}, groups={"g": limit(bytes_per_second=100)},
            namespaces={name: Namespace(group="g") for name in ("a/x", "b/x")},
            between_namespaces=["g"] if divided == "between namespaces" else [],
        ) for each in (limit(), limit(**own))
    ]  # fmt: skip
    decider = Decider("kernel", policies[0])

    def changes(batch: int) -> list[tuple[str, int]]:
        if batch % apart == 0:
            decider.policy = policies[batch // apart % 2]
        return []

    served = backlogged(decider, {"a/x": [1_000, 1], "b/x": [10]}, 160, changes)
    assert abs(served["a/x"] - served["b/x"]) <= 4 * 1_000


def test_tenants_that_change_the_weights_of_their_namespaces_gain_nothing_from_others() -> None:
    """Five of them send small messages behind large ones; their five neighbours have the weights that they had."""
    large, small = [f"a{n}/{name}" for n in range(5) for name in "xy"], [f"b{n}/x" for n in range(5)]
    policies = [
        make_policy(
            groups={"g": limit(bytes_per_second=200)},
            namespaces={name: Namespace(limit(weight=weight if name in large else 1), "g") for name in large + small},
        ) for weight in (1, 1_000)
    ]  # fmt: skip
    decider = Decider("kernel", policies[0])

    def changes(batch: int) -> list[tuple[str, int]]:
        decider.policy = policies[batch % 2]
        return []

    served = backlogged(decider, {name: [1_000, 1] if name in large else [20] for name in large + small}, 160, changes)
    assert abs(sum(served[name] for name in large) - sum(served[name] for name in small)) <= 1_500


def test_a_quota_on_time_that_begins_to_delay_lets_no_member_of_a_group_go_again_and_again() -> None:
    """Rows take next to no time, and the group limits messages: who is owed two thirds of a message gets one."""
    policies = [
        make_policy(
            job=limit(messages_per_second=50, request_percentage=250, on_excess=each),
            groups={"g": limit(messages_per_second=1)}, default=Namespace(group="g"),
        ) for each in (OnExcess.OBSERVE, OnExcess.DELAY)
    ]  # fmt: skip
    decider, served = Decider("kernel", policies[0]), Counter[str]()
    for batch in range(52):
        if batch == 40:
            decider.policy, served = policies[1], Counter[str]()
        decider.batch(2_000 * batch, [("a/x", 1), *[("b/x", 1), ("c/x", 1)] * 14])
        served.update(decider.admitted())
    assert max(served.values()) - min(served.values()) <= 2


def test_rows_that_have_none_of_what_counts_most_hold_nobody_up_for_those_that_have() -> None:
    """Of three kinds of rows one has no units, and may be next. The job limits units, and the group messages."""
    members = [f"{each}/x" for each in "abcd"]
    policy = make_policy(
        job=limit(units_per_second=10), groups={"g": limit(messages_per_second=5, request_percentage=1)},
        namespaces={name: Namespace(group="g") for name in members},
    )  # fmt: skip
    decider, served = Decider("kernel", policy), Counter[str]()
    for batch in range(30):
        rows = [(100, 0), (1_000, 5), (10, 5)] * 10
        decider.batch(1_000 * batch, [] if batch else [(name, *row) for name in members for row in rows])
        served.update(decider.admitted())
        assert max(served.values()) - min(served[name] for name in members) <= 2
