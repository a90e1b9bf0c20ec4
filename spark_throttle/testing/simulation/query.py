"""A run of a simulated job is the process that dies in a crash, and that makes Spark's calls in Spark's order.

Like Spark's, a run remembers what it planned and does not look it up in the log. So it detects a second run on the same
checkpoint that logs a batch first (`ConcurrentRunError`). The control source that plans a batch is the real one; the
result of a batch has what it decided.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_throttle.checkpoint.batch_mark import mark_of
from spark_throttle.checkpoint.batch_records import forget_undone
from spark_throttle.checkpoint.manifest import Manifest, bind, next_incarnation
from spark_throttle.control.charges import write_charges
from spark_throttle.control.clock import Clock
from spark_throttle.control.demand import SharedScopes
from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import write_report
from spark_throttle.control.run_fence import RunFence
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.usage import admitted_messages, unpack_usage
from spark_throttle.policy.compile import queue_bounds
from spark_throttle.policy.model import Direction
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.sharing.lease_keeper import Clocks
from spark_throttle.sharing.member import member_in
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from spark_throttle.spark.move.queue_frames import QueueFolder
from spark_throttle.spark.sources.control_source import ControlPartition, ThrottleControlReader
from spark_throttle.testing.simulation.disk import (
    Checkpoint,
    ConcurrentRunError,
    CrashPoint,
    LoggedBatch,
    MemoryDirectory,
)
from spark_throttle.testing.simulation.exchange import (
    Lease,
    Rates,
    SimulatedExchange,
    SimulatedTime,
    rates_of,
    scope_names,
)
from spark_throttle.testing.simulation.rows import (
    Cost,
    PlainSink,
    RejectedRow,
    Row,
    TransactionalTable,
    dead_letters,
    ids_of,
    late_costs,
    tables_of,
)


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """The result of one attempt at a batch."""

    number: int
    now_ms: int
    """The batch time, read from the wall clock."""

    steady_ms: int
    """True time since the job began."""

    revision: str
    """Revision of the policies that the batch applied."""

    epoch: int
    arrived: tuple[Row, ...]
    admitted: tuple[Row, ...]
    """The admitted rows, in the order in which they left."""

    rejected: tuple[RejectedRow, ...]
    usage: bytes = field(repr=False)
    """The decider's usage report; empty if the batch brought nothing."""

    digest: str
    """Digest of the rows that left and of the new state, byte for byte."""

    costs: tuple[Cost, ...] = ()
    """What rows that left before really cost, as the stream of late costs told it."""

    shares: Rates = field(default_factory=dict)
    """The job's share of every shared quota in this batch; empty if it shared none."""


def digest_of(outcome: BatchOutcome | None) -> str:
    """Return a digest of the rows that left, in their order, and of the new state, byte for byte.

    The bytes of the output frames are not compared, because a column may or may not declare that it has no nulls.
    """
    digest = hashlib.sha256()
    if outcome is not None:
        digest.update(outcome.state + outcome.usage)
        for tables in (outcome.admitted, outcome.rejected):
            digest.update(repr([row for table in tables for row in table.to_pylist()]).encode())
    return digest.hexdigest()


@dataclass(slots=True)
class FollowedPolicies:
    """The policies that the job follows."""

    snapshot: PolicySnapshot

    def current(self) -> PolicySnapshot:
        """Return the newest policies."""
        return self.snapshot


class SimulatedSource(ThrottleControlReader):
    """The control source of a job, with a control plane that is passed in."""

    def __init__(self, options: dict[str, str], plane: ControlPlane) -> None:
        super().__init__(options)
        self._plane = plane


Costs: TypeAlias = Callable[[Sequence[Row]], Mapping[str, int]]
"""The processing time of admitted rows, in ns by namespace."""


def costs_nothing(_rows: Sequence[Row]) -> Mapping[str, int]:
    """Measure no processing time."""
    return {}


CommonCost: TypeAlias = Callable[[Sequence[Row]], int]
"""The processing time that all admitted rows of a batch take together, in ns."""


def costs_no_batch(_rows: Sequence[Row]) -> int:
    """Measure no processing time."""
    return 0


Settles: TypeAlias = Callable[[Sequence[Row]], Sequence[Cost]]
"""The late costs that a function of the query tells of a batch's admitted rows."""


def settles_nothing(_rows: Sequence[Row]) -> Sequence[Cost]:
    """Tell no late costs."""
    return ()


INLINE_BYTES = 2_000
"""Bytes of waiting rows that are kept in the state: few, so that simulated jobs use files as large jobs do."""


