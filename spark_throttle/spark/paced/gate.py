"""The gate of a destination in one task: shut for as long as the destination asked, and then open for one call.

Calls pass an open gate. One that is refused shuts it: until the time that the destination asked for, or for a pause
that doubles while nothing else is accepted. Then one call passes, to see; the others follow once it is accepted.

The calls of a destination that the policy knows also wait for a bucket of the destination's. It is filled at this
task's part of the destination's rate, which follows each answer, by `Aimd`: it begins at the rate of the
epoch and may rise to the quota. A refusal of the call that passed to see changes no rate: what takes nothing at all
does not say how much it would take. Such calls wait no longer than the batch has time (`UndeliveredError`): so the next
batch follows what was said in this one, and nobody waits for them. Without a time between batches they do so only after
a refusal.

Law: while calls wait for the one that passed to see, that one is on its way, and says so when it ends, however it ends.

A time that is asked for is told by the wall clock, and a gate may begin shut. Whoever was refused last lets others ask
first, so a call that is never taken keeps nobody from asking.

Surprises: refusals of calls that left before the gate was shut say nothing new, unless they ask for a time. A time
below the first pause is none: nobody is called again at once. One above a day is a day: so an answer cannot close a
destination for good. Where a destination asks for no time, pauses double between two bounds.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.core.shares.destinations import WHOLE, Aimd, Told
from spark_throttle.errors import Backpressure, TurnTimeoutError
from spark_throttle.pace import AsyncProducer, Limit, Pacer

LONGEST_ASKED_SECONDS: Final = 86_400.0
"""A destination that asks for longer is asked again after a day."""

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0

_LONGEST_PAUSE_OF_KNOWN_SECONDS: Final = 1.0
"""A destination that the policy knows is to be right again soon."""

_GIVES_WAY_SECONDS: Final = 0.01

_BURST_NS: Final = 20_000_000
"""For how long a destination's bucket may catch up."""

_LOOK_AGAIN_SECONDS: Final = 1.0
"""How long a call waits for its turn before it looks at the time."""

_NOTABLE: Final = 50
"""A rate that has changed by more than its part of this is set anew."""


def wall_ms() -> int:
    """Return the wall-clock time, which is the same for all who are asked to wait."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - what a destination asks for holds across processes


class UndeliveredError(Exception):
    """A call is not made any more: its rows go back."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a task sends to a destination that the policy knows."""

    row_ns: int
    """The time for which one row uses up this task's part of the destination's rate in the epoch, which is `WHOLE`."""

    floor_part: int
    """The lowest rate, of `WHOLE`."""

    seconds: float
    """The time of the batch."""

    is_timed: bool = True
    """Whether no call waits any more then, even if nothing was refused."""

    is_unavailable: bool = False
    """Whether the breaker is open: one call passes first."""

    asks_once: bool = True
    """Whether nothing waits any more if that call is refused."""

    ceiling_part: int = WHOLE
    """The highest rate."""

    began: Aimd = field(default_factory=lambda: Aimd(WHOLE))
    """What the rate follows at the beginning, of `WHOLE`."""

    closed_until_ms: int = 0
    """The wall-clock time before which the destination asked not to be called."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when a call waits."""

    at: float
    """By the loop's time."""

    is_timed: bool
    """Whether it waits no longer even if nothing was refused."""

    @property
    def left_seconds(self) -> float:
        """The time until then, negative after it."""
        return self.at - _now()


