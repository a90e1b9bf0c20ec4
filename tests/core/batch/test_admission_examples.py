"""Worked numbers, each short enough to check by hand; the oracle and the kernel must both give them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from spark_throttle.core.quota import (
    MAX_SIZE_BYTES,
    NEVER_MS,
    Dimension,
    Level,
    OnExcess,
    Verdict,
)
from tests.core.batch.worked_numbers import ADMITTED, NS, by_quota, one_namespace, verdicts
from tests.oracle.decider import Decider, Engine
from tests.oracle.reference_usage import Decision
from tests.oracle.worlds import (
    Namespace,
    Window,
    limit,
    make_policy,
)

pytestmark = pytest.mark.parametrize("engine", get_args(Engine))


# Token buckets


def test_kip_599_burst_of_560_waits_12_s(engine: Engine) -> None:
    # KIP-599: 5 a second, burst 500; 560 leave a balance of -60, which 5 a second repay in 12 s.
    decider = Decider(engine, one_namespace(Namespace(limit(bytes_per_second=5, burst_seconds=100))))
    assert decider.batch(0, [(NS, 560), (NS, 1)]) == [ADMITTED, by_quota(Verdict.DELAY, 12_000)]
    assert decider.batch(11_999) == [by_quota(Verdict.DELAY, 1)]
    assert decider.batch(12_000) == [ADMITTED]


def test_kafka_token_bucket_sequence(engine: Engine) -> None:
    # Kafka's TokenBucketTest: 5 a second, burst 100; 60 -> 40, +2 s and 5 -> 45, +2 s and 60 -> -5.
    decider = Decider(engine, one_namespace(Namespace(limit(bytes_per_second=5, burst_seconds=20))))
    balances = []
    for at_ms, size_bytes in ((0, 60), (2_000, 5), (4_000, 60)):
        decider.batch(at_ms, [(NS, size_bytes)])
        balances.append(decider.plan.state.flows[NS].balance_micro[Dimension.BYTES] // 10**6)
    assert balances == [40, 45, -5]


def test_kafka_strict_quota_rejects_without_charging(engine: Engine) -> None:
    # ControllerMutationQuotaManagerTest, strict: 90, 90, 90 at 10 a second and burst 100; +5 s.
    rules = Namespace(limit(bytes_per_second=10, burst_seconds=10, on_excess=OnExcess.REJECT))
    decider = Decider(engine, one_namespace(rules))
    assert decider.batch(0, [(NS, 90)]) == [ADMITTED]
    assert decider.batch(0, [(NS, 90)]) == [ADMITTED]
    assert decider.batch(0, [(NS, 90)]) == [by_quota(Verdict.REJECT, 8_000)]
    assert decider.batch(5_000, [(NS, 90)]) == [by_quota(Verdict.REJECT, 3_000)]


def test_kafka_permissive_quota_admits_and_tells(engine: Engine) -> None:
    # The same, permissive: all pass. Kafka tells 17,000 ms of what exceeds; a dry run owes a burst at most, 10,000.
    rules = Namespace(limit(bytes_per_second=10, burst_seconds=10, on_excess=OnExcess.OBSERVE))
    decider = Decider(engine, one_namespace(rules))
    assert decider.batch(0, [(NS, 90), (NS, 90)]) == [ADMITTED, ADMITTED]
    assert decider.batch(0, [(NS, 90)]) == [by_quota(Verdict.ADMIT, 10_000)]
    assert decider.batch(5_000, [(NS, 0)]) == [by_quota(Verdict.ADMIT, 5_000)]
    assert decider.plan.usage[NS].observed_messages == 1


def test_message_larger_than_the_burst_passes_into_debt(engine: Engine) -> None:
    # 10 bytes a second, burst 10: 1,000 bytes leave -990, repaid in 99 s.
    decider = Decider(engine, one_namespace(Namespace(limit(bytes_per_second=10))))
    assert decider.batch(0, [(NS, 1_000), (NS, 1_000)]) == [ADMITTED, by_quota(Verdict.DELAY, 99_000)]
    assert decider.batch(98_999) == [by_quota(Verdict.DELAY, 1)]
    assert decider.batch(99_000) == [ADMITTED]


def test_fifth_of_a_message_a_second(engine: Engine) -> None:
    # 0.2/s and a burst of one: the first takes the token, the second goes into debt, one more each 5 s.
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_second=0.2, burst_seconds=5))))
    waits = by_quota(Verdict.DELAY, 5_000, Dimension.MESSAGES)
    assert decider.batch(0, [(NS, 9)] * 4) == [ADMITTED, ADMITTED, waits, waits]
    assert decider.batch(4_999) == [replace(waits, throttle_time_ms=1)] * 2
    assert decider.batch(5_000) == [ADMITTED, waits]


@pytest.mark.parametrize(
    ("on_excess", "verdict"),
    [(OnExcess.DELAY, Verdict.DELAY), (OnExcess.REJECT, Verdict.REJECT), (OnExcess.OBSERVE, Verdict.ADMIT)],
)
def test_rate_of_zero_never_admits(engine: Engine, on_excess: OnExcess, verdict: Verdict) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_second=0, on_excess=on_excess))))
    assert decider.batch(0, [(NS, 1)]) == [by_quota(verdict, NEVER_MS, Dimension.MESSAGES)]
    year_later = decider.batch(365 * 86_400_000, [(NS, 1)])
    assert set(year_later) == {by_quota(verdict, NEVER_MS, Dimension.MESSAGES)}


def test_shared_scope_with_rate_zero_never_admits(engine: Engine) -> None:
    # Not even where its bucket still holds tokens.
    decider = Decider(engine, make_policy(job=limit(messages_per_second=0)))
    refused = Decision(Verdict.DELAY, "quota", Level.JOB, Dimension.MESSAGES, 0, NEVER_MS)
    assert decider.batch(0, [(NS, 1)]) == [refused]
    assert decider.batch(1, [(NS, 1)], {"": (5, 5)}) == [refused, refused]


def test_clock_that_goes_back_refills_nothing(engine: Engine) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    decider.batch(10_000, [(NS, 1)] * 3)
    assert decider.batch(4_000) == [by_quota(Verdict.DELAY, 1_000, Dimension.MESSAGES)]
    assert decider.batch(4_999) == [by_quota(Verdict.DELAY, 1, Dimension.MESSAGES)]
    assert decider.batch(5_000) == [ADMITTED]


def test_changed_quota_pays_the_gap_at_the_rate_that_was_in_force(engine: Engine) -> None:
    # 1/s leaves a debt of 4 bytes; 4 s later it is repaid, and the 7 bytes pass into debt, whatever the new rate.
    decider = Decider(engine, one_namespace(Namespace(limit(bytes_per_second=1))))
    decider.batch(0, [(NS, 5)])
    decider.policy = one_namespace(Namespace(limit(bytes_per_second=10)))
    decider.batch(4_000, [(NS, 7)])
    assert decider.plan.state.flows[NS].balance_micro[Dimension.BYTES] == -7 * 10**6


def test_full_namespace_is_forgotten(engine: Engine) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_second=2))))
    decider.batch(0, [(NS, 1)])
    assert list(decider.plan.state.flows) == [NS]
    decider.batch(499)
    assert list(decider.plan.state.flows) == [NS]
    decider.batch(500)
    assert decider.plan.state.flows == {}


def test_observed_namespace_with_rate_zero_is_forgotten(engine: Engine) -> None:
    # Its balance is held just below nothing: a debt that no rate repays would be remembered for ever.
    rules = Namespace(limit(messages_per_second=0, on_excess=OnExcess.OBSERVE))
    decider = Decider(engine, one_namespace(rules))
    assert verdicts(decider.batch(0, [(NS, 1)] * 5)) == {Verdict.ADMIT: 5}
    decider.batch(1)
    assert decider.plan.state.flows == {}


# Bad rows


@pytest.mark.parametrize(
    ("name", "size_bytes", "reason"),
    [
        (None, 1, "namespace_missing"),
        ("", 1, "namespace_missing"),
        ("é" * 512 + "x", 1, "namespace_too_long"),
        (NS, None, "size_missing"),
        (NS, -1, "size_negative"),
        (NS, MAX_SIZE_BYTES + 1, "size_too_large"),
        (None, None, "namespace_missing"),
    ],
)
def test_malformed_row_is_rejected_and_costs_nothing(
    engine: Engine, name: str | None, size_bytes: int | None, reason: str
) -> None:
    decider = Decider(engine, make_policy(default=Namespace(limit(messages_per_second=1, bytes_per_second=1))))
    assert decider.batch(0, [(name, size_bytes)]) == [Decision(Verdict.REJECT, reason, throttle_time_ms=NEVER_MS)]
    assert decider.plan.state.flows == {}


def test_longest_name_and_largest_size_are_admitted(engine: Engine) -> None:
    decider = Decider(engine, make_policy())
    assert decider.batch(0, [("é" * 512, MAX_SIZE_BYTES), (NS, 0)]) == [ADMITTED, ADMITTED]


# Pegasus


@pytest.mark.slow
def test_pegasus_delay_by_count(engine: Engine) -> None:
    # 20000*delay*100 on 4 partitions is 5,001 units: the 5,002nd request of a second waits 100 ms.
    decider = Decider(engine, one_namespace(Namespace(by_count=Window(delay_units=5_001, delay_ms=100))))
    waits = Decision(Verdict.DELAY, "throttling", Level.NAMESPACE, throttle_time_ms=100)
    decisions = decider.batch(0, [(NS, 1)] * 5_002)
    assert verdicts(decisions[:5_001]) == {Verdict.ADMIT: 5_001}
    assert [replace(decision, dimension=-1) for decision in decisions[5_001:]] == [waits]
    assert [decision.throttle_time_ms for decision in decider.batch(99)] == [1]
    assert decider.batch(100) == [ADMITTED]


def test_pegasus_reject_is_asked_before_delay(engine: Engine) -> None:
    # 20000*delay*100,20000*reject*200: at equal units delay never fires; the next second starts anew.
    rule = Window(delay_units=5_001, delay_ms=100, reject_units=5_001, reject_ms=200)
    decider = Decider(engine, one_namespace(Namespace(by_count=rule)))
    refused = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.MESSAGES, -1, 200)
    assert decider.batch(0, [(NS, 1)] * 5_003) == [ADMITTED] * 5_001 + [refused] * 2
    assert decider.batch(999, [(NS, 1)]) == [refused]
    assert decider.batch(1_000, [(NS, 1)]) == [ADMITTED]


def test_pegasus_rejected_row_gives_its_units_back(engine: Engine) -> None:
    # By size, 100 units: 60 pass, 50 more would be 110, 40 make exactly 100, and 1 is too much.
    decider = Decider(engine, one_namespace(Namespace(by_size=Window(reject_units=100, reject_ms=7))))
    refused = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.BYTES, -1, 7)
    assert decider.batch(0, [(NS, 60), (NS, 50), (NS, 40), (NS, 1)]) == [ADMITTED, refused, ADMITTED, refused]


def test_pegasus_row_rejected_by_size_does_not_count(engine: Engine) -> None:
    rules = Namespace(by_count=Window(reject_units=2, reject_ms=3), by_size=Window(reject_units=10, reject_ms=7))
    decider = Decider(engine, one_namespace(rules))
    by_size = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.BYTES, -1, 7)
    by_count = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.MESSAGES, -1, 3)
    rows = [(NS, 1), (NS, 50), (NS, 50), (NS, 1), (NS, 50), (NS, 1)]
    assert decider.batch(0, rows) == [ADMITTED, by_size, by_size, ADMITTED, by_count, by_count]


def test_rows_behind_a_held_row_wait_for_it(engine: Engine) -> None:
    # The first row is held by size until 1,050 ms; the second has no time of its own, and may not overtake it.
    decider = Decider(engine, one_namespace(Namespace(by_size=Window(delay_units=10, delay_ms=1_050))))
    decider.batch(0, [(NS, 11)])
    decisions = decider.batch(1_000, [(NS, 1)])
    assert [(d.verdict, d.reason, d.throttle_time_ms) for d in decisions] == [
        (Verdict.DELAY, "throttling", 50),
        (Verdict.DELAY, "throttling", 0),
    ]


def test_rejecting_namespace_lets_rows_behind_a_held_row_wait(engine: Engine) -> None:
    # The first row is held until 1,040 ms. Time stops the namespace, not its quota: nothing is beyond the quota.
    rules = Namespace(
        limit(messages_per_second=100, on_excess=OnExcess.REJECT), by_size=Window(delay_units=10, delay_ms=50)
    )
    decider = Decider(engine, one_namespace(rules))
    decider.batch(990, [(NS, 20)])
    assert verdicts(decider.batch(1_000, [(NS, 1)])) == {Verdict.DELAY: 2}
    assert decider.batch(1_040) == [ADMITTED, ADMITTED]
