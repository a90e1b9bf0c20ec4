"""The design's laws, each as a property of what the kernel did; none of them asks the oracle.

L3 (fairness) has a file of its own. L6 and L7 concern more than one batch's arithmetic: here, that a plan is a
function of its arguments alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from random import Random
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.limits.budgets import CalendarWindows
from spark_throttle.core.limits.token_bucket import PayingTime, in_micro, refill
from spark_throttle.core.names.matching import enforcing_scopes, match
from spark_throttle.core.policy_change import in_windows
from spark_throttle.core.quota import (
    AMOUNTS,
    MICRO,
    MIN_BALANCE_MICRO,
    NEVER_MS,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Verdict,
)
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.core.state import DeciderState, StoredState
from spark_throttle.record import pack
from tests.oracle.comparison import as_reference
from tests.oracle.history import DecidedRow, History, PlayedBatch
from tests.oracle.reference_rules import DIMENSIONS, UNIT_MICRO, ScopeLimits, rules_of
from tests.oracle.reference_state import FlowMemory, ScopeMemory
from tests.oracle.strategies import histories
from tests.oracle.worlds import make_arrivals

pytestmark = pytest.mark.slow

ENFORCED = (OnExcess.DELAY, OnExcess.REJECT)

# The oracle sees as many histories as the profile says; each law by itself sees fewer.
law = settings(max_examples=max(20, settings().max_examples // 3))


def by_flow(rows: list[DecidedRow]) -> dict[str, list[DecidedRow]]:
    """Return the rows of each namespace, in order."""
    flows: dict[str, list[DecidedRow]] = defaultdict(list)
    for row in rows:
        flows[row.namespace].append(row)
    return flows


def is_usable(row: DecidedRow) -> bool:
    """Return whether the row belongs to a flow at all."""
    # A size, or units, may also be over the bound of a scope, which rejects the row of a flow.
    return row.decision.level >= 0 or not row.decision.reason.startswith(
        ("namespace_", "size_", "units_", "partition_")
    )


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
            (names[flow], size_bytes, units, arrival_ms)
            for flow, size_bytes, units, arrival_ms in zip(
                after.queue.flow, *after.queue.amounts(len(AMOUNTS)), after.queue.arrival_ms, strict=True
            )
        ]
        delayed = [row for row in rows if row.decision.verdict == Verdict.DELAY]
        assert queue == [(row.namespace, row.size_bytes, row.units, row.arrival_ms) for row in delayed]


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


Key: TypeAlias = str | tuple[int, int]
"""A namespace, or a shared scope since a step that gave it tokens."""


def l2_no_scope_passes_its_limit(batches: list[PlayedBatch]) -> None:
    """Admitted between any two batch times: at most the burst, the refill, and one message.

    Tokens that a step gives to the shared scopes begin their times anew.
    """
    admitted: dict[Key, list[tuple[int, list[DecidedRow]]]] = defaultdict(list)
    limits_of: dict[Key, ScopeLimits] = {}
    given = 0
    for batch in batches:
        given += batch.step.shared_micro is not None
        of_batch: dict[Key, list[DecidedRow]] = defaultdict(list)
        for row in batch.rows:
            if row.is_admitted:
                rules = rules_of(batch.step.policy, row.namespace)
                scopes: dict[Key, ScopeLimits] = {(given, scope.index): scope for scope in rules.shared}
                judged = {row.namespace: rules.limits} | scopes
                for key, limits in ((key, limits) for key, limits in judged.items() if limits.is_enforced):
                    limits_of[key] = limits
                    of_batch[key].append(row)
        for key, rows in of_batch.items():
            admitted[key].append((batch.step.now_ms, rows))
    for key, served in admitted.items():
        limits = limits_of[key]
        for d in limits.limited_dimensions:
            assert limits.rate_micro_per_ms[d] > 0
            if d == Dimension.TIME:
                continue  # what was measured is drawn: it may give back what was never taken
            for first, last in combinations_with_replacement(range(len(served)), 2):
                elapsed_ms = served[last][0] - served[first][0]
                tokens = [row.tokens[d] for _, rows in served[first : last + 1] for row in rows]
                room_micro = limits.burst_micro[d] + limits.rate_micro_per_ms[d] * elapsed_ms
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
    l4_a_row_is_due_later_and_only_if_it_waits(batches)
    l4_until_a_bucket_is_filled_none_that_stops_a_row_loses_a_token_or_has_enough(batches)
    the_order_of_the_tables_decides_nothing(batches, random)


@law
@given(histories(monotone=True, one_policy=True))
def test_l2_no_limit_is_passed(history: History) -> None:
    l2_no_scope_passes_its_limit(list(history.play()))


@law
@given(histories(on_excess=ENFORCED))
def test_l2_debt_is_at_most_one_message(history: History) -> None:
    for batch in history.play():
        largest = [max((row.tokens[d] for row in batch.rows if row.is_admitted), default=0) for d in DIMENSIONS]
        owed_micro = np.minimum(-1, -in_micro(np.array(largest)))
        flows, shared = batch.plan.state.flows, batch.plan.state.shared
        assert (shared.balance_micro >= np.minimum(batch.before.shared.balance_micro, owed_micro)).all()
        before = dict(zip(batch.before.flows.names.to_pylist(), batch.before.flows.balance_micro, strict=True))
        for name, balance_micro in zip(flows.names.to_pylist(), flows.balance_micro, strict=True):
            assert (balance_micro >= np.minimum(before.get(name, 0), owed_micro)).all()


def owes(scope: ScopeMemory | FlowMemory, limits: ScopeLimits) -> bool:
    """Return whether any bucket of a scope is overdrawn, or any budget of it spent."""
    is_overdrawn = any(scope.balance_micro[d] < 0 for d in limits.limited_dimensions)
    return is_overdrawn or any(budget.is_spent for budget in limits.with_tallies(scope.tallies))


def l4_a_shared_scope_that_holds_rows_is_used_up(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        shared = as_reference(batch.plan, batch.step.policy).state.shared
        for row in batch.rows:
            decision = row.decision
            if decision.level > Level.NAMESPACE and decision.reason == "quota":
                scopes = {scope.index: scope for scope in rules_of(batch.step.policy, row.namespace).shared}
                assert owes(shared[decision.scope], scopes[decision.scope])
                assert decision.throttle_time_ms > 0


@law
@given(histories(on_excess=(OnExcess.DELAY,), malformed=False))
def test_l4_what_nothing_holds_is_admitted(history: History) -> None:
    """A row waits only while a scope of its is overdrawn, or a row of its flow is held by Pegasus' rules."""
    for batch in history.play():
        after = as_reference(batch.plan, batch.step.policy).state
        for name, rows in by_flow(batch.rows).items():
            waiting = [row for row in rows if row.decision.verdict == Verdict.DELAY]
            if waiting and all(row.decision.reason != "throttling" for row in waiting):
                rules = rules_of(batch.step.policy, name)
                is_held = owes(after.flows[name], rules.limits)
                assert is_held or any(owes(after.shared[scope.index], scope) for scope in rules.shared)


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
        policy, now_ms = batch.step.policy, batch.step.now_ms
        admitted = [row for row in batch.rows if row.is_admitted]
        grown = batch.before.shared.refilled(policy, now_ms=now_ms)
        bursts = under_share(policy, grown.share_micro_per_ms).shared.burst_micro
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
                    debit = sum(row.tokens[d] for row in scope_rows[index]) * UNIT_MICRO[d]
                    assert_debited(
                        int(after.shared.balance_micro[index, d]),
                        int(grown.balance_micro[index, d]),
                        debit,
                        int(bursts[index, d]),
                        observes=policy.shared.on_excess[index] == OnExcess.OBSERVE,
                    )
        elapsed_ms = max(0, now_ms - batch.before.advanced_to_ms)
        for name, rows in by_flow([row for row in batch.rows if is_usable(row)]).items():
            limits = rules_of(policy, name).limits
            for d in limits.limited_dimensions:
                rate, burst = limits.rate_micro_per_ms[d], limits.burst_micro[d]
                full = -1 if rate == 0 else burst
                held = before[name][d] + rate * elapsed_ms if name in before else full
                debit = sum(row.tokens[d] for row in rows if row.is_admitted) * UNIT_MICRO[d]
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
                or (policy.has_time and after.flows.priced_ms[i] > 0)
                or not is_full
                or after.flows.lead_work[i].any()
                or after.flows.held[i].any()
                or (after.flows.spent is not None and after.flows.spent.is_any[i])
                or (after.flows.window_second[i] == batch.step.now_ms // 1000 and after.flows.window_units[i].any())
            )


