"""Lives that are written out, each for a way in which one tenant may take what is due to others."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from spark_throttle.testing.simulation.job import SimulatedJob
from tests.life.counting import admitted_in
from tests.life.drawing import Step, Traffic
from tests.life.life import Birth, Life

pytestmark = pytest.mark.slow

BIG_BYTES, SMALL_BYTES = 60_000, 1_000
GROUP: Final[dict[str, Any]] = {
    "version": 1,
    "resource_groups": {"g": {"publish": {"bytes_per_second": 10_000, "burst_seconds": 2}}},
    "defaults": {"resource_group": "g"},
}


def service_apart(
    beside_big: list[str], seconds: int, policy_at: Callable[[int], dict[str, Any]] = lambda _: GROUP
) -> int:
    """Return by how many bytes one of two that are always backlogged is ahead of the other."""
    sizes_bytes = {"big": BIG_BYTES, "small": SMALL_BYTES}
    job, served = SimulatedJob(GROUP), Counter[str]()
    lacking = dict(zip(sizes_bytes, (5, 100), strict=True))
    for second in range(seconds):
        job.offer([(name, sizes_bytes[name]) for name, count in lacking.items() for _ in range(count)])
        job.offer([(name, 10) for name in beside_big])
        if policy_at(second) != policy_at(second - 1):
            job.set_policies(policy_at(second))
        batch = job.trigger(1_000)
        left = Counter(str(row.namespace) for row in batch.admitted) if batch else Counter()
        lacking = {name: left[name] for name in sizes_bytes}
        served += left
    big, small = (served[name] * size_bytes for name, size_bytes in sizes_bytes.items())
    assert min(big, small) > 0
    return abs(big - small)


def test_two_that_are_always_backlogged_stay_within_a_message_of_each() -> None:
    assert service_apart([], 80) <= BIG_BYTES + SMALL_BYTES


def test_l3_a_light_namespace_beside_a_large_one_takes_nothing_from_the_others() -> None:
    assert service_apart(["light"], 80) <= BIG_BYTES + SMALL_BYTES


@pytest.mark.parametrize("changes", ["never", "the group's rate", "its own entry"])
def test_l3_who_sends_a_small_message_behind_each_large_one_pays_for_the_large_ones(changes: str) -> None:
    life = Life(Birth(GROUP), laws=["L3"])
    by_turns: Traffic = [("acme/x", BIG_BYTES, 1), ("acme/x", 10, 1)] * 20
    life.offer([*by_turns, ("blue/y", SMALL_BYTES, 720)])
    for second in range(120):
        policy = copy.deepcopy(GROUP)
        if changes == "the group's rate":
            policy["resource_groups"]["g"]["publish"]["bytes_per_second"] += second % 2
        elif changes == "its own entry" and second % 2:
            policy["tenants"] = {"acme": {"resource_group": "g", "publish": {"messages_per_second": 1_000_000}}}
        if changes != "never":
            life.set_policies(policy)
        life.trigger(1_000)
    served = Counter[str]()
    for row in life.job.admitted:
        served[str(row.namespace)] += row.size_bytes or 0
    assert abs(served["acme/x"] - served["blue/y"]) <= 2 * BIG_BYTES


def test_l3_what_members_of_a_group_owe_each_other_is_the_same_whether_the_job_runs_short_or_not() -> None:
    """The group limits messages, the job bytes: a message is worth little of them, and all that the group has."""
    policy = {
        "version": 1, "job": {"publish": {"bytes_per_second": 10_000_000, "burst_seconds": 1}},
        "resource_groups": {"g": {"publish": {"messages_per_second": 1, "burst_seconds": 1}}},
        "tenants": {name: {"resource_group": "g"} for name in ("acme", "blue")},
    }  # fmt: skip
    job, served = SimulatedJob(policy), Counter[str]()
    job.offer([(name, 100) for name in ("acme/x", "blue/x") for _ in range(150)])
    for second in range(100):
        served = admitted_in(1, job, [("cora/x", 10_000_000)] * (0 if second % 50 else 2))
    assert abs(served["acme/x"] - served["blue/x"]) <= 6


def test_a_row_that_a_large_one_of_another_delays_does_not_starve() -> None:
    policy = copy.deepcopy(GROUP)
    policy["resource_groups"]["g"]["publish"]["burst_seconds"] = 1
    life = Life(Birth(policy), laws=["Starvation"])
    heavy = {"solo": 60_000, "acme/b": 1_000, "acme/a": 20_000}
    for _ in range(29):
        waiting = Counter(str(row.namespace) for row in life.job.waiting)
        life.offer([(name, size_bytes, 20 - waiting[name]) for name, size_bytes in heavy.items()])
        life.offer([("blue/b", 1, 1)])
        life.trigger(1_000)


@pytest.mark.thorough
def test_l3_a_rate_that_changes_often_costs_a_message_and_no_more() -> None:
    def policy_at(second: int) -> dict[str, Any]:
        policy = copy.deepcopy(GROUP)
        policy["resource_groups"]["g"]["publish"]["bytes_per_second"] += second // 2 % 2
        return policy

    assert service_apart([], 80, policy_at) <= 2 * (BIG_BYTES + SMALL_BYTES)


def slow_policy(
    *, burst_seconds: int = 2, weight: int = 1, first: str = "gold", others: str = "gold"
) -> dict[str, Any]:
    """Return two groups of a message per second, the weight of the first tenant's namespace, and who is in which."""
    group = {"publish": {"messages_per_second": 1, "burst_seconds": burst_seconds}}
    return {
        "version": 1,
        "resource_groups": {"gold": group, "iron": group},
        "defaults": {"resource_group": others},
        "tenants": {"t0": {"resource_group": first}},
        "namespaces": {"t0/x": {"resource_group": first, "publish": {"weight": weight}}},
    }


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "another burst": slow_policy(burst_seconds=3),
    "another weight": slow_policy(weight=2),
    "one moves": slow_policy(first="iron"),
    "all move": slow_policy(first="iron", others="iron"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES)
