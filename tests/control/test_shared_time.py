"""Quotas on processing time that several jobs share: together they use no more, each has its part, and none starves.

The oracle is one bucket for all jobs: it earns the quota in true time, and pays for every row when its batch was run.
By hand, ``SHARED_TIME_SEEDS=100`` in the environment roams that many worlds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.disk import CrashPoint
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.rows import Row
from tests.control.test_time_quotas import MS, costs, newest_epoch
from tests.effort import IS_SEARCH

SEEDS = int(os.environ.get("SHARED_TIME_SEEDS", "3" if IS_SEARCH else "1"))
SETTINGS = ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10)
BURST_MS: Final = 10_000
GOLD_TIME: Final = ("resource_group.time", "gold")
GOLD: Final = ("resource_group", "gold")
POINTS: Final[tuple[CrashPoint, ...]] = ("after offset", "after table", "before feedback", "after feedback")


def gold(percentage: float, **more: Any) -> dict[str, Any]:
    """Return policies in which all are in one group."""
    quota = {"request_percentage": percentage, "burst_seconds": BURST_MS // 1_000, **more}
    return {"resource_groups": {"gold": {"publish": quota}}, "defaults": {"resource_group": "gold"}}


class Fallible(SimulatedExchange):
    """An exchange that may be out of reach."""

    is_down = False

    def names(self) -> list[str]:
        """Return the names of all objects."""
        if self.is_down:
            raise OSError("the exchange is out of reach")
        return super().names()


@dataclass
class World:
    """Jobs that share a quota on time, each with rows of one namespace and one price."""

    prices_ms: Sequence[float]
    document: Mapping[str, Any]
    settings: ShareSettings = SETTINGS
    exchange: Fallible = field(init=False)
    jobs: list[SimulatedJob] = field(init=False)
    used: list[tuple[int, int, int]] = field(default_factory=list)
    """When a batch was run, by which job, and how many ns its rows took."""

    quotas_ns_per_ms: list[tuple[int, int]] = field(default_factory=lambda: [(0, 500_000)])
    """Since when each quota has been in force."""

    def __post_init__(self) -> None:
        self.exchange = Fallible(self.settings)
        self.jobs = [self.new_job(price) for price in self.prices_ms]

    def new_job(self, price_ms: float) -> SimulatedJob:
        return SimulatedJob(self.document, exchange=self.exchange, cost_ns=costs(a=price_ms))

    @property
    def now_ms(self) -> int:
        return self.exchange.time.now_ms

    def batch(self, who: int, after_ms: int, rows: int = 0) -> list[Row]:
        """Let time pass, and run a batch of a job; return the rows that it admitted."""
        job = self.jobs[who]
        if rows:
            job.offer([(f"a/{who}", 100)] * rows)
        before = len(job.outside.table.rows)
        if job.is_down:
            self.exchange.time.pass_by(after_ms)
            job.restart()
        else:
            job.trigger(after_ms)
        admitted = job.outside.table.rows[before:]
        if admitted:
            self.used.append((self.now_ms, who, sum(job.cost_ns(admitted).values())))
        assert sum(self.shares()) <= self.most_ns_per_ms(self.now_ms), (self.now_ms, self.shares())
        return admitted

    def turns(self, seconds: int, rows: Mapping[int, int]) -> None:
        """Run a batch a second of each job that is named, with so many rows."""
        for _ in range(seconds):
            for at, (who, count) in enumerate(rows.items()):
                self.batch(who, 1_000 if at == 0 else 0, count)

    def used_ms(self, who: int, since_ms: int) -> float:
        """Return the time that a job's rows have taken since then."""
        return sum(each for at_ms, job, each in self.used if job == who and at_ms > since_ms) / MS

    def shares(self) -> list[int]:
        """Return what each live job may use now, in ns per ms."""
        return [job.leased().get(GOLD_TIME, (0, 0))[0] for job in self.jobs if not job.is_down]

    def backup(self, who: int) -> Callable[[], None]:
        """Return a function that puts a job and its sinks back to what they are now: what it used since is undone."""
        job, used = self.jobs[who], len(self.used)
        checkpoint, table = job.checkpoint.copy(), job.outside.table.copy()
        plain, letters = list(job.outside.plain.rows), job.outside.letters.copy()

        def restore() -> None:
            job.stop()
            job.checkpoint, job.outside.table, job.outside.letters = checkpoint, table, letters
            job.outside.plain.rows[:] = plain
            self.used = [each for at, each in enumerate(self.used) if at < used or each[1] != who]

        return restore

    def set_percentage(self, percentage: float) -> None:
        """Set another quota, which all jobs go by from their next batches on."""
        self.quotas_ns_per_ms.append((self.now_ms, round(percentage * 10_000)))
        for job in self.jobs:
            job.set_policies(gold(percentage))

    def most_ns_per_ms(self, at_ms: int) -> int:
        """Return the largest quota that a job went by then: a changed one takes up to a lease to be everybody's."""
        quotas, from_ms = self.quotas_ns_per_ms, at_ms - self.settings.lease_ms
        until_ms = [since_ms for since_ms, _ in quotas[1:]] + [at_ms]
        return max(
            rate
            for (since_ms, rate), until in zip(quotas, until_ms, strict=True)
            if since_ms <= at_ms and until >= from_ms
        )

    def check(self) -> None:
        """Compare what all jobs used with the one bucket, in every window: each job is off by a message."""
        used = sorted(self.used)
        at_ms, spent = [at for at, _, _ in used], np.cumsum([each for _, _, each in used])
        rate = np.array([self.most_ns_per_ms(at) for at in at_ms])
        earned = np.cumsum(np.diff(at_ms, prepend=at_ms[0]) * rate)
        burst = BURST_MS * max(rate for _, rate in self.quotas_ns_per_ms)
        slack = round(sum(self.prices_ms) * MS)
        ahead = spent - earned
        # The most that any window is ahead: from just before a batch to just after a later one.
        least_before = np.minimum.accumulate(ahead - np.diff(spent, prepend=0))
        assert (ahead - least_before).max() <= burst + slack


