"""Worked numbers, each short enough to check by hand; the oracle and the kernel must both give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from spark_throttle.core.admission import plan_admission
from spark_throttle.core.quota import (
    MAX_SIZE_BYTES,
    NEVER_MS,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Overflow,
    Verdict,
)
from spark_throttle.core.state import ShardState
from spark_throttle.errors import QueueOverflowError
from spark_throttle.testing.comparison import as_reference
from spark_throttle.testing.reference import Decision, ReferencePlan, reference_admission
from spark_throttle.testing.worlds import (
    UNBOUNDED_QUEUE,
    Limit,
    Namespace,
    Tenant,
    Window,
    granted,
    limit,
    make_arrivals,
    make_policy,
)

START_MS = 1_760_000_000_000
NS = "acme/logs"
ADMITTED = Decision(Verdict.ADMIT)
Rows = Iterable[tuple[str | None, int | None]]


@dataclass
class Shard:
    """A shard that is played by hand, by the engine under test; times are relative to `START_MS`."""

    engine: str
    policy: CompiledPolicy
    shards: int = 1
    state: ShardState = field(init=False)
    plan: ReferencePlan = field(init=False)

    def __post_init__(self) -> None:
        self.state = ShardState.initial(len(self.policy.shared))

    def batch(self, at_ms: int, rows: Rows = (), grant: dict[str, tuple[float, float]] | None = None) -> list[Decision]:
        """Decide one batch, after a new grant if one is given."""
        now_ms = START_MS + at_ms
        if grant is not None:
            self.state = granted(self.state, self.policy, grant, now_ms=now_ms)
        arrivals = make_arrivals(rows)
        if self.engine == "oracle":
            self.plan = reference_admission(self.state, arrivals, self.policy, now_ms=now_ms, shards=self.shards)
            self.state = self.plan.state.to_arrays()
        else:
            plan = plan_admission(self.state, arrivals, self.policy, now_ms=now_ms, shards=self.shards)
            self.plan = as_reference(plan, self.policy)
            self.state = plan.state
        return self.plan.decisions

    def admitted(self) -> Counter[str]:
        """Return the messages that the last batch admitted, by namespace."""
        return Counter({name: usage.admitted[0] for name, usage in self.plan.usage.items()})


@pytest.fixture(params=["oracle", "kernel"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def one_namespace(rules: Namespace) -> CompiledPolicy:
    return make_policy(namespaces={NS: rules})


def by_quota(verdict: Verdict, throttle_time_ms: int, dimension: Dimension = Dimension.BYTES) -> Decision:
    return Decision(verdict, "quota", Level.NAMESPACE, dimension, -1, throttle_time_ms)


def verdicts(decisions: list[Decision]) -> Counter[Verdict]:
    return Counter(decision.verdict for decision in decisions)


# Token buckets


def test_kip_599_burst_of_560_waits_12_s(engine: str) -> None:
    # KIP-599: 5 a second, burst 500; 560 leave a balance of -60, which 5 a second repay in 12 s.
    shard = Shard(engine, one_namespace(Namespace(limit(bytes_per_second=5, burst_seconds=100))))
    assert shard.batch(0, [(NS, 560), (NS, 1)]) == [ADMITTED, by_quota(Verdict.DELAY, 12_000)]
    assert shard.batch(11_999) == [by_quota(Verdict.DELAY, 1)]
    assert shard.batch(12_000) == [ADMITTED]


def test_kafka_token_bucket_sequence(engine: str) -> None:
    # Kafka's TokenBucketTest: 5 a second, burst 100; 60 -> 40, +2 s and 5 -> 45, +2 s and 60 -> -5.
    shard = Shard(engine, one_namespace(Namespace(limit(bytes_per_second=5, burst_seconds=20))))
    balances = []
    for at_ms, size_bytes in ((0, 60), (2_000, 5), (4_000, 60)):
        shard.batch(at_ms, [(NS, size_bytes)])
        balances.append(shard.plan.state.flows[NS].balance_micro[Dimension.BYTES] // 10**6)
    assert balances == [40, 45, -5]


def test_kafka_strict_quota_rejects_without_charging(engine: str) -> None:
    # ControllerMutationQuotaManagerTest, strict: 90, 90, 90 at 10 a second and burst 100; +5 s.
    rules = Namespace(limit(bytes_per_second=10, burst_seconds=10, on_excess=OnExcess.REJECT))
    shard = Shard(engine, one_namespace(rules))
    assert shard.batch(0, [(NS, 90)]) == [ADMITTED]
    assert shard.batch(0, [(NS, 90)]) == [ADMITTED]
    assert shard.batch(0, [(NS, 90)]) == [by_quota(Verdict.REJECT, 8_000)]
    assert shard.batch(5_000, [(NS, 90)]) == [by_quota(Verdict.REJECT, 3_000)]


def test_kafka_permissive_quota_admits_and_tells(engine: str) -> None:
    # The same, permissive: all pass; what exceeds is told 17,000 ms, and 12,000 ms five seconds later.
    rules = Namespace(limit(bytes_per_second=10, burst_seconds=10, on_excess=OnExcess.OBSERVE))
    shard = Shard(engine, one_namespace(rules))
    assert shard.batch(0, [(NS, 90), (NS, 90)]) == [ADMITTED, ADMITTED]
    assert shard.batch(0, [(NS, 90)]) == [by_quota(Verdict.ADMIT, 17_000)]
    assert shard.batch(5_000, [(NS, 0)]) == [by_quota(Verdict.ADMIT, 12_000)]
    assert shard.plan.usage[NS].observed_messages == 1


def test_message_larger_than_the_burst_passes_into_debt(engine: str) -> None:
    # 10 bytes a second, burst 10: 1,000 bytes leave -990, repaid in 99 s.
    shard = Shard(engine, one_namespace(Namespace(limit(bytes_per_second=10))))
    assert shard.batch(0, [(NS, 1_000), (NS, 1_000)]) == [ADMITTED, by_quota(Verdict.DELAY, 99_000)]
    assert shard.batch(98_999) == [by_quota(Verdict.DELAY, 1)]
    assert shard.batch(99_000) == [ADMITTED]


def test_fifth_of_a_message_a_second(engine: str) -> None:
    # 0.2/s and a burst of one: the first takes the token, the second goes into debt, one more each 5 s.
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=0.2, burst_seconds=5))))
    waits = by_quota(Verdict.DELAY, 5_000, Dimension.MESSAGES)
    assert shard.batch(0, [(NS, 9)] * 4) == [ADMITTED, ADMITTED, waits, waits]
    assert shard.batch(4_999) == [replace(waits, throttle_time_ms=1)] * 2
    assert shard.batch(5_000) == [ADMITTED, waits]


@pytest.mark.parametrize(
    ("on_excess", "verdict"),
    [(OnExcess.DELAY, Verdict.DELAY), (OnExcess.REJECT, Verdict.REJECT), (OnExcess.OBSERVE, Verdict.ADMIT)],
)
def test_rate_of_zero_never_admits(engine: str, on_excess: OnExcess, verdict: Verdict) -> None:
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=0, on_excess=on_excess))))
    assert shard.batch(0, [(NS, 1)]) == [by_quota(verdict, NEVER_MS, Dimension.MESSAGES)]
    year_later = shard.batch(365 * 86_400_000, [(NS, 1)])
    assert set(year_later) == {by_quota(verdict, NEVER_MS, Dimension.MESSAGES)}


def test_shared_scope_with_rate_zero_never_admits(engine: str) -> None:
    # Not even where tokens were granted, as an epoch older than the rate may have.
    shard = Shard(engine, make_policy(job=limit(messages_per_second=0)))
    refused = Decision(Verdict.DELAY, "quota", Level.JOB, Dimension.MESSAGES, 0, NEVER_MS)
    assert shard.batch(0, [(NS, 1)], {}) == [refused]
    assert shard.batch(1, [(NS, 1)], {"": (5, 5)}) == [refused, refused]


def test_clock_that_goes_back_refills_nothing(engine: str) -> None:
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    shard.batch(10_000, [(NS, 1)] * 3)
    assert shard.batch(4_000) == [by_quota(Verdict.DELAY, 1_000, Dimension.MESSAGES)]
    assert shard.batch(4_999) == [by_quota(Verdict.DELAY, 1, Dimension.MESSAGES)]
    assert shard.batch(5_000) == [ADMITTED]


def test_changed_quota_pays_the_gap_at_the_new_rate(engine: str) -> None:
    # 1/s leaves a debt of 4 bytes; 4 s later, at 10/s with burst 10, the balance is min(-4 + 40, 10).
    shard = Shard(engine, one_namespace(Namespace(limit(bytes_per_second=1))))
    shard.batch(0, [(NS, 5)])
    shard.policy = one_namespace(Namespace(limit(bytes_per_second=10)))
    shard.batch(4_000, [(NS, 7)])
    assert shard.plan.state.flows[NS].balance_micro[Dimension.BYTES] == 3 * 10**6


def test_full_namespace_is_forgotten(engine: str) -> None:
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=2))))
    shard.batch(0, [(NS, 1)])
    assert list(shard.plan.state.flows) == [NS]
    shard.batch(499)
    assert list(shard.plan.state.flows) == [NS]
    shard.batch(500)
    assert shard.plan.state.flows == {}


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
    engine: str, name: str | None, size_bytes: int | None, reason: str
) -> None:
    shard = Shard(engine, make_policy(default=Namespace(limit(messages_per_second=1, bytes_per_second=1))))
    assert shard.batch(0, [(name, size_bytes)]) == [Decision(Verdict.REJECT, reason)]
    assert shard.plan.state.flows == {}


def test_longest_name_and_largest_size_are_admitted(engine: str) -> None:
    shard = Shard(engine, make_policy())
    assert shard.batch(0, [("é" * 512, MAX_SIZE_BYTES), (NS, 0)]) == [ADMITTED, ADMITTED]


# Pegasus


def test_pegasus_delay_by_count(engine: str) -> None:
    # 20000*delay*100 on 4 partitions is 5,001 units: the 5,002nd request of a second waits 100 ms.
    shard = Shard(engine, one_namespace(Namespace(by_count=Window(delay_units=5_001, delay_ms=100))))
    waits = Decision(Verdict.DELAY, "throttling", Level.NAMESPACE, throttle_time_ms=100)
    decisions = shard.batch(0, [(NS, 1)] * 5_002)
    assert verdicts(decisions[:5_001]) == {Verdict.ADMIT: 5_001}
    assert [replace(decision, dimension=-1) for decision in decisions[5_001:]] == [waits]
    assert [decision.throttle_time_ms for decision in shard.batch(99)] == [1]
    assert shard.batch(100) == [ADMITTED]


def test_pegasus_reject_is_asked_before_delay(engine: str) -> None:
    # 20000*delay*100,20000*reject*200: at equal units delay never fires; the next second starts anew.
    rule = Window(delay_units=5_001, delay_ms=100, reject_units=5_001, reject_ms=200)
    shard = Shard(engine, one_namespace(Namespace(by_count=rule)))
    refused = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.MESSAGES, -1, 200)
    assert shard.batch(0, [(NS, 1)] * 5_003) == [ADMITTED] * 5_001 + [refused] * 2
    assert shard.batch(999, [(NS, 1)]) == [refused]
    assert shard.batch(1_000, [(NS, 1)]) == [ADMITTED]


def test_pegasus_rejected_row_gives_its_units_back(engine: str) -> None:
    # By size, 100 units: 60 pass, 50 more would be 110, 40 make exactly 100, and 1 is too much.
    shard = Shard(engine, one_namespace(Namespace(by_size=Window(reject_units=100, reject_ms=7))))
    refused = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.BYTES, -1, 7)
    assert shard.batch(0, [(NS, 60), (NS, 50), (NS, 40), (NS, 1)]) == [ADMITTED, refused, ADMITTED, refused]


def test_pegasus_row_rejected_by_size_does_not_count(engine: str) -> None:
    rules = Namespace(by_count=Window(reject_units=2, reject_ms=3), by_size=Window(reject_units=10, reject_ms=7))
    shard = Shard(engine, one_namespace(rules))
    by_size = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.BYTES, -1, 7)
    by_count = Decision(Verdict.REJECT, "throttling", Level.NAMESPACE, Dimension.MESSAGES, -1, 3)
    rows = [(NS, 1), (NS, 50), (NS, 50), (NS, 1), (NS, 50), (NS, 1)]
    assert shard.batch(0, rows) == [ADMITTED, by_size, by_size, ADMITTED, by_count, by_count]


def test_rows_behind_a_held_row_wait_for_it(engine: str) -> None:
    # The first row is held by size until 1,050 ms; the second has no time of its own, and may not overtake it.
    shard = Shard(engine, one_namespace(Namespace(by_size=Window(delay_units=10, delay_ms=1_050))))
    shard.batch(0, [(NS, 11)])
    decisions = shard.batch(1_000, [(NS, 1)])
    assert [(d.verdict, d.reason, d.throttle_time_ms) for d in decisions] == [
        (Verdict.DELAY, "throttling", 50),
        (Verdict.DELAY, "throttling", 0),
    ]


# Levels, grants, fairness


def test_weights_divide_a_group(engine: str) -> None:
    # 100 tokens for weights 1 and 3, both with more to send: 25 and 75, and one message of debt between them.
    policy = make_policy(
        groups={"gold": limit(messages_per_second=100)},
        namespaces={"a/x": Namespace(group="gold"), "b/y": Namespace(limit(weight=3), group="gold")},
    )
    shard = Shard(engine, policy)
    shard.batch(0, [("a/x", 1)] * 300 + [("b/y", 1)] * 300, {"gold": (100, 0)})
    total = shard.admitted()
    assert sum(total.values()) == 101
    for second in (1, 2, 3):
        shard.batch(second * 1_000, [], {"gold": (99, 0)})  # 100 less what was overdrawn
        total += shard.admitted()
    assert sum(total.values()) == 401
    assert abs(total["a/x"] * 3 - total["b/y"]) <= 3


def test_dominant_dimension_is_what_is_shared(engine: str) -> None:
    # 100 messages and 10,000 bytes a second: a message of 1,000 bytes takes 1/10 of the bytes, an empty one
    # 1/100 of the messages. They take turns 10 to 1, until 91 and 10 have used the messages up, by one in debt.
    policy = make_policy(
        groups={"gold": limit(messages_per_second=100, bytes_per_second=10_000)},
        default=Namespace(group="gold"),
    )
    shard = Shard(engine, policy)
    shard.batch(0, [("small", 0)] * 200 + [("large", 1_000)] * 20, {"gold": (100, 10_000)})
    assert shard.admitted() == {"small": 91, "large": 10}


def test_idle_share_goes_to_who_wants_it(engine: str) -> None:
    policy = make_policy(groups={"gold": limit(messages_per_second=10)}, default=Namespace(group="gold"))
    shard = Shard(engine, policy)
    shard.batch(0, [("a", 1)] * 2 + [("b", 1)] * 50, {"gold": (10, 0)})
    assert shard.admitted() == {"a": 2, "b": 9}


def test_narrowest_overdrawn_scope_is_named(engine: str) -> None:
    policy = make_policy(
        job=limit(messages_per_second=1_000),
        tenants={"acme": Tenant(limit(messages_per_second=50), group="gold")},
        groups={"gold": limit(messages_per_second=30, on_excess=OnExcess.REJECT)},
    )
    shard = Shard(engine, policy)
    # The tenant has 1 token, so 2 pass and leave it 1 in debt: 20 ms at 50 a second. The group has 5.
    decisions = shard.batch(0, [(NS, 1)] * 3, {"": (9, 0), "acme": (1, 0), "gold": (5, 0)})
    assert decisions == [ADMITTED, ADMITTED, Decision(Verdict.DELAY, "quota", Level.TENANT, Dimension.MESSAGES, 1, 20)]
    # Now the group is overdrawn and the tenant is not: arrivals are rejected, the queued row waits on.
    decisions = shard.batch(10, [(NS, 1)], {"": (9, 0), "acme": (5, 0), "gold": (-1.5, 0)})
    by_group = Decision(Verdict.DELAY, "quota", Level.RESOURCE_GROUP, Dimension.MESSAGES, 2, 50)
    assert decisions == [by_group, replace(by_group, verdict=Verdict.REJECT)]


def test_standing_grant_grows_by_the_shard_s_part_into_its_room(engine: str) -> None:
    # Rate 10/s in 2 shards is 5/s here. The grant is 0 and has room for 2 tokens.
    policy = make_policy(job=limit(messages_per_second=10))
    shard = Shard(engine, policy, shards=2)
    shard.state = granted(shard.state, policy, {"": (0, 0)}, now_ms=START_MS)
    shard.state.grants.headroom_micro[:] = 2 * 10**6
    waits = Decision(Verdict.DELAY, "quota", Level.JOB, Dimension.MESSAGES, 0, 200)
    assert shard.batch(0, [(NS, 1)] * 9) == [ADMITTED] + [waits] * 8
    assert shard.batch(200) == [ADMITTED] + [waits] * 7
    assert shard.batch(400) == [ADMITTED] + [waits] * 6
    assert verdicts(shard.batch(86_400_000)) == {Verdict.DELAY: 6}


def test_group_of_a_namespace(engine: str) -> None:
    groups = {name: limit(messages_per_second=1) for name in ("own", "tenants", "defaults")}
    policy = make_policy(
        groups=groups,
        tenants={"acme": Tenant(group="tenants")},
        namespaces={"acme/a": Namespace(group="own"), "acme/b": Namespace(), "blue/a": Namespace()},
        default=Namespace(group="defaults"),
    )
    shard = Shard(engine, policy)
    shard.batch(0, [(name, 1) for name in ("acme/a", "acme/b", "acme/c", "blue/a", "blue/b", "acme")], {})
    groups_found = {name: usage.group for name, usage in shard.plan.usage.items()}
    assert groups_found == {"acme/a": 0, "acme/b": 1, "acme/c": 1, "blue/a": -1, "blue/b": 2, "acme": 1}


# The queue


def test_queue_keeps_what_fits_in_the_shards_part(engine: str) -> None:
    # 5 messages in 2 shards are 2 here: the first waiting row of each of two namespaces, not two of one.
    bounds = replace(UNBOUNDED_QUEUE, messages=5)
    policy = make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds)
    shard = Shard(engine, policy, shards=2)
    full = Decision(Verdict.REJECT, "queue_full")
    decisions = shard.batch(0, [("a", 1), ("a", 1), ("b", 1), ("b", 1)])
    assert [decision.verdict for decision in decisions] == [
        Verdict.DELAY,
        Verdict.REJECT,
        Verdict.DELAY,
        Verdict.REJECT,
    ]
    assert decisions[1] == full
    assert shard.batch(1, [("c", 1)])[2:] == [full]
    assert [row.namespace for row in shard.plan.state.queue] == ["a", "b"]


def test_queue_bound_in_bytes_ends_with_the_first_that_does_not_fit(engine: str) -> None:
    bounds = replace(UNBOUNDED_QUEUE, bytes=10)
    policy = make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds)
    shard = Shard(engine, policy)
    decisions = shard.batch(0, [("a", 6), ("a", 5), ("a", 1)])
    assert [decision.verdict for decision in decisions] == [Verdict.DELAY, Verdict.REJECT, Verdict.REJECT]


def test_queue_that_must_not_overflow_fails(engine: str) -> None:
    bounds = replace(UNBOUNDED_QUEUE, messages=1, on_overflow=Overflow.FAIL)
    shard = Shard(engine, make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds))
    shard.batch(0, [("a", 1)])
    with pytest.raises(QueueOverflowError) as failure:
        shard.batch(1, [("b", 1)])
    assert (failure.value.waiting_messages, failure.value.bound_messages) == (2, 1)


def test_row_that_waited_too_long_is_rejected(engine: str) -> None:
    bounds = replace(UNBOUNDED_QUEUE, age_ms=1_000)
    shard = Shard(engine, make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds))
    shard.batch(0, [("a", 1)])
    assert verdicts(shard.batch(1_000)) == {Verdict.DELAY: 1}
    assert shard.batch(1_001) == [Decision(Verdict.REJECT, "queue_age")]


def test_queued_row_waits_on_where_arrivals_are_rejected(engine: str) -> None:
    delays = limit(messages_per_second=1)
    shard = Shard(engine, one_namespace(Namespace(delays)))
    shard.batch(0, [(NS, 1)] * 3)
    shard.policy = one_namespace(Namespace(Limit(delays.rate_micro_per_ms, delays.burst_micro, OnExcess.REJECT)))
    refused = by_quota(Verdict.REJECT, 500, Dimension.MESSAGES)
    assert shard.batch(500, [(NS, 1)]) == [replace(refused, verdict=Verdict.DELAY), refused]


def test_delayed_time_is_told_when_a_row_leaves(engine: str) -> None:
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    shard.batch(0, [(NS, 5)] * 3)
    shard.batch(1_500)
    assert shard.plan.usage[NS].delayed_ms == 1_500
    assert shard.plan.usage[NS].admitted == (1, 5)
