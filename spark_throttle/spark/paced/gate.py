"""The gate of a destination in one task: shut for as long as the destination asked, and then open for one call.

Calls pass an open gate. One that is refused shuts it: until the time that the destination asked for, or for a pause
that doubles while nothing else is accepted. Then one call passes, to see; the others follow once it is accepted.

The calls of a destination that the policy knows also wait for a bucket of the destination's. It is filled at this
task's part of the destination's rate in the epoch, and slower after a refusal, by `core.limits.aimd`. A refusal of the
call that passed to see changes no rate: what takes nothing at all does not say how much it would take. Once such a
destination has refused something, or was unavailable before, its calls no longer wait after the time of the batch is
over (`UnsentError`).

Surprises: refusals of calls that left before the gate was shut say nothing new, unless they ask for a longer time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from spark_throttle.core.lending.destinations import WHOLE, Told
from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.errors import Backpressure, TurnTimeoutError
from spark_throttle.pace import AsyncProducer, Limit, Pacer

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_BURST_NS: Final = 20_000_000
"""For how long a destination's bucket may catch up."""

_LOOK_AGAIN_SECONDS: Final = 1.0

_NOTABLE: Final = 50
"""A rate that has changed by more than its part of this is set anew."""


class UnsentError(Exception):
    """A call is left to a later batch."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a task sends to a destination that the policy knows."""

    row_ns: int
    """The time for which one row uses up this task's part of the destination's rate."""

    floor_part: int
    """The lowest rate, of `WHOLE`."""

    seconds: float
    """The time of the batch."""

    is_unavailable: bool = False
    """Whether the breaker is open: one call passes first, and if it is refused nothing waits."""


class Gate:
    """What holds the calls of a destination that pushes back; for one event loop.

    Parameters
    ----------
    name
        The destination's.
    terms
        `None` for a destination that the policy does not know: it has no rate, and its calls wait until they are taken.
    """

    def __init__(self, name: str, pacer: Pacer, terms: Terms | None = None) -> None:
        self.name = name
        self.accepted = self.refused = 0
        """How many calls were."""

        self.turn = 0
        """How often it was shut."""

        self._terms = terms
        self._is_open = terms is None or not terms.is_unavailable
        self._shut_until = 0.0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._refused_since: float | None = None
        self._changed = asyncio.Event()
        self._probes = 0
        self._began = _now()
        self._aimd = Aimd(WHOLE)
        self._told_until = self._began
        self._part = WHOLE
        self._level = None if terms is None else pacer.level(f"destination {name}", self._limit(), initial_tokens=1)
        self._pacer = pacer

    def producer(self) -> AsyncProducer | None:
        """Return what waits for the destination's bucket; one for each flow."""
        return None if self._level is None else self._pacer.async_producer(self._level)

    @property
    def refused_for_seconds(self) -> float:
        """The time for which every call that ended was refused."""
        return 0.0 if self._refused_since is None else _now() - self._refused_since

    @property
    def shut_for_seconds(self) -> float:
        """The time until a call may pass."""
        return 0.0 if self._is_open else max(0.0, self._shut_until - _now())

    @property
    def has_terms(self) -> bool:
        """Whether the policy knows the destination."""
        return self._terms is not None

    @property
    def row_ns(self) -> int:
        """What a row is charged in the destination's bucket."""
        return 0 if self._terms is None else self._terms.row_ns

    def told(self, unsent_messages: int) -> Told:
        """Return what the destination said."""
        quiet_ms = max(0, int(1_000 * (_now() - max(self._shut_until, self._began))))
        refused_for_ms = int(1_000 * self.refused_for_seconds)
        return Told(self.accepted, self.refused, self._aimd.base, quiet_ms, refused_for_ms, unsent_messages)

    def check_time(self) -> None:
        """Refuse to go on if what is not sent yet is left to a later batch."""
        if self._terms is None or not (self.refused or self._terms.is_unavailable):
            return
        left = self._began + self._terms.seconds - _now()
        is_still_unavailable = self.refused and not self.accepted and self._terms.is_unavailable
        if left <= 0 or is_still_unavailable or self.shut_for_seconds >= left:
            raise UnsentError

    async def passed(self, producer: AsyncProducer | None) -> int:
        """Wait until a call may leave, and return the turn in which it does."""
        while True:
            self.check_time()
            if self.shut_for_seconds:
                await asyncio.sleep(self.shut_for_seconds)
            elif not await self._has_turn(producer):
                continue
            elif self._is_open:
                return self.turn
            elif self._probes:
                await self._changed.wait()
            else:
                self._probes += 1  # and from here to the return nothing waits, so nobody waits for it in vain
                return self.turn

    async def _has_turn(self, producer: AsyncProducer | None) -> bool:
        """Wait for the destination's bucket, and return whether the gate is as it was before."""
        if producer is None:
            return True
        turn = self.turn
        self._grow()
        try:
            await producer.acquire(0, self._look_again_seconds())
        except TurnTimeoutError:
            return False
        return turn == self.turn

    def _look_again_seconds(self) -> float:
        """Return for how long a call may wait for its turn before it looks at the time."""
        left = 0.0 if self._terms is None else self._began + self._terms.seconds - _now()
        return left if left > 0 else _LOOK_AGAIN_SECONDS

    def accept(self) -> None:
        """Note that a call was accepted: the gate is open, unless it was shut after the call left."""
        self.accepted += 1
        self._refused_since = None
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        if not self.shut_for_seconds:
            self._is_open = True
            self._wake()

    def refuse(self, refusal: Backpressure, turn: int) -> None:
        """Note that a call which left in a turn was refused."""
        self.refused += 1
        now = _now()
        if self._refused_since is None:
            self._refused_since = now
        asked = refusal.retry_after_seconds
        if turn == self.turn:
            if self._is_open:
                self._slow_down()
            self.turn += 1
            self._is_open = False
            self._shut_until = now + (self._pause_seconds if asked is None else asked)
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            self._wake()
        elif asked is not None:
            self._shut_until = max(self._shut_until, now + asked)

    def _slow_down(self) -> None:
        if self._terms is not None:
            self._tell_time()
            self._aimd = self._aimd.after_refusal(floor=self._terms.floor_part, ceiling=WHOLE)
            self._set_rate()

    def _grow(self) -> None:
        if self._part < WHOLE:
            self._tell_time()
            self._set_rate()

    def _tell_time(self) -> None:
        """Count the time since the gate was last shut as quiet."""
        since = max(self._told_until, self._shut_until)
        quiet_ms = int(1_000 * (_now() - since))
        if quiet_ms > 0:
            self._aimd = self._aimd.after_quiet(quiet_ms)
            self._told_until = since + quiet_ms / 1_000

    def _set_rate(self) -> None:
        floor_part = self._terms.floor_part if self._terms is not None else 1
        part = self._aimd.rate(floor=floor_part, ceiling=WHOLE)
        if self._level is not None and (part == WHOLE or abs(part - self._part) * _NOTABLE > self._part):
            self._part = part
            self._level.set_limit(self._limit())

    def _limit(self) -> Limit:
        """Return the bucket's limit: a token is a nanosecond, of which a slower rate adds fewer."""
        burst_ns = max(_BURST_NS, 1 if self._terms is None else self._terms.row_ns)
        return Limit.of(self._part, period_ns=WHOLE, burst_tokens=burst_ns, target_tokens=1)

    def _wake(self) -> None:
        self._probes = 0
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
