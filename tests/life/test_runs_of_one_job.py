"""Lives that are written out in which two runs of one job meet in one control directory."""

from __future__ import annotations

import pytest

from spark_throttle.errors import TakenOverError
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob

pytestmark = pytest.mark.slow


def test_run_that_was_taken_over_does_not_make_the_run_that_took_over_forget_a_debt() -> None:
    # The first run is at a later batch than the second, which goes on where checkpoint and sinks were put back to.
    policy = {"version": 1, "job": {"publish": {"bytes_per_second": 1_000, "burst_seconds": 1}}}
    first = SimulatedJob(policy)
    first.offer([("acme/a", 1_000)] * 10)
    first.trigger(1_000)
    second, checkpoint, second_outside = first.twin(), first.checkpoint.copy(), first.outside.copy()
    for _ in range(4):
        first.trigger(1_000)
    checkpoint.control = first.checkpoint.control
    second.checkpoint, second.outside = checkpoint, second_outside
    second.restart()
    second.offer([("blue/a", 100_000)])
    second.trigger(1_000)
    second.trigger(1_000)
    assert "blue/a" in {row.namespace for row in second.admitted}
    admitted = len(second.admitted)
    with pytest.raises(TakenOverError):
        first.trigger(1_000)
    for _ in range(60):  # the job's limit earns the large message in 100 s
        second.trigger(1_000)
    assert len(second.admitted) == admitted


def test_run_that_was_taken_over_before_its_first_epoch_brings_no_report_back() -> None:
    # After the crash the first run runs its last batch again, and plans none before the second has begun.
    policy = {"version": 1, "job": {"publish": {"messages_per_second": 1, "burst_seconds": 1}}}
    first = SimulatedJob(policy)
    first.offer([("acme/a", 1)] * 30)
    for _ in range(4):
        first.trigger(1_000)
    first.crash("before feedback")
    first.trigger(1_000)
    first.restart(1_000)
    second = first.twin()
    second.restart(1_000)
    for _ in range(3):
        second.trigger(1_000)
    before = dict(first.checkpoint.control)
    with pytest.raises(TakenOverError):
        first.trigger(1_000)
    assert first.checkpoint.control == before


def test_run_that_took_over_has_its_share_though_the_one_before_was_held_up_as_it_began() -> None:
    # A copy that cannot tell leaves a greater mark. The first run goes beyond it, and so beyond the second, as well.
    group = {"publish": {"messages_per_second": 50, "burst_seconds": 1}}
    policy = {"version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"}}
    exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    first = SimulatedJob(policy, exchange=exchange)
    copy = first.clone(with_sinks=True, is_elsewhere=False)
    copy.restart()

    def run(job: SimulatedJob, after_ms: int = 1_000) -> None:
        job.offer([("acme/a", 1)] * 100)
        job.trigger(after_ms)

    for _ in range(4):
        run(copy, 0)
        run(first)
    copy.stop()
    first.restart()
    second = first.twin()

    def take_over() -> None:
        second.restart(1_000)
        for _ in range(2):
            run(second)

    first.hold_up("before commit", take_over)
    run(first)
    with pytest.raises(TakenOverError):
        run(first)
    for _ in range(12):
        run(second)
    assert second.leased()["resource_group", "gold"][0] == 50_000