def test_policy_that_changes_with_every_batch_starves_nobody_who_is_due_less_than_a_message(change: str) -> None:
    then = CHANGES[change]
    job = SimulatedJob(slow_policy())
    names = [f"t{k}/x" for k in range(6)]
    job.offer([(name, 1_000) for name in names for _ in range(40)])
    for second in range(40):
        job.set_policies(then if second % 2 else slow_policy())
        job.trigger(1_000)
    admitted = Counter(str(row.namespace) for row in job.admitted)
    of_equals = [admitted[name] for name in names[1:]]
    assert min(of_equals) >= 5
    assert max(of_equals) - min(of_equals) <= 3


def test_l3_message_that_was_large_under_the_old_rates_costs_a_message_under_the_new_ones() -> None:
    # The large message takes as long as 600 others by the old rates, and less time than one by the new ones.
    def policy_of(size_bytes: int) -> dict[str, Any]:
        publish = {"messages_per_second": 10, "bytes_per_second": size_bytes, "burst_seconds": 1}
        return {"version": 1, "resource_groups": {"g": {"publish": publish}}, "defaults": {"resource_group": "g"}}

    job = SimulatedJob(policy_of(1_000))
    admitted_in(1, job, [("acme/a", BIG_BYTES)])
    first = admitted_in(1, job, [("acme/a", 100), ("blue/a", 100)] * 300)
    assert first == {"acme/a": 1}
    job.set_policies(policy_of(10_000_000))
    admitted = admitted_in(30, job, []) - first
    assert abs(admitted["acme/a"] - admitted["blue/a"]) <= 2


