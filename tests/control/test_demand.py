"""Demand and usage of each shared scope are rates, out of the reports of a job's batches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.control.demand import DemandMeter, SharedScopes
from spark_throttle.control.shared_quotas import SharedQuotas, owes_without_share
from spark_throttle.core.arithmetic.segments import name_hash, sums
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Dimension, OnExcess
from spark_throttle.core.usage import UsageReport
from spark_throttle.sharing.report import Measurement
from spark_throttle.sharing.settings import ShareSettings
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

CYCLE_MS = 5_000
POLICY = make_policy(
    job=limit(messages_per_second=9),
    tenants={"acme": Tenant(limit(messages_per_second=100), "gold"), "free": Tenant(), "seen": Tenant(group="watched")},
    groups={
        "gold": limit(messages_per_second=1_000, bytes_per_second=50),
        "watched": limit(messages_per_second=1, on_excess=OnExcess.OBSERVE),
    },
    namespaces={"acme/heavy": Namespace(limit(weight=7))},
)
ACME = int(name_hash(pa.array(["publish/tenant/acme"]))[0])
GOLD = int(name_hash(pa.array(["publish/resource_group/gold"]))[0])

Use = dict[str, tuple[int, int, int]]
"""By namespace: messages admitted, waiting, and wanted as far as its own limits go."""


def report(use: Use, now_ms: int, policy: CompiledPolicy = POLICY, price_ns: int = 0) -> UsageReport:
    names = pa.array(list(use), pa.string())
    found = match(names, policy)
    admitted, waiting, wanted = (
        np.array(
            [[row[column], 10 * row[column], 0, price_ns * row[column]] for row in use.values()], dtype=np.int64
        ).reshape(-1, 4)
        for column in range(3)
    )
    nothing = np.zeros(len(use), dtype=np.int64)
    return UsageReport(
        1, policy.revision, now_ms, names, found.tenant, found.group, nothing + 1, admitted + waiting, admitted,
        0 * admitted, waiting, wanted, nothing, nothing, np.zeros((len(policy.shared), 4), dtype=np.int64), NEVER_MS,
        NEVER_MS, NEVER_MS,
    )  # fmt: skip


def measure(*batches: tuple[int, Use], now_ms: int | None = None, policy: CompiledPolicy = POLICY) -> Measurement:
    """Return what is measured after batches, each of which ended a second after its time."""
    meter = DemandMeter("publish", CYCLE_MS, 12 * CYCLE_MS)
    ended_ms = 0
    for time_ms, use in batches:
        ended_ms = time_ms + 1_000
        meter.add(report(use, time_ms, policy), now_ms=ended_ms)
    return meter.measure(policy, now_ms=ended_ms if now_ms is None else now_ms)


def wanted(measured: Measurement, scope: int) -> list[float]:
    at = int(np.searchsorted(measured.ids, scope))
    return (sums(measured.bin_row, measured.bin_demand, len(measured.ids))[at] / 1000).tolist()


def test_scopes_that_jobs_share_are_tenants_and_groups_with_a_limit_that_is_enforced() -> None:
    assert sorted(SharedScopes.of(POLICY, "publish").ids.tolist()) == sorted([ACME, GOLD])
    assert not set(SharedScopes.of(POLICY, "dispatch").ids.tolist()) & {ACME, GOLD}


def test_demand_is_what_arrives_in_a_cycle_and_what_waits() -> None:
    batches = [(second * 1_000, {"acme/a": (50, 0, 50)}) for second in range(20)]
    steady = measure(*batches)
    assert wanted(steady, GOLD) == wanted(steady, ACME) == [50.0, 500.0]
    assert (steady.usage[np.searchsorted(steady.ids, GOLD)] / 1000).tolist() == [50.0, 500.0]
    behind = measure(*batches, (20_000, {"acme/a": (50, 100, 150)}))
    assert wanted(behind, GOLD) == [50.0 + 100 / 5, 500.0 + 1000 / 5]


TIMED = make_policy(
    tenants={"acme": Tenant(limit(request_percentage=50), "gold")}, groups={"gold": limit(messages_per_second=1_000)}
)
ACME_TIME = int(name_hash(pa.array(["publish/tenant.time/acme"]))[0])


def test_time_is_wanted_at_the_price_that_is_known_and_a_millisecond_a_message_before() -> None:
    for price_ns, ms in ((0, 1), (10_000_000, 10)):
        meter = DemandMeter("publish", CYCLE_MS, 12 * CYCLE_MS)
        for second in range(20):
            told = report({"acme/a": (50, 100, 150)}, second * 1_000, TIMED, price_ns)
            meter.add(told, now_ms=second * 1_000 + 1_000)
        found = meter.measure(TIMED, now_ms=20_000)
        at = np.searchsorted(found.ids, ACME_TIME)
        assert wanted(found, ACME_TIME) == [70.0 * ms, 0.0]  # ms a second
        assert (found.usage[at] / 1000).tolist() == [50.0 * ms, 0.0]
        assert found.quota[at].tolist() == [500_000, -1]
        assert wanted(found, GOLD)[0] == 70.0


def test_time_and_units_are_shared_where_they_are_enforced_but_in_the_job() -> None:
    watched = limit(request_percentage=50, on_excess=OnExcess.OBSERVE)
    policy = make_policy(
        job=limit(request_percentage=50),
        tenants={"acme": Tenant(watched)},
        groups={"gold": limit(request_percentage=5)},
    )
    scopes = SharedScopes.of(policy, "publish")
    assert (scopes.position.tolist(), scopes.alone.tolist()) == ([2], [Dimension.TIME])
    both = SharedScopes.of(
        make_policy(
            groups={
                "a": limit(messages_per_second=1, request_percentage=5),
                "b": limit(messages_per_second=2, units_per_second=3),
            }
        ),
        "publish",
    )
    assert sorted(zip(both.position.tolist(), both.alone.tolist(), strict=True)) == [
        (1, -1),
        (1, Dimension.TIME),
        (2, -1),
        (2, Dimension.UNITS),
    ]
    values = np.array([[-1, -1, -1, -1], [7, -1, -1, 9], [8, -1, 5, -1]])
    assert both.spread(both.taken(values), 0 * values - 1).tolist() == values.tolist()
    assert both.taken(values)[both.alone == Dimension.TIME].tolist() == [[9, -1]]


def test_demand_that_rose_is_known_when_it_is_seen_for_the_second_time() -> None:
    quiet = [(second * 1_000, {"acme/a": (20, 0, 20)}) for second in range(20)]
    first = (20_000, {"acme/a": (30, 50, 80)})
    assert wanted(measure(*quiet, first), GOLD)[0] == 20 + (80 - 20) / 5
    second = (21_000, {"acme/a": (30, 100, 130)})  # 80 arrived, of which 50 wait with the 50 from before
    assert wanted(measure(*quiet, first, second), GOLD)[0] == 80


def test_burst_is_no_rate() -> None:
    files = [(second * 1_000, {"acme/a": (100, 0, 100) if second % 5 == 0 else (0, 0, 0)}) for second in range(21)]
    assert wanted(measure(*files), GOLD)[0] == 20
    drained = [(21_000, {"acme/a": (50, 400, 450)}), (22_000, {"acme/a": (200, 200, 400)})]
    assert wanted(measure(*files, *drained), GOLD)[0] == (50 + 200 + 200 + 100) / 5


@pytest.mark.slow
def test_rise_must_last_for_an_eighth_of_a_cycle_however_short_the_batches_are() -> None:
    quiet = [(step * 100, {"acme/a": (2, 0, 2)}) for step in range(100)]
    rise = [(step * 100, {"acme/a": (8, 0, 8)}) for step in range(100, 120)]
    for batches in range(1, 8):
        mean = (2 * (50 - batches) + 8 * batches) / 5
        assert wanted(measure(*quiet, *rise[:batches]), GOLD)[0] == mean
    assert wanted(measure(*quiet, *rise[:14]), GOLD)[0] == 80


def test_batches_that_take_longer_than_a_cycle_are_measured_over_their_own_time() -> None:
    assert wanted(measure((0, {"acme/a": (1, 0, 1)}), (20_000, {"acme/a": (400, 0, 400)})), GOLD) == [20.0, 200.0]


def test_what_a_namespace_may_not_use_anyway_is_no_claim() -> None:
    assert wanted(measure((0, {}), (5_000, {"acme/a": (5, 10**9, 25)})), GOLD) == [5.0, 50.0]


def test_histogram_has_the_weights() -> None:
    measured = measure((0, {}), (5_000, {"acme/a": (50, 0, 50), "acme/heavy": (50, 0, 50), "free/x": (9, 0, 9)}))
    at = int(np.searchsorted(measured.ids, GOLD))
    assert sorted(measured.bin_weight[measured.bin_row == at].tolist()) == [1, 7]


def test_demand_is_gone_a_cycle_after_the_last_batch_and_the_scope_some_cycles_later() -> None:
    meter = DemandMeter("publish", CYCLE_MS, 2 * CYCLE_MS)
    meter.add(report({"acme/a": (50, 0, 50)}, 0), now_ms=1_000)
    assert wanted(meter.measure(POLICY, now_ms=1_000), GOLD)[0] > 0
    later = meter.measure(POLICY, now_ms=7_000)
    assert wanted(later, GOLD) == [0.0, 0.0]
    assert GOLD in later.ids
    assert GOLD not in meter.measure(POLICY, now_ms=20_000).ids


def test_time_that_rows_wait_for_is_not_given_up_however_little_they_take() -> None:
    meter = DemandMeter("publish", CYCLE_MS, 2 * CYCLE_MS)
    meter.add(report({"acme/a": (0, 3, 3)}, 0, TIMED, price_ns=1), now_ms=1_000)
    for now_ms in range(2_000, 100_000, 1_000):
        assert ACME_TIME in meter.measure(TIMED, now_ms=now_ms).ids


@pytest.mark.parametrize(("has_share", "until_ms"), [(True, 2_000), (False, 2_000 + 12 * CYCLE_MS)])
def test_a_scope_in_debt_and_no_other_is_kept_until_its_share_has_repaid_it(
    monkeypatch: pytest.MonkeyPatch, *, has_share: bool, until_ms: int
) -> None:
    kept = dict[int, int]()
    monkeypatch.setattr(DemandMeter, "keep", lambda _, scopes, until: kept.update(zip(scopes, until, strict=True)))
    settings = ShareSettings(interval_ms=CYCLE_MS, lease_ms=10 * CYCLE_MS, report_every=12)
    quotas = SharedQuotas(SimpleNamespace(settings=settings, member="job"), "publish")  # type: ignore[arg-type]
    rate = POLICY.shared.rate_micro_per_ms
    scopes, balance = SharedScopes.of(POLICY, "publish"), np.zeros_like(rate)
    at = scopes.position[scopes.ids == GOLD]
    balance[at, Dimension.MESSAGES] = -2_000 * rate[at, Dimension.MESSAGES]
    quotas.keep_until_repaid(POLICY, balance, rate if has_share else np.minimum(rate, 0), now_ms=0)
    assert kept == {GOLD: until_ms}


@pytest.mark.parametrize(
    ("revision", "balance", "has_share", "owes"),
    [
        (POLICY.revision, -2, False, True),
        (POLICY.revision, -1, False, False),  # what a bucket without a share lacks though it owes nothing
        (POLICY.revision, -2, True, False),
        ("another", -2, False, False),
        (None, -2, False, False),
    ],
)
def test_a_debt_waits_for_a_share_if_the_last_batch_left_it_and_none_repays_it(
    revision: str | None, balance: int, *, has_share: bool, owes: bool
) -> None:
    rate = POLICY.shared.rate_micro_per_ms
    last: Any = revision and SimpleNamespace(revision=revision, shared_micro=np.full_like(rate, balance))
    assert owes_without_share(POLICY, last, rate if has_share else np.minimum(rate, 0)) is owes


def test_of_budgets_is_told_what_is_wanted_and_the_weights_of_those_who_want_it() -> None:
    quota = limit(messages_per_second=100, messages_per_day=1_000)
    policy = make_policy(tenants={"acme": Tenant(quota)}, namespaces={"acme/heavy": Namespace(limit(weight=7))})
    meter = DemandMeter("publish", CYCLE_MS, 12 * CYCLE_MS)
    use = {"acme/a": (5, 0, 25), "acme/heavy": (5, 0, 5), "acme/idle": (0, 0, 0)}
    meter.add(report(use, 0, policy), now_ms=1_000)
    meter.measure(policy, now_ms=1_000)
    assert meter.wanted is not None
    demand, weight = meter.wanted
    scopes = SharedScopes.of(policy, "publish")
    at = scopes.position[scopes.ids == ACME]
    assert weight[at].tolist() == [1 + 7]
    assert demand[at, Dimension.MESSAGES] > 0


def test_job_that_starts_takes_its_seats_before_there_are_rows() -> None:
    meter = DemandMeter("publish", CYCLE_MS, 2 * CYCLE_MS)
    assert sorted(meter.measure(POLICY, now_ms=5).ids.tolist()) == sorted([ACME, GOLD])


@pytest.mark.parametrize("scopes", [0, 1])
def test_policy_that_shares_nothing_is_measured_as_nothing(scopes: int) -> None:
    policy = make_policy(groups={"free": limit()} if scopes else {})
    assert len(measure((0, {"free/a": (1, 0, 1)}), policy=policy).ids) == 0


def test_namespaces_that_moved_to_another_group_are_counted_there() -> None:
    meter = DemandMeter("publish", CYCLE_MS, 12 * CYCLE_MS)
    meter.add(report({"free/x": (50, 0, 50)}, 0), now_ms=1_000)
    moved = replace(POLICY, revision="moved", tenant_group=np.zeros_like(POLICY.tenant_group))
    assert wanted(meter.measure(moved, now_ms=1_000), GOLD)[0] > 0
