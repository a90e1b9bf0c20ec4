"""L3 where nothing changes: equals that are always backlogged are served alike, whatever shard they live in."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.rows import shard_of
from tests.effort import examples
from tests.life.counting import admitted_in
from tests.life.drawing import Step
from tests.life.life import Birth, Life

pytestmark = pytest.mark.slow

SECONDS = 60


@dataclass(frozen=True)
class Tenancy:
    """Namespaces of one group, each with one size of message, and a slow limit of one dimension."""

    shards: int
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
        """Return the largest message of the shard, in terms of the namespace's weight."""
        shard = shard_of(name.encode(), self.shards)
        mates = [mate for mate in self.cost if shard_of(mate.encode(), self.shards) == shard]
        return Fraction(self.shards * max(self.cost[mate] for mate in mates), self.weights[name])


@st.composite
def tenancies(draw: st.DrawFn) -> Tenancy:
    names = [f"t{k}/x" for k in range(draw(st.integers(2, 7)))]
    sizes_bytes = {name: draw(st.sampled_from((100, 500, 1_000, 3_000))) for name in names}
    weights = {name: draw(st.sampled_from((1, 1, 2, 5))) for name in names}
    limit = draw(
        st.one_of(
            st.fixed_dictionaries({"bytes_per_second": st.sampled_from((700, 1_000, 2_000))}),
            st.fixed_dictionaries({"messages_per_second": st.sampled_from((1, 2, 5))}),
        )
    )
    burst_seconds = draw(st.integers(1, 3))
    return Tenancy(draw(st.sampled_from((1, 2, 3, 8))), sizes_bytes, weights, limit | {"burst_seconds": burst_seconds})


@pytest.mark.thorough
@examples(3)
@given(tenancies())
def test_l3_equals_stay_within_a_message_of_each_a_shard_however_little_there_is_to_lend(tenancy: Tenancy) -> None:
    policy = {
        "version": 1,
        "resource_groups": {"g": {"publish": tenancy.publish}},
        "namespaces": {
            name: {"publish": {"weight": weight}, "resource_group": "g"} for name, weight in tenancy.weights.items()
        },
    }
    # In the batch in which they come the division does not know of them: L3 is asked of what follows.
    job = SimulatedJob(policy, shards=tenancy.shards)
    first = admitted_in(1, job, tenancy.rows())
    admitted = admitted_in(SECONDS, job, []) - first
    service = {name: Fraction(admitted[name] * tenancy.cost[name], tenancy.weights[name]) for name in tenancy.cost}
    for one, other in combinations(service, 2):
        assert abs(service[one] - service[other]) <= tenancy.bound(one) + tenancy.bound(other)


@pytest.mark.thorough
def test_four_equals_share_a_message_a_second_though_one_of_them_has_its_shard_for_itself() -> None:
    # acme/a, acme/b and acme/c live in one shard, blue/a in the other; a full bucket is one message.
    policy = {"version": 1, "job": {"publish": {"bytes_per_second": 1_000, "burst_seconds": 1}}}
    names = ("acme/a", "acme/b", "acme/c", "blue/a")
    admitted = admitted_in(60, SimulatedJob(policy, shards=2), [(name, 1_000) for name in names for _ in range(60)])
    assert max(admitted.values()) - min(admitted[name] for name in names) <= 2


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
        200, SimulatedJob(policy, shards=1), [(name, size) for name, size in sizes_bytes.items() for _ in range(100)]
    )
    assert admitted["t1/x"] == pytest.approx(200 / (6 + 2 / 3) * 2 / 3, abs=2)


def group_of_both(messages: int, size_bytes: int, weights: dict[str, int]) -> dict[str, Any]:
    """Return a policy with one group that limits both resources, in which each namespace has its weight."""
    limits = {"messages_per_second": messages, "bytes_per_second": size_bytes, "burst_seconds": 1}
    of_each = {name: {"publish": {"weight": weight}, "resource_group": "g"} for name, weight in weights.items()}
    return {"version": 1, "resource_groups": {"g": {"publish": limits}}, "namespaces": of_each}