def test_l3_nobody_starves_where_each_change_makes_bytes_dearer_or_cheaper() -> None:
    """A message takes five seconds of the bytes, and the policy changes as often."""

    def policy_of(size_bytes: int) -> dict[str, Any]:
        publish = {"messages_per_second": 10, "bytes_per_second": size_bytes, "burst_seconds": 1}
        return {"version": 1, "resource_groups": {"g": {"publish": publish}}, "defaults": {"resource_group": "g"}}

    job, policies = SimulatedJob(policy_of(1_000)), [policy_of(1_000), policy_of(400)]
    job.offer([(name, 5_000) for name in ("a/x", "a/y", "a/z") for _ in range(60)])
    for second in range(120):
        job.set_policies(policies[second // 5 % 2])
        job.trigger(1_000)
    admitted = Counter(str(row.namespace) for row in job.admitted)
    assert admitted.total() >= 15
    assert max(admitted.values()) - min(admitted[name] for name in ("a/x", "a/y", "a/z")) <= 1


def test_namespaces_of_two_groups_share_the_jobs_limit() -> None:
    groups = {
        "a": {"publish": {"messages_per_second": 100, "weight": 4}},
        "b": {"publish": {"messages_per_second": 100}},
    }
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 3, "burst_seconds": 1}},
            "resource_groups": groups,
            "tenants": {name: {"resource_group": name} for name in groups},
        },
    )
    admitted = admitted_in(60, job, [("a/x", 1)] * 400 + [("b/x", 1)] * 400)
    assert admitted["b/x"] >= 30


def test_namespace_of_a_large_group_and_one_of_none_share_the_jobs_limit_evenly() -> None:
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 3, "burst_seconds": 1}},
            "resource_groups": {"a": {"publish": {"messages_per_second": 1_000}}},
            "tenants": {"a": {"resource_group": "a"}},
        },
    )
    admitted = admitted_in(60, job, [("a/x", 1)] * 400 + [("b/x", 1)] * 400)
    assert abs(admitted["a/x"] - admitted["b/x"]) <= 2


def test_quota_of_one_tenant_does_not_change_the_turns_in_its_group() -> None:
    job = SimulatedJob(
        {
            "version": 1,
            "resource_groups": {"g": {"publish": {"messages_per_second": 0.5, "burst_seconds": 1}}},
            "tenants": {"a": {"publish": {"messages_per_second": 5}}},
            "defaults": {"resource_group": "g"},
        },
    )
    admitted = admitted_in(60, job, [("a/x", 1)] * 100 + [("b/x", 1)] * 100)
    assert abs(admitted["a/x"] - admitted["b/x"]) <= 2


@pytest.mark.thorough
def test_weight_of_a_group_counts_in_the_job() -> None:
    heavy, light = "heavy/x", "light/x"
    groups = {"a": {"publish": {"messages_per_second": 50, "weight": 4}}, "b": {"publish": {"messages_per_second": 90}}}
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 10, "burst_seconds": 1}},
            "resource_groups": groups,
            "tenants": {"heavy": {"resource_group": "a"}, "light": {"resource_group": "b"}},
        },
    )
    admitted = admitted_in(60, job, [(heavy, 1)] * 700 + [(light, 1)] * 700)
    assert abs(admitted[heavy] - 4 * admitted[light]) <= 5


def test_tenant_that_fills_the_queue_does_not_take_the_room_of_the_others() -> None:
    policy = {
        **GROUP,
        "tenants": {"evil": {"publish": {"messages_per_second": 0.001, "burst_seconds": 1}}},
        "queue": {"messages": 1_000},
    }
    job = SimulatedJob(policy)
    job.offer([("evil/x", 1)] * 2_000)
    job.trigger(1_000)
    for _ in range(20):
        job.offer([("good/x", 15_000)])
        job.trigger(1_000)
    assert not [letter for letter in job.rejected if letter.row.namespace == "good/x"]


