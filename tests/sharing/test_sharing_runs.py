"""A job that was put back is heard again; of two processes that run one job, one goes on; never over the quota."""

from __future__ import annotations

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import _MOST_RETURNS
from spark_throttle.sharing.status import Observation
from tests.effort import crossed
from tests.sharing.share_world import GOLD, SETTINGS, SimulatedJob, World

QUOTA = 1_000_000
FLOOR = QUOTA * SETTINGS.floor_percent // 100
MARGIN_MS = SETTINGS.margin_ms
SHORTER = ShareSettings(interval_ms=500, lease_ms=5_000, report_every=10)


def world_of(*demands: int, began: int = 7) -> World:
    """Return jobs that have run for a while, and were started some times before."""
    world = World([SimulatedJob(f"job{n}", 100 * n, incarnation=began) for n in range(len(demands))])
    for job, demand in zip(world.jobs, demands, strict=True):
        job.demands = {GOLD: demand}
    world.cycle(6)
    return world


def go_on(world: World, cycles: int) -> None:
    world._began_ms = world.now_ms
    world.cycle(cycles)


def visit(world: World, job: SimulatedJob, after_ms: int = 0) -> None:
    """Let one job look, plan a batch and report."""
    world.now_ms += after_ms
    job.visit(world.store.read(world.now_ms), world.now_ms, world.now_ms)
    job.trigger(world.now_ms)
    if not job.sharing.is_superseded:
        world.store.write(world.now_ms, job.report(world.now_ms).report)
    world.check()


def clone_of(world: World, job: SimulatedJob, behind: int, demand: int = 5 * QUOTA) -> SimulatedJob:
    """Add another process that runs a job, whose checkpoint is so many starts behind."""
    clone = SimulatedJob(job.member, 33, incarnation=job.incarnation - 1 - behind, demands={GOLD: demand})
    world.jobs.append(clone)
    return clone


# Put back


@pytest.mark.slow
@pytest.mark.parametrize(("others", "is_gone"), crossed([1, 3], [False, True], of=2))
def test_job_that_was_put_back_is_heard_within_three_cycles(others: int, *, is_gone: bool) -> None:
    world = world_of(*[5 * QUOTA] * (1 + others))
    job = world.jobs[0]
    job.incarnation = 2
    job.start()
    if is_gone:
        world.store.delete(world.now_ms, job.member)
    go_on(world, 3)
    for other in world.jobs[1:]:
        assert other.sharing._peers.seen[job.member].run == job.sharing.run
        states = {peer.member: peer.state for peer in other.sharing.observed(world.now_ms).peers}
        assert states[job.member] == "live"
    go_on(world, 2)
    assert world.used() == pytest.approx([QUOTA / len(world.jobs)] * len(world.jobs), rel=0.01)


