"""What a bucket earns: no fraction is lost, no interval rounds to nothing, and no cycle brings a message too many."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from typing import Any

import pytest

from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.store.effects import notes_on_document
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob

pytestmark = pytest.mark.slow

GAPS_MS = (7, 13, 29, 3, 101, 1, 997)
GREATEST = 2**40


def quota(**keys: Any) -> dict[str, Any]:
    return {"publish": {"burst_seconds": 1, **keys}}


def of_group(**keys: Any) -> dict[str, Any]:
    return {"version": 1, "resource_groups": {"g": quota(**keys)}, "defaults": {"resource_group": "g"}}


def offered_over_time(
    policies: Any, per_second: dict[str, int], seconds: int, gaps_ms: tuple[int, ...] = GAPS_MS
) -> tuple[SimulatedJob, list[tuple[int, Counter[str]]]]:
    """Run a job with triggers at uneven times; return it, and when how many rows of each namespace waited."""
    job, gaps, sent, waiting = SimulatedJob(policies), cycle(gaps_ms), Counter[str](), []
    while job.steady_ms < seconds * 1000:
        gap_ms = next(gaps)
        for name, rate in per_second.items():
            due = rate * (job.steady_ms + gap_ms) // 1000 - sent[name]
            sent[name] += due
            job.offer([(name, 1)] * due)
        job.trigger(gap_ms)
        waiting.append((job.steady_ms, Counter(str(row.namespace) for row in job.waiting)))
    return job, waiting


def test_who_sends_less_than_the_limit_at_uneven_times_never_waits_and_loses_nothing() -> None:
    """<https://github.com/varnish/varnish-modules/issues/243>: whole tokens and `last = now` deny 10 % of 4,000/s."""
    scopes = {"of-namespace/x": "namespaces", "of-tenant/x": "tenants", "of-group/x": "resource_groups"}
    policies: dict[str, Any] = {
        "version": 1,
        "namespaces": {"of-namespace/x": quota(messages_per_second=50, burst_seconds=0.2), "rejects/x": quota(
            messages_per_second=50, burst_seconds=0.2, on_excess="reject")},
        "tenants": {"of-tenant": quota(messages_per_second=50, burst_seconds=0.2), "of-group": {"resource_group": "g"}},
        "resource_groups": {"g": quota(messages_per_second=50, burst_seconds=0.2)},
        "job": quota(messages_per_second=200, burst_seconds=0.2),
    }  # fmt: skip
    job, waiting = offered_over_time(policies, dict.fromkeys([*scopes, "rejects/x"], 49), 6, GAPS_MS[:-1])
    assert not [each for each in waiting if each[1]]
    assert not job.rejected
    assert len(job.admitted) == len(job.outside.source) > 4 * 49 * 6 - 4


def test_exactly_the_limit_is_earned_at_uneven_times_and_a_queue_grows_by_what_is_more() -> None:
    """<https://github.com/varnish/varnish-modules/issues/243>, at the limit and above it."""
    held = quota(messages_per_second=50)
    each, both = {"version": 1, "namespaces": {"*": held}}, {"at/x": 50, "above/x": 53}
    for policies, offered in ((each, both), ({"version": 1, "job": held}, {"above/x": 53})):
        _, waiting = offered_over_time(policies, offered, 14)
        assert not [at_ms for at_ms, names in waiting if names["at/x"]]
        (begun_ms, before), (ended_ms, after) = next(each for each in waiting if each[0] > 5_000), waiting[-1]
        assert abs(after["above/x"] - before["above/x"] - 3 * (ended_ms - begun_ms) / 1000) <= 1


def test_jobs_that_share_a_limit_lose_no_fraction_of_it_at_uneven_times() -> None:
    """<https://github.com/varnish/varnish-modules/issues/243>, between two jobs that have a half of the limit each."""
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    jobs = [SimulatedJob(of_group(messages_per_second=50), exchange=exchange) for _ in range(2)]
    gaps, sent, waited = cycle(GAPS_MS), 0, []
    while exchange.time.now_ms < 11_000:
        gap_ms = next(gaps)
        due = 20 * (exchange.time.now_ms + gap_ms) // 1000 - sent
        sent += due
        for job in jobs:
            job.offer([("a/x", 1)] * due)
        jobs[0].trigger(gap_ms)
        jobs[1].trigger(0)
        waited.append((exchange.time.now_ms, sum(len(job.waiting) for job in jobs)))
    # The first share takes some cycles to come.
    assert not [each for each in waited if each[0] > 9_000 and each[1] > 0]
    assert sum(len(job.admitted) for job in jobs) == 2 * sent