def test_namespace_that_is_ahead_waits_for_nobody_who_wants_nothing() -> None:
    limits = {"bytes_per_second": 1_000, "messages_per_second": 0.5, "burst_seconds": 1}
    job = SimulatedJob(
        {"version": 1, "resource_groups": {"g": {"publish": limits}}, "defaults": {"resource_group": "g"}}
    )
    sizes = [("a", 100), ("b", 20_000), ("a", 20_000), ("b", 20_000), ("b", 100), ("b", 1), ("b", 100), ("a", 100)]
    job.offer([(f"{name}/x", size) for name, size in sizes])
    for _ in range(90):
        job.trigger(1_000)
    assert not job.waiting
    assert job.wait_ms() is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"write_throttling": "1*delay*3600000"}, id="held by a rule"),
        pytest.param({"publish": {"messages_per_second": 0.01, "burst_seconds": 100}}, id="stopped by its own limit"),
    ],
)
def test_rows_that_cannot_go_claim_nothing_that_others_wait_for(entry: dict[str, Any]) -> None:
    waits, stuck = "waits", [f"stuck{k}q" for k in range(10)]
    namespaces = {name: entry | {"resource_group": "g"} for name in stuck}
    job = SimulatedJob(GROUP | {"namespaces": namespaces})
    for second in range(40):
        waiting = Counter(row.namespace for row in job.waiting)
        job.offer([(waits, SMALL_BYTES)] * (60 - waiting[waits]))
        job.offer([(name, 5_000) for name in stuck] * (5 if second < 10 else 0))
        job.trigger(1_000)
    admitted = Counter(row.namespace for row in job.admitted)
    assert admitted[waits] * SMALL_BYTES >= 0.9 * 40 * 10_000 - 2 * 10 * 5_000


def test_large_and_small_messages_share_a_limit_on_messages_above_groups_of_bytes() -> None:
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"messages_per_second": 10, "burst_seconds": 2}},
            "resource_groups": {"g": {"publish": {"bytes_per_second": 10_000_000}}},
            "defaults": {"resource_group": "g"},
        },
    )
    for _ in range(60):
        waiting = Counter(row.namespace for row in job.waiting)
        job.offer([("a/x", BIG_BYTES)] * (30 - waiting["a/x"]) + [("b/x", 1)] * (30 - waiting["b/x"]))
        job.trigger(1_000)
    admitted = Counter(row.namespace for row in job.admitted)
    assert abs(admitted["a/x"] - admitted["b/x"]) <= 2


@pytest.mark.thorough
@pytest.mark.parametrize("mates", [1, 8])
def test_namespaces_that_their_own_groups_stop_take_nothing_from_the_others(mates: int) -> None:
    # Each mate is in a group that is overdrawn by its first message.
    a, b = "a", "b"
    stopped = [f"mate{k}q" for k in range(mates)]
    groups = {f"g{k}": {"publish": {"bytes_per_second": 1, "burst_seconds": 1}} for k in range(mates)}
    job = SimulatedJob(
        {
            "version": 1,
            "job": {"publish": {"bytes_per_second": 1_000, "burst_seconds": 2}},
            "resource_groups": groups,
            "namespaces": {name: {"resource_group": f"g{k}"} for k, name in enumerate(stopped)},
        },
    )
    rows = [(name, 5_000) for name in (a, b) for _ in range(60)] + [(name, 5_000) for name in stopped] * 3
    admitted = admitted_in(300, job, rows)
    assert abs(admitted[a] - admitted[b]) <= 8
    assert admitted[a] + admitted[b] >= 50


@pytest.mark.parametrize("amount", ["bytes", "units"])
def test_what_is_scarce_is_shared_where_the_limit_on_messages_is_none_in_truth(amount: str) -> None:
    limits = {"messages_per_second": 10**9, f"{amount}_per_second": 1_000, "burst_seconds": 2}
    job = SimulatedJob({"version": 1, "job": {"publish": limits}, "queue": {"bytes": 2**40}})
    job.offer([("a/x", 1_000_000, 1_000_000), ("b/x", 8_000_000, 8_000_000)] * 150)
    for _ in range(100):
        job.trigger(1_000_000)
    admitted = Counter(row.namespace for row in job.admitted)
    assert admitted["a/x"] == pytest.approx(8 * admitted["b/x"], abs=16)


