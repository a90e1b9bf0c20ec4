"""Processing time by scope: what an epoch settled, in `status`, and in the usage table, whose rows may be summed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spark_throttle.control.reports import report_of
from spark_throttle.core.usage import UsageReport
from spark_throttle.status.explain import explain_job
from spark_throttle.status.status import Status, read_status
from spark_throttle.status.time_status import JobTime, ScopeTime, time_status_of
from spark_throttle.status.usage_table import JOB_TIME_COLUMNS, TIME_COLUMNS, USAGE_SCHEMA, batch_usage
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.made_up_job import MadeUpJob

ANN = Author("ann")
OFFERED = {"acme/a": 4, "acme/own": 2, "blue/x": 3, "free/y": 1}
USED_MS = {"acme/a": 900, "acme/own": 300, "blue/x": 50, "free/y": 70}
MS = 1_000_000


@pytest.fixture
def job(tmp_path: Path) -> MadeUpJob:
    """Return a job whose tenant acme may use half a core, with a window of 1 s, and one of its namespaces a tenth."""
    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: 0)
    service.put("tenant", "acme", {"publish": {"request_percentage": 50, "burst_seconds": 1}}, ANN)
    service.put("tenant", "blue", {}, ANN)
    service.put("namespace", "acme/own", {"publish": {"request_percentage": 10, "burst_seconds": 10}}, ANN)
    service.put("exempt", "free/y", {}, ANN)
    return MadeUpJob(tmp_path / "control", store)


def status_of(job: MadeUpJob) -> Status:
    return read_status(str(job.control_path))


def reported(job: MadeUpJob, batch: int) -> UsageReport:
    found = report_of(job.directory, batch)
    assert found is not None
    return found


def test_status_has_the_time_of_every_scope_that_the_newest_epoch_settled(job: MadeUpJob) -> None:
    job.batch(OFFERED, used_ms=USED_MS, unattributed_ms=5)
    job.batch(OFFERED, seconds=2)
    status = status_of(job)
    assert status.time == JobTime(job.now_ms, 2_000, 70 * MS, 5 * MS)
    acme = status.of_level("tenant")["acme"].time
    # A burst of 500 ms less 1,200 ms is a debt of 700 ms; 2 s pay 1,000 ms of half a core.
    assert acme == ScopeTime(50.0, 50.0, 60.0, 1_200 * MS, 300 * MS, 0, 200 * MS)
    assert status.of_level("namespace")["acme/own"].time == ScopeTime(10.0, 10.0, 15.0, 300 * MS, 900 * MS, 0, 150 * MS)
    assert status.of_level("job")["job"].time == ScopeTime(None, None, 62.5, 1_250 * MS, None, None, 1_250 * MS // 9)
    assert status.of_level("namespace")["acme/a"].time is None


def test_throttle_time_is_how_long_a_debt_lasts(job: MadeUpJob) -> None:
    job.batch(OFFERED, used_ms=USED_MS)
    job.batch(OFFERED, seconds=0.25)
    acme = status_of(job).of_level("tenant")["acme"].time
    assert acme is not None
    assert (acme.balance_ns, acme.throttle_ms) == (-575 * MS, 1_150)


def test_explain_says_how_long_time_holds_a_backlog(job: MadeUpJob) -> None:
    job.batch(OFFERED, used_ms=USED_MS)
    job.batch(OFFERED, seconds=0.25)  # nothing of acme: it owes 575 ms, and its last messages took 200 ms each
    found = explain_job(str(job.control_path), "acme/a")
    own, tenant, whole = found.levels
    assert tenant.waiting == (6, 6_000, 0)
    assert (tenant.balance_time_ns, tenant.release_ms) == (-575 * MS, 2 * (575 + 6 * 200))
    assert (own.balance_time_ns, own.release_ms, whole.balance_time_ns, whole.release_ms) == (None, 0, None, 0)
    assert found.predicted_release_ms == tenant.release_ms
    # A quota of its own: it used 300 ms of 1 s, and 2 messages of 150 ms wait.
    assert explain_job(str(job.control_path), "acme/own").levels[0].release_ms == 0
    narrow = explain_job(str(job.control_path), "acme/a", is_wide=False)
    assert narrow.predicted_release_ms == tenant.release_ms  # its own tenant's, which it may see


def test_messages_that_were_not_measured_yet_count_at_the_last_price(job: MadeUpJob) -> None:
    job.batch({"acme/a": 1}, used_ms={"acme/a": 200})
    job.batch({"acme/a": 9}, seconds=1)  # 500 ms are there: 3 go, 600 ms are charged
    tenant = explain_job(str(job.control_path), "acme/a").levels[1]
    assert tenant.waiting == (6, 6_000, 0)
    assert (tenant.balance_time_ns, tenant.release_ms) == (-100 * MS, 2 * (100 + 6 * 200))


def test_what_a_quota_of_no_time_holds_never_leaves(tmp_path: Path) -> None:
    store = MemoryStore()
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "shut", {"publish": {"request_percentage": 0}}, ANN)
    job = MadeUpJob(tmp_path / "control", store)
    job.batch({"shut/x": 2})
    found = explain_job(str(job.control_path), "shut/x")
    assert (found.predicted_release_ms, found.levels[1].release_ms) == (None, None)
    assert found.notes == ("a quota of 0 holds it: what waits never leaves by itself",)


def test_policies_without_a_quota_on_time_show_none(tmp_path: Path) -> None:
    job = MadeUpJob(tmp_path / "control", MemoryStore())
    job.batch(OFFERED, used_ms=USED_MS)
    job.batch(OFFERED)
    status = status_of(job)
    assert status.time is None
    assert {scope.time for scope in status.scopes} == {None}
    rows = batch_usage(job.directory, reported(job, 1), 1)
    assert rows.schema == USAGE_SCHEMA
    assert {rows.column(name).null_count for name in (*TIME_COLUMNS, *JOB_TIME_COLUMNS)} == {len(rows)}


@pytest.mark.slow
def test_usage_table_has_what_was_settled_before_each_batch_and_its_rows_may_be_summed(job: MadeUpJob) -> None:
    """Batches in which nothing moves have the epoch of the one before, which settles nothing for them."""
    rows = []
    for offered, used_ms in ((OFFERED, USED_MS), (OFFERED, USED_MS), *[({}, {})] * 4):
        number = job.batch(offered, used_ms=used_ms, seconds=30)
        rows += batch_usage(job.directory, reported(job, number), number).to_pylist()
    of_job = [row for row in rows if row["level"] == "job"]
    assert len({row["epoch"] for row in of_job}) < len(of_job) == 6
    assert [row["used_time_ns"] // MS for row in of_job] == [0, 1_250, 1_250, 0, 0, 0]
    assert [row["exempt_time_ns"] // MS for row in of_job] == [0, 70, 70, 0, 0, 0]
    assert {row["unattributed_time_ns"] for row in of_job} == {0}
    of_acme = [row for row in rows if (row["level"], row["scope"]) == ("tenant", "acme")]
    assert [row["used_time_ns"] // MS for row in of_acme] == [0, 1_200, 1_200, 0, 0, 0]
    assert {(row["request_percentage"], row["throttle_time_ms"]) for row in of_acme} == {(50.0, 0)}
    assert {row["exempt_time_ns"] for row in rows if row["level"] != "job"} == {None}


@pytest.mark.slow
def test_usage_table_takes_no_epoch_that_a_killed_run_left_under_another_policy(job: MadeUpJob, tmp_path: Path) -> None:
    store = MemoryStore()
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {"publish": {"request_percentage": 7}}, ANN)
    other = MadeUpJob(tmp_path / "other", store)
    for each in (job, other):
        each.batch(OFFERED, used_ms=USED_MS)
        each.batch(OFFERED)
    batch, report = 1, reported(job, 1)
    before = batch_usage(job.directory, report, batch)
    prefix = f"{report.epoch:012d}-"
    left = next(name for name in other.directory.names("epochs") if name.startswith(prefix))
    content = other.directory.read(f"epochs/{left}")
    assert content is not None
    job.directory.write(f"epochs/{left}", content)
    assert batch_usage(job.directory, report, batch).equals(before)


def test_job_that_shares_a_quota_is_throttled_by_its_part(job: MadeUpJob) -> None:
    job.batch(OFFERED, used_ms=USED_MS)
    job.batch(OFFERED, seconds=0.5)
    epoch, policy = job.plane.epochs.load(job.epoch), job.policy
    assert epoch.time is not None
    assert policy is not None
    part = np.full((3, 4), -1, dtype=np.int64)
    part[1, 3] = 100_000  # a tenth of a core for acme, after the job, before blue
    status = time_status_of(replace(epoch, share_micro_per_ms=part), policy)
    assert status is not None
    acme = status.by_scope()["tenant", "acme"]
    assert (acme.request_percentage, acme.share_percentage) == (50, 10)
    assert (acme.balance_ns, acme.throttle_ms) == (-450 * MS, 4_500)
