"""A job's visits: whatever the exchange does, the control plane gets an answer, and people are told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from spark_throttle.sharing.lease_keeper import HURRYING_SCOPES, Clocks, LeaseKeeper
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.sharing.status import Observation, PeerStatus
from tests.sharing.kept_job import QUOTA, SETTINGS, Job, Time, warnings
from tests.sharing.share_world import GOLD, measured
from tests.sharing.test_register import MemoryExchange


@pytest.mark.parametrize("failure", [OSError("unreachable"), OSError(28, "No space left on device"), ValueError("odd")])
def test_unreachable_exchange_keeps_the_share_then_the_floor_is_told_and_recovers_by_itself(
    failure: Exception, job: Job, exchange: MemoryExchange, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    exchange.failure = failure
    job.visit()
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    assert str(failure) in job.told[-1].problem
    assert job.told[-1].is_leased
    time.now_ms += SETTINGS.hold_ms
    assert job.plan() == pytest.approx(QUOTA * SETTINGS.floor_percent / 100, rel=0.2)
    assert not job.told[-1].is_leased
    job.visit()
    exchange.failure = None
    for _ in range(6):
        job.visit()
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    assert job.told[-1].problem == ""
    said = warnings(caplog)
    assert [str(failure) in text for text in said] == [True, False]
    assert "uses its floor" in said[1]


def test_visit_that_hangs_holds_up_nobody(job: Job, exchange: MemoryExchange, time: Time) -> None:
    hangs, ends = threading.Event(), threading.Event()
    names = exchange.names

    def hanging() -> list[str]:
        hangs.set()
        ends.wait(60)
        return names()

    exchange.names = hanging  # type: ignore[method-assign]
    visit = threading.Thread(target=job.keeper.visit)
    visit.start()
    hangs.wait(60)
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    time.now_ms += 2 * SETTINGS.interval_ms
    job.rate()
    assert job.told[-1].problem == ""
    time.now_ms += 1
    job.rate()
    assert "has not ended" in job.told[-1].problem
    time.now_ms += SETTINGS.hold_ms
    assert job.plan() == pytest.approx(QUOTA * SETTINGS.floor_percent / 100, rel=0.2)
    ends.set()
    visit.join(60)
    exchange.names = names  # type: ignore[method-assign]
    for _ in range(6):
        job.visit()
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)


def test_garbled_report_of_another_is_told_and_this_jobs_own_is_written_again(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    exchange.objects["job.head"] = b"garbled"
    exchange.objects["other.head"] = b"garbled too"
    job.visit()
    assert "cannot be read: job other" in job.told[-1].problem
    assert exchange.objects["job.head"] != b"garbled"
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    found_ms = time.now_ms
    while not job.told[-1].peers[0].report_age_ms:
        job.visit()
    assert job.told[-1].peers == (PeerStatus("other", "other", time.now_ms - found_ms, "unreadable"),)


class Panic(BaseException):
    """Stands for the panic of a library in Rust."""


def test_visit_that_panics_is_told_and_the_next_one_goes_on(job: Job, exchange: MemoryExchange) -> None:
    names = exchange.names

    def panicking() -> list[str]:
        raise Panic("a table that cannot be")

    exchange.names = panicking  # type: ignore[method-assign]
    job.visit()
    assert "Panic: a table that cannot be" in job.told[-1].problem
    exchange.names = names  # type: ignore[method-assign]
    job.visit()
    assert job.told[-1].problem == ""


def test_visits_that_take_longer_than_the_margin_are_told(
    job: Job, exchange: MemoryExchange, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """What they find is too old for the share to grow: the job would lose it bit by bit, and nobody would know why."""
    names, slow_ms = exchange.names, SETTINGS.margin_ms + 1

    def slow() -> list[str]:
        time.now_ms += slow_ms
        return names()

    exchange.names = slow  # type: ignore[method-assign]
    for _ in range(3):
        job.visit()
    said = f"reading the reports took {slow_ms} ms, longer than a tenth of the lease ({SETTINGS.margin_ms} ms)"
    assert said in job.told[-1].problem
    assert f"make exchange.lease longer than {10 * slow_ms} ms" in job.told[-1].problem
    assert [said in text for text in warnings(caplog)] == [True]
    slow_ms = 0
    for _ in range(6):
        job.visit()
    assert job.told[-1].problem == ""
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)


def test_visit_that_hung_longer_than_a_lease_asks_for_no_longer_lease(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    names = exchange.names

    def hanging() -> list[str]:
        time.now_ms += SETTINGS.lease_ms + 1
        return names()

    exchange.names = hanging  # type: ignore[method-assign]
    job.visit()
    assert f"reading the reports took {SETTINGS.lease_ms + 1} ms, longer than a whole lease" in job.told[-1].problem
    assert "make exchange.lease" not in job.told[-1].problem


@pytest.mark.slow
def test_jobs_that_share_by_other_settings_are_named_while_they_live(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    other = Job(exchange, time, "other", settings=ShareSettings(interval_ms=500, lease_ms=5_000, policy="static"))
    for _ in range(4):
        other.visit()
        job.visit()
    assert job.told[-1].problem == (
        "job other's name shares by lease 5 s, floor 3 %, policy static; "
        "this one by lease 10 s, floor 3 %, policy max_min: give all jobs the same settings"
    )
    assert "job job's name shares by lease 10 s" in other.told[-1].problem
    for _ in range(2 * SETTINGS.lease_ms // 500):
        job.visit()
    assert job.told[-1].problem == ""


@pytest.mark.slow
def test_job_of_a_longer_lease_is_not_taken_for_dead_before_it_has_stopped(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    patient = ShareSettings(interval_ms=1_000, lease_ms=60_000)
    other = Job(exchange, time, "other", settings=patient)
    for _ in range(8):
        other.visit()
        job.visit()
    until_ms = time.now_ms + patient.hold_ms
    while time.now_ms < until_ms:
        job.visit()
        assert job.rate() + other.rate() <= QUOTA
    for _ in range(3 * patient.margin_ms // 500):
        job.visit()
        assert job.rate() + other.rate() <= QUOTA
    assert job.rate() > QUOTA * 0.9


def test_visit_waits_for_the_plane_before_it_reports_a_smaller_share(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    other = Job(exchange, time, "other")
    other.visit()
    time.now_ms += 500
    seen: list[int] = []
    writes = exchange.write

    def noting(name: str, content: bytes) -> None:
        if name == "job.head":
            seen.append(job.keeper._sharing._pinned_micro_per_ms[0, 0])
        writes(name, content)

    exchange.write = noting  # type: ignore[method-assign]
    job.keeper.visit()
    assert seen == []
    job.plan()
    job.keeper.tell()
    assert seen == [pytest.approx(QUOTA / 2, rel=0.01)]


def test_larger_share_is_reported_once_more_if_the_plane_takes_longer_than_half_an_interval(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    other = Job(exchange, time, "other")
    other.visit()
    time.now_ms += 250
    job.keeper.visit()
    before = exchange.objects["job.head"]
    time.now_ms += SETTINGS.interval_ms // 2 - 1
    job.keeper.visit()
    assert exchange.objects["job.head"] == before
    time.now_ms += 1
    job.keeper.visit()
    assert exchange.objects["job.head"] != before


def test_job_looks_four_times_an_interval_and_sixteen_times_while_something_is_under_way(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    calm, hurried = SETTINGS.interval_ms // 4, SETTINGS.interval_ms // 16
    assert job.keeper.next_visit_ms() == time.now_ms + calm
    job.keeper.measure(measured({GOLD: 3 * QUOTA}))  # a demand that has not been told
    assert job.keeper.next_visit_ms() == time.now_ms + hurried
    job.keeper.visit()
    assert job.keeper.next_visit_ms() == time.now_ms + calm
    Job(exchange, time, "other").keeper.visit()
    job.keeper.visit()  # answers it
    exchange.failure = OSError("unreachable")
    job.keeper.measure(measured({GOLD: QUOTA}))
    job.keeper.visit()
    assert job.keeper.next_visit_ms() == time.now_ms + calm


def test_job_of_many_scopes_looks_once_an_interval(job: Job, time: Time) -> None:
    job.keeper.measure(measured(dict.fromkeys(range(1, HURRYING_SCOPES + 2), QUOTA)))
    assert job.keeper.next_visit_ms() == time.now_ms + SETTINGS.interval_ms


@pytest.mark.slow
def test_reads_an_interval_are_bounded_however_many_jobs_there_are(exchange: MemoryExchange, time: Time) -> None:
    for n in range(150):
        alone = MemoryExchange()  # so that it reads none of the others
        Job(alone, time, f"job{n:03}").keeper.visit()
        exchange.objects |= alone.objects
    gap_ms = {}
    for known in (31, 63, 149):
        some = MemoryExchange()
        some.objects = dict(list(exchange.objects.items())[:known])
        reader = Job(some, time, "reader")
        reader.keeper.visit()
        gap_ms[known] = reader.keeper.next_visit_ms() - time.now_ms
    assert gap_ms == {31: SETTINGS.interval_ms // 16, 63: SETTINGS.interval_ms // 8, 149: SETTINGS.interval_ms // 3}


def test_report_that_says_nothing_new_is_written_once_an_interval(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    reports = [exchange.objects["job.head"]]
    for _ in range(8):
        time.now_ms += SETTINGS.interval_ms // 4
        job.keeper.visit()
        reports.append(exchange.objects["job.head"])
    assert len(set(reports)) == 3


def test_register_of_an_earlier_run_stands_until_this_one_may_use_something(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    """Else the others would give out what the earlier run may still use."""
    next_run, seen = Job(exchange, time, run=1), []
    for _ in range(8):
        next_run.visit()
        seen.append(("job.head" in exchange.objects, next_run.rate() > 0))
    assert set(seen) == {(True, False), (False, True)}


def test_thread_visits_until_it_is_stopped(exchange: MemoryExchange, time: Time) -> None:
    visited = threading.Event()
    sharing = Sharing("job", "job", 1, ShareSettings(interval_ms=50, lease_ms=500))
    keeper = LeaseKeeper(sharing, exchange, Clocks(time, time), on_visit=lambda _: visited.set())
    keeper.start()
    assert visited.wait(60)
    keeper.stop()
    assert exchange.names() == ["job.head"]


def test_visits_go_on_though_nobody_can_be_told(
    exchange: MemoryExchange, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: Observation) -> None:
        raise OSError(28, "no space left on device")

    job = Job(exchange, time)
    job.keeper._on_visit = full
    for _ in range(20):
        job.visit()
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    assert ["no space left" in text for text in warnings(caplog)] == [True]


def test_time_is_paid_while_the_lease_held_and_no_longer(job: Job, time: Time) -> None:
    since_ms = time.now_ms
    time.now_ms += 1_000
    assert job.keeper.paid_ms(since_ms) == 1_000
    time.now_ms += SETTINGS.lease_ms
    assert 1_000 < job.keeper.paid_ms(since_ms) <= SETTINGS.hold_ms


def test_time_between_two_leases_is_not_paid_though_both_began_after_the_epoch(job: Job, time: Time) -> None:
    since_ms = time.now_ms
    time.now_ms += 2 * SETTINGS.lease_ms
    paid_ms = job.keeper.paid_ms(since_ms)
    for _ in range(6):
        job.visit()
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    time.now_ms += 2 * SETTINGS.lease_ms
    assert job.keeper.paid_ms(since_ms) == paid_ms <= SETTINGS.hold_ms


def test_observation_has_every_scope_and_every_peer(job: Job, exchange: MemoryExchange, time: Time) -> None:
    other = Job(exchange, time, "other")
    for _ in range(6):
        other.visit()
        job.visit()
    seen = job.told[-1]
    assert seen.ids.tolist() == [GOLD]
    assert seen.quota.tolist() == [[QUOTA, -1]]
    assert seen.share[0].tolist() == [pytest.approx(QUOTA / 2, rel=0.01), -1]
    assert seen.used_by_all[0, 0] == pytest.approx(2 * QUOTA, rel=0.01)
    assert [(peer.name, peer.member, peer.state) for peer in seen.peers] == [("other's name", "other", "live")]
    assert seen.peer_claim[0, 0] == pytest.approx(QUOTA / 2, rel=0.01)
    assert 0 <= seen.lease_age_ms < SETTINGS.hold_ms
    assert seen.lease_left_ms + seen.lease_age_ms == SETTINGS.hold_ms
    assert np.array_equal(seen.peer_scope, [0])


def test_keeper_of_a_clock_below_0_holds_a_lease(exchange: MemoryExchange) -> None:
    time = Time(-(10**12))
    job = Job(exchange, time)
    for _ in range(6):
        job.visit()
    assert job.rate() == pytest.approx(QUOTA, rel=1e-6)
    exchange.failure = OSError("unreachable")
    time.now_ms += SETTINGS.hold_ms
    job.visit()
    assert job.rate() == pytest.approx(QUOTA * SETTINGS.floor_percent / 100, rel=0.2)


def test_thread_waits_until_the_next_visit_is_due_and_ends_when_it_is_stopped(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    threads: list[threading.Thread] = []

    def wait(timeout: float) -> bool:
        waited.append(timeout)
        threads.append(threading.current_thread())
        job.keeper.stop()
        has_waited.set()
        return True

    has_waited = threading.Event()
    monkeypatch.setattr(LeaseKeeper, "act", lambda _: 2_500)
    monkeypatch.setattr(job.keeper._has_moved, "wait", wait)
    job.keeper.start()
    assert has_waited.wait(60)
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert waited == [2.5]