@pytest.mark.slow
def test_job_that_was_put_back_is_heard_though_the_exchange_is_deleted_as_it_begins() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    job, other = world.jobs
    job.incarnation = 2
    job.start()
    world.store.delete(world.now_ms)
    for _ in range(3):  # and has published before it finds what anyone remembers of it
        visit(world, job, 10)
    visit(world, other, 10)
    assert other.sharing._peers.seen[job.member].run != job.sharing.run
    go_on(world, 5)
    assert not job.sharing.is_superseded
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
def test_exchange_that_is_deleted_while_all_run_changes_no_share() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    world.store.delete(world.now_ms)
    for _ in range(3 * SETTINGS.lease_ms // SETTINGS.interval_ms):
        go_on(world, 1)
        assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
def test_job_that_was_put_back_again_and_again_is_heard_every_time() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    for incarnation in (3, 1, 0, 0):
        world.jobs[0].incarnation = incarnation
        world.jobs[0].start()
        world.store.delete(world.now_ms, "job0")
        go_on(world, 5)
        assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
def test_job_that_is_told_of_a_later_run_which_nobody_finds_begins_anew() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    job, other = world.jobs
    ghost = clone_of(world, job, -5)
    world.jobs.remove(ghost)
    ghost.trigger(world.now_ms)
    visit(world, ghost, 10)
    visit(world, other, 10)
    runs = world.store.history[job.member]
    runs[:] = [each for each in runs if each[1].mark.run != ghost.sharing.run]
    visit(world, job, 10)
    assert not job.sharing.is_superseded
    assert world.used()[0] == 0
    go_on(world, 5)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


# Cloned


@pytest.mark.slow
@pytest.mark.parametrize(("behind", "demand"), crossed([-1, 0, 1, 5], [0, 5 * QUOTA], of=2))
def test_of_a_job_and_its_clone_the_one_that_began_last_goes_on(behind: int, demand: int) -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    clone = clone_of(world, world.jobs[0], behind, demand)
    go_on(world, 8)
    assert [job.sharing.is_superseded for job in world.jobs] == [True, False, False]
    assert world.used()[0] == 0
    fair = QUOTA / 2 if demand else FLOOR / 2
    assert [world.used()[2], world.used()[1]] == pytest.approx([fair, QUOTA - fair], rel=0.01)
    assert world.jobs[1].sharing._peers.seen["job0"].run == clone.sharing.run


@pytest.mark.slow
@pytest.mark.parametrize(("offsets_ms", "clones"), crossed([(0, 33), (33, 0)], [2, 3], of=2))
def test_of_clones_that_begin_at_once_exactly_one_goes_on(clones: int, offsets_ms: tuple[int, int]) -> None:
    world = world_of(5 * QUOTA)
    world.jobs += [
        SimulatedJob("cloned", offsets_ms[n % 2] + n, incarnation=3, demands={GOLD: 5 * QUOTA}) for n in range(clones)
    ]
    go_on(world, 10)
    goes_on = [not job.sharing.is_superseded for job in world.jobs[1:]]
    assert sum(goes_on) == 1
    winner = world.jobs[1 + goes_on.index(True)]
    assert world.jobs[0].sharing._peers.seen["cloned"].run == winner.sharing.run
    assert winner.used(GOLD, world.now_ms) == pytest.approx(QUOTA / 2, rel=0.01)
    assert sum(world.used()) <= QUOTA


@pytest.mark.slow
def test_what_the_one_before_claimed_is_left_alone_until_it_has_surely_looked() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    before, other = world.jobs
    clone = clone_of(world, before, 0, demand=0)
    clone.trigger(world.now_ms)
    visit(world, clone, 10)
    clone_ms = world.now_ms
    while world.now_ms < clone_ms + 2 * MARGIN_MS - 100:  # the one before has not looked, or found an old listing
        visit(world, other, 50)
        visit(world, clone, 50)
        assert world.used()[0] == pytest.approx(QUOTA / 2, rel=0.01)
        assert world.used()[1] <= QUOTA / 2
    visit(world, before)
    assert before.sharing.is_superseded
    go_on(world, 3)
    assert world.used()[1] == pytest.approx(QUOTA - FLOOR / 2, rel=0.01)


@pytest.mark.slow
def test_what_the_one_before_claimed_is_left_alone_as_long_by_a_job_whose_lease_is_shorter() -> None:
    world = World([SimulatedJob("job0", 0, incarnation=7), SimulatedJob("job1", 100, settings=SHORTER)])
    before, other = world.jobs
    before.demands = other.demands = {GOLD: 5 * QUOTA}
    world.cycle(6)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)
    clone = clone_of(world, before, 0, demand=0)
    clone.trigger(world.now_ms)
    visit(world, clone, 10)
    clone_ms = world.now_ms
    while world.now_ms < clone_ms + 2 * MARGIN_MS - 100:
        visit(world, other, 50)  # checks
        visit(world, clone, 50)
    visit(world, before)
    go_on(world, 3)
    assert world.used()[1] == pytest.approx(QUOTA - FLOOR / 2, rel=0.01)


@pytest.mark.slow
def test_follower_whose_lease_is_shorter_waits_for_the_margins_of_the_one_before() -> None:
    world = world_of(5 * QUOTA)
    (before,) = world.jobs
    clone = SimulatedJob("job0", 33, incarnation=7, settings=SHORTER, demands={GOLD: 5 * QUOTA})
    world.jobs.append(clone)
    clone.trigger(world.now_ms)
    visit(world, clone, 10)
    clone_ms = world.now_ms
    while world.now_ms < clone_ms + 2 * MARGIN_MS - 100:
        visit(world, clone, 50)  # checks
    visit(world, before)
    go_on(world, 3)
    assert world.used() == [0, pytest.approx(QUOTA, rel=0.01)]