def test_heavy_namespace_of_small_messages_is_served_beside_a_shard_of_messages_that_take_as_long_by_bytes() -> None:
    # Every message takes a tenth of a second of the group's messages, and none takes more of its bytes.
    sizes_bytes, weights = {"t0/x": 100, "t6/x": 100, "t5/x": 1}, {"t0/x": 1, "t6/x": 1, "t5/x": 5}
    assert [shard_of(name.encode(), 2) for name in sizes_bytes] == [0, 0, 1]
    rows = [(name, size) for name, size in sizes_bytes.items() for _ in range(300)]
    admitted = admitted_in(30, SimulatedJob(group_of_both(10, 1_000, weights), shards=2), rows)
    service = [admitted[name] / weight for name, weight in weights.items()]
    assert max(service) - min(service) <= 2 * 2


def test_namespace_of_another_shard_does_not_gain_by_the_message_that_put_a_heavy_one_and_its_mate_in_debt() -> None:
    # t0 and t8 live in one shard, t9 in the other. A message of t0 takes five seconds, any other one a second.
    sizes_bytes, weights = {"t9/x": 100, "t8/x": 100, "t0/x": 500}, {"t9/x": 1, "t8/x": 10, "t0/x": 1}
    assert [shard_of(name.encode(), 2) for name in sizes_bytes] == [1, 0, 0]
    rows = [(name, size) for name, size in sizes_bytes.items() for _ in range(60)]
    admitted = admitted_in(50, SimulatedJob(group_of_both(1, 100, weights), shards=2), rows)
    # A message of each shard's largest, a shard, by the weight of whom it keeps waiting.
    assert abs(admitted["t9/x"] - admitted["t8/x"] / 10) <= 2 * (1 + 5 / 10)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("messages", "size_bytes", "sizes_bytes", "weights"),
    [
        (2, 200, {"t5/x": 50, "t3/x": 10, "t1/x": 100, "t2/x": 1}, {"t1/x": 2}),
        (2, 800, {"t2/x": 4, "t8/x": 400, "t3/x": 400}, {"t3/x": 2}),
        (10, 100, {"t0/x": 1, "t3/x": 20, "t1/x": 10, "t7/x": 5, "t5/x": 50}, {"t0/x": 2, "t7/x": 2, "t5/x": 5}),
    ],
)
def test_namespace_of_small_messages_does_not_starve_for_the_bytes_for_which_others_are_set_back(
    messages: int, size_bytes: int, sizes_bytes: dict[str, int], weights: dict[str, int]
) -> None:
    weights = dict.fromkeys(sizes_bytes, 1) | weights
    job = SimulatedJob(group_of_both(messages, size_bytes, weights), shards=2)
    admitted = admitted_in(60, job, [(name, size) for name, size in sizes_bytes.items() for _ in range(60 * messages)])
    seconds = {name: max(Fraction(1, messages), Fraction(size, size_bytes)) for name, size in sizes_bytes.items()}
    served = {name: admitted[name] * seconds[name] / weights[name] for name in sizes_bytes}
    message = {name: 2 * max(seconds.values()) / weights[name] for name in sizes_bytes}
    for one, other in combinations(served, 2):
        assert abs(served[one] - served[other]) <= message[one] + message[other] + max(served.values()) / 8


