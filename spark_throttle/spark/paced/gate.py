"""The gate of a destination in one task: shut for as long as the destination asked, and then open for one call.

Calls pass an open gate freely. One that is refused shuts it: until the time that the destination asked for, or for a
pause that doubles while nothing else is accepted. Then one call passes, to see; the others follow once it is accepted.

Surprises: refusals of calls that left before the gate was shut say nothing new, unless they ask for a longer time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from spark_throttle.errors import Backpressure

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


class Gate:
    """What holds the calls of a destination that pushes back; for one event loop.

    Parameters
    ----------
    name
        The destination's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = 0
        """How often it was shut."""

        self._is_open = True
        self._shut_until = 0.0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._refused_since: float | None = None
        self._changed = asyncio.Event()
        self._probes = 0

    @property
    def refused_for_seconds(self) -> float:
        """The time for which every call that ended was refused."""
        return 0.0 if self._refused_since is None else _now() - self._refused_since

    @property
    def shut_for_seconds(self) -> float:
        """The time until a call may pass."""
        return 0.0 if self._is_open else max(0.0, self._shut_until - _now())

    async def passed(self) -> int:
        """Wait until a call may leave, and return the turn in which it does."""
        while not self._is_open:
            if self.shut_for_seconds:
                await asyncio.sleep(self.shut_for_seconds)
            elif not self._probes:
                self._probes += 1
                break
            else:
                await self._changed.wait()
        return self.turn

    def accept(self) -> None:
        """Note that a call was accepted: the gate is open, unless it was shut after the call left."""
        self._refused_since = None
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        if not self.shut_for_seconds:
            self._is_open = True
            self._wake()

    def refuse(self, refusal: Backpressure, turn: int) -> None:
        """Note that a call which left in a turn was refused."""
        now = _now()
        if self._refused_since is None:
            self._refused_since = now
        asked = refusal.retry_after_seconds
        if turn == self.turn:
            self.turn += 1
            self._is_open = False
            self._shut_until = now + (self._pause_seconds if asked is None else asked)
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            self._wake()
        elif asked is not None:
            self._shut_until = max(self._shut_until, now + asked)

    def _wake(self) -> None:
        self._probes = 0
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
