"""A job's share of a quota, from the exchange into its epochs: pinned, paid while it was leased, replayed as it was."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from spark_throttle.control.epochs import EpochName
from spark_throttle.core.limits.token_bucket import room_before
from spark_throttle.core.quota import Dimension
from spark_throttle.errors import TakenOverError
from spark_throttle.record import pack
from spark_throttle.sharing.lease_keeper import LeaseKeeper
from spark_throttle.sharing.settings import ShareSettings
from tests.control.queries import Query, per_second
from tests.effort import thorough_after
from tests.sharing.test_register import MemoryExchange

SETTINGS = ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=100)
JOB, GOLD = 0, 1
RATE = 40


@dataclass
class SharingQuery(Query):
    """A query that shares the quota of gold; it visits the exchange when it is told to."""

    exchange: MemoryExchange | None = None
    starts: int = 0
    keeper: LeaseKeeper | None = None
    used: list[tuple[int, int]] = field(default_factory=list)

    def restart(self) -> None:
        if self.exchange is None:
            super().restart()
        else:
            self.starts += 1
            self.keeper = self.open_sharing(SETTINGS, self.exchange, self.starts, self.starts if self.is_fenced else 0)

    def visit(self, after_ms: int = 400) -> None:
        assert self.keeper is not None
        self.now_ms += after_ms
        self.keeper.visit()

    def share(self) -> float:
        """Return the messages a second that the epoch lets the job use of gold."""
        share = self.epoch.share_micro_per_ms
        assert share is not None
        return float(share[GOLD, 0]) / 1000

    def wait_batch(self, admitted: int = 0, waiting: int = 500) -> None:
        """Run a batch after which rows wait, one of which could leave at once."""
        self.busy_batch(admitted, waiting, self.now_ms)
        self.used.append((self.now_ms, admitted))

    def spendable(self) -> int:
        """Return how many messages of gold a batch that is run now may admit."""
        return int(room_before(self.decider().shared.balance_micro[GOLD, :1], Dimension.MESSAGES)[0]) + 1


@pytest.fixture
def exchange() -> MemoryExchange:
    return MemoryExchange()


def settle(*queries: SharingQuery, cycles: int = 6) -> None:
    """Let all queries run with much waiting, until their shares stand still."""
    for _ in range(cycles):
        for query in queries:
            query.wait_batch()
            query.visit()
            query.trigger(100)
        latest_ms = max(query.now_ms for query in queries)
        for query in queries:
            query.now_ms = latest_ms


@pytest.fixture
def query(tmp_path: Path, exchange: MemoryExchange) -> SharingQuery:
    query = SharingQuery(tmp_path / "one", exchange=exchange)
    query.trigger()
    return query


@pytest.fixture
def other(tmp_path: Path, exchange: MemoryExchange, query: SharingQuery) -> SharingQuery:
    other = SharingQuery(tmp_path / "two", exchange=exchange, now_ms=query.now_ms)
    other.trigger(0)
    return other


def test_first_epoch_holds_nothing_of_what_is_shared_and_all_of_the_jobs_own(query: SharingQuery) -> None:
    assert query.share() == 0
    assert query.tokens(JOB) == 100
    assert query.spendable() == 0


def test_job_that_is_alone_has_the_whole_quota(query: SharingQuery) -> None:
    settle(query)
    assert query.share() == pytest.approx(RATE, rel=1e-6)


@pytest.mark.slow
def test_two_jobs_have_a_half_each(query: SharingQuery, other: SharingQuery) -> None:
    settle(query, other, cycles=8)
    assert [query.share(), other.share()] == pytest.approx([RATE / 2] * 2, rel=0.01)


@pytest.mark.slow
def test_bucket_earns_at_the_share_and_holds_its_part_of_the_burst(query: SharingQuery, other: SharingQuery) -> None:
    settle(query, other, cycles=8)
    query.wait_batch(admitted=20)
    query.trigger(1)
    before = query.tokens(GOLD)
    query.wait_batch()
    query.trigger(100)
    assert query.tokens(GOLD) == pytest.approx(before + 0.1 * query.share(), abs=0.01)
    query.wait_batch()
    query.trigger(3_000)
    assert query.tokens(GOLD) == pytest.approx(query.share(), rel=1e-6)  # of a burst of a second


def test_new_share_fills_from_what_the_bucket_holds(query: SharingQuery) -> None:
    query.wait_batch()
    for _ in range(6):
        query.visit()
    query.trigger(0)
    assert query.share() == pytest.approx(RATE, rel=1e-6)
    assert query.tokens(GOLD) < 0.01


def test_no_epoch_is_due_while_the_share_stays_and_nothing_waits(query: SharingQuery) -> None:
    settle(query)
    query.quiet_batch()
    first = query.trigger(1)
    query.quiet_batch()
    query.visit()
    assert query.trigger(1).number == first.number


@pytest.mark.slow
def test_epoch_is_due_when_the_share_shrinks_though_nothing_waits(query: SharingQuery, other: SharingQuery) -> None:
    settle(query)
    query.quiet_batch()
    name = query.trigger(1)
    other.now_ms = query.now_ms
    other.wait_batch()
    other.trigger(0)
    other.visit()
    query.now_ms = other.now_ms
    query.visit()
    assert query.trigger(0).number == name.number + 1
    assert query.share() < RATE


@pytest.mark.slow
def test_epoch_is_read_again_as_it_was_pinned_whatever_the_exchange_says_by_then(
    query: SharingQuery, other: SharingQuery, exchange: MemoryExchange
) -> None:
    settle(query, other)
    name, block = query.name, pack(query.epoch)
    exchange.objects.clear()
    query.restart()
    assert pack(query.plane.epochs.load(name)) == block


@pytest.mark.slow
def test_restarted_job_pays_no_time_that_it_cannot_vouch_for_and_has_nothing_till_it_is_answered(
    query: SharingQuery, other: SharingQuery
) -> None:
    settle(query, other, cycles=8)
    query.wait_batch(admitted=30)  # more than it may: a debt
    query.restart()
    query.trigger(60_000)
    assert query.share() == 0
    assert query.tokens(GOLD) < 0
    assert query.spendable() == 0


def test_time_after_the_lease_ended_is_not_paid(query: SharingQuery) -> None:
    settle(query)
    query.wait_batch(admitted=RATE + 30)
    query.trigger(1)
    assert query.tokens(GOLD) < -29
    query.wait_batch()
    query.trigger(10 * SETTINGS.lease_ms)
    assert query.tokens(GOLD) < RATE * SETTINGS.floor_percent / 100
    assert query.share() == pytest.approx(RATE * SETTINGS.floor_percent / 100, rel=0.2)


def test_share_that_lapsed_and_came_back_is_not_paid_for_the_time_between(query: SharingQuery) -> None:
    """The process slept, and its keeper awoke first."""
    settle(query)
    query.wait_batch(admitted=1_000 + RATE, waiting=0)
    query.now_ms += 6 * SETTINGS.lease_ms
    for _ in range(6):
        query.visit()
    name = query.name
    assert query.trigger(0).number == name.number + 1
    assert query.share() == pytest.approx(RATE, rel=1e-6)
    assert query.tokens(GOLD) <= -1_000 + RATE * SETTINGS.lease_ms / 1000


def test_share_is_paid_from_its_epoch_on_however_late_the_batch(query: SharingQuery) -> None:
    settle(query)
    query.wait_batch(admitted=RATE + 200)
    query.trigger(1)
    before = query.tokens(GOLD)
    for _ in range(8):
        query.now_ms += 250
        query.wait_batch()
        query.visit(0)
        query.trigger(250)
    assert query.tokens(GOLD) == pytest.approx(before + RATE * 4, abs=0.01)


@pytest.mark.slow
def test_job_that_shares_no_more_has_the_quota_for_itself(query: SharingQuery) -> None:
    settle(query)
    query.exchange = None
    query.restart()
    query.trigger(1)
    assert query.epoch.share_micro_per_ms is None
    query.exchange = MemoryExchange()
    query.quiet_batch()
    query.restart()
    query.trigger(1)
    assert query.share() == 0


@pytest.mark.slow
def test_changed_quota_is_divided_anew(query: SharingQuery, other: SharingQuery) -> None:
    settle(query, other)
    for each in (query, other):
        each.policies.set(
            {
                "resource_groups": {"gold": per_second(10)},
                "defaults": {"resource_group": "gold"},
                "job": per_second(100),
            }
        )
    settle(query, other)
    assert query.share() + other.share() <= 10
    assert query.share() == pytest.approx(5, rel=0.02)


def two_runs(path: Path, exchange: MemoryExchange) -> tuple[SharingQuery, SharingQuery]:
    """Return a run and the one that took its control directory over; the first went beyond the second."""
    first = SharingQuery(path, exchange=exchange, is_fenced=True, starts=8)
    first.trigger()
    second = SharingQuery(path, exchange=exchange, is_fenced=True, now_ms=first.now_ms, name=first.name)
    second.trigger()
    for run in (first, second, first, second):
        run.now_ms = max(first.now_ms, second.now_ms)
        run.visit(10)
    return first, second


def test_idle_run_that_owns_the_checkpoint_goes_on_when_another_run_has_taken_its_place(
    tmp_path: Path, exchange: MemoryExchange
) -> None:
    _, second = two_runs(tmp_path / "job", exchange)
    second.quiet_batch()
    before = second.name
    assert second.keeper is not None
    assert second.keeper.may_go_on
    assert second.trigger(0).number == before.number + 1
    assert not second.keeper.may_go_on
    for _ in range(6):
        second.visit(1_000)
    second.trigger(0)
    assert second.share() == pytest.approx(RATE, rel=1e-6)


def test_idle_run_whose_checkpoint_was_taken_over_ends_and_does_not_go_on(
    tmp_path: Path, exchange: MemoryExchange
) -> None:
    first, second = two_runs(tmp_path / "job", exchange)
    second.quiet_batch()
    second.trigger(0)
    first.now_ms = second.now_ms
    second.visit(10)
    first.visit(20)
    assert first.keeper is not None
    assert first.keeper.may_go_on
    with pytest.raises(TakenOverError):
        first.trigger(0)
    assert first.keeper.may_go_on


@pytest.mark.slow
@pytest.mark.parametrize("jumps_ms", [(0,), (0, 50, -50, 200, -200, 3_600_000, -3_600_000)], ids=["", "clocks are set"])
@pytest.mark.parametrize("seed", thorough_after(1, range(2)))
def test_jobs_together_admit_no_more_than_one_bucket_in_any_window(
    seed: int, jumps_ms: tuple[int, ...], query: SharingQuery, other: SharingQuery
) -> None:
    rng, clock_rng = random.Random(seed), random.Random(seed)
    queries = (query, other)
    for step in range(120):
        each = rng.choice(queries)
        now_ms = max(query.now_ms, other.now_ms) + rng.choice([1, 50, 150, 400])
        query.now_ms = other.now_ms = now_ms
        each.shift_ms += clock_rng.choice(jumps_ms)
        if rng.random() < 0.02:
            each.restart()
        if rng.random() < 0.4:
            each.visit(0)
        each.trigger(0)
        most = each.spendable()
        each.wait_batch(rng.choice([most, most, most // 2]), waiting=rng.choice([0, 3, 500]))
        assert each.name != EpochName(0, ""), step
    used = sorted(query.used + other.used)
    total = np.cumsum([0] + [messages for _, messages in used])
    assert total[-1] > RATE * (used[-1][0] - used[0][0]) / 1000 / 3, "the run was too quiet to show anything"
    for start in range(len(used)):
        for end in range(start, len(used)):
            earned = RATE + RATE * (used[end][0] - used[start][0]) / 1000
            assert total[end + 1] - total[start] <= earned + len(queries), (used[start], used[end])