@dataclass(slots=True)
class Surroundings:
    """The source and the sinks, which are no part of the job and outlive it."""

    source: list[Row] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    """The stream of late costs."""

    table: TransactionalTable[Row] = field(default_factory=TransactionalTable)
    plain: PlainSink[Row] = field(default_factory=PlainSink)
    letters: TransactionalTable[RejectedRow] = field(default_factory=TransactionalTable)

    def copy(self) -> Surroundings:
        """Return a source and sinks with the same rows."""
        plain = PlainSink(list(self.plain.rows))
        return Surroundings(list(self.source), list(self.costs), self.table.copy(), plain, self.letters.copy())


@dataclass(frozen=True, slots=True)
class StartConditions:
    """The conditions under which a run starts."""

    direction: Direction
    batches_retained: int
    policies: FollowedPolicies
    checkpoint: Checkpoint
    place: str
    """Place of the control directory; a copy has another."""

    outside: Surroundings
    time: SimulatedTime
    clock: Clock
    exchange: SimulatedExchange | None
    passes: Callable[[CrashPoint], None]
    attempts: list[SimulatedBatch]
    cost_ns: Costs
    common_ns: CommonCost
    settles: Settles


class SimulatedQuery:
    """One run of a simulated job."""

    def __init__(self, given: StartConditions) -> None:
        self._given = given
        checkpoint, outside = given.checkpoint, given.outside
        self._directory = MemoryDirectory(checkpoint.control, given.passes, given.place)
        self._newest = len(checkpoint.log) - 1
        """Number of the newest batch that this run knows."""

        self._planned: EpochName | None = None
        """The newest epoch that this run planned."""

        self._manifest = bind(self._directory, direction=given.direction, may_begin=self._newest < 0)
        outside.table.check_start(self._manifest.query, self._newest)
        outside.letters.check_start(f"{self._manifest.query}/rejected", self._newest)
        if self._newest >= 0:
            forget_undone(self._directory, self._newest, lambda batch: checkpoint.log[batch].now_ms)
        self.lease = self._join(given.exchange, self._manifest)
        fence = RunFence(self._directory, self._visit)
        shared = None if self.lease is None else SharedQuotas(self.lease.keeper, given.direction)
        self._room = queue_bounds(given.policies.snapshot.document.queue)
        plane = ControlPlane(
            self._directory, given.policies, given.direction, given.clock, shared,
            batches_retained=given.batches_retained, fence=fence, takes_costs=True,
        )  # fmt: skip
        self._reader = SimulatedSource({}, plane)

    def _visit(self) -> None:
        """Make the run visible to the exchange's other members from now on."""
        if self.lease is not None:
            self._given.time.actors.append(self.lease)

    def _join(self, exchange: SimulatedExchange | None, manifest: Manifest) -> Lease | None:
        """Take the job's place among the members of the exchange, as `spark.sources.query_plane` does."""
        if exchange is None:
            return None
        member, incarnation = member_in(self._directory, exchange.draw_member), next_incarnation(self._directory)
        sharing = Sharing(member, manifest.query[:8], incarnation, exchange.settings, exchange.draw_run())
        time = self._given.time
        return Lease(exchange, Clocks(lambda: time.now_ms, self._given.clock.wall_ms), sharing)

    def leased(self) -> Rates:
        """Return what the job may spend now of its shared quotas; empty if it shares none."""
        if self.lease is None or self._planned is None:
            return {}
        names = scope_names(self._policy_of(self._planned), self._given.direction)
        return self.lease.rates(names, self._pinned(self._planned))

    def _pinned(self, epoch: EpochName) -> Rates:
        """Return the job's share of every shared quota, as an epoch holds it; empty if the job shared none."""
        shares = self._reader.plane().epochs.load(epoch).share_micro_per_ms
        if shares is None:
            return {}
        policy = self._policy_of(epoch)
        scopes = SharedScopes.of(policy, self._given.direction)
        return rates_of(scope_names(policy, self._given.direction), scopes.ids, scopes.taken(shares))

    def _policy_of(self, epoch: EpochName) -> CompiledPolicy:
        policy = self._reader.plane().epochs.policy_for(NO_EPOCH, epoch)
        assert policy is not None, "counted from no epoch, every epoch brings a policy"
        return policy

    def wait_ms(self) -> int | None:
        """Return how long ``availableNow`` would wait for the next row to leave; `None` if it would end."""
        return self._reader.plane().wait_ms()

    def resume(self) -> SimulatedBatch | None:
        """Run the batch again that was planned but not committed, and return it; `None` if there is none."""
        checkpoint = self._given.checkpoint
        if len(checkpoint.log) > checkpoint.committed:
            return self._run(checkpoint.committed, checkpoint.log[-1])
        return None

    def next_batch(self, planning_ms: int, most_rows: int | None, *, is_forced: bool = False) -> SimulatedBatch | None:
        """Plan a batch as Spark does, and run it if the sources have new data."""
        given, checkpoint, reader = self._given, self._given.checkpoint, self._reader
        before = checkpoint.log[self._newest] if self._newest >= 0 else None
        start = reader.initialOffset() if before is None else before.end
        first_row = 0 if before is None else before.end_row
        rows = len(given.outside.source)
        end_row = rows if most_rows is None else min(rows, first_row + most_rows)
        end = reader.latestOffset(start, None)
        if end != start:
            self._planned = EpochName.of(end)
        first_cost, end_cost = 0 if before is None else before.end_cost, len(given.outside.costs)
        if end == start and end_row == first_row and end_cost == first_cost and not is_forced:
            return None
        given.time.pass_by(planning_ms)
        logged = LoggedBatch(
            start, end, first_row, end_row, given.clock.wall_ms(), given.time.now_ms, first_cost, end_cost
        )
        given.passes("before offset")
        number = self._newest + 1
        if len(checkpoint.log) > number:
            raise ConcurrentRunError(number)
        checkpoint.log.append(logged)
        self._newest = number
        given.passes("after offset")
        if before is not None:
            reader.commit(start)
        return self._run(number, logged)

    def _run(self, number: int, logged: LoggedBatch) -> SimulatedBatch:
        """Decide and write a planned batch; a repeated batch is decided the same."""
        given, outside, checkpoint, passes = (
            self._given,
            self._given.outside,
            self._given.checkpoint,
            self._given.passes,
        )
        attempt = random.Random(f"{number} {len(given.attempts) + 1}")  # noqa: S311 - a shuffle that replays
        arrived = outside.source[logged.first_row : logged.end_row]
        costs = tuple(outside.costs[logged.first_cost : logged.end_cost])
        outcome = self._decide(number, logged, arrived, costs, attempt)
        admitted, rejected, report = list[Row](), list[RejectedRow](), None
        if outcome is not None:
            admitted = [outside.source[row] for row in ids_of(outcome.admitted)]
            rejected = dead_letters(outcome.rejected, outside.source)
            report = unpack_usage(outcome.usage, "a simulated usage report")
        epoch = self._reader.plane().epochs.load(EpochName.of(logged.end))
        shares = self._pinned(EpochName.of(logged.end))
        batch = SimulatedBatch(
            number, logged.now_ms, logged.steady_ms, epoch.revision, epoch.number,
            tuple(arrived), tuple(admitted), tuple(rejected), b"" if outcome is None else outcome.usage,
            digest_of(outcome), costs, shares,
        )  # fmt: skip
        given.attempts.append(batch)
        passes("before state")
        if number in checkpoint.states:  # else another run is far ahead of this one
            checkpoint.states[number + 1] = checkpoint.states[number] if outcome is None else outcome.state
        passes("after state")
        mark = mark_of(self._manifest, number, report)
        passes("before table")
        if admitted or rejected or number == 0:  # two copies of a query meet in the mark of the first batch
            outside.table.append(mark, admitted)
        passes("after table")
        passes("before plain sink")
        outside.plain.append(admitted)
        passes("after plain sink")
        passes("before dead letters")
        if rejected:
            outside.letters.append(mark.of_part("rejected"), rejected)
        passes("after dead letters")
        passes("before feedback")
        charges = TimeCharges.of(dict(given.cost_ns(admitted)))
        if report is not None and (common_ns := given.common_ns(admitted)):
            charges = TimeCharges.sum_of([charges, TimeCharges.common(common_ns, *admitted_messages([report]))])
        if told := self._given.settles(admitted):
            charges = TimeCharges.sum_of([charges, TimeCharges.of({}, costs=late_costs(told))])
        if len(charges.names) or charges.unattributed_ns or charges.costs is not None:
            write_charges(self._directory, number, charges, part="all")
        if outcome is not None:
            write_report(self._directory, number, outcome.usage)
        passes("after feedback")
        passes("before commit")
        checkpoint.committed = max(checkpoint.committed, number + 1)
        checkpoint.forget(given.batches_retained)
        passes("after commit")
        return batch

    def _decide(
        self, number: int, logged: LoggedBatch, arrived: list[Row], costs: Sequence[Cost], attempt: random.Random
    ) -> BatchOutcome | None:
        """Decide a batch; `None` if it brings neither a control row, nor a row, nor a cost."""
        control = None
        for partition in self._reader.partitions(logged.start, logged.end):
            assert isinstance(partition, ControlPartition)
            control = partition.row
        tables = tables_of(arrived, attempt)
        if control is None and not tables and not costs:
            return None
        kept_epochs = self._given.batches_retained
        folder = QueueFolder(self._directory, inline_bytes=INLINE_BYTES, kept_epochs=kept_epochs)
        outcome = run_batch(
            self._given.checkpoint.states[number], control, tables,
            now_ms=logged.now_ms, is_explained=False, room=self._room, folder=folder,
            costs=late_costs(costs) if costs else None,
        )  # fmt: skip
        folder.delete(outcome.deletable_files)
        return outcome