@pytest.mark.parametrize("burst_seconds", [0.001, 0.5])
@pytest.mark.parametrize("rate", [0.001, 1, 10**9, 10**9 + 1, GREATEST])
def test_no_rate_and_no_burst_is_so_small_or_so_large_that_everything_passes(rate: float, burst_seconds: float) -> None:
    """
    <https://github.com/apache/iceberg/issues/16979> (an interval of 0 s, an infinite rate), `tylerbutler/beryl#434`
    (above 10^9 a second a token costs nothing), `InterCooperative-Network/icn#2503` (1/s is silently 10/s),
    <https://github.com/scylladb/seastar/issues/1723> (less than one a tick), `firecracker#3370` (a bucket of one).
    """
    size = 2**36  # the largest that a row may have
    document = {"version": 1, "namespaces": {"a/x": quota(bytes_per_second=rate, burst_seconds=burst_seconds)}}
    job = SimulatedJob(document)
    for after_ms in (0, 0, 1):  # two triggers in one millisecond
        job.offer([("a/x", size)] * 9)
        job.trigger(after_ms)
    most = rate * burst_seconds + rate * job.steady_ms / 1000 + size
    assert size <= sum(row.size_bytes or 0 for row in job.admitted) <= most
    limits = compile_policy(parse_document(document), "publish").namespace_limits
    assert limits.rate_micro_per_ms[0].max() == round(1000 * rate)


@pytest.mark.parametrize("rate", [GREATEST + 1, "1e400", float("inf"), float("nan"), 0.0001, -1])
def test_a_rate_that_cannot_be_kept_is_refused_by_its_key(rate: object) -> None:
    """<https://github.com/apache/iceberg/issues/16979>: a finite limit, or a refusal that names the key."""
    with pytest.raises(PolicyError, match=r"namespaces\.a/x\.publish\.messages_per_second"):
        parse_document({"version": 1, "namespaces": {"a/x": quota(messages_per_second=rate)}})


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("1*delay*0", "its delay does nothing: 0 ms is no wait"),
        ("0*delay*100", "its delay does nothing: 0 units turn a rule off"),
        ("0*reject*50,5*delay*20", "its reject does nothing: 0 units turn a rule off"),
    ],
)
def test_a_rule_that_holds_nothing_back_is_told_to_its_author(text: str, note: str) -> None:
    """`InterCooperative-Network/icn#2503`: a limit that is silently another one, here none as Pegasus has it."""
    document = {
        "version": 1,
        "namespaces": {"a/x": {"write_throttling": text}, "a/y": {"read_throttling": "9*delay*1"}},
    }
    assert list(notes_on_document(parse_document(document))) == [f"namespaces.a/x.write_throttling: {note}"]


@pytest.mark.parametrize("is_group", [False, True])
def test_each_idle_time_gives_the_burst_and_the_message_on_credit_and_that_one_is_repaid(*, is_group: bool) -> None:
    """<https://github.com/boinkor-net/governor/issues/249> (and #107): one more than the bucket after each pause."""
    names = [f"t{n}/x" for n in range(64)] if is_group else ["a/x"]
    held = {"messages_per_second": 1, "burst_seconds": 5, "on_excess": "reject"}
    policies = of_group(**held) if is_group else {"version": 1, "namespaces": {"a/x": quota(**held)}}

    def cycles(count: int, idle_ms: int) -> tuple[list[int], int]:
        job, passed = SimulatedJob(policies), []
        for _ in range(count):
            before = len(job.admitted)
            job.offer([(names[n % len(names)], 1) for n in range(20)])
            job.trigger(idle_ms)
            job.trigger(1)
            assert not job.waiting
            passed.append(len(job.admitted) - before)
        return passed, job.steady_ms

    assert cycles(4, 60_000)[0] == [6] * 4
    passed, steady_ms = cycles(24, 500)
    assert 5 + (steady_ms - 501) // 1000 <= sum(passed) <= 5 + steady_ms / 1000 + 1


def test_jobs_that_share_have_one_burst_after_each_idle_time_and_a_message_each() -> None:
    """<https://github.com/boinkor-net/governor/issues/249>: what 3 jobs have on credit together, and repay."""
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    policies = of_group(messages_per_second=1, burst_seconds=5, on_excess="reject")
    jobs = [SimulatedJob(policies, exchange=exchange) for _ in range(3)]
    began_ms, passed = exchange.time.now_ms, []
    for _ in range(14):
        for job in jobs:
            job.offer([("t/x", 1)] * 20)
            job.trigger(1)
            job.trigger(0)
        exchange.time.pass_by(500)
        passed.append((exchange.time.now_ms, sum(len(job.admitted) for job in jobs)))
    assert passed[-1][1] > 5
    assert not [each for each in passed if each[1] > 5 + (each[0] - began_ms) / 1000 + len(jobs)]
