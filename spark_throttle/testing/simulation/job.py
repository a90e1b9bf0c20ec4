"""A complete job without Spark, to test policies and to search for faults: the real parts, in Spark's order, no JVM.

`SimulatedJob` runs the control plane, the decider's batches and the feedback between them as a query does, over a
simulated source, offset log, state store and sinks. Time passes only when a call says so. The same sequence of calls
gives the same history, to the byte.

A trigger makes Spark's calls in Spark's order::

    epoch planned → batch time → offset logged → rows decided, state kept → table → plain sink → dead letters
        → feedback → commit

and may die before or after each write (`SimulatedJob.crash`). What survives is a `Checkpoint`, the source and the
sinks. True time (`steady_ms`) and the wall clock are different clocks: the wall clock may jump, and Spark's batch time
comes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spark_throttle.control.clock import Clock
from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import Direction, PolicyDocument
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.spark.move.queue_frames import QueueFolder
from spark_throttle.store.policy_location import load_policies
from spark_throttle.testing.simulation.disk import (
    Checkpoint,
    CrashPoint,
    Interruptions,
    MemoryDirectory,
    SimulatedCrash,
)
from spark_throttle.testing.simulation.exchange import (
    START_MS,
    Rates,
    SimulatedExchange,
    SimulatedMachine,
    SimulatedTime,
)
from spark_throttle.testing.simulation.query import (
    CommonCost,
    Costs,
    FollowedPolicies,
    Settles,
    SimulatedBatch,
    SimulatedQuery,
    StartConditions,
    Surroundings,
    costs_no_batch,
    costs_nothing,
    settles_nothing,
)
from spark_throttle.testing.simulation.rows import OfferedRow, RejectedRow, Row, waiting_ids


class SimulatedJob:
    """A throttled job that a test drives one trigger at a time; deterministic, without a JVM.

    Parameters
    ----------
    policies
        A policy document: a mapping, or anything that `load_policies` reads.
    direction
        Which of a policy's quotas the job enforces.
    batches_retained
        The number of batches by which the checkpoint can be restored to an earlier one.
    exchange
        The exchange through which the job shares its quotas, if it does; all members of an exchange live in one time.
    cost_ns
        The processing time that admitted rows take, in ns by namespace; by default, none is measured.
    common_ns
        The processing time that all rows of a batch take together, as a sink's does, in ns; by default, none.
    settles
        What a function of the query tells of the costs of admitted rows, by identity; by default, nothing. See
        `settle`.

    Examples
    --------
    A quota of 2 messages per second with a burst of one second: a full bucket holds 2, and 3 pass, because the message
    that finds a balance of 0 goes into debt.

    >>> limits = {"namespaces": {"acme/logs": {"publish": {"messages_per_second": 2, "burst_seconds": 1}}}}
    >>> job = SimulatedJob({"version": 1, **limits})
    >>> _ = job.offer([("acme/logs", 100)] * 10)
    >>> _ = job.trigger()
    >>> len(job.admitted), len(job.waiting), len(job.rejected)
    (3, 7, 0)

    After 1 s the debt of 1 is repaid and the balance is 1, so 2 pass. A crash after the table's commit neither
    loses nor duplicates any message:

    >>> job.crash(at="after table")
    >>> job.trigger(after_ms=1_000)
    >>> [row.id for row in job.restart().admitted]
    [3, 4]
    >>> [row.id for row in job.admitted]
    [0, 1, 2, 3, 4]

    A policy takes effect in the next batch:

    >>> job.set_policies({"version": 1})
    >>> len(job.trigger(after_ms=1_000).admitted), len(job.waiting)
    (5, 0)
    """

    def __init__(
        self,
        policies: Mapping[str, object] | PolicyDocument | str,
        *,
        direction: Direction = "publish",
        batches_retained: int = 100,
        exchange: SimulatedExchange | None = None,
        cost_ns: Costs = costs_nothing,
        common_ns: CommonCost = costs_no_batch,
        settles: Settles = settles_nothing,
    ) -> None:
        self.direction: Direction = direction
        self.batches_retained = batches_retained
        self.exchange = exchange
        self.cost_ns = cost_ns
        """The processing time that admitted rows take; a cost that is assigned counts from the next batch on."""

        self.common_ns = common_ns
        """The processing time that all rows of a batch take together; as above."""

        self.settles = settles
        """What a function of the query tells of the costs of admitted rows."""

        self.is_sharing = exchange is not None
        """Whether the job shares its quotas, from its next start on."""

        self.time = SimulatedTime() if exchange is None else exchange.time
        self.checkpoint = Checkpoint()
        self.place = "memory:0"
        """Place of the control directory; a copy has another."""

        self.outside = Surroundings()
        self.documents: dict[str, PolicyDocument] = {}
        """All policies that the job ever had, by their revision in the job's direction; exceptions are resolved."""

        self.attempts: list[SimulatedBatch] = []
        """The result of every attempt at a batch, including attempts that died later."""

        self.machine = SimulatedMachine()
        """The machine on which the job runs."""

        self._shift_ms = 0
        self._interruptions = Interruptions()
        self._copies = 0
        self.followed = FollowedPolicies(self._snapshot(policies))
        """The policies that the job reads before every batch."""

        self._running: SimulatedQuery | None = None
        self._waiting: tuple[bytes, list[int]] | None = None
        self.restart()

    # ------------------------------------------------------------------------------------------ what a user does

    def offer(self, rows: Iterable[OfferedRow]) -> list[Row]:
        """Append rows of namespace, size in bytes and, perhaps, units and an identity to the source, and return them.

        The next batch reads them.
        """
        source = self.outside.source
        offered = [Row(len(source) + at, *row) for at, row in enumerate(rows)]
        source += offered
        return offered

    def settle(self, identity: str, units: int) -> None:
        """Append what a row really cost to the stream of costs; the next batch reads it."""
        self.outside.costs.append((identity, units))

    def set_policies(self, policies: Mapping[str, object] | PolicyDocument | str) -> None:
        """Replace the policies; the next planned batch applies the new ones.

        Raises
        ------
        PolicyError
            If the document cannot be applied; the policies in force stay.
        """
        self.followed.snapshot = self._snapshot(policies)

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
            The most rows that one batch reads from the source.

        Raises
        ------
        ConfigurationError
            If the job is down.
        ThrottleError
            As the job raises it; the job is then down.
        """
        self.pass_time(after_ms)
        running = self._up()
        return self._protected(lambda: running.next_batch(planning_ms, most_rows))

    def drop(self, after_ms: int = 1_000) -> SimulatedBatch | None:
        """Run a source batch that yields no row, as after a filter or `dropDuplicates`; see `trigger`."""
        self.pass_time(after_ms)
        running = self._up()
        return self._protected(lambda: running.next_batch(0, 0, is_forced=True))

    def crash(self, at: CrashPoint) -> None:
        """Make the next batch that reaches a crash point die there.

        Raises
        ------
        ConfigurationError
            If there is no such point.
        """
        self._interruptions.crash(at)

    def hold_up(self, at: CrashPoint, meanwhile: Callable[[], None]) -> None:
        """Suspend the next batch that reaches a point, call `meanwhile`, and then resume the batch.

        So a run that was considered dead can resume in parallel with a run that was started in its place (`twin`).

        Raises
        ------
        ConfigurationError
            If there is no such point.
        """
        self._interruptions.hold_up(at, meanwhile)

    def stop(self) -> None:
        """End the process between two batches."""
        if self._running is not None and self._running.lease is not None and self.exchange is not None:
            self.exchange.members.remove(self)
            if self._running.lease in self.time.actors:
                self.time.actors.remove(self._running.lease)
        self._running = None

    def restart(self, after_ms: int = 0) -> SimulatedBatch | None:
        """Start the job from its checkpoint; return the batch that runs again, if one was planned but not committed.

        Raises
        ------
        ThrottleError
            As the job raises it; the job is then down.
        """
        self.pass_time(after_ms)
        self.stop()
        return self._protected(self._start)

    def wait_ms(self) -> int | None:
        """Return how long ``availableNow`` would wait for the next row to leave; `None` if the query would end.

        It counts from the newest epoch. So after a batch in which rows arrived, trigger once before you ask.
        """
        return self._up().wait_ms()

    # ------------------------------------------------------------------------------------- what happens to a job

    def pass_time(self, by_ms: int) -> None:
        """Let time pass in which no batch runs; a job that shares its quotas goes on visiting the exchange."""
        self.time.pass_by(by_ms)

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock forward or back while no time passes."""
        self._shift_ms += by_ms

    def move(self, machine: SimulatedMachine) -> None:
        """Stop the job, and let it start next on another machine, or on this one after a reboot."""
        self.stop()
        self.machine, self._shift_ms = machine, machine.ahead_ms

    def put_back(self, batches: int, *, with_control: Checkpoint | None = None) -> None:
        """Stop the job and undo the last batches in its checkpoint; the sinks and the source stay as they are.

        No more batches are undone than the checkpoint retains.

        Parameters
        ----------
        with_control
            A backup whose control directory is restored too; by default the present one stays.
        """
        self.stop()
        self.checkpoint.put_back(batches)
        if with_control is not None:
            self.checkpoint.control = dict(with_control.control)

    def lose_control(self) -> None:
        """Stop the job and delete its control directory."""
        self.stop()
        self.checkpoint.control = {}

    def clone(self, *, with_sinks: bool = False, is_elsewhere: bool = True) -> SimulatedJob:
        """Return a job that starts from a copy of this one's checkpoint, on the same source and sinks.

        Parameters
        ----------
        with_sinks
            Whether source and sinks are copied too, so that the two jobs have at most an exchange in common.
        is_elsewhere
            Whether the copy can see that it is in another place.
        """
        outside = self.outside.copy() if with_sinks else self.outside
        self._copies += is_elsewhere
        place = f"{self.place}.{self._copies}" if is_elsewhere else self.place
        return self._another(self.checkpoint.copy(), outside, place)

    def twin(self, *, is_other_query: bool = False) -> SimulatedJob:
        """Return a job that starts in this one's control directory, possibly while this one runs.

        Parameters
        ----------
        is_other_query
            Whether it is another query, with a checkpoint, a source and sinks of its own, that was given the same
            control path; otherwise it is the same query, started twice.
        """
        if not is_other_query:
            twin = self._another(self.checkpoint, self.outside, self.place)
            twin.attempts, twin.documents, twin.followed = self.attempts, self.documents, self.followed
            return twin
        return self._another(Checkpoint(control=self.checkpoint.control), Surroundings(), self.place)

    def _another(self, checkpoint: Checkpoint, outside: Surroundings, place: str) -> SimulatedJob:
        """Return a stopped job like this one, with another checkpoint, surroundings and place."""
        other = SimulatedJob(
            self.followed.snapshot.document, direction=self.direction, cost_ns=self.cost_ns, common_ns=self.common_ns,
            settles=self.settles,
        )  # fmt: skip
        other.stop()
        other.checkpoint, other.outside, other.place = checkpoint, outside, place
        other.batches_retained, other.documents = self.batches_retained, dict(self.documents)
        other.time, other.machine, other._shift_ms = self.time, self.machine, self._shift_ms
        other.exchange, other.is_sharing = self.exchange, self.is_sharing
        return other

    # -------------------------------------------------------------------------------------------- what is there

    @property
    def steady_ms(self) -> int:
        """True time since the simulation began; a machine's steady clock has another origin."""
        return self.time.now_ms

    @property
    def ahead_ms(self) -> int:
        """Lead of the wall clock over true time."""
        return self._shift_ms

    @property
    def wall_ms(self) -> int:
        """Reading of the wall clock."""
        return START_MS + self.time.now_ms + self._shift_ms

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
        """The rows in the sink without transactions: at least those of the table."""
        return self.outside.plain.rows

    @property
    def rejected(self) -> list[RejectedRow]:
        """The dead letters."""
        return self.outside.letters.rows

    @property
    def waiting(self) -> list[Row]:
        """The rows in the queue, as the last committed batch left it."""
        block = self.checkpoint.states[self.checkpoint.committed]
        if block is None:
            return []
        if self._waiting is None or self._waiting[0] is not block:
            control = MemoryDirectory(self.checkpoint.control, self._interruptions.passes, self.place)
            self._waiting = block, waiting_ids(block, QueueFolder(control))
        return [self.outside.source[number] for number in self._waiting[1]]

    def leased(self) -> Rates:
        """Return what the job may spend now of its shared quotas; empty if it shares none, or is down."""
        return {} if self._running is None else self._running.leased()

    @property
    def policies(self) -> PolicyDocument:
        """The policies with which the next batch is planned."""
        return self.followed.snapshot.document

    @property
    def revision(self) -> str:
        """Revision of `policies` as they are now, in the direction that the job enforces."""
        return revision_of(self.policies.at(self.wall_ms), self.direction)

    # ------------------------------------------------------------------------------------------------ the query

    def _snapshot(self, policies: Mapping[str, object] | PolicyDocument | str) -> PolicySnapshot:
        document = load_policies(policies)
        for at_ms in document.moments_ms(0):
            resolved = document.at(at_ms)
            self.documents[revision_of(resolved, self.direction)] = resolved
        return PolicySnapshot(document, revision_of(document), None)

    def _up(self) -> SimulatedQuery:
        if self._running is None:
            raise ConfigurationError("the simulated job is down: call restart()")
        return self._running

    def _protected(self, run: Callable[[], SimulatedBatch | None]) -> SimulatedBatch | None:
        """Run a part of the job; if it dies or fails, the job is down."""
        try:
            return run()
        except SimulatedCrash:
            self.stop()
            return None
        except BaseException:
            self.stop()
            raise

    def _start(self) -> SimulatedBatch | None:
        """Start a query, and return the batch that runs again, if there is one."""
        exchange = self.exchange if self.is_sharing else None
        machine = self.machine
        clock = Clock(lambda: self.wall_ms, lambda: machine.up_ms + self.steady_ms, machine.boot)
        given = StartConditions(
            self.direction, self.batches_retained, self.followed, self.checkpoint, self.place,
            self.outside, self.time, clock, exchange, self._interruptions.passes, self.attempts,
            lambda rows: self.cost_ns(rows),  # noqa: PLW0108 - a cost may be assigned while the job runs
            lambda rows: self.common_ns(rows),  # noqa: PLW0108 - as above
            lambda rows: self.settles(rows),  # noqa: PLW0108 - as above
        )  # fmt: skip
        running = self._running = SimulatedQuery(given)
        if exchange is not None and running.lease is not None:
            exchange.members.append(self)
        return running.resume()
