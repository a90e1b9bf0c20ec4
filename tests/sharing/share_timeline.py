"""Jobs that share quotas, in simulated time: real planes, meters and keepers, batches that take as long as they take.

What a job is offered arrives evenly; a batch takes what arrived since the last was planned, is admitted what its
bucket lets pass, and reports when it ends. A keeper visits when it says that it would.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_throttle.core.limits.token_bucket import room_before
from spark_throttle.core.quota import NEVER_MS, Dimension
from spark_throttle.sharing.settings import ShareSettings
from tests.control.queries import Query
from tests.sharing.test_register import MemoryExchange

SETTINGS = ShareSettings(interval_ms=4_000, lease_ms=40_000)
STEP_MS = 20
GOLD = 1


@dataclass
class TimedJob(Query):
    """A query whose batches and visits happen by the clock."""

    exchange: MemoryExchange = field(default_factory=MemoryExchange)
    batch_ms: int = 700
    trigger_ms: int = 1_000
    offered_per_second: float = 0
    shares: list[tuple[int, float]] = field(default_factory=list)
    """When a batch was planned, and the messages a second of gold that the job had by then."""

    visits_ms: list[int] = field(default_factory=list)
    reports_ms: list[int] = field(default_factory=list)

    def restart(self) -> None:
        self.keeper = self.open_sharing(SETTINGS, self.exchange)
        self.waiting = self.came = 0.0
        self.planned_ms = self.now_ms
        self.next_trigger_ms = self.now_ms
        self.ends_ms: int | None = None

    def step(self) -> None:
        """Do what is due now."""
        if self.ends_ms is not None and self.now_ms >= self.ends_ms:
            self.batch(self.done)
            self.ends_ms = None
        if self.ends_ms is None and self.now_ms >= self.next_trigger_ms:
            self._plan()
        self._visit()

    def _plan(self) -> None:
        self.came += self.offered_per_second * (self.now_ms - self.planned_ms) / 1000
        self.planned_ms = self.now_ms
        before = self.name
        self.trigger(0)
        share = self.epoch.share_micro_per_ms
        assert share is not None
        self.shares.append((self.now_ms, float(share[GOLD, 0]) / 1000))
        if self.name == before and self.came < 1:
            return
        self.waiting, self.came = self.waiting + int(self.came), self.came % 1
        most = int(room_before(self.decider().shared.balance_micro[GOLD, :1], Dimension.MESSAGES)[0]) + 1
        admitted = min(int(self.waiting), most)
        self.waiting -= admitted
        used = {"a/x": (admitted, admitted)} if admitted or self.waiting else {}
        due_ms = self.now_ms if self.waiting else NEVER_MS
        self.done = self.report(used, waiting=int(self.waiting), due_ms=due_ms)
        self.ends_ms = self.now_ms + self.batch_ms
        self.next_trigger_ms = (self.now_ms // self.trigger_ms + 1) * self.trigger_ms

    def _visit(self) -> None:
        before = self.keeper._sharing._number
        if self.now_ms >= self.keeper.next_visit_ms():
            self.visits_ms.append(self.now_ms)
        self.keeper.act()
        if self.keeper._sharing._number > before:
            self.reports_ms.append(self.now_ms)

    def share_at(self, at_ms: int) -> float:
        """Return the share of the last batch that was planned by then."""
        return next(share for planned_ms, share in reversed(self.shares) if planned_ms <= at_ms)


def run(jobs: list[TimedJob], seconds: float) -> None:
    """Let time pass."""
    for _ in range(int(seconds * 1000) // STEP_MS):
        for job in jobs:
            job.now_ms += STEP_MS
            job.step()
