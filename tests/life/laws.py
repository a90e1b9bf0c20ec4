"""What every law is asked, and what it may look at.

A law is asked after each batch that was committed for the first time, and after each trigger that found none due. It
yields a sentence for everything that breaks it. Laws are independent: any of them can be switched off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from spark_throttle.testing.simulation.job import SimulatedJob
from spark_throttle.testing.simulation.query import SimulatedBatch, costs_nothing
from spark_throttle.testing.simulation.rows import Row
from tests.life.account import Account
from tests.life.contract import Contracts, text_of
from tests.life.late_costs import Recounts, Reservations

LONGEST_HOLD_MS: Final = 1_000
"""Longest delay that a Pegasus string of `policies` asks for."""


TAKEOVER: Final = "Takeover"
"""Of two runs in one control directory, one is refused, and has written nothing there since the other began."""


class Violation(Exception):  # noqa: N818 - a law was broken, not the program that finds it
    """A law that was broken."""

    def __init__(self, law: str, what: str) -> None:
        self.law = law
        self.what = what
        super().__init__(f"{law}: {what}")


@dataclass(slots=True)
class World:
    """A job, and what an observer knows of it who sees everything."""

    job: SimulatedJob
    account: Account
    reservations: Reservations = field(default_factory=Reservations)
    recounts: Recounts = field(default_factory=Recounts)
    waiting: dict[str, list[Row]] = field(default_factory=dict)
    """The rows of each namespace that wait after the last batch, in order."""

    waited: dict[str, list[Row]] = field(default_factory=dict)
    """The same before it."""

    unpaid_ms: int = 0
    """True time since the last batch that the job could not see pass."""

    passed_ms: int = 0
    """True time between the newest batch and the one before that the job surely saw pass."""

    is_sharing: bool = False
    """Whether others have a part of the job's quotas."""

    overpaid_ms: int = 0
    """Time that another machine's wall clock shows beyond the latest that was paid, and that never was: paid once."""

    other_causes: int = 0
    """How often the clock was set, the job started, or the source gave an empty batch: each is a cause of a batch."""

    disturbances: int = 0
    """How often something happened to those who share quotas with the job."""

    others: Callable[[], Iterable[str]] = tuple
    """Tells the revisions that other jobs go by."""

    asked_revision: str = ""
    """Revision of the policies that were in force when the batch was planned."""

    beyond_ms: int = 0
    """What of `overpaid_ms` counts in the newest batch."""

    timed: frozenset[str] = frozenset()
    """The namespaces that processing time may hold back."""

    budgeted: frozenset[str] = frozenset()
    """The namespaces that a budget may hold back."""

    held_until_ms: dict[str, int] = field(default_factory=dict)
    """True time up to which a Pegasus rule may hold rows, by namespace."""

    _contracts: dict[str, Contracts] = field(default_factory=dict)

    def contracts(self, revision: str) -> Contracts:
        """Return the contracts under a revision."""
        if revision not in self._contracts:
            self._contracts[revision] = Contracts(self.job.documents[revision], self.job.direction)
        return self._contracts[revision]

    def revisions_in_force(self) -> set[str]:
        """Return the policies that someone goes by: those that are to be applied, and those that are."""
        return {self.job.revision, *self.others(), *(batch.revision for batch in self.job.attempts[-1:])}

    def may_be_held(self, name: str) -> bool:
        """Return whether a Pegasus rule, a quota on processing time, or a budget may hold rows of a namespace."""
        return name in self.timed or name in self.budgeted or self.is_held_by_rule(name)

    def is_held_by_rule(self, name: str) -> bool:
        """Return whether a Pegasus rule may hold rows of a namespace."""
        return self.held_until_ms.get(name, -1) >= self.job.steady_ms

    def hold_longer(self, by_ms: int) -> None:
        """Say that a Pegasus rule holds rows for longer: time that the job did not see pass counts for nobody."""
        self.held_until_ms = {name: until_ms + by_ms for name, until_ms in self.held_until_ms.items()}

    def hold(self, batch: SimulatedBatch) -> None:
        """Note whose arrivals a Pegasus rule may have delayed, and whose rows processing time may hold."""
        contracts = self.contracts(batch.revision)
        names = {*self.waiting, *self.waited, *(text_of(row.namespace) for row in batch.arrived)}
        self.timed = frozenset(
            name for name in names if self.job.cost_ns is not costs_nothing and contracts.of(name).timed
        )
        self.budgeted = frozenset(name for name in names if contracts.of(name).is_budgeted)
        for row in batch.arrived:
            name = text_of(row.namespace)
            if contracts.of(name).has_rules:
                self.held_until_ms[name] = batch.steady_ms + LONGEST_HOLD_MS

    def look(self) -> None:
        """See what waits."""
        self.waited, waiting = self.waiting, defaultdict(list)
        for row in self.job.waiting:
            waiting[text_of(row.namespace)].append(row)
        self.waiting = dict(waiting)


class Law:
    """One law; a subclass answers the questions that concern it."""

    name = ""
    is_put_back: ClassVar = False
    """Whether it remembers what the job's checkpoint remembers too, so that a backup brings it back."""

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Yield what a batch broke."""
        yield from ()

    def after_idle(self, world: World) -> Iterator[str]:
        """Yield what is broken where a trigger found no batch due."""
        yield from ()

    def forget(self) -> None:
        """Forget the past: the job was put back to an older checkpoint."""
