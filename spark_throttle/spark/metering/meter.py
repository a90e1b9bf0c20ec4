"""The meter of a function: it measures the time that the function takes, and takes down what the function says.

A clock is a thread's CPU time, or the time that passes. Both are differences, so nothing here tells the time of day.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from spark_throttle.errors import ConfigurationError

ClockName = Literal["cpu", "wall"]

CLOCKS: Final[dict[ClockName, Callable[[], int]]] = {"cpu": time.thread_time_ns, "wall": time.perf_counter_ns}
"""By name: a clock in nanoseconds. That of the CPU time belongs to the thread that reads it."""

_NS_PER_SECOND: Final = 1_000_000_000
_MOST_SECONDS: Final = 2**30


class Meter:
    """What a metered function says itself of the time that it used; a function with a parameter `meter` is given it.

    It may be used in any thread of the function's process. What is said for a namespace is charged to it in full. Of
    the time that was measured, only what is more than all that was said is divided by rows.

    Examples
    --------
    >>> meter = Meter("cpu")
    >>> meter.charge("acme/model", 0.25)
    >>> with meter.charging("acme/lookup"):
    ...     total = sum(range(1000))
    >>> meter.charged_ns["acme/model"], meter.charged_ns["acme/lookup"] > 0
    (250000000, True)
    """

    def __init__(self, clock: ClockName) -> None:
        self.read_ns = CLOCKS[clock]
        self.charged_ns = Counter[str]()
        """What was said, by namespace."""

        self._lock = threading.Lock()

    def charge(self, namespace: str, seconds: float) -> None:
        """Charge time to a namespace.

        Raises
        ------
        ConfigurationError
            If the time is negative or no number, or the namespace is no text.
        """
        if not 0 <= seconds < _MOST_SECONDS:
            raise ConfigurationError(f"{seconds} seconds cannot be charged: give 0 or more, and less than 2**30")
        self._charge_ns(namespace, round(seconds * _NS_PER_SECOND))

    @contextmanager
    def charging(self, namespace: str) -> Iterator[None]:
        """Charge what a block of code takes, by the function's clock, to a namespace."""
        began_ns = self.read_ns()
        try:
            yield
        finally:
            self._charge_ns(namespace, self.read_ns() - began_ns)

    def _charge_ns(self, namespace: str, time_ns: int) -> None:
        if not isinstance(namespace, str):
            raise ConfigurationError(f"{namespace!r} is no namespace: charge the name that the throttle decides by")
        with self._lock:
            self.charged_ns[namespace] += time_ns
