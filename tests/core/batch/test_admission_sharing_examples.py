"""Worked numbers of what is shared and of the queue, for the kernel and for the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from spark_throttle.core.quota import (
    MICRO,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Overflow,
    QueueBounds,
    Verdict,
)
from spark_throttle.core.state import NO_BOUND, Deferral
from spark_throttle.errors import QueueOverflowError
from spark_throttle.testing.oracle.reference_usage import Decision
from spark_throttle.testing.oracle.shard import START_MS, Engine, Shard
from spark_throttle.testing.oracle.worlds import (
    UNBOUNDED_QUEUE,
    Limit,
    Namespace,
    Tenant,
    Window,
    granted,
    limit,
    make_policy,
)
from tests.core.batch.worked_numbers import ADMITTED, NS, by_quota, one_namespace, verdicts

pytestmark = pytest.mark.parametrize("engine", get_args(Engine))


def test_weights_divide_a_group(engine: Engine) -> None:
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


def test_whole_rate_repays_what_a_batch_has_overdrawn(engine: Engine) -> None:
    # 1,000 bytes a second in 8 shards. One has 125 and admits 60,125: the group owes 60,000, which takes it 60 s.
    # The next epoch has told all shards their part of 59,000, and each repays it from its part of the rate.
    policy = make_policy(groups={"gold": limit(bytes_per_second=1_000)}, default=Namespace(group="gold"))
    shard = Shard(engine, policy, shards=8)
    assert shard.batch(0, [(NS, 60_125), (NS, 1)], {"gold": (0, 125)})[1].throttle_time_ms == 60_000
    assert shard.batch(1_000, [], {"gold": (0, -59_000 / 8)})[0].throttle_time_ms == 59_000


@pytest.mark.parametrize("level", ["namespace", "job", "namespace and job"])
def test_throttle_time_is_the_longest_of_all_debts(engine: Engine, level: str) -> None:
    # 1 message and 1,000 bytes a second; two messages and 100,000 bytes leave debts of 1 s and of 99 s.
    messages, both = limit(messages_per_second=1), limit(messages_per_second=1, bytes_per_second=1_000)
    own, job = {"namespace": (both, Limit()), "job": (Limit(), both)}.get(
        level, (messages, limit(bytes_per_second=1_000))
    )
    shard = Shard(engine, make_policy(job=job, default=Namespace(own)))
    decisions = shard.batch(0, [(NS, 0), (NS, 100_000), (NS, 1)], {"": (1, 1_000)})
    assert [decision.verdict for decision in decisions] == [Verdict.ADMIT, Verdict.ADMIT, Verdict.DELAY]
    assert decisions[2].throttle_time_ms == 99_000


def test_slow_rate_is_divided_among_many_shards(engine: Engine) -> None:
    # One message in 200 s, in 8 shards: a part of the rate is less than a micro-token a millisecond.
    shard = Shard(engine, make_policy(job=limit(messages_per_second=0.005)), shards=8)
    shard.batch(0, [], {"": (-1 / 8, 0)})
    shard.state.grants.headroom_micro[0] = 10**6
    assert shard.batch(1_000, [(NS, 1)])[0].throttle_time_ms == 199_000
    assert shard.batch(199_000)[0].throttle_time_ms == 1_000
    assert shard.batch(200_000) == [ADMITTED]


def test_share_is_never_more_than_a_quota_that_was_lowered(engine: Engine) -> None:
    # The job still has a share of 1,000 a second, of a quota that is 1 a second by now.
    shard = Shard(engine, make_policy(job=limit(messages_per_second=1, burst_seconds=600)))
    grants = granted(shard.state, shard.policy, {"": (-1, 0)}, now_ms=START_MS).grants
    grants.headroom_micro[0] = 600 * 10**6
    shard.state = replace(shard.state, grants=replace(grants, share_micro_per_ms=np.array([[1_000_000, -1]])))
    assert shard.batch(0, [(NS, 1)] * 5)[0].throttle_time_ms == 1_000
    assert verdicts(shard.batch(2_000)) == {Verdict.ADMIT: 2, Verdict.DELAY: 3}


def test_dominant_dimension_is_what_is_shared(engine: Engine) -> None:
    # 100 messages and 10,000 bytes a second: a message of 1,000 bytes takes 1/10 of the bytes, an empty one
    # 1/100 of the messages. They take turns 10 to 1, until 91 and 10 have used the messages up, by one in debt.
    policy = make_policy(
        groups={"gold": limit(messages_per_second=100, bytes_per_second=10_000)},
        default=Namespace(group="gold"),
    )
    shard = Shard(engine, policy)
    shard.batch(0, [("small", 0)] * 200 + [("large", 1_000)] * 20, {"gold": (100, 10_000)})
    assert shard.admitted() == {"small": 91, "large": 10}


def test_idle_share_goes_to_who_wants_it(engine: Engine) -> None:
    policy = make_policy(groups={"gold": limit(messages_per_second=10)}, default=Namespace(group="gold"))
    shard = Shard(engine, policy)
    shard.batch(0, [("a", 1)] * 2 + [("b", 1)] * 50, {"gold": (10, 0)})
    assert shard.admitted() == {"a": 2, "b": 9}


def test_narrowest_overdrawn_scope_is_named(engine: Engine) -> None:
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


def test_standing_grant_grows_by_the_shard_s_part_into_its_room(engine: Engine) -> None:
    # Rate 10/s in 2 shards is 5/s here. The grant is 0 and has room for 2 tokens. A message that overdraws it is owed
    # by the job, which repays it in 100 ms; as long as no epoch tells, it takes this shard 200.
    policy = make_policy(job=limit(messages_per_second=10))
    shard = Shard(engine, policy, shards=2)
    shard.state = granted(shard.state, policy, {"": (0, 0)}, now_ms=START_MS)
    shard.state.grants.headroom_micro[:] = 2 * 10**6
    waits = Decision(Verdict.DELAY, "quota", Level.JOB, Dimension.MESSAGES, 0, 100)
    assert shard.batch(0, [(NS, 1)] * 9) == [ADMITTED] + [waits] * 8
    assert shard.batch(200) == [ADMITTED] + [waits] * 7
    assert shard.batch(400) == [ADMITTED] + [waits] * 6
    assert verdicts(shard.batch(86_400_000)) == {Verdict.DELAY: 6}


def test_group_of_a_namespace(engine: Engine) -> None:
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


def test_queue_keeps_what_fits_in_the_shards_part(engine: Engine) -> None:
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


def test_queue_bound_in_bytes_ends_with_the_first_that_does_not_fit(engine: Engine) -> None:
    bounds = replace(UNBOUNDED_QUEUE, bytes=10)
    policy = make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds)
    shard = Shard(engine, policy)
    decisions = shard.batch(0, [("a", 6), ("a", 5), ("a", 1)])
    assert [decision.verdict for decision in decisions] == [Verdict.DELAY, Verdict.REJECT, Verdict.REJECT]


def test_queue_that_must_not_overflow_fails(engine: Engine) -> None:
    bounds = replace(UNBOUNDED_QUEUE, messages=1, on_overflow=Overflow.FAIL)
    shard = Shard(engine, make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds))
    shard.batch(0, [("a", 1)])
    with pytest.raises(QueueOverflowError) as failure:
        shard.batch(1, [("b", 1)])
    assert (failure.value.waiting_messages, failure.value.bound_messages) == (2, 1)


def test_row_that_waited_too_long_is_rejected(engine: Engine) -> None:
    bounds = replace(UNBOUNDED_QUEUE, age_ms=1_000)
    shard = Shard(engine, make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds))
    shard.batch(0, [("a", 1)])
    assert verdicts(shard.batch(1_000)) == {Verdict.DELAY: 1}
    assert shard.batch(1_001) == [Decision(Verdict.REJECT, "queue_age")]


def test_queued_row_waits_on_where_arrivals_are_rejected(engine: Engine) -> None:
    delays = limit(messages_per_second=1)
    shard = Shard(engine, one_namespace(Namespace(delays)))
    shard.batch(0, [(NS, 1)] * 3)
    shard.policy = one_namespace(Namespace(Limit(delays.rate_micro_per_ms, delays.burst_micro, OnExcess.REJECT)))
    refused = by_quota(Verdict.REJECT, 500, Dimension.MESSAGES)
    assert shard.batch(500, [(NS, 1)]) == [replace(refused, verdict=Verdict.DELAY), refused]


def test_delayed_time_is_told_when_a_row_leaves(engine: Engine) -> None:
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    shard.batch(0, [(NS, 5)] * 3)
    shard.batch(1_500)
    assert shard.plan.usage[NS].delayed_ms == 1_500
    assert shard.plan.usage[NS].admitted == (1, 5)


def shut(*, messages: int = UNBOUNDED_QUEUE.messages, size_bytes: int = UNBOUNDED_QUEUE.bytes) -> CompiledPolicy:
    """Return a policy under which all that comes waits."""
    bounds = replace(UNBOUNDED_QUEUE, messages=messages, bytes=size_bytes)
    return make_policy(default=Namespace(limit(messages_per_second=0)), queue=bounds)


def test_rows_that_wait_make_room_for_those_of_others(engine: Engine) -> None:
    shard = Shard(engine, shut(messages=4))
    full = Decision(Verdict.REJECT, "queue_full")
    shard.batch(0, [("a", 1), ("a", 2), ("a", 3), ("a", 4)])
    decisions = shard.batch(1, [("b", 7), ("a", 5), ("c", 8)])
    assert [at for at, decision in enumerate(decisions) if decision == full] == [2, 3, 5]
    assert verdicts(decisions) == {Verdict.DELAY: 4, Verdict.REJECT: 3}
    assert [(row.namespace, row.size_bytes) for row in shard.plan.state.queue] == [
        ("a", 1),
        ("a", 2),
        ("b", 7),
        ("c", 8),
    ]
    usage = shard.plan.usage["a"]
    assert (usage.offered, usage.rejected, usage.waiting) == ((1, 5), (3, 12), (2, 3))
    assert usage.admitted == (0, 0)


def test_queue_is_cut_to_a_bound_that_shrank(engine: Engine) -> None:
    shard = Shard(engine, shut())
    shard.batch(0, [("a", 10)] * 5 + [("b", 10)])
    shard.policy = shut(messages=4)
    assert verdicts(shard.batch(1)) == {Verdict.DELAY: 4, Verdict.REJECT: 2}
    assert [row.namespace for row in shard.plan.state.queue] == ["a", "a", "a", "b"]
    shard.policy = shut(size_bytes=20)
    shard.batch(2)
    assert [row.namespace for row in shard.plan.state.queue] == ["a", "b"]
    shard.policy = shut(size_bytes=9)
    assert verdicts(shard.batch(3)) == {Verdict.REJECT: 2}
    assert not shard.plan.state.queue


def test_rows_held_until_later_make_room_too(engine: Engine) -> None:
    held = Namespace(by_count=Window(delay_units=1, delay_ms=900))
    policy = make_policy(
        namespaces={"held": held}, default=Namespace(limit(messages_per_second=0)),
        queue=replace(UNBOUNDED_QUEUE, messages=3),
    )  # fmt: skip
    shard = Shard(engine, policy)
    assert verdicts(shard.batch(0, [("held", 1)] * 4)) == {Verdict.ADMIT: 1, Verdict.DELAY: 3}
    decisions = shard.batch(100, [("b", 1)])
    assert decisions[2] == Decision(Verdict.REJECT, "queue_full")
    assert verdicts(decisions) == {Verdict.DELAY: 3, Verdict.REJECT: 1}
    assert verdicts(shard.batch(900)) == {Verdict.ADMIT: 2, Verdict.DELAY: 1}


def undecided(
    engine: Engine, *, room_tokens: int, queue: QueueBounds, namespaces: Mapping[str, Namespace] | None = None
) -> Shard:
    """Return a shard that lacks tokens of a job's quota, and where rows may wait for some that other shards have."""
    quota = limit(messages_per_second=10, on_excess=OnExcess.REJECT)
    shard = Shard(engine, make_policy(job=quota, namespaces=namespaces or {}, queue=queue))
    grants = granted(shard.state, shard.policy, {"": (-1 / MICRO, 0)}, now_ms=START_MS).grants
    room = Deferral(np.array([[room_tokens * MICRO, 0]]), np.array([[NO_BOUND, NO_BOUND]]))
    shard.state = replace(shard.state, grants=replace(grants, deferral=room))
    return shard


