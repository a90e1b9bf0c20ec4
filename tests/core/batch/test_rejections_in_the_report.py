"""A report says which rows were rejected and why, what holds the others, and which row has waited longest."""

from __future__ import annotations

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.decisions import Reason
from spark_throttle.core.quota import MICRO, Dimension, Level, OnExcess, Overflow, QueueBounds
from spark_throttle.core.state import DeciderState
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from tests.oracle.worlds import Namespace, Tenant, limit, make_arrivals, make_policy

POLICY = make_policy(
    namespaces={
        "acme/strict": Namespace(limit(messages_per_second=1, burst_seconds=1, on_excess=OnExcess.REJECT)),
        "acme/shut": Namespace(limit(messages_per_second=0)),
    },
    queue=QueueBounds(5, 2**28, 10_000, Overflow.REJECT),
)


def test_rejected_rows_are_counted_by_reason_whatever_rejected_them() -> None:
    rows = [("acme/strict", 1)] * 4 + [("acme/shut", 1)] * 7 + [("", 1), ("acme/strict", -1)]
    plan = plan_admission(DeciderState.initial(POLICY), make_arrivals(rows), POLICY, now_ms=1_000)
    found = plan.usage.rejected_by_reason
    counts = {reason: found[reason] for reason in Reason if found[reason]}
    # A burst of one, and one message on credit (KIP-599); five of seven rows fit into the queue.
    assert counts == {
        Reason.QUOTA: 2, Reason.QUEUE_FULL: 2, Reason.NAMESPACE_MISSING: 1, Reason.SIZE_NEGATIVE: 1
    }  # fmt: skip
    assert sum(found) == plan.usage.rejected[:, 0].sum() + plan.usage.invalid_messages


def test_age_of_the_oldest_waiting_row_grows_until_it_expires() -> None:
    state, ages = DeciderState.initial(POLICY), []
    for now_ms, count in ((1_000, 2), (4_000, 1), (11_000, 0), (11_001, 0), (14_001, 0)):
        plan = plan_admission(state, make_arrivals([("acme/shut", 1)] * count), POLICY, now_ms=now_ms)
        state = plan.state
        ages.append(None if plan.usage.oldest_ms is None else plan.usage.oldest_ms.tolist())
    assert ages == [[0], [3_000], [10_000], [7_001], None]


def test_oldest_waiting_row_is_not_the_first_where_the_clock_was_set_back() -> None:
    state, ages = DeciderState.initial(POLICY), []
    for now_ms, count in ((100_000, 1), (80_000, 1), (81_000, 0)):
        plan = plan_admission(state, make_arrivals([("acme/shut", 1)] * count), POLICY, now_ms=now_ms)
        state = plan.state
        ages.append([] if plan.usage.oldest_ms is None else plan.usage.oldest_ms.tolist())
    assert ages == [[0], [0], [1_000]]


def test_what_holds_a_namespace_is_said_where_somebody_is_held() -> None:
    policy = make_policy(tenants={"acme": Tenant(limit(bytes_per_second=10))})
    state = DeciderState.initial(policy)
    held = [plan_admission(state, make_arrivals([("acme/x", 100)] * n), policy, now_ms=0).usage.held_by for n in (1, 2)]
    assert [each if each is None else each.tolist() for each in held] == [None, [[Level.TENANT, Dimension.BYTES]]]


def test_quotas_grant_what_they_earn_since_the_batch_before() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=100, bytes_per_second=5_000)))
    state = plan_admission(DeciderState.initial(policy), make_arrivals([("a/x", 1)] * 9), policy, now_ms=1_000).state
    granted = plan_admission(state, make_arrivals([("a/x", 1)]), policy, now_ms=4_000).usage.granted_micro
    assert granted is not None
    assert granted[:, :2].tolist() == [[300 * MICRO, 15_000 * MICRO]]


def test_who_may_send_half_of_its_rows_still_wants_a_byte_if_they_have_one() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=2)))
    state = plan_admission(DeciderState.initial(policy), make_arrivals([("a/x", 1)]), policy, now_ms=1_000).state
    rows = [("a/x", 1), *[("a/x", 0)] * 19]
    (wanted,) = plan_admission(state, make_arrivals(rows), policy, now_ms=2_000).usage.demand.tolist()
    assert 0 < wanted[Dimension.MESSAGES] < 20
    assert wanted[Dimension.BYTES] == 1


def test_rows_that_a_throttling_string_holds_are_due_at_their_release_and_want_nothing_before() -> None:
    policy = compile_policy(parse_document({
        "job": {"publish": {"messages_per_second": 1_000}},
        "namespaces": {"a/x": {"write_throttling": "1*delay*500"}},
    }), "publish")  # fmt: skip
    state = plan_admission(DeciderState.initial(policy), make_arrivals([("a/x", 1)]), policy, now_ms=1_000).state
    usage = plan_admission(state, make_arrivals([("a/x", 1)] * 5), policy, now_ms=1_100).usage
    assert usage.due_ms == 1_600
    assert usage.waiting[:, 0].tolist() == [5]
    assert not usage.demand.any()
