"""A batch honours leads as a slow reading of the rule does: up to any tag, no more falls due than is paid."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from spark_throttle.core.fair.contest import Standing, honoured
from spark_throttle.core.fair.promises import kept_promises
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.work import Rows


def kept(lead: Sequence[int], row: Sequence[int], weight: Sequence[int] | None = None) -> list[int]:
    """Return what one node's children keep of their leads."""
    level = Level.of(np.zeros(len(lead), dtype=np.int64), 1, np.array(weight or [1] * len(lead)))
    found: list[int] = kept_promises(level, np.array(lead), np.array(row)).tolist()
    return found


def is_payable(
    owed: Sequence[Fraction | int], ahead: Sequence[int], row: Sequence[int], weight: Sequence[int], spare: int
) -> bool:
    """Return whether up to the tag of every child's next row what falls due is paid, and so much more."""
    children = range(len(owed))
    tags = [max(Fraction(0), Fraction(row[n] + ahead[n] - owed[n]) / weight[n]) for n in children]
    for tag in tags:
        due = sum(owed[n] - ahead[n] for n in children if tags[n] <= tag)
        if due - spare > tag * sum(weight[n] for n in children if tags[n] > tag):
            return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_all_lose_as_much_of_virtual_time_as_it_takes_that_what_falls_due_is_paid(seed: int) -> None:
    """Those that are ahead, or some that are behind, may be in another group; some have no row."""
    r = np.random.default_rng(seed)
    n = int(r.choice([2, 5, 30]))
    weight = r.choice([[1, 1], [1, 3], [1, 100]][seed % 3], n).tolist()
    drawn = r.integers(-2_000_000, 2_000_000, n)
    drawn[0] -= drawn.sum() * (seed % 2)
    lead = drawn.tolist()
    row = (r.integers(1, 1_000_000, n) * (r.random(n) < 0.9)).tolist()
    after = kept(lead, row, weight)
    owed, keeps = ([max(-each, 0) * (of > 0) for each, of in zip(of_all, row, strict=True)] for of_all in (lead, after))
    ahead = [max(each, 0) for each in lead]
    spare = max(*row, *ahead) + sum(weight)

    def is_paid(due: Sequence[Fraction | int], more: int) -> bool:
        return is_payable(due, ahead, row, weight, spare + more)

    assert is_paid(keeps, n)
    if is_paid(owed, -n):
        assert keeps == owed
    else:
        lost = max(Fraction(had - has, of) for had, has, of in zip(owed, keeps, weight, strict=True))
        assert all(abs(has - max(0, had - lost * of)) <= of for had, has, of in zip(owed, keeps, weight, strict=True))
        assert not is_paid([max(0, had - lost / 2 * of) for had, of in zip(owed, weight, strict=True)], -n)
    assert abs(sum(max(each, 0) for each in after) - sum(keeps)) <= spare


def test_leads_of_a_node_whose_promises_can_be_kept_stay_as_they_are_beside_one_whose_cannot() -> None:
    """What the first node's third child is owed, it has no row for."""
    lead, row = np.array([-500, 700, -200, -5_000, 2_500, 2_500]), np.array([1_000, 1_000, 0, 1_000, 1_000, 1_000])
    level = Level.of(np.array([0, 0, 0, 1, 1, 1]), 2, np.ones(6, dtype=np.int64))
    after = kept_promises(level, lead, row).tolist()
    assert after[:3] == [-500, 700, -200]
    assert -5_000 < after[3] == -after[4] - after[5]


def test_what_many_are_owed_is_cut_where_those_that_are_ahead_pay_too_late() -> None:
    """At 300 five times 700 fall due, seven times 300 are paid, and 1,012 are spare; with 33 less each, as much."""
    assert kept([*[-700] * 5, *[500] * 7], [*[1_000] * 5, *[1] * 7]) == [*[-636] * 5, *[454] * 7]


@pytest.mark.parametrize("next_row", [1, 1_000])
def test_what_one_large_row_put_others_behind_they_are_owed_however_small_the_next_rows_are(next_row: int) -> None:
    lead = [3_500, *[-700] * 5]
    assert kept(lead, [next_row] * 6) == lead


def test_those_whose_rows_have_gone_pay_for_what_is_due_and_a_row() -> None:
    """To five with rows of 1, five times 600 are due, and 3,507 are spare; with rows of 600, five times 1."""
    lead = [3_500, 1_500, *[-601] * 5]
    assert kept(lead, [0, 0, *[1] * 5]) == lead
    after = kept(lead, [0, 0, *[600] * 5])
    assert sum(after[:2]) <= 3_507 + 5
    assert after[2:] == [-601] * 5


@pytest.mark.parametrize(("rows", "is_owed"), [(2, True), (1, False)])
def test_who_holds_a_row_is_owed_what_it_was_if_it_has_another(rows: int, *, is_owed: bool) -> None:
    """What is owed to who has no other row, others need not pay."""
    zeros, lead = np.zeros(3, dtype=np.int64), np.array([-60_000, 50_000, 50_000])
    tree = Tree((Level.of(zeros, 1, zeros + 1), *[Level.of(zeros[:1], 1, zeros[:1] + 1)] * 2))
    standing = Standing((lead, zeros[:1], zeros[:1]), zeros[:1], (np.array([1, 0, 0]), zeros))
    counts = np.array([rows, 2, 2])
    after = honoured(tree, standing, Rows.of(np.cumsum(counts) - counts, (), None), counts, 0b001)
    assert (after.leads[0].tolist() == lead.tolist()) == is_owed
