"""How threads wait for their turns: one of them keeps watch, the others sleep until they are woken.

The watch sleeps until the next level is due, and then gives out all turns that are due, to threads and to tasks. When
its own turn comes it hands the watch over. So no thread is started for time to be noticed, and a level that is due
wakes one thread, not all.

Law: no wake-up is lost. An event is set and cleared under the queue's lock only (but by a clock, whose time has come),
and cleared only after its call was seen to be undecided. While threads wait and none keeps watch, one of them is awake:
whoever leaves then wakes another, since the one that was to keep watch may have been decided before it ran.
"""

from __future__ import annotations

import threading
from functools import partial

from spark_throttle.errors import TurnTimeoutError
from spark_throttle.pace.level_state import Place, Request
from spark_throttle.pace.limit import NEVER_NS, NS_PER_MS, NS_PER_SECOND
from spark_throttle.pace.turn_queue import TurnQueue


class WaitingThreads:
    """The threads that wait for turns of one queue."""

    def __init__(self, queue: TurnQueue) -> None:
        self.armed_ns = NEVER_NS
        self.waiting = 0
        self._queue = queue
        self._events: dict[Request, threading.Event] = {}
        self._watch: Request | None = None
        queue.drivers.append(self)

    def arm(self, due_ns: int) -> None:
        """Let the watch look anew at when to wake."""
        if self._watch is not None:
            self.armed_ns = due_ns
            self._events[self._watch].set()

    def forget(self) -> None:
        """Begin anew in the child of a fork, where none of the threads is."""
        self.armed_ns, self.waiting, self._watch = NEVER_NS, 0, None
        self._events.clear()

    def turn(self, place: Place, sums: list[int], timeout_seconds: float | None) -> int:
        """Wait until some of a call's items are let through, and return how many.

        Raises
        ------
        TurnTimeoutError
            If that takes longer than it may; nothing was charged then.
        PacerClosedError
            If the pacer is closed before; nothing was charged then.
        """
        queue = self._queue
        event = threading.Event()
        request = Request(place, sums, partial(_wake, event), self)
        try:
            with queue.lock:
                begun_ns = queue.clock.now_ns()
                passed = queue.try_now(place, sums, begun_ns)
                if passed:
                    return passed
                self._events[request] = event
                queue.enqueue(request, begun_ns)
            self._wait(request, event, begun_ns, timeout_seconds)
        except BaseException:
            with queue.lock:
                queue.withdraw(request, queue.clock.now_ns())
            raise
        finally:
            with queue.lock:
                self._leave(request)
        if request.error is not None:
            raise request.error
        return request.passed

    def _wait(self, request: Request, event: threading.Event, begun_ns: int, timeout_seconds: float | None) -> None:
        queue = self._queue
        end_ns = NEVER_NS if timeout_seconds is None else begun_ns + int(timeout_seconds * NS_PER_SECOND)
        while True:
            with queue.lock:
                now_ns = queue.clock.now_ns()
                queue.serve(now_ns)
                if request.is_decided:
                    return
                if now_ns >= end_ns:
                    raise TurnTimeoutError((now_ns - begun_ns) // NS_PER_MS, request.place.throttled_by)
                until_ns = min(end_ns, self._keep_watch(request))
                event.clear()
            queue.clock.park(event, until_ns)

    def _keep_watch(self, request: Request) -> int:
        """Return when to wake: for all, if nobody else keeps watch."""
        if self._watch is None:
            self._watch = request
        if self._watch is not request:
            return NEVER_NS
        self.armed_ns = self._queue.next_due_ns
        return self.armed_ns

    def _leave(self, request: Request) -> None:
        self._events.pop(request, None)
        if self._watch is request:
            self._watch = None
        if self._watch is None and self._events:  # the newest, for it will most likely wait longest
            self._events[next(reversed(self._events))].set()


def _wake(event: threading.Event) -> bool:
    event.set()
    return True
