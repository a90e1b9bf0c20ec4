"""Worked numbers of what is shared and of the queue, for the kernel and for the oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from spark_throttle.core.quota import (
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Overflow,
    Verdict,
)
from spark_throttle.core.state import DeciderState
from spark_throttle.errors import QueueOverflowError
from tests.core.batch.worked_numbers import ADMITTED, NS, by_quota, one_namespace, verdicts
from tests.oracle.decider import START_MS, Decider, Engine
from tests.oracle.reference_usage import Decision
from tests.oracle.worlds import (
    UNBOUNDED_QUEUE,
    Limit,
    Namespace,
    Tenant,
    Window,
    limit,
    make_policy,
)

pytestmark = pytest.mark.parametrize("engine", get_args(Engine))


def shut(*, messages: int = UNBOUNDED_QUEUE.messages, size_bytes: int = UNBOUNDED_QUEUE.bytes) -> CompiledPolicy:
    """Return a policy under which all that comes waits."""
    bounds = replace(UNBOUNDED_QUEUE, messages=messages, bytes=size_bytes)
    return make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds)


def with_share(engine: Engine, policy: CompiledPolicy, share_micro_per_ms: int) -> Decider:
    """Return a decider that begins with a share of the messages of the job's quota."""
    decider = Decider(engine, policy)
    share = np.array([[share_micro_per_ms, UNLIMITED, UNLIMITED, UNLIMITED]])
    decider.state = DeciderState.initial(policy, share, now_ms=START_MS)
    return decider


def test_weights_divide_a_group(engine: Engine) -> None:
    # 100 tokens for weights 1 and 3, both with more to send: 25 and 75, and one message of debt between them.
    policy = make_policy(
        groups={"gold": limit(messages_per_second=100)},
        namespaces={"a/x": Namespace(group="gold"), "a/y": Namespace(limit(weight=3), group="gold")},
    )
    decider = Decider(engine, policy)
    decider.batch(0, [("a/x", 1)] * 300 + [("a/y", 1)] * 300)
    total = decider.admitted()
    assert sum(total.values()) == 101
    for second in (1, 2, 3):
        decider.batch(second * 1_000)
        total += decider.admitted()
    assert sum(total.values()) == 401
    assert abs(total["a/x"] * 3 - total["a/y"]) <= 3


@pytest.mark.parametrize("level", ["namespace", "job", "namespace and job"])
def test_throttle_time_is_the_longest_of_all_debts(engine: Engine, level: str) -> None:
    # 1 message and 1,000 bytes a second; two messages and 100,000 bytes leave debts of 1 s and of 99 s.
    messages, both = limit(messages_per_second=1), limit(messages_per_second=1, bytes_per_second=1_000)
    own, job = {"namespace": (both, Limit()), "job": (Limit(), both)}.get(
        level, (messages, limit(bytes_per_second=1_000))
    )
    decider = Decider(engine, make_policy(job=job, default=Namespace(own)))
    decisions = decider.batch(0, [(NS, 0), (NS, 100_000), (NS, 1)])
    assert [decision.verdict for decision in decisions] == [Verdict.ADMIT, Verdict.ADMIT, Verdict.DELAY]
    assert decisions[2].throttle_time_ms == 99_000


def test_share_is_never_more_than_a_quota_that_was_lowered(engine: Engine) -> None:
    # The job still has a share of 1,000 a second, of a quota that is 1 a second by now.
    decider = with_share(engine, make_policy(job=limit(messages_per_second=1, burst_seconds=600)), 1_000_000)
    assert decider.batch(0, [(NS, 1)] * 5, {"": (-1, 0)})[0].throttle_time_ms == 1_000
    assert verdicts(decider.batch(2_000)) == {Verdict.ADMIT: 2, Verdict.DELAY: 3}


def test_idle_share_goes_to_who_wants_it(engine: Engine) -> None:
    policy = make_policy(groups={"gold": limit(messages_per_second=10)}, default=Namespace(group="gold"))
    decider = Decider(engine, policy)
    decider.batch(0, [("a", 1)] * 2 + [("b", 1)] * 50)
    assert decider.admitted() == {"a": 2, "b": 9}


