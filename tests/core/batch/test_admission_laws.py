"""The design's laws, each as a property of what the kernel did; none of them asks the oracle.

L3 (fairness) has a file of its own. L6 and L7 concern more than one batch's arithmetic: here, that a plan is a
function of its arguments alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.batch.reasons import TIME
from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, NEVER_MS, UNLIMITED, Dimension, Level, OnExcess, Verdict
from spark_throttle.core.state import DeciderState, Flows, Queue
from spark_throttle.testing.oracle.comparison import as_reference
from spark_throttle.testing.oracle.history import DecidedRow, History, PlayedBatch
from spark_throttle.testing.oracle.reference_rules import DIMENSIONS, rules_of
from spark_throttle.testing.oracle.reference_state import in_force
from spark_throttle.testing.oracle.strategies import histories
from spark_throttle.testing.oracle.worlds import make_arrivals

pytestmark = pytest.mark.slow

ENFORCED = (OnExcess.DELAY, OnExcess.REJECT)

# The oracle sees as many histories as the profile says; each law by itself sees fewer.
law = settings(max_examples=max(1, settings().max_examples // 3))


def by_flow(rows: list[DecidedRow]) -> dict[str, list[DecidedRow]]:
    """Return the rows of each namespace, in order."""
    flows: dict[str, list[DecidedRow]] = defaultdict(list)
    for row in rows:
        flows[row.namespace].append(row)
    return flows


def is_usable(row: DecidedRow) -> bool:
    """Return whether the row belongs to a flow at all."""
    # A size may also be over the bound of a scope, which rejects the row of a flow.
    return row.decision.level >= 0 or not row.decision.reason.startswith(("namespace_", "size_", "partition_"))


def l1_every_row_has_one_verdict_and_the_queue_is_what_is_delayed(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        rows = batch.rows
        assert len(rows) == len(batch.before.queue) + len(batch.step.arrivals)
        for row in rows:
            assert row.decision.verdict in Verdict
            if row.decision.verdict != Verdict.ADMIT:
                assert row.decision.reason
        after = batch.plan.state
        names = after.flows.names.to_pylist()
        queue = [
            (names[flow], size_bytes, arrival_ms)
            for flow, size_bytes, arrival_ms in zip(
                after.queue.flow, after.queue.size_bytes, after.queue.arrival_ms, strict=True
            )
        ]
        delayed = [row for row in rows if row.decision.verdict == Verdict.DELAY]
        assert queue == [(row.namespace, row.size_bytes, row.arrival_ms) for row in delayed]


def l1_usage_accounts_for_every_row(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        usage = batch.plan.usage
        flows = by_flow([row for row in batch.rows if is_usable(row)])
        assert sorted(usage.names.filter(pa.array(usage.is_active)).to_pylist()) == sorted(flows)
        assert usage.invalid_messages == sum(1 for row in batch.rows if not is_usable(row))
        for i, name in enumerate(usage.names.to_pylist()):
            flows.setdefault(name, [])
            for d in DIMENSIONS:
                found = sum(row.tokens[d] for row in flows[name])
                waited = sum(row.tokens[d] for row in flows[name] if not row.is_arrival)
                assert waited + usage.offered[i][d] == found
                assert usage.admitted[i][d] + usage.rejected[i][d] + usage.waiting[i][d] == found


def l2_namespace_never_passes_its_limit(batches: list[PlayedBatch]) -> None:
    """Admitted between any two batch times: at most the burst, the refill, and one message."""
    admitted: dict[str, list[tuple[int, list[DecidedRow]]]] = defaultdict(list)
    for batch in batches:
        for name, rows in by_flow([row for row in batch.rows if row.is_admitted]).items():
            admitted[name].append((batch.step.now_ms, rows))
    policy = batches[0].step.policy
    for name, served in admitted.items():
        limits = rules_of(policy, name).limits
        for d in limits.limited_dimensions:
            for first in range(len(served)):
                for last in range(first, len(served)):
                    elapsed_ms = served[last][0] - served[first][0]
                    tokens = [row.tokens[d] for _, rows in served[first : last + 1] for row in rows]
                    room_micro = limits.burst_micro[d] + limits.rate_micro_per_ms[d] * elapsed_ms
                    assert limits.rate_micro_per_ms[d] > 0
                    assert sum(tokens) * MICRO <= room_micro + max(tokens) * MICRO


def l2_shard_never_passes_its_grant(batches: list[PlayedBatch]) -> None:
    """Admitted of a shared scope in one epoch: at most the grant, its growth, and one message."""
    policy = batches[0].step.policy
    spent: dict[tuple[int, int], list[int]] = {}
    granted_by = batches[0].step.grants
    for batch in batches:
        if batch.step.grants is not None:
            granted_by, spent = batch.step.grants, {}
        assert granted_by is not None
        for row in batch.rows:
            if not row.is_admitted:
                continue
            for scope in rules_of(policy, row.namespace).shared:
                for d in scope.limited_dimensions:
                    spent.setdefault((scope.index, d), []).append(row.tokens[d])
        elapsed_ms = max(0, batch.step.now_ms - granted_by.as_of_ms)
        for at, tokens in spent.items():
            part = int(policy.shared.rate_micro_per_ms[at]) // batch.history.shards
            growth_micro = min(part * elapsed_ms, int(granted_by.headroom_micro[at]))
            room_micro = int(granted_by.balance_micro[at]) + growth_micro
            assert room_micro >= 0
            assert sum(tokens) * MICRO <= room_micro + max(tokens) * MICRO


@law
@given(histories(), st.randoms(use_true_random=False))
def test_every_law_holds_in_any_history(history: History, random: Random) -> None:
    """To draw a history and to play it costs more than a law of it."""
    batches = list(history.play())
    l1_every_row_has_one_verdict_and_the_queue_is_what_is_delayed(batches)
    l1_usage_accounts_for_every_row(batches)
    l4_a_shared_scope_that_holds_rows_is_used_up(batches)
    l5_admitted_rows_of_a_flow_come_first(batches)
    l8_balances_fall_by_exactly_what_is_admitted(batches)
    what_is_remembered_is_worth_remembering(batches)
    l6_a_plan_is_a_function_of_its_arguments(batches)
    flow_reports_a_time_to_leave_only_if_it_waits(batches)
    the_order_of_the_tables_decides_nothing(batches, random)


@law
@given(histories(on_excess=ENFORCED, monotone=True, one_policy=True))
def test_l2_no_limit_and_no_grant_is_passed(history: History) -> None:
    batches = list(history.play())
    l2_namespace_never_passes_its_limit(batches)
    l2_shard_never_passes_its_grant(batches)


@law
@given(histories(on_excess=ENFORCED))
def test_l2_debt_is_at_most_one_message(history: History) -> None:
    for batch in history.play():
        largest = [max((row.tokens[d] for row in batch.rows if row.is_admitted), default=0) for d in DIMENSIONS]
        flows = batch.plan.state.flows
        before = dict(zip(batch.before.flows.names.to_pylist(), batch.before.flows.balance_micro.tolist(), strict=True))
        for name, balance_micro in zip(flows.names.to_pylist(), flows.balance_micro.tolist(), strict=True):
            for d in DIMENSIONS:
                assert balance_micro[d] >= min(before.get(name, (0, 0))[d], -1, -largest[d] * MICRO)


def l4_a_shared_scope_that_holds_rows_is_used_up(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        grants = batch.plan.state.grants
        rate_micro_per_ms = in_force(batch.step.policy, grants.time).shared.rate_micro_per_ms
        for row in batch.rows:
            decision = row.decision
            if decision.level > Level.NAMESPACE and decision.reason == "quota":
                dimension = Dimension.MESSAGES if decision.dimension == TIME else decision.dimension
                assert rate_micro_per_ms[decision.scope, dimension] != UNLIMITED
                assert grants.balance_micro[decision.scope, dimension] < 0
                assert decision.throttle_time_ms > 0


@law
@given(histories(on_excess=(OnExcess.DELAY,), malformed=False))
def test_l4_what_nothing_holds_is_admitted(history: History) -> None:
    """A row waits only while a scope of its is overdrawn, or a row of its flow is held by Pegasus' rules."""
    for batch in history.play():
        after = as_reference(batch.plan, batch.step.policy).state
        time = batch.plan.state.grants.time
        no_time = set() if time is None else set(time.names.filter(pa.array(time.own.balance_micro < 0)).to_pylist())
        for name, rows in by_flow(batch.rows).items():
            waiting = [row for row in rows if row.decision.verdict == Verdict.DELAY]
            rules = rules_of(in_force(batch.step.policy, time), name)
            if (
                not waiting
                or name in no_time
                or rules.limits.is_shut_by_time
                or any(row.decision.reason == "throttling" for row in waiting)
            ):
                continue
            balances = [(rules.limits, after.flows[name].balance_micro)]
            balances += [(scope, after.grants[scope.index].balance_micro) for scope in rules.shared]
            assert any(balance[d] < 0 for limits, balance in balances for d in limits.limited_dimensions)