class Gate:
    """What holds the calls of a destination that pushes back; for one event loop.

    Parameters
    ----------
    name
        The destination's.
    terms
        `None` for a destination that the policy does not know: it has no rate, and its calls wait until they are taken.
    began_ms
        The wall-clock time now.
    """

    def __init__(self, name: str, pacer: Pacer, terms: Terms | None = None, *, began_ms: int = 0) -> None:
        self.name = name
        self.accepted = self.refused = 0
        """How many calls were."""

        self.turn = 0
        """How often it was shut."""

        self._terms = terms
        self._is_open = terms is None or not terms.is_unavailable
        self._began, self._began_ms = _now(), began_ms
        self._shut_until = self._asked_until = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._refused_since: float | None = None
        self._changed = asyncio.Event()
        self._probes = self._waiting = 0
        self._refused_last: object = None
        self._aimd = Aimd(WHOLE) if terms is None else terms.began
        self._quiet_until = self._accepted_at = _now()
        self._part = self._rate()
        self._level = None if terms is None else pacer.level(f"destination {name}", self._limit(), initial_tokens=1)
        self._pacer = pacer
        if terms is not None:
            self.close(terms.closed_until_ms)

    def producer(self) -> AsyncProducer | None:
        """Return what waits for the destination's bucket; one for each flow."""
        return None if self._level is None else self._pacer.async_producer(self._level)

    @property
    def is_open(self) -> bool:
        """Whether calls pass."""
        return self._is_open

    @property
    def asks_first(self) -> bool:
        """Whether the breaker is open, and no call was accepted since."""
        return self._terms is not None and self._terms.is_unavailable and not self.accepted

    @property
    def refused_for_seconds(self) -> float:
        """The time for which every call that ended was refused."""
        return 0.0 if self._refused_since is None else _now() - self._refused_since

    @property
    def shut_for_seconds(self) -> float:
        """The time until a call may pass."""
        return 0.0 if self._is_open else max(0.0, self._shut_until - _now())

    @property
    def closed_until_ms(self) -> int:
        """The wall-clock time before which the destination asks not to be called; 0 if it does not ask."""
        if self._asked_until <= _now():
            return 0
        return self._began_ms + math.ceil(round(1_000 * (self._asked_until - self._began), 3))

    def close(self, until_ms: int) -> None:
        """Let nothing through before a wall-clock time that was asked for earlier."""
        seconds = min((until_ms - self._began_ms) / 1_000, LONGEST_ASKED_SECONDS)
        if seconds > 0:
            self._is_open = False
            self._asked_until = max(self._asked_until, self._began + seconds)
            self._shut_until = max(self._shut_until, self._asked_until)

    def told(self) -> Told:
        """Return what the destination said."""
        self._tell_time(self._accepted_at)
        refused_for_ms = int(1_000 * self.refused_for_seconds)
        aimd = self._aimd
        return Told(
            self.accepted, self.refused, aimd.base, aimd.quiet_ms, refused_for_ms, self.closed_until_ms
        )  # fmt: skip

    def _check_time(self, deadline: Deadline | None) -> None:
        """Refuse to go on if what is not sent yet goes back."""
        terms = self._terms
        is_unavailable = terms is not None and terms.is_unavailable
        if deadline is None or not (self.refused or self._asked_until or is_unavailable or deadline.is_timed):
            return
        left = deadline.left_seconds
        is_only_asked = terms is not None and terms.is_unavailable and terms.asks_once
        is_still_unavailable = is_only_asked and self.refused and not self.accepted
        if left <= 0 or is_still_unavailable or self.shut_for_seconds >= left:
            raise UndeliveredError

    async def passed(self, producer: AsyncProducer | None, rows: int, deadline: Deadline | None, who: object) -> int:
        """Wait until a call may leave, charge it, and return the turn in which it does.

        Parameters
        ----------
        deadline
            When the call is not made any more; `None` if it always waits.
        who
            Whose call it is.
        """
        self._waiting += 1
        try:
            while True:
                self._check_time(deadline)
                if self.shut_for_seconds:
                    gives_way = who is self._refused_last and self._waiting > 1
                    await asyncio.sleep(self.shut_for_seconds + (_GIVES_WAY_SECONDS if gives_way else 0))
                elif self._is_open:
                    turn = self.turn
                    if await self._has_turn(producer, rows, deadline) and turn == self.turn:
                        return turn
                elif self._probes:
                    await self._changed.wait()
                else:
                    self._probes += 1
                    return self.turn
        finally:
            self._waiting -= 1

    async def charged(self, producer: AsyncProducer | None, rows: int, deadline: Deadline | None) -> None:
        """Wait for the bucket, and the time that was asked for, with a call that leaves through another gate."""
        while True:
            self._check_time(deadline)
            asked_seconds = self._asked_until - _now()
            if asked_seconds > 0:
                await asyncio.sleep(asked_seconds)
            elif await self._has_turn(producer, rows, deadline):
                return

    async def _has_turn(self, producer: AsyncProducer | None, rows: int, deadline: Deadline | None) -> bool:
        """Wait for the destination's bucket; return whether the call was charged, or else is to look at the time."""
        if producer is None or self._terms is None:
            return True
        self._grow()
        left = 0.0 if deadline is None else deadline.left_seconds
        try:
            await producer.acquire(rows * self._terms.row_ns, left if left > 0 else _LOOK_AGAIN_SECONDS)
        except TurnTimeoutError:
            return False
        return True

    def pass_on(self) -> None:
        """Let another call pass to see: the one that did was refused in the name of another destination."""
        if not self._is_open:
            self._wake()

    def accept(self) -> None:
        """Note that a call which left through this gate was accepted: it is open, unless it was shut after that."""
        self.accepted += 1
        self._accepted_at = _now()
        self._refused_since = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        if not self._is_open:
            self._is_open = not self.shut_for_seconds
            self._quiet_until = self._accepted_at
            self._wake()

    def refuse(self, refusal: Backpressure, turn: int, who: object) -> None:
        """Note that a call of somebody's which left in a turn was refused."""
        self.refused += 1
        self._refused_last = who
        now = _now()
        if self._refused_since is None:
            self._refused_since = now
        asked = min(refusal.retry_after_seconds or 0.0, LONGEST_ASKED_SECONDS)
        if asked >= FIRST_PAUSE_SECONDS:
            self._asked_until = max(self._asked_until, now + asked)
        else:
            asked = 0.0
        if turn == self.turn and self._is_open:
            self._slow_down()
        if turn == self.turn or (asked and self._is_open):
            self.turn += 1
            self._is_open = False
            self._shut_until = now + (asked or self._pause_seconds)
            longest = LONGEST_PAUSE_SECONDS if self._terms is None else _LONGEST_PAUSE_OF_KNOWN_SECONDS
            self._pause_seconds = min(2 * self._pause_seconds, longest)
            self._wake()
        self._shut_until = max(self._shut_until, self._asked_until)

    def _slow_down(self) -> None:
        if self._terms is not None:
            self._tell_time(_now())
            self._aimd = self._aimd.after_refusal(floor=self._terms.floor_part, ceiling=self._terms.ceiling_part)
            self._set_rate()

    def _grow(self) -> None:
        if self._terms is not None and self._part < self._terms.ceiling_part:
            self._tell_time(_now())
            self._set_rate()

    def _tell_time(self, until: float) -> None:
        """Count the time up to `until` in which the gate was open as quiet."""
        quiet_ms = int(1_000 * (until - self._quiet_until)) if self._is_open else 0
        if quiet_ms > 0:
            self._aimd = self._aimd.after_quiet(quiet_ms)
            self._quiet_until += quiet_ms / 1_000

    def _set_rate(self) -> None:
        part = self._rate()
        is_highest = self._terms is not None and part == self._terms.ceiling_part
        if self._level is not None and (is_highest or abs(part - self._part) * _NOTABLE > self._part):
            self._part = part
            self._level.set_limit(self._limit())

    def _rate(self) -> int:
        """Return the rate, of `WHOLE`."""
        if self._terms is None:
            return WHOLE
        return self._aimd.rate(floor=self._terms.floor_part, ceiling=self._terms.ceiling_part)

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
