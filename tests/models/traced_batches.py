"""Simulated jobs tell what they do as steps of the model of batches, and each step is checked as it comes.

The runs are real: the control plane, its fence, epochs, reports, the decider and the marks of batches. A step that the
model does not allow, or after which the model and the files differ, raises `NotAllowedError`, which names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final

import pytest

from spark_throttle.checkpoint.batch_records import batch_of, part_of, records
from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.control.epochs import EpochName, read_epoch
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.run_fence import RunFence, owner_of
from spark_throttle.errors import ThrottleError
from spark_throttle.policy.compile import revision_of
from spark_throttle.spark.move.queue_frames import QueueFolder
from spark_throttle.testing.simulation import job as job_module
from spark_throttle.testing.simulation import query as query_module
from spark_throttle.testing.simulation.disk import ConcurrentRunError, CrashPoint, MemoryDirectory, SimulatedCrash
from spark_throttle.testing.simulation.query import SimulatedBatch, SimulatedQuery, StartConditions
from spark_throttle.testing.simulation.rows import waiting_ids
from tests.models.batch_states import REFUSALS, Backup, Control, Outcome, State, rows_of
from tests.models.batches import Batches
from tests.models.checker import NotAllowedError, Step, follow

PLACE = "memory:0"
"""Where the jobs are that are traced; copies in other places are not."""


class BatchTrace:
    """The history of one simulated job, in the words of the model."""

    def __init__(self) -> None:
        self.model, self.state = Batches(), State()
        self.steps: list[Step] = []
        self.reached: Counter[str] = Counter()
        self._policies: dict[str, int] = {}
        self._runs: dict[str, int] = {}
        """Runs by the marks of their fences."""

        self._source: object = None
        self.is_over = False
        """Whether a step was not allowed: what comes after it is not looked at."""

        self._epochs: dict[str, tuple[int, int, int]] = {}
        self._seen: tuple[dict[Hashable, Any], ...] = ({}, {}, {})
        """What the model had where the files were so: Spark's part, the control directory, the sinks."""

    def is_of(self, given: StartConditions) -> bool:
        """Return whether a run is of the job whose history this is: it has its source, and its place."""
        self._source = given.outside.source if self._source is None else self._source
        return given.outside.source is self._source and given.place == PLACE

    def take(self, query: TracedQuery, action: str, *arguments: Any) -> None:
        """Take a step, and compare what the model has with what is there."""
        self._take(Step(action, arguments))
        self._compare(query)

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        self.is_over = True  # unless the step is allowed
        self.state = follow(self.model, self.state, [step])
        self.is_over = False
        self.reached[step.action] += 1

    # --------------------------------------------------------------------------------------- what happens to the job

    def note_surroundings(self, query: TracedQuery) -> None:
        """Take the steps by which rows and policies came, and by which files were put back."""
        given = query.given
        if len(given.outside.source) > self.state.offered:
            self._take(Step("arrive", (len(given.outside.source) - self.state.offered,)))
        in_force = given.policies.snapshot.document.at(given.clock.wall_ms())
        policy = self.policy(revision_of(in_force, given.direction))
        if policy != self.state.policy:
            self._take(Step("change_policy", (policy,)))

    def note_restore(self, query: TracedQuery) -> None:
        """Take the step by which files were put back since the last run."""
        if not self.steps or self._differs(query) is None:
            self._remember(query)
            return
        there, s = [seen.get(key) for seen, key in zip(self._seen, self._keys(query), strict=True)], self.state
        control = Control() if not query.given.checkpoint.control else there[1]
        spark = there[0] or s.spark._replace(log=s.spark.log[: len(query.given.checkpoint.log)])
        sinks = there[2]
        if sinks is None or control is None:
            raise NotAllowedError(f"files were put back that never were so: {self._differs(query)}")
        is_shorter = spark.log == s.spark.log[: len(spark.log)] and sinks == (s.table, s.letters)
        if is_shorter and len(spark.log) != len(s.spark.log):
            self._take(Step("put_back", (query.given.checkpoint.committed,)))
        elif spark != s.spark or sinks != (s.table, s.letters):
            self._take(Step("restore", (Backup(spark, control, *sinks), control != s.control)))
        if control != self.state.control:
            self._take(Step("put_control_back", (control,)))
        self._compare(query)

    # --------------------------------------------------------------------------------------------- what is there

    def policy(self, revision: str) -> int:
        """Return the number of a revision of the policies."""
        return self._policies.setdefault(revision, len(self._policies))

    def run(self, mark: str) -> int:
        """Return the number of a run."""
        return self._runs.setdefault(mark, len(self._runs) + 1)

    def _compare(self, query: TracedQuery) -> None:
        differs = self._differs(query)
        if differs is not None:
            self.is_over = True
            raise NotAllowedError(f"after step {len(self.steps)}, {self.steps[-1]}: {differs}")
        self._remember(query)

    def _remember(self, query: TracedQuery) -> None:
        values = (self.state.spark, self.state.control, (self.state.table, self.state.letters))
        for seen, key, value in zip(self._seen, self._keys(query), values, strict=True):
            seen[key] = value

    def _differs(self, query: TracedQuery) -> str | None:
        """Return in what the model and the files differ; `None` if they do not."""
        s, checkpoint, outside = self.state, query.given.checkpoint, query.given.outside
        epochs = [self._epoch(query, name) for name in query.files.names("epochs")]
        there: dict[str, Any] = {
            "log": [(EpochName.of(each.end).number, each.end_row, each.now_ms) for each in checkpoint.log],
            "committed": checkpoint.committed,
            "manifest": read_manifest(query.files) is not None,
            "owner": 0 if (mark := owner_of(query.files)) is None else self.run(mark),
            "epochs": set(epochs),
            "reports": {(batch_of(name), int(part_of(name))) for name in records(query.files, "report")},
            "table": [row.id for row in outside.table.rows],
            "letters": [each.row.id for each in outside.letters.rows],
        }
        ours: dict[str, Any] = {
            "log": [(each.epoch.number, each.end, each.time) for each in s.spark.log],
            "committed": s.spark.committed,
            "manifest": bool(s.control.name),
            "owner": s.control.owner,
            "epochs": {(each.number, each.policy, each.settled) for each in s.control.epochs},
            "reports": {(each.batch, each.time) for each in s.control.reports},
            "table": list(s.table.rows),
            "letters": list(s.letters.rows),
        }
        # The model deletes nothing that is old; the job what no batch needs that may be put back.
        oldest = max(0, len(s.spark.log) - query.given.batches_retained - 1)
        needed = s.spark.log[oldest].epoch.number if s.spark.log else 0
        ours["epochs"] -= {each for each in ours["epochs"] - there["epochs"] if each[0] < needed}
        ours["reports"] -= {each for each in ours["reports"] - there["reports"] if each[0] < oldest}
        return next((f"{name} is {there[name]}, not {ours[name]}" for name in ours if there[name] != ours[name]), None)

    def _epoch(self, query: TracedQuery, name: str) -> tuple[int, int, int]:
        """Return what the model has of an epoch, whose file never changes."""
        if name not in self._epochs:
            epoch = read_epoch(query.files, name)
            assert epoch is not None
            self._epochs[name] = epoch.number, self.policy(epoch.revision), epoch.settled_batch
        return self._epochs[name]

    def _keys(self, query: TracedQuery) -> tuple[Hashable, Hashable, Hashable]:
        checkpoint, outside, files = query.given.checkpoint, query.given.outside, query.files
        log = tuple((each.end["file"], each.end_row, each.now_ms) for each in checkpoint.log)
        names = frozenset(files.names("epochs")), tuple(records(files, "report"))
        control = owner_of(files), read_manifest(files), names
        rows = len(outside.table.rows), tuple(outside.table.newest.values())
        letters = len(outside.letters.rows), tuple(outside.letters.newest.values())
        return (log, checkpoint.committed), control, (rows, letters)


