"""The fair tree while weights, groups and rates change: each batch follows its own policy, and nobody pays for another.

What is said in the design of change: from the batch in which a policy acts, service follows it; what a flow was ahead
or behind under another one costs it, and the others, at most a message each.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_throttle.core.quota import CompiledPolicy
from tests.core.fair.fluid import Path
from tests.core.fair.histories import changed, judged
from tests.core.fair.kernel_worlds import DecidedWorld
from tests.core.fair.worlds import Bucket, World
from tests.effort import crossed
from tests.oracle.decider import Decider
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

HEAVY: Path = ("g", "heavy", "n")


def half_served(tenants: int, weight: int = 1) -> tuple[World, list[Path]]:
    """Return a world of equal tenants, half of which were served, and those that were not."""
    world = World({}, {("g",): Bucket((tenants // 2 - 1, None))})
    light: list[Path] = [("g", f"t{n}", "n") for n in range(tenants)]
    for path in light:
        world.weights[path[:2]] = weight
        world.offer(path, [1] * 30)
    gone = world.batch()
    return world, [path for path in light if not gone.get(path)]


@pytest.mark.parametrize("tenants", [100, 400])
@pytest.mark.parametrize("who", ["those behind are raised", "those ahead are cut"])
def test_a_newcomer_does_not_pay_for_what_many_were_behind_under_other_weights(tenants: int, who: str) -> None:
    is_cut = who == "those ahead are cut"
    world, waiting = half_served(tenants, 1_000 if is_cut else 1)
    for path in world.queues:
        world.weights[path[:2]] = 1_000 if path in waiting else 1
    world.weights[HEAVY[:2]] = 1_000 * len(waiting)
    world.offer(HEAVY, [1] * 5 * tenants)
    world.buckets["g",].rate = (tenants * 3 // 4 - 1, None)
    levels = sum(world.weights[path[:2]] for path in world.queues) / 2**16
    for _ in range(5):
        world.batch()
        assert max(world.lags().values()) <= 2 + levels / 2


@pytest.mark.parametrize("tenants", [20, 200])
def test_a_newcomer_does_not_pay_for_those_that_are_raised_and_whose_rows_have_gone(tenants: int) -> None:
    """Half of the tenants have sent their only row, a half of it early; the others wait with theirs."""
    world = World({}, {("g",): Bucket((tenants // 2 - 1, None))})
    for n in range(tenants):
        world.offer(("g", f"t{n}", "n"), [1])
    gone = [path for path, sizes in world.batch().items() if sizes]
    world.change({path[:2]: 1_000 for path in gone}, {("g",): (tenants * 3 // 4 - 1, None)})
    world.weights[HEAVY[:2]] = 1_000
    world.offer(HEAVY, [1] * 5 * tenants)
    for _ in range(4):
        world.batch()
        assert world.lags()[HEAVY] <= 2


@pytest.mark.parametrize("tenants", [20, 200])
@pytest.mark.parametrize("who", ["ahead", "behind"])
def test_a_newcomer_neither_gains_nor_pays_by_those_that_were_served_or_not_and_are_in_another_group(
    tenants: int, who: str
) -> None:
    names = [f"t{n}" for n in range(tenants)]

    def policy(moved: set[str]) -> CompiledPolicy:
        groups = {"g": limit(messages_per_second=tenants), "h": limit(messages_per_second=1)}
        of_name = {name: Tenant(group="h" if name in moved else "g") for name in names}
        return make_policy(groups=groups, tenants=of_name | {"new": Tenant(limit(weight=tenants // 2), "g")})

    decider = Decider("kernel", policy(set()))
    decider.batch(0, [(f"{name}/n", 1) for name in names for _ in range(9)], {"g": (tenants // 2 - 1, 0)})
    went = {name.split("/")[0] for name, count in decider.admitted().items() if count}
    assert len(went) == tenants // 2
    decider.policy = policy(went if who == "ahead" else set(names) - went)
    for batch in range(1, 4):
        decider.batch(1_000 * batch, [("new/n", 1)] * tenants * 2, {"g": (tenants - 1, 0), "h": (-1, 0)})
        assert decider.admitted()["new/n"] == pytest.approx(tenants / 2, abs=2)


@pytest.mark.parametrize(("palette", "small"), [((1, 10), 1), ((1, 10), 30), ((1, 100), 3)])
def test_a_small_share_adds_up_to_rows_although_weights_change_in_every_batch(
    palette: tuple[int, ...], small: int
) -> None:
    """Those of the others are drawn, and one of weight 1 or 2 alternates."""
    r, world = random.Random(small), World({}, {("g",): Bucket((40, None))})
    others: list[Path] = [("g", f"t{n}", "n") for n in range(30)]
    fixed: list[Path] = [("g", f"s{n}", "n") for n in range(small)]
    turning: Path = ("g", "z", "n")
    every = [*others, *fixed, turning]
    ideals = dict.fromkeys(every, 0.0)
    for batch in range(120):
        for path in others:
            world.weights[path[:2]] = r.choice(palette)
        world.weights[turning[:2]] = 1 + batch % 2
        whole = sum(world.weights[path[:2]] for path in every)
        for path in every:
            world.offer(path, [1] * max(0, 30 - len(world.queues[path])))
        went = sum(len(sizes) for sizes in world.batch().values())
        for path in every:
            ideals[path] += went * world.weights[path[:2]] / whole
    for path in (*fixed, turning):
        assert world.went[path] / 2**16 >= ideals[path] - 2.5


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_from_the_batch_of_a_change_everybody_is_near_the_ideal_of_the_weights_and_rates_that_it_brings(
    first: int,
) -> None:
    for seed in range(first, first + 4):
        judged(changed(seed, 10), seed, past=1)


@pytest.mark.parametrize(("seed", "batches"), [(10_260, 12), (62, 33), (11_214, 21)])
def test_so_it_is_where_what_a_node_holds_is_chosen_anew_and_where_those_that_are_raised_have_gone(
    seed: int, batches: int
) -> None:
    judged(changed(seed, batches), seed, past=1)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 12_000, 500))
def test_two_thousand_histories_of_changes_keep_within_the_constant(first: int) -> None:
    for seed in range(first, first + 500):
        judged(changed(seed, 25), seed, past=1)


@pytest.mark.slow
def test_so_it_is_through_the_decider() -> None:
    for seed, batches in ((1, 10), (107, 25)):
        judged(changed(seed, batches, DecidedWorld), seed, past=1)


def test_what_divides_a_group_divides_it_from_the_batch_in_which_it_is_said() -> None:
    """Between tenants or between namespaces, in turn; a tenant's namespaces come and go with a row held."""
    rows = [("a/1", 1), ("a/2", 1), ("a/3", 1), ("b/1", 1)] * 400
    for held in range(1, 5):  # so many messages go in the first batch: somebody's turn is always half done
        decider = Decider("kernel", divided(between_namespaces=False))
        decider.batch(0, rows, {"g": (held - 1, 0)})
        for batch in range(1, 7):
            is_between = bool(batch % 2)
            decider.policy = divided(between_namespaces=is_between)
            decider.batch(1_000 * batch, [], {"g": (59, 0)})
            went = decider.admitted()
            parts = {"a/1": 15, "a/2": 15, "a/3": 15, "b/1": 15} if is_between else {
                "a/1": 10, "a/2": 10, "a/3": 10, "b/1": 30
            }  # fmt: skip
            assert all(abs(went[name] - part) <= 1 for name, part in parts.items()), (batch, went)


