"""The model of leases keeps its promises, sees each fault, and allows what simulated jobs do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.store.policy_location import load_policies
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.models.checker import NotAllowedError
from tests.models.leases import Leases
from tests.models.traced_leases import LeaseTrace, trace_leases
from tests.models.traced_worlds import trace_world
from tests.models.without_mends import take_back
from tests.sharing.share_world import SETTINGS, cloned, lag, reborn, roam

pytestmark = pytest.mark.slow


# ----------------------------------------------------------------------------------------- what the code does


def policies(per_second: int = 50) -> dict[str, Any]:
    group = {"publish": {"messages_per_second": per_second, "burst_seconds": 1}}
    return {"version": 1, "resource_groups": {"gold": group}, "defaults": {"resource_group": "gold"}}


class Exchange(SimulatedExchange):
    """An exchange that may be out of reach."""

    is_out = False

    def names(self) -> list[str]:
        """Return the names of all objects."""
        if self.is_out:
            raise OSError("the exchange is out of reach")
        return super().names()


def new_exchange() -> Exchange:
    return Exchange(ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10))


def runs(job: SimulatedJob, triggers: int, rows: int = 20) -> None:
    for _ in range(triggers):
        job.offer([("acme/a", 1)] * rows)
        job.trigger(1_000)


def peers_come_and_go(exchange: Exchange) -> None:
    """Peers begin to share, want other parts, lose the exchange, die and return; a quota falls while one is silent."""
    one = exchange.join("one", policies())
    exchange.time.pass_by(4_000)
    two = exchange.join("two", policies(), percent=30)
    exchange.time.pass_by(6_000)
    exchange.is_out = True
    exchange.time.pass_by(8_000)
    exchange.is_out = False
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
    two.want(load_policies(policies(2)), 100)
    exchange.leave(exchange.members[-1])  # type: ignore[arg-type]
    exchange.time.pass_by(9_000)


def registers_are_damaged(exchange: Exchange) -> None:
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


def a_job_is_copied(exchange: Exchange) -> None:
    """A job is copied, where the copy can tell it and where it cannot; it leaves, restarts and is put back."""
    job = SimulatedJob(policies(), exchange=exchange)
    exchange.join("peer", policies())
    runs(job, 6)
    for is_elsewhere in (True, False):
        copy = job.clone(with_sinks=True, is_elsewhere=is_elsewhere)
        copy.restart()
        for _ in range(5):
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


HISTORIES: Final = (peers_come_and_go, registers_are_damaged, a_job_is_copied)
MARGIN_MS: Final = SETTINGS.margin_ms
WORLDS: Final[dict[str, tuple[Callable[[int], object], int]]] = {
    "roam": (lambda seed: roam(seed, 300), MARGIN_MS),
    "greedy": (lambda seed: roam(seed, 300, is_greedy=True), MARGIN_MS),
    "reborn": (lambda seed: reborn(seed, 500), MARGIN_MS),
    "lag": (lambda seed: lag(seed, 150), SETTINGS.hold_ms // 2 + MARGIN_MS // 2),
    "cloned": (lambda seed: cloned(seed, 300), MARGIN_MS),
}
"""Worlds of random events, and how old what a visit finds may be."""


def traced(history: str, seed: int = 2) -> LeaseTrace:
    """Return the steps of a history."""
    with pytest.MonkeyPatch.context() as patch:
        if history in WORLDS:
            world, stale_ms = WORLDS[history]
            trace: LeaseTrace = trace_world(patch, stale_ms)
            world(seed)
            return trace
        exchange = new_exchange()
        trace = trace_leases(patch, exchange)
        next(each for each in HISTORIES if each.__name__ == history)(exchange)
        return trace


@pytest.fixture(scope="module")
def traces() -> dict[str, LeaseTrace]:
    """Return the steps of each history."""
    return {history: traced(history) for history in (*(each.__name__ for each in HISTORIES), *WORLDS)}


@pytest.mark.parametrize("history", [*(history.__name__ for history in HISTORIES), *WORLDS])
def test_the_model_of_leases_allows_every_step_of_jobs_that_share(history: str, traces: dict[str, LeaseTrace]) -> None:
    traces[history].end()
    assert len(traces[history].steps) > 100


@pytest.mark.thorough
@pytest.mark.parametrize("history", WORLDS)
def test_the_model_of_leases_allows_every_step_of_many_worlds(history: str) -> None:
    for seed in range(100, 140):
        traced(history, seed).end()


def test_jobs_that_share_reach_nearly_every_action_of_the_model_of_leases(traces: dict[str, LeaseTrace]) -> None:
    reached = set().union(*(trace.reached for trace in traces.values()))
    assert len(reached) >= 0.95 * len(Leases.actions), sorted(set(Leases.actions) - reached)


def test_a_trace_of_leases_names_the_step_of_code_that_does_not_know_its_other_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_back("other runs of one job", monkeypatch)
    exchange = new_exchange()
    trace = trace_leases(monkeypatch, exchange)
    a_job_is_copied(exchange)
    with pytest.raises(NotAllowedError, match=r"visit\("):
        trace.end()


def test_a_trace_of_a_world_names_the_step_of_code_that_grows_before_all_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sharing, "_answered", lambda sharing, _peer: sharing.mark.number)
    with pytest.raises(NotAllowedError, match="after visit"):
        traced("roam").end()


def test_a_trace_of_leases_names_the_step_of_code_that_keeps_its_lease_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sharing, "_fall_if_due", lambda _self, _now_ms: None)
    exchange = new_exchange()
    trace = trace_leases(monkeypatch, exchange)
    peers_come_and_go(exchange)
    with pytest.raises(NotAllowedError):
        trace.end()
