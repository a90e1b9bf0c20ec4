"""One job's leases, rule by rule: who may grow when, what a job falls to, whose reports count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_throttle.core.arithmetic.rate_codes import decode
from spark_throttle.core.quota import UNLIMITED
from spark_throttle.errors import ConfigurationError
from spark_throttle.sharing.division import OtherSeats, divide, most_kept
from spark_throttle.sharing.peers import UnreadableRegister, Visit
from spark_throttle.sharing.report import Mark, ScopeRows, ShareReport
from spark_throttle.sharing.settings import SHARE_POLICIES, ShareSettings
from tests.sharing.share_world import GOLD, SETTINGS, SILVER, SimulatedJob, World

QUOTA = 1_000_000
FLOOR = QUOTA * SETTINGS.floor_percent // 100


def world_of(*demands: int, settings: ShareSettings = SETTINGS) -> World:
    world = World([SimulatedJob(f"job{n}", 100 * n, settings=settings) for n in range(len(demands))])
    for job, demand in zip(world.jobs, demands, strict=True):
        job.demands = {GOLD: demand}
    world.cycle(6)
    return world


def visit(world: World, job: SimulatedJob, after_ms: int = 300, *, pins: bool = True, reads: bool = True) -> None:
    """Let one job visit, and report."""
    world.now_ms += after_ms
    if reads:
        job.visit(world.store.read(world.now_ms), world.now_ms, world.now_ms)
    if pins:
        job.trigger(world.now_ms)
    world.store.write(world.now_ms, job.report(world.now_ms).report)
    world.check()


def claim_of(world: World, job: SimulatedJob) -> int:
    """Return what others must take the job for."""
    report = world.store.history[job.member][-1][1]
    at = np.flatnonzero(report.rows.ids == GOLD)
    return int(decode(report.rows.claim)[at[0], 0]) if len(at) else 0


# Beginning


def test_job_that_is_alone_may_use_nothing_before_it_has_waited_a_margin_and_then_everything() -> None:
    world = World([SimulatedJob("alone", 0, demands={GOLD: QUOTA})])
    job = world.jobs[0]
    job.trigger(0)
    visit(world, job)
    visit(world, job)  # finds its own report
    visit(world, job, SETTINGS.margin_ms - 1)
    assert world.used() == [0]
    visit(world, job, 1)
    job.trigger(world.now_ms)
    assert world.used() == pytest.approx([QUOTA], rel=1e-6)


def test_two_whose_first_reports_take_a_margin_to_be_written_do_not_both_think_themselves_alone() -> None:
    world = World([SimulatedJob(name, 0, demands={GOLD: 5 * QUOTA}) for name in ("left", "right")])
    for job in world.jobs:
        job.trigger(0)
        world.store.write(SETTINGS.margin_ms, job.report(0).report)
    for now_ms in range(SETTINGS.margin_ms, 4 * SETTINGS.margin_ms, SETTINGS.margin_ms // 4):
        world.now_ms = now_ms
        for job in world.jobs:
            found = world.store.read(now_ms - SETTINGS.margin_ms) | {job.member: world.store.read(now_ms)[job.member]}
            job.visit(found, now_ms, now_ms)
            job.trigger(now_ms)
            world.store.write(now_ms, job.report(now_ms).report)
            world.check()


@pytest.mark.slow
def test_newcomer_uses_nothing_until_everyone_has_answered_it() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    first, second = world.jobs
    newcomer = SimulatedJob("newcomer", 50, demands={GOLD: 5 * QUOTA})
    world.jobs.append(newcomer)
    newcomer.trigger(world.now_ms)
    for _ in range(8):
        visit(world, newcomer)
        visit(world, first)
        assert world.used()[2] == 0
        if _ < 4:
            world.store.write(world.now_ms, second.report(world.now_ms).report)  # lives, but has not looked
    visit(world, second)
    visit(world, newcomer)
    visit(world, first)
    visit(world, newcomer)
    newcomer.trigger(world.now_ms)
    assert world.used()[2] > QUOTA // 4


def test_two_that_begin_at_once_do_not_both_think_themselves_alone() -> None:
    world = World([SimulatedJob(name, 0, demands={GOLD: 5 * QUOTA}) for name in ("left", "right")])
    for job in world.jobs:
        job.visit({}, 0, 0)
        job.trigger(0)
        world.store.write(0, job.report(0).report)
    for _ in range(12):
        for job in world.jobs:
            visit(world, job, 150)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


# Growing waits for shrinking


@pytest.mark.slow
def test_smaller_share_is_told_only_when_the_job_holds_itself_to_it() -> None:
    world = world_of(5 * QUOTA, 0)
    busy, waking = world.jobs
    waking.demands = {GOLD: 5 * QUOTA}
    waking.trigger(world.now_ms)
    visit(world, waking)
    for _ in range(3):  # in a long batch: it sees, and cannot yet
        visit(world, busy, pins=False)
        visit(world, waking)
        assert claim_of(world, busy) >= world.used()[0] > 0.9 * QUOTA
        assert world.used()[1] <= FLOOR
    visit(world, busy)
    assert claim_of(world, busy) == pytest.approx(QUOTA / 2, rel=0.01)
    visit(world, waking)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
def test_claim_that_not_everyone_has_seen_is_not_used() -> None:
    world = world_of(100_000, 100_000, 100_000)
    first, second, third = world.jobs
    for job in (second, third):
        job.demands = {GOLD: 0}
    visit(world, second)
    visit(world, third)
    first.demands = {GOLD: 5 * QUOTA}
    first.trigger(world.now_ms)
    before = world.used()[0]
    visit(world, first)
    visit(world, second)
    visit(world, first)
    assert world.used()[0] <= before + 10  # the third has not answered
    visit(world, third)
    visit(world, second)
    visit(world, first)
    assert world.used()[0] > 0.9 * QUOTA


@pytest.mark.slow
def test_scope_without_demand_is_given_up_and_others_have_it() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    world.jobs[1].demands = {SILVER: 10}
    world.cycle(3)
    assert world.used() == pytest.approx([QUOTA, 0], rel=1e-6)
    assert claim_of(world, world.jobs[1]) == 0


# Leases


@pytest.mark.slow
def test_cut_off_job_keeps_its_share_until_its_lease_ends_and_then_its_floor() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    job = world.jobs[0]
    job.trigger(world.now_ms + SETTINGS.hold_ms // 2)
    assert job.pinned[GOLD] == pytest.approx(QUOTA / 2, rel=0.01)
    job.trigger(world.now_ms + SETTINGS.hold_ms)
    assert job.pinned[GOLD] == pytest.approx(FLOOR / 2, rel=0.2)
    job.trigger(world.now_ms + SETTINGS.forget_ms)
    assert job.pinned[GOLD] == 0


@pytest.mark.slow
def test_job_that_was_cut_off_has_its_share_again_some_cycles_after_it_is_heard() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    away, other = world.jobs
    for _ in range(2 * SETTINGS.lease_ms // 1_000):
        away.trigger(world.now_ms)
        visit(world, other, 1_000)
    assert world.used()[0] == pytest.approx(FLOOR / 2, rel=0.2)
    assert world.used()[1] >= QUOTA - FLOOR
    world._began_ms = world.now_ms
    world.cycle(6)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
def test_job_that_slept_uses_nothing_of_what_others_took_meanwhile() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    asleep, other = world.jobs
    for _ in range(2 * SETTINGS.lease_ms // 1_000):
        visit(world, other, 1_000)
    assert world.used()[1] >= QUOTA - FLOOR
    asleep.trigger(world.now_ms)  # the first thing it does when it wakes is plan a batch
    world.check()
    visit(world, asleep)
    visit(world, asleep)
    assert world.used()[0] <= FLOOR


@pytest.mark.slow
def test_restarted_job_uses_nothing_before_it_is_answered_as_the_new_one() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    killed = world.jobs[0]
    killed.start()
    killed.trigger(world.now_ms)
    visit(world, killed)
    assert world.used()[0] == 0
    world._began_ms = world.now_ms
    world.cycle(5)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("cut_off_ms", [0, 2 * SETTINGS.lease_ms])
def test_process_that_another_run_of_its_job_replaced_uses_nothing_any_more(cut_off_ms: int) -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    old = world.jobs[0]
    new = SimulatedJob("job0", 0, incarnation=9, demands={GOLD: 5 * QUOTA})
    new.trigger(world.now_ms)
    world.now_ms += cut_off_ms
    old.trigger(world.now_ms)
    visit(world, new)
    old.visit(world.store.read(world.now_ms), world.now_ms, world.now_ms)
    old.trigger(world.now_ms)
    assert old.sharing.is_superseded
    assert old.pinned[GOLD] == 0


@pytest.mark.slow
def test_run_whose_checkpoint_was_put_back_goes_on_from_the_register() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    job = world.jobs[0]
    job.incarnation = 0
    job.start()
    world._began_ms = world.now_ms
    world.cycle(5)
    assert not job.sharing.is_superseded
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


# Whose reports count


GARBLED = UnreadableRegister("it is garbled", "a digest")


def seen_by(
    job: SimulatedJob,
    world: World,
    reports: dict[str, ShareReport],
    unreadable: dict[str, UnreadableRegister] | None = None,
) -> None:
    world.now_ms += 100
    at_ms = job.clock(world.now_ms)
    job.sharing.take_in(Visit(reports, unreadable or {}), started_ms=at_ms, now_ms=at_ms)


@pytest.mark.slow
def test_old_report_that_comes_again_is_passed_over() -> None:
    world = world_of(5 * QUOTA, 0)
    old = world.store.history["job1"][0][1]
    world.jobs[1].demands = {GOLD: 5 * QUOTA}
    world._began_ms = world.now_ms
    world.cycle(3)
    job = world.jobs[0]
    found = world.store.read(world.now_ms)
    seen_by(job, world, found)
    seen_by(job, world, {**found, "job1": old})
    assert job.sharing._peers.seen["job1"] == found["job1"].mark


@pytest.mark.slow
def test_report_that_is_dated_in_the_future_counts_by_its_number_alone() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    ahead = world.store.history["job1"][-1][1]
    world.store.write(world.now_ms, replace(ahead, published_ms=ahead.published_ms + 10**12))
    world._began_ms = world.now_ms
    world.cycle(4)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


def test_nobody_grows_while_a_job_that_it_has_never_understood_may_be_at_work() -> None:
    world = World([SimulatedJob("one", 0, demands={GOLD: QUOTA})])
    job = world.jobs[0]
    job.trigger(0)
    patience_ms = SETTINGS.hold_ms + SETTINGS.margin_ms
    while world.now_ms < patience_ms - 400:
        seen_by(
            job,
            world,
            world.store.read(world.now_ms),
            unreadable={"other": GARBLED},
        )
        visit(world, job, 200, reads=False)
        assert world.used() == [0]
    while world.now_ms < patience_ms + 2_000:
        seen_by(
            job,
            world,
            world.store.read(world.now_ms),
            unreadable={"other": GARBLED},
        )
        visit(world, job, 200, reads=False)
    assert world.used() == pytest.approx([QUOTA], rel=1e-6)


@pytest.mark.slow
def test_job_whose_register_was_garbled_is_gone_by_as_last_understood() -> None:
    world = world_of(5 * QUOTA, 5 * QUOTA)
    job = world.jobs[0]
    found = world.store.read(world.now_ms)
    del found["job1"]
    seen_by(job, world, found, unreadable={"job1": GARBLED})
    job.trigger(world.now_ms)
    assert world.used()[0] == pytest.approx(QUOTA / 2, rel=0.01)


@pytest.mark.slow
def test_job_whose_register_cannot_be_opened_is_not_taken_for_dead_and_nobody_grows_meanwhile() -> None:
    # Nobody can say whether the register changes: its job may be alive, and uses what it claims.
    world = world_of(5 * QUOTA, 5 * QUOTA)
    job = world.jobs[0]
    before = world.used()[0]
    refused = UnreadableRegister("PermissionError: denied", None)
    while world.now_ms < 4 * SETTINGS.lease_ms:
        found = {"job0": world.store.read(world.now_ms)["job0"]}
        seen_by(job, world, found, unreadable={"job1": refused})
        job.trigger(world.now_ms)
        assert world.used()[0] == before
        visit(world, job, 200, reads=False)
    seen_by(job, world, world.store.read(world.now_ms))
    assert job.sharing._peers.are_all_readable


@pytest.mark.slow
def test_register_of_a_dead_run_slows_its_readers_no_longer_than_a_lease() -> None:
    world = World([SimulatedJob("one", 0, demands={GOLD: QUOTA})])
    job = world.jobs[0]
    may_grow = []
    while world.now_ms < 5 * SETTINGS.lease_ms:
        job.trigger(world.now_ms)
        seen_by(job, world, world.store.read(world.now_ms), unreadable={"dead.1f": GARBLED})
        may_grow.append(job.sharing._peers.are_all_readable)
        visit(world, job, 200, reads=False)
    assert may_grow == sorted(may_grow)
    assert may_grow[-1]


@pytest.mark.slow
def test_report_names_what_was_seen_and_changes_only_by_a_tenth_or_after_some_cycles() -> None:
    world = world_of(100_000, 100_000)
    job = world.jobs[0]

    def reported() -> int:
        return int(decode(world.store.history["job0"][-1][1].rows.bin_demand)[0, 0])

    job.demands = {GOLD: 109_000}
    visit(world, job)
    assert reported() == 100_000
    job.demands = {GOLD: 111_000}
    job.measure()
    visit(world, job)
    assert reported() == 111_000
    job.demands = {GOLD: 111_001}
    for _ in range(SETTINGS.report_every + 1):
        visit(world, job)
    assert reported() == 111_001
    assert world.store.history["job0"][-1][1].seen["job1"] == world.store.history["job1"][-1][1].mark
    assert Mark(1, 9, 2) < Mark(2, 0, 1)


# Policies and settings


@pytest.mark.slow
@pytest.mark.parametrize("policy", SHARE_POLICIES)
def test_every_policy_uses_the_quota(policy: str) -> None:
    world = World(
        [SimulatedJob(f"job{n}", 0, settings=replace(SETTINGS, policy=policy)) for n in range(2)],  # type: ignore[arg-type]
    )
    for job in world.jobs:
        job.demands = {GOLD: 600_000}
    if policy in ("max_min", "static"):
        world.cycle(8)
        assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)
    else:
        world.gives_out_more = True
        world.cycle(8)
        assert sum(world.used()) >= 0.98 * QUOTA


@pytest.mark.slow
def test_static_part_waits_until_the_others_have_given_way() -> None:
    settings = replace(SETTINGS, policy="static")
    world = world_of(5 * QUOTA, settings=settings)
    (first,) = world.jobs
    newcomer = SimulatedJob("job1", 100, settings=settings, demands={GOLD: 5 * QUOTA})
    world.jobs.append(newcomer)
    for _ in range(30):
        visit(world, first, pins=False)  # it is in a long batch: it visits and reports, and keeps its epoch
        visit(world, newcomer)
    assert world.used() == pytest.approx([QUOTA, 0], rel=0.01)
    for _ in range(20):
        visit(world, first)
        visit(world, newcomer)
    assert world.used() == pytest.approx([QUOTA / 2] * 2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quota", "wants"),
    [
        pytest.param(500, [250, 250], id="half a message a second"),
        pytest.param(3_000, [1_500, 1_500], id="three messages a second"),
        pytest.param(1, [0, 1], id="a unit, which one of them has"),
    ],
)
def test_static_divides_a_small_quota_into_parts_of_a_message_a_second(quota: int, wants: list[int]) -> None:
    settings = replace(SETTINGS, policy="static")
    jobs = [SimulatedJob(f"job{n}", 0, settings=settings, demands={GOLD: quota}, quota=quota) for n in range(2)]
    world = World(jobs)
    for _ in range(10):
        world.cycle(1)
        assert sum(world.used()) <= quota
    assert sorted(world.used()) == wants


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["proportional", "residual", "steal"])
def test_policy_of_whole_tokens_gives_out_a_quota_of_less_than_one(policy: str) -> None:
    settings = replace(SETTINGS, policy=policy)  # type: ignore[arg-type]
    jobs = [SimulatedJob(f"job{n}", 0, settings=settings, demands={GOLD: 500}, quota=500) for n in range(2)]
    world = World(jobs, gives_out_more=True)
    world.cycle(8)
    assert min(world.used()) > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lease_ms": 9_999, "interval_ms": 1_000}, "at least ten intervals"),
        ({"interval_ms": 49}, "exchange.interval is 49 ms; give at least 50 ms"),
        ({"report_change_percent": 101}, "0 to 100 %"),
        ({"report_every": 0}, "at least 1 cycle"),
        ({"floor_percent": -1}, "exchange.floor is -1 %"),
        ({"policy": "greedy"}, "give one of max_min, proportional, residual, steal, static"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int], said: str) -> None:
    """<https://github.com/apache/iceberg/issues/16979>: an interval that is cut to 0 s."""
    with pytest.raises(ConfigurationError, match=said):
        ShareSettings(**wrong)  # type: ignore[arg-type]


def test_part_of_a_job_goes_by_the_weights_of_its_namespaces() -> None:
    def rows(weight: int) -> ScopeRows:
        world = World([SimulatedJob("job0", 0, demands={GOLD: QUOTA})])
        world.jobs[0].measure()
        own = world.jobs[0].sharing._own.rows
        return replace(own, bin_weight=np.full_like(own.bin_weight, weight))

    nobody, none = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_)
    others = OtherSeats(nobody, none, rows(3), nobody, nobody + 1, 0)
    part, members = divide(SETTINGS, rows(1), np.array([[QUOTA, -1]]), others)
    assert part[0, 0] == pytest.approx(QUOTA / 4, rel=0.01)
    assert members.tolist() == [2]


def test_silent_job_keeps_nothing_of_what_is_not_limited() -> None:
    assert most_kept(SETTINGS, np.array([[10**6, UNLIMITED]])).tolist() == [[SETTINGS.floor_percent * 10**4, 0]]