def test_narrowest_overdrawn_scope_is_named(engine: Engine) -> None:
    policy = make_policy(
        job=limit(messages_per_second=1_000),
        tenants={"acme": Tenant(limit(messages_per_second=50), group="gold")},
        groups={"gold": limit(messages_per_second=30, on_excess=OnExcess.REJECT)},
    )
    decider = Decider(engine, policy)
    # The tenant has 1 token, so 2 pass and leave it 1 in debt: 20 ms at 50 a second. The group has 5.
    decisions = decider.batch(0, [(NS, 1)] * 3, {"": (9, 0), "acme": (1, 0), "gold": (5, 0)})
    assert decisions == [ADMITTED, ADMITTED, Decision(Verdict.DELAY, "quota", Level.TENANT, Dimension.MESSAGES, 1, 20)]
    # Now the group is overdrawn and the tenant is not: arrivals are rejected, the queued row waits on.
    decisions = decider.batch(10, [(NS, 1)], {"": (9, 0), "acme": (5, 0), "gold": (-1.5, 0)})
    by_group = Decision(Verdict.DELAY, "quota", Level.RESOURCE_GROUP, Dimension.MESSAGES, 2, 50)
    # The queued row goes before the one that is rejected: 2.5 messages at 30 a second.
    assert decisions == [by_group, replace(by_group, verdict=Verdict.REJECT, throttle_time_ms=84)]


def test_shared_bucket_earns_at_its_rate_up_to_its_burst(engine: Engine) -> None:
    # 10 a second and a burst of 2. It holds nothing, so that one message overdraws it, which is repaid in 100 ms.
    decider = Decider(engine, make_policy(job=limit(messages_per_second=10, burst_seconds=0.2)))
    waits = Decision(Verdict.DELAY, "quota", Level.JOB, Dimension.MESSAGES, 0, 100)
    assert decider.batch(0, [(NS, 1)] * 9, {"": (0, 0)}) == [ADMITTED] + [waits] * 8
    assert decider.batch(100) == [ADMITTED] + [waits] * 7
    assert decider.batch(200) == [ADMITTED] + [waits] * 6
    assert verdicts(decider.batch(86_400_000)) == {Verdict.ADMIT: 3, Verdict.DELAY: 3}


def test_share_of_a_quota_earns_at_its_rate_up_to_its_part_of_the_burst(engine: Engine) -> None:
    # Half of 4 a second and of a burst of 4: 2 at first and one in debt, which is repaid in 500 ms.
    decider = with_share(engine, make_policy(job=limit(messages_per_second=4)), 2_000)
    waits = Decision(Verdict.DELAY, "quota", Level.JOB, Dimension.MESSAGES, 0, 500)
    assert decider.batch(0, [(NS, 1)] * 9) == [ADMITTED] * 3 + [waits] * 6
    assert decider.batch(500) == [ADMITTED] + [waits] * 5
    assert verdicts(decider.batch(86_400_000)) == {Verdict.ADMIT: 3, Verdict.DELAY: 2}


@pytest.mark.parametrize(
    ("quota", "share", "verdict"), [(10, 0, Verdict.DELAY), (0, 0, Verdict.REJECT), (10, 1, Verdict.REJECT)]
)
def test_arrivals_wait_for_a_rejecting_scope_only_while_the_job_has_no_share_of_it(
    engine: Engine, quota: int, share: int, verdict: Verdict
) -> None:
    job = limit(messages_per_second=quota, on_excess=OnExcess.REJECT)
    decider = with_share(engine, make_policy(job=job), share)
    assert verdicts(decider.batch(0, [(NS, 1)] * 3, {"": (-1, 0)})) == {verdict: 3}


def test_group_of_a_namespace(engine: Engine) -> None:
    groups = {name: limit(messages_per_second=1) for name in ("own", "tenants", "defaults")}
    policy = make_policy(
        groups=groups,
        tenants={"acme": Tenant(group="tenants")},
        namespaces={"acme/a": Namespace(group="own"), "acme/b": Namespace(), "blue/a": Namespace()},
        default=Namespace(group="defaults"),
    )
    decider = Decider(engine, policy)
    decider.batch(0, [(name, 1) for name in ("acme/a", "acme/b", "acme/c", "blue/a", "blue/b", "acme")])
    groups_found = {name: usage.group for name, usage in decider.plan.usage.items()}
    assert groups_found == {"acme/a": 0, "acme/b": 1, "acme/c": 1, "blue/a": -1, "blue/b": 2, "acme": 1}


