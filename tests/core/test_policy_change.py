"""A change of policy: what is remembered is told in the new policy's terms, and nobody waits for another's past."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.policy_change import carried, carried_shared, under_epoch
from spark_throttle.core.quota import (
    MICRO,
    MIN_BALANCE_MICRO,
    CompiledPolicy,
    Dimension,
    OnExcess,
    Overflow,
    QueueBounds,
    Verdict,
)
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import DeciderState
from tests.effort import examples
from tests.oracle.decider import START_MS, Decider, Engine
from tests.oracle.history import pins
from tests.oracle.worlds import Limit, Namespace, Tenant, Window, limit, make_policy

MESSAGES, BYTES = Dimension.MESSAGES, Dimension.BYTES
WEIGHTS = st.sampled_from([1, 2, 7, 1_000])
CHANGES = [change for change in product(OnExcess, OnExcess) if change[0] != change[1]]


@pytest.fixture(params=["kernel", "oracle"])
def engine(request: pytest.FixtureRequest) -> Engine:
    engine: Engine = request.param
    return engine


# Leads


GROUP_RATES = st.sampled_from([0.001, 0.01, 1, 50, 10**6])
SIZES = st.sampled_from([1, 60, 1_000])
FLOWS = ("a/1", "b/2", "c/3")


@st.composite
def group_limits(draw: st.DrawFn, *, in_one: bool = False) -> Limit:
    """Return limits in messages, bytes or both."""
    dimensions = draw(st.sampled_from(["messages", "bytes"] if in_one else ["messages", "bytes", "both"]))
    return limit(
        messages_per_second=None if dimensions == "bytes" else draw(GROUP_RATES),
        bytes_per_second=None if dimensions == "messages" else draw(GROUP_RATES),
    )


@st.composite
def contended(draw: st.DrawFn) -> CompiledPolicy:
    """Return a policy in which each flow is in one of two groups, or takes turns in its tenant or the job."""
    group = st.sampled_from(["g", "h", None])
    tenant = limit(messages_per_second=draw(GROUP_RATES)) if draw(st.booleans()) else limit()
    return make_policy(
        job=draw(group_limits()),
        tenants={"a": Tenant(tenant)},
        groups={"g": draw(group_limits()), "h": draw(group_limits())},
        namespaces={name: Namespace(limit(weight=draw(WEIGHTS)), draw(group)) for name in FLOWS},
    )


@st.composite
def some_tokens(draw: st.DrawFn, policy: CompiledPolicy) -> dict[str, tuple[float, float]]:
    """Return tokens for a few messages of every scope."""
    names = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    return {name: (draw(st.integers(0, 9)), draw(st.sampled_from([0, 100, 3_000]))) for name in names}


@pytest.mark.slow
@examples(5, in_search=1_000)
@given(st.data())
def test_l3_what_was_ahead_or_behind_under_other_policies_costs_no_more_than_it_was(data: st.DataObject) -> None:
    """From a change on, each is ahead or behind by its bound, and once more by what it was before."""
    sizes = {name: data.draw(SIZES) for name in FLOWS}
    weights = {name: data.draw(WEIGHTS) for name in FLOWS}
    decider = Decider("kernel", data.draw(contended()))
    arrivals = [(name, sizes[name]) for name in FLOWS] * 200
    for at in range(data.draw(st.integers(1, 4))):
        decider.policy = data.draw(contended()) if at and data.draw(st.booleans()) else decider.policy
        decider.batch(1_000 * at, arrivals, data.draw(some_tokens(decider.policy)))
        arrivals = []
    last = data.draw(group_limits(in_one=True))
    decider.policy = make_policy(
        groups={"g": last}, tenants={name[0]: Tenant(limit(weight=weights[name]), "g") for name in FLOWS}
    )
    in_messages = last.rate_micro_per_ms[MESSAGES] > 0
    row = {name: 1 if in_messages else sizes[name] for name in FLOWS}
    lag = {name: (row[name] + max(row.values())) / weights[name] for name in FLOWS}
    served: Counter[str] = Counter()
    for at in range(10, 30):
        tokens = data.draw(st.integers(0, 12)) * (1 if in_messages else max(sizes.values()))
        decider.batch(1_000 * at, [], {"g": (tokens, tokens)})
        served.update(decider.admitted())
        waiting = {name: decider.plan.usage[name].waiting[MESSAGES] for name in FLOWS if name in decider.plan.usage}
        backlogged = [name for name in FLOWS if waiting.get(name)]
        for f, g in combinations(backlogged, 2):
            difference = abs(served[f] * row[f] / weights[f] - served[g] * row[g] / weights[g])
            assert difference <= 2.01 * (lag[f] + lag[g]), (f, g, served, row, weights)


@pytest.mark.parametrize("low", [0.001, 0.01, 1])
def test_quota_that_is_raised_serves_equal_flows_alike_at_once(engine: Engine, low: float) -> None:
    def policy(rate: float) -> CompiledPolicy:
        return make_policy(groups={"g": limit(messages_per_second=rate)}, default=Namespace(group="g"))

    decider = Decider(engine, policy(low))
    decider.batch(0, [("a/x", 1)] * 100 + [("b/y", 1)] * 100, {"g": (0, 0)})
    decider.policy = policy(50)
    decider.batch(1_000, [], {"g": (19, 0)})
    assert sorted(decider.admitted().values()) in ([9, 11], [10, 10])


def test_flows_that_move_to_a_faster_group_are_served_with_its_own(engine: Engine) -> None:
    groups = {"slow": limit(messages_per_second=0.01), "fast": limit(messages_per_second=50)}

    def policy(group: str) -> CompiledPolicy:
        return make_policy(
            groups=groups,
            tenants={"a": Tenant(group=group), "b": Tenant(group=group), "c": Tenant(group="fast")},
        )

    decider = Decider(engine, policy("slow"))
    nothing = (-1, -1)
    decider.batch(0, [("a/x", 1)] * 99 + [("b/y", 1)] * 99, {"slow": (0, 0), "fast": nothing})
    decider.policy = policy("fast")
    decider.batch(1_000, [("c/z", 1)] * 99, {"slow": nothing, "fast": (29, 0)})
    assert sorted(decider.admitted().values()) in ([9, 10, 11], [10, 10, 10])


def test_weight_that_is_cut_keeps_a_lead_of_a_message(engine: Engine) -> None:
    def policy(weight: int) -> CompiledPolicy:
        group = {"g": limit(messages_per_second=0.01, burst_seconds=10_000)}
        return make_policy(
            groups=group, namespaces={"a/x": Namespace(limit(weight=weight), "g")}, default=Namespace(group="g")
        )

    decider = Decider(engine, policy(1))
    decider.batch(0, [("a/x", 1)] * 50 + [("b/y", 1)] * 50, {"g": (0, 0)})
    decider.policy = policy(1_000)
    decider.batch(1, [], {"g": (-1, 0)})
    decider.policy = policy(1)
    decider.batch(1_000, [], {"g": (19, 0)})
    assert sorted(decider.admitted().values()) in ([9, 11], [10, 10])


def test_domain_whose_limit_goes_and_returns_forgets_who_was_ahead(engine: Engine) -> None:
    def policy(rate: float | None) -> CompiledPolicy:
        return make_policy(groups={"g": limit(messages_per_second=rate)}, default=Namespace(group="g"))

    decider = Decider(engine, policy(0.01))
    decider.batch(0, [("a/x", 1)] * 9 + [("b/y", 1)] * 9, {"g": (0, 0)})
    decider.policy = policy(None)
    decider.batch(1, [])
    assert sum(decider.admitted().values()) == 17
    decider.policy = policy(50)
    decider.batch(2, [("a/x", 1)] * 99 + [("b/y", 1)] * 99, {"g": (19, 0)})
    assert sorted(decider.admitted().values()) == [10, 10]


def test_group_keeps_its_lead_beside_others_when_its_own_entry_limits_something_else() -> None:
    before, after = (
        make_policy(job=limit(messages_per_second=1), groups={"g": each, "h": limit()}, default=Namespace(group="h"),
                    namespaces={"a/x": Namespace(group="g")})
        for each in (limit(), limit(bytes_per_second=5))
    )  # fmt: skip
    decider = Decider("kernel", before)
    decider.batch(0, [("a/x", 1), ("b/x", 1)] * 9, {"": (0, 0)})
    nodes = carried(decider.state, before, after, now_ms=START_MS).nodes
    leads = dict(zip(nodes.group.to_pylist(), nodes.lead_work[:, 0].tolist(), strict=True))
    assert leads["g"] == -leads["h"] != 0


# First limits


@pytest.mark.parametrize("is_remembered", [False, True])
def test_namespace_starts_full_in_each_dimension_that_gets_its_first_limit(engine: Engine, is_remembered: bool) -> None:
    """Remembered or not: a namespace that waits for its group, and one that has nothing to remember."""
    groups = {"g": limit(messages_per_second=1, burst_seconds=10_000)}
    unlimited = make_policy(groups=groups, namespaces={"a/x": Namespace(group="g")})
    decider = Decider(engine, unlimited)
    decider.batch(0, [("a/x", 1)] * (2 if is_remembered else 1), {"g": (0, 0)})
    quota = limit(messages_per_second=100, burst_seconds=10)
    decider.policy = make_policy(groups=groups, namespaces={"a/x": Namespace(quota, "g")})
    decider.batch(1, [("a/x", 1)] * 900, {"g": (5_000, 0)})
    assert decider.admitted()["a/x"] == 900 + is_remembered
    both = limit(messages_per_second=100, bytes_per_second=50, burst_seconds=10)
    decider.policy = make_policy(groups=groups, namespaces={"a/x": Namespace(both, "g")})
    decider.batch(2, [("a/x", 5)] * 900, {"g": (5_000, 0)})
    left = 1_000 - 900 - is_remembered
    assert decider.plan.usage["a/x"].admitted == (left + 1, 5 * (left + 1), 0, 0)  # 500 bytes would let 101 pass


def test_limit_of_0_is_a_limit_and_owes_nothing_when_it_is_raised(engine: Engine) -> None:
    def policy(rate: float) -> CompiledPolicy:
        return make_policy(default=Namespace(limit(messages_per_second=rate, burst_seconds=10)))

    decider = Decider(engine, policy(0))
    assert [decision.verdict for decision in decider.batch(0, [("a/x", 1)] * 3)] == [Verdict.DELAY] * 3
    decider.policy = policy(1)
    decider.batch(60_000)
    assert decider.admitted()["a/x"] == 1
    decider.batch(61_000)
    assert decider.admitted()["a/x"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("on_excess", [OnExcess.REJECT, OnExcess.DELAY])
def test_limit_that_is_0_now_and_then_pays_no_burst_again(engine: Engine, on_excess: OnExcess) -> None:
    def policy(rate: float) -> CompiledPolicy:
        quota = limit(messages_per_second=rate, burst_seconds=10, on_excess=on_excess)
        return make_policy(default=Namespace(quota), queue=QueueBounds(1, 1 << 20, None, Overflow.REJECT))

    decider, admitted = Decider(engine, policy(10)), 0
    for batch in range(20):
        decider.policy = policy(0 if batch % 2 else 10)
        decider.batch(100 * batch, [("a/x", 1)] * 300)
        admitted += decider.admitted().get("a/x", 0)
    assert admitted <= 100 + 2 * 10 + 1


def test_namespace_that_nobody_has_heard_of_is_not_remembered_under_a_limit_of_0(engine: Engine) -> None:
    decider = Decider(engine, make_policy(default=Namespace(limit(messages_per_second=0, on_excess=OnExcess.REJECT))))
    decider.batch(0, [("a/x", 1), ("a/y", 1)])
    assert decider.plan.state.flows == {}


def test_limit_of_0_forgives_no_debt(engine: Engine) -> None:
    def policy(rate: float) -> CompiledPolicy:
        return make_policy(default=Namespace(limit(bytes_per_second=rate)))

    decider = Decider(engine, policy(1))
    decider.batch(0, [("a/x", 61), ("a/x", 1)])
    decider.policy = policy(0)
    decider.batch(10)
    decider.policy = policy(1)
    assert decider.batch(1_000)[0].throttle_time_ms == 60_000 - 10


@pytest.mark.parametrize(("rate", "burst_seconds"), [(5, 0.2), (1, 1), (0, 1)])
@pytest.mark.parametrize("offered", [60, 20])
def test_a_small_burst_for_a_moment_gives_no_burst_again(
    engine: Engine, rate: float, burst_seconds: float, offered: int
) -> None:
    """A bucket of 50 is made smaller for a second, and larger again, 15 times; the smaller one is full in between."""
    policies = [
        make_policy(default=Namespace(limit(messages_per_second=each, burst_seconds=s, on_excess=OnExcess.REJECT)))
        for each, s in ((5, 10), (rate, burst_seconds))
    ]
    decider, went = Decider(engine, policies[0]), 0
    for second in range(30):
        decider.policy = policies[second % 2]
        decider.batch(1_000 * second, [("a/x", 1)] * (0 if second % 2 else offered))
        went += decider.admitted()["a/x"]
    assert went <= 50 + (5 + rate) * 15 + 1


def test_namespace_that_used_its_burst_under_a_smaller_one_alone_has_the_larger_one_whole(engine: Engine) -> None:
    small, large = (
        make_policy(default=Namespace(limit(messages_per_second=5, burst_seconds=each, on_excess=OnExcess.REJECT)))
        for each in (0.2, 1)
    )
    decider = Decider(engine, small)
    decider.batch(0, [("a/x", 1)] * 9)
    decider.batch(1_000)
    decider.policy = large
    decider.batch(1_001, [("a/x", 1)] * 9)
    assert decider.admitted()["a/x"] == 5 + 1


def test_namespace_that_was_cut_is_forgotten_once_its_former_bucket_would_be_full(engine: Engine) -> None:
    large, small = (
        make_policy(default=Namespace(limit(messages_per_second=5, burst_seconds=each))) for each in (1, 0.2)
    )
    decider = Decider(engine, large)
    decider.batch(0, [("a/x", 1)] * 5)
    decider.policy = small
    decider.batch(100)
    known = []
    for now_ms in (999, 1_000):
        decider.batch(now_ms)
        known.append(decider.plan.state.flows)
    assert [list(each) for each in known] == [["a/x"], []]


def test_namespace_that_is_exempted_and_held_again_starts_full(engine: Engine) -> None:
    quota = Namespace(limit(messages_per_second=1, burst_seconds=5))
    decider = Decider(engine, make_policy(namespaces={"a/x": quota}))
    decider.batch(0, [("a/x", 1)] * 20)
    assert decider.admitted()["a/x"] == 6
    decider.policy = make_policy(namespaces={"a/x": quota}, exempt=["a/x"])
    decider.batch(1)
    assert decider.admitted()["a/x"] == 14
    decider.policy = make_policy(namespaces={"a/x": quota})
    decider.batch(2, [("a/x", 1)] * 20)
    assert decider.admitted()["a/x"] == 6


@pytest.mark.parametrize("dimension", Dimension)
def test_shared_scope_begins_full_in_the_dimension_that_had_no_limit(dimension: Dimension) -> None:
    rates: dict[str, Any] = {
        "messages_per_second": 5, "bytes_per_second": 5, "units_per_second": 5, "request_percentage": 0.5
    }  # fmt: skip
    key = list(rates)[dimension]
    one, every = limit(**{key: rates[key]}), limit(**rates)
    before, after = (make_policy(groups={"g": each}, tenants={"a": Tenant(each)}) for each in (one, every))
    spent = np.full((3, 4), -7 * MICRO)
    told = carried_shared(spent, before, after)
    others = [each for each in Dimension if each != dimension]
    assert told[1:, dimension].tolist() == [-7 * MICRO] * 2
    assert told[1:, others].tolist() == [[5 * MICRO] * 3] * 2
    back = carried_shared(told, after, before)
    assert back[1:, others].tolist() == [[0, 0, 0]] * 2


def test_shared_scope_that_is_removed_and_put_back_begins_full_and_owes_nothing() -> None:
    held = make_policy(groups={"g": limit(messages_per_second=5)})
    removed = make_policy()
    owing = np.array([[0, 0, 0, 0], [-90 * MICRO, 0, 0, 0]])
    told = carried_shared(carried_shared(owing, held, removed), removed, held)
    assert told.tolist() == [[0, 0, 0, 0], [5 * MICRO, 0, 0, 0]]


def test_burst_that_shrinks_cuts_a_balance_and_one_that_grows_adds_nothing() -> None:
    def policy(burst_seconds: float) -> CompiledPolicy:
        return make_policy(job=limit(messages_per_second=10, burst_seconds=burst_seconds))

    balance = np.array([[80 * MICRO, 0, 0, 0]])
    assert carried_shared(balance, policy(9), policy(2)).tolist() == [[20 * MICRO, 0, 0, 0]]
    assert carried_shared(balance, policy(9), policy(90)).tolist() == [[80 * MICRO, 0, 0, 0]]


# Dry runs


def observed(on_excess: OnExcess, level: str) -> CompiledPolicy:
    """Return a policy of 10 messages a second at one level."""
    quota = limit(messages_per_second=10, on_excess=on_excess)
    if level == "namespace":
        return make_policy(namespaces={"a/x": Namespace(quota)})
    if level == "tenant":
        return make_policy(tenants={"a": Tenant(quota)})
    if level == "group":
        return make_policy(groups={"g": quota}, default=Namespace(group="g"))
    return make_policy(job=quota)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_namespace_owes_a_burst_at_most_once_it_enforces(engine: Engine, change: tuple[OnExcess, OnExcess]) -> None:
    """One that enforced keeps its debt, of a message; one that observed owes a burst, whatever passed."""
    before, after = change
    decider = Decider(engine, observed(before, "namespace"))
    for second in range(15):
        decider.batch(1_000 * second, [("a/x", 1)] * 50)
    decider.policy = observed(after, "namespace")
    decider.batch(15_000, [("a/x", 1)])
    balance_micro = decider.plan.state.flows["a/x"].balance_micro[MESSAGES]
    assert balance_micro >= -10 * MICRO
    decider.batch(16_500, [("a/x", 1)])
    assert decider.admitted()["a/x"] >= 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", ["tenant", "group", "job"])
def test_shared_scope_owes_a_burst_at_most_once_it_enforces(level: str, change: tuple[OnExcess, OnExcess]) -> None:
    before, after = (observed(on_excess, level) for on_excess in change)
    scope = 0 if level == "job" else 1
    buckets = SharedBuckets.full(before, now_ms=0)
    used = np.zeros_like(buckets.balance_micro)
    used[scope, MESSAGES] = 50
    for second in range(30):
        buckets = buckets.refilled(before, now_ms=1_000 * second).debited(used, before, MIN_BALANCE_MICRO)
    owed = -int(carried_shared(buckets.balance_micro, before, after)[scope, MESSAGES])
    assert owed == (10 * MICRO if change[0] == OnExcess.OBSERVE else (50 * 30 - 10 * 30) * MICRO)


def test_debt_of_an_older_dry_run_is_cut_to_a_burst_of_the_new_quota(engine: Engine) -> None:
    decider = Decider(engine, observed(OnExcess.OBSERVE, "namespace"))
    decider.batch(0, [("a/x", 1)] * 50)
    flows = replace(decider.state.flows, balance_micro=np.array([[-(10**15), 0, 0, 0]]))
    decider.state = replace(decider.state, flows=flows)
    quota = limit(messages_per_second=20, burst_seconds=2)
    decider.policy = make_policy(namespaces={"a/x": Namespace(quota)})
    assert decider.batch(0, [("a/x", 1)])[0].throttle_time_ms == 2_000


def test_marks_end_a_burst_after_an_overload(engine: Engine) -> None:
    decider = Decider(engine, observed(OnExcess.OBSERVE, "namespace"))
    for second in range(30):
        decider.batch(1_000 * second, [("a/x", 1)] * 50)
    assert decider.plan.usage["a/x"].observed_messages >= 49
    decider.batch(30_000, [("a/x", 1)])
    decider.batch(31_500, [("a/x", 1)])
    assert decider.plan.usage["a/x"].observed_messages == 0


@pytest.mark.slow
def test_marks_of_messages_larger_than_a_burst_are_those_that_would_be_held(engine: Engine) -> None:
    """10 bytes a second, messages of 100: one in ten seconds passes, in a dry run as under enforcement."""
    passed: dict[OnExcess, list[int]] = {}
    for on_excess in (OnExcess.OBSERVE, OnExcess.REJECT):
        decider = Decider(engine, make_policy(default=Namespace(limit(bytes_per_second=10, on_excess=on_excess))))
        passed[on_excess] = []
        for second in range(40):
            decision = decider.batch(1_000 * second, [("a/x", 100)])[-1]
            if not decision.reason:
                passed[on_excess].append(second)
    assert passed[OnExcess.OBSERVE] == passed[OnExcess.REJECT] == [0, 9, 19, 29, 39]


# Rows that wait


def test_row_that_a_removed_rule_held_leaves_at_once(engine: Engine) -> None:
    held = Namespace(by_count=Window(delay_units=1, delay_ms=90_000))
    decider = Decider(engine, make_policy(namespaces={"a/x": held}))
    decider.batch(0, [("a/x", 1)] * 3)
    assert decider.admitted()["a/x"] == 1
    shorter = Namespace(by_count=Window(delay_units=1, delay_ms=500))
    decider.policy = make_policy(namespaces={"a/x": shorter})
    assert {decision.throttle_time_ms for decision in decider.batch(1_000)} == {500}
    decider.policy = make_policy()
    decider.batch(1_001)
    assert decider.admitted()["a/x"] == 2


def test_window_counts_on_through_a_change_within_its_second(engine: Engine) -> None:
    def policy(reject_units: int) -> CompiledPolicy:
        return make_policy(default=Namespace(by_count=Window(reject_units=reject_units, reject_ms=5)))

    decider = Decider(engine, policy(9))
    decider.batch(0, [("a/x", 1)] * 8)
    decider.policy = policy(10)
    assert [decision.verdict for decision in decider.batch(10, [("a/x", 1)] * 3)] == [
        Verdict.ADMIT,
        Verdict.ADMIT,
        Verdict.REJECT,
    ]


@pytest.mark.parametrize("held", [Namespace(by_count=Window(1, 800)), Namespace(by_size=Window(1, 800))])
def test_row_that_a_rule_on_messages_or_bytes_holds_is_held_on_when_another_quota_changes(
    engine: Engine, held: Namespace
) -> None:
    decider = Decider(engine, make_policy(default=held))
    decider.batch(0, [("t/n", 9), ("t/n", 9)])
    waiting = len(decider.state.queue)
    decider.policy = make_policy(job=limit(messages_per_second=1_000), default=held)
    decider.batch(300)
    assert len(decider.state.queue) == waiting > 0
    decider.batch(800)
    assert not len(decider.state.queue)


@pytest.mark.parametrize(("until_ms", "earned"), [(1_000, 10), (4_000, 40), (5_000, 40)])
@pytest.mark.parametrize("is_changed", [False, True])
def test_share_earns_until_it_ends_or_now_whether_or_not_the_policy_changes_too(
    until_ms: int, earned: int, *, is_changed: bool
) -> None:
    policy = make_policy(groups={"g": limit(messages_per_second=10, burst_seconds=5)}, default=Namespace(group="g"))
    state = DeciderState.initial(policy, now_ms=START_MS)
    spent = replace(state, shared=SharedBuckets(np.zeros_like(state.shared.balance_micro), START_MS))
    row = pins(1, START_MS + 4_000, earns_until_ms=START_MS + np.array([4_000, until_ms]))
    after = replace(policy, revision="r2") if is_changed else policy
    found = under_epoch(spent, row, policy, after, now_ms=START_MS + 4_000)
    assert found.shared.balance_micro[1, MESSAGES] == earned * MICRO


def test_time_that_changes_of_policy_have_paid_counts_for_the_next_batch() -> None:
    policy = make_policy()
    state = replace(DeciderState.initial(policy, now_ms=START_MS), advanced_to_ms=START_MS, paid_ms=5)
    assert carried(state, policy, replace(policy, revision="r2"), now_ms=START_MS + 3).paid_ms == 8