def test_nobody_loses_every_tie_though_policies_that_forget_all_leads_alternate_as_fast_as_rows_go() -> None:
    """All came at once and wait, and each batch begins anew: it divides the group otherwise than the one before."""
    names = [f"{tenant}/{name}" for tenant in ("a", "b") for name in range(3)]
    decider, went = Decider("kernel", divided(between_namespaces=False)), Counter[str]()
    for batch in range(120):
        decider.policy = divided(between_namespaces=bool(batch % 2))
        arriving = [(name, 1) for name in names for _ in range(60)] if batch == 0 else []
        decider.batch(1_000 * batch, arriving, {"g": (0, 0)})
        went += decider.admitted()
    assert went.total() == 120
    assert min(went[name] for name in names) >= 10


def divided(*, between_namespaces: bool) -> CompiledPolicy:
    return make_policy(
        groups={"g": limit(messages_per_second=60)},
        default=Namespace(group="g"),
        between_namespaces=("g",) if between_namespaces else (),
    )


def test_a_heavy_tenant_keeps_its_share_among_20_000_that_come_at_once() -> None:
    policy = make_policy(
        groups={"g": limit(messages_per_second=2_100)},
        tenants={"heavy": Tenant(limit(weight=1_000), "g")},
        default=Namespace(group="g"),
    )
    decider = Decider("kernel", policy)
    for batch in range(3):
        came = [(f"t{n}/n", 1) for n in range(20_000)] if batch == 1 else []
        decider.batch(1_000 * batch, [("heavy/n", 1)] * (200 if batch else 50) + came, {"g": (2_099, 0)})
        assert decider.admitted()["heavy/n"] == (pytest.approx(100, abs=2) if batch else 50)


