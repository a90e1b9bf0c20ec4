"""Time: a monotonic clock in nanoseconds, and how a thread waits by it.

What waits is given the clock, so a test passes a `ManualClock` and no test sleeps. A clock may stand still, jump
forward, or go back: no clock makes a bucket pay time twice.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from spark_throttle.pace.limit import NEVER_NS, NS_PER_SECOND

_LONGEST_PARK_NS: Final = int(threading.TIMEOUT_MAX) * NS_PER_SECOND


class Clock(Protocol):
    """What a pacer needs of time."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since any moment."""

    def park(self, event: threading.Event, until_ns: int) -> None:
        """Return when the event is set or the time has come; earlier does no harm."""


class SystemClock:
    """The machine's monotonic clock.

    Examples
    --------
    >>> clock = SystemClock()
    >>> clock.now_ns() <= clock.now_ns()
    True
    """

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)

    def park(self, event: threading.Event, until_ns: int) -> None:
        """Wait for the event, no longer than until a time."""
        wait_ns = until_ns - self.now_ns()
        event.wait(None if wait_ns > _LONGEST_PARK_NS else max(0, wait_ns) / NS_PER_SECOND)


class ManualClock:
    """A clock that a test sets; threads that wait by it wake when it is advanced.

    Parameters
    ----------
    start_ns
        What it reads at first.
    is_self_winding
        Whether whoever waits for a time makes it come: for programs of one thread, which then never wait.

    Examples
    --------
    >>> clock = ManualClock()
    >>> clock.advance(5)
    >>> clock.now_ns()
    5
    """

    def __init__(self, start_ns: int = 0, *, is_self_winding: bool = False) -> None:
        self._now_ns = start_ns
        self._is_self_winding = is_self_winding
        self._changed = threading.Condition()
        self._parked: dict[threading.Event, int] = {}

    def now_ns(self) -> int:
        """Return the time that was set."""
        return self._now_ns

    def advance(self, by_ns: int) -> None:
        """Let time pass (or go back, if `by_ns` is below 0), and wake the threads whose time has come."""
        with self._changed:
            self._now_ns += by_ns
            for event, until_ns in self._parked.items():
                if until_ns <= self._now_ns:
                    event.set()

    def park(self, event: threading.Event, until_ns: int) -> None:
        """Wait for the event; it is set when the clock reaches a time."""
        with self._changed:
            if self._is_self_winding and until_ns < NEVER_NS and not event.is_set():
                self._now_ns = max(self._now_ns, until_ns)
            if self._now_ns >= until_ns:
                return
            self._parked[event] = until_ns
            self._changed.notify_all()
        event.wait()
        with self._changed:
            del self._parked[event]
            self._changed.notify_all()

    def wait_until_parked(self, threads: int) -> None:
        """Return when so many threads wait by this clock with nothing that would wake them."""
        with self._changed:
            self._changed.wait_for(lambda: sum(not event.is_set() for event in self._parked) == threads)
