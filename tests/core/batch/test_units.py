"""Everything that holds for bytes holds for units: limits of these decide on rows that have as many of them alike.

A history is drawn and played twice. In the second, every quota, budget, bound, guarantee and share of bytes is one of
units, and rows have as many units as bytes. Pegasus' rules and the queue's bounds count bytes in both.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from spark_throttle.core.batch.decisions import DIMENSIONS, Reason
from spark_throttle.core.limits.budgets import Spent
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Dimension, Int64s, Limits
from spark_throttle.core.state import ControlRow
from tests.effort import examples
from tests.oracle.decider import Decider, Engine
from tests.oracle.history import History, PlayedBatch, Step
from tests.oracle.reference_usage import Decision
from tests.oracle.strategies import histories
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

BYTES, UNITS = Dimension.BYTES, Dimension.UNITS


def in_bytes(table: Int64s, nothing: int) -> Int64s:
    """Return a table by `Dimension` that says nothing of units."""
    out = table.copy()
    out[:, UNITS] = nothing
    return out


def in_units(table: Int64s) -> Int64s:
    """Return a table by `Dimension` that says of units what it said of bytes, and the other way round."""
    order = [Dimension.MESSAGES, UNITS, BYTES, Dimension.TIME]
    return table[:, order]


def limits_in_bytes(limits: Limits) -> Limits:
    kept = {key: column for key, column in limits.settings.items() if "units" not in key}
    return replace(
        limits, rate_micro_per_ms=in_bytes(limits.rate_micro_per_ms, UNLIMITED),
        burst_micro=in_bytes(limits.burst_micro, 0), settings=kept,
    )  # fmt: skip


def limits_in_units(limits: Limits) -> Limits:
    return replace(
        limits, rate_micro_per_ms=in_units(limits.rate_micro_per_ms), burst_micro=in_units(limits.burst_micro),
        settings={key.replace("bytes", "units"): column for key, column in limits.settings.items()},
    )  # fmt: skip


def policy_in_bytes(policy: CompiledPolicy) -> CompiledPolicy:
    said = policy.guarantees
    if said is not None:
        said = replace(said, rate_micro_per_ms=in_bytes(said.rate_micro_per_ms, UNLIMITED))
    return replace(
        policy, shared=limits_in_bytes(policy.shared), namespace_limits=limits_in_bytes(policy.namespace_limits),
        guarantees=said,
    )  # fmt: skip


def policy_in_units(policy: CompiledPolicy) -> CompiledPolicy:
    said = policy.guarantees
    if said is not None:
        said = replace(said, rate_micro_per_ms=in_units(said.rate_micro_per_ms), earning_ms=in_units(said.earning_ms))
    return replace(
        policy, shared=limits_in_units(policy.shared), namespace_limits=limits_in_units(policy.namespace_limits),
        guarantees=said,
    )  # fmt: skip


def pinned(row: ControlRow | None, *, is_in_units: bool) -> ControlRow | None:
    if row is None or row.share_micro_per_ms is None:
        return row
    share = in_bytes(row.share_micro_per_ms, UNLIMITED)
    return replace(row, share_micro_per_ms=in_units(share) if is_in_units else share)


def histories_of(history: History) -> tuple[History, History]:
    """Return a drawn history in bytes, and the same in units."""
    bytes_of = {id(step.policy): policy_in_bytes(step.policy) for step in history.steps}
    units_of = {key: policy_in_units(policy) for key, policy in bytes_of.items()}
    first, second = list[Step](), list[Step]()
    for step in history.steps:
        arrivals = replace(step.arrivals, units=None)
        held = None if step.shared_micro is None else in_bytes(step.shared_micro, 0)
        first.append(
            replace(step, arrivals=arrivals, policy=bytes_of[id(step.policy)], shared_micro=held,
                    pins=pinned(step.pins, is_in_units=False))
        )  # fmt: skip
        second.append(
            replace(step, arrivals=replace(arrivals, units=arrivals.size_bytes), policy=units_of[id(step.policy)],
                    shared_micro=None if held is None else in_units(held), pins=pinned(step.pins, is_in_units=True))
        )  # fmt: skip
    return History(first), History(second)


def told_in_units(decision: Decision) -> Decision:
    """Return a decision on bytes as one on units is told."""
    words, at = list(DIMENSIONS), decision.dimension
    is_told = at >= 0 and decision.reason in ("quota", "size_too_large") and words[at].startswith("bytes")
    if not is_told:
        return decision
    return replace(
        decision, dimension=words.index(words[at].replace("bytes", "units")),
        reason=decision.reason.replace("size_too_large", Reason.UNITS_TOO_LARGE.name.lower()),
    )  # fmt: skip


def spent_of(spent: Spent | None) -> list[list[list[int]]]:
    return [] if spent is None else [spent.used.tolist(), spent.over.tolist()]


def assert_alike(one: PlayedBatch, other: PlayedBatch) -> None:
    assert [told_in_units(row.decision) for row in one.rows] == [row.decision for row in other.rows]
    before, after = one.plan.state, other.plan.state
    assert before.flows.names == after.flows.names
    for column in ("balance_micro", "cut_micro"):
        assert in_units(getattr(before.flows, column)).tolist() == getattr(after.flows, column).tolist()
    assert before.flows.lead_work.tolist() == after.flows.lead_work.tolist()
    assert in_units(before.shared.balance_micro).tolist() == after.shared.balance_micro.tolist()
    held, holds = before.shared.guaranteed_micro, after.shared.guaranteed_micro
    assert (None if held is None else in_units(held).tolist()) == (None if holds is None else holds.tolist())
    assert spent_of(before.flows.spent) == spent_of(after.flows.spent)
    assert spent_of(before.shared.spent) == spent_of(after.shared.spent)
    usage, told = one.plan.usage, other.plan.usage
    assert told.admitted[:, UNITS].tolist() == usage.admitted[:, BYTES].tolist()
    assert told.waiting[:, UNITS].tolist() == usage.waiting[:, BYTES].tolist()
    assert (told.due_ms, told.filled_ms) == (usage.due_ms, usage.filled_ms)


@pytest.mark.slow
@examples(40)
@given(histories())
def test_policy_in_units_decides_as_the_same_policy_in_bytes(history: History) -> None:
    for one, other in zip(*(each.play() for each in histories_of(history)), strict=True):
        assert_alike(one, other)


@pytest.mark.parametrize("engine", ["kernel", "oracle"])
def test_row_is_charged_at_all_its_scopes_and_rejected_where_units_end(engine: Engine) -> None:
    """Of 10 units, rows of 4 leave 6, 2 and -2: a fourth would find a debt."""
    ten = limit(units_per_second=10, burst_seconds=1)
    policy = make_policy(
        job=ten, tenants={"acme": Tenant(ten)}, groups={"g": ten}, default=Namespace(ten, "g")
    )  # fmt: skip
    decider = Decider(engine, policy)
    decisions = decider.batch(0, [("acme/x", 1_000, 4)] * 4)
    assert [each.verdict.name for each in decisions] == ["ADMIT"] * 3 + ["DELAY"]
    assert (decisions[-1].dimension, decisions[-1].throttle_time_ms) == (UNITS, 200)
    assert (decider.state.flows.balance_micro[:, UNITS] == -2_000_000).all()
    assert (decider.state.shared.balance_micro[:, UNITS] == -2_000_000).all()
    assert decider.plan.usage["acme/x"].waiting == (1, 1_000, 4, 0)
    assert [each.verdict.name for each in decider.batch(200)] == ["ADMIT"]
    assert decider.plan.usage["acme/x"].admitted == (1, 1_000, 4, 0)


@pytest.mark.parametrize("engine", ["kernel", "oracle"])
def test_row_without_usable_units_is_rejected_with_its_reason_and_charged_nowhere(engine: Engine) -> None:
    bounded = Namespace(limit(units_per_second=10, burst_seconds=1, max_message_units=5))
    decider = Decider(engine, make_policy(default=bounded))
    rows = [("a", 1, None), ("a", 1, -1), ("a", 1, 2**36 + 1), ("a", 1, 6), ("a", 1, 5)]
    assert [each.reason for each in decider.batch(0, rows)] == [
        "units_missing", "units_negative", "units_too_large", "units_too_large", ""
    ]  # fmt: skip
    assert decider.plan.usage["a"].admitted == (1, 1, 5, 0)


def test_rows_keep_their_units_while_they_wait_and_others_have_no_column() -> None:
    policy = make_policy(default=Namespace(limit(messages_per_second=1, burst_seconds=1)))
    for rows, units in (([("a", 1, 7)] * 4, [7, 7]), ([("a", 1)] * 4, None), ([("a", 1, 0)] * 4, None)):
        decider = Decider("kernel", policy)
        decider.batch(0, rows)
        found = decider.state.queue.units
        assert (None if found is None else found.tolist()) == units


def test_job_whose_rows_have_no_units_is_not_held_by_their_limit_until_it_is_0() -> None:
    for per_second, admitted in ((1, 5), (0, 0)):
        decider = Decider("kernel", make_policy(default=Namespace(limit(units_per_second=per_second))))
        decider.batch(0, [("a", 1)] * 5)
        assert decider.admitted()["a"] == admitted


def test_scarcer_of_messages_and_units_is_what_tenants_divide() -> None:
    """A unit is as much of the job as 200 messages: both get all that the job has of what they need."""
    policy = make_policy(job=limit(messages_per_second=1_000, units_per_second=5, burst_seconds=1))
    decider, went = Decider("kernel", policy), {"a/x": 0, "b/x": 0}
    for second in range(10):
        decider.batch(1_000 * second, [("a/x", 1, 1)] * 20 + [("b/x", 1, 0)] * 900)
        for name, count in decider.admitted().items():
            went[name] += count if second >= 5 else 0
    assert went["a/x"] == pytest.approx(5 * 5, abs=1)
    assert went["b/x"] == pytest.approx(5 * 900, rel=0.05)
