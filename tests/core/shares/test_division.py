"""A quota is divided max-min, to the textbook, and never gives out more than there is."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.shares.allocation import PLENTY, water_fill
from spark_throttle.core.shares.division import _quarter_octave, demand_bins, max_min
from spark_throttle.sharing.pip82 import proportional

QUOTA = 1_000_000

flows = st.lists(st.tuples(st.integers(0, 3 * QUOTA), st.sampled_from([1, 2, 5])), min_size=1, max_size=6)
jobs = st.lists(flows, min_size=1, max_size=5)


def divide(wanted: list[list[tuple[int, int]]], floor: int = 0, quota: int = QUOTA) -> list[int]:
    """Return the parts of jobs, each given by the demands and weights of its namespaces."""
    n = len(wanted)
    seat = np.repeat(np.arange(n), [len(job) for job in wanted])
    pairs = np.array([[demand, 0] for job in wanted for demand, _ in job], dtype=np.int64).reshape(-1, 2)
    weight = np.array([weight for job in wanted for _, weight in job], dtype=np.int64)
    floors = np.stack([np.full(n, floor), np.zeros(n, dtype=np.int64)], axis=1)
    got = max_min(np.zeros(n, dtype=np.int64), floors, seat, pairs, weight, np.array([[quota, PLENTY]]))
    return [int(each) for each in got[:, 0]]


def textbook(wanted: list[list[tuple[int, int]]], quota: int = QUOTA) -> list[Fraction]:
    """Return weighted max-min of the namespaces, added up by job: the level rises until the quota is out."""
    flows = [(Fraction(demand), weight, job) for job, flows in enumerate(wanted) for demand, weight in flows]
    left, weights = Fraction(quota), sum(weight for _, weight, _ in flows)
    parts = [Fraction(0)] * len(wanted)
    for demand, weight, job in sorted(flows, key=lambda flow: flow[0] / flow[1]):
        got = min(demand, left * weight / weights)
        parts[job] += got
        left -= got
        weights -= weight
    return parts


@pytest.mark.slow
@given(jobs)
def test_parts_are_max_min_of_the_namespaces_whatever_job_they_live_in(wanted: list[list[tuple[int, int]]]) -> None:
    fair, got = textbook(wanted), divide(wanted)
    spare = (QUOTA - sum(fair)) / len(wanted)
    for part, each in zip(got, fair, strict=True):
        assert abs(float(part - each - spare)) <= 200


@pytest.mark.slow
@given(jobs, st.integers(0, QUOTA // 5))
def test_parts_sum_to_no_more_than_the_quota_and_nobody_is_below_the_floor(
    wanted: list[list[tuple[int, int]]], floor: int
) -> None:
    got = divide(wanted, floor)
    assert sum(got) <= QUOTA
    assert min(got) >= floor
    assert sum(got) >= QUOTA - 200 * len(wanted)


def test_one_who_wakes_gets_its_floor_at_once_and_its_part_when_its_demand_is_known() -> None:
    assert divide([[(1_900_000, 1)], [(0, 1)]], floor=15_000) == pytest.approx([985_000, 15_000], abs=10)
    assert divide([[(1_900_000, 1)], [(500_000, 1)]], floor=15_000) == pytest.approx([500_000, 500_000], abs=10)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0, 9]), st.sampled_from([1, 50])), min_size=1, max_size=8),
    st.lists(st.integers(0, 6), min_size=2, max_size=2),
    st.randoms(use_true_random=False),
)
def test_jobs_that_want_a_quota_of_a_few_units_take_them_in_the_order_on_which_they_agree(
    seats: list[tuple[int, int, int]], quotas: list[int], random: Random
) -> None:
    scope, wanted, weight = (np.array(each) for each in zip(*seats, strict=True))
    rank = np.array(random.sample(range(len(seats)), len(seats)))
    pairs = np.stack([wanted, 0 * wanted], axis=1)
    available = np.array([[quota, PLENTY] for quota in quotas])
    rounded = max_min(scope, 0 * pairs, np.arange(len(seats)), pairs, weight, available)[:, 0]
    got = max_min(scope, 0 * pairs, np.arange(len(seats)), pairs, weight, available, rank)[:, 0]
    for each, quota in enumerate(quotas):
        here = scope == each
        empty = here & (wanted > 0) & (rounded == 0)
        assert got[here & ~empty].tolist() == rounded[here & ~empty].tolist()
        assert got[empty].max(initial=0) <= 1
        hungry, fed = rank[empty & (got == 0)], rank[empty & (got == 1)]
        assert fed.max(initial=-1) < hungry.min(initial=len(seats))
        assert got[here].sum() <= quota
        assert not len(hungry) or got[here].sum() == quota


def test_namespace_is_not_worse_off_for_living_in_a_busier_job() -> None:
    lonely, crowded = divide([[(QUOTA, 1)], [(QUOTA, 1)] * 4])
    assert crowded == pytest.approx(4 * lonely, rel=1e-4)


@pytest.mark.slow
@given(st.lists(jobs, min_size=1, max_size=4))
def test_scopes_are_divided_apart_from_each_other(scopes: list[list[list[tuple[int, int]]]]) -> None:
    seat_scope: list[int] = []
    bin_seat: list[int] = []
    demand: list[list[int]] = []
    weight: list[int] = []
    for scope, wanted in enumerate(scopes):
        for job in wanted:
            bin_seat += [len(seat_scope)] * len(job)
            seat_scope.append(scope)
            demand += [[each, 0] for each, _ in job]
            weight += [each for _, each in job]
    floor = np.full((len(seat_scope), 2), 1_000) * [1, 0]
    available = np.array([[QUOTA, PLENTY]] * len(scopes))
    got = max_min(np.array(seat_scope), floor, np.array(bin_seat), np.array(demand), np.array(weight), available)
    assert got[:, 0].tolist() == [part for wanted in scopes for part in divide(wanted, floor=1_000)]


@pytest.mark.slow
@given(st.integers(17, 400), st.floats(0, 1.5), st.integers(2, 5), st.integers(0, 2**32))
def test_histograms_of_many_namespaces_divide_within_one_part_in_a_hundred(
    count: int, exponent: float, jobs: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.permutation(np.arange(1, count + 1) ** -exponent)
    wanted = (shape / shape.sum() * QUOTA * rng.uniform(1.0, 4.0)).astype(np.int64) + 1
    weight = rng.choice([1, 2, 4], count)
    job = np.append(np.arange(jobs), rng.integers(0, jobs, count - jobs))
    available = np.array([[QUOTA, PLENTY]])
    pairs, scope = np.stack([wanted, 0 * wanted], axis=1), np.zeros(count, dtype=np.int64)
    exact = np.bincount(job, water_fill(pairs, weight, scope, available)[:, 0], jobs)
    bins = [demand_bins(scope[job == n], pairs[job == n], weight[job == n], available) for n in range(jobs)]
    seats = np.arange(jobs)
    seat = np.repeat(seats, [len(each) for each, _, _ in bins])
    demand, weights = np.concatenate([b[1] for b in bins]), np.concatenate([b[2] for b in bins])
    got = max_min(0 * seats, np.zeros((jobs, 2), dtype=np.int64), seat, demand, weights, available)[:, 0]
    assert (np.abs(got - exact) <= 0.01 * QUOTA).all()
    assert max(len(each) for each, _, _ in bins) <= 64


@pytest.mark.slow
@given(flows)
def test_histogram_keeps_all_demand_and_all_weight(wanted: list[tuple[int, int]]) -> None:
    demand = np.array([[each, 7] for each, _ in wanted * 9])
    weight = np.array([each for _, each in wanted * 9])
    scope = np.arange(len(weight)) % 2
    at, bin_demand, bin_weight = demand_bins(scope, demand, weight, np.array([[QUOTA, PLENTY]] * 2))
    for each in range(2):
        assert bin_demand[at == each].sum(axis=0).tolist() == demand[scope == each].sum(axis=0).tolist()
        assert bin_weight[at == each].sum() == weight[scope == each].sum()


def test_newcomer_stays_at_1_for_ever_under_proportional_and_at_its_part_under_max_min() -> None:
    used = np.array([900, 0])
    for _ in range(50):
        used = np.minimum([900, 500], proportional(np.full(2, 1000), used, np.full(2, used.sum())))
    assert used[1] == 1
    assert divide([[(900, 1)], [(500, 1)]], quota=1000) == pytest.approx([500, 500], abs=2)


def test_shares_have_four_bins_an_octave_in_their_order() -> None:
    bins = _quarter_octave(np.arange(4, 1 << 12))
    assert (np.diff(bins) >= 0).all()
    assert len(np.unique(bins)) == 4 * 10 == bins[-1] - bins[0] + 1