def test_row_that_is_too_large_for_the_queue_takes_no_token_that_others_wait_for(engine: Engine) -> None:
    shard = undecided(engine, room_tokens=3, queue=replace(UNBOUNDED_QUEUE, bytes=100))
    shard.batch(0, [(f"large-{i}", 101) for i in range(5)] + [(f"small-{i}", 10) for i in range(3)])
    assert {row.namespace for row in shard.plan.state.queue} == {"small-0", "small-1", "small-2"}


def test_rows_of_some_that_overfill_the_queue_leave_those_of_others_their_wait_for_a_verdict(engine: Engine) -> None:
    # 100 bytes for 5 x 60 and 3 x 10: the small ones wait, and one that is large.
    shard = undecided(engine, room_tokens=50, queue=replace(UNBOUNDED_QUEUE, bytes=100))
    decisions = shard.batch(0, [(f"large-{i}", 60) for i in range(5)] + [(f"small-{i}", 10) for i in range(3)])
    assert sorted(row.size_bytes for row in shard.plan.state.queue) == [10, 10, 10, 60]
    assert verdicts(decisions) == {Verdict.DELAY: 4, Verdict.REJECT: 4}
    assert {decision.reason for decision in decisions} == {"quota"}


def test_rows_that_wait_for_their_verdict_take_only_the_room_that_others_leave(engine: Engine) -> None:
    # Time holds the second row of b: it waits in any case, and leaves two of three places to rows without a verdict.
    held = Namespace(by_count=Window(delay_units=1, delay_ms=900))
    queue = replace(UNBOUNDED_QUEUE, messages=3)
    shard = undecided(engine, room_tokens=50, queue=queue, namespaces={"b": held})
    decisions = shard.batch(0, [("a", 1)] * 5 + [("b", 1)] * 2)
    assert Counter(row.namespace for row in shard.plan.state.queue) == {"a": 1, "b": 2}
    assert {decision.reason for decision in decisions} == {"quota", "throttling"}


