"""L3 where nothing changes: equals that are always backlogged are served alike."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.testing.simulation.job import SimulatedJob
from tests.effort import examples
from tests.life.counting import admitted_in

pytestmark = pytest.mark.slow

SECONDS = 60


@dataclass(frozen=True)
class Tenancy:
    """Namespaces of one group, each with one size of message, and a slow limit of one dimension."""

    sizes_bytes: dict[str, int]
    weights: dict[str, int]
    publish: dict[str, Any]

    @property
    def cost(self) -> dict[str, int]:
        """What a message of each costs in the dimension that is limited."""
        if "messages_per_second" in self.publish:
            return dict.fromkeys(self.sizes_bytes, 1)
        return self.sizes_bytes

    def rows(self) -> list[tuple[str, int]]:
        """Return more than can go."""
        rate = max(self.publish.get("messages_per_second", 0), self.publish.get("bytes_per_second", 0))
        many = SECONDS + self.publish["burst_seconds"]
        return [
            (name, size) for name, size in self.sizes_bytes.items() for _ in range(1 + many * rate // self.cost[name])
        ]

    def bound(self, name: str) -> Fraction:
        """Return a message of the namespace, in terms of its weight."""
        return Fraction(self.cost[name], self.weights[name])


@st.composite
def tenancies(draw: st.DrawFn) -> Tenancy:
    names = [f"t/x{k}" for k in range(draw(st.integers(2, 7)))]
    sizes_bytes = {name: draw(st.sampled_from((100, 500, 1_000, 3_000))) for name in names}
    weights = {name: draw(st.sampled_from((1, 1, 2, 5))) for name in names}
    limit = draw(
        st.one_of(
            st.fixed_dictionaries({"bytes_per_second": st.sampled_from((700, 1_000, 2_000))}),
            st.fixed_dictionaries({"messages_per_second": st.sampled_from((1, 2, 5))}),
        )
    )
    burst_seconds = draw(st.integers(1, 3))
    return Tenancy(sizes_bytes, weights, limit | {"burst_seconds": burst_seconds})


@pytest.mark.thorough
@examples(3)
@given(tenancies())
def test_l3_equals_stay_within_a_message_of_each_however_little_there_is(tenancy: Tenancy) -> None:
    policy = {
        "version": 1,
        "resource_groups": {"g": {"publish": tenancy.publish}},
        "namespaces": {
            name: {"publish": {"weight": weight}, "resource_group": "g"} for name, weight in tenancy.weights.items()
        },
    }
    job = SimulatedJob(policy)
    first = admitted_in(1, job, tenancy.rows())
    admitted = admitted_in(SECONDS, job, []) - first
    service = {name: Fraction(admitted[name] * tenancy.cost[name], tenancy.weights[name]) for name in tenancy.cost}
    for one, other in combinations(service, 2):
        assert abs(service[one] - service[other]) <= tenancy.bound(one) + tenancy.bound(other)


@pytest.mark.thorough
def test_large_messages_of_a_group_short_of_messages_wait_no_longer_than_their_bytes_take() -> None:
    # A message of 3,000 bytes takes a second and a half, any other a second; so t1 gets two thirds of the others.
    limits = {"bytes_per_second": 2_000, "messages_per_second": 1, "burst_seconds": 1}
    policy = {"version": 1, "resource_groups": {"g": {"publish": limits}}, "defaults": {"resource_group": "g"}}
    sizes_bytes = {
        f"t{k}/x": size
        for k, size in zip((0, 1, 2, 3, 4, 5, 7), (500, 3_000, 1_000, 1_000, 500, 500, 100), strict=True)
    }
    admitted = admitted_in(
        200, SimulatedJob(policy), [(name, size) for name, size in sizes_bytes.items() for _ in range(100)]
    )
    assert admitted["t1/x"] == pytest.approx(200 / (6 + 2 / 3) * 2 / 3, abs=2)


def group_of_both(messages: int, size_bytes: int, weights: dict[str, int]) -> dict[str, Any]:
    """Return a policy with one group that limits both resources, in which each namespace has its weight."""
    limits = {"messages_per_second": messages, "bytes_per_second": size_bytes, "burst_seconds": 1}
    of_each = {name: {"publish": {"weight": weight}, "resource_group": "g"} for name, weight in weights.items()}
    return {"version": 1, "resource_groups": {"g": {"publish": limits}}, "namespaces": of_each}


@st.composite
def tenancies_of_two_resources(draw: st.DrawFn) -> tuple[Tenancy, dict[str, Fraction]]:
    """Draw namespaces of a group that limits both, and the seconds that a message of each takes."""
    messages, even_bytes = draw(st.sampled_from((1, 2, 5, 10))), draw(st.sampled_from((10, 100, 400)))
    names = draw(st.lists(st.sampled_from([f"t/x{k}" for k in range(10)]), min_size=2, max_size=5, unique=True))
    sizes = (1, even_bytes // 10, even_bytes // 2, even_bytes, even_bytes, even_bytes, 2 * even_bytes, 5 * even_bytes)
    sizes_bytes = {name: draw(st.sampled_from(sizes)) for name in names}
    weights = {name: draw(st.sampled_from((1, 1, 1, 2, 5))) for name in names}
    seconds = {name: max(Fraction(1, messages), Fraction(sizes_bytes[name], messages * even_bytes)) for name in names}
    publish = {"messages_per_second": messages, "bytes_per_second": messages * even_bytes}
    return Tenancy(sizes_bytes, weights, publish), seconds


@examples(2, in_search=40)
@given(tenancies_of_two_resources())
def test_l4_nobody_starves_beside_others_where_a_group_is_short_of_both_resources(
    drawn: tuple[Tenancy, dict[str, Fraction]],
) -> None:
    tenancy, seconds = drawn
    publish = tenancy.publish
    policy = group_of_both(publish["messages_per_second"], publish["bytes_per_second"], tenancy.weights)
    most = publish["messages_per_second"] * (SECONDS + 2)
    rows = [(name, size) for name, size in tenancy.sizes_bytes.items() for _ in range(most)]
    admitted = admitted_in(SECONDS, SimulatedJob(policy), rows)
    served = {name: admitted[name] * seconds[name] / tenancy.weights[name] for name in seconds}
    message = {name: seconds[name] / tenancy.weights[name] for name in seconds}
    for one, other in combinations(served, 2):
        assert abs(served[one] - served[other]) <= message[one] + message[other]


def test_messages_of_no_bytes_need_none_of_a_job_that_is_short_of_bytes() -> None:
    quotas = {"job": {"bytes_per_second": 3_000}, "g": {"messages_per_second": 3}}
    job_quota, group_quota = ({"publish": quota | {"burst_seconds": 1}} for quota in quotas.values())
    policy = {
        "version": 1, "job": job_quota, "resource_groups": {"g": group_quota}, "defaults": {"resource_group": "g"},
    }  # fmt: skip
    rows = [(name, size) for name, size in (("t30/x", 0), ("t22/x", 2_900)) for _ in range(200)]
    admitted = admitted_in(60, SimulatedJob(policy), rows)
    # Each gets three quarters of the resource of which it takes more, and all messages of the group are used.
    part = 1 / (1 + 1_000 / 2_900)
    assert admitted["t22/x"] == pytest.approx(60 * 3_000 / 2_900 * part, abs=4)
    assert admitted["t30/x"] == pytest.approx(60 * 3 * part, abs=6)


@pytest.mark.thorough
def test_equals_of_a_job_short_of_messages_are_served_alike_though_their_groups_limit_bytes_too() -> None:
    # The groups have enough for all that the job lets pass.
    groups = {
        "g": {"publish": {"bytes_per_second": 30_000, "messages_per_second": 50, "burst_seconds": 1}},
        "h": {"publish": {"bytes_per_second": 90_000, "messages_per_second": 70, "burst_seconds": 2}},
    }
    sizes_bytes = {"t0/x": 3_000, "t2/x": 1_000, "t3/x": 500, "t4/x": 1_000, "t5/x": 1_000, "t6/x": 1_000, "t7/x": 100}
    policy = {
        "version": 1,
        "job": {"publish": {"bytes_per_second": 80_000, "messages_per_second": 15, "burst_seconds": 1}},
        "resource_groups": groups,
        "namespaces": {name: {"resource_group": "gh"[k % 2]} for k, name in enumerate(sizes_bytes)},
    }
    admitted = admitted_in(
        60, SimulatedJob(policy), [(name, size) for name, size in sizes_bytes.items() for _ in range(300)]
    )
    assert max(admitted.values()) - min(admitted[name] for name in sizes_bytes) <= 4


def test_job_that_has_plenty_does_not_set_what_a_large_message_costs_in_its_group() -> None:
    # A large message takes a second of the group's bytes, and a small one a tenth of a second of its messages. By the
    # job's rates, the two would cost the same.
    def publish(messages: int, size_bytes: int) -> dict[str, Any]:
        return {"publish": {"messages_per_second": messages, "bytes_per_second": size_bytes, "burst_seconds": 1}}

    policy = {
        "version": 1,
        "job": publish(1_000, 10_000_000),
        "resource_groups": {"g": publish(10, 1_000)},
        "defaults": {"resource_group": "g"},
    }
    admitted = admitted_in(30, SimulatedJob(policy), [("t0/x", 1_000), ("t1/x", 1)] * 300)
    assert abs(admitted["t0/x"] - admitted["t1/x"] / 10) <= 1 + 0.1


@pytest.mark.thorough
def test_weights_count_in_the_job_though_a_group_earns_less_than_a_message_in_a_batch() -> None:
    groups = {
        "g": {"publish": {"messages_per_second": 1, "burst_seconds": 1}},
        "h": {"publish": {"messages_per_second": 2}},
    }
    weights = {"t0/x": 2, "t1/x": 5, "t2/x": 1, "t3/x": 1, "t4/x": 1, "t5/x": 5}
    group_of = dict(zip(weights, "ghhggh", strict=True))
    policy = {
        "version": 1,
        "job": {"publish": {"messages_per_second": 1.5, "burst_seconds": 1}},
        "resource_groups": groups,
        "namespaces": {
            name: {"publish": {"weight": weight}, "resource_group": group_of[name]} for name, weight in weights.items()
        },
    }
    admitted = admitted_in(200, SimulatedJob(policy), [(name, 1) for name in weights for _ in range(300)])
    service = [admitted[name] / weight for name, weight in weights.items()]
    assert max(service) - min(service) <= 2 * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "observing", [{"tenants": {"t": {}}}, {"resource_groups": {"g": {}}, "defaults": {"resource_group": "g"}}]
)
def test_scope_that_only_observes_changes_nothing_of_who_is_served(observing: dict[str, Any]) -> None:
    sizes_bytes = {"t/d": 1_000, "t/a": 1_000, "t/m": 40_000}
    policy: dict[str, Any] = {"version": 1, "job": {"publish": {"bytes_per_second": 4_000, "burst_seconds": 1}}}
    policy |= observing
    for section in ("tenants", "resource_groups"):
        for scope in policy.get(section, {}).values():
            scope["publish"] = {"bytes_per_second": 5_000, "burst_seconds": 1, "on_excess": "observe"}
    rows = [(name, size) for name, size in sizes_bytes.items() for _ in range(4 + 120 * 4_000 // size)]
    admitted = admitted_in(120, SimulatedJob(policy), rows)
    assert abs(admitted["t/d"] - admitted["t/a"]) <= 2 * (40 + 1)
