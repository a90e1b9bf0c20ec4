"""True time, shared by all members of a simulation: it passes only when told to, and wakes the actors that are due.

Work that runs in parallel with the batches of a job, namely visits to an exchange, runs while time passes. In a pause
longer than `awake_ms`, all actors sleep in the middle of it, like suspended machines. So a test of a day costs as much
as one of minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

START_MS = 1_760_000_000_000
"""Reading of the wall clock when a simulation begins."""


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine that a job may run on, and its clocks."""

    boot: str = "simulated"
    """Identifier of the machine's boot, as an operating system gives it: the origin of the steady clock."""

    ahead_ms: int = 0
    """Lead of the wall clock over true time; negative if it is behind."""

    up_ms: int = 0
    """Reading of the steady clock when the simulation began."""


class Actor(Protocol):
    """An object that acts while time passes."""

    def act(self) -> int:
        """Do what is due now, and return the ms until something is due again, at least 1."""


@dataclass(slots=True, eq=False)
class SimulatedTime:
    """The time since a simulation began.

    Examples
    --------
    >>> time = SimulatedTime()
    >>> time.pass_by(1_500)
    >>> time.now_ms
    1500
    """

    now_ms: int = 0
    awake_ms: int = 60_000
    actors: list[Actor] = field(default_factory=list)
    """The actors, in the order in which they act."""

    def pass_by(self, by_ms: int) -> None:
        """Let time pass."""
        asleep_ms = max(0, by_ms - self.awake_ms) if self.actors else 0
        awake_ms = by_ms - asleep_ms
        self._pass_awake(awake_ms // 2)
        self.now_ms += asleep_ms
        self._pass_awake(awake_ms - awake_ms // 2)

    def _pass_awake(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while True:
            due_ms = self.now_ms + min([actor.act() for actor in self.actors], default=by_ms + 1)
            if due_ms > end_ms:
                break
            self.now_ms = due_ms
        self.now_ms = end_ms