class TracedQuery(SimulatedQuery):
    """A run that tells its steps."""

    trace: BatchTrace | None = None

    def __init__(self, given: StartConditions) -> None:
        self.given, trace = given, self.trace
        self.id = 0
        if trace is None or not trace.is_of(given):
            super().__init__(given)
            return
        self.files = MemoryDirectory(given.checkpoint.control, lambda _: None, given.place)
        trace.note_surroundings(self)
        trace.note_restore(self)
        number = max(trace.state.starts, *trace._runs.values(), 0) + 1
        try:
            super().__init__(replace(given, passes=self._passes))
        except ThrottleError as error:
            trace.take(self, "refuse", number, type(error).__name__)
            raise
        self.id = number
        fence = self._reader.plane().epochs._fence
        assert fence is not None
        trace._runs[fence.run] = number
        trace.take(self, "start", number)

    def _is_told(self) -> bool:
        return (
            self.trace is not None
            and not self.trace.is_over
            and bool(self.id)
            and any(run.id == self.id for run in self.trace.state.runs)
        )

    def tell(self, action: str, *arguments: Any) -> None:
        """Tell a step of this run, if it is traced."""
        if self.trace is not None and self._is_told():
            self.trace.take(self, action, self.id, *arguments)

    def end(self, error: BaseException) -> None:
        """Tell that this run ended: it refused to go on, or died."""
        if self.trace is not None and self._is_told():
            name = type(error).__name__
            name = "ConcurrentRunError" if isinstance(error, ConcurrentRunError) else name
            self.tell(*(("refuse", name) if name in REFUSALS else ("die",)))

    def _passes(self, point: CrashPoint) -> None:
        """Tell the step after which a batch passes a point, and then let it die there or be held up."""
        if self._is_told():
            self._tell_of(point)
        self.given.passes(point)

    def _tell_of(self, point: CrashPoint) -> None:
        checkpoint, number = self.given.checkpoint, self._number
        if point == "before epoch":
            self.tell("plan", True)
        elif point == "after offset":
            logged = checkpoint.log[-1]
            self.tell("log_offset", logged.end_row, logged.now_ms, logged.end_cost)
        elif point == "before state":
            assert self.trace is not None
            attempt = self.given.attempts[-1]
            left = tuple(row.id for row in attempt.admitted), tuple(each.row.id for each in attempt.rejected)
            waiting = tuple(row for row in rows_of(self.trace.state, number) if row not in {*left[0], *left[1]})
            self.tell("decide", Outcome(*left, waiting))
        elif point in _STEPS:
            self.tell(_STEPS[point])
            block = checkpoint.states.get(number + 1) if point == "after state" else None
            if block is not None and self.trace is not None:
                there, ours = waiting_ids(block, QueueFolder(self.files)), self.trace.state.spark.kept[number + 1]
                if sorted(there) != sorted(ours):
                    raise NotAllowedError(f"rows {sorted(there)} wait after batch {number}, not {sorted(ours)}")

    @property
    def _number(self) -> int:
        """The number of the batch that runs."""
        return self._newest

    def resume(self) -> SimulatedBatch | None:
        """Run the batch again that was planned but not committed."""
        return self._told(super().resume)

    def next_batch(self, *arguments: Any, **options: Any) -> SimulatedBatch | None:
        """Plan a batch, and run it."""
        return self._told(lambda: super(TracedQuery, self).next_batch(*arguments, **options))

    def _told(self, run: Callable[[], SimulatedBatch | None]) -> SimulatedBatch | None:
        try:
            return run()
        except (ThrottleError, SimulatedCrash) as error:
            self.end(error)
            raise


