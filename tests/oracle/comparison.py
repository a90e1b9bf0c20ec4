"""The kernel's plan in the oracle's terms, so that the two can be compared with `==`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any

from spark_throttle.core.batch.admission import AdmissionPlan
from spark_throttle.core.batch.decisions import REASONS
from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s, Level, Verdict
from spark_throttle.core.usage import UsageReport
from spark_throttle.core.waiting_times import upper_ms
from tests.oracle.reference import ReferencePlan, Served
from tests.oracle.reference_rules import DIMENSIONS, tokens
from tests.oracle.reference_state import ReferenceState
from tests.oracle.reference_usage import Decision, FlowUsage


def decisions_of(plan: AdmissionPlan) -> list[Decision]:
    """Return the decision on every row."""
    rows = plan.decisions
    columns = (rows.verdict, rows.reason, rows.level, rows.dimension, rows.scope, rows.throttle_time_ms)
    return [
        Decision(Verdict(verdict), REASONS[reason], level, dimension, scope, throttle_time_ms)
        for verdict, reason, level, dimension, scope, throttle_time_ms in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def usage_by_name(usage: UsageReport) -> dict[str, FlowUsage]:
    """Return the usage of every flow, by name."""
    names: list[str] = usage.names.to_pylist()
    assert len(set(names)) == len(names), f"a flow is reported twice: {names}"
    numbers = [
        each.name for each in fields(FlowUsage) if each.name not in ("waited", "held_by", "granted_micro", "own_micro")
    ]
    waited: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if usage.waited is not None:
        times = usage.waited
        for at, *bin_of in zip(times.at.tolist(), upper_ms(times.bin).tolist(), times.messages.tolist(), strict=True):
            waited[at].append((bin_of[0], bin_of[1]))
    return {
        name: FlowUsage(
            **{field: _of_flow(getattr(usage, field), i, -1 if field == "oldest_ms" else 0) for field in numbers},
            waited=tuple(waited[i]),
            held_by=_row_of(usage.held_by, i, 2),
            granted_micro=_row_of(usage.granted_micro, i, len(Dimension)),
            own_micro=(0,) * Dimension.TIME if usage.own_micro is None else tuple(usage.own_micro[i].tolist()),
        )
        for i, name in enumerate(names)
    }


def _of_flow(column: Int64s | None, i: int, missing: int) -> Any:
    """Return the value of a report's column for a flow; the report and the oracle use the same name."""
    if column is None:
        return missing
    return int(column[i]) if column.ndim == 1 else tokens(column[i])


def _row_of(table: Int64s | None, i: int, columns: int) -> Any:
    return (-1,) * columns if table is None else tuple(table[i].tolist())


def served_by(plan: AdmissionPlan) -> dict[str, Served]:
    """Return who was served."""
    outcome = plan.flows.outcome
    found = {}
    for flow, name in enumerate(plan.flow_names.to_pylist()):
        count = int(outcome.served[flow, Dimension.MESSAGES])
        served = found[name] = Served(count)
        for marks in outcome.mark_starts:
            if marks.level != Level.NAMESPACE and marks.rank[flow] < count:
                served.marked_from[marks.level] = int(marks.rank[flow])
                for d, rank in zip(DIMENSIONS, marks.ranks, strict=False):
                    served.short_from[marks.level, d] = max(int(marks.rank[flow]), int(rank[flow]))
    return found


def as_reference(plan: AdmissionPlan, policy: CompiledPolicy) -> ReferencePlan:
    """Return those parts of `plan` that the oracle predicts, under the policy of the plan."""
    return ReferencePlan(
        decisions_of(plan),
        ReferenceState.from_arrays(plan.state, policy),
        usage_by_name(plan.usage),
        plan.usage.invalid_messages,
        {REASONS[reason]: count for reason, count in enumerate(plan.usage.rejected_by_reason or ()) if count},
    )


def assert_same_plan(plan: AdmissionPlan, expected: ReferencePlan, policy: CompiledPolicy) -> None:
    """Fail at the first difference between `plan` and the oracle's `expected`."""
    actual = as_reference(plan, policy)
    # A flow that has only a lead is remembered for the fair tree alone.
    for name in actual.state.flows.keys() - expected.state.flows.keys():
        at = plan.state.flows.names.to_pylist().index(name)
        assert plan.state.flows.lead_work[at].any(), f"{name} is remembered for nothing"
        del actual.state.flows[name]
    assert len(actual.decisions) == len(expected.decisions)
    for index, (ours, theirs) in enumerate(zip(actual.decisions, expected.decisions, strict=True)):
        assert ours == theirs, f"row {index}\n  kernel {ours}\n  oracle {theirs}"
    for name in sorted(actual.state.flows.keys() | expected.state.flows.keys()):
        ours_flow, theirs_flow = actual.state.flows.get(name), expected.state.flows.get(name)
        assert ours_flow == theirs_flow, f"flow {name}\n  kernel {ours_flow}\n  oracle {theirs_flow}"
    assert actual.state == expected.state, f"\n  kernel {actual.state}\n  oracle {expected.state}"
    for name in sorted(actual.usage.keys() | expected.usage.keys()):
        ours_usage, theirs_usage = actual.usage.get(name), expected.usage.get(name)
        assert ours_usage == theirs_usage, f"usage of {name}\n  kernel {ours_usage}\n  oracle {theirs_usage}"
    assert actual == expected
