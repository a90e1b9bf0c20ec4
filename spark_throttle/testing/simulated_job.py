"""A whole job without Spark, to test policies with and to search for faults: the real parts, in Spark's order, no JVM.

`SimulatedJob` runs the control plane, every shard's batches and the feedback between them as a query does, over a
made-up source, offset log, state store and sinks. It has no clock of its own: time passes when it is told to. One
sequence of calls gives one history, to the byte.

A trigger makes Spark's calls in Spark's order::

    epoch planned → batch time → offset logged → shards decided, state kept → table → plain sink → dead letters
        → feedback → commit

and may die before or after each write (`SimulatedJob.crash`). What survives is a `Checkpoint`, the source and the
sinks. True time (`steady_ms`) and the wall clock are two: the latter may jump, and is all that Spark's batch time and
the control plane see.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_throttle.control.batch_mark import mark_of
from spark_throttle.control.clock import Clock
from spark_throttle.control.codec import load_policies
from spark_throttle.control.compile import queue_bounds, revision_of
from spark_throttle.control.feedback import forget_reports, write_reports
from spark_throttle.control.manifest import Manifest, bind
from spark_throttle.control.model import Direction, PolicyDocument
from spark_throttle.control.plane import ControlPlane, EpochName
from spark_throttle.control.source import PolicySnapshot
from spark_throttle.core.codec import unpack_usage
from spark_throttle.core.quota import QueueBounds
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.control_source import GrantPartition
from spark_throttle.spark.shard_batch import ShardOutcome, run_batch
from spark_throttle.testing.simulated_batch import FollowedPolicies, SimulatedBatch, SimulatedSource, digest_of
from spark_throttle.testing.simulated_disk import (
    CRASH_POINTS,
    Checkpoint,
    CrashPoint,
    LoggedBatch,
    MemoryDirectory,
    SimulatedCrash,
)
from spark_throttle.testing.simulated_rows import Name, RejectedRow, Row, dead_letters, frames_of, ids_of, waiting_ids
from spark_throttle.testing.simulated_sinks import PlainSink, TransactionalTable

START_MS = 1_760_000_000_000
"""What the wall clock shows when a simulated job begins."""


@dataclass(frozen=True, slots=True)
class _Running:
    """What a crash takes with it."""

    reader: SimulatedSource
    directory: MemoryDirectory
    manifest: Manifest
    """Names the job at its sinks."""

    room: QueueBounds


@dataclass(slots=True)
class _Outside:
    """What is no part of the job and outlives it."""

    source: list[Row] = field(default_factory=list)
    table: TransactionalTable[Row] = field(default_factory=TransactionalTable)
    plain: PlainSink[Row] = field(default_factory=PlainSink)
    letters: TransactionalTable[RejectedRow] = field(default_factory=TransactionalTable)


class SimulatedJob:
    """A throttled job that is played by hand, a trigger at a time; deterministic, without a JVM.

    Parameters
    ----------
    policies
        A policy document: a mapping, or what `load_policies` reads.
    shards
        As `Throttle` has it.
    direction
        Which of a policy's quotas the job enforces.
    batches_retained
        How many batches can be put back.

    Examples
    --------
    A quota of 2 messages a second with a burst of one second: a full bucket holds 2, and 3 pass, for the message that
    finds a balance of 0 goes into debt.

    >>> limits = {"namespaces": {"acme/logs": {"publish": {"messages_per_second": 2, "burst_seconds": 1}}}}
    >>> job = SimulatedJob({"version": 1, **limits}, shards=2)
    >>> _ = job.offer([("acme/logs", 100)] * 10)
    >>> _ = job.trigger()
    >>> len(job.admitted), len(job.waiting), len(job.rejected)
    (3, 7, 0)

    After 1 s the debt of 1 is repaid and 1 token is there, so 2 pass. A crash behind the table's commit neither
    loses nor doubles any:

    >>> job.crash(at="after table")
    >>> job.trigger(after_ms=1_000)
    >>> job.restart().admitted
    (Row(id=3, namespace='acme/logs', size_bytes=100), Row(id=4, namespace='acme/logs', size_bytes=100))
    >>> [row.id for row in job.admitted]
    [0, 1, 2, 3, 4]

    A policy acts in the next batch:

    >>> job.set_policies({"version": 1})
    >>> len(job.trigger(after_ms=1_000).admitted), len(job.waiting)
    (5, 0)
    """

    def __init__(
        self,
        policies: Mapping[str, object] | PolicyDocument | str,
        shards: int = 8,
        *,
        direction: Direction = "publish",
        batches_retained: int = 100,
    ) -> None:
        self.shards = shards
        self.direction: Direction = direction
        self.batches_retained = batches_retained
        self.checkpoint = Checkpoint()
        self.outside = _Outside()
        self.wall_ms = START_MS
        self.steady_ms = 0
        self.documents: dict[str, PolicyDocument] = {}
        """All policies that the job ever had, by the revision of its direction."""

        self.attempts: list[SimulatedBatch] = []
        """What every attempt at a batch decided, those that died later included."""

        self._crash_at: CrashPoint | None = None
        self._attempts = 0
        self._policies = FollowedPolicies(self._snapshot(policies))
        self._running: _Running | None = None
        self._waiting: dict[int, tuple[bytes, list[int]]] = {}
        self.restart()

    # ------------------------------------------------------------------------------------------ what a user does

    def offer(self, rows: Iterable[tuple[Name, int | None]]) -> list[Row]:
        """Append rows of (namespace, size in bytes) to the source, and return them; the next batch brings them."""
        source = self.outside.source
        offered = [Row(len(source) + at, namespace, size) for at, (namespace, size) in enumerate(rows)]
        source += offered
        return offered

    def set_policies(self, policies: Mapping[str, object] | PolicyDocument | str) -> None:
        """Put other policies in force; they act in the next batch that is planned.

        Raises
        ------
        PolicyError
            If the document cannot be applied; the policies in force stay.
        """
        self._policies.snapshot = self._snapshot(policies)

    def trigger(
        self, after_ms: int = 1_000, *, planning_ms: int = 0, most_rows: int | None = None
    ) -> SimulatedBatch | None:
        """Let time pass, then run a batch if one is due, and return it; `None` if none is, or if the job died in it.

        Parameters
        ----------
        after_ms
            Time since the last trigger.
        planning_ms
            Time between the epoch and the batch time, as another source may take.
        most_rows
            How many rows the source gives to one batch at most.

        Raises
        ------
        ConfigurationError
            If the job is down.
        ThrottleError
            As the job raises it; the job is then down.
        """
        self.pass_time(after_ms)
        running = self._up()
        return self._protected(lambda: self._next_batch(running, planning_ms, most_rows))

    def drop(self, after_ms: int = 1_000) -> SimulatedBatch | None:
        """Run a batch of the source that leaves no row, as behind a filter or `dropDuplicates`; see `trigger`."""
        self.pass_time(after_ms)
        running = self._up()
        return self._protected(lambda: self._next_batch(running, 0, 0, is_forced=True))

    def crash(self, at: CrashPoint) -> None:
        """Let the next batch that comes by there die at a write; until then nothing happens.

        Raises
        ------
        ConfigurationError
            If there is no such point.
        """
        if at not in CRASH_POINTS:
            raise ConfigurationError(f"{at!r} is no point to crash at; there are {', '.join(CRASH_POINTS)}")
        self._crash_at = at

    def stop(self) -> None:
        """End the process between two batches."""
        self._running = None

    def restart(self, after_ms: int = 0) -> SimulatedBatch | None:
        """Start the job from its checkpoint; return the batch that is run again, if one was planned and not committed.

        Raises
        ------
        ThrottleError
            As the job raises it; the job is then down.
        """
        self.pass_time(after_ms)
        self._running = None
        return self._protected(self._start)

    def wait_ms(self) -> int | None:
        """Return how long ``availableNow`` would wait for the next row to leave; `None` if it would end."""
        return self._up().reader.plane().wait_ms()

    # ------------------------------------------------------------------------------------- what happens to a job

    def pass_time(self, by_ms: int) -> None:
        """Let time pass in which nothing happens."""
        self.steady_ms += by_ms
        self.wall_ms += by_ms

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock forward or back while no time passes."""
        self.wall_ms += by_ms

    def put_back(self, batches: int, *, with_control: Checkpoint | None = None) -> None:
        """Undo the last batches in the checkpoint, the sinks and the source being as they are; the job is then down.

        Parameters
        ----------
        with_control
            A backup whose control directory is put back too; by default it stays.
        """
        self._running = None
        self.checkpoint.put_back(batches)
        if with_control is not None:
            self.checkpoint.control = dict(with_control.control)

    def lose_control(self) -> None:
        """Delete the control directory; the job is then down."""
        self._running = None
        self.checkpoint.control = {}

    def clone(self) -> SimulatedJob:
        """Return a job that starts from a copy of this one's checkpoint, on the same source and sinks."""
        other = SimulatedJob(self._policies.snapshot.document, self.shards, direction=self.direction)
        other.stop()
        other.checkpoint, other.outside = self.checkpoint.copy(), self.outside
        other.wall_ms, other.steady_ms, other.documents = self.wall_ms, self.steady_ms, dict(self.documents)
        return other

    # -------------------------------------------------------------------------------------------- what is there

    @property
    def is_down(self) -> bool:
        """Whether the job has died or was stopped."""
        return self._running is None

    @property
    def admitted(self) -> list[Row]:
        """The rows in the table, which has transactions."""
        return self.outside.table.rows

    @property
    def written(self) -> list[Row]:
        """The rows in the sink that has none: at least those of the table."""
        return self.outside.plain.rows

    @property
    def rejected(self) -> list[RejectedRow]:
        """The dead letters."""
        return self.outside.letters.rows

    @property
    def waiting(self) -> list[Row]:
        """The rows in the queues of all shards, as the last committed batch left them."""
        states = self.checkpoint.states[self.checkpoint.committed]
        found = []
        for shard, block in sorted(states.items()):
            if shard not in self._waiting or self._waiting[shard][0] is not block:
                self._waiting[shard] = (block, waiting_ids(block))
            found += [self.outside.source[number] for number in self._waiting[shard][1]]
        return found

    @property
    def policies(self) -> PolicyDocument:
        """The policies that the next batch is planned with."""
        return self._policies.snapshot.document

    @property
    def revision(self) -> str:
        """Names the content of `policies`, in the direction that the job enforces."""
        return revision_of(self.policies, self.direction)

    # ------------------------------------------------------------------------------------------------ the query

    def _snapshot(self, policies: Mapping[str, object] | PolicyDocument | str) -> PolicySnapshot:
        document = load_policies(policies)
        self.documents[revision_of(document, self.direction)] = document
        return PolicySnapshot(document, revision_of(document), None)

    def _up(self) -> _Running:
        if self._running is None:
            raise ConfigurationError("the simulated job is down: call restart()")
        return self._running

    def _passes(self, point: CrashPoint) -> None:
        if point == self._crash_at:
            self._crash_at = None
            raise SimulatedCrash(point)

    def _protected(self, run: Any) -> SimulatedBatch | None:  # noqa: ANN401 - a callable without arguments
        """Run a part of the job; where it dies or fails, the job is down."""
        try:
            batch: SimulatedBatch | None = run()
        except SimulatedCrash:
            self._running = None
            return None
        except BaseException:
            self._running = None
            raise
        return batch

    def _start(self) -> SimulatedBatch | None:
        """Do what a query does when it starts."""
        directory = MemoryDirectory(self.checkpoint.control, self._passes)
        logged = len(self.checkpoint.log) - 1
        manifest = bind(directory, shards=self.shards, direction=self.direction, may_begin=logged < 0)
        self.outside.table.check_start(manifest.query, logged)
        self.outside.letters.check_start(f"{manifest.query}/rejected", logged)
        if logged >= 0:
            forget_reports(directory, from_batch=logged + 1)
        clock = Clock(lambda: self.wall_ms, lambda: self.steady_ms, "simulated")
        plane = ControlPlane(
            directory, self._policies, self.direction, self.shards, clock,
            batches_retained=self.batches_retained,
        )  # fmt: skip
        reader = SimulatedSource({"shardkeys": json.dumps(list(range(self.shards)))}, plane)
        self._running = _Running(reader, directory, manifest, queue_bounds(self.policies.queue))
        checkpoint = self.checkpoint
        if len(checkpoint.log) > checkpoint.committed:
            return self._run(self._running, checkpoint.committed, checkpoint.log[-1])
        return None

    def _next_batch(
        self, running: _Running, planning_ms: int, most_rows: int | None, *, is_forced: bool = False
    ) -> SimulatedBatch | None:
        """Plan a batch as Spark does, and run it if the sources have something new."""
        checkpoint, reader = self.checkpoint, running.reader
        start = checkpoint.log[-1].end if checkpoint.log else reader.initialOffset()
        first_row = checkpoint.rows_taken
        end_row = (
            len(self.outside.source) if most_rows is None else min(len(self.outside.source), first_row + most_rows)
        )
        end = reader.latestOffset(start, None)  # type: ignore[arg-type]
        if end == start and end_row == first_row and not is_forced:
            return None
        self.pass_time(planning_ms)
        logged = LoggedBatch(start, end, first_row, end_row, self.wall_ms, self.steady_ms)
        self._passes("before offset")
        checkpoint.log.append(logged)
        self._passes("after offset")
        if len(checkpoint.log) > 1:
            reader.commit(start)
        return self._run(running, len(checkpoint.log) - 1, logged)

    def _run(self, running: _Running, number: int, logged: LoggedBatch) -> SimulatedBatch:
        """Decide and write a planned batch; once more the same if it was before."""
        outside, checkpoint = self.outside, self.checkpoint
        self._attempts += 1
        attempt = random.Random(f"{number} {self._attempts}")  # noqa: S311 - a shuffle that replays
        arrived = outside.source[logged.first_row : logged.end_row]
        outcomes = self._decide(running, number, logged, arrived, attempt)
        admitted = [outside.source[row] for outcome in outcomes.values() for row in ids_of(outcome.admitted)]
        rejected = [row for outcome in outcomes.values() for row in dead_letters(outcome.rejected, outside.source)]
        usage = [outcome.usage for outcome in outcomes.values()]
        epoch = running.reader.plane().load(EpochName(int(logged.end["epoch"]), str(logged.end["file"])))
        batch = SimulatedBatch(
            number, logged.now_ms, logged.steady_ms, epoch.revision, epoch.number,
            tuple(arrived), tuple(admitted), tuple(rejected), tuple(usage), digest_of(outcomes),
        )  # fmt: skip
        self.attempts.append(batch)
        self._passes("before state")
        states = {shard: outcome.state for shard, outcome in outcomes.items()}
        checkpoint.states[number + 1] = checkpoint.states[number] | states
        self._passes("after state")
        reports = [unpack_usage(block, "a simulated usage report") for block in usage]
        mark = mark_of(running.manifest, number, reports)
        self._passes("before table")
        if admitted:
            outside.table.append(mark, admitted)
        self._passes("after table")
        self._passes("before plain sink")
        outside.plain.append(admitted)
        self._passes("after plain sink")
        self._passes("before dead letters")
        if rejected:
            outside.letters.append(mark.of_part("rejected"), rejected)
        self._passes("after dead letters")
        self._passes("before feedback")
        write_reports(running.directory, number, usage)
        self._passes("after feedback")
        self._passes("before commit")
        checkpoint.committed = number + 1
        checkpoint.forget(self.batches_retained)
        self._passes("after commit")
        return batch

    def _decide(
        self, running: _Running, number: int, logged: LoggedBatch, arrived: list[Row], attempt: random.Random
    ) -> dict[int, ShardOutcome]:
        """Let every shard that a control row or a row reaches decide, in any order."""
        grants: dict[int, bytes] = {}
        for partition in running.reader.partitions(logged.start, logged.end):
            assert isinstance(partition, GrantPartition)
            grants |= dict(partition.grants)
        frames = frames_of(arrived, self.shards, attempt)
        before = self.checkpoint.states[number]
        return {
            shard: run_batch(
                before.get(shard), grants.get(shard), frames.get(shard, []), shard=shard, shards=self.shards,
                now_ms=logged.now_ms, is_explained=False, room=running.room,
            )
            for shard in sorted(grants.keys() | frames.keys())
        }  # fmt: skip