# The queue


def test_queue_that_is_full_keeps_the_first_waiting_row_of_each_namespace(engine: Engine) -> None:
    decider = Decider(engine, shut(messages=2))
    full = Decision(Verdict.REJECT, "queue_full")
    decisions = decider.batch(0, [("a", 1), ("a", 1), ("b", 1), ("b", 1)])
    assert verdicts(decisions[::2]) == {Verdict.DELAY: 2}
    assert decisions[1::2] == [full, full]
    assert decider.batch(1, [("c", 1)])[2:] == [full]
    assert [row.namespace for row in decider.plan.state.queue] == ["a", "b"]


def test_queue_bound_in_bytes_ends_with_the_first_that_does_not_fit(engine: Engine) -> None:
    bounds = replace(UNBOUNDED_QUEUE, bytes=10)
    policy = make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds)
    decider = Decider(engine, policy)
    decisions = decider.batch(0, [("a", 6), ("a", 5), ("a", 1)])
    assert [decision.verdict for decision in decisions] == [Verdict.DELAY, Verdict.REJECT, Verdict.REJECT]


def test_queue_that_must_not_overflow_fails(engine: Engine) -> None:
    bounds = replace(UNBOUNDED_QUEUE, messages=1, on_overflow=Overflow.FAIL)
    decider = Decider(engine, make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds))
    decider.batch(0, [("a", 1)])
    with pytest.raises(QueueOverflowError) as failure:
        decider.batch(1, [("b", 1)])
    assert (failure.value.waiting_messages, failure.value.bound_messages) == (2, 1)


def test_row_that_waited_too_long_is_rejected(engine: Engine) -> None:
    bounds = replace(UNBOUNDED_QUEUE, age_ms=1_000)
    decider = Decider(engine, make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds))
    decider.batch(0, [("a", 1)])
    assert verdicts(decider.batch(1_000)) == {Verdict.DELAY: 1}
    assert decider.batch(1_001) == [Decision(Verdict.REJECT, "queue_age")]


def test_queued_row_waits_on_where_arrivals_are_rejected(engine: Engine) -> None:
    delays = limit(messages_per_second=1)
    decider = Decider(engine, one_namespace(Namespace(delays)))
    decider.batch(0, [(NS, 1)] * 3)
    decider.policy = one_namespace(Namespace(Limit(delays.rate_micro_per_ms, delays.burst_micro, OnExcess.REJECT)))
    waits = by_quota(Verdict.DELAY, 500, Dimension.MESSAGES)
    assert decider.batch(500, [(NS, 1)]) == [waits, by_quota(Verdict.REJECT, 1_500, Dimension.MESSAGES)]


def test_delayed_time_is_told_when_a_row_leaves(engine: Engine) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    decider.batch(0, [(NS, 5)] * 3)
    decider.batch(1_500)
    assert decider.plan.usage[NS].delayed_ms == 1_500
    assert decider.plan.usage[NS].admitted == (1, 5, 0, 0)


def test_rows_that_wait_make_room_for_those_of_others(engine: Engine) -> None:
    decider = Decider(engine, shut(messages=4))
    full = Decision(Verdict.REJECT, "queue_full")
    decider.batch(0, [("a", 1), ("a", 2), ("a", 3), ("a", 4)])
    decisions = decider.batch(1, [("b", 7), ("a", 5), ("c", 8)])
    assert [at for at, decision in enumerate(decisions) if decision == full] == [2, 3, 5]
    assert verdicts(decisions) == {Verdict.DELAY: 4, Verdict.REJECT: 3}
    assert [(row.namespace, row.size_bytes) for row in decider.plan.state.queue] == [
        ("a", 1),
        ("a", 2),
        ("b", 7),
        ("c", 8),
    ]
    usage = decider.plan.usage["a"]
    assert (usage.offered, usage.rejected, usage.waiting) == ((1, 5, 0, 0), (3, 12, 0, 0), (2, 3, 0, 0))
    assert usage.admitted == (0, 0, 0, 0)


