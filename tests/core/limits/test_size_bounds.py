"""A message that is larger than a scope lets pass is rejected, charged nowhere, and told by whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_throttle.core.quota import (
    MAX_SIZE_BYTES,
    MICRO,
    NEVER_MS,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Verdict,
)
from tests.oracle.decider import Decider, Engine
from tests.oracle.reference_usage import Decision
from tests.oracle.worlds import Limit, Namespace, Tenant, Window, limit, make_policy

NS = "acme/x"
ADMITTED = Decision(Verdict.ADMIT)


@pytest.fixture(params=["kernel", "oracle"])
def engine(request: pytest.FixtureRequest) -> Engine:
    engine: Engine = request.param
    return engine


def too_large(level: Level, scope: int, verdict: Verdict = Verdict.REJECT) -> Decision:
    return Decision(verdict, "size_too_large", level, Dimension.BYTES, scope, NEVER_MS)


def bound_at(level: Level, bound: Limit) -> CompiledPolicy:
    """Return a policy with limits at one level of acme/x."""
    limits = {each: bound if each == level else limit() for each in Level}
    return make_policy(
        job=limits[Level.JOB],
        tenants={"acme": Tenant(limits[Level.TENANT])},
        groups={"gold": limits[Level.RESOURCE_GROUP]},
        namespaces={NS: Namespace(limits[Level.NAMESPACE], "gold")},
    )


SCOPES = {Level.NAMESPACE: -1, Level.TENANT: 1, Level.RESOURCE_GROUP: 2, Level.JOB: 0}


@pytest.mark.parametrize("on_excess", [OnExcess.DELAY, OnExcess.REJECT])
@pytest.mark.parametrize("level", Level)
def test_larger_row_is_rejected_by_the_level_that_bounds_it(engine: Engine, level: Level, on_excess: OnExcess) -> None:
    decider = Decider(engine, bound_at(level, limit(max_message_bytes=100, on_excess=on_excess)))
    assert decider.batch(0, [(NS, 100), (NS, 101), (NS, 0)]) == [ADMITTED, too_large(level, SCOPES[level]), ADMITTED]
    usage = decider.plan.usage[NS]
    assert (usage.offered, usage.admitted, usage.rejected) == ((3, 201, 0, 0), (2, 100, 0, 0), (1, 101, 0, 0))
    assert decider.plan.invalid_messages == 0


def test_least_bound_decides_and_the_narrowest_of_equal_ones_is_named(engine: Engine) -> None:
    policy = make_policy(
        job=limit(max_message_bytes=300),
        tenants={"acme": Tenant(limit(max_message_bytes=200))},
        groups={"gold": limit(max_message_bytes=200)},
        namespaces={NS: Namespace(limit(max_message_bytes=900), "gold")},
    )
    decider = Decider(engine, policy)
    assert decider.batch(0, [(NS, 201), (NS, 901), ("other", 301), ("other", 299)]) == [
        too_large(Level.TENANT, 1),
        too_large(Level.TENANT, 1),
        too_large(Level.JOB, 0),
        ADMITTED,
    ]


def test_defaults_and_globs_bound_and_the_exempt_are_free(engine: Engine) -> None:
    policy = make_policy(
        job=limit(max_message_bytes=50),
        namespaces={"acme/*": Namespace(limit(max_message_bytes=20))},
        exempt=["acme/audit"],
        default=Namespace(limit(max_message_bytes=30)),
    )
    decider = Decider(engine, policy)
    by_rule = too_large(Level.NAMESPACE, -1)
    rows = [("acme/logs", 21), ("acme/audit", 10**9), ("blue/logs", 30), ("blue/logs", 31)]
    assert decider.batch(0, rows) == [by_rule, ADMITTED, ADMITTED, by_rule]


def test_rows_of_one_batch_may_be_too_large_in_bytes_or_in_units_or_in_both(engine: Engine) -> None:
    decider = Decider(engine, make_policy(default=Namespace(limit(max_message_bytes=10, max_message_units=5))))
    decisions = decider.batch(0, [(NS, 11, 5), (NS, 10, 6), (NS, 11, 6), (NS, 10, 5)])
    in_bytes = too_large(Level.NAMESPACE, -1)
    in_units = replace(in_bytes, reason="units_too_large", dimension=Dimension.UNITS)
    assert decisions == [in_bytes, in_units, in_bytes, ADMITTED]


def test_rejected_row_is_charged_nowhere_and_claims_nothing(engine: Engine) -> None:
    """A size from a column that tenants control is no debt for those who share their group."""
    quota = limit(bytes_per_second=1_000, max_message_bytes=500)
    decider = Decider(engine, make_policy(groups={"gold": quota}, default=Namespace(quota, "gold")))
    rows = [(NS, MAX_SIZE_BYTES), (NS, 400), ("blue/y", 400)]
    decisions = decider.batch(0, rows, {"gold": (0, 1_000)})
    assert [decision.verdict for decision in decisions] == [Verdict.REJECT, Verdict.ADMIT, Verdict.ADMIT]
    assert decider.plan.state.flows[NS].balance_micro[Dimension.BYTES] == 600 * MICRO
    assert decider.state.shared.balance_micro[1, Dimension.BYTES] == 200 * MICRO
    assert decider.plan.usage[NS].demand == (1, 400, 0, 0)


def test_rejected_row_does_not_count_in_its_namespaces_window(engine: Engine) -> None:
    rules = Namespace(limit(max_message_bytes=500), by_count=Window(reject_units=2, reject_ms=50))
    decider = Decider(engine, make_policy(default=rules))
    decisions = decider.batch(0, [(NS, 501), (NS, 501), (NS, 1), (NS, 1), (NS, 1)])
    assert [decision.reason for decision in decisions] == ["size_too_large"] * 2 + ["", "", "throttling"]


def test_row_that_was_taken_in_waits_on_under_a_bound_that_comes_later(engine: Engine) -> None:
    held = limit(messages_per_second=1)
    decider = Decider(engine, make_policy(default=Namespace(held)))
    decider.batch(0, [(NS, 900)] * 3)
    bounded = limit(messages_per_second=1, max_message_bytes=500)
    decider.policy = make_policy(default=Namespace(bounded))
    decisions = decider.batch(1_000, [(NS, 900)])
    assert [decision.verdict for decision in decisions] == [Verdict.ADMIT, Verdict.REJECT]


@pytest.mark.parametrize("level", Level)
def test_observing_scope_marks_what_it_would_reject(engine: Engine, level: Level) -> None:
    quota = limit(bytes_per_second=1_000, max_message_bytes=100, on_excess=OnExcess.OBSERVE)
    decider = Decider(engine, bound_at(level, quota))
    names = {Level.TENANT: "acme", Level.RESOURCE_GROUP: "gold", Level.JOB: ""}
    tokens = {name: (0.0, 1_000.0) for at, name in names.items() if at == level}
    marked = too_large(level, SCOPES[level], Verdict.ADMIT)
    assert decider.batch(0, [(NS, 101), (NS, 100)], tokens) == [marked, ADMITTED]
    assert decider.plan.usage[NS].observed_messages == 1


def test_dry_run_of_a_bound_is_not_in_debt_for_hours_after_one_row(engine: Engine) -> None:
    quota = limit(bytes_per_second=1_000, max_message_bytes=5_000, on_excess=OnExcess.OBSERVE)
    decider = Decider(engine, make_policy(default=Namespace(quota)))
    decider.batch(0, [(NS, MAX_SIZE_BYTES)])
    assert decider.plan.state.flows[NS].balance_micro[Dimension.BYTES] == -5_000 * MICRO
    decider.batch(6_000, [(NS, 10)])
    assert decider.plan.usage[NS].observed_messages == 0


def test_mark_of_a_size_goes_before_one_of_a_quota_and_counts_once(engine: Engine) -> None:
    quota = limit(bytes_per_second=10, max_message_bytes=100, on_excess=OnExcess.OBSERVE)
    decider = Decider(engine, make_policy(default=Namespace(quota)))
    decider.batch(0, [(NS, 50), (NS, 50), (NS, 500)])
    assert [decision.reason for decision in decider.plan.decisions] == ["", "quota", "size_too_large"]
    assert decider.plan.usage[NS].observed_messages == 2


def test_policy_without_a_bound_has_no_column_for_it() -> None:
    assert not make_policy(default=Namespace(limit(messages_per_second=1))).namespace_limits.settings
    bounded = make_policy(default=Namespace(limit(max_message_bytes=7))).namespace_limits
    assert bounded.take(np.array([0, 0])).settings["max_message_bytes"].tolist() == [7, 7]
