"""Where a producer stands, and what it asks for.

A producer has one place in the queue, however many of its calls wait: each turn lets one of them through, and then the
place goes to the back. So a turn goes round between producers, not between calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from spark_throttle.errors import ThrottleError

if TYPE_CHECKING:
    from spark_throttle.pace.level_state import LevelState


class Place:
    """The place of one producer."""

    __slots__ = ("age", "held_by", "kept", "levels", "requests")

    def __init__(self, levels: tuple[LevelState, ...]) -> None:
        self.levels = levels
        self.requests: OrderedDict[Request, None] = OrderedDict()
        """Its calls that wait, the oldest first."""
        self.age = 0
        """Its number in the queue; a smaller one is served first. No two places ever have the same."""
        self.held_by: LevelState | None = None
        """Of the levels that throttle it, the one with which it stands; `None` if it does not wait."""
        self.kept: list[LevelState] = []
        """Levels that have given its oldest call a turn in advance: they have charged its first item, and hold the
        place no longer."""

    def throttling_at(self, now_ns: int) -> LevelState | None:
        """Return the first level that holds the place, or `None`: the balances of all are up to date then."""
        found = None
        for level in self.levels:
            if level.throttles_at(now_ns) and found is None and level not in self.kept:
                found = level
        return found

    @property
    def throttled_by(self) -> tuple[str, ...]:
        """The names of the levels that hold it, as of their last updates."""
        return tuple(level.name for level in self.levels if level.is_throttling and level not in self.kept)


class Driver(Protocol):
    """What brings waiting calls back at a time: a thread that waits, or an event loop's timer."""

    armed_ns: int
    """When it will come; `NEVER_NS` if nothing is arranged."""

    waiting: int
    """How many calls wait by it."""

    def arm(self, due_ns: int) -> None:
        """Come at a time; called under the queue's lock, from any thread."""

    def forget(self) -> None:
        """Forget the calls that wait by it: they wait in the process from which this one was forked."""


class Request:
    """A call that asks for a turn.

    Parameters
    ----------
    sums
        The tokens of its first item, of its first two, and so on. The first is let through as soon as no level
        throttles; each further one, if the tokens before it leave something of the balance.
    wake
        Called once, under the queue's lock, when the call is decided; it returns whether anyone is left to be woken.
    driver
        What brings the call back when its level is due.

    Examples
    --------
    >>> Request(Place(()), [3, 6, 9]).is_decided
    False
    """

    __slots__ = ("charged_tokens", "driver", "error", "passed", "place", "sums", "wake")

    def __init__(
        self, place: Place, sums: list[int], wake: Callable[[], bool] | None = None, driver: Driver | None = None
    ) -> None:
        self.place = place
        self.sums = sums
        self.wake = wake
        self.driver = driver
        self.passed = 0
        """How many of its items were let through; 0 while it waits."""
        self.charged_tokens = 0
        self.error: ThrottleError | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it waits no longer."""
        return self.passed > 0 or self.error is not None


def passing(sums: list[int], balance_tokens: int) -> int:
    """Return how many items a positive balance lets through, one after the other.

    Examples
    --------
    >>> [passing([3, 6, 9], balance) for balance in (1, 3, 4, 100)]
    [1, 1, 2, 3]
    """
    return min(len(sums), 1 + bisect_left(sums, balance_tokens))
