"""One life of a job: drawn from a seed, played step by step, all laws asked after every batch.

A seed and a number make a life; a life is a list of steps; a list of steps makes the same history always.
"""

from __future__ import annotations

import contextlib
import copy
import random
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_throttle.control.clock import MOST_DRIFT_MS
from spark_throttle.errors import PolicyError, QueueOverflowError, ThrottleError
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.disk import Checkpoint
from spark_throttle.testing.simulation.exchange import SimulatedExchange, SimulatedMachine, SimulatedPeer
from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Name, RejectedRow, Row, TransactionalTable
from tests.life import policies
from tests.life.account import Account
from tests.life.audited import AUDIT, Notes, findings
from tests.life.contract import Key, text_of
from tests.life.drawing import Drawing, Step, Traffic
from tests.life.late_costs import RESERVATION_SECONDS, Untold
from tests.life.laws import TAKEOVER, Law, Violation, World
from tests.life.laws_of_budgets import Budget
from tests.life.laws_of_charges import Charges
from tests.life.laws_of_debt import Debt
from tests.life.laws_of_fairness import Fairness, Starvation
from tests.life.laws_of_guarantees import Guarantee
from tests.life.laws_of_pace import Pace
from tests.life.laws_of_rejection import Rejection
from tests.life.laws_of_room import QueueRoom
from tests.life.laws_of_rows import AtomicDebit, Conservation, NoRestart, Order, Replay
from tests.life.laws_of_sharing import SHARING, Leases, Watch, place_of
from tests.life.laws_of_time import Limit, WorkConservation
from tests.life.laws_of_time_shares import TimeShares, Unspent
from tests.life.row_costs import costs, draw_costs
from tests.life.steps import ALWAYS, RULES, draw_names, draw_step
from tests.life.steps_of_sharing import RULES_OF_SHARING

ISOLATION: Final = "Isolation"
LAWS: Final[dict[str, Callable[[], Law]]] = {
    law.name: law
    for law in (
        Conservation, Limit, Fairness, Pace, WorkConservation, Order, Replay, NoRestart, AtomicDebit, Debt, Starvation,
        Guarantee, QueueRoom, Leases, Rejection, Charges, TimeShares, Unspent, Budget,
    )
}  # fmt: skip
LAW_NAMES: Final = (*LAWS, ISOLATION, TAKEOVER, AUDIT)
SETTINGS: Final = ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10)
LONGEST_PLANNING_MS: Final = 3_000
"""Longest time between an epoch and its batch."""


_LIVES_IN_UNITS: Final = 0.3


@dataclass(frozen=True, slots=True)
class Birth:
    """What a life begins with."""

    document: policies.Document
    is_sharing: bool = False
    """Whether it shares its quotas with other jobs."""

    row_ns: tuple[tuple[str, int], ...] = ()
    """The processing time that a row takes, by tenant; none is measured where it is empty."""

    counts_units: bool = False
    """Whether its policies say of units what the documents say of bytes; each row has as many."""

    tells_costs: bool = False
    """Whether units are estimates, and what rows cost is told later."""


@dataclass(frozen=True, slots=True)
class Script:
    """A whole life, as plain data."""

    birth: Birth
    steps: tuple[Step, ...]