def warm(*prices_ms: float, **more: Any) -> World:
    """Return a world whose jobs know their prices and have their shares."""
    world = World(prices_ms, gold(50), **more)
    world.turns(6, dict.fromkeys(range(len(prices_ms)), 1))
    return world


def since(world: World, seconds: int, rows: Mapping[int, int]) -> list[float]:
    """Return the time, in ms a second, that each job uses from now on."""
    since_ms = world.now_ms
    world.turns(seconds, rows)
    world.check()
    return [world.used_ms(who, since_ms) / seconds for who in range(len(world.jobs))]


@pytest.mark.slow
def test_dear_and_cheap_job_have_half_of_the_time_each() -> None:
    world = warm(20, 5)
    world.turns(10, {0: 20, 1: 80})
    used = since(world, 10, {0: 20, 1: 80})
    assert used == pytest.approx([250, 250], rel=0.03)
    assert sum(used) <= 500 + 2.5


@pytest.mark.thorough
@pytest.mark.slow
def test_job_that_wants_little_has_all_of_it_and_the_others_the_rest() -> None:
    world = warm(20, 10, 5)
    world.turns(5, {0: 20, 1: 4, 2: 80})
    assert since(world, 10, {0: 20, 1: 4, 2: 80}) == pytest.approx([230, 40, 230], rel=0.05)


@pytest.mark.thorough
@pytest.mark.slow
def test_newcomer_without_a_price_and_without_a_floor_does_not_starve() -> None:
    world = warm(20, settings=replace(SETTINGS, floor_percent=0))
    since(world, 6, {0: 30})
    world.prices_ms = (20, 10)
    world.jobs.append(world.new_job(10))
    since(world, 18, {0: 30, 1: 40})  # what its first batch took, of which no price was known, is repaid
    assert since(world, 8, {0: 30, 1: 40}) == pytest.approx([250, 250], rel=0.05)


