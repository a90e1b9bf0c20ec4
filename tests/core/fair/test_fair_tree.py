"""The fair tree against its fluid ideal: behind by a constant number of messages, whoever else is there."""

from __future__ import annotations

import numpy as np
import pytest

from spark_throttle.core.fair.contest import Scopes, Standing, decide
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.water import covered
from spark_throttle.core.fair.work import MESSAGE, MOST_WORK, TOKEN_BITS, Rows, token_work
from spark_throttle.core.quota import UNLIMITED
from tests.core.fair.fluid import Path
from tests.core.fair.histories import fought, judged, lived, referees_of, repeated
from tests.core.fair.scope_worlds import TENANTS, crossed, spread
from tests.core.fair.worlds import Bucket, World
from tests.effort import thorough_after


@pytest.mark.parametrize("first", thorough_after(1, range(0, 200, 20)))
def test_no_group_tenant_or_namespace_is_apart_from_its_ideal_by_more_than_a_constant(first: int) -> None:
    for seed in range(first, first + 20):
        judged(lived(seed, 12), seed)


@pytest.mark.parametrize("seed", thorough_after(1, range(18, 26)))
def test_nor_where_each_repeats_its_sizes_for_300_batches(seed: int) -> None:
    """What one large row puts others behind is not forgotten because the next rows are small."""
    judged(repeated(seed, 300), seed)


def test_nor_where_a_node_that_is_kept_within_its_amount_has_children_of_weights_1_and_1000() -> None:
    judged(lived(16373, 60), 16373)


@pytest.mark.parametrize("first", thorough_after(1, range(0, 60, 10)))
def test_nor_where_one_is_heavy_among_many_and_rows_differ_a_millionfold(first: int) -> None:
    for seed in range(first, first + 10):
        judged(fought(seed, 12), seed)


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_nor_where_light_flows_end_the_messages_of_a_scope_and_heavy_ones_its_bytes(first: int) -> None:
    """Siblings' leads sum to 0, but for a row that a tenant held, and of which its own limit passed others."""
    for seed in range(first, first + 8):
        referees = crossed(seed, 8)
        judged(referees, seed)
        assert max(each.lead_sum for each in referees) <= 1, seed


@pytest.mark.parametrize(
    "seed", thorough_after(3, [11079, 11314, 11603, 10315, 11361, 11389, 11390, 11412, 11505, 11528, 11558])
)
def test_nor_in_histories_in_which_it_once_grew_from_batch_to_batch(seed: int) -> None:
    judged(crossed(seed, 40), seed, kept_back=TENANTS)


def test_a_tenant_is_not_ahead_by_what_its_siblings_are_owed_whose_rows_their_group_refused() -> None:
    """The job takes less than the group passes: what has begun of the siblings goes before more of the tenant's."""
    judged(fought(12_604, 13), 12_604)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_a_tenant_divides_its_tokens_between_its_nodes_in_several_groups(first: int) -> None:
    for seed in range(first, first + 8):
        spread(seed, 12)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 12_000, 500))
def test_two_thousand_histories_of_several_scopes_keep_within_the_constant(first: int) -> None:
    for seed in range(first, first + 500):
        judged(crossed(seed, 60), seed, kept_back=TENANTS)
        spread(seed, 12)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_ten_thousand_histories_keep_within_the_constant(first: int) -> None:
    for seed in range(first, first + 500):
        judged(fought(seed, 25) if seed % 4 == 0 else lived(seed, 25), seed)


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
        world.offer((group, "t", "n"), [size] * 40)
    for _ in range(40):
        world.batch()
    assert served(world, "g") > 0.8 * 20
    assert served(world, "h") > 0.8 * 20


def test_bytes_that_are_short_starve_no_flow_that_wants_messages_alone() -> None:
    world = World({}, {("g",): Bucket((100, 10_000))}, bytes_a_message=100)
    for _ in range(30):
        for n in range(20):
            world.offer(("g", "large", f"n{n}"), [1000] * 3)
        world.offer(("g", "small", "n"), [1] * 60)
        world.batch()
    assert served(world, "g", "small") >= 30 * 60 - 1


def test_an_empty_message_waits_where_bytes_are_spent() -> None:
    world = World({}, {("g",): Bucket((None, 10))}, bytes_a_message=1, counts_messages=False)
    world.offer(("g", "t", "n"), [30, 0])
    assert [world.batch()["g", "t", "n"] for _ in range(3)] == [[30], [], [0]]


def test_a_row_is_held_although_another_scope_goes_another_round() -> None:
    """A group is spent, and one of its tenants has chosen a row; the other group's two resources end at no amount."""
    heavy = ("h", "heavy", "n")
    world = World({heavy[:2]: 200}, {("g",): Bucket((2, None)), ("h",): Bucket((1000, 1000))}, bytes_a_message=100)
    world.offer(heavy, [100] * 100)
    for n in range(200):
        world.offer(("h", f"t{n}", "n"), [1] * 20)
    for n in range(4):
        world.offer(("g", f"t{n}", "n"), [1] * 9)
    rounds, holding = 0, list[int]()
    for _ in range(4):
        world.batch()
        rounds = max(rounds, world.rounds)
        holding.append(sum(told[1] for path, told in world.standing.items() if len(path) == 3 and path[0] == "g"))
    assert rounds == 2
    assert min(holding) > 0


