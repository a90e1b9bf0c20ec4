"""The waiting for a turn: a timer for each event loop, and one thread that keeps watch for all threads.

Tasks of several loops, and threads, may wait for the same levels: they stand in one queue. Whoever comes first gives
out all turns that are due; a task of another loop is woken through its loop. An event loop has one timer, for the next
level that is due. Of threads one keeps watch, and the others sleep until they are woken: the watch sleeps until the
next level is due, and hands the watch over when its own turn comes. So no thread is started for time to be noticed, and
a level that is due wakes one thread, not all.

Laws: a task that is cancelled before its turn leaves the queue; one that is cancelled after its turn, but before it
runs, gives back what it was charged, and the next gets the turn. The same holds for a task whose loop was closed.

No wake-up is lost. An event is set and cleared under the queue's lock only (but by a clock, whose time has come), and
cleared only after its call was seen to be undecided. While threads wait and none keeps watch, one of them is awake:
whoever leaves then wakes another, since the one that was to keep watch may have been decided before it ran.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from spark_throttle.errors import TurnTimeoutError
from spark_throttle.pace.level_state import Place, Request
from spark_throttle.pace.limit import NEVER_NS, NS_PER_MS, NS_PER_SECOND
from spark_throttle.pace.turn_queue import TurnQueue


class LoopTimer:
    """The timer of one event loop; its methods but `arm` run in that loop."""

    def __init__(self, queue: TurnQueue, loop: asyncio.AbstractEventLoop) -> None:
        self.armed_ns = NEVER_NS
        self.waiting = 0
        self._queue = queue
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, due_ns: int) -> None:
        """Come at a time; a loop that is closed never comes."""
        self.armed_ns = due_ns
        _run_in(self._loop, self._set_timer)

    def forget(self) -> None:
        """Begin anew in the child of a fork, which does not run the loop."""
        self.armed_ns, self.waiting = NEVER_NS, 0

    def _set_timer(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        wait_ns = self.armed_ns - self._queue.clock.now_ns()
        self._handle = self._loop.call_later(max(0, wait_ns) / NS_PER_SECOND, self._come)

    def _come(self) -> None:
        with self._queue.lock:
            self.armed_ns = NEVER_NS
            self._queue.serve(self._queue.clock.now_ns())


class WaitingTasks:
    """The tasks that wait for turns of one queue."""

    def __init__(self, queue: TurnQueue) -> None:
        self._queue = queue
        self._timers: dict[asyncio.AbstractEventLoop, LoopTimer] = {}

    async def turn(self, place: Place, sums: list[int], timeout_seconds: float | None) -> int:
        """Wait until some of a call's items are let through, and return how many.

        Raises
        ------
        TurnTimeoutError
            If that takes longer than it may, by the loop's time; nothing was charged then.
        PacerClosedError
            If the pacer is closed before; nothing was charged then.
        """
        queue = self._queue
        loop = asyncio.get_running_loop()
        with queue.lock:
            now_ns = queue.clock.now_ns()
            passed = queue.try_now(place, sums, now_ns)
            if passed:
                return passed
            future: asyncio.Future[None] = loop.create_future()
            request = Request(place, sums, partial(_run_in, loop, partial(_wake_task, future)), self._timer_of(loop))
            queue.enqueue(request, now_ns)
        try:
            async with asyncio.timeout(timeout_seconds):
                await future
        except GeneratorExit:  # the task is collected: another may be in the middle of a change
            queue.abandon(request)
            raise
        except BaseException as error:
            with queue.lock:
                throttled_by = place.throttled_by
                queue.withdraw(request, queue.clock.now_ns())
            if isinstance(error, TimeoutError) and timeout_seconds is not None:
                raise TurnTimeoutError(int(timeout_seconds * 1000), throttled_by) from None
            raise
        if request.error is not None:
            raise request.error
        return request.passed

    def _timer_of(self, loop: asyncio.AbstractEventLoop) -> LoopTimer:
        if loop not in self._timers:
            for closed in [each for each in self._timers if each.is_closed()]:
                self._queue.drivers.remove(self._timers.pop(closed))
            self._timers[loop] = LoopTimer(self._queue, loop)
            self._queue.drivers.append(self._timers[loop])
        return self._timers[loop]


def _wake_task(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _run_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> bool:
    """Run a function in a loop, at once if it is the running one; return whether the loop is there."""
    try:
        is_running_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_running_here = False
    if is_running_here:
        function()
        return True
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # it is closed
        return False
    return True


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
        request = Request(place, sums, partial(_wake_thread, event), self)
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


def _wake_thread(event: threading.Event) -> bool:
    event.set()
    return True