def test_queue_is_cut_to_a_bound_that_shrank(engine: Engine) -> None:
    decider = Decider(engine, shut())
    decider.batch(0, [("a", 10)] * 5 + [("b", 10)])
    decider.policy = shut(messages=4)
    assert verdicts(decider.batch(1)) == {Verdict.DELAY: 4, Verdict.REJECT: 2}
    assert [row.namespace for row in decider.plan.state.queue] == ["a", "a", "a", "b"]
    decider.policy = shut(size_bytes=20)
    decider.batch(2)
    assert [row.namespace for row in decider.plan.state.queue] == ["a", "b"]
    decider.policy = shut(size_bytes=9)
    assert verdicts(decider.batch(3)) == {Verdict.REJECT: 2}
    assert not decider.plan.state.queue


def test_rows_held_until_later_make_room_too(engine: Engine) -> None:
    held = Namespace(by_count=Window(delay_units=1, delay_ms=900))
    policy = make_policy(
        namespaces={"held": held}, default=Namespace(limit(messages_per_second=0)),
        queue=replace(UNBOUNDED_QUEUE, messages=3),
    )  # fmt: skip
    decider = Decider(engine, policy)
    assert verdicts(decider.batch(0, [("held", 1)] * 4)) == {Verdict.ADMIT: 1, Verdict.DELAY: 3}
    decisions = decider.batch(100, [("b", 1)])
    assert decisions[2] == Decision(Verdict.REJECT, "queue_full")
    assert verdicts(decisions) == {Verdict.DELAY: 3, Verdict.REJECT: 1}
    assert verdicts(decider.batch(900)) == {Verdict.ADMIT: 2, Verdict.DELAY: 1}


def test_rows_that_wait_for_a_share_of_the_job_are_bounded_as_delayed_rows_are(engine: Engine) -> None:
    job = limit(messages_per_second=10, on_excess=OnExcess.REJECT)
    decider = with_share(engine, make_policy(job=job, queue=replace(UNBOUNDED_QUEUE, bytes=100)), 0)
    decisions = decider.batch(0, [("a", 101), ("b", 60), ("c", 60), ("d", 10)])
    assert [row.size_bytes for row in decider.plan.state.queue] == [60, 10]
    assert Counter(decision.reason for decision in decisions) == {"quota": 2, "queue_full": 2}


def test_what_leaves_now_takes_no_room(engine: Engine) -> None:
    # The first of a leaves, so that its second is the head of what waits.
    bounds = replace(UNBOUNDED_QUEUE, messages=2)
    policy = make_policy(default=Namespace(limit(messages_per_second=1, burst_seconds=1)), queue=bounds)
    decider = Decider(engine, policy)
    assert verdicts(decider.batch(0, [("a", 1)] * 4)) == {Verdict.ADMIT: 2, Verdict.DELAY: 2}
    decisions = decider.batch(1_000, [("b", 1)] * 3)
    assert [decision.verdict for decision in decisions] == [
        Verdict.ADMIT,
        Verdict.DELAY,
        Verdict.ADMIT,
        Verdict.ADMIT,
        Verdict.DELAY,
    ]


def test_bound_that_shrank_fails_nothing_by_itself(engine: Engine) -> None:
    # Only a row that finds the queue full can fail it; what already waits may be more than a new bound allows.
    rules, queue = Namespace(limit(messages_per_second=0)), replace(UNBOUNDED_QUEUE, on_overflow=Overflow.FAIL)
    decider = Decider(engine, make_policy(default=rules, queue=queue))
    decider.batch(0, [("a", 1)] * 2)
    decider.policy = make_policy(default=rules, queue=replace(queue, messages=1))
    assert verdicts(decider.batch(1)) == {Verdict.DELAY: 2}


def test_delayed_time_is_not_negative_when_the_clock_went_back(engine: Engine) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    decider.batch(1_000, [(NS, 5)] * 3)
    decider.policy = one_namespace(Namespace())
    decider.batch(0)
    assert decider.plan.usage[NS].admitted == (1, 5, 0, 0)
    assert decider.plan.usage[NS].delayed_ms == 0


def test_who_owes_in_one_dimension_demands_nothing_in_any(engine: Engine) -> None:
    decider = Decider(engine, one_namespace(Namespace(limit(bytes_per_second=1))))
    decider.batch(0, [(NS, 1_000)])
    decider.batch(1, [(NS, 1)])  # of one byte, and of one message
    assert decider.plan.usage[NS].demand == (0, 0, 0, 0)
    decider.batch(2, [])
    assert decider.plan.usage[NS].demand == (0, 0, 0, 0)
