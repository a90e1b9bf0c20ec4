"""True time, for all who live in one simulation: it passes when it is told to, and wakes who has something to do.

What runs beside the batches of a job, the visits to an exchange, runs while time passes. In a pause that is longer than
`awake_ms`, all sleep in the middle of it, as machines do that are suspended: a test of a day costs what one of minutes
does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

START_MS = 1_760_000_000_000
"""What the wall clock shows when a simulation begins."""


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine that a job may run on, and its clocks."""

    boot: str = "simulated"
    """Names its start, as an operating system does: what its steady clock counts from."""

    ahead_ms: int = 0
    """How far its wall clock is ahead of true time; negative: behind."""

    up_ms: int = 0
    """What its steady clock showed when the simulation began."""


class Actor(Protocol):
    """Whoever does something while time passes."""

    def act(self) -> int:
        """Do what is due now, and return in how many ms something is again; at least 1."""


@dataclass(slots=True, eq=False)
class SimulatedTime:
    """How long it is since a simulation began.

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
    """In the order in which they act."""

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
