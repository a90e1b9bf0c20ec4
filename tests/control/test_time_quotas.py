"""Quotas on processing time, in a whole job without a JVM: what rows cost is charged when the next epoch is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from spark_throttle.core.epoch import Epoch
from spark_throttle.errors import DamagedError
from spark_throttle.policy.compile import compile_policy
from spark_throttle.record import unpack
from spark_throttle.status.time_status import time_status_of
from spark_throttle.testing.simulation.disk import CrashPoint
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.query import Costs, SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.effort import crossed, thorough_after

MS = 1_000_000
"""Nanoseconds in a millisecond."""

HALF = {"publish": {"request_percentage": 50, "burst_seconds": 2}}
DEAR, CHEAP = "acme/x", "blue/x"
PLACES: dict[str, dict[str, Any]] = {
    "tenant": {"tenants": {"acme": HALF}},
    "resource group": {"resource_groups": {"gold": HALF}, "tenants": {"acme": {"resource_group": "gold"}}},
    "namespace": {"namespaces": {DEAR: HALF}},
    "glob": {"namespaces": {"acme/*": HALF}},
}


def costs(**each_ms: float) -> Costs:
    """Return the cost of rows that take so many milliseconds each, by tenant."""

    def cost_ns(rows: Sequence[Row]) -> Mapping[str, int]:
        messages = Counter(str(row.namespace) for row in rows)
        spent = {name: round(count * each_ms.get(name.partition("/")[0], 0) * MS) for name, count in messages.items()}
        return {name: time_ns for name, time_ns in spent.items() if time_ns}

    return cost_ns


TEN_TO_ONE = costs(acme=10, blue=1)


def played(
    job: SimulatedJob,
    seconds: int,
    *,
    step_ms: int = 1_000,
    per_second: int = 60,
    meanwhile: Callable[[int], None] = lambda _: None,
) -> list[SimulatedBatch]:
    """Return the batches of some seconds in which two namespaces offer the same rows."""
    batches = []
    for at_ms in range(0, seconds * 1_000, step_ms):
        meanwhile(at_ms)
        job.offer([(name, 100) for name in (DEAR, CHEAP) for _ in range(per_second * step_ms // 1_000)])
        batch = job.trigger(after_ms=step_ms)
        batches += [batch] if batch is not None else []
    return batches


def core_ms(job: SimulatedJob, batches: Sequence[SimulatedBatch], name: str = DEAR) -> float:
    """Return the processing time that a namespace's rows took."""
    return sum(job.cost_ns(batch.admitted).get(name, 0) for batch in batches) / MS


