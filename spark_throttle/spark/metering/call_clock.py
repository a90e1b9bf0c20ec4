"""The clock of a metered function's call: it runs while the function does, and stands while Spark has the turn.

It belongs to the thread that calls the function. A function may take its rows in a thread of its own: the clock is not
touched there, as one thread's CPU time says nothing of another's.

A metered function may call another. Then the clock of the outer one stands while that of the inner one runs, so that
time is charged once.
"""

from __future__ import annotations

import threading

from spark_throttle.spark.metering.meter import Meter


class _Running(threading.local):
    """The clock that runs in a thread."""

    clock: CallClock | None = None


_RUNNING = _Running()


class CallClock:
    """What a call has used, until `taken_ns` takes it.

    Examples
    --------
    >>> clock = CallClock(Meter("wall"))
    >>> clock.start()
    >>> clock.stop()
    True
    >>> clock.taken_ns() > 0, clock.taken_ns()
    (True, 0)
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._used_ns = 0
        self._since_ns = 0
        """When the clock last began to run, or to stand."""

        self._is_running = False
        self._thread: int | None = None
        self._outer: CallClock | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Let the clock run, in this thread."""
        if self._is_running:
            return
        outer = _RUNNING.clock
        if outer is not None:
            outer.suspend()
        self._outer, _RUNNING.clock = outer, self
        self.resume()

    def stop(self) -> bool:
        """Let the clock stand, and return whether it ran; what runs in another thread goes on."""
        if not self._is_running or self._thread != threading.get_ident():
            return False
        self.suspend()
        outer, self._outer = self._outer, None
        _RUNNING.clock = outer
        if outer is not None:
            outer.resume()
        return True

    def taken_ns(self) -> int:
        """Return the time that was used since this was last asked."""
        with self._lock:
            used_ns, self._used_ns = self._used_ns, 0
        return used_ns

    def resume(self) -> None:
        """Let the clock run on, where one that ran within it has stopped."""
        now_ns = self._meter.read_ns()
        thread = threading.get_ident()
        if self._thread == thread:
            self._meter.pass_over(now_ns)
        self._thread, self._since_ns, self._is_running = thread, now_ns, True

    def suspend(self) -> None:
        """Let the clock stand while another runs within it."""
        now_ns = self._meter.read_ns()
        self._meter.charge_blocks(now_ns)
        with self._lock:
            self._used_ns += now_ns - self._since_ns
        self._since_ns, self._is_running = now_ns, False
