"""Water filling against exact fractions, dominant shares by their properties, and division into whole units."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.shares.allocation import MOST_STRETCH, PLENTY, Filling, water_fill

UNIT = Fraction(1, 2**30)
"""What levels are counted in."""

LARGEST = 2**50

amounts = st.one_of(st.sampled_from([0, 1, 999, 1000, 2**30, LARGEST - 1, LARGEST]), st.integers(0, 10**7))
weights = st.one_of(st.just(1), st.integers(1, 1000))
claimants = st.lists(st.tuples(amounts, amounts, weights), min_size=1, max_size=12)
holdings = st.tuples(*[st.one_of(amounts, st.just(PLENTY))] * 2)


def fill(claims: list[tuple[int, int, int]], available: tuple[int, int]) -> list[tuple[int, int]]:
    """Return what one scope gives its claimants."""
    demand = np.array([claim[:2] for claim in claims], dtype=np.int64)
    weight = np.array([claim[2] for claim in claims], dtype=np.int64)
    got = water_fill(demand, weight, np.zeros(len(claims), dtype=np.int64), np.array([available], dtype=np.int64))
    return [(messages, in_bytes) for messages, in_bytes in got.tolist()]


def rounding(claims: list[tuple[int, int, int]], available: int) -> Fraction:
    """Return what may stay back for rounding, as the module states it."""
    n = len(claims)
    return available * UNIT * (4 * n + sum(weight for *_, weight in claims)) + 4 * n


def exact_max_min(demands: list[int], weight: list[int], available: int) -> list[Fraction]:
    """Fill all claimants at the pace of their weights; who has what it wants drops out; until nothing is left."""
    got = [Fraction(0)] * len(demands)
    open_claims = {i for i, demand in enumerate(demands) if demand}
    left = Fraction(available)
    while open_claims and left:
        together = sum(weight[i] for i in open_claims)
        rise = min([left / together, *((demands[i] - got[i]) / weight[i] for i in open_claims)])
        for i in open_claims:
            got[i] += rise * weight[i]
        left -= rise * together
        open_claims = {i for i in open_claims if got[i] < demands[i]}
    return got


# One resource


@pytest.mark.parametrize(
    ("available", "claims", "expected"),
    [
        (120, [(1000, 1), (60, 1), (10, 1)], [55, 55, 10]),
        (120, [(1000, 1), (50, 1), (10, 1)], [60, 50, 10]),
        (120, [(1000, 6), (500, 4), (200, 2)], [60, 40, 20]),
        (1000, [(2000, 10), (500, 10), (700, 30)], [200, 200, 600]),
        (100, [(10, 1), (20, 1), (30, 1), (200, 1)], [10, 20, 30, 40]),
        (100, [(100, 1)] * 4, [25] * 4),
        (100, [(1, 1), (35, 1), (1, 1), (500, 1), (25, 1)], [1, 35, 1, 38, 25]),
    ],
)
def test_water_fill_gives_the_worked_cases_of_doorman_and_max_min(
    available: int, claims: list[tuple[int, int]], expected: list[int]
) -> None:
    got = fill([(1000 * wanted, 0, weight) for wanted, weight in claims], (1000 * available, PLENTY))
    assert [round(messages / 1000, 2) for messages, _ in got] == expected


@pytest.mark.slow
@given(st.lists(st.tuples(amounts, weights), min_size=1, max_size=12), amounts, st.booleans())
def test_water_fill_of_one_resource_is_weighted_max_min(
    claims: list[tuple[int, int]], available: int, is_bytes: bool
) -> None:
    both = [(0, wanted, weight) if is_bytes else (wanted, 0, weight) for wanted, weight in claims]
    got = fill(both, (PLENTY, available) if is_bytes else (available, PLENTY))
    exact = exact_max_min([wanted for wanted, _ in claims], [weight for _, weight in claims], available)
    slack = rounding(both, available)
    for one, fair in zip(got, exact, strict=True):
        assert abs(one[is_bytes] - fair) <= slack


# Two resources


@pytest.mark.slow
@given(claimants, holdings)
def test_water_fill_gives_no_resource_out_twice(claims: list[tuple[int, int, int]], available: tuple[int, int]) -> None:
    got = fill(claims, available)
    wanted = [sum(claim[r] for claim in claims) for r in (0, 1)]
    for r in (0, 1):
        assert sum(one[r] for one in got) <= min(available[r], wanted[r])
    for one, claim in zip(got, claims, strict=True):
        assert 0 <= one[0] <= claim[0]
        assert 0 <= one[1] <= claim[1]


@pytest.mark.slow
@given(claimants, holdings)
def test_water_fill_leaves_a_resource_only_when_the_other_is_out(
    claims: list[tuple[int, int, int]], available: tuple[int, int]
) -> None:
    got = fill(claims, available)
    is_satisfied = all(one == claim[:2] for one, claim in zip(got, claims, strict=True))
    is_out = [sum(one[r] for one in got) >= available[r] - rounding(claims, available[r]) for r in (0, 1)]
    assert is_satisfied or any(is_out)


@pytest.mark.slow
@given(claimants, holdings)
def test_water_fill_scales_both_resources_of_a_claimant_alike(
    claims: list[tuple[int, int, int]], available: tuple[int, int]
) -> None:
    for one, claim in zip(fill(claims, available), claims, strict=True):
        if min(claim[:2]) > 0:
            parts = [Fraction(one[r], claim[r]) for r in (0, 1)]
            resolution = sum(Fraction(4, claim[r]) for r in (0, 1)) + 4 * UNIT
            assert abs(parts[0] - parts[1]) <= resolution


@pytest.mark.slow
@given(claimants, st.tuples(st.integers(1000, LARGEST), st.integers(1000, LARGEST)))
def test_claimants_that_want_more_have_equal_dominant_shares_by_weight(
    claims: list[tuple[int, int, int]], available: tuple[int, int]
) -> None:
    got = fill(claims, available)
    dominant = [max(Fraction(one[r], available[r]) for r in (0, 1)) for one in got]
    shares = [part / claim[2] for part, claim in zip(dominant, claims, strict=True)]
    # Who has the whole of a resource can have no more of it.
    is_open = [one != claim[:2] and part < 1 for one, claim, part in zip(got, claims, dominant, strict=True)]
    slack = 4 * UNIT + Fraction(6, min(available))
    levels = [share for share, more in zip(shares, is_open, strict=True) if more]
    if levels:
        assert max(levels) - min(levels) <= slack
        assert max(shares) <= min(levels) + slack  # who has all that it wants is not above the level


def test_roundings_of_several_claims_do_not_add_up_to_a_unit_too_many() -> None:
    claims = [(7572898863, 108537703242, 3), (265897129983, 7053867103772, 1), (3520620610, 65267376041919, 2)]
    got = fill(claims, (2**32, 2**41))
    assert 2**32 - rounding(claims, 2**32) <= sum(messages for messages, _ in got) <= 2**32


def test_backlog_of_small_and_of_large_messages_uses_both_resources_up() -> None:
    # Of 1,000 messages and 1 MB: by 100 B, messages dominate; by 10 kB, bytes do. x + y = 1,000 and
    # 100 x + 10,000 y = 10**6 at equal shares, x / 1,000 = 10,000 y / 10**6: 909.09 and 90.91 messages.
    small, large = fill([(10**9, 10**11, 1), (10**9, 10**13, 1)], (10**6, 10**9))
    assert small[0] == pytest.approx(909_090, abs=2)
    assert small[1] == pytest.approx(90_909_090, abs=200)
    assert large[0] == pytest.approx(90_909, abs=2)
    assert large[1] == pytest.approx(909_090_909, abs=200)


def test_claimant_whose_every_message_has_bytes_gets_nothing_without_bytes() -> None:
    assert fill([(1000, 1000, 1), (1000, 0, 1)], (1500, 0)) == [(0, 0), (1000, 0)]


def test_large_claims_keep_their_last_unit_when_they_are_met() -> None:
    claims = [(2**40 + 1, 2**49 + 1, 1), (2**50, 2**50, 1)]
    assert fill(claims, (2**50, PLENTY))[0] == (2**40 + 1, 2**49 + 1)


# Several scopes


@pytest.mark.slow
@given(st.lists(st.tuples(claimants, holdings), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_scopes_do_not_disturb_each_other(
    scopes: list[tuple[list[tuple[int, int, int]], tuple[int, int]]], random: Random
) -> None:
    rows = [(scope, claim) for scope, (claims, _) in enumerate(scopes) for claim in claims]
    shuffled = list(range(len(rows)))
    random.shuffle(shuffled)
    got = water_fill(
        np.array([rows[i][1][:2] for i in shuffled], dtype=np.int64),
        np.array([rows[i][1][2] for i in shuffled], dtype=np.int64),
        np.array([rows[i][0] for i in shuffled], dtype=np.int64),
        np.array([available for _, available in scopes], dtype=np.int64),
    ).tolist()
    alone = [one for claims, available in scopes for one in fill(claims, available)]
    assert [tuple(one) for one in got] == [alone[i] for i in shuffled]


@pytest.mark.parametrize("claimants_each", [1, 7, 3_000])
@pytest.mark.parametrize("spread_bits", [2, 12, 30])
def test_level_is_the_highest_that_gives_out_no_more_than_there_is(claimants_each: int, spread_bits: int) -> None:
    random = np.random.default_rng(spread_bits)
    scope = np.repeat([0, 1, 2], claimants_each)
    demand = random.integers(1, 2 ** random.integers(1, spread_bits, (len(scope), 2)))
    available = np.array([[10, PLENTY], [40 * claimants_each, 7 * claimants_each], [2**25, 2**20]])
    filling = Filling.of(demand, random.integers(1, 9, len(scope)), scope, available)
    levels = filling.levels()

    def gives_out_too_much(each: int, level: int) -> bool:
        at = filling.scope == each
        claims = zip(filling.part[at].tolist(), filling.share[at].tolist(), strict=True)
        given = [
            (part, part) if share <= level else (part, [-(-of * level // share) for of in part])
            for part, share in claims
        ]
        return any(sum(got[dimension] for _, got in given) > 1 << 30 for dimension in (0, 1))

    for each in np.unique(filling.scope).tolist():
        reached = max(filling.share[filling.scope == each].tolist())
        assert not gives_out_too_much(each, int(levels[each])) or levels[each] == 0
        assert levels[each] == min(reached, MOST_STRETCH) or gives_out_too_much(each, int(levels[each]) + 1)


def test_no_claimants_is_no_error() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert water_fill(nothing.reshape(0, 2), nothing, nothing, np.array([[5, 5]])).shape == (0, 2)
