"""However reports travel, whoever dies: the jobs together never may use more than the quota, and soon use all of it.

By hand, ``SHARE_SEEDS=1000`` in the environment roams that many worlds, ``SHARE_STEPS`` of how many events.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import IS_SEARCH, examples
from tests.sharing.share_world import GOLD, SETTINGS, SILVER, SimulatedJob, World, cloned, lag, reborn, roam

SEEDS = int(os.environ.get("SHARE_SEEDS", "2" if IS_SEARCH else "1"))
STEPS = int(os.environ.get("SHARE_STEPS", "500"))
QUOTA = 1_000_000
FLOOR = QUOTA * SETTINGS.floor_percent // 100


def world_of(*demands: int) -> World:
    """Return jobs that have run for a while, each wanting so much of gold."""
    world = World([SimulatedJob(f"job{n}", 7_777 * n - 9_999) for n in range(len(demands))])
    for job, demand in zip(world.jobs, demands, strict=True):
        job.demands = {GOLD: demand}
    world.cycle(6)
    return world


@pytest.mark.slow
@examples(2, in_search=30)
@given(st.integers(0, 2**32), st.integers(2, 5))
def test_quota_is_never_over_leased_whatever_happens(seed: int, jobs: int) -> None:
    roam(seed, STEPS, jobs)  # checks after each event


@pytest.mark.slow
@examples(2, in_search=30)
@given(st.integers(0, 2**32), st.integers(2, 5))
def test_quota_is_never_over_leased_whatever_the_jobs_claim(seed: int, jobs: int) -> None:
    roam(seed, STEPS, jobs, is_greedy=True)


@pytest.mark.slow
@examples(2, in_search=30)
@given(st.integers(0, 2**32))
def test_quota_is_never_over_leased_though_reports_are_a_third_of_a_lease_late(seed: int) -> None:
    lag(seed, 2 * STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_quota_is_never_over_leased_by_jobs_that_start_and_do_not_know_of_each_other_for_a_margin(seed: int) -> None:
    worlds = [reborn(seed, 500), *(reborn(each, 120) for each in range(10 * seed, 10 * seed + 10))]
    assert max(world.worst for world in worlds) > 0.1, "the runs were too quiet to show anything"


@pytest.mark.slow
@examples(2)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_quota_is_never_over_leased_by_jobs_that_are_put_back_and_cloned_and_whose_registers_are_deleted(
    seed: int, jobs: int
) -> None:
    cloned(seed, STEPS, jobs)


@pytest.mark.thorough
@pytest.mark.slow
@examples(2)
@given(st.integers(0, 2**32))
def test_every_job_is_heard_soon_after_the_last_was_put_back_or_cloned_and_of_each_the_owner_of_its_checkpoint_goes_on(
    seed: int,
) -> None:
    world = cloned(seed, STEPS // 2)
    for job in world.jobs:
        job.demands = {GOLD: 5 * QUOTA}
    world.now_ms += SETTINGS.margin_ms  # what is being written is there by now
    world._began_ms = world.now_ms
    world.cycle(10)
    live = [job for job in world.jobs if not job.sharing.is_superseded]
    assert live == [job for job in world.jobs if world.owners[job.member] is job]
    assert len(live) == len(world.owners)
    used = [job.used(GOLD, world.now_ms) for job in live]
    assert used == pytest.approx([QUOTA / len(live)] * len(live), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 6 + SEEDS))
def test_quota_is_never_over_leased_in_worlds_of_fixed_seeds(seed: int) -> None:
    for world in (roam(seed, STEPS), roam(seed, STEPS, is_greedy=True), lag(seed, STEPS), cloned(seed, STEPS)):
        assert world.worst > 0.1, "the run was too quiet to show anything"


@pytest.mark.slow
@examples(2, in_search=30)
@given(st.integers(0, 2**32))
def test_jobs_recover_from_anything_within_a_lease_and_some_cycles(seed: int) -> None:
    world = roam(seed, STEPS // 2)
    for job in world.jobs:
        if not job.is_alive:
            job.start()
        job.demands = {GOLD: 5 * QUOTA, SILVER: 5 * QUOTA}
    world.now_ms += SETTINGS.lease_ms
    world._began_ms = world.now_ms
    world.cycle(8)
    for scope in (GOLD, SILVER):
        assert world.used(scope) == pytest.approx([QUOTA / len(world.jobs)] * len(world.jobs), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_dividing_anew_only_what_changed_comes_to_what_dividing_everything_does(seed: int) -> None:
    for job in roam(seed, STEPS // 2).jobs:
        sharing = job.sharing
        sharing._divide(sharing._peers.seats(sharing.ids, sharing.member))
        before = sharing._target_micro_per_ms
        sharing._is_stale[:] = True
        sharing._divide(sharing._peers.seats(sharing.ids, sharing.member))
        assert np.array_equal(sharing._target_micro_per_ms, before)


@pytest.mark.slow
@examples(4)
@given(st.lists(st.sampled_from([10_000, 200_000, 500_000, 900_000, 5_000_000]), min_size=2, max_size=4), st.data())
def test_shares_are_right_within_1_percent_a_cycle_after_a_demand_changed(
    demands: list[int], data: st.DataObject
) -> None:
    world = world_of(*demands)
    who = data.draw(st.integers(0, len(demands) - 1))
    demands[who] = data.draw(st.sampled_from([20_000, 400_000, 800_000, 5_000_000]))
    world.jobs[who].demands = {GOLD: demands[who]}
    world.cycle()
    level, left = 0.0, float(QUOTA)
    fair = [0.0] * len(demands)
    for taken, job in enumerate(sorted(range(len(demands)), key=demands.__getitem__)):
        level = left / (len(demands) - taken)
        fair[job] = min(demands[job], level)
        left -= fair[job]
    for got, demand, each in zip(world.used(), demands, fair, strict=True):
        assert min(got, demand) == pytest.approx(each, rel=0.01)


@pytest.mark.slow
def test_newcomer_that_stays_at_1_for_ever_under_pulsar_gets_its_part_a_cycle_after_its_margin() -> None:
    world = world_of(900_000)
    newcomer = SimulatedJob("newcomer", 4_321, demands={GOLD: 500_000})
    world.jobs.append(newcomer)
    world.cycle(2)
    assert world.used() == pytest.approx([500_000, 500_000], rel=0.01)


@pytest.mark.slow
def test_one_who_wants_nothing_yet_keeps_its_floor_and_has_it_at_once_when_it_wakes() -> None:
    world = world_of(5_000_000, 0)
    floor = QUOTA * SETTINGS.floor_percent // 100 // 2
    assert world.used() == pytest.approx([QUOTA - floor, floor], rel=0.001)
    world.jobs[1].demands = {GOLD: 500_000}
    assert world.used()[1] == pytest.approx(floor, rel=0.001)
    world.cycle()
    assert world.used() == pytest.approx([500_000, 500_000], rel=0.01)


@pytest.mark.slow
def test_one_who_claims_its_floor_alone_keeps_it_when_its_lease_ends() -> None:
    world = world_of(5_000_000, 0)
    world.now_ms += SETTINGS.lease_ms
    world.jobs[1].trigger(world.now_ms)
    assert not world.jobs[1].sharing.share(world.jobs[1].clock(world.now_ms)).is_leased
    assert world.used()[1] == pytest.approx(FLOOR // 2, rel=0.01)


@pytest.mark.slow
def test_what_a_killed_job_had_is_in_use_again_within_a_lease() -> None:
    world = world_of(5_000_000, 5_000_000, 5_000_000)
    world.jobs[0].is_alive = False
    killed_ms = world.now_ms
    while world.now_ms < killed_ms + SETTINGS.lease_ms:
        world.cycle()
    assert sum(world.used()) >= 0.98 * QUOTA


@pytest.mark.slow
def test_quota_that_falls_is_not_held_by_the_floor_that_a_silent_job_had_of_the_old_one() -> None:
    world = world_of(5_000_000, 5_000_000)
    dead, cut_off = world.jobs
    dead.is_alive = False
    for _ in range(2 * SETTINGS.lease_ms // SETTINGS.interval_ms):
        world.cycle()
    # What is left keeps the floor of the other, until that is more than the quota.
    assert world.used()[1] == pytest.approx(QUOTA - FLOOR // 2, rel=0.01)
    cut_off.quota = FLOOR // 3
    world.cycle(4)
    assert world.used()[1] == pytest.approx(cut_off.quota, rel=0.05)
    # And so does one that lives and cannot be heard.
    world.now_ms += SETTINGS.lease_ms
    cut_off.quota //= 10
    cut_off.trigger(world.now_ms)
    assert not cut_off.sharing.share(cut_off.clock(world.now_ms)).is_leased
    assert 0 < world.used()[1] <= cut_off.quota * SETTINGS.floor_percent // 100


@pytest.mark.slow
def test_survivors_keep_their_shares_while_a_job_is_missed() -> None:
    world = world_of(5_000_000, 5_000_000, 5_000_000)
    before = world.used()[1:]
    world.jobs[0].is_alive = False
    for _ in range(2 * SETTINGS.lease_ms // SETTINGS.interval_ms):
        world.cycle()
        assert min(world.used()[1:]) >= min(before)