def test_rows_that_wait_for_a_share_of_the_job_are_bounded_as_delayed_rows_are(engine: Engine) -> None:
    shard = undecided(engine, room_tokens=0, queue=replace(UNBOUNDED_QUEUE, bytes=100))
    shard.state = replace(shard.state, grants=replace(shard.state.grants, share_micro_per_ms=np.array([[0, -1]])))
    decisions = shard.batch(0, [("a", 101), ("b", 60), ("c", 60), ("d", 10)])
    assert [row.size_bytes for row in shard.plan.state.queue] == [60, 10]
    assert Counter(decision.reason for decision in decisions) == {"quota": 2, "queue_full": 2}


def test_what_leaves_now_takes_no_room(engine: Engine) -> None:
    # The first of a leaves, so that its second is the head of what waits.
    bounds = replace(UNBOUNDED_QUEUE, messages=2)
    policy = make_policy(default=Namespace(limit(messages_per_second=1, burst_seconds=1)), queue=bounds)
    shard = Shard(engine, policy)
    assert verdicts(shard.batch(0, [("a", 1)] * 4)) == {Verdict.ADMIT: 2, Verdict.DELAY: 2}
    decisions = shard.batch(1_000, [("b", 1)] * 3)
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
    shard = Shard(engine, make_policy(default=rules, queue=queue))
    shard.batch(0, [("a", 1)] * 2)
    shard.policy = make_policy(default=rules, queue=replace(queue, messages=1))
    assert verdicts(shard.batch(1)) == {Verdict.DELAY: 2}


def test_delayed_time_is_not_negative_when_the_clock_went_back(engine: Engine) -> None:
    shard = Shard(engine, one_namespace(Namespace(limit(messages_per_second=1))))
    shard.batch(1_000, [(NS, 5)] * 3)
    shard.policy = one_namespace(Namespace())
    shard.batch(0)
    assert shard.plan.usage[NS].admitted == (1, 5)
    assert shard.plan.usage[NS].delayed_ms == 0
