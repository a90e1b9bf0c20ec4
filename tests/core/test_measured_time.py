"""Time is charged by an estimate and corrected by what was measured: post-paid, at most one batch over, then repaid."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.decisions import Decisions
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.measured_time import REMEMBERED_MS, MeasuredTime, _window_ms, corrected
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import CompiledPolicy, Dimension, OnExcess, Verdict
from spark_throttle.core.state import ControlRow, DeciderState
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.usage import UsageReport
from tests.effort import first_of
from tests.oracle.worlds import Namespace, Tenant, limit, make_arrivals, make_policy

MS = 1_000_000
START_MS = 1_760_000_000_000
HALF = limit(request_percentage=50, burst_seconds=2)


class Played:
    """A decider whose batches are measured: rows of a namespace take what `cost_ms` says."""

    def __init__(self, policy: CompiledPolicy, cost_ms: dict[str, float]) -> None:
        self.policy, self.cost_ms, self.now_ms = policy, cost_ms, START_MS
        self.state = DeciderState.initial(policy, now_ms=START_MS)
        self.measured: MeasuredTime | None = None
        self.report: UsageReport | None = None
        self.decisions: Decisions | None = None

    def batch(self, rows: dict[str, int], *, after_ms: int = 1_000) -> Counter[str]:
        """Return how many rows of each namespace a batch admits."""
        self.now_ms += after_ms
        row = ControlRow(self.state.epoch + 1, None, PayingTime(self.now_ms, self.now_ms), measured=self.measured)
        state = under_epoch(self.state, row, self.policy, self.policy, now_ms=self.now_ms)
        arrivals = make_arrivals([(name, 1) for name, count in rows.items() for _ in range(count)])
        plan = plan_admission(state, arrivals, self.policy, now_ms=self.now_ms)
        self.state, self.report, self.decisions = plan.state, plan.usage, plan.decisions
        admitted = plan.usage.admitted[:, Dimension.MESSAGES].tolist()
        found = Counter(dict(zip(plan.usage.names.to_pylist(), admitted, strict=True)))
        used_ns = {name: round(count * self.cost_ms.get(name, 0) * MS) for name, count in found.items() if count}
        self.measured = MeasuredTime.of(TimeCharges.of(used_ns), [plan.usage], self.policy)
        return found


def test_a_quota_of_no_time_has_no_window_in_which_it_fills() -> None:
    tenants = {"a": Tenant(limit(request_percentage=0)), "b": Tenant(HALF), "c": Tenant()}
    assert _window_ms(make_policy(tenants=tenants).shared).tolist() == [-1, 0, 2_000, -1]


def test_first_batch_passes_and_the_next_ones_repay_what_it_took() -> None:
    """A second is saved up. Ten rows of 300 ms take 3 s: 2 s are owed, and paid in 4 s."""
    played = Played(make_policy(default=Namespace(HALF)), {"acme/x": 300})
    assert played.batch({"acme/x": 10})["acme/x"] == 10
    assert [played.batch({"acme/x": 2})["acme/x"] for _ in range(5)] == [0, 0, 0, 1, 1]


def test_known_price_lets_pass_what_the_balance_pays_for_and_one_row_into_debt() -> None:
    """1 s is there: rows of 300 ms begin at 1,000, 700, 400 and 100 ms."""
    played = Played(make_policy(tenants={"acme": Tenant(HALF)}), {"acme/x": 300})
    played.batch({"acme/x": 1})
    assert played.batch({"acme/x": 9}, after_ms=60_000)["acme/x"] == 4
    assert played.report is not None
    assert played.report.shared_micro[1].tolist() == [0, 0, 0, -200 * MS]
    assert played.report.admitted[0].tolist() == [4, 4, 0, 1_200 * MS]


def test_row_that_time_refuses_is_told_so_with_how_long_the_debt_lasts() -> None:
    policy = make_policy(tenants={"acme": Tenant(limit(request_percentage=50, on_excess=OnExcess.REJECT))})
    played = Played(policy, {"acme/x": 500})
    played.batch({"acme/x": 3})
    played.batch({"acme/x": 1})  # 1,000 ms were owed, of which a second has paid 500
    assert played.decisions is not None
    assert played.decisions.verdict.tolist() == [Verdict.REJECT]
    assert played.decisions.dimension.tolist() == [Dimension.TIME]
    assert played.decisions.throttle_time_ms.tolist() == [1_000]


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(3, range(60)))
def test_no_scope_uses_more_than_its_quota_a_burst_and_one_batch(seed: int) -> None:
    """Whatever rows cost, and however that changes; and who has a backlog leaves nothing unused but a price's error."""
    rng = Random(seed)
    quotas = {name: limit(request_percentage=rng.choice((20, 50, 150)), burst_seconds=2) for name in ("acme", "blue")}
    job = limit(request_percentage=rng.choice((60, 120)), burst_seconds=2)
    policy = make_policy(job=job, tenants={name: Tenant(each) for name, each in quotas.items()})
    names = ["acme/x", "acme/y", "blue/x"]
    played = Played(policy, {name: rng.choice((1, 10, 100)) for name in names})
    used = {scope: [0.0] for scope in ("", "acme", "blue")}
    for second in range(1, 41):
        if rng.random() < 0.1:
            played.cost_ms[rng.choice(names)] = rng.choice((1, 10, 100, 1_000))
        found = played.batch({name: rng.choice((0, 5, 100)) for name in names})
        for scope, series in used.items():
            series.append(sum(n * played.cost_ms[name] for name, n in found.items() if name.startswith(scope)))
            quota = job if not scope else quotas[scope]
            rate_ms, burst_ms = quota.rate_micro_per_ms[3] / 1_000, quota.burst_micro[3] / MS
            largest = max(played.cost_ms.values())
            assert sum(series) <= burst_ms + rate_ms * second + max(series) + largest, (scope, second)