def _run_of(fence: RunFence | None) -> TracedQuery | None:
    """Return the run whose fence this is: it gave a method of its own to call."""
    return getattr(getattr(fence, "_then", None), "__self__", None)


class TracedFence(RunFence):
    """A fence that tells when its run takes over the directory."""

    def begin(self) -> None:
        """Take over the directory."""
        is_first = not self._has_begun
        super().begin()
        run = _run_of(self)
        if is_first and run is not None:
            run.tell("begin")


class TracedPlane(ControlPlane):
    """A control plane that tells its plans."""

    def next_epoch(self, start: EpochName, *, ends_when_drained: bool = False) -> EpochName:
        """Return the epoch that the next batch is planned with."""
        run = _run_of(self.epochs._fence)
        if run is None or run.trace is None or not run._is_told():
            return super().next_epoch(start, ends_when_drained=ends_when_drained)
        run.trace.note_surroundings(run)
        name = super().next_epoch(start, ends_when_drained=ends_when_drained)
        if name == start:
            run.tell("plan", False)
        return name


_STEPS: Final[dict[CrashPoint, str]] = {
    "after epoch": "write_epoch", "after state": "keep_state", "after table": "write",
    "after dead letters": "write_letters", "after feedback": "report", "after commit": "commit",
}  # fmt: skip


def trace_batches(patch: pytest.MonkeyPatch) -> BatchTrace:
    """Let the next simulated job tell its steps; it is the only one in its place."""
    trace = BatchTrace()
    stop = job_module.SimulatedJob.stop

    def told_stop(job: job_module.SimulatedJob) -> None:
        if isinstance(job._running, TracedQuery):
            job._running.end(SimulatedCrash())
        stop(job)

    patch.setattr(TracedQuery, "trace", trace)
    patch.setattr(job_module, "SimulatedQuery", TracedQuery)
    patch.setattr(job_module.SimulatedJob, "stop", told_stop)
    patch.setattr(query_module, "RunFence", TracedFence)
    patch.setattr(query_module, "ControlPlane", TracedPlane)
    return trace
