"""Simulated jobs that share quotas: real leases in one time, and the promises of an exchange."""

from __future__ import annotations

from typing import Any, Final

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.exchange import ScopeName, SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.effort import thorough_after

pytestmark = pytest.mark.slow

GOLD: Final[ScopeName] = ("resource_group", "gold")
QUOTA = 50_000
"""The quota of gold in micro-tokens a millisecond."""


def policies() -> dict[str, Any]:
    group = {"publish": {"messages_per_second": 50, "burst_seconds": 1}}
    return {"version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"}}


@pytest.fixture
def exchange() -> SimulatedExchange:
    return SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))


def spent(exchange: SimulatedExchange, job: SimulatedJob, triggers: int) -> list[int]:
    """Let a job run with much waiting, and return what all may spend together after each trigger."""
    totals = []
    for _ in range(triggers):
        job.offer([("acme/a", 1)] * 100)
        job.trigger(1_000)
        totals.append(sum(member.leased().get(GOLD, (0, 0))[0] for member in exchange.members))
    return totals


def test_a_job_and_its_peer_share_the_quota(exchange: SimulatedExchange) -> None:
    job = SimulatedJob(policies(), exchange=exchange)
    peer = exchange.join("peer", policies())
    assert max(spent(exchange, job, 12)) <= QUOTA
    assert job.leased()[GOLD][0] == pytest.approx(QUOTA / 2, rel=0.02)
    exchange.leave(peer)
    spent(exchange, job, 15)
    assert job.leased()[GOLD][0] > 0.9 * QUOTA


def test_peer_wants_a_part_of_the_quota_in_force(exchange: SimulatedExchange) -> None:
    policy = policies()
    until = {"until": "2100-01-01T00:00:00Z", "reason": "a quiet year", "publish": {"messages_per_second": 1}}
    policy["resource_groups"]["gold"]["exception"] = until
    peer = exchange.join("peer", policy)
    exchange.time.pass_by(5_000)
    assert 900 < peer.leased()[GOLD][0] <= 1_000


def test_quota_that_is_lowered_is_not_held_by_the_floor_of_a_silent_peer(exchange: SimulatedExchange) -> None:
    # The floor of the peer is 750 messages in 1,000 s, more than the quota is after the change.
    job = SimulatedJob(policies(), exchange=exchange)
    peer = exchange.join("peer", policies())
    spent(exchange, job, 12)
    exchange.leave(peer)
    spent(exchange, job, 15)
    job.set_policies(policies() | {"resource_groups": {"gold": {"publish": {"messages_per_second": 0.5}}}})
    spent(exchange, job, 15)
    assert 0.9 * 500 < job.leased()[GOLD][0] <= 500


def test_quota_that_is_lowered_is_obeyed_before_jobs_have_divided_it_anew() -> None:
    job = SimulatedJob(policies(), exchange=SimulatedExchange())
    for _ in range(40):
        job.offer([("acme/a", 1)])
        job.trigger(5_000)
    slow = {"publish": {"messages_per_second": 1, "burst_seconds": 600}}
    job.offer([("acme/a", 1)] * 51)
    for after_ms in (1_000, 10):
        job.trigger(after_ms)
    job.set_policies(policies() | {"resource_groups": {"gold": slow}})
    job.trigger(10)  # planned under the new quota, with the old share
    admitted = len(job.admitted)
    job.offer([("acme/a", 1)] * 900)
    job.trigger(900)
    assert len(job.admitted) - admitted <= 2  # a message, and what the last batch left


def test_message_whose_scope_is_not_leased_yet_waits_even_where_the_excess_is_rejected(
    exchange: SimulatedExchange,
) -> None:
    # Between its messages the job gives the scope up, and so has no share of it when the next one comes.
    quota = {"publish": {"messages_per_second": 10, "burst_seconds": 10, "on_excess": "reject"}}
    job = SimulatedJob({"version": 1, "tenants": {"rare": quota, "busy": quota}}, exchange=exchange)
    for second in range(75):
        if second % 25 == 20:
            assert ("tenant", "rare") not in job.leased()
            job.offer([("rare/alerts", 10)])
        job.offer([("busy/x", 10)])
        job.trigger(1_000)
    assert [row.namespace for row in job.admitted].count("rare/alerts") == 3
    assert not [letter for letter in job.rejected if letter.row.namespace == "rare/alerts"]
    # What exceeds a leased share is rejected at once.
    job.offer([("busy/x", 10)] * 500)
    job.trigger(1_000)
    assert {(letter.row.namespace, letter.reason) for letter in job.rejected} == {("busy/x", "quota")}