@pytest.mark.slow
def test_follower_waits_two_margins_from_the_last_sign_of_the_one_before() -> None:
    world = world_of(5 * QUOTA)
    (before,) = world.jobs
    clone = clone_of(world, before, 0)
    clone.trigger(world.now_ms)
    visit(world, clone, 10)
    began_ms = world.now_ms
    while world.now_ms < began_ms + MARGIN_MS:  # it goes on for a margin, in which it finds an old listing
        world.now_ms += 100
        world.store.write(world.now_ms, before.report(world.now_ms).report)
        visit(world, clone)
    last_ms = world.now_ms
    while world.now_ms < last_ms + 2 * MARGIN_MS - 100:
        visit(world, clone, 100)
        assert world.used()[1] == 0
    visit(world, before)
    for _ in range(3):
        visit(world, clone, 100)
    assert world.used() == [0, pytest.approx(QUOTA, rel=0.01)]


@pytest.mark.slow
def test_run_whose_register_vanished_waits_anew_for_the_one_before_which_may_not_have_seen_it() -> None:
    world = world_of(5 * QUOTA)
    clone = clone_of(world, world.jobs[0], 0)
    clone.trigger(world.now_ms)
    visit(world, clone, 10)
    visit(world, clone, 10)
    shown_ms = world.now_ms
    while world.now_ms < shown_ms + 3 * MARGIN_MS // 2:
        visit(world, clone, 100)
    world.store.delete(world.now_ms)
    while world.now_ms < shown_ms + 3 * MARGIN_MS:
        visit(world, clone, 100)
        assert world.used()[1] == 0


@pytest.mark.slow
def test_answers_to_another_run_of_one_incarnation_do_not_count() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    before, other = world.jobs
    before.is_alive = False
    clones = (SimulatedJob("job0", n, incarnation=before.incarnation - 1, demands={GOLD: 5 * QUOTA}) for n in range(99))
    clone = next(each for each in clones if each.sharing.run > before.sharing.run)
    world.jobs.append(clone)
    clone.trigger(world.now_ms)
    for _ in range(20):
        visit(world, clone, 200)
        world.store.write(world.now_ms, other.report(world.now_ms).report)  # lives, but has not looked
        assert clone.used(GOLD, world.now_ms) == 0
    visit(world, other)
    visit(world, clone)
    assert clone.used(GOLD, world.now_ms) > FLOOR


@pytest.mark.slow
def test_run_that_yielded_stays_so_and_others_do_not_hear_it() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    before = world.jobs[0]
    clone = clone_of(world, before, 0)
    late = before.report(world.now_ms).report  # takes long to be written
    go_on(world, 4)
    for report in (late, before.report(world.now_ms).report):
        world.store.write(world.now_ms, report)
        go_on(world, 2)
    assert [before.sharing.is_superseded, clone.sharing.is_superseded] == [True, False]
    assert world.used() == pytest.approx([0, QUOTA / 2, QUOTA / 2], rel=0.01)


def held_up_world() -> tuple[World, SimulatedJob, SimulatedJob]:
    """Return a world in which a run that has used nothing yet went beyond a later one, which has yielded."""
    world = world_of(5 * QUOTA)
    early, late = (
        SimulatedJob("cloned", n, incarnation=incarnation, demands={GOLD: 5 * QUOTA})
        for n, incarnation in enumerate((9, 3))
    )
    world.jobs += [early, late]
    for run in (early, late, early, late):
        run.trigger(world.now_ms)
        visit(world, run, 10)
    assert [early.sharing.is_superseded, late.sharing.is_superseded] == [False, True]
    return world, early, late


@pytest.mark.slow
def test_owner_of_the_checkpoint_that_yielded_to_a_run_held_up_before_it_goes_on() -> None:
    world, early, late = held_up_world()
    world.owners["cloned"] = late
    go_on(world, 8)
    assert [early.sharing.is_superseded, late.sharing.is_superseded] == [True, False]
    assert world.used() == pytest.approx([QUOTA / 2, 0, QUOTA / 2], rel=0.01)