def admitted(batches: Sequence[SimulatedBatch], name: str) -> list[int]:
    """Return how many rows of a namespace each batch admitted."""
    return [sum(row.namespace == name for row in batch.admitted) for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("place", thorough_after(2, PLACES))
def test_dear_tenant_gets_its_quota_within_5_percent(place: str) -> None:
    """60 rows a second of 10 ms each would take 0.6 cores; of half a core, 50 rows a second pass."""
    seconds = 20
    job = SimulatedJob(PLACES[place], cost_ns=TEN_TO_ONE)
    played(job, 10)
    batches = played(job, seconds)
    assert core_ms(job, batches) == pytest.approx(0.5 * 1_000 * seconds, rel=0.05)
    assert admitted(batches, CHEAP) == [60] * seconds
    assert {name for row in job.waiting if (name := row.namespace)} == {DEAR}


@pytest.mark.thorough
@pytest.mark.slow
def test_quota_is_reached_with_short_batches_and_with_rows_dearer_than_a_batch() -> None:
    job = SimulatedJob(PLACES["tenant"], cost_ns=costs(acme=700))
    played(job, 10, step_ms=500, per_second=2)
    batches = played(job, 60, step_ms=500, per_second=2)
    assert core_ms(job, batches) == pytest.approx(0.5 * 60_000, rel=0.05)


@pytest.mark.slow
def test_charged_time_stays_within_the_quota_a_burst_and_one_batchs_error() -> None:
    seconds = 25
    for place in ("tenant", "namespace"):
        job = SimulatedJob(PLACES[place], cost_ns=TEN_TO_ONE)
        played(job, 3)  # the price becomes known, and what that cost is paid
        used_ms, worst_ms = 0.0, 0.0
        for second, batch in enumerate(played(job, seconds), start=1):
            spent_ms = core_ms(job, [batch])
            used_ms, worst_ms = used_ms + spent_ms, max(worst_ms, spent_ms)
            assert used_ms <= 500 * second + 1_000 + worst_ms
        assert used_ms >= 0.95 * 500 * seconds - 1_000


@pytest.mark.slow
@pytest.mark.parametrize("place", ["tenant", "namespace"])
def test_tenant_in_debt_changes_no_decision_on_others(place: str) -> None:
    document = PLACES[place] | {"defaults": {"publish": {"messages_per_second": 80, "burst_seconds": 1}}}
    costly, free = (SimulatedJob(document, cost_ns=cost) for cost in (costs(acme=100), costs()))
    found = [admitted(played(job, 15, per_second=100), CHEAP) for job in (costly, free)]
    assert found[0] == found[1]
    assert len([row for row in costly.waiting if row.namespace == DEAR]) > len(
        [row for row in free.waiting if row.namespace == DEAR]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("place", "factor"), crossed(["tenant", "namespace"], [10, 0.1], of=2))
def test_price_that_jumps_costs_one_batch_and_is_followed(place: str, factor: float) -> None:
    job = SimulatedJob(PLACES[place], cost_ns=costs(acme=10, blue=1))
    per_second = 600 if factor < 1 else 100  # of which at most 500 and 50 pass
    played(job, 10, per_second=100)
    job.cost_ns = costs(acme=10 * factor, blue=1)
    (first,) = played(job, 1, per_second=per_second)
    assert core_ms(job, [first]) <= (1_000 + 500) * max(1, factor) + 1_000
    played(job, 12, per_second=per_second)
    assert core_ms(job, played(job, 15, per_second=per_second)) == pytest.approx(0.5 * 15_000, rel=0.05)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("place", "phase"), crossed(["tenant", "namespace"], [2, 4], of=2))