def test_debt_of_a_shared_quota_is_repaid_while_its_job_wants_nothing(exchange: SimulatedExchange) -> None:
    # Twelve cycles without demand give the scope up; the message is repaid in 60 of the 100 seconds that follow it.
    quota = {"publish": {"bytes_per_second": 1_000, "burst_seconds": 10}}
    job = SimulatedJob({"version": 1, "tenants": {"acme": quota}}, exchange=exchange)
    for messages in (1, 2):
        job.offer([("acme/a", 60_000)])
        for _ in range(6):
            job.trigger(2_000)
        assert len(job.admitted) == messages
        for _ in range(50):
            job.trigger(2_000)
    job.pass_time(30_000)
    job.trigger()
    assert ("tenant", "acme") not in job.leased(), "a scope whose debt is repaid is given up"


@pytest.mark.parametrize("by_ms", thorough_after(1, [86_400_000, -86_400_000]))
def test_wall_clocks_that_differ_by_days_pass_no_quota(exchange: SimulatedExchange, by_ms: int) -> None:
    job = SimulatedJob(policies(), exchange=exchange)
    exchange.join("peer", policies())
    spent(exchange, job, 12)
    job.set_clock(by_ms)
    assert max(spent(exchange, job, 15)) <= QUOTA
    job.restart()
    assert max(spent(exchange, job, 20)) <= QUOTA
    assert job.leased()[GOLD][0] == pytest.approx(QUOTA / 2, rel=0.02)


def test_equal_calls_make_equal_histories_of_jobs_that_share() -> None:
    histories = []
    for _ in range(2):
        exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
        job = SimulatedJob(policies(), exchange=exchange)
        exchange.join("peer", policies())
        copy = job.clone(with_sinks=True)
        copy.restart()
        for _ in range(3):
            copy.offer([("acme/a", 1)] * 50)
            copy.trigger(0)
            spent(exchange, job, 1)
        histories.append([attempt.digest for attempt in job.attempts + copy.attempts])
    assert histories[0] == histories[1]


def test_a_copy_with_sinks_of_its_own_shares_as_another_job(exchange: SimulatedExchange) -> None:
    job = SimulatedJob(policies(), exchange=exchange)
    spent(exchange, job, 5)
    copy = job.clone(with_sinks=True)
    copy.restart()
    totals = []
    for _ in range(12):
        copy.offer([("acme/a", 1)] * 100)
        copy.trigger(0)
        totals += spent(exchange, job, 1)
    assert max(totals) <= QUOTA
    assert copy.leased()[GOLD][0] == pytest.approx(QUOTA / 2, rel=0.02)


def test_a_job_that_leaves_the_exchange_has_the_quota_for_itself(exchange: SimulatedExchange) -> None:
    job = SimulatedJob(policies(), exchange=exchange)
    exchange.join("peer", policies())
    spent(exchange, job, 8)
    job.is_sharing = False
    job.restart()
    before = len(job.admitted)
    spent(exchange, job, 10)
    assert len(job.admitted) - before >= 9 * 50
    assert job.leased() == {}


@pytest.mark.thorough
def test_all_sleep_in_the_middle_of_a_long_pause_and_find_each_other_again(exchange: SimulatedExchange) -> None:
    job = SimulatedJob(policies(), exchange=exchange)
    exchange.join("peer", policies())
    spent(exchange, job, 8)
    job.pass_time(30 * 86_400_000)
    assert max(spent(exchange, job, 12)) <= QUOTA
    assert job.leased()[GOLD][0] == pytest.approx(QUOTA / 2, rel=0.02)


@pytest.mark.thorough
def test_a_bounded_run_of_a_job_that_shares_waits_for_its_lease_and_ends_when_all_has_left(
    exchange: SimulatedExchange,
) -> None:
    """It begins without a share, and `availableNow` would end if nothing told it that one comes."""
    job = SimulatedJob(policies(), exchange=exchange)
    job.offer([("acme/a", 1)] * 120)
    job.trigger(0)
    job.trigger(0)
    while job.waiting:
        wait_ms = job.wait_ms()
        assert wait_ms is not None
        job.trigger(max(1, wait_ms))
    job.trigger(0)
    assert job.wait_ms() is None


def test_a_bounded_run_of_a_job_that_shares_ends_where_no_lease_lets_anything_leave(
    exchange: SimulatedExchange,
) -> None:
    document = policies()
    document["resource_groups"]["gold"]["publish"]["messages_per_second"] = 0
    job = SimulatedJob(document, exchange=exchange)
    job.offer([("acme/a", 1)] * 3)
    for _ in range(5):
        job.trigger()
    assert job.wait_ms() is None


@pytest.mark.parametrize("leaves", [False, True])
def test_restart_of_a_job_that_shares_costs_nothing_of_its_own_limit(exchange: SimulatedExchange, leaves: bool) -> None:
    own = {"version": 1, "job": {"publish": {"messages_per_second": 10, "burst_seconds": 20}}}
    job = SimulatedJob(own, exchange=exchange)
    job.offer([("acme/a", 1)] * 1_000)
    for _ in range(6):
        job.trigger(5_000)
        job.is_sharing ^= leaves
        job.restart()
    assert len(job.admitted) == pytest.approx(200 + 10 * 25, abs=11)