@pytest.mark.slow
def test_owner_that_goes_on_uses_nothing_until_the_other_run_has_surely_looked() -> None:
    world, early, late = held_up_world()
    go_on(world, 8)
    assert world.used() == pytest.approx([QUOTA / 2, QUOTA / 2, 0], rel=0.01)
    late.sharing.go_on()
    for _ in range(3):
        visit(world, late, 10)
    shown_ms = late.sharing._shown_ms
    assert shown_ms is not None
    while late.clock(world.now_ms) < shown_ms + 2 * MARGIN_MS - 100:
        visit(world, world.jobs[0], 50)
        visit(world, late, 50)
        assert world.used() == [pytest.approx(QUOTA / 2, rel=0.01), pytest.approx(QUOTA / 2, rel=0.01), 0]
    visit(world, early)
    go_on(world, 3)
    assert world.used() == pytest.approx([QUOTA / 2, 0, QUOTA / 2], rel=0.01)


@pytest.mark.slow
def test_of_two_runs_that_both_own_a_checkpoint_one_goes_on_in_the_end() -> None:
    world, early, late = held_up_world()
    for _ in range(2 * _MOST_RETURNS + 2):
        go_on(world, 1)
        for run in (early, late):
            if run.sharing.may_go_on:
                run.sharing.go_on()
    goes_on = [not run.sharing.is_superseded for run in (early, late)]
    assert sum(goes_on) == 1
    go_on(world, 4)
    assert world.used()[1 + goes_on.index(True)] == pytest.approx(QUOTA / 2, rel=0.01)
    assert sum(world.used()) <= QUOTA


@pytest.mark.slow
def test_run_that_yielded_once_yields_also_when_it_hears_of_the_owner_from_another_job_before_it_finds_its_report() -> (
    None
):
    world, early, late = held_up_world()
    for _ in range(2 * _MOST_RETURNS):
        if late.sharing.may_go_on:
            late.sharing.go_on()
        stale = world.store.read(world.now_ms)
        visit(world, late, 10)
        visit(world, world.jobs[0], 10)
        fresh = world.store.read(world.now_ms)
        old = [each for each in stale.values() if each.mark.run == late.sharing.run]
        found = {name: each for name, each in fresh.items() if each.mark.run != late.sharing.run}
        early.visit(found | {f"late {each.mark.run}": each for each in old}, world.now_ms, world.now_ms)
        if not early.sharing.is_superseded:
            world.store.write(world.now_ms, early.report(world.now_ms).report)
        visit(world, late, 10)
    assert early.sharing.is_superseded
    assert not late.sharing.is_superseded


# Policies


@pytest.mark.slow
def test_jobs_whose_policies_differ_use_no_more_than_the_largest_quota_together() -> None:
    quotas = (QUOTA, 3 * QUOTA // 10, 7 * QUOTA // 10)
    world = World(
        [SimulatedJob(f"job{n}", n, demands={GOLD: 5 * QUOTA}, quota=quota) for n, quota in enumerate(quotas)]
    )
    for _ in range(20):
        go_on(world, 1)  # checks
    assert sum(world.used()) > quotas[1]
    assert all(used <= quota for used, quota in zip(world.used(), quotas, strict=True))
    for job in world.jobs:  # all have the last one now
        job.quota = quotas[1]
    go_on(world, 8)
    assert world.used() == pytest.approx([quotas[1] / 3] * 3, rel=0.01)


# Clocks


@pytest.mark.slow
@pytest.mark.parametrize("clock_ms", [-(2**61), -1, 0, 2**61])
def test_leases_do_not_depend_on_what_the_clock_says(clock_ms: int) -> None:
    def observed(job: SimulatedJob) -> Observation:
        return job.sharing.observed(job.clock(world.now_ms))

    world = World([SimulatedJob(f"job{n}", clock_ms, demands={GOLD: 5 * QUOTA}) for n in range(2)])
    job = world.jobs[0]
    job.trigger(0)
    assert (observed(job).lease_left_ms, observed(job).lease_age_ms) == (0, -1)
    world.cycle(6)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)
    assert 0 < observed(job).lease_left_ms <= SETTINGS.hold_ms
    world.now_ms += SETTINGS.hold_ms
    job.trigger(world.now_ms)
    assert world.used()[0] <= FLOOR
    assert (observed(job).lease_left_ms, observed(job).lease_age_ms) == (0, -1)
    go_on(world, 8)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)