def l5_admitted_rows_of_a_flow_come_first(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        for rows in by_flow(batch.rows).values():
            kept = [row for row in rows if row.decision.verdict != Verdict.REJECT]
            for earlier, later in pairwise(kept):
                assert earlier.is_admitted or not later.is_admitted


def assert_debited(after_micro: int, before_micro: int, debit_micro: int, burst_micro: int, *, observes: bool) -> None:
    """Assert that a balance fell by a debit: an observing scope's by less of it, but no less than down to a burst."""
    expected = max(before_micro - debit_micro, MIN_BALANCE_MICRO)
    if observes and after_micro != expected:
        assert expected < after_micro <= min(-burst_micro, -1)
        assert after_micro == min(-burst_micro, -1) or before_micro >= 0 or after_micro == before_micro
    else:
        assert after_micro == expected


def l8_balances_fall_by_exactly_what_is_admitted(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        policy, now_ms = in_force(batch.step.policy, batch.before.grants.time), batch.step.now_ms
        admitted = [row for row in batch.rows if row.is_admitted]
        grown = batch.before.grants.grown(policy, now_ms=now_ms, shards=batch.history.shards)
        after = batch.plan.state
        flows = dict(zip(after.flows.names.to_pylist(), after.flows.balance_micro.tolist(), strict=True))
        remembered = batch.before.flows
        before = dict(zip(remembered.names.to_pylist(), remembered.balance_micro.tolist(), strict=True))
        scope_rows: dict[int, list[DecidedRow]] = defaultdict(list)
        for row in admitted:
            for scope in rules_of(policy, row.namespace).shared:
                scope_rows[scope.index].append(row)
        for index in range(len(policy.shared)):
            for d in DIMENSIONS:
                if policy.shared.rate_micro_per_ms[index, d] != UNLIMITED:
                    debit = sum(row.tokens[d] for row in scope_rows[index]) * MICRO
                    assert_debited(
                        int(after.grants.balance_micro[index, d]),
                        int(grown.balance_micro[index, d]),
                        debit,
                        int(policy.shared.burst_micro[index, d]),
                        observes=policy.shared.on_excess[index] == OnExcess.OBSERVE,
                    )
        elapsed_ms = max(0, now_ms - batch.before.advanced_to_ms)
        for name, rows in by_flow([row for row in batch.rows if is_usable(row)]).items():
            limits = rules_of(policy, name).limits
            for d in limits.limited_dimensions:
                rate, burst = limits.rate_micro_per_ms[d], limits.burst_micro[d]
                full = -1 if rate == 0 else burst
                held = before[name][d] + rate * elapsed_ms if name in before else full
                debit = sum(row.tokens[d] for row in rows if row.is_admitted) * MICRO
                if rate > 0:
                    after_micro = flows.get(name, {d: full})[d]
                    assert_debited(after_micro, min(held, full), debit, burst, observes=limits.is_observed)


def what_is_remembered_is_worth_remembering(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        after, policy = batch.plan.state, batch.step.policy
        waiting = set(after.queue.flow.tolist())
        for i, name in enumerate(after.flows.names.to_pylist()):
            limits = rules_of(policy, name).limits
            is_full = all(
                after.flows.balance_micro[i, d] == (limits.burst_micro[d] if limits.rate_micro_per_ms[d] else -1)
                for d in limits.limited_dimensions
            )
            assert (
                i in waiting
                or not is_full
                or after.flows.lead_vt[i].any()
                or (after.flows.window_second[i] == batch.step.now_ms // 1000 and after.flows.window_units[i].any())
            )


def l6_a_plan_is_a_function_of_its_arguments(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        before = state_bytes(batch.before)
        again = plan_admission(
            batch.before,
            batch.step.arrivals,
            batch.step.policy,
            now_ms=batch.step.now_ms,
            shards=batch.history.shards,
            shard=batch.history.shard,
        )
        assert state_bytes(batch.before) == before, "the plan changed the state that it was given"
        assert state_bytes(again.state) == state_bytes(batch.plan.state)
        assert as_reference(again, batch.step.policy) == as_reference(batch.plan, batch.step.policy)


def state_bytes(state: DeciderState) -> list[object]:
    """Return all of `state`, byte for byte."""
    tables = (state.flows, state.queue, state.grants)
    columns = [getattr(table, name) for table in tables for name in table.__slots__]
    return [column.tobytes() if isinstance(column, np.ndarray) else str(column) for column in columns]


def the_order_of_the_tables_decides_nothing(batches: list[PlayedBatch], random: Random) -> None:
    """Flows may stand in any order, and rows of different flows may come interleaved in any way."""
    for batch in batches:
        flow_order = shuffled(random, len(batch.before.flows))
        queue_order = riffled(random, batch.before.queue.flow.tolist())
        arrival_order = riffled(random, batch.step.arrivals.namespaces.to_pylist())
        plan = plan_admission(
            reordered(batch.before, flow_order, queue_order),
            taken(batch.step.arrivals, arrival_order),
            batch.step.policy,
            now_ms=batch.step.now_ms,
            shards=batch.history.shards,
            shard=batch.history.shard,
        )
        ours, theirs = as_reference(plan, batch.step.policy), as_reference(batch.plan, batch.step.policy)
        rows = queue_order + [len(queue_order) + i for i in arrival_order]
        assert ours.decisions == [theirs.decisions[i] for i in rows]
        assert ours.state.flows == theirs.state.flows
        assert ours.state.grants == theirs.state.grants
        assert ours.usage == theirs.usage


def shuffled(random: Random, n: int) -> list[int]:
    order = list(range(n))
    random.shuffle(order)
    return order


def riffled(random: Random, flows: list[Hashable]) -> list[int]:
    """Return positions in an order that keeps those of each flow as they stand."""
    mixed = [flows[i] for i in shuffled(random, len(flows))]
    positions = {flow: iter([i for i, other in enumerate(flows) if other == flow]) for flow in set(flows)}
    return [next(positions[flow]) for flow in mixed]


def taken(arrivals: Arrivals, order: list[int]) -> Arrivals:
    index = pa.array(order, pa.int64())
    is_writable = None if arrivals.is_writable is None else arrivals.is_writable[np.array(order, dtype=np.int64)]
    return Arrivals(arrivals.namespaces.take(index), arrivals.size_bytes.take(index), is_writable)


def reordered(state: DeciderState, flow_order: list[int], queue_order: list[int]) -> DeciderState:
    flows, queue = state.flows, state.queue
    new_position = np.argsort(np.array(flow_order, dtype=np.int64))
    index = np.array(flow_order, dtype=np.int64)
    rows = np.array(queue_order, dtype=np.int64)
    return DeciderState(
        state.advanced_to_ms,
        Flows(
            flows.names.take(pa.array(flow_order, pa.int64())),
            flows.balance_micro[index],
            flows.lead_vt[index],
            flows.window_second[index],
            flows.window_units[index],
        ),
        Queue(
            new_position[queue.flow[rows]],
            queue.size_bytes[rows],
            queue.arrival_ms[rows],
            queue.release_ms[rows],
            None if queue.is_deferred is None else queue.is_deferred[rows],
        ),
        state.grants,
    )


@law
@given(histories(monotone=True, one_policy=True), st.integers(0, 10_000_000))
def test_l4_nothing_expires_or_leaves_before_the_times_that_are_reported(history: History, early_ms: int) -> None:
    *_, last = history.play()
    state, step, usage = last.plan.state, last.step, last.plan.usage
    assume(len(state.queue))
    assert usage.expires_ms > step.now_ms
    at_ms = min(step.now_ms + early_ms, usage.expires_ms - 1)
    plan = plan_admission(state, make_arrivals([]), step.policy, now_ms=at_ms, shards=history.shards)
    assert (plan.decisions.verdict != Verdict.REJECT).all()
    leaving = state.queue.flow[plan.decisions.verdict == Verdict.ADMIT]
    names = state.flows.names.to_pylist()
    assert all(reported_leaves_ms(last)[names[flow]] <= at_ms for flow in leaving.tolist())


@law
@given(histories(monotone=True, one_policy=True, on_excess=ENFORCED), st.data())
def test_l4_first_row_leaves_at_the_time_that_is_reported_where_no_shared_scope_holds_it(
    history: History, data: st.DataObject
) -> None:
    *_, last = history.play()
    state, shared = last.plan.state, last.step.policy.shared
    leaves_ms = {name: at_ms for name, at_ms in reported_leaves_ms(last).items() if at_ms < NEVER_MS}
    assume(leaves_ms)
    name = data.draw(st.sampled_from(sorted(leaves_ms)))
    at_ms = max(leaves_ms[name], last.step.now_ms)
    assume(at_ms < last.plan.usage.expires_ms)
    free = replace(last.step.policy, shared=replace(shared, on_excess=np.full_like(shared.on_excess, OnExcess.OBSERVE)))
    plan = plan_admission(state, make_arrivals([]), free, now_ms=at_ms, shards=history.shards)
    of_flow = plan.decisions.verdict[state.queue.flow == state.flows.names.to_pylist().index(name)]
    assert of_flow[0] == Verdict.ADMIT


def flow_reports_a_time_to_leave_only_if_it_waits(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        waits = dict(zip(batch.plan.usage.names.to_pylist(), batch.plan.usage.waiting[:, 0].tolist(), strict=True))
        assert all(at_ms == NEVER_MS for name, at_ms in reported_leaves_ms(batch).items() if not waits[name])


def reported_leaves_ms(batch: PlayedBatch) -> dict[str, int]:
    usage = batch.plan.usage
    assert usage.leaves_ms is not None
    return dict(zip(usage.names.to_pylist(), usage.leaves_ms.tolist(), strict=True))
