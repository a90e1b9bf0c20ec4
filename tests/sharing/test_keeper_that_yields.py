"""A keeper whose job is run by another process, too: what it does, what is paid, and what people are told."""

from __future__ import annotations

import logging

import pytest

from tests.sharing.kept_job import QUOTA, SETTINGS, Job, Time, warnings
from tests.sharing.test_register import MemoryExchange


def test_time_in_which_another_run_has_this_jobs_place_is_not_paid_though_the_epoch_pins_only_a_floor(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    time.now_ms += SETTINGS.lease_ms
    assert 0 < job.plan() < QUOTA / 10
    job.keeper.visit()
    since_ms = time.now_ms
    assert 0 < job.plan() < QUOTA / 10
    clone = Job(exchange, time, run=77)
    for _ in range(2):
        clone.visit()
    job.keeper.visit()
    assert job.keeper.may_go_on
    yielded_ms = time.now_ms
    time.now_ms += SETTINGS.lease_ms
    assert job.keeper.paid_ms(since_ms) <= yielded_ms - since_ms + 1
    job.keeper.go_on()
    assert job.keeper.paid_ms(since_ms) <= yielded_ms - since_ms + 1


def test_time_is_not_paid_after_a_run_yielded_in_the_millisecond_in_which_an_epoch_was_made(
    job: Job, exchange: MemoryExchange, time: Time
) -> None:
    clone = Job(exchange, time, run=77)
    for _ in range(2):
        clone.visit()
    assert job.plan() == pytest.approx(QUOTA, rel=1e-6)
    since_ms = time.now_ms
    job.keeper.visit()
    assert job.keeper.may_go_on
    time.now_ms += SETTINGS.hold_ms
    assert job.keeper.paid_ms(since_ms) <= 1


@pytest.mark.slow
def test_clone_that_begins_goes_on_and_the_one_before_says_so_and_uses_nothing(
    job: Job, exchange: MemoryExchange, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    other = Job(exchange, time, "other")
    for _ in range(6):
        other.visit()
        job.visit()
    clone = Job(exchange, time, run=77)
    for _ in range(8):
        for each in (clone, job, other):
            each.visit()
    assert job.plan() == 0
    assert "another process runs this job (member job) and goes before this one" in job.told[-1].problem
    assert not job.told[-1].is_leased
    assert job.told[-1].share[0, 0] == 0
    (said,) = warnings(caplog)
    assert "another process runs this job" in said
    assert clone.plan() == pytest.approx(QUOTA / 2, rel=0.01)
    assert clone.told[-1].problem == ""
    assert exchange.names() == ["job.4d.head", "other.head"]
    assert [(peer.member, peer.state) for peer in other.told[-1].peers] == [("job", "live")]


def test_run_that_yielded_reads_and_writes_nothing_until_it_goes_on_and_then_looks_at_once(
    job: Job, exchange: MemoryExchange, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    clone = Job(exchange, time, run=77)
    for _ in range(3):
        clone.visit()
        job.visit()
    assert job.keeper.may_go_on
    objects, calls, names = dict(exchange.objects), [], exchange.names

    def counted() -> list[str]:
        calls.append("names")
        return names()

    exchange.names = counted  # type: ignore[method-assign]
    for _ in range(10):
        time.now_ms += SETTINGS.interval_ms
        assert job.keeper.act() == SETTINGS.interval_ms
    assert (calls, exchange.objects) == ([], objects)
    job.keeper.go_on()
    assert job.plan() == 0
    assert "this run owns the checkpoint" in warnings(caplog)[-1], "and that it falls to its floor is not true"
    assert job.keeper.act() == 0
    assert calls == ["names"]
    assert not job.keeper.may_go_on
    for _ in range(10):
        job.visit()
        clone.visit()
        if job.keeper.may_go_on:  # the clone went beyond it once more
            job.keeper.go_on()
    assert [job.plan(), clone.plan()] == [pytest.approx(QUOTA, rel=1e-6), 0]
    assert job.told[-1].problem == ""
    assert "this run owns the checkpoint" in warnings(caplog)[1]


def test_run_that_yielded_too_often_to_go_on_is_said_to_need_a_start(
    job: Job, exchange: MemoryExchange, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    clone = Job(exchange, time, run=77)
    while not job.keeper._sharing.is_superseded or job.keeper.may_go_on:
        for each in (clone, job):
            if each.keeper.may_go_on:  # both own the checkpoint: one is a copy that cannot tell
                assert "in which it goes on if it owns the checkpoint" in each.told[-1].problem
                each.keeper.go_on()
            each.visit()
    assert job.told[-1].problem.endswith(
        "may use nothing of the shared quotas any more: stop one of the two, or give it a checkpoint of its own, and "
        "then start this one again"
    )
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [f"exchange: {job.told[-1].problem}"]
