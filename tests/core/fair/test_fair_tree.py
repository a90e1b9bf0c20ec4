"""The fair tree against its fluid ideal: behind by a constant number of messages, whoever else is there."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.fair.contest import Scopes, Standing, decide
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.water import covered
from spark_throttle.core.fair.work import MESSAGE, MOST_WORK, Rows
from tests.core.fair.fluid import Path
from tests.core.fair.worlds import Bucket, World, lived

NAMESPACE_BOUND, TENANT_BOUND, WINDOW_BOUND = 6.0, 4.0, 9.0
"""Largest messages: two for each level above; over a window that begins anywhere, what a node may be ahead as well."""


def watched(seeds: range, batches: int) -> None:
    for seed in seeds:
        namespaces, tenants = lived(seed, batches)
        assert namespaces.since_birth <= NAMESPACE_BOUND, seed
        assert tenants.since_birth <= TENANT_BOUND, seed
        assert max(namespaces.in_a_window, tenants.in_a_window) <= WINDOW_BOUND, seed


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_no_backlogged_namespace_or_tenant_is_behind_its_ideal_by_more_than_a_constant(first: int) -> None:
    watched(range(first, first + 25), 12)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_ten_thousand_histories_keep_within_the_constant(first: int) -> None:
    watched(range(first, first + 500), 25)


def job(rate: int, weights: dict[Path, int] | None = None) -> World:
    return World(weights or {}, {("g",): Bucket((rate, None))})


def served(world: World, *node: str) -> float:
    return sum(work for path, work in world.went.items() if path[: len(node)] == node) / MESSAGE


def test_a_heavy_namespace_is_not_starved_by_names_that_come_once() -> None:
    """120 new names a batch, in a tenant of their own, beside a tenant of weight 1,000; the group passes 100."""
    heavy = ("g", "b", "x")
    world = job(100, {("g", "b"): 1000})
    went = 0
    for batch in range(12):
        for n in range(120):
            world.offer(("g", "a", f"{batch}-{n}"), [1])
        world.offer(heavy, [1] * 50)
        went += len(world.batch().get(heavy, ()))
    assert went >= 12 * 50 - 2


def test_a_heavy_newcomer_does_not_wait_for_many_light_flows_that_are_about_to_be_served() -> None:
    light = [("g", f"t{n}", "n") for n in range(120)]
    world = job(60, {("g", "heavy"): 1000})
    for path in light:
        world.offer(path, [1] * 9)
    world.batch()
    world.offer(("g", "heavy", "n"), [1] * 50)
    gone = world.batch()
    assert len(gone["g", "heavy", "n"]) == 50


def test_a_quiet_tenant_does_not_wait_behind_one_with_a_hundred_namespaces() -> None:
    world = job(100)
    for _ in range(20):
        for n in range(100):
            world.offer(("g", "a", f"n{n}"), [1] * 3)
        for tenant in "bc":
            world.offer(("g", tenant, "x"), [1] * 10)
        gone = world.batch()
        assert [len(gone["g", tenant, "x"]) for tenant in "bc"] == [10, 10]


def test_a_tenant_that_splits_itself_into_a_thousand_namespaces_gains_at_most_a_message() -> None:
    world = job(37)
    world.offer(("g", "one", "n"), [1] * 2000)
    for n in range(1000):
        world.offer(("g", "split", f"n{n}"), [1] * 2)
    for _ in range(8):
        world.batch()
        assert abs(served(world, "g", "one") - served(world, "g", "split")) <= 1


def test_groups_get_the_tokens_of_the_job_by_weight() -> None:
    world = World({("g",): 3}, {(): Bucket((40, None))})
    for group in "gh":
        for n in range(3):
            world.offer((group, "t", f"n{n}"), [1] * 400)
    for _ in range(10):
        world.batch()
        assert abs(served(world, "g") - 3 * served(world, "h")) <= 4


def test_a_tenant_whose_tokens_two_groups_share_starves_in_neither() -> None:
    """The rows in one group are much smaller; one row a batch passes."""
    world = World({}, {("tenant", "t"): Bucket((1, None)), (): Bucket((100, 10_000))}, bytes_a_message=100)
    for group, size in (("g", 1), ("h", 900)):
        world.offer((group, "t", "n"), [size] * 100)
    for _ in range(100):
        world.batch()
    assert served(world, "g") > 0.8 * 50
    assert served(world, "h") > 0.8 * 50


def test_bytes_that_are_short_starve_no_flow_that_wants_messages_alone() -> None:
    world = World({}, {("g",): Bucket((100, 10_000))}, bytes_a_message=100)
    for _ in range(30):
        for n in range(20):
            world.offer(("g", "large", f"n{n}"), [1000] * 3)
        world.offer(("g", "small", "n"), [1] * 60)
        world.batch()
    assert served(world, "g", "small") >= 30 * 60 - 1


def test_names_that_are_gone_are_remembered_no_longer_than_the_fluid_has_to_serve_them() -> None:
    """Some went early, for others that wait; so there are about as many of them as of those that wait."""
    world = job(50)
    for batch in range(20):
        for n in range(60):
            world.offer(("g", f"t{n % 7}", f"{batch}-{n}"), [1])
        world.batch()
        waiting = {path for path, queue in world.queues.items() if queue}
        gone = [path for path in world.standing if len(path) == 3 and path not in waiting]
        assert len(gone) <= len(waiting) + 60
    for _ in range(6):
        world.batch()
    assert not world.standing


def tree_of(leaves: int, weight: int = 1) -> Tree:
    weights = np.full(leaves, weight, dtype=np.int64)
    zeros, one = np.zeros(leaves, dtype=np.int64), np.ones(1, dtype=np.int64)
    return Tree((Level.of(zeros, 1, weights), Level.of(zeros[:1], 1, one), Level.of(zeros[:1], 1, one)))


def test_the_largest_rows_and_weights_do_not_overflow() -> None:
    tree, counts = tree_of(1000, 1000), np.full(1000, 20, dtype=np.int64)
    standing = Standing.new(tree)
    sizes = np.full(20_000, 1 << 36, dtype=np.int64)
    rows = Rows.of(np.cumsum(counts) - counts, np.append(0, np.cumsum(sizes)), np.full(20_000, MOST_WORK * 8))
    none = np.array([-1])
    for _ in range(20):
        scopes = Scopes(none, np.array([0]), none, np.array([[1 << 50], [50 << 36]]))
        outcome = decide(tree, standing, rows, counts, scopes, np.arange(1000))
        standing = outcome.standing
        assert outcome.count.sum() == 51
        assert abs(standing.leads[0]).max() <= MOST_WORK


def test_the_same_batch_is_decided_the_same_in_any_sequence_of_ties() -> None:
    """Leaves that are equal go by their tie, wherever they stand."""
    tree, counts = tree_of(64), np.full(64, 5, dtype=np.int64)
    rows, none = Rows.of(np.cumsum(counts) - counts, np.arange(321), None), np.array([-1])
    tie = np.random.default_rng(3).permutation(64)
    scopes = Scopes(none, np.array([0]), none, np.array([[10], [1 << 50]]))
    count = decide(tree, Standing.new(tree), rows, counts, scopes, tie).count
    assert sorted(tie[count > 0]) == list(range(11))


@pytest.mark.parametrize("seed", range(30))
def test_water_fills_all_that_are_not_full_to_one_level(seed: int) -> None:
    r = np.random.default_rng(seed)
    nodes, children = 4, 40
    weight = r.choice([1, 2, 7, 1000], children).astype(np.int64)
    level = Level.of(np.sort(r.integers(0, nodes, children)), nodes, weight)
    want = r.integers(0, 1 << int(r.integers(1, 40)), children)
    amount = (level.totals(want) * r.random(nodes) * 1.2).astype(np.int64)
    got = covered(want, weight, level.parent, level.bounds, amount)
    assert (got <= want).all()
    for node in range(nodes):
        mine = level.parent == node
        left, is_full = amount[node] - got[mine].sum(), (got == want)[mine]
        if left >= 0 and is_full.all():
            continue
        levels = set((got[mine] // weight[mine])[~is_full].tolist())
        assert len(levels) == 1
        assert (want[mine][is_full] <= weight[mine][is_full] * (levels.pop() + 1)).all()
        assert 0 <= left < weight[mine][~is_full].sum()


def test_tenants_that_wait_with_a_large_row_cannot_overtake_by_small_ones() -> None:
    """Half of the tenants are served early, half late; then these get small rows, and a heavy tenant comes."""
    heavy = ("g", "heavy", "n")
    world = World({("g", "heavy"): 1000}, {("g",): Bucket((None, 600))}, bytes_a_message=1, counts_messages=False)
    for n in range(200):
        world.offer(("g", f"t{n}", "large"), [60, 60])
    for _ in range(9):
        world.batch()
    for n in range(200):
        if not world.went["g", f"t{n}", "large"]:
            world.offer(("g", f"t{n}", "small"), [1] * 60)
    world.offer(heavy, [1] * 20_000)
    for _ in range(20):
        world.batch()
        assert world.lags()[heavy] <= 2 * 60
