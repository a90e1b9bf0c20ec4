"""A replay of recorded traffic decides as the job did, exactly or to within its interval."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_from, compile_policy
from spark_throttle.policy.values import time_text
from spark_throttle.testing import SimulatedJob
from spark_throttle.what_if.outcome import what_if
from spark_throttle.what_if.proposal import proposed
from spark_throttle.what_if.replay import Replay, replay
from spark_throttle.what_if.traffic import SUMS, Traffic
from tests.effort import thorough_after

Sent = list[tuple[str, int]]
"""The messages of one second: namespaces and bytes."""


@dataclass
class Run:
    """What a simulated job with a batch each second did."""

    admitted: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    delays: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """The delayed messages of each namespace, by their delay in seconds."""

    waiting: Counter[str] = field(default_factory=Counter)


_FIRST_SECOND = SimulatedJob({}).wall_ms // 1_000
"""Equals take turns by a hash of their names and of the time: so the times are the same."""


def drawn(seed: int, *, has_exceptions: bool = False) -> tuple[dict[str, Any], list[Sent]]:
    """Return a policy and what was sent in each second: all messages of a namespace in a second are of one size."""
    r = random.Random(seed)

    def quota(least: int) -> dict[str, Any]:
        limits: dict[str, Any] = {}
        if r.random() < 0.7:
            limits["messages_per_second"] = r.choice([1, 2, 5, 12]) * least
        if not limits or r.random() < 0.3:
            limits["bytes_per_second"] = r.choice([50, 300, 1_000]) * least
        return limits | {"burst_seconds": r.choice([1, 3, 10]), "on_excess": r.choice(["delay"] * 4 + ["reject"])}

    groups, tenants = [f"g{n}" for n in range(r.choice([1, 2]))], [f"t{n}" for n in range(r.choice([2, 4]))]
    names = [f"{tenant}/n{n}" for tenant in tenants for n in range(r.choice([1, 3]))]
    policy: dict[str, Any] = {
        "resource_groups": {group: {"publish": quota(3)} for group in groups},
        "tenants": {
            tenant: {"resource_group": r.choice(groups)} | ({"publish": quota(2)} if r.random() < 0.4 else {})
            for tenant in tenants
        },
        "namespaces": {name: {"publish": quota(1)} for name in names if r.random() < 0.3},
    }
    if has_exceptions:
        for entry in [entry for section in policy.values() for entry in section.values() if "publish" in entry]:
            end_ms = _FIRST_SECOND * 1_000 + r.choice([1, 7_000, 15_400, 30_000])
            entry["exception"] = {"until": time_text(end_ms), "reason": "drawn", "publish": quota(r.choice([0, 1, 9]))}
    size, busy = {name: r.choice([1, 20, 200]) for name in names}, {name: r.choice([0.1, 0.5, 1]) for name in names}
    sent: list[Sent] = [
        [(name, size[name]) for name in names if r.random() < busy[name] for _ in range(r.choice([1, 2, 8]))]
        for _ in range(40)
    ]
    while not sent[-1]:  # a replay ends with the last message
        sent.pop()
    return policy, sent


def ran(policy: dict[str, Any], sent: list[Sent]) -> Run:
    """Run the job."""
    job, run, second_of = SimulatedJob(policy), Run(), dict[int, int]()
    for second, rows in enumerate(sent):
        second_of |= {row.id: second for row in job.offer(rows)}
        batch = job.trigger(1_000)
        for row in () if batch is None else batch.admitted:
            run.admitted[str(row.namespace)] += 1
            if delay := second - second_of[row.id]:
                run.delays[str(row.namespace)][delay] += 1
        run.rejected.update(str(each.row.namespace) for each in (() if batch is None else batch.rejected))
    run.waiting.update(str(row.namespace) for row in job.waiting)
    return run


@cache
def drawn_and_ran(seed: int) -> tuple[dict[str, Any], list[Sent], Run]:
    """Return what is drawn of a seed, and what the job did."""
    policy, sent = drawn(seed)
    return policy, sent, ran(policy, sent)


def recorded(sent: list[Sent], seconds: int = 1) -> Traffic:
    """Return what was sent as sums of so many seconds."""
    sums: dict[tuple[int, str], list[int]] = defaultdict(list)
    for second, rows in enumerate(sent):
        for name, size_bytes in rows:
            sums[(_FIRST_SECOND + second) // seconds, name].append(size_bytes)
    columns = [(at, name, len(sizes), sum(sizes), max(sizes)) for (at, name), sizes in sums.items()]
    names = ("interval", "namespace", "messages", "bytes", "largest_bytes")
    table = pa.table(dict(zip(names, zip(*columns, strict=True), strict=True)))
    return Traffic.of(table, interval_ms=seconds * 1_000)


def in_event_time(policy: dict[str, Any]) -> list[tuple[int, CompiledPolicy]]:
    return compile_from(parse_document(policy), "publish", _FIRST_SECOND * 1_000, _FIRST_SECOND * 1_000 + 10**12)


def compiled(policy: dict[str, Any]) -> CompiledPolicy:
    return compile_policy(parse_document(policy), "publish")


def replayed(traffic: Traffic, policy: dict[str, Any]) -> Replay:
    return replay(traffic, in_event_time(policy))


def by_name(found: Replay, traffic: Traffic, numbers: Int64s) -> Counter[str]:
    return Counter({name: n for name, n in zip(traffic.names.to_pylist(), numbers.tolist(), strict=True) if n})


def delays_of(found: Replay, traffic: Traffic) -> dict[str, Counter[int]]:
    delays: dict[str, Counter[int]] = defaultdict(Counter)
    columns = (found.delays.name.tolist(), found.delays.delay_ms.tolist(), found.delays.messages.tolist())
    for name, delay_ms, messages in zip(*columns, strict=True):
        delays[traffic.names[name].as_py()][delay_ms // 1_000] += messages
    return delays


@pytest.mark.parametrize("first", thorough_after(1, range(0, 200, 5)))
def test_it_decides_as_the_job_did_whose_batches_are_its_intervals(first: int) -> None:
    for seed in range(first, first + 5):
        policy, sent, run = drawn_and_ran(seed)
        traffic = recorded(sent)
        found = replayed(traffic, policy)
        assert by_name(found, traffic, found.admitted[:, 0]) == run.admitted, seed
        assert by_name(found, traffic, found.rejected.sum(axis=1)) == run.rejected, seed
        assert by_name(found, traffic, found.waiting) == run.waiting, seed
        assert delays_of(found, traffic) == run.delays, seed


@pytest.mark.parametrize("first", thorough_after(1, range(0, 51, 3)))
def test_exceptions_end_in_event_time_as_they_ended_in_the_job(first: int) -> None:
    for seed in range(first, first + 3):
        policy, sent = drawn(seed, has_exceptions=True)
        run, traffic = ran(policy, sent), recorded(sent)
        found = replayed(traffic, policy)
        assert len(in_event_time(policy)) > 1, seed
        assert by_name(found, traffic, found.admitted[:, 0]) == run.admitted, seed
        assert by_name(found, traffic, found.rejected.sum(axis=1)) == run.rejected, seed
        assert delays_of(found, traffic) == run.delays, seed


@pytest.mark.parametrize("first", thorough_after(1, range(0, 100, 5)))
def test_in_longer_intervals_the_longest_delay_is_right_to_within_one(first: int) -> None:
    for seed in range(first, first + 5):
        policy, sent, run = drawn_and_ran(seed)
        if are_equal := seed % 2 == 0:  # else fewer messages may be as many bytes
            sent = [[(name, 1) for name, _ in rows] for rows in sent]
            run = ran(policy, sent)
        found = replayed(recorded(sent, 5), policy)
        longest = max([0, *(delay for delays in run.delays.values() for delay in delays)])
        assert abs(longest - found.delays.delay_ms.max(initial=0) // 1_000) <= 5, seed
        if are_equal and not found.rejected.any() and not run.rejected:
            later = ran(policy, [*sent, *[list[tuple[str, int]]()] * 5]).admitted.total()
            assert run.admitted.total() <= int(found.admitted[:, 0].sum()) <= later, seed


def test_nobody_exceeds_a_quota_of_two_a_second_with_one_message_a_second_however_fast_the_events_are_read() -> None:
    policy = {"tenants": {"acme": {"publish": {"messages_per_second": 2, "burst_seconds": 10}}}}
    for seconds in (1, 10, 60):
        found = replayed(recorded([[("acme/a", 1)]] * 240, seconds), policy)
        assert found.admitted.tolist() == [[240, 240, 0]]
        assert not found.held.any()


def test_what_stops_a_message_is_counted_once_where_it_first_waits() -> None:
    policy: dict[str, Any] = {
        "resource_groups": {"g": {"publish": {"bytes_per_second": 10, "burst_seconds": 1}}},
        "tenants": {
            "a": {"resource_group": "g"},
            "b": {"resource_group": "g", "publish": {"messages_per_second": 1, "burst_seconds": 1}},
        },
    }
    traffic = recorded([[("a/x", 10)] * 4, *[[]] * 9, [("b/x", 1)] * 3])
    scopes = {each.scope: each.policy for each in what_if(traffic, compiled(policy)).scopes}
    assert scopes["a"].held_by == {"resource_group bytes": 2}
    assert scopes["b"].held_by == {"tenant messages": 1}
    assert scopes["g"].held_by == {"resource_group bytes": 2, "tenant messages": 1}


def test_what_waits_when_the_events_end_is_told() -> None:
    policy = {"tenants": {"acme": {"publish": {"messages_per_second": 1, "burst_seconds": 1}}}}
    (acme,) = what_if(recorded([[("acme/a", 1)] * 4]), compiled(policy)).of_level("tenant")
    assert (acme.policy.waiting_messages, acme.policy.oldest_waiting_ms, acme.is_held) == (2, 0, True)


def test_two_policies_are_compared_scope_by_scope_the_worst_first() -> None:
    def policy(rate: int) -> dict[str, Any]:
        return {"tenants": {"slow": {"publish": {"messages_per_second": rate, "burst_seconds": 1}}}}

    traffic = recorded([[("slow/x", 1)] * 4, [("quick/x", 1)] * 9] * 10)
    found = what_if(traffic, compiled(policy(1)), compiled(policy(4)))
    first, second = found.of_level("tenant")
    assert (first.scope, second.scope) == ("slow", "quick")
    assert first.against is not None
    assert (first.against.delayed_messages, first.against.waiting_messages) == (0, 0)
    assert first.gained_messages == -first.policy.waiting_messages < 0
    assert first.policy.delay_longest_ms == 10_000
    assert second.policy == second.against


def test_quotas_on_time_are_not_replayed_and_that_is_said() -> None:
    policy = {"tenants": {"acme": {"publish": {"request_percentage": 1}}}}
    found = what_if(recorded([[("acme/a", 1)] * 100]), compiled(policy))
    assert found.not_replayed == ("request_percentage: events do not tell what they cost",)
    assert found.scopes[0].policy.admitted_messages == 100


def test_pegasus_rules_are_replayed_by_the_second_and_refused_otherwise() -> None:
    policy = {"namespaces": {"acme/a": {"write_throttling": "2*reject*100"}}}
    sent: list[Sent] = [[("acme/a", 1)] * 5] * 3
    assert replayed(recorded(sent), policy).rejected.sum() == 9
    with pytest.raises(ConfigurationError, match="give an interval of 1 second"):
        replayed(recorded(sent, 5), policy)


def test_traffic_without_an_event_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no event to replay \\(7 have no usable"):
        Traffic.of(SUMS.empty_table(), interval_ms=1_000, unusable_messages=7)


@pytest.mark.parametrize("seed", thorough_after(3, range(6)))
def test_under_a_proposed_quota_a_backlog_leaves_in_time_and_under_nine_tenths_of_it_not(seed: int) -> None:
    """Each tenant has one namespace, so its messages leave in the order in which they came."""
    _, sent = drawn(seed)
    traffic = recorded([[(f"{name.split('/')[0]}/n", 1) for name, _ in rows] * 20 for rows in sent])
    for within_ms in (0, 5_000):
        quotas = {each.scope: each.messages_per_second for each in proposed(traffic, compiled({}), within_ms=within_ms)}
        longest_ms = []
        for tenths in (10, 9):
            rates = {name: -(-rate * tenths // 10) for name, rate in quotas.items()}
            policy = {"tenants": {name: {"publish": {"messages_per_second": rate}} for name, rate in rates.items()}}
            found = replayed(traffic, policy)
            longest_ms.append(int(max(found.delays.delay_ms.max(initial=0), found.oldest_ms.max(initial=0))))
        assert longest_ms[0] <= within_ms
        assert longest_ms[1] > longest_ms[0]


@pytest.mark.parametrize("seed", range(6))
def test_under_a_quota_that_is_proposed_for_no_backlog_nobody_waits(seed: int) -> None:
    traffic = recorded(drawn(seed)[1])
    quotas = proposed(traffic, compiled({}), within_ms=0)
    tenants = {each.scope: {"publish": {"messages_per_second": each.messages_per_second}} for each in quotas}
    found = replayed(traffic, {"tenants": tenants})
    assert not found.held.any()


def test_budgets_begin_anew_by_the_calendar_of_the_policy() -> None:
    """Four messages an hour for two days; a budget of ten a day, from midnight in Berlin, which is 22:00 UTC."""
    first = 1_760_000_400 // 3_600 + 24
    first -= first % 24
    ones = {"messages": [4] * 48, "bytes": [4] * 48, "largest_bytes": [1] * 48}
    table = pa.table({"interval": range(first, first + 48), "namespace": ["acme/a"] * 48, **ones})
    quota = {"messages_per_day": 10, "on_excess": "reject"}
    document = {"job": {"time_zone": "Europe/Berlin"}, "tenants": {"acme": {"publish": quota}}}
    traffic = Traffic.of(table, interval_ms=3_600_000)
    found = replay(traffic, compile_policy(parse_document(document), "publish"))
    assert found.admitted.tolist() == [[30, 30, 0]]


@pytest.mark.parametrize("interval_s", thorough_after(2, [20, 300, 1]))
def test_what_is_guaranteed_goes_first_in_long_intervals_too(interval_s: int) -> None:
    intervals = 1_200 // interval_s
    count, names = [200 * interval_s] * 2 * intervals, ["acme/a", "blue/a"] * intervals
    numbers = [at for at in range(intervals) for _ in range(2)]
    sent = pa.table({"interval": numbers, "namespace": names, "messages": count, "bytes": count,
                     "largest_bytes": [1] * len(count)})  # fmt: skip
    policy = compile_policy(parse_document({
        "job": {"publish": {"messages_per_second": 100, "burst_seconds": 10}}, "queue": {"messages": 10**7},
        "tenants": {"acme": {"publish": {"guaranteed_messages_per_second": 80}}, "blue": {"publish": {"weight": 9}}},
    }), "publish")  # fmt: skip
    acme, blue = replay(Traffic.of(sent, interval_ms=interval_s * 1_000), policy).admitted[:, 0].tolist()
    assert acme >= 80 * 1_200 > 4 * blue