@pytest.mark.parametrize("on_excess", ["delay", "reject"])
def test_room_is_divided_among_namespaces_so_a_tenant_of_many_is_kept_from_it_by_a_limit_that_rejects(
    on_excess: str,
) -> None:
    policy = {
        "version": 1,
        "resource_groups": {"g": {"publish": {"messages_per_second": 10, "burst_seconds": 1}}},
        "defaults": {"resource_group": "g"},
        "tenants": {"evil": {"publish": {"messages_per_second": 0.001, "burst_seconds": 1, "on_excess": on_excess}}},
        "queue": {"messages": 1_000},
    }
    job = SimulatedJob(policy)
    for second in range(20):
        job.offer([(f"evil/{k}", 1) for k in range(1_000)] * (second % 10 == 0))
        job.offer([("good/x", 1)] * (40 * (second % 5 == 0)))
        job.trigger(1_000)
    of_good = [letter for letter in job.rejected if letter.row.namespace == "good/x"]
    assert bool(of_good) == (on_excess == "delay")


def test_l2_a_smaller_burst_for_a_moment_gives_no_burst_again() -> None:
    def policy(burst_seconds: float) -> dict[str, Any]:
        publish = {"messages_per_second": 5, "burst_seconds": burst_seconds, "on_excess": "reject"}
        return {"version": 1, "defaults": {"publish": publish}}

    life = Life(Birth(policy(10)), laws=["L2"])
    for second in range(20):
        life.set_policies(policy(0.2 if second % 2 else 10))
        life.offer([("acme/x", 1, 0 if second % 2 else 60)])
        life.trigger(1_000)
    assert len(life.job.admitted) <= 5 * 10 + 5 * 20 + 1


def test_clock_that_jumps_between_an_epoch_and_its_batch_pays_ten_seconds_at_most() -> None:
    limit = {"messages_per_second": 1, "burst_seconds": 600}
    job = SimulatedJob({"version": 1, "defaults": {"publish": limit}})
    job.offer([("acme/a", 1)] * 2_000)
    job.trigger(1_000)
    admitted = len(job.admitted)
    job.trigger(1_000, planning_ms=3_600_000)
    assert len(job.admitted) - admitted <= 12


def test_time_of_a_group_is_divided_by_time_and_not_by_messages() -> None:
    group = {"publish": {"request_percentage": 50, "burst_seconds": 2}}
    row_ns = (("acme", 20_000_000), ("blue", 2_000_000))
    life = Life(Birth({**GROUP, "resource_groups": {"g": group}}, row_ns=row_ns), laws=["Time"])
    for _ in range(40):
        life.offer([("acme/x", 1, 40), ("blue/y", 1, 300)])
        life.trigger(1_000)
    served = Counter(str(row.namespace) for row in life.job.admitted)
    first_batch_ns = 500_000_000  # it does not know yet what the rows of either take
    assert abs(served["acme/x"] * 20_000_000 - served["blue/y"] * 2_000_000) <= first_batch_ns


