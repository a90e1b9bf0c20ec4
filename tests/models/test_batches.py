"""The model of batches keeps its promises, sees each fault, and allows what simulated jobs do."""

from __future__ import annotations

from typing import Any, Final

import pytest

from spark_throttle.errors import ThrottleError
from spark_throttle.testing.simulation.disk import CRASH_POINTS, MemoryDirectory
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.models.batches import Batches
from tests.models.checker import NotAllowedError
from tests.models.traced_batches import BatchTrace, trace_batches
from tests.models.without_mends import take_back

pytestmark = pytest.mark.slow

SLOW: Final[dict[str, Any]] = {"version": 1, "job": {"publish": {"messages_per_second": 1, "burst_seconds": 1}}}
REJECTING: Final[dict[str, Any]] = {
    "version": 1,
    "job": {"publish": {"messages_per_second": 2, "burst_seconds": 1, "on_excess": "reject"}},
}


# ----------------------------------------------------------------------------------------- what the code does


def refuses(job: SimulatedJob, *, is_start: bool = False) -> bool:
    try:
        if is_start:
            job.restart()
        else:
            job.trigger()
    except ThrottleError:
        return True
    return False


def crashed_everywhere() -> None:
    """Let a job die at each point of a batch, while its policies change, and start it again."""
    job = SimulatedJob(SLOW)
    for number, point in enumerate(CRASH_POINTS):
        job.offer([("acme/a", 1)] * 3)
        job.crash(point)
        job.set_policies((SLOW, REJECTING)[number % 2])
        job.trigger()
        job.set_policies((REJECTING, SLOW)[number % 2])
        job.restart()


def put_back() -> None:
    """Put the checkpoint back without its sinks, with them, and on two ways; lose the control directory."""
    job = SimulatedJob(SLOW)

    def batches(count: int, name: str = "acme/a") -> None:
        for _ in range(count):
            job.offer([(name, 1)] * 2)
            job.trigger()

    def backup() -> tuple[Any, Any]:
        return job.checkpoint.copy(), job.outside.copy()

    def restore(kept: tuple[Any, Any], *, with_control: bool) -> None:
        job.stop()
        checkpoint, outside = kept[0].copy(), kept[1].copy()
        checkpoint.control = checkpoint.control if with_control else dict(job.checkpoint.control)
        outside.source = job.outside.source
        job.checkpoint, job.outside = checkpoint, outside
        job.restart()

    batches(2)
    early = backup()
    batches(2)
    late = backup()
    restore(early, with_control=False)
    batches(2, "acme/b")
    restore(late, with_control=False)
    batches(1)
    restore(early, with_control=True)
    batches(1)
    newest = backup()
    job.put_back(1)
    assert refuses(job, is_start=True), "the sink is ahead"
    restore(newest, with_control=True)
    job.lose_control()
    assert refuses(job, is_start=True), "the manifest is gone"
    restore(newest, with_control=True)
    job.put_back(0, with_control=early[0])
    assert refuses(job, is_start=True) or refuses(job), "the epoch is missing"
    restore(newest, with_control=True)
    batches(1)
    job.put_back(100)
    assert refuses(job, is_start=True) or refuses(job), "a query has run here"


def taken_over() -> None:
    """Start a job again while the run before is held up at each point of a batch."""
    job = SimulatedJob(SLOW)
    job.offer([("acme/a", 1)] * 3)
    job.trigger()
    for number, point in enumerate(CRASH_POINTS):
        first = job
        job.set_policies((SLOW, REJECTING)[number % 2])

        def start_again(first: SimulatedJob = first) -> None:
            nonlocal job
            job = first.twin()
            job.restart()
            job.offer([("acme/a", 1)])
            job.trigger()

        first.offer([("acme/a", 1)] * 2)
        first.hold_up(point, start_again)
        refuses(first)
        for _ in range(3):
            job.offer([("acme/a", 1)])
            if not first.is_down and refuses(first):
                break
        if job.is_down:
            job.restart()
        refuses(job)
        if job.is_down:
            job.restart()
    while job.trigger() is not None:
        pass
    idle, job = job, job.twin()
    job.restart()
    job.offer([("acme/a", 1)])
    job.trigger()
    assert refuses(idle), "it has planned a batch, which another run logged"


def lived_long() -> None:
    """Run past an exception, and so many batches that old epochs are deleted; put the last one back."""
    exception = {"until": "2025-10-09T08:54:00Z", "reason": "a move", "publish": {"messages_per_second": 2}}
    job = SimulatedJob(SLOW | {"tenants": {"acme": {"exception": exception}}}, batches_retained=2)
    for batch in range(108):
        job.offer([("acme/a", 1)])
        job.trigger()
        if batch == 105:
            job.restart()
    kept = MemoryDirectory(job.checkpoint.control, lambda _: None, job.place).names("epochs")
    assert min(kept) > "000000000001", "the first epochs are deleted"
    job.put_back(1)
    assert refuses(job, is_start=True), "the sink is ahead"


def begun_twice() -> None:
    """Start a job again while its first batch is held up behind its epoch."""
    first = SimulatedJob(SLOW)

    def start_again() -> None:
        twin = first.twin()
        twin.restart()
        twin.trigger()

    first.hold_up("after epoch", start_again)
    assert refuses(first), "the batch is logged"


HISTORIES: Final = (crashed_everywhere, put_back, taken_over, lived_long, begun_twice)


@pytest.fixture(scope="module")
def traces() -> dict[str, BatchTrace]:
    """Return the steps of each history; the first that is not allowed fails."""
    found = {}
    for history in HISTORIES:
        with pytest.MonkeyPatch.context() as patch:
            found[history.__name__] = trace_batches(patch)
            history()
    return found


def test_the_model_of_batches_allows_every_step_of_simulated_jobs(traces: dict[str, BatchTrace]) -> None:
    assert {history for history, trace in traces.items() if len(trace.steps) <= 50} == {"begun_twice"}


def test_simulated_jobs_reach_nearly_every_action_of_the_model_of_batches(traces: dict[str, BatchTrace]) -> None:
    of_the_job = set(Batches.actions) - {"back_up"}  # which changes nothing of the job
    reached = set().union(*(trace.reached for trace in traces.values()))
    assert len(of_the_job & reached) >= 0.95 * len(of_the_job), sorted(of_the_job - reached)


@pytest.mark.parametrize(
    ("mend", "history"),
    [("run fence", taken_over), ("reports of another run", taken_over), ("refused before it begins", put_back)],
)
def test_a_trace_of_batches_names_the_step_of_code_without_a_mend(
    mend: str, history: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_back(mend, monkeypatch)
    trace_batches(monkeypatch)
    with pytest.raises(NotAllowedError, match="step"):
        history()