def l6_a_plan_is_a_function_of_its_arguments(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        before = state_bytes(batch.before)
        again = plan_admission(batch.before, batch.step.arrivals, batch.step.policy, now_ms=batch.step.now_ms)
        assert state_bytes(batch.before) == before, "the plan changed the state that it was given"
        assert state_bytes(again.state) == state_bytes(batch.plan.state)
        assert as_reference(again, batch.step.policy) == as_reference(batch.plan, batch.step.policy)


def state_bytes(state: DeciderState) -> bytes:
    """Return all of `state`, byte for byte."""
    nothing = np.zeros(0, dtype=np.int64)
    return pack(StoredState(state, b"", [], nothing, nothing, PayingTime(0, 0)), is_compressed=True)


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
        )
        ours, theirs = as_reference(plan, batch.step.policy), as_reference(batch.plan, batch.step.policy)
        rows = queue_order + [len(queue_order) + i for i in arrival_order]
        assert ours.decisions == [theirs.decisions[i] for i in rows]
        assert ours.state.flows == theirs.state.flows
        assert ours.state.shared == theirs.state.shared
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
    units = None if arrivals.units is None else arrivals.units.take(index)
    return Arrivals(arrivals.namespaces.take(index), arrivals.size_bytes.take(index), is_writable, units)


