"""The fair tree while weights, groups and rates change: each batch follows its own policy, and nobody pays for another.

What is said in the design of change: from the batch in which a policy acts, service follows it; what a flow was ahead
or behind under another one costs it, and the others, at most a message each.
"""

from __future__ import annotations

import random

import pytest

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.testing.oracle.decider import Decider
from spark_throttle.testing.oracle.worlds import Tenant, limit, make_policy
from tests.core.fair.fluid import Path
from tests.core.fair.worlds import Bucket, World

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
def test_a_newcomer_gains_nothing_by_those_that_were_behind_and_are_in_another_group(tenants: int) -> None:
    names = [f"t{n}" for n in range(tenants)]

    def policy(moved: set[str]) -> CompiledPolicy:
        groups = {"g": limit(messages_per_second=tenants), "h": limit(messages_per_second=1)}
        of_name = {name: Tenant(group="h" if name in moved else "g") for name in names}
        return make_policy(groups=groups, tenants=of_name | {"new": Tenant(limit(weight=tenants // 2), "g")})

    decider = Decider("kernel", policy(set()))
    decider.batch(0, [(f"{name}/n", 1) for name in names for _ in range(9)], {"g": (tenants // 2 - 1, 0)})
    went = {name.split("/")[0] for name, count in decider.admitted().items() if count}
    assert len(went) == tenants // 2
    decider.policy = policy(set(names) - went)
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