def test_two_that_a_third_owes_more_than_they_ask_for_are_not_compared() -> None:
    """Its message was taken for 400 times its price: who is owed all that waits of it has no part by weight."""
    group = {"messages_per_second": 10, "burst_seconds": 1, "request_percentage": 0.0001}
    dear = (("acme", 2_000_000_000), ("blue", 1_000), ("cora", 1_000))
    document = {**GROUP, "resource_groups": {"g": {"publish": group}}, "job": {"publish": {"messages_per_second": 50}}}
    life = Life(Birth(document, row_ns=dear), laws=["Time"])
    rows = [("acme/b", 60_000, 13), ("cora/ü", 60_000, 15), ("solo", 60_000, 13), ("acme/a", 60_000, 20)]
    life.play([Step("twin", {"is_other_query": False, "at": "after state", "rows": rows})])
    life.offer([("solo", 60_000, 13)])
    after = {
        **GROUP,
        "resource_groups": {"g": {"publish": {"request_percentage": 50, "burst_seconds": 2}}},
        "namespaces": {"acme/b": {"resource_group": "g", "publish": {"weight": 4}}},
    }
    heavy, cheap = ("acme/c", "blue/a", "cora/ü"), tuple((tenant, 5_000_000) for tenant in ("acme", "blue", "cora"))
    args = {"document": after, "heavy": heavy, "light": "acme/b", "row_ns": cheap, "triggers": 25, "every": 5}
    life.play([Step("contest_for_time", args)])


def test_two_that_one_who_is_gone_owes_are_not_compared() -> None:
    """600 of its messages left before their price was known. What it had too much is owed to who asked for most."""
    life = Life(Birth({**GROUP, "resource_groups": {"g": {"publish": {"messages_per_second": 5}}}}), laws=["Time"])
    for _ in range(3):
        life.offer([("acme/a", 1, 200), ("acme/c", 1, 40), ("blue/a", 1, 320), ("blue/b", 1, 40), ("acme/b", 1, 5)])
        life.trigger(1_000)
    timed = {**GROUP, "resource_groups": {"g": {"publish": {"request_percentage": 50, "burst_seconds": 10}}}}
    row_ns = (("acme", 10_000_000), ("blue", 5_000_000))
    args = {"document": timed, "heavy": ("blue/b", "acme/c"), "light": "acme/b", "row_ns": row_ns, "triggers": 37}
    life.play([Step("contest_for_time", {**args, "every": 1})])


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_l2_clock_that_is_set_pays_nothing_and_takes_nothing(by_ms: int) -> None:
    limit = {"messages_per_second": 1, "burst_seconds": 600}
    life = Life(Birth({"version": 1, "defaults": {"publish": limit}}), laws=["L2"])
    life.offer([("acme/a", 1, 2_000)])
    life.trigger(1_000)
    begun = len(life.job.admitted)
    life.job.set_clock(by_ms)
    for _ in range(10):
        life.trigger(1_000)
    assert len(life.job.admitted) - begun == 10


@pytest.mark.parametrize(("level", "waiting", "admitted"), [
    ("namespace", 0, 51), ("namespace", 60, 1), ("tenant", 0, 1), ("tenant", 60, 1), ("group", 0, 1), ("group", 60, 1),
    ("job", 0, 1), ("job", 60, 1),
])  # fmt: skip
def test_raised_rate_of_0_pays_nothing_that_was_saved_but_to_a_namespace_that_was_full_and_has_nothing_waiting(
    level: str, waiting: int, admitted: int
) -> None:
    def policies(rate: float) -> dict[str, object]:
        held = {"publish": {"messages_per_second": rate, "burst_seconds": 5}}
        documents: dict[str, dict[str, object]] = {
            "namespace": {"namespaces": {"a/x": held}},
            "tenant": {"tenants": {"a": held}},
            "group": {"resource_groups": {"g": held}, "defaults": {"resource_group": "g"}},
            "job": {"job": held},
        }
        return documents[level]

    job = SimulatedJob(policies(10))
    job.offer([("a/x", 1)])
    job.trigger()
    job.trigger(after_ms=60_000)
    job.set_policies(policies(0))
    job.offer([("a/x", 1)] * waiting)
    job.trigger()
    job.trigger()
    job.set_policies(policies(10))
    job.offer([("a/x", 1)] * (60 - waiting))
    before = len(job.admitted)
    job.trigger()
    assert len(job.admitted) - before == admitted