def test_price_rises_at_once_and_falls_by_half_in_the_shortest_window() -> None:
    policy = make_policy(job=limit(request_percentage=5_000, burst_seconds=100), tenants={"acme": Tenant(HALF)})
    played = Played(policy, {"acme/x": 8})
    found = []
    for cost_ms in (8, 16, 1, 1, 1):
        played.cost_ms["acme/x"] = cost_ms
        played.batch({"acme/x": 1}, after_ms=2_000)
        assert played.measured is not None
        state = corrected(played.state, played.measured, policy)
        found.append(int(state.flows.price_ns[0]) // MS)
    assert found == [8, 16, 8, 4, 2]


def test_idle_namespace_is_remembered_for_its_price_ten_minutes() -> None:
    played = Played(make_policy(job=HALF), {"acme/x": 1})
    played.batch({"acme/x": 1})
    played.batch({}, after_ms=REMEMBERED_MS)
    assert played.state.flows.names.to_pylist() == ["acme/x"]
    played.batch({}, after_ms=1)
    assert len(played.state.flows) == 0


def test_time_without_messages_is_charged_and_tells_no_price() -> None:
    policy = make_policy(default=Namespace(HALF), job=HALF)
    used = MeasuredTime(pa.array(["acme/x"]), np.array([3_000 * MS]), *np.zeros((3, 1), dtype=np.int64))
    state = corrected(DeciderState.initial(policy, now_ms=START_MS), used, policy)
    assert state.shared.balance_micro[0, Dimension.TIME] == -2_000 * MS
    assert state.flows.balance_micro[0, Dimension.TIME] == -2_000 * MS
    assert state.flows.price_ns.tolist() == [0]


def test_who_paid_for_a_batch_that_took_long_together_is_not_behind_for_more_than_the_price_of_that() -> None:
    policy = make_policy(job=HALF)
    state = DeciderState.initial(policy, now_ms=START_MS)
    state = replace(state, prices=replace(state.prices, common_ns=50))
    columns = (np.array([each]) for each in (1_000, 100, 3, 900))  # measured, estimated, messages, together
    found = corrected(state, MeasuredTime(pa.array(["acme/x"]), *columns), policy).corrected
    assert found is not None
    assert (found.charged.tolist(), found.cost.tolist()) == ([100], [1_000 - 900 + 3 * 50])


def test_only_who_passes_a_limit_on_time_is_pinned() -> None:
    policy = make_policy(tenants={"acme": Tenant(HALF)}, exempt=["acme/free"], namespaces={"zoe/*": Namespace(HALF)})
    charges = TimeCharges.of(dict.fromkeys(("acme/x", "acme/free", "blue/x", "zoe/y"), MS))
    assert MeasuredTime.of(charges, [], policy).names.to_pylist() == ["acme/x", "zoe/y"]