@pytest.mark.parametrize("seed", [20_010, 20_107])
def test_a_tenant_whose_group_is_spent_keeps_its_turns_although_others_go_another_round(seed: int) -> None:
    judged(crossed(seed, 8), seed)


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
    rows = Rows.of(np.cumsum(counts) - counts, (np.append(0, np.cumsum(sizes)),), np.full(20_000, MOST_WORK * 8))
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
    rows, none = Rows.of(np.cumsum(counts) - counts, (np.arange(321),), None), np.array([-1])
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


def test_a_heavy_tenant_does_not_wait_for_small_rows_that_large_ones_delayed_in_many_tenants() -> None:
    """All light tenants come to the end of a large row in the same batch; then each has small rows that are late."""
    heavy = ("g", "heavy", "n")
    world = World({heavy[:2]: 200}, {("g",): Bucket((None, 400))}, bytes_a_message=1, counts_messages=False)
    for n in range(200):
        world.offer(("g", f"t{n}", "small"), [1] * 100)
        world.offer(("g", f"t{n}", "large"), [10] * 10)
    world.offer(heavy, [10] * 1000)
    for _ in range(20):
        world.batch()
        assert world.lags()[heavy] <= 2 * 10


def test_a_heavy_tenant_is_not_ahead_because_many_light_ones_do_not_fit_their_group() -> None:
    """Of 800 light tenants, the group passes some 60, and the job fewer: their order is the group's."""
    heavy = ("g", "heavy", "n")
    world = World({heavy[:2]: 1000}, {("g",): Bucket((120, None)), (): Bucket((40, None))})
    world.offer(heavy, [1] * 1000)
    for n in range(800):
        world.offer(("g", f"t{n}", "n"), [1])
    for _ in range(6):
        world.batch()
        assert abs(world.lags()[heavy]) <= 1.5


def test_of_two_rows_that_have_begun_the_one_whose_virtual_finish_is_earlier_goes_first() -> None:
    """Two messages at weight 3 are done at 2/3, one at weight 1 is done at 1; the group has room for one row."""
    world = World({("g", "heavy"): 3}, {("g",): Bucket((None, 0))}, bytes_a_message=1)
    world.offer(("g", "heavy", "n"), [2])
    world.offer(("g", "a", "n"), [1])
    assert world.batch() == {("g", "heavy", "n"): [2], ("g", "a", "n"): []}


def test_a_tenant_holds_no_row_that_its_group_refused_while_the_job_left_others() -> None:
    """A heavy namespace beside light ones, in a tenant of which its group passes many rows and the job hardly any."""
    judged(lived(10_616, 25), 10_616)


@pytest.mark.parametrize("rates", [(100, 5_000), (1, 8_000_000), (1_000_000, 1), (3, 7)])
def test_the_rates_of_a_scope_are_as_much_work(rates: tuple[int, int]) -> None:
    of_message, of_byte, *_ = (token_work(np.array([[*rates, UNLIMITED, UNLIMITED]]))[:, 0] / 2**TOKEN_BITS).tolist()
    work = MESSAGE * min(rates)
    found = of_message * rates[0], of_byte * rates[1]
    assert found == pytest.approx((work, work), rel=2**-29, abs=max(rates) / 2**TOKEN_BITS)


@pytest.mark.parametrize("group_bytes", [2_000, 20_000, 200_000])
def test_a_group_short_of_bytes_in_a_job_short_of_messages_keeps_to_the_ideal(group_bytes: int) -> None:
    """By the rates of the whole tree, a message of the job is as much as its part of the group's bytes."""
    world = World({}, {(): Bucket((40, None)), ("g",): Bucket((None, group_bytes))}, bytes_a_message=group_bytes // 40)
    for tenant in "ab":
        world.offer(("g", tenant, "large"), [1000] * 400)
        world.offer(("g", tenant, "small"), [10] * 400)
        world.offer(("h", tenant, "n"), [1000] * 400)
    referees = referees_of(world, [1000])
    for _ in range(8):
        world.batch()
        for referee in referees:
            referee.watch(world)
    judged(referees, group_bytes)


def test_where_two_resources_end_at_no_amount_another_round_goes_on() -> None:
    """Light flows send many rows more before the heavy one's next large row has begun, and hardly any after it has."""
    heavy = ("g", "heavy", "n")
    world = World({heavy[:2]: 200}, {("g",): Bucket((1000, 1000))}, bytes_a_message=100)
    world.offer(heavy, [100] * 100)
    for n in range(200):
        world.offer(("g", f"t{n}", "n"), [1] * 20)
    rounds = 0
    for _ in range(4):
        world.batch()
        rounds = max(rounds, world.rounds)
        assert abs(world.lags()[heavy]) <= 1.5
    assert rounds == 2
