"""Lives that are written out in which checkpoint and sinks are put back together: what is left undone counts, no more.

The epoch to which a job goes back holds its buckets as they were. To these comes what the batches that are left have
used since, and not what undone batches used, for their rows are undone too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.disk import Checkpoint
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.query import SimulatedBatch, Surroundings
from tests.effort import thorough_after

pytestmark = pytest.mark.slow

POLICY: Final[dict[str, Any]] = {
    "version": 1,
    "job": {"publish": {"bytes_per_second": 1_000, "burst_seconds": 1}},
}
LARGE_BYTES: Final = 100_000
Backup = tuple[Checkpoint, Surroundings]


def backup_of(job: SimulatedJob) -> Backup:
    return job.checkpoint.copy(), job.outside.copy()


def restore(job: SimulatedJob, backup: Backup, *, with_control: bool) -> None:
    """Put checkpoint and sinks back, and start the job; the source keeps its rows."""
    job.stop()
    checkpoint, outside = backup[0].copy(), backup[1].copy()
    if not with_control:
        checkpoint.control = dict(job.checkpoint.control)
    outside.source = job.outside.source
    job.checkpoint, job.outside = checkpoint, outside
    job.restart()


def large_admitted(job: SimulatedJob) -> bool:
    return any(row.size_bytes == LARGE_BYTES for row in job.admitted)


def overdrawn_job(**options: Any) -> SimulatedJob:
    """Return a job that has just admitted a message that its quota earns in 100 s, and whose backlog waits."""
    job = SimulatedJob(POLICY, **options)
    job.offer([("acme/a", 1_000)] * 3 + [("acme/a", LARGE_BYTES)] + [("acme/a", 1_000)] * 60)
    while not large_admitted(job):
        job.trigger(1_000)
    return job


def run(job: SimulatedJob, batches: int, name: str = "blue/a") -> list[SimulatedBatch]:
    """Run batches, each for a row that arrives."""

    def ran() -> Iterator[SimulatedBatch]:
        for _ in range(batches):
            job.offer([(name, 1_000)])
            batch = job.trigger(1_000)
            assert batch is not None
            yield batch

    return list(ran())


def admitted_in(job: SimulatedJob, seconds: int) -> int:
    before = len(job.admitted)
    for _ in range(seconds):
        job.trigger(1_000)
    return len(job.admitted) - before


@pytest.mark.thorough
@pytest.mark.parametrize("with_control", [False, True])
@pytest.mark.parametrize("batches", [1, 2, 4, 30])
def test_job_that_is_put_back_with_its_sinks_still_owes_a_large_message(batches: int, *, with_control: bool) -> None:
    job = overdrawn_job()
    backup = backup_of(job)
    run(job, batches)
    restore(job, backup, with_control=with_control)
    assert admitted_in(job, 60 - batches) == 0
    assert 0 < admitted_in(job, 60) <= 22


@pytest.mark.thorough
def test_checkpoint_that_is_put_back_by_all_batches_that_it_retains_owes_what_it_owed() -> None:
    job = overdrawn_job(batches_retained=100)
    backup = backup_of(job)
    for _ in range(100):
        job.offer([("blue/a", 1_000)])
        job.trigger(100)
    restore(job, backup, with_control=False)
    assert admitted_in(job, 80) == 0
    assert admitted_in(job, 60) > 0


def test_what_follows_is_the_same_whether_the_control_directory_was_put_back_too() -> None:
    policy = POLICY | {"resource_groups": {"g": {"publish": {"messages_per_second": 1}}}}
    policy |= {"tenants": {"blue": {"resource_group": "g"}}}
    lives = []
    for with_control in (False, True):
        job = SimulatedJob(POLICY)
        job.offer([(name, size) for size in (10, 9_000, 700) for name in ("acme/a", "acme/b", "blue/a")] * 10)
        run(job, 5)
        backup = backup_of(job)
        run(job, 3, "acme/b")
        job.set_policies(policy)
        run(job, 6, "green/a")
        restore(job, backup, with_control=with_control)
        lives.append([(batch.number, batch.epoch, batch.digest) for batch in run(job, 12)])
    assert lives[0] == lives[1]


def test_reports_of_a_batch_that_was_undone_are_not_those_of_another_of_its_number() -> None:
    """The checkpoint goes back, takes another way, and is then put back to where it was on the first."""
    job = SimulatedJob({"version": 1, "job": {"publish": {"bytes_per_second": 3_000, "burst_seconds": 1}}})
    job.offer([("acme/a", 1_000)])
    job.trigger(1_000)
    early = backup_of(job)
    run(job, 4)
    late = backup_of(job)
    restore(job, early, with_control=False)
    run(job, 3, "acme/b")
    job.offer([("acme/a", LARGE_BYTES)])
    job.trigger(60_000)
    assert large_admitted(job)
    assert len(job.checkpoint.log) == len(late[0].log)
    restore(job, late, with_control=False)
    assert not large_admitted(job)
    for _ in range(10):
        job.trigger(1_000)
    assert large_admitted(job)


def test_put_back_job_pays_its_peers_nothing_back_of_what_it_used_before() -> None:
    """To the jobs that share a quota, rows that were undone have been let through: they count for the quota."""
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10))
    group = {"publish": {"bytes_per_second": 1_000, "burst_seconds": 1}}
    policy = {"version": 1, "resource_groups": {"g": group}, "defaults": {"resource_group": "g"}}
    job = SimulatedJob(policy, exchange=exchange)
    job.offer([("acme/a", 100)] * 2_000)
    for _ in range(30):
        job.trigger(1_000)
    backup = backup_of(job)
    before = sum(row.size_bytes or 0 for batch in job.attempts for row in batch.admitted)
    at_ms = job.steady_ms
    for _ in range(20):
        job.trigger(1_000)
    restore(job, backup, with_control=False)
    for _ in range(20):
        job.trigger(1_000)
    used = sum(row.size_bytes or 0 for batch in job.attempts for row in batch.admitted) - before
    assert 15_000 < used <= job.steady_ms - at_ms + 1_000 + 2 * 100


def test_overdraft_of_a_shared_quota_is_kept_when_the_job_is_put_back() -> None:
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10))
    group = {"publish": {"bytes_per_second": 1_000, "burst_seconds": 1}}
    policy = {"version": 1, "resource_groups": {"g": group}, "defaults": {"resource_group": "g"}}
    job = SimulatedJob(policy, exchange=exchange)
    job.offer([("acme/a", LARGE_BYTES)] + [("acme/a", 1_000)] * 60)
    while not large_admitted(job):
        job.trigger(1_000)
    backup = backup_of(job)
    run(job, 4)
    restore(job, backup, with_control=False)
    assert admitted_in(job, 60) == 0


@pytest.mark.parametrize("batches_retained", thorough_after(1, [2, 100]))
def test_control_directory_stays_bounded(batches_retained: int) -> None:
    job = SimulatedJob(POLICY, batches_retained=batches_retained)
    most = 0
    for _ in range(batches_retained + 230):
        job.offer([("acme/a", 10)])
        job.trigger(10)
        kept = [name.partition("/")[0] for name in job.checkpoint.control]
        most = max(most, kept.count("batches"))
    assert batches_retained + 100 < most <= batches_retained + 210
