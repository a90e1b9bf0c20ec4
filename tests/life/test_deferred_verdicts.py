"""A scope that rejects its excess rejects nothing else: rows wait for their verdict while it may have tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spark_throttle.testing import SimulatedExchange, SimulatedJob
from spark_throttle.testing.simulation.rows import shard_of
from tests.effort import crossed

pytestmark = pytest.mark.slow

QUOTA_PER_SECOND = 100
SECOND_MS = 1_000
MANY = [f"tenant-{i % 5}/topic-{i}" for i in range(40)]


def limited(burst_seconds: int, on_excess: str = "reject") -> dict[str, Any]:
    limit = {"messages_per_second": QUOTA_PER_SECOND, "burst_seconds": burst_seconds, "on_excess": on_excess}
    return {
        "version": 1,
        "resource_groups": {"gold": {"publish": limit}},
        "defaults": {"resource_group": "gold"},
    }


def offer(job: SimulatedJob, per_second: int, seconds: int, names: Sequence[str] = ("acme/a",)) -> None:
    for second in range(seconds):
        first = second * per_second
        job.offer([(names[i % len(names)], 1) for i in range(first, first + per_second)])
        job.trigger(after_ms=SECOND_MS)


# Tokens that other shards were lent


@pytest.mark.parametrize("shards", [1, 2, 8, 64])
def test_rows_within_the_quota_of_a_group_pass_whatever_shard_they_come_to(shards: int) -> None:
    job = SimulatedJob(limited(4), shards=shards)
    offer(job, 3 * QUOTA_PER_SECOND, 1)
    job.trigger(after_ms=SECOND_MS)
    assert len(job.admitted) == 3 * QUOTA_PER_SECOND


def test_rows_within_the_quota_pass_after_an_overload_and_a_pause() -> None:
    job = SimulatedJob(limited(4), shards=8)
    offer(job, 10 * QUOTA_PER_SECOND, 10, MANY)
    for _ in range(3):
        job.trigger(after_ms=SECOND_MS)
    job.pass_time(10 * SECOND_MS)
    rejected = len(job.rejected)
    offer(job, 3 * QUOTA_PER_SECOND, 1, ["other/a"])
    job.trigger(after_ms=SECOND_MS)
    assert (len(job.rejected) - rejected, len(job.waiting)) == (0, 0)


def test_verdict_is_deferred_once_where_the_quota_is_used_up() -> None:
    job = SimulatedJob(limited(4), shards=8)
    offer(job, 50 * QUOTA_PER_SECOND, 1, MANY)
    assert len(job.waiting) > 0
    job.trigger(after_ms=SECOND_MS)
    assert len(job.waiting) == 0
    assert len(job.admitted) <= 5 * QUOTA_PER_SECOND + 8  # four seconds of burst, one that passed, a message a shard
    assert len(job.admitted) >= 5 * QUOTA_PER_SECOND


@pytest.mark.thorough
def test_hardly_any_verdict_is_deferred_under_a_steady_overload() -> None:
    job = SimulatedJob(limited(1), shards=8)
    offer(job, 3 * QUOTA_PER_SECOND, 5, MANY)
    for _ in range(12):
        offer(job, 3 * QUOTA_PER_SECOND, 1, MANY)
        assert len(job.waiting) <= QUOTA_PER_SECOND // 20


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shards", "noisy", "batch_ms", "every_ms"),
    [(1, 20, 100, 1_000), (2, 20, 100, 1_000), (8, 20, 100, 1_000), (8, 150, 1_000, 4_000), (32, 150, 1_000, 4_000)],
)
def test_modest_namespace_whose_part_of_a_batch_is_less_than_a_message_is_not_rejected(
    shards: int, noisy: int, batch_ms: int, every_ms: int
) -> None:
    job = SimulatedJob(limited(1), shards=shards)
    modest = "modest/a"
    beside = (f"noisy/{i}" for i in range(100_000))
    elsewhere = [name for name in beside if shards == 1 or shard_of(name, shards) != shard_of(modest, shards)][:noisy]
    rows = max(1, 3 * QUOTA_PER_SECOND * batch_ms // SECOND_MS // noisy)
    for batch in range(1, 4 * every_ms // batch_ms):
        is_sent = batch * batch_ms % every_ms == 0
        job.offer([(name, 1) for name in elsewhere for _ in range(rows)] + [(modest, 1)] * is_sent)
        job.trigger(after_ms=batch_ms)
    assert [letter for letter in job.rejected if letter.row.namespace == modest] == []
    assert len(job.rejected) > 0


@pytest.mark.parametrize("noise", [("acme/large", 1_000), ("acme/closed", 1)])
def test_rows_that_are_rejected_for_another_cause_cost_the_others_of_their_group_nothing(
    noise: tuple[str, int],
) -> None:
    document = limited(10)
    document["resource_groups"]["gold"]["publish"]["max_message_bytes"] = 10
    closed = {"messages_per_second": 0, "on_excess": "reject"}
    document["namespaces"] = {"acme/closed": {"publish": closed, "resource_group": "gold"}}
    job = SimulatedJob(document, shards=8)
    for rows in ([], [(name, 1) for name in MANY for _ in range(20)], [("late/a", 1)] * 90, []):
        job.offer([noise, *rows])
        job.trigger(after_ms=SECOND_MS)
    assert {letter.row.namespace for letter in job.rejected} == {noise[0]}
    assert len(job.admitted) == 20 * len(MANY) + 90


@pytest.mark.parametrize("shards", [1, 2, 8, 64])
def test_row_that_comes_while_its_group_owes_does_not_wait_until_the_debt_is_repaid(shards: int) -> None:
    document = limited(1)
    document["resource_groups"]["gold"]["publish"] = {"bytes_per_second": 10_000, "on_excess": "reject"}
    job = SimulatedJob(document, shards=shards)
    job.offer([("acme/large", 600 * 10_000)])
    job.trigger(after_ms=SECOND_MS)
    for _ in range(2):
        job.offer([("other/a", 100)])
        job.trigger(after_ms=SECOND_MS)
        job.trigger(after_ms=SECOND_MS)
        job.trigger(after_ms=SECOND_MS)
        assert len(job.waiting) == 0
    assert len(job.rejected) == 2


@pytest.mark.parametrize(("shards", "pause_seconds"), crossed([1, 2, 8], [0, 1, 4], of=3))
def test_modest_namespace_is_not_rejected_because_another_overloads_its_group(shards: int, pause_seconds: int) -> None:
    noisy = "noisy/a"
    modest = next(
        name for name in MANY if shards == 1 or shard_of(name.encode(), shards) != shard_of(noisy.encode(), shards)
    )
    job = SimulatedJob(limited(1), shards=shards)
    for second in range(24):
        job.offer([(noisy, 1)] * 3 * QUOTA_PER_SECOND)
        if second % (pause_seconds + 1) == 0:
            job.offer([(modest, 1)] * (QUOTA_PER_SECOND // 5))
        job.trigger(after_ms=SECOND_MS)
    assert modest not in {letter.row.namespace for letter in job.rejected}


def test_namespaces_that_take_turns_within_the_quota_are_not_rejected() -> None:
    job = SimulatedJob(limited(1), shards=8)
    for name in MANY:
        offer(job, QUOTA_PER_SECOND * 9 // 10, 1, [name])
    assert len(job.rejected) == 0


def test_namespaces_share_the_room_of_rows_that_wait_for_their_verdict() -> None:
    job = SimulatedJob(limited(8), shards=2)
    job.offer([("acme/a", 1)] * 5_000 + [("blue/c", 1)] * 5)  # in one shard, which is lent half of the tokens
    job.trigger(after_ms=SECOND_MS)
    assert "blue/c" not in {letter.row.namespace for letter in job.rejected}


def test_row_that_a_delaying_scope_let_wait_is_not_rejected_once_the_scope_rejects() -> None:
    job = SimulatedJob(limited(1, "delay"), shards=8)
    offer(job, 5 * QUOTA_PER_SECOND, 1, MANY)
    job.set_policies(limited(1))
    for _ in range(10):
        job.trigger(after_ms=SECOND_MS)
    assert (len(job.admitted), len(job.rejected)) == (5 * QUOTA_PER_SECOND, 0)


@pytest.mark.thorough
def test_row_that_waited_for_its_verdict_waits_on_once_the_scope_delays() -> None:
    job = SimulatedJob(limited(4), shards=8)
    offer(job, 50 * QUOTA_PER_SECOND, 1, MANY)
    waiting = len(job.waiting)
    rejected = len(job.rejected)
    job.set_policies(limited(4, "delay"))
    for _ in range(2):
        job.trigger(after_ms=SECOND_MS)
    job.set_policies(limited(4))
    for _ in range(waiting // (2 * QUOTA_PER_SECOND) + 2):
        job.trigger(after_ms=2 * SECOND_MS)
    assert (len(job.rejected), len(job.waiting)) == (rejected, 0)


def test_verdict_is_not_deferred_where_a_queue_that_must_not_overflow_has_no_room() -> None:
    job = SimulatedJob(limited(4) | {"queue": {"messages": 8, "on_overflow": "fail"}}, shards=8)
    offer(job, 3 * QUOTA_PER_SECOND, 1)
    assert len(job.waiting) <= 1  # a shard's part of the queue
    assert len(job.admitted) + len(job.rejected) + len(job.waiting) == 3 * QUOTA_PER_SECOND


def test_row_that_waits_for_its_verdict_puts_no_other_row_out_of_the_queue() -> None:
    groups = {
        "strict": {"publish": {"messages_per_second": 1_000, "burst_seconds": 60, "on_excess": "reject"}},
        "patient": {"publish": {"messages_per_second": 10, "burst_seconds": 1}},
    }
    members = {f"{name}/*": {"resource_group": name} for name in groups}
    document = {"version": 1, "resource_groups": groups, "namespaces": members, "queue": {"messages": 1_000}}
    job = SimulatedJob(document, shards=8)
    job.offer([("patient/a", 1)] * 60)
    for second in range(10):
        job.trigger(after_ms=SECOND_MS)
        if second == 1:
            assert len(job.waiting) > 30
            job.offer([(f"strict/{i}", 1) for i in range(300) for _ in range(200)])
    assert "patient/a" not in {letter.row.namespace for letter in job.rejected}


@pytest.mark.parametrize(("per_second", "shards"), crossed([0.001, 0.005, 0.007, 0.008], [8, 64], of=2))
def test_slow_quota_lets_a_row_an_hour_pass(per_second: float, shards: int) -> None:
    limit = {"messages_per_second": per_second, "on_excess": "reject"}
    job = SimulatedJob({"version": 1, "tenants": {"acme": {"publish": limit}}}, shards=shards)
    for _ in range(3):
        job.offer([("acme/a", 1)])
        for pause_ms in (3_600 * SECOND_MS, SECOND_MS, SECOND_MS):
            job.trigger(after_ms=pause_ms)
    assert (len(job.admitted), len(job.rejected)) == (3, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [16, 64])
def test_no_queue_grows_under_a_steady_overload_of_many_shards(shards: int) -> None:
    job = SimulatedJob(limited(1), shards=shards)
    offer(job, 3 * QUOTA_PER_SECOND, 4, MANY)
    for _ in range(6):
        offer(job, 3 * QUOTA_PER_SECOND, 1, MANY)
        assert len(job.waiting) <= QUOTA_PER_SECOND // 2


def test_row_that_waits_for_its_verdict_is_decided_before_it_is_too_old() -> None:
    job = SimulatedJob(limited(60) | {"queue": {"age_seconds": 1}}, shards=8)
    for second in range(10):
        job.offer([(MANY[second], 1)] * 50 * QUOTA_PER_SECOND)
        job.trigger(after_ms=60 * SECOND_MS)
    job.trigger(after_ms=60 * SECOND_MS)
    assert (len(job.admitted), len(job.rejected)) == (500 * QUOTA_PER_SECOND, 0)


def test_row_that_waited_for_a_shared_quota_is_not_rejected_by_a_limit_of_its_own() -> None:
    own = {"publish": {"messages_per_second": 60, "burst_seconds": 1, "on_excess": "reject"}, "resource_group": "gold"}
    job = SimulatedJob(limited(1) | {"namespaces": {"acme/a": own}}, shards=2, exchange=SimulatedExchange())
    waited: set[int] = set()
    while not job.admitted:
        waited |= {row.id for row in job.waiting}
        offer(job, QUOTA_PER_SECOND // 2, 1)
    offer(job, QUOTA_PER_SECOND // 2, 30)
    assert waited & {letter.row.id for letter in job.rejected} == set()


# Time without a share


@pytest.mark.thorough
@pytest.mark.parametrize(("names", "shards", "percent"), [(["acme/a"], 2, 90), (MANY, 8, 50)])
def test_job_that_shares_and_is_offered_less_than_its_quota_rejects_nothing(
    names: list[str], shards: int, percent: int
) -> None:
    per_second, seconds = QUOTA_PER_SECOND * percent // 100, percent
    job = SimulatedJob(limited(1), shards=shards, exchange=SimulatedExchange())
    offer(job, per_second, seconds, names)
    assert (len(job.waiting), len(job.rejected)) == (0, 0)
    job.restart()
    offer(job, per_second, 2 * seconds, names)
    assert (len(job.waiting), len(job.rejected)) == (0, 0)


def test_limit_of_the_job_owes_the_time_for_which_rows_wait_for_a_shared_quota() -> None:
    limit = {"publish": {"messages_per_second": QUOTA_PER_SECOND, "burst_seconds": 1, "on_excess": "reject"}}
    job = SimulatedJob(limited(1) | {"job": limit}, shards=2, exchange=SimulatedExchange())
    offer(job, QUOTA_PER_SECOND // 2, 30)
    assert (len(job.waiting), len(job.rejected)) == (0, 0)


def test_downtime_of_a_job_is_not_owed() -> None:
    job = SimulatedJob(limited(1), shards=2, exchange=SimulatedExchange())
    offer(job, 1, 1)
    job.stop()
    job.pass_time(36_000 * SECOND_MS)
    job.restart()
    offer(job, 3 * QUOTA_PER_SECOND, 30, MANY)
    assert len(job.waiting) <= QUOTA_PER_SECOND // 20


@pytest.mark.thorough
def test_restarts_under_an_overload_let_no_queue_grow() -> None:
    job = SimulatedJob(limited(1), shards=2, exchange=SimulatedExchange())
    for _ in range(2):
        offer(job, 3 * QUOTA_PER_SECOND, 40, MANY)
        assert len(job.waiting) <= 5 * QUOTA_PER_SECOND
        job.restart()


def test_job_that_waited_long_for_its_share_rejects_nothing_that_its_quota_would_have_let_pass() -> None:
    exchange = SimulatedExchange()
    job = SimulatedJob(limited(1), shards=2, exchange=exchange)
    job.offer([("acme/a", 1)] * 2 * QUOTA_PER_SECOND)
    for _ in range(30):
        job.trigger(after_ms=SECOND_MS)
    assert (len(job.rejected), len(job.admitted)) == (0, 2 * QUOTA_PER_SECOND)


def test_job_that_is_offered_too_much_after_its_start_lets_rows_wait_no_longer_than_it_missed() -> None:
    job = SimulatedJob(limited(1), shards=8, exchange=SimulatedExchange())
    missed_seconds = 0
    while not job.admitted:
        offer(job, 3 * QUOTA_PER_SECOND, 1, MANY)
        missed_seconds += 1
    offer(job, 3 * QUOTA_PER_SECOND, 1, MANY)
    assert 0 < len(job.waiting) <= (missed_seconds + 1) * QUOTA_PER_SECOND + 8
    offer(job, 3 * QUOTA_PER_SECOND, missed_seconds + 1, MANY)
    assert len(job.waiting) <= QUOTA_PER_SECOND // 20


# The queue's room for rows that wait for their verdict


@pytest.mark.parametrize("large_bytes", [40, 60, 1_000])
def test_large_rows_of_some_leave_the_small_rows_of_others_room_to_wait(large_bytes: int) -> None:
    shards, quota = 8, 16
    in_one_shard = [name for name in (f"tenant-{i}/a" for i in range(200)) if shard_of(name, shards) == 0]
    large, small = in_one_shard[:8], in_one_shard[8:16]
    limit = {"messages_per_second": quota, "burst_seconds": 1, "on_excess": "reject"}
    document = {"version": 1, "job": {"publish": limit}, "queue": {"bytes": 100 * shards}}
    job = SimulatedJob(document, shards=shards)
    job.offer([(name, large_bytes) for name in large] + [(name, 1) for name in small])
    job.trigger(after_ms=SECOND_MS)
    rejected = {letter.row.namespace for letter in job.rejected}
    assert rejected
    assert rejected <= set(large)
    job.trigger(after_ms=SECOND_MS)
    assert {row.namespace for row in job.admitted} == {*large, *small} - rejected
