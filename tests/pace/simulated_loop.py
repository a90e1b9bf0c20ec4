"""An event loop whose time is a `ManualClock`: where it would wait for a timer, the clock is advanced instead."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from spark_throttle.pace import ManualClock

NS_PER_SECOND = 1_000_000_000
Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            found = super().select(5)  # another thread may wake the loop
            assert found, "every task waits, and no timer is set: a wake-up was lost"
            return found
        found = super().select(0)
        if not found and timeout > 0:
            self._clock.advance(-int(-timeout * NS_PER_SECOND // 1))
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Selector(clock))
        self._simulated = clock

    def time(self) -> float:
        return self._simulated.now_ns() / NS_PER_SECOND


def run(clock: ManualClock, main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine as `asyncio.run` does, by the time of a clock."""
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(clock)) as runner:
        return runner.run(main)