@st.composite
def tenancies_of_two_resources(draw: st.DrawFn) -> tuple[Tenancy, dict[str, Fraction]]:
    """Draw namespaces of a group that limits both, and the seconds that a message of each takes."""
    messages, even_bytes = draw(st.sampled_from((1, 2, 5, 10))), draw(st.sampled_from((10, 100, 400)))
    names = draw(st.lists(st.sampled_from([f"t{k}/x" for k in range(10)]), min_size=2, max_size=5, unique=True))
    sizes = (1, even_bytes // 10, even_bytes // 2, even_bytes, even_bytes, even_bytes, 2 * even_bytes, 5 * even_bytes)
    sizes_bytes = {name: draw(st.sampled_from(sizes)) for name in names}
    weights = {name: draw(st.sampled_from((1, 1, 1, 2, 5))) for name in names}
    seconds = {name: max(Fraction(1, messages), Fraction(sizes_bytes[name], messages * even_bytes)) for name in names}
    publish = {"messages_per_second": messages, "bytes_per_second": messages * even_bytes}
    return Tenancy(draw(st.sampled_from((1, 2, 2, 4, 8))), sizes_bytes, weights, publish), seconds


@examples(4)
@given(tenancies_of_two_resources())
def test_l4_nobody_starves_beside_others_where_a_group_is_short_of_both_resources(
    drawn: tuple[Tenancy, dict[str, Fraction]],
) -> None:
    tenancy, seconds = drawn
    publish = tenancy.publish
    policy = group_of_both(publish["messages_per_second"], publish["bytes_per_second"], tenancy.weights)
    most = publish["messages_per_second"] * (SECONDS + 2)
    rows = [(name, size) for name, size in tenancy.sizes_bytes.items() for _ in range(most)]
    admitted = admitted_in(SECONDS, SimulatedJob(policy, shards=tenancy.shards), rows)
    served = {name: admitted[name] * seconds[name] / tenancy.weights[name] for name in seconds}
    message = {name: tenancy.shards * max(seconds.values()) / tenancy.weights[name] for name in seconds}
    for one, other in combinations(served, 2):
        # Where flows of a shard differ in the resource that they are short of, their mixture is estimated.
        assert abs(served[one] - served[other]) <= message[one] + message[other] + max(served.values()) / 20


@pytest.mark.thorough
def test_shard_whose_namespaces_are_each_ahead_in_another_resource_is_not_left_out() -> None:
    # A message of 1 or 200 bytes takes a second of the group's messages, one of 800 bytes two seconds of its bytes.
    sizes_bytes = {"acme/b": 200, "solo": 800, "blue/a": 1, "cora/ü": 1, "acme/c": 200}
    assert [shard_of(name.encode(), 3) for name in sizes_bytes] == [0, 0, 1, 1, 2]
    rows = [(name, size) for name, size in sizes_bytes.items() for _ in range(150)]
    job = SimulatedJob(group_of_both(1, 400, dict.fromkeys(sizes_bytes, 1)), shards=3)
    # The first three are backlogged before the others send.
    admitted_in(34, job, [row for row in rows if row[0] in {"acme/b", "acme/c", "solo"}])
    admitted_in(8, job, [row for row in rows if row[0] == "blue/a"])
    first = admitted_in(18, job, [row for row in rows if row[0] == "cora/ü"])
    admitted = admitted_in(120, job, []) - first
    service = [admitted[name] * (2 if name == "solo" else 1) for name in sizes_bytes]
    assert max(service) - min(service) <= 6


@pytest.mark.thorough
@pytest.mark.parametrize(("scale", "large_bytes"), [(1, 2_900), (1, 3_500), (10, 50_000)])
def test_messages_of_no_bytes_are_served_beside_large_ones_of_another_shard(scale: int, large_bytes: int) -> None:
    sizes_bytes = {"t30/x": 0, "t22/x": large_bytes}
    assert [shard_of(name.encode(), 2) for name in sizes_bytes] == [0, 1]
    job = SimulatedJob(group_of_both(3 * scale, 3_000 * scale, dict.fromkeys(sizes_bytes, 1)), shards=2)
    admitted = admitted_in(60, job, [(name, size) for name, size in sizes_bytes.items() for _ in range(180 * scale)])
    seconds = {name: max(1 / (3 * scale), size / (3_000 * scale)) for name, size in sizes_bytes.items()}
    served = [admitted[name] * seconds[name] for name in sizes_bytes]
    assert abs(served[0] - served[1]) <= 2 * sum(seconds.values())


@pytest.mark.thorough
def test_shard_keeps_the_bytes_of_the_part_of_a_message_that_rounding_withholds() -> None:
    # A large message takes 0.3 s of the group's bytes, the others 0.1 s of its messages. Whole messages are lent.
    sizes_bytes = {"t10/x": 1, "t1/x": 100, "t15/x": 3_000}
    assert [shard_of(name.encode(), 2) for name in sizes_bytes] == [1, 1, 0]
    job = SimulatedJob(group_of_both(10, 10_000, dict.fromkeys(sizes_bytes, 1)), shards=2)
    admitted = admitted_in(150, job, [(name, size) for name, size in sizes_bytes.items() for _ in range(800)])
    served = [admitted[name] * max(0.1, size / 10_000) for name, size in sizes_bytes.items()]
    assert max(served) - min(served) <= 2 * (0.1 + 0.3)


def test_messages_of_no_bytes_need_none_of_a_job_that_is_short_of_bytes() -> None:
    quotas = {"job": {"bytes_per_second": 3_000}, "g": {"messages_per_second": 3}}
    job_quota, group_quota = ({"publish": quota | {"burst_seconds": 1}} for quota in quotas.values())
    policy = {
        "version": 1, "job": job_quota, "resource_groups": {"g": group_quota}, "defaults": {"resource_group": "g"},
    }  # fmt: skip
    rows = [(name, size) for name, size in (("t30/x", 0), ("t22/x", 2_900)) for _ in range(200)]
    admitted = admitted_in(60, SimulatedJob(policy, shards=2), rows)
    # The job lets a large message pass in 0.97 s, and the rest of the group's three a second are the others'.
    assert admitted["t22/x"] == pytest.approx(60 * 3_000 / 2_900, abs=3)
    assert admitted["t30/x"] == pytest.approx(60 * (3 - 3_000 / 2_900), abs=6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size_bytes", "sizes_bytes", "weights"),
    [
        (400, {"t2/x": 800, "t5/x": 400, "t1/x": 400, "t7/x": 400}, {"t1/x": 5}),
        (100, {"t7/x": 100, "t2/x": 200, "t5/x": 200, "t0/x": 100, "t1/x": 200}, {"t2/x": 5, "t1/x": 2}),
    ],
)
def test_group_that_has_exactly_no_bytes_left_opens_the_shard_that_is_least_ahead(
    size_bytes: int, sizes_bytes: dict[str, int], weights: dict[str, int]
) -> None:
    # A message takes all bytes of a second, or of two: so at every epoch the group has none, and owes none.
    weights = dict.fromkeys(sizes_bytes, 1) | weights
    rows = [(name, size) for name, size in sizes_bytes.items() for _ in range(120)]
    admitted = admitted_in(120, SimulatedJob(group_of_both(1, size_bytes, weights), shards=8), rows)
    service = [admitted[name] * size / size_bytes / weights[name] for name, size in sizes_bytes.items()]
    assert max(service) - min(service) <= 4


def test_equal_of_one_shard_is_not_overtaken_since_a_division_leaves_it_out() -> None:
    def group(messages: int, size_bytes: int, burst_seconds: float) -> dict[str, Any]:
        limits = {"messages_per_second": messages, "bytes_per_second": size_bytes, "burst_seconds": burst_seconds}
        return {
            "version": 1, "resource_groups": {"g": {"publish": limits}}, "defaults": {"resource_group": "g"},
        }  # fmt: skip

    def contest(
        policy: dict[str, Any], heavy: list[tuple[str, int]], light: tuple[str, int, int], triggers: int
    ) -> Step:
        args = {"documents": [policy] * 2, "heavy": heavy, "light": [light], "triggers": triggers, "every": 5}
        return Step("contest_for_both", args)

    # The large messages of the first contest are owed for long in the second, whose namespaces take turns.
    slow = group(1, 1_000, 1)
    slow["namespaces"] = {"cora/ü": {"write_throttling_by_size": "1K*delay*10"}}
    life = Life(Birth(slow, shards=1), ("Pace",))
    life.offer([("cora/ü", 1_000, 9)])
    life.trigger(1_000)
    life.play([contest(group(1, 400, 2), [("cora/ü", 40), ("solo", 800)], ("acme/a", 1, 1), 53)])
    life.offer([("acme/a", 100, 1), ("blue/b", 1_000, 1), ("cora/ü", 1_000, 1)])
    life.trigger(1_000)
    life.play(
        [contest(group(5, 50, 1), [("acme/c", 5), ("blue/a", 5), ("blue/b", 10), ("solo", 5)], ("acme/b", 10, 1), 38)]
    )


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
        60, SimulatedJob(policy, shards=2), [(name, size) for name, size in sizes_bytes.items() for _ in range(300)]
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
    admitted = admitted_in(30, SimulatedJob(policy, shards=1), [("t0/x", 1_000), ("t1/x", 1)] * 300)
    assert abs(admitted["t0/x"] - admitted["t1/x"] / 10) <= 1 + 0.1


@pytest.mark.thorough
def test_weights_count_in_the_job_though_a_group_lends_less_than_a_message_to_each_shard() -> None:
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
    admitted = admitted_in(200, SimulatedJob(policy, shards=2), [(name, 1) for name in weights for _ in range(300)])
    service = [admitted[name] / weight for name, weight in weights.items()]
    assert max(service) - min(service) <= 2 * 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "observing", [{"tenants": {"t": {}}}, {"resource_groups": {"g": {}}, "defaults": {"resource_group": "g"}}]
)
def test_scope_that_only_observes_changes_nothing_of_who_is_served(observing: dict[str, Any]) -> None:
    # The first and the last live in one shard, the second in another.
    sizes_bytes = {"t/d": 1_000, "t/a": 1_000, "t/m": 40_000}
    assert [shard_of(name.encode(), 2) for name in sizes_bytes] == [0, 1, 0]
    policy: dict[str, Any] = {"version": 1, "job": {"publish": {"bytes_per_second": 4_000, "burst_seconds": 1}}}
    policy |= observing
    for section in ("tenants", "resource_groups"):
        for scope in policy.get(section, {}).values():
            scope["publish"] = {"bytes_per_second": 5_000, "burst_seconds": 1, "on_excess": "observe"}
    rows = [(name, size) for name, size in sizes_bytes.items() for _ in range(4 + 120 * 4_000 // size)]
    admitted = admitted_in(120, SimulatedJob(policy, shards=2), rows)
    assert abs(admitted["t/d"] - admitted["t/a"]) <= 2 * (40 + 1)


@pytest.mark.thorough
def test_neighbours_of_a_queue_of_two_sizes_lose_at_most_its_part_of_their_shard() -> None:
    # All but one live in one shard. Its mixture is estimated from all that waits, so the last rows count too soon.
    limits = {"messages_per_second": 5, "bytes_per_second": 2_000, "burst_seconds": 1}
    policy = {"version": 1, "resource_groups": {"g": {"publish": limits}}, "defaults": {"resource_group": "g"}}
    sizes_bytes = {"solo": 1, "blue/b": 40, "acme/a": 400}
    assert {shard_of(name.encode(), 3) for name in (*sizes_bytes, "acme/b")} == {0}
    assert shard_of("cora/ü".encode(), 3) == 1
    queue = [("acme/b", 400)] * 200 + [("acme/b", 1)] * 400
    rows = [(name, size) for name, size in (sizes_bytes | {"cora/ü": 0}).items() for _ in range(300)]
    admitted = admitted_in(200, SimulatedJob(policy, shards=3), queue + rows)
    for name in sizes_bytes:
        assert admitted["cora/ü"] - admitted[name] <= 3 * 2 + admitted["cora/ü"] / 4
