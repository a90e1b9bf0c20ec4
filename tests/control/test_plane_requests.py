"""A control directory on an object store is asked for a known number of files for each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_throttle.control.epochs import EpochName
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.files.storage import Directory
from spark_throttle.spark.move.decider_batch import BatchOutcome
from tests.control.queries import Query, per_second
from tests.control.whole_job import Rows, WholeJob
from tests.object_store import ObjectStore, object_store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(monkeypatch) as found:
        yield found


class StoredQuery(Query):
    """A query whose control directory is on an object store."""

    @property
    def directory(self) -> Directory:
        return Directory("s3://lake/control")

    def restart(self) -> None:
        fence = RunFence(self.directory)
        self.plane = ControlPlane(self.directory, self.policies, "publish", lambda: self.now_ms, fence=fence)

    def step(self, store: ObjectStore, *, waiting: int) -> Counter[str]:
        """Run a batch, and return what planning the next one asked for, by folder."""
        self.busy_batch(5, waiting=waiting, due_ms=self.now_ms if waiting else NEVER_MS)
        before = self.name
        asked, policies = len(store.requests), self.policies.asked
        self.trigger()
        self.plane.forget_before(before)
        assert self.policies.asked == policies + 1
        return Counter(f"{kind} {key.split('/')[1]}" for kind, key in store.requests[asked:])


@pytest.fixture
def query(store: ObjectStore) -> StoredQuery:
    return StoredQuery(Path("control"))


@pytest.mark.slow
def test_planning_a_batch_reads_and_lists_nothing_twice(query: StoredQuery, store: ObjectStore) -> None:
    query.trigger()
    each = {
        "LIST batches": 1, "HEAD batches": 1, "GET batches": 1,
        "HEAD run": 1, "GET run": 1,  # another run may have taken over
    }  # fmt: skip
    found = [query.step(store, waiting=0) for _ in range(6)]
    assert found[3:] == 3 * [Counter(each)]
    found = [query.step(store, waiting=1) for _ in range(6)]
    assert found == 6 * [Counter({**each, "PUT epochs": 1})]


def test_idle_query_only_looks_for_reports(query: StoredQuery, store: ObjectStore) -> None:
    query.trigger()
    query.quiet_batch()
    first = query.trigger()
    store.requests.clear()
    policies = query.policies.asked
    assert [query.trigger(10) for _ in range(120)] == 120 * [first]
    assert store.counted() == {"LIST": 1}
    assert query.policies.asked == policies + 1
    query.plane.note_batch()
    query.trigger(10)
    assert store.counted() == {"LIST": 2}


class StoredJob(WholeJob):
    """A whole job whose control directory is on an object store."""

    @property
    def directory(self) -> Directory:
        return Directory("s3://lake/control")

    def decide(self, end: EpochName, rows: Rows) -> BatchOutcome:
        self.plane.note_batch()
        return super().decide(end, rows)


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_rows_leave_when_they_may_and_not_at_the_next_look(tmp_path: Path) -> None:
    quotas: dict[str, object] = {"job": per_second(5), "resource_groups": {"gold": per_second(2)}}
    on_disk, stored = (job(tmp_path, quotas) for job in (WholeJob, StoredJob))
    for job in (on_disk, stored):
        for step in range(60):
            job.trigger([("a/x", 1), ("b/y", 1)] if step % 20 == 0 or step < 5 else (), after_ms=70)
    assert stored.admitted == on_disk.admitted
    assert len({at_ms for at_ms, _ in stored.admitted}) > 5
