"""The model of leases keeps its promises, sees each fault, and allows what simulated jobs do."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.models.checker import NotAllowedError, explore
from tests.models.exploring import LEASE_CASES, LEASE_SCENES, ExploredLeases
from tests.models.faults import OF_BATCHES, OF_LEASES
from tests.models.leases import Leases
from tests.models.traced_leases import LeaseTrace, trace_leases

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", LEASE_CASES)
def test_no_promise_of_the_model_is_broken_within_the_bounds_of_a_case(case: str) -> None:
    scene, bounds = LEASE_CASES[case]
    model = ExploredLeases(bounds, LEASE_SCENES[scene])
    explored = explore(model, model.begins)
    assert explored.broken is None, str(explored)
    assert explored.is_whole


def test_every_action_of_the_model_is_reached_from_a_scene() -> None:
    reached: Counter[str] = Counter()
    for case in ("runs of one job", "a quota falls", "damaged", "paid", "a job that is put back"):
        scene, bounds = LEASE_CASES[case]
        model = ExploredLeases(bounds, LEASE_SCENES[scene])
        reached += explore(model, model.begins).steps
    assert set(reached) == set(Leases.actions)


@pytest.mark.parametrize("fault", OF_LEASES)
def test_each_fault_of_leases_is_seen_by_its_invariant(fault: str) -> None:
    scene, bounds = LEASE_CASES[OF_LEASES[fault].case]
    model = ExploredLeases(bounds, LEASE_SCENES[scene], {fault})
    assert explore(model, model.begins).broken == OF_LEASES[fault].invariant


def test_each_invariant_of_leases_sees_a_fault() -> None:
    assert {fault.invariant for fault in OF_LEASES.values()} == set(Leases.invariants)


def test_ten_faults_that_the_project_had_can_be_switched_on_again() -> None:
    faults = [*OF_BATCHES.values(), *OF_LEASES.values()]
    assert len([fault for fault in faults if fault.found]) >= 10


# ----------------------------------------------------------------------------------------- what the code does


def policies(per_second: int = 50) -> dict[str, Any]:
    group = {"publish": {"messages_per_second": per_second, "burst_seconds": 1}}
    return {"version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"}}


@pytest.fixture
def exchange() -> SimulatedExchange:
    return SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10))


@pytest.fixture
def trace(exchange: SimulatedExchange, monkeypatch: pytest.MonkeyPatch) -> LeaseTrace:
    return trace_leases(monkeypatch, exchange)


def runs(job: SimulatedJob, triggers: int, rows: int = 20) -> None:
    for _ in range(triggers):
        job.offer([("acme/a", 1)] * rows)
        job.trigger(1_000)


def peers_come_and_go(exchange: SimulatedExchange) -> None:
    """Peers begin to share, want other parts, die and return; a quota falls while one is silent."""
    one = exchange.join("one", policies())
    exchange.time.pass_by(4_000)
    two = exchange.join("two", policies(), percent=30)
    exchange.time.pass_by(6_000)
    kept = dict(exchange.objects)
    exchange.leave(one)
    exchange.time.pass_by(9_000)
    exchange.join("one", policies())
    exchange.time.pass_by(4_000)
    exchange.objects.clear()
    exchange.objects.update(kept)
    exchange.time.pass_by(3_000)
    exchange.objects.clear()
    exchange.time.pass_by(3_000)
    two.want(_document(2), 100)
    exchange.leave(exchange.members[-1])  # type: ignore[arg-type]
    exchange.time.pass_by(9_000)


def registers_are_damaged(exchange: SimulatedExchange) -> None:
    """A register cannot be read, first of a job that lives, then of one that is dead."""
    one = exchange.join("one", policies())
    exchange.time.pass_by(4_000)
    for name in list(exchange.objects):
        exchange.objects[name] = b"no report"
    exchange.join("two", policies())
    exchange.time.pass_by(4_000)
    exchange.leave(one)
    for name in [name for name in exchange.objects if name.startswith("one")]:
        exchange.objects[name] = b"no report"
    exchange.time.pass_by(12_000)


def a_job_is_copied(exchange: SimulatedExchange) -> None:
    """A job is copied, where the copy can tell it and where it cannot; it leaves, restarts and is put back."""
    job = SimulatedJob(policies(), exchange=exchange)
    exchange.join("peer", policies())
    runs(job, 6)
    for is_elsewhere in (True, False):
        copy = job.clone(with_sinks=True, is_elsewhere=is_elsewhere)
        copy.restart()
        for _ in range(8):
            copy.offer([("acme/a", 1)] * 20)
            copy.trigger(0)
            runs(job, 1)
        copy.stop()
    job.restart()
    runs(job, 4)
    job.stop()
    job.checkpoint.control.pop("incarnation")
    job.restart()
    runs(job, 6)
    job.pass_time(15_000)
    runs(job, 3)


def _document(per_second: int) -> Any:
    from spark_throttle.store.policy_location import load_policies

    return load_policies(policies(per_second))


HISTORIES: Final = (peers_come_and_go, registers_are_damaged, a_job_is_copied)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_the_model_of_leases_allows_every_step_of_jobs_that_share(
    history: Any, exchange: SimulatedExchange, trace: LeaseTrace
) -> None:
    history(exchange)
    assert len(trace.steps) > 100
