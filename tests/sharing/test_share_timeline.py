"""A job's new demand takes a known number of hops to become shares, and the hurry costs what is stated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.control.queries import FakePolicies, snapshot
from tests.sharing.share_timeline import SETTINGS, TimedJob, run
from tests.sharing.test_register import MemoryExchange

QUOTA = 1_000
POLICY = {
    "resource_groups": {"gold": {"publish": {"messages_per_second": QUOTA, "burst_seconds": 10}}},
    "defaults": {"resource_group": "gold"},
}
CYCLE_MS = SETTINGS.interval_ms


@dataclass
class Wake:
    """One of two jobs that shared a quota by four to one wants as much as the other."""

    busy: TimedJob
    waking: TimedJob
    woke_ms: int

    @property
    def known_ms(self) -> int:
        """When the batch was planned that brought the first of the new demand."""
        return next(at_ms for at_ms, _ in self.waking.shares if at_ms > self.woke_ms)

    @property
    def settled_ms(self) -> int:
        """How long after that both had a half."""
        moments = sorted(at_ms for job in (self.busy, self.waking) for at_ms, _ in job.shares if at_ms > self.woke_ms)
        return next(at_ms for at_ms in moments if self._is_fair(at_ms)) - self.known_ms

    def _is_fair(self, at_ms: int) -> bool:
        shares = [job.share_at(at_ms) for job in (self.busy, self.waking)]
        return shares == [pytest.approx(QUOTA / 2, rel=0.01)] * 2


def wake(path: Path, *, busy_batch_ms: int, waking_batch_ms: int, phase_ms: int) -> Wake:
    exchange = MemoryExchange()
    busy, waking = (
        TimedJob(path / name, policies=FakePolicies(snapshot(POLICY)), exchange=exchange, batch_ms=batch_ms)
        for name, batch_ms in (("busy", busy_batch_ms), ("waking", waking_batch_ms))
    )
    busy.offered_per_second, waking.offered_per_second = 0.8 * QUOTA, 0.2 * QUOTA
    run([busy, waking], 20 + phase_ms / 1000)
    waking.offered_per_second = 0.8 * QUOTA
    woke_ms = waking.now_ms
    run([busy, waking], 12)
    return Wake(busy, waking, woke_ms)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("phase_ms", [0, 1_100, 2_700])
@pytest.mark.parametrize(
    ("busy_batch_ms", "waking_batch_ms", "most_ms"), [(300, 300, CYCLE_MS), (1_100, 1_500, 2 * CYCLE_MS)]
)
def test_shares_are_right_a_cycle_after_the_batch_that_brought_a_demand_two_if_batches_take_a_third_of_one(
    phase_ms: int, busy_batch_ms: int, waking_batch_ms: int, most_ms: int, tmp_path: Path
) -> None:
    found = wake(tmp_path, busy_batch_ms=busy_batch_ms, waking_batch_ms=waking_batch_ms, phase_ms=phase_ms)
    assert found.settled_ms <= most_ms


@pytest.mark.slow
def test_hurry_is_bounded_and_ends_and_a_smaller_share_is_told_as_soon_as_the_epoch_that_holds_it_is_written(
    tmp_path: Path,
) -> None:
    found = wake(tmp_path, busy_batch_ms=300, waking_batch_ms=300, phase_ms=0)
    for job in (found.busy, found.waking):
        cycle = [at_ms for at_ms in job.visits_ms if 0 <= at_ms - found.woke_ms < CYCLE_MS]
        assert 4 <= len(cycle) <= 16
        late = [at_ms for at_ms in job.visits_ms if at_ms >= found.woke_ms + 2 * CYCLE_MS]
        assert len(late) <= 8
    shares = [(at_ms, share) for at_ms, share in found.busy.shares if at_ms > found.woke_ms]
    smaller_ms = next(at_ms for (at_ms, share), (_, before) in zip(shares[1:], shares, strict=False) if share < before)
    assert smaller_ms in found.busy.reports_ms