@pytest.mark.slow
def test_job_that_is_killed_leaves_its_part_to_the_other_and_has_it_again_when_it_returns() -> None:
    world = warm(20, 10)
    since(world, 6, {0: 20, 1: 60})
    world.jobs[0].stop()
    world.turns(SETTINGS.lease_ms // 1_000, {1: 60})
    floor = 500 * SETTINGS.floor_percent / 100 / 2
    assert since(world, 6, {1: 60})[1] == pytest.approx(500 - floor, rel=0.03)
    world.turns(8, {0: 20, 1: 60})
    assert since(world, 8, {0: 20, 1: 60}) == pytest.approx([250, 250], rel=0.05)


@pytest.mark.thorough
@pytest.mark.slow
def test_job_that_loses_its_lease_has_its_floor_and_the_other_no_more_than_the_rest() -> None:
    world = warm(3, 3)
    since(world, 6, {0: 100, 1: 100})
    world.exchange.is_down = True
    world.turns(SETTINGS.lease_ms // 1_000, {0: 100, 1: 100})
    floor = 500 * SETTINGS.floor_percent / 100 / 2
    assert since(world, 20, {0: 10, 1: 10}) == pytest.approx([floor, floor], rel=0.35)
    world.exchange.is_down = False
    world.turns(8, {0: 100, 1: 100})
    assert since(world, 6, {0: 100, 1: 100}) == pytest.approx([250, 250], rel=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("percentage", [100, 10])
def test_quota_that_is_raised_or_lowered_is_divided_anew(percentage: int) -> None:
    world = warm(20, 10)
    since(world, 6, {0: 30, 1: 60})
    world.set_percentage(percentage)
    world.turns(SETTINGS.lease_ms // 1_000, {0: 30, 1: 60})
    assert since(world, 8, {0: 30, 1: 60}) == pytest.approx([percentage * 5] * 2, rel=0.1)


@pytest.mark.slow
def test_debt_outlives_a_share_that_shrinks() -> None:
    """A job that was alone is in debt; when another comes, it pays at half the rate."""
    world = warm(10)
    world.jobs[0].cost_ns = costs(a=1_000)
    world.turns(2, {0: 30})
    before = balance_ns(world.jobs[0])
    assert before < -3_000 * MS
    world.jobs.append(world.new_job(10))
    world.turns(8, {1: 100, 0: 0})
    assert newest_epoch(world.jobs[0]).share_micro_per_ms[-1, 2] < 300_000
    assert before + 2_000 * MS < balance_ns(world.jobs[0]) < before + 8 * 500 * MS


@pytest.mark.slow
def test_rows_wait_for_a_lease_of_time_even_where_excess_is_rejected() -> None:
    world = World((10,), gold(50, on_excess="reject"))
    (job,) = world.jobs
    world.batch(0, 100, 20)
    world.batch(0, 100, 20)
    assert (len(job.waiting), job.admitted, job.rejected) == (40, [], [])
    world.turns(5, {0: 0})
    assert (len(job.admitted), job.rejected) == (40, [])


@pytest.mark.slow
def test_time_that_runs_out_rejects_where_a_job_has_a_share() -> None:
    world = World((10,), gold(50, on_excess="reject"))
    world.turns(6, {0: 2})
    world.turns(2, {0: 2_000})
    assert {letter.dimension for letter in world.jobs[0].rejected} == {"time"}


@pytest.mark.slow
def test_job_that_knows_no_quota_on_time_passes_over_the_places_of_time() -> None:
    """Its shares of messages are what they would be."""
    old_document, messages = gold(50), {"messages_per_second": 100}
    del old_document["resource_groups"]["gold"]["publish"]["request_percentage"]
    found = []
    for document in (gold(50, **messages), old_document):
        document["resource_groups"]["gold"]["publish"] |= messages
        world = World((1, 1), document)
        world.jobs[1].set_policies(old_document | {"resource_groups": {"gold": {"publish": messages}}})
        world.turns(8, {0: 200, 1: 200})
        found.append([job.leased()[GOLD] for job in world.jobs])
        assert (GOLD_TIME in world.jobs[0].leased()) == (document is not old_document)
        assert GOLD_TIME not in world.jobs[1].leased()
    assert found[0] == found[1] == [(50_000, -1)] * 2


def balance_ns(job: SimulatedJob) -> int:
    """Return what a job has left of the time of its group."""
    return int(newest_epoch(job).time.shared_left_ns[-1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_jobs_together_never_use_more_than_one_bucket_whatever_happens(seed: int) -> None:
    """Jobs die, are put back and lose their leases; registers are lost, and the quota is changed."""
    rng = random.Random(seed)
    world = warm(*rng.choice([(6, 3), (6, 4, 2)]))
    kept, backup = dict(world.exchange.objects), None
    for _ in range(100 if IS_SEARCH else 60):
        who = rng.randrange(len(world.jobs))
        job, event = world.jobs[who], rng.random()
        if event < 0.04:
            job.stop()
        elif event < 0.08 and not job.is_down:
            job.crash(at=rng.choice(POINTS))
        elif event < (0.28 if world.exchange.is_down else 0.10):
            world.exchange.is_down = not world.exchange.is_down
        elif event < 0.13:
            kept, world.exchange.objects = dict(world.exchange.objects), rng.choice([kept, {}])
        elif event < 0.15:
            world.set_percentage(rng.choice([20, 50, 90]))
        elif event < 0.17:
            world.exchange.time.pass_by(rng.choice([3_000, 15_000]))
        elif event < 0.31 and backup is None:
            backup = world.backup(who)
        elif event < 0.35 and backup is not None:
            backup()
            backup = None
        world.batch(who, rng.choice([50, 300, 600, 1_500]), rng.choice([0, 5, 300, 300, 300]))
    world.check()
    assert sum(each for _, _, each in world.used) > world.now_ms * 20 * 10_000 // 3, "the run was too quiet"


@pytest.mark.thorough
@pytest.mark.slow
def test_job_whose_rows_take_no_time_leaves_the_time_to_those_whose_rows_do() -> None:
    world = World([10, 0], gold(50))
    since(world, 15, {0: 100, 1: 300})
    floor = 500 * SETTINGS.floor_percent / 100 / 2
    assert since(world, 10, {0: 100, 1: 300})[0] == pytest.approx(500 - floor, rel=0.05)
    assert len(world.jobs[1].waiting) <= 300
