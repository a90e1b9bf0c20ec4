"""The throttle answers as KIP-599, Pegasus, KIP-124 and PIP-322 work it out (`docs/documents.md`).

The rates that KIP-599's token bucket replaces are in `test_kip_599_rates`.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from spark_throttle.core.limits.token_bucket import debit, full, refill
from spark_throttle.importers.pegasus import import_pegasus
from spark_throttle.pace import AsyncTokenBucket, Limit, ManualClock, Pacer
from spark_throttle.policy.capacity import capacity_of_cores, capacity_of_threads, divide
from spark_throttle.policy.model import Direction
from spark_throttle.testing import SimulatedJob
from tests.conformance.sampled_rate import SampledRate

MS, SECOND = 10**6, 10**9  # in nanoseconds


# KIP-599: R = 5, B = 500, 560 mutations at once.


def test_request_of_560_mutations_passes_whole_and_the_next_waits_12_s() -> None:
    job = SimulatedJob({"namespaces": {"acme/topics": {"publish": {"bytes_per_second": 5, "burst_seconds": 100}}}})
    job.offer([("acme/topics", 560), ("acme/topics", 1)])
    job.trigger()
    assert [row.size_bytes for row in job.admitted] == [560]
    job.trigger(after_ms=0)
    assert job.wait_ms() == 12_000
    assert job.trigger(after_ms=11_999) is None
    job.trigger(after_ms=1)
    assert [row.size_bytes for row in job.admitted] == [560, 1]


def test_560_messages_are_560_units_of_which_501_pass() -> None:
    job = SimulatedJob({"defaults": {"publish": {"messages_per_second": 5, "burst_seconds": 100}}})
    job.offer([("acme/topics", 1)] * 560)
    job.trigger()
    assert len(job.admitted) == 501


def test_bucket_of_500_holds_minus_60_after_560_and_0_after_12_s() -> None:
    rate_per_ms, burst = np.array([5_000]), np.array([500_000_000])  # in millionths of a token
    balance = debit(full(rate_per_ms, burst), np.array([560_000_000]))
    assert balance.tolist() == [-60_000_000]
    assert refill(balance, rate_per_ms, burst, 11_999).tolist() == [-5_000]
    assert refill(balance, rate_per_ms, burst, 12_000).tolist() == [0]


# Apache Pegasus: 1000*delay*100,2000*reject*200.

BY_COUNT = "1000*delay*100,2000*reject*200"
OF_A_PARTITION = f"{1000 // 256 + 1}*delay*100,{2000 // 256 + 1}*reject*200"  # as Pegasus' code has it, of 256
OF_A_PARTITION_BY_SIZE = f"{1000 * 2**20 // 256 + 1}*delay*100,{2000 * 2**20 // 256 + 1}*reject*200"


@pytest.mark.parametrize(
    ("key", "rule", "rows", "size_bytes", "passed"),
    [
        ("write_throttling", BY_COUNT, 2_500, 1, (1_000, 1_000, 500)),
        ("read_throttling", BY_COUNT, 2_500, 1, (1_000, 1_000, 500)),
        ("write_throttling_by_size", "1000K*delay*100,2000K*reject*200", 2_500, 1_000, (1_024, 1_024, 452)),
        ("write_throttling_by_size", "1000M*delay*100,2000M*reject*200", 25, 100_000_000, (10, 10, 5)),
        ("write_throttling", OF_A_PARTITION, 20, 1, (4, 4, 12)),
        ("write_throttling_by_size", OF_A_PARTITION_BY_SIZE, 10, 1_000_000, (4, 4, 2)),
    ],
)
def test_rows_of_a_second_pass_at_once_or_after_100_ms_or_are_rejected_with_200_ms(
    key: str, rule: str, rows: int, size_bytes: int, passed: tuple[int, int, int]
) -> None:
    direction: Direction = "dispatch" if key == "read_throttling" else "publish"
    job = SimulatedJob({"namespaces": {"temp": {key: rule}}, "queue": {"bytes": 2 * 10**9}}, direction=direction)
    job.offer([("temp", size_bytes)] * rows)
    job.trigger()
    at_once = len(job.admitted)
    job.trigger(after_ms=99)
    assert len(job.admitted) == at_once
    job.trigger(after_ms=1)
    assert (at_once, len(job.admitted) - at_once, len(job.rejected)) == passed
    assert {row.throttle_time_ms for row in job.rejected} == {200}


def test_rule_that_pegasus_prints_takes_effect_in_the_next_batch() -> None:
    found = import_pegasus(
        ">>> use temp\nOK\n>>> get_app_envs\n[app_envs]\n"
        f"replica.write_throttling          : {BY_COUNT}\n"
        "replica.write_throttling_by_size  : 1000M*delay*100,2000M*reject*200\n"
    )
    assert found.unexpressed == ()
    job = SimulatedJob({})
    job.set_policies(found.document)
    job.offer([("temp", 1)] * 1_001)
    batch = job.trigger()
    assert batch is not None
    assert len(batch.admitted) == 1_000


# KIP-124: percent of one thread.


def test_capacity_is_1100_percent_of_8_and_3_threads_and_6400_of_32_cores() -> None:
    assert capacity_of_threads(io_threads=8, network_threads=3) == 1_100
    assert capacity_of_cores(32) == 6_400


@pytest.mark.parametrize(
    ("capacity", "tenants", "share", "promised", "of_the_article"),
    [
        (6_400, 50, "128", 6_400, "128"),
        (6_400, 100, "64", 6_400, "64"),
        (6_400, 115, "55.6", 6_394, "55.7"),
        (1_100, 120, "9.1", 1_092, "9.2"),
    ],
)
def test_share_is_the_articles_rounded_down_so_that_no_more_is_promised_than_there_is(
    capacity: int, tenants: int, share: str, promised: int, of_the_article: str
) -> None:
    division = divide(capacity, tenants)
    assert division.variable_percent == Decimal(share)
    assert division.promised_percent == promised
    assert (tenants * Decimal(of_the_article) > capacity) == (share != of_the_article)


@pytest.mark.parametrize(
    ("request_percentage", "thread_ms"),
    [(20, 200), (200, 2_000), (128, 1_000 + 280)],  # a fifth of a thread; two of them; one, and 28 % of another
)
def test_client_may_use_its_percentage_of_each_second_and_no_millisecond_more(
    request_percentage: int, thread_ms: int
) -> None:
    def throttle_time_ms(used_ms: int) -> int:
        rate = SampledRate(request_percentage, samples=11, sample_ms=1_000)
        return [rate.record(Fraction(used_ms, 10), now_ms=second * 1_000) for second in range(10)][-1].throttle_time_ms

    assert throttle_time_ms(thread_ms) == 0
    assert throttle_time_ms(thread_ms + 1) > 0


# PIP-322. Time stands still until it is advanced.


def bucket(tokens_per_second: int, clock: ManualClock) -> AsyncTokenBucket:
    return AsyncTokenBucket(Limit.of(tokens_per_second), clock_ns=clock.now_ns, rule="published")


def test_calls_within_16_ms_see_the_last_balance_and_their_debt_stays() -> None:
    clock = ManualClock(SECOND)
    late = bucket(1_000, clock)
    assert [late.consume_and_check(500) for _ in range(3)] == [True, True, True]
    clock.advance(16 * MS)
    assert not late.contains_tokens(is_consistent=True)
    assert late.balance_tokens() == -500


def test_empty_bucket_throttles_until_it_holds_16_ms_of_tokens() -> None:
    empty = bucket(1_000, ManualClock(SECOND))
    empty.consume(1_000)
    assert empty.throttle_time_ns() == 16 * MS


def test_debt_of_150_at_100_a_second_is_one_of_50_a_second_later() -> None:
    clock = ManualClock(SECOND)
    owing = bucket(100, clock)
    owing.consume(250)
    assert owing.throttle_time_ns() == 1_510 * MS  # the debt, and 16 ms of tokens, of which 1 is the least
    clock.advance(SECOND)
    assert owing.balance_tokens(is_consistent=True) == -50


def test_49_calls_pass_in_50_ms_at_1000_a_second_however_many_come() -> None:
    clock = ManualClock(SECOND)
    pacer = Pacer(clock=clock)
    producer = pacer.producer(pacer.level("topic", 1_000, initial_tokens=1))
    passed = 0
    for _ in range(50):
        while producer.try_acquire():
            passed += 1
        clock.advance(1 * MS)
    assert passed == 1 + 16 * 3  # 1 at first, then 16 in each 16 ms


def test_producer_of_five_levels_goes_when_the_fifth_stops_throttling_it() -> None:
    clock = ManualClock(SECOND)
    pacer = Pacer(clock=clock)
    producer = pacer.producer(*(pacer.level(f"at {rate}", rate) for rate in (10, 20, 30, 40, 50)))
    assert producer.try_acquire(100)
    counts = [len(producer.throttled_by)]
    while counts[-1]:
        assert not producer.try_acquire()
        clock.advance(MS)
        counts += [len(producer.throttled_by)]
    assert sorted(set(counts), reverse=True) == [5, 4, 3, 2, 1, 0]
    assert producer.try_acquire()
