"""Worlds of `tests.sharing.share_world` tell what their jobs do as steps of the model of leases.

There clocks drift and differ, writes come late, each register is out of date by itself, and jobs die, sleep, claim at
random, are put back and cloned. The traced scope is gold.
"""

from __future__ import annotations

import pytest

from spark_throttle.core.quota import Int64s
from spark_throttle.sharing.report import ShareReport
from tests.models.lease_states import Mark
from tests.models.traced_leases import LeaseTrace, TracedSharing, mark_of
from tests.sharing import share_world
from tests.sharing.share_world import GOLD, SETTINGS, GreedySharing, SimulatedJob, Store, World


class WorldTrace(LeaseTrace):
    """The history of one world."""

    writes_at_once = False
    world: World

    def __init__(self, stale_ms: int) -> None:
        super().__init__(SETTINGS, GOLD, stale_ms)
        self.due_ms: list[int] = []
        """When registers change that have not changed yet."""

        self._seen_ms = 0

    @property
    def now_ms(self) -> int:
        """The true time."""
        return self.world.now_ms

    def clock_of(self, run: int) -> int:
        """Return what the clock of a run shows at the time up to which all was seen."""
        return next(job for job in self.world.jobs if job.sharing.run == run).clock(self._seen_ms)

    def there(self) -> dict[int, Mark | None]:
        """Return the marks of the reports that stand in the registers."""
        reports = self.world.store.read(self._seen_ms).values()
        return {report.mark.run: mark_of(report.mark) for report in reports}

    def see(self) -> None:
        """Take the steps of what happened since: runs died, and writes came."""
        live = {job.sharing.run for job in self.world.jobs if job.is_alive}
        for run in [r.id for r in self.state.runs if r.id not in live]:
            self.step("crash", run)
        for at_ms in sorted({each for each in self.due_ms if each <= self.now_ms}):
            self.pass_to(at_ms)
            self.note_registers()
        self.due_ms = [each for each in self.due_ms if each > self.now_ms]
        self.pass_to(self.now_ms)

    def pass_to(self, now_ms: int) -> None:
        """Let time pass."""
        self._seen_ms = now_ms
        super().pass_to(now_ms)


class TracedStore(Store):
    """Registers that say when they change."""

    trace: WorldTrace

    def write(self, at_ms: int, report: ShareReport) -> None:
        super().write(at_ms, report)
        self.trace.due_ms.append(at_ms)

    def delete(self, at_ms: int, member: str | None = None) -> None:
        super().delete(at_ms, member)
        self.trace.due_ms.append(at_ms)


class TracedGreedySharing(TracedSharing, GreedySharing):
    """A run in a world, which begins and ends an epoch at once."""

    def pin(self, ids: Int64s, rate_micro_per_ms: Int64s) -> None:
        """Note what the epoch uses."""
        super().pin_also(ids, rate_micro_per_ms)
        super().pin(ids, rate_micro_per_ms)


def trace_world(patch: pytest.MonkeyPatch, stale_ms: int) -> WorldTrace:
    """Let the next world that is made tell its steps."""
    trace = WorldTrace(stale_ms)

    def world_of(jobs: list[SimulatedJob]) -> World:
        trace.world = World(jobs, TracedStore())
        return trace.world

    patch.setattr(TracedStore, "trace", trace, raising=False)
    patch.setattr(TracedSharing, "trace", trace)
    patch.setattr(share_world, "GreedySharing", TracedGreedySharing)
    patch.setattr(share_world, "World", world_of)
    return trace
