"""A job, the watch of it, and the API, for tests of what the API says of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, PolicyStore
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob

ANN = Author("ann")
OFFERED = {"acme/a": 30, "acme/b": 30, "other/c": 5}


class World:
    """A job, the watch of it, and the API."""

    def __init__(self, serve: Callable[..., ServedApp], folder: Path, store: PolicyStore | None = None) -> None:
        self.store = MemoryStore() if store is None else store
        self.service = PolicyService(self.store, clock_ms=lambda: 0)
        gold = {"publish": {"messages_per_second": 20, "burst_seconds": 1}}
        self.service.put("resource_group", "gold", gold, ANN)
        self.service.put("tenant", "acme", {"resource_group": "gold"}, ANN)
        self.job = MadeUpJob(folder / "control", self.store)
        self.watch = JobWatch({"ingest": str(folder / "control")}, clock=self.job.clock)
        self.served = serve(self.store, watch=self.watch)
        self.client = self.served.client()

    def run(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.job.batch(OFFERED)
            self.job.pulse.beat()
            self.watch.look()

    def wait(self, seconds: float) -> None:
        """Let time pass in which the job gives no sign of life."""
        self.job.now_ms += int(1000 * seconds)
        self.watch.look()

    def status(self) -> dict[str, Any]:
        (job,) = self.client.get("/admin/v2/status").json()["jobs"]
        return dict(job)

    def change(self, rate: int) -> dict[str, Any]:
        made = self.client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": rate}).json()
        return dict(made["acting"][0])