def test_a_heavy_newcomer_goes_first_where_a_batch_has_one_row() -> None:
    """Of 120 equal tenants half were served; those that wait are owed half a row each."""
    world, _ = half_served(120)
    world.weights[HEAVY[:2]] = 1_000
    world.offer(HEAVY, [1] * 100)
    world.buckets["g",] = Bucket((1, None))
    world.buckets["g",].balance[0] = -1
    went = sum(len(world.batch()[HEAVY]) for _ in range(20))
    assert went >= 20 * 1_000 // 1_120 - 1


@pytest.mark.parametrize("names", [("a/x", "b/x"), ("a/x", "a/y")], ids=["tenants", "namespaces"])
def test_a_lead_is_forgotten_where_work_counts_otherwise(names: tuple[str, str]) -> None:
    """Half a message is as much work as 128 bytes where bytes alone are limited."""
    by_messages = make_policy(groups={"g": limit(messages_per_second=100)}, default=Namespace(group="g"))
    by_bytes = make_policy(groups={"g": limit(bytes_per_second=100)}, default=Namespace(group="g"))
    decider = Decider("kernel", by_messages)
    decider.batch(0, [(name, 1) for name in names] * 300, {"g": (0, 0)})
    assert sum(decider.admitted().values()) == 1
    decider.policy = by_bytes
    decider.batch(1_000, [], {"g": (0, 99)})
    assert [decider.admitted()[name] for name in names] == [50, 50]


def test_a_lead_in_a_tenant_without_a_group_is_forgotten_so_though_namespaces_divide_some_group() -> None:
    by_messages, by_bytes = (
        make_policy(tenants={"a": Tenant(each)}, groups={"g": limit()}, between_namespaces=["g"])
        for each in (limit(messages_per_second=100), limit(bytes_per_second=100))
    )
    decider = Decider("kernel", by_messages)
    decider.batch(0, [(name, 1) for name in ("a/x", "a/y")] * 300, {"a": (0, 0)})
    assert decider.admitted().total() == 1
    decider.policy = by_bytes
    decider.batch(1_000, [], {"a": (0, 99)})
    assert decider.admitted() == {"a/x": 50, "a/y": 50}


@pytest.mark.parametrize("names", [("a/x", "b/x"), ("a/x", "a/y")], ids=["tenants", "namespaces"])
def test_a_lead_is_remembered_where_only_weights_change(names: tuple[str, str]) -> None:
    """A small share is a row in ten batches, each of which has another policy."""
    large, small = names

    def policy(weight: int) -> CompiledPolicy:
        return make_policy(
            groups={"g": limit(messages_per_second=10)},
            tenants={} if large[0] == small[0] else {large[0]: Tenant(limit(weight=weight))},
            namespaces={large: Namespace(limit(weight=weight), "g")},
            default=Namespace(group="g"),
        )

    decider, went = Decider("kernel", policy(99)), 0
    for batch in range(50):
        decider.policy = policy(99 + batch % 2)
        decider.batch(1_000 * batch, [(large, 1)] * 10 + [(small, 1)], {"g": (9, 0)})
        went += decider.admitted()[small]
    assert abs(went - 5) <= 1


@pytest.mark.parametrize(
    ("names", "rates"),
    crossed([("a/x", "b/x", "c/x"), ("a/x", "a/y", "a/z")], [(10, 1_001), (10, 400), (3, 1_000)], of=2),
)
def test_nobody_starves_where_each_change_makes_bytes_dearer_or_cheaper(
    names: tuple[str, ...], rates: tuple[int, int]
) -> None:
    """A message takes five seconds of the bytes, and the policy changes as often."""
    policies = [
        make_policy(
            groups={"g": limit(messages_per_second=messages, bytes_per_second=size_bytes)},
            default=Namespace(group="g"),
        )
        for messages, size_bytes in ((10, 1_000), rates)
    ]
    decider, went = Decider("kernel", policies[0]), Counter[str]()
    for second in range(60):
        decider.policy = policies[second // 5 % 2]
        decider.batch(1_000 * second, [] if second else [(name, 5_000) for name in names] * 60)
        went.update(decider.admitted())
    assert max(went.values()) - min(went[name] for name in names) <= 1


def test_leads_of_siblings_sum_to_nothing_whatever_rows_are_held() -> None:
    world = World({("g0",): 3, ("g0", "t0"): 7, ("g1", "t1", "n1"): 5}, {(): Bucket((4, None))})
    for group in range(2):
        for tenant in range(3):
            for name in range(3):
                world.offer((f"g{group}", f"t{tenant}", f"n{name}"), [1] * 9)
    for _ in range(12):
        world.batch()
        assert max(abs(each) for depth in (1, 2, 3) for each in world.lead_sums(depth)) < 0.01