def test_cheap_and_dear_rows_in_turns_overdraw_by_a_window_and_a_batch(place: str, phase: int) -> None:
    """Each phase is so many batches of a second, and the window 2 s; a dear row takes as long as 100 cheap ones."""
    job = SimulatedJob(PLACES[place], cost_ns=costs(acme=100))
    played(job, 4, per_second=300)
    spent_ms, worst_ms = 0.0, 0.0
    for second in range(60):
        job.cost_ns = costs(acme=100 if second // phase % 2 else 1)
        each_ms = core_ms(job, played(job, 1, per_second=300))
        spent_ms, worst_ms = spent_ms + each_ms, max(worst_ms, each_ms)
    assert spent_ms <= 0.5 * 60_000 + 1_000 + worst_ms
    assert worst_ms <= 2 * 2_000


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("place", ["tenant", "namespace"])
def test_rows_that_have_become_cheap_reach_the_quota_in_a_window_for_each_halving(place: str) -> None:
    job = SimulatedJob(PLACES[place], cost_ns=costs(acme=64))
    played(job, 20, per_second=8)  # more at a price that nothing was known of would be a debt of minutes
    job.cost_ns = costs(acme=1)
    played(job, 18, per_second=600)  # 6 windows, of which a short batch takes a little more, and what was saved up
    assert core_ms(job, played(job, 20, per_second=600)) == pytest.approx(0.5 * 20_000, rel=0.05)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("place", ["tenant", "namespace"])
def test_quota_that_changes_while_in_debt_is_the_new_one_soon(place: str) -> None:
    def quota(percentage: float | None) -> dict[str, Any]:
        publish = {} if percentage is None else {"request_percentage": percentage, "burst_seconds": 2}
        return {"tenants": {"acme": {"publish": publish}}, "namespaces": {}} if place == "tenant" else {
            "namespaces": {DEAR: {"publish": publish}}
        }  # fmt: skip

    job = SimulatedJob(quota(50), cost_ns=costs(acme=10))
    played(job, 10)
    for percentage in (80, 20):
        job.set_policies(quota(percentage))
        played(job, 4, per_second=100)
        assert core_ms(job, played(job, 20, per_second=100)) == pytest.approx(percentage * 200, rel=0.05)
    job.set_policies(quota(None))
    played(job, 2)
    assert job.waiting == []
    job.set_policies(quota(50))
    played(job, 10)
    assert core_ms(job, played(job, 20)) == pytest.approx(0.5 * 20_000, rel=0.05)


BURSTS: dict[str, tuple[float, ...]] = {
    "as given": (60,), "shorter": (0.1,), "toggled": (60, 0.1), "set back": (*[60] * 10, *[0.1] * 10),
}  # fmt: skip
"""The bursts in seconds, one after another, each for 5 s."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "row_ms"), crossed(BURSTS, [100, 1_000, 5_000], of=3))
def test_no_setting_of_burst_seconds_forgives_a_debt(kind: str, row_ms: int) -> None:
    """A tenant's administrator may set it: what passes is the quota, what was saved up, and one batch."""
    seconds, bursts = 80, BURSTS[kind]

    def document(burst_seconds: float) -> dict[str, Any]:
        return {"defaults": {"publish": {"request_percentage": 10, "burst_seconds": burst_seconds}}}

    job = SimulatedJob(document(bursts[0]), cost_ns=costs(acme=row_ms))
    batches = []
    for second in range(seconds):
        job.set_policies(document(bursts[second // 5 % len(bursts)]))
        job.offer([(DEAR, 1)] * (20 - len(job.waiting)))
        batch = job.trigger(after_ms=1_000)
        batches += [batch] if batch is not None else []
    worst_ms = max(core_ms(job, [batch]) for batch in batches)
    assert core_ms(job, batches) <= 100 * seconds + 100 * max(bursts) + worst_ms


@pytest.mark.slow
def test_namespace_that_reports_no_time_is_not_limited() -> None:
    document = {"namespaces": {"*": {"publish": {"request_percentage": 1}}}, "job": HALF}
    job = SimulatedJob(document, cost_ns=costs())
    assert admitted(played(job, 5), DEAR) == [60] * 5


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_quota_of_zero_admits_nothing(place: str) -> None:
    document = eval(repr(PLACES[place]).replace("50", "0"))  # noqa: S307 - a literal of ours
    job = SimulatedJob(document, cost_ns=TEN_TO_ONE)
    batches = played(job, 5)
    assert admitted(batches, DEAR) == [0] * 5
    assert admitted(batches, CHEAP) == [60] * 5


@pytest.mark.slow
def test_exempt_namespaces_are_measured_and_not_throttled() -> None:
    document = {"job": HALF, "exempt": [DEAR]}
    job = SimulatedJob(document, cost_ns=TEN_TO_ONE)
    assert admitted(played(job, 5), DEAR) == [60] * 5
    time = newest_epoch(job).time
    assert (time.exempt_ns, time.shared_ns.tolist(), time.interval_ms) == (600 * MS, [60 * MS], 1_000)


def newest_epoch(job: SimulatedJob) -> Any:
    """Return the newest epoch of a job."""
    name = max(path for path in job.checkpoint.control if path.startswith("epochs/"))
    return unpack(Epoch, job.checkpoint.control[name], name)


def test_job_without_time_quotas_stores_no_time() -> None:
    job = SimulatedJob({"tenants": {"acme": {"publish": {"messages_per_second": 5}}}}, cost_ns=TEN_TO_ONE)
    played(job, 3)
    assert newest_epoch(job).time is None


def test_batch_longer_than_a_window_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    job = SimulatedJob(PLACES["tenant"], cost_ns=TEN_TO_ONE)
    played(job, 12, step_ms=3_000)
    said = "longer than the bucket of tenant acme takes to fill: what it would have earned"
    assert any(said in record.getMessage() for record in caplog.records)


# Restarts


CRASHES: tuple[CrashPoint, ...] = ("after offset", "after state", "after table", "before feedback", "after feedback")


@pytest.mark.slow
@pytest.mark.parametrize(("place", "point"), crossed(["tenant", "namespace"], CRASHES, of=2))
def test_batch_that_runs_again_after_a_crash_gives_the_same_bytes(place: str, point: CrashPoint) -> None:
    jobs = [SimulatedJob(PLACES[place], cost_ns=TEN_TO_ONE) for _ in range(2)]
    crashing, smooth = jobs
    for job in jobs:
        played(job, 4)
    crashing.crash(at=point)
    for job in jobs:
        job.offer([(name, 100) for name in (DEAR, CHEAP) for _ in range(100)])
        job.trigger()
    crashing.restart()
    crashing_digests, smooth_digests = ({batch.number: batch.digest for batch in job.attempts} for job in jobs)
    assert crashing_digests == smooth_digests
    for job in jobs:
        played(job, 6)
    found = [[batch.digest for batch in job.attempts if batch.number > 5] for job in jobs]
    assert found[0] == found[1]
    assert smooth.admitted == crashing.admitted


@pytest.mark.slow
def test_charges_of_batches_that_were_undone_do_not_count() -> None:
    job = SimulatedJob(PLACES["tenant"], cost_ns=TEN_TO_ONE)
    played(job, 5)
    clean, put_back = (job.clone(with_sinks=True, is_elsewhere=False) for _ in range(2))
    job.cost_ns = costs(acme=90, blue=9)
    played(job, 3)
    put_back.checkpoint.control = dict(job.checkpoint.control)
    for each in (clean, put_back):
        each.restart()
    for turn in range(6):
        for each, after_ms in ((clean, 1_000), (put_back, 0)):
            each.cost_ns = TEN_TO_ONE if turn > 2 else costs()  # the batches that run in place of the undone ones
            each.offer([(name, 100) for name in (DEAR, CHEAP) for _ in range(100)])
            each.trigger(after_ms=after_ms)
    assert [row.id for row in clean.admitted] == [row.id for row in put_back.admitted]
    left = [newest_epoch(each).time.shared_left_ns.tolist() for each in (clean, put_back)]
    assert left[0] == left[1]


@pytest.mark.slow
def test_damaged_file_of_charges_is_named_and_may_be_deleted() -> None:
    job = SimulatedJob(PLACES["tenant"], cost_ns=TEN_TO_ONE)
    played(job, 3)
    newest = max(path for path in job.checkpoint.control if ".charges." in path)
    job.checkpoint.control[newest] = job.checkpoint.control[newest][:-3]
    with pytest.raises(DamagedError, match=f"{newest} is damaged: .*; delete it: what it charged"):
        job.trigger()
    del job.checkpoint.control[newest]
    job.restart()
    assert admitted(played(job, 1), CHEAP) == [60]


# Jobs that share their quotas


@pytest.mark.thorough
@pytest.mark.slow
def test_namespaces_time_is_limited_where_jobs_share_their_quotas() -> None:
    document = PLACES["namespace"] | {"tenants": {"blue": {"publish": {"messages_per_second": 1_000}}}}
    job = SimulatedJob(document, cost_ns=TEN_TO_ONE, exchange=SimulatedExchange())
    played(job, 6)
    assert core_ms(job, played(job, 20)) == pytest.approx(0.5 * 20_000, rel=0.05)


# What is shown


def test_status_has_the_time_used_and_the_throttle_time_by_scope() -> None:
    document = {"tenants": {"acme": HALF, "zoe": {}}, "namespaces": {DEAR: HALF}, "exempt": ["infra/*"]}
    job = SimulatedJob(document, cost_ns=costs(acme=20, blue=1))
    played(job, 1, per_second=100)
    job.trigger()
    epoch = newest_epoch(job)
    status = time_status_of(epoch, compile_policy(job.policies, "publish"))
    assert status is not None
    assert (status.job.interval_ms, status.job.exempt_ns, status.job.unattributed_ns) == (1_000, 0, 0)
    shown = status.by_scope()
    assert list(shown) == [("job", "job"), ("tenant", "acme"), ("tenant", "zoe"), ("namespace", DEAR)]
    acme = shown["tenant", "acme"]
    assert (acme.used_ns, acme.request_percentage, acme.ns_per_message) == (2_000 * MS, 50, 20 * MS)
    assert (acme.balance_ns, acme.throttle_ms) == (-500 * MS, 1_000)  # a window of debt, less a second's quota
    assert (shown["job", "job"].used_ns, shown["job", "job"].throttle_ms) == (2_100 * MS, None)
    assert shown["namespace", DEAR].used_ns == 2_000 * MS
    plain = SimulatedJob({})
    played(plain, 1)
    assert time_status_of(newest_epoch(plain), compile_policy(plain.policies, "publish")) is None