def draw_script(
    seed: int,
    number: int,
    *,
    rules: Sequence[str] = tuple(RULES),
    kinds: Sequence[str] = policies.KINDS,
    steps: int = 30,
) -> Script:
    """Draw a life; the same always from the same numbers."""
    rng = random.Random(f"{seed}/{number}")
    tempers = policies.Tempers(frozenset(kind for kind in kinds if rng.random() < 0.5))
    chosen = tuple(rule for rule in RULES if rule in rules and (rule in ALWAYS or rng.random() < 0.5))
    names, sizes = draw_names(rng)
    document = policies.first(rng, tempers)
    drawing = Drawing(rng, tempers, names, sizes, document, [])
    is_sharing = rng.random() < 0.3 and any(rule in RULES_OF_SHARING for rule in chosen) and not tempers.has("budget")
    chosen = tuple(rule for rule in chosen if is_sharing or rule not in RULES_OF_SHARING)
    row_ns = draw_costs(random.Random(f"costs of {seed}/{number}")) if tempers.has("time") else ()
    counts_units = not is_sharing and random.Random(f"units of {seed}/{number}").random() < _LIVES_IN_UNITS
    tells_costs = counts_units and not tempers.has("budget") and random.Random(f"late {seed}/{number}").random() < 0.8
    birth = Birth(document, is_sharing, row_ns, counts_units, tells_costs)
    return Script(birth, tuple(draw_step(drawing, chosen) for _ in range(rng.randint(steps // 3, steps))))


@dataclass(frozen=True, slots=True)
class Backup:
    """What can be restored."""

    checkpoint: Checkpoint
    table: TransactionalTable[Row]
    letters: TransactionalTable[RejectedRow]
    account: Account
    waiting: dict[str, list[Row]]
    laws: list[Law]
    """Those that remember what the checkpoint does."""


@dataclass(slots=True)
class Life:
    """A job that lives, and those who watch it."""

    birth: Birth
    laws: Sequence[str] = LAW_NAMES
    batches: int = 0
    triggers: int = 0
    world: World = field(init=False)
    _watching: list[Law] = field(init=False)
    _first: dict[int, SimulatedBatch] = field(default_factory=dict)
    """The first attempt at every batch."""

    _asked: dict[int, str] = field(default_factory=dict)
    """The revision in force when every batch was planned."""

    _untold: Untold = field(default_factory=Untold)
    exchange: SimulatedExchange | None = None
    peers: dict[str, SimulatedPeer] = field(default_factory=dict)
    """Other jobs that live, by name."""

    kept_registers: dict[str, bytes] = field(default_factory=dict)
    _wanted: dict[str, int] = field(default_factory=dict)
    _past_peers: list[SimulatedPeer] = field(default_factory=list)
    _spent: dict[int, dict[tuple[Key, int], int]] = field(default_factory=dict)
    """What the peers had spent when a batch was planned."""

    _changed_ms: int = 0
    """When, by true time, somebody took up another policy."""

    _ahead_ms: int = 0
    """How far the latest time that was paid, as wall clocks show it, is at least ahead of true time."""

    _most_ahead_ms: int = 0
    """And at most: a clock that was set forward counts for those that come after it."""

    _drift_ms: int = 0
    """Time that a wall clock which was set forward a little has paid before it passed; the next epoch pays less."""

    _drifted_after: int = -1
    """The newest epoch when the wall clock was set forward."""

    _epoch: int = -1
    _moved_after: int = -1
    """The newest epoch when the job was moved to the machine that it runs on."""

    _notes: Notes = field(default_factory=Notes)
    _is_put_back: bool = False
    """Whether the job was put back since the last batch."""

    _compared: int = 0
    _at_ms: int = 0
    """True time of the newest batch that was judged."""

    _judged: int = 0
    _revision: str = ""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.laws) - set(LAW_NAMES)):
            raise ValueError(f"unknown laws {', '.join(unknown)}; there are {', '.join(LAW_NAMES)}")
        if self.birth.is_sharing and self.exchange is None:
            self.exchange = SimulatedExchange(SETTINGS)
        try:
            job = SimulatedJob(self._as_counted(self.birth.document), exchange=self.exchange)
        except PolicyError:
            job = SimulatedJob({"version": 1}, exchange=self.exchange)
        job.cost_ns = costs(self.birth.row_ns)
        self.world = World(job, Account())
        if self.exchange is not None and SHARING in self.laws:
            self.exchange.time.actors.append(Watch(self.exchange, self.world))
        self._watching = [LAWS[name]() for name in self.laws if name in LAWS]

    @property
    def job(self) -> SimulatedJob:
        """The job."""
        return self.world.job

    def play(self, steps: Sequence[Step]) -> None:
        """Play a history.

        Raises
        ------
        Violation
            Where a law is broken.
        """
        for step in steps:
            RULES[step.rule][2](self, **step.args)

    def audit(self) -> None:
        """Let the auditor count, when all has been played.

        Raises
        ------
        Violation
            If he finds a law broken.
        """
        if not self.birth.is_sharing and not self.birth.tells_costs:
            self._raise(AUDIT, findings(self.world, self._first, self._notes))

    # --------------------------------------------------------------------------------------- what rules may do

    def offer(self, rows: Traffic) -> None:
        """Offer runs of rows."""
        for text, size, count in rows:
            is_broken = text is not None and any("\udc80" <= letter <= "\udcff" for letter in text)
            name: Name = text.encode(errors="surrogateescape") if text is not None and is_broken else text
            units, first = size if self.birth.counts_units else 0, len(self.job.outside.source) + 1
            identities = [str(first + at) if self.birth.tells_costs else None for at in range(count)]
            self.job.offer([(name, size, units, identity) for identity in identities])

    def _as_counted(self, document: policies.Document) -> policies.Document:
        counted = policies.in_units(document) if self.birth.counts_units else document
        if not self.birth.tells_costs:
            return counted
        return {**counted, "job": {**counted.get("job", {}), "reservation_seconds": RESERVATION_SECONDS}}

    def _tell(self) -> None:
        """Tell what rows cost that left some triggers ago."""
        for identity, units in self._untold.due(self.job.admitted, self.triggers) if self.birth.tells_costs else ():
            self.job.settle(identity, units)
            self.world.other_causes += 1

    def trigger(self, after_ms: int, *, may_refuse: bool = False, **options: Any) -> None:
        """Let the job run a batch if one is due."""
        self._run(
            lambda: self.job.trigger(after_ms, **options), may_refuse=may_refuse,
            planning_ms=options.get("planning_ms", 0),
        )  # fmt: skip

    def drop(self, after_ms: int) -> None:
        """Let the job run a batch whose rows were all filtered out."""
        self.world.other_causes += 1
        self._run(lambda: self.job.drop(after_ms), may_refuse=False)

    def restart(self, down_ms: int, *, may_refuse: bool = False) -> None:
        """Start the job again."""
        if not self.job.is_down:
            self.job.stop()
        self.world.other_causes += 1
        self._run(lambda: self.job.restart(down_ms), may_refuse=may_refuse, is_start=True)

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock."""
        self.job.set_clock(by_ms)
        self.world.other_causes += 1
        self._most_ahead_ms = max(self._most_ahead_ms, self.job.ahead_ms)
        if not self.job.checkpoint.log:  # paying time begins with the first epoch
            self._ahead_ms = self._most_ahead_ms = self.job.ahead_ms
        if by_ms < 0:
            self.world.unpaid_ms += -by_ms
        else:
            self._drift_ms += min(by_ms, MOST_DRIFT_MS)
            self._drifted_after = self._newest_epoch()

    def move(self, machine: SimulatedMachine, down_ms: int) -> None:
        """Start the job on another machine.

        All that it can know of the time since is what the wall clock there shows beyond the latest that was paid. Where
        that is more than what passed, it is paid once, and the next machine begins from there; where it is less, the
        time that passed since the last epoch may not be paid.
        """
        self.job.stop()
        log = self.job.checkpoint.log
        self._moved_after = self._newest_epoch()
        planned_ms = [batch.steady_ms for batch in self.job.attempts if batch.epoch == self._moved_after]
        since_ms = down_ms + self.job.steady_ms - (min(planned_ms, default=0) - LONGEST_PLANNING_MS)
        self.job.move(machine)
        if not log:  # paying time begins with the first epoch
            self._ahead_ms = self._most_ahead_ms = machine.ahead_ms
        beyond_ms = machine.ahead_ms - self._ahead_ms
        self.world.overpaid_ms += max(0, beyond_ms)
        self.world.unpaid_ms += max(0, self._most_ahead_ms - machine.ahead_ms)
        if machine.ahead_ms < self._most_ahead_ms:
            self.world.hold_longer(since_ms)
        self._ahead_ms += max(beyond_ms, -since_ms)
        self._most_ahead_ms = max(self._most_ahead_ms, machine.ahead_ms)
        self.restart(down_ms)

    def _newest_epoch(self) -> int:
        log = self.job.checkpoint.log
        return int(str(log[-1].end["epoch"])) if log else -1

    def set_policies(self, document: policies.Document) -> None:
        """Put other policies in force; those that are refused whole leave the ones before."""
        with contextlib.suppress(PolicyError):
            self.job.set_policies(self._as_counted(document))
            for name, peer in self.peers.items():
                peer.want(self.job.policies, self._wanted[name])
            self._changed_ms = self.job.steady_ms

    def want(self, name: str, percent: int) -> None:
        """Let another job want a part of the quotas; it joins if it does not live."""
        assert self.exchange is not None
        self.world.disturbances += 1
        self._wanted[name] = percent
        if name in self.peers:
            self.peers[name].want(self.job.policies, percent)
        else:
            self.peers[name] = self.exchange.join(name, self.job.policies, percent=percent)
            self._past_peers.append(self.peers[name])

    def note_planned(self, policies: PolicyDocument | None = None, planning_ms: int = 0) -> None:
        """Note which policies were in force when the newest batch was planned, so long before its time."""
        if self.job.checkpoint.log:
            newest = len(self.job.checkpoint.log) - 1
            document = (policies or self.job.policies).at(self.job.checkpoint.log[newest].now_ms - planning_ms)
            self._asked.setdefault(newest, revision_of(document, self.job.direction))
            self._spent.setdefault(newest, self._spent_by_peers())

    def _spent_by_peers(self) -> dict[tuple[Key, int], int]:
        """Return what other jobs have spent until now."""
        spent: dict[tuple[Key, int], int] = defaultdict(int)
        for peer in self._past_peers:
            for (name, dimension), tokens in peer.spent.items():
                spent[place_of(name, dimension)] += tokens
        return spent

    def forget(self) -> None:
        """The job is put back to what it was: laws over time begin anew."""
        self.world.account.forget()
        self.world.waiting = {}
        for law in self._watching:
            law.forget()
        self._ahead_ms, self._moved_after, self.world.overpaid_ms = self.job.machine.ahead_ms, -1, 0
        keep = len(self.job.checkpoint.log)
        self.world.reservations.put_back(keep)
        self._first = {number: batch for number, batch in self._first.items() if number < keep}
        self._asked = {number: revision for number, revision in self._asked.items() if number < keep}
        self._spent = {number: spent for number, spent in self._spent.items() if number < keep}
        self._is_put_back = True
        self._judged = self.job.checkpoint.committed
        self._compared = len(self.job.attempts)

    def backup(self) -> Backup:
        """Return all that the job and its sinks keep, and what is known of them."""
        outside = self.job.outside
        account, waiting, laws = copy.deepcopy((
            self.world.account, self.world.waiting, [law for law in self._watching if law.is_put_back],
        ))  # fmt: skip
        return Backup(
            self.job.checkpoint.copy(),
            outside.table.copy(),
            outside.letters.copy(),
            account,
            waiting,
            laws,
        )

    def restore(self, backup: Backup) -> None:
        """Give the job and its sinks a backup back, and start it."""
        self.job.stop()
        self.job.checkpoint = backup.checkpoint
        self.job.outside.table, self.job.outside.letters = backup.table, backup.letters
        self.forget()
        self.world.account, self.world.waiting = backup.account, backup.waiting
        self._watching = [law for law in self._watching if not law.is_put_back] + backup.laws
        self.restart(0)

    # ------------------------------------------------------------------------------------------ the laws asked

    def _run(
        self, run: Callable[[], object], *, may_refuse: bool, is_start: bool = False, planning_ms: int = 0
    ) -> None:
        if self.job.is_down and not is_start:
            self.restart(0)
        self.triggers += 1
        self._tell()
        asked = self.job.policies
        try:
            batch = run()
        except QueueOverflowError:
            # The queue's bounds say so; the remedy is to raise them, and to start again.
            self.note_planned(asked, planning_ms)
            wide = type(self.job.policies.queue)(messages=2**40, bytes=2**59)
            self.job.set_policies(self.job.policies.model_copy(update={"queue": wide}))
            self.restart(0, may_refuse=may_refuse)
            return
        except Violation:
            raise
        except Exception as error:
            if may_refuse and isinstance(error, ThrottleError):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise Violation(ISOLATION, f"{error!r} at {Path(where.filename).name}:{where.lineno}") from error
        finally:
            self.note_planned(asked, planning_ms)
        self._compare()
        while self._judged < self.job.checkpoint.committed:
            self._judge(self._first[self._judged])
            self._judged += 1
        if batch is None and not is_start and not self.job.is_down:
            self._idle()

    def _compare(self) -> None:
        """Compare the new attempts with the first at their batches."""
        for batch in self.job.attempts[self._compared :]:
            first = self._first.setdefault(batch.number, batch)
            self._raise(Replay.name, Replay.replayed(first, batch))
        self._compared = len(self.job.attempts)

    def _judge(self, batch: SimulatedBatch) -> None:
        """Ask all laws about a batch that is committed."""
        world = self.world
        self.batches += 1
        world.asked_revision = self._asked[batch.number]
        world.look()
        world.hold(batch)
        contracts = world.contracts(batch.revision)
        names = {text_of(row.namespace) for row in (*batch.arrived, *batch.admitted)} | world.waiting.keys()
        is_sharing = self.job.exchange is not None and self.job.is_sharing
        spent = self._spent[batch.number] if is_sharing else None
        self._epoch = batch.epoch
        overpaid_ms = world.beyond_ms = 0 if self._is_before_move else world.overpaid_ms
        drift_ms = self._drift_ms if batch.epoch > self._drifted_after else 0
        self._drift_ms -= drift_ms
        world.passed_ms = max(0, batch.steady_ms - self._at_ms - world.unpaid_ms - drift_ms)
        self._at_ms, world.is_sharing = batch.steady_ms, is_sharing
        is_odd = bool(self._is_put_back or self._drift_ms or drift_ms or world.unpaid_ms or world.overpaid_ms)
        self._notes.note(world, batch, begins_anew=is_odd)
        self._is_put_back = False
        if batch.number - 1 in self._first:
            before = world.contracts(self._first[batch.number - 1].revision)
            settled = world.reservations.settle(batch.number, batch.costs)
            world.account.correct(before, settled)
            world.recounts.note(settled)
            if before is not contracts:
                world.reservations.change(batch.number, before, contracts)
        world.account.advance(
            contracts,
            names,
            at_ms=batch.steady_ms,
            unpaid_ms=world.unpaid_ms + drift_ms,
            overpaid_ms=overpaid_ms,
            spent=spent,
        )
        if batch.revision != self._revision:
            self._changed_ms = batch.steady_ms
        if is_sharing:
            world.account.share(is_settled=batch.steady_ms - self._changed_ms > SETTINGS.lease_ms)
        world.account.debit(contracts, batch)
        world.reservations.note(batch, int(contracts.document.job.reservation_seconds * 1000))
        self._revision = batch.revision
        if not self._is_before_move:
            world.unpaid_ms = world.overpaid_ms = 0
        for law in self._watching:
            self._raise(law.name, law.after_batch(world, batch))

    def _idle(self) -> None:
        """Ask all laws about a trigger that found nothing to do."""
        world = self.world
        if not self._revision:
            return
        world.account.wait(at_ms=self.job.steady_ms, unpaid_ms=world.unpaid_ms)
        for law in self._watching:
            self._raise(law.name, law.after_idle(world))

    @property
    def _is_before_move(self) -> bool:
        """Whether the newest batch was planned on the machine before: it pays what that one saw."""
        return self._epoch <= self._moved_after

    def _raise(self, law: str, found: Iterator[str]) -> None:
        if law in self.laws:
            for what in found:
                raise Violation(law, what)