def reordered(state: DeciderState, flow_order: list[int], queue_order: list[int]) -> DeciderState:
    flow_at, rows = (np.array(order, dtype=np.int64) for order in (flow_order, queue_order))
    place, corrected = np.argsort(flow_at), state.corrected
    queue = replace(state.queue, flow=place[state.queue.flow])
    if corrected is not None:
        corrected = replace(corrected, flow=place[corrected.flow])
    return replace(state, flows=state.flows.take(flow_at), queue=queue.take(rows), corrected=corrected)


def l4_a_row_is_due_later_and_only_if_it_waits(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        usage = batch.plan.usage
        assert batch.step.now_ms < usage.due_with_quotas_ms <= usage.due_ms <= usage.filled_ms <= NEVER_MS
        assert len(batch.plan.state.queue) or usage.due_with_quotas_ms == NEVER_MS


def l4_until_a_bucket_is_filled_none_that_stops_a_row_loses_a_token_or_has_enough(batches: list[PlayedBatch]) -> None:
    for batch in batches:
        plan, policy, now_ms = batch.plan, batch.step.policy, batch.step.now_ms
        usage, stops, shared = plan.usage, plan.flows.outcome.stops, plan.state.shared
        if not usage.due_ms < usage.filled_ms < NEVER_MS:
            continue
        found = match(plan.flow_names, policy)
        limits, of_shared = (
            policy.namespace_limits.take(found.rule),
            under_share(policy, shared.share_micro_per_ms).shared,
        )
        balances = [
            refill(balance, of.rate_micro_per_ms, of.burst_micro, usage.filled_ms - 1 - now_ms)
            for balance, of in ((plan.flows.balance_micro, limits), (shared.balance_micro, of_shared))
        ]
        names = plan.flow_names.to_pylist()
        waiting = dict(zip(usage.names.to_pylist(), usage.waiting.tolist(), strict=True))
        on_the_way = enforcing_scopes(found.shared_scope, policy).tolist()
        for flow, name in enumerate(names):
            level, dimension, scope = (int(each[flow]) for each in (stops.level, stops.dimension, stops.scope))
            if level < 0 or not waiting.get(name, [0])[0]:
                continue
            mates = [name] if scope < 0 else [each for each, way in zip(names, on_the_way, strict=True) if scope in way]
            needed = (
                sum(waiting[each][dimension] for each in mates if each in waiting) * UNIT_MICRO[Dimension(dimension)]
            )
            balance, of, at = (balances[1], of_shared, scope) if scope >= 0 else (balances[0], limits, flow)
            if of.rate_micro_per_ms[at, dimension] > 0 and needed > balance[at, dimension]:
                assert balance[at, dimension] < of.burst_micro[at, dimension]
            elif of.rate_micro_per_ms[at, dimension] > 0:
                assert usage.filled_ms == usage.due_ms, "all of them could have gone before"


@law
@given(histories(monotone=True, one_policy=True), st.integers(0, 10_000_000), st.booleans())
def test_l4_first_row_leaves_or_expires_at_the_time_that_is_reported_and_not_sooner(
    history: History, early_ms: int, has_quotas: bool
) -> None:
    *_, last = history.play()
    state, policy, usage, now_ms = last.plan.state, last.step.policy, last.plan.usage, last.step.now_ms
    due_ms, share = usage.due_ms, state.shared.share_micro_per_ms
    if has_quotas and share is not None:
        due_ms, share = usage.due_with_quotas_ms, np.where(share == 0, policy.shared.rate_micro_per_ms, share)
        state = replace(state, shared=replace(state.shared, share_micro_per_ms=share))
    assume(len(state.queue))
    for at_ms in {min(now_ms + early_ms, due_ms - 1), due_ms} - {NEVER_MS}:
        then = with_windows_at(state, policy, at_ms) if at_ms > now_ms else state  # this batch's epoch has its windows
        plan = plan_admission(then, make_arrivals([]), policy, now_ms=at_ms)
        is_due = at_ms == due_ms and not is_budget_exceeded(then)
        if at_ms < due_ms or is_due:
            assert (plan.decisions.verdict != Verdict.DELAY).any() == is_due


def with_windows_at(state: DeciderState, policy: CompiledPolicy, now_ms: int) -> DeciderState:
    """Return the state under the epoch that is planned then: other windows follow those that have ended."""
    was = state.windows
    if was is None:
        return state
    has_ended = was.until_ms <= now_ms
    windows = CalendarWindows(
        was.number + has_ended, np.where(has_ended, was.until_ms, was.since_ms),
        np.where(has_ended, NEVER_MS, was.until_ms),
    )  # fmt: skip
    return in_windows(state, windows, policy)


def is_budget_exceeded(state: DeciderState) -> bool:
    """Return whether a message took more than a whole budget: then not even the next window has anything left."""
    return any(spent is not None and bool(spent.over.any()) for spent in (state.flows.spent, state.shared.spent))
