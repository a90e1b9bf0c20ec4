"""Single batches in which the order of turns is seen: what a node gives away, and what it shows its parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spark_throttle.core.fair.contest import Scopes, Standing, decide
from spark_throttle.core.fair.crossing import Crossing
from spark_throttle.core.fair.filling import Entries
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.turns import serve
from spark_throttle.core.fair.work import MESSAGE, Rows
from tests.core.fair.worlds import Bucket, World


def level_of(*parents: int, weights: Sequence[int] = ()) -> Level:
    weight = np.array(weights or [1] * len(parents), dtype=np.int64)
    return Level.of(np.array(parents, dtype=np.int64), max(parents) + 1, weight)


def rows_of(sizes: Sequence[Sequence[int]]) -> Rows:
    """Return rows whose work is their bytes."""
    flat, counts = np.concatenate([np.array(each) for each in sizes]), np.array([len(each) for each in sizes])
    return Rows.of(np.cumsum(counts) - counts, (np.append(0, np.cumsum(flat)),), flat)


def test_a_node_whose_rows_take_all_of_its_amount_still_competes_with_its_next_row() -> None:
    """The tenant has 600: one namespace's rows were refused, two of the other's take all. Its third is done at 450.

    The other tenant's row is done at 500.
    """
    tree = Tree((level_of(0, 0, 1), level_of(0, 0, weights=(2, 3))))
    zeros, none = np.zeros(3, dtype=np.int64), np.full(2, -1)
    entries = Entries(
        tree,
        [zeros, zeros[:2]],
        rows_of([[300] * 10, [300] * 10, [1500] * 5]),
        [np.array([10, 10, 5]), np.array([0, 3, 5])],
        [none],
        np.arange(3),
        np.array([[100], [1499]]),
    )
    assert serve(entries).count.tolist() == [0, 3, 1]


def test_a_node_sends_no_more_than_it_is_given_although_a_child_is_late() -> None:
    """A tenant of 20 namespaces is 1,000 behind in its group, all of whose first rows are done at the same time."""
    tree = Tree((level_of(*[0] * 20, 1, 2), level_of(0, 0, 1), level_of(0, 0)))
    rows = rows_of([[100] * 5] * 20 + [[1000]] + [[100] * 20])
    standing = Standing.new(tree)
    standing = replace(standing, leads=(standing.leads[0], np.array([-1000, 1000, 0]), standing.leads[2]))
    scopes = Scopes(np.full(3, -1), np.full(2, -1), np.array([0]), np.array([[9], [1 << 50]]))
    outcome = decide(tree, standing, rows, np.array([5] * 20 + [1, 20]), scopes, np.arange(22))
    assert outcome.count[:21].sum() == 5
    assert outcome.count[21] == 5


@pytest.mark.timeout(60)
def test_rows_that_have_not_begun_take_what_refused_ones_leave_however_many_they_are() -> None:
    """A tenant's quota passes small rows alone, for its large one is done later; the group is short of bytes."""
    messages = 50_000
    world = World({}, {("g",): Bucket((None, 10 * messages)), ("tenant", "t"): Bucket((messages, None))}, 4)
    world.offer(("g", "t", "large"), [40 * messages] * 20)
    world.offer(("g", "t", "small"), [1] * messages * 6)
    world.offer(("g", "other", "n"), [100] * messages)
    assert sum(map(sum, world.batch().values())) > 10 * messages


def test_several_late_rows_of_a_child_go_before_a_row_of_another_that_is_done_later() -> None:
    """At weight 1,000, a level is more than all these rows; there are two messages."""
    tree = Tree((level_of(0, 0, 0, weights=(1000, 1000, 1)),))
    until = np.array([4, 1, 1])
    entries = Entries(
        tree,
        [np.array([-4, -1, 5])],
        rows_of([[1, 1, 1, 1], [2], [10]]),
        [until],
        [],
        np.array([1, 0, 2]),
        np.array([[1], [100]]),
    )
    assert serve(entries).count.tolist() == [2, 0, 0]


def test_what_waits_in_a_spent_group_does_not_depend_on_the_rounds_of_another() -> None:
    """Alone, the group's batch has one round. Beside one whose two resources end at no amount it has two."""
    heavy = ("h", "heavy", "n")
    alone = World({}, {("g",): Bucket((2, None))}, bytes_a_message=100)
    beside = World({heavy[:2]: 200}, {("g",): Bucket((2, None)), ("h",): Bucket((1000, 1000))}, bytes_a_message=100)
    beside.offer(heavy, [100] * 100)
    for n in range(200):
        beside.offer(("h", f"t{n}", "n"), [1] * 20)
    rounds = 0
    for batch in range(6):
        for world in (alone, beside):
            for n in range(3):
                world.offer(("g", f"t{n % 2}", f"n{n}"), [1 + 300 * ((n + batch) % 2)] * 2)
            world.batch()
        rounds = max(rounds, beside.rounds)
        assert alone.standing == {path: told for path, told in beside.standing.items() if path[0] == "g"}
    assert rounds == 2


def test_passes_do_not_grow_with_the_tokens_where_one_is_owed_more_than_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its group is owed a million messages, and it in its group; then it has a row, and the others have thousands."""
    passes, passed, lead_work = Counter[int](), Crossing._passed, 1_000_000 * MESSAGE

    def counted(crossing: Crossing, *given: Any) -> Any:
        passes[tokens] += 1
        return passed(crossing, *given)

    monkeypatch.setattr(Crossing, "_passed", counted)
    for tokens in (100, 1_000):
        world = World({}, {(): Bucket((None, tokens))}, bytes_a_message=1, counts_messages=False)
        world.offer(("g", "t", "x"), [1])
        for way in (("g", "u", "x"), ("g", "v", "x"), ("h", "z", "x")):
            world.offer(way, [1] * 4 * tokens)
        world.standing = {("g",): (-lead_work, 0, 0), ("h",): (lead_work, 0, 0), ("g", "t"): (-lead_work, 0, 0)}
        went = world.batch()
        assert [len(rows) for rows in went.values()] == [1, tokens // 2, tokens // 2, 0]
    assert passes[100] == passes[1_000]
