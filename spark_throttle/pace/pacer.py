"""A pacer: levels with limits, producers that belong to some of them, and one fair queue for all who wait.

Levels are what PIP-322 counts: a destination, a group, a tenant, a namespace. A producer names those that it belongs
to; they need not form a tree. Nothing runs while nobody calls, and nothing is to be stopped: `close` is for those who
still wait.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self
from weakref import WeakKeyDictionary

from spark_throttle.errors import ConfigurationError
from spark_throttle.pace.clock import Clock, SystemClock
from spark_throttle.pace.forks import Staying
from spark_throttle.pace.level_state import LevelState
from spark_throttle.pace.limit import NEVER_NS, RESOLUTION_NS, Limit, check_whole
from spark_throttle.pace.producer import AsyncProducer, Producer
from spark_throttle.pace.turn_queue import TurnQueue
from spark_throttle.pace.waiting import WaitingTasks, WaitingThreads

_SYSTEM_CLOCK: Final = SystemClock()


class Level(Staying):
    """A limit that producers share; made by `Pacer.level`."""

    __slots__ = ("__weakref__", "_queue", "_state")

    def __init__(self, queue: TurnQueue, state: LevelState) -> None:
        self._queue = queue
        self._state = state

    def __repr__(self) -> str:
        return f"<Level {self.name}: {self.limit}>"

    @property
    def name(self) -> str:
        """Its name, which errors tell."""
        return self._state.name

    @property
    def limit(self) -> Limit:
        """The limit in force."""
        return self._state.counter.limit

    def set_limit(self, limit: Limit | int) -> None:
        """Change the limit now; a whole number is so many tokens a second.

        Time until now is paid at the old rate. A debt stays, and is repaid at the new rate; a balance is cut to the
        new burst. Those who wait are served by the new limit at once.

        Examples
        --------
        >>> from spark_throttle.pace import ManualClock
        >>> clock = ManualClock()
        >>> level = Pacer(clock=clock).level("api", 100)
        >>> level.set_limit(10)
        >>> level.balance_tokens()
        10
        """
        checked = _limit_of(limit)
        queue = self._queue
        with queue.lock:
            now_ns = queue.clock.now_ns()
            self._state.set_limit(checked, now_ns)
            queue.look_again(self._state, now_ns)

    def balance_tokens(self) -> int:
        """Return the balance now, below zero if tokens are owed: a consistent view, for which time is paid first."""
        with self._queue.lock:
            now_ns = self._queue.clock.now_ns()
            self._queue.serve(now_ns)
            return self._state.balance_at(now_ns)

    def throttle_time_ns(self) -> int:
        """Return how long the level will hold producers from now on; 0 if it does not, `NEVER_NS` if for ever."""
        with self._queue.lock:
            now_ns = self._queue.clock.now_ns()
            self._queue.serve(now_ns)
            if not self._state.throttles_at(now_ns):
                return 0
            return self._state.due_ns - now_ns if self._state.due_ns < NEVER_NS else NEVER_NS


class Pacer(Staying):
    """Where levels and producers are made.

    Parameters
    ----------
    clock
        The machine's monotonic clock, unless given.
    resolution_ns
        For how long, at a level's rate, tokens may be handed out in advance; 0 hands none out.

    Examples
    --------
    >>> from spark_throttle.pace import ManualClock
    >>> clock = ManualClock()
    >>> pacer = Pacer(clock=clock)
    >>> api, acme = pacer.level("api", 1_000), pacer.level("acme", 100)
    >>> orders, logs = pacer.producer(api, acme), pacer.producer(api)
    >>> orders.try_acquire(100), orders.try_acquire(), orders.throttled_by
    (True, False, ('acme',))
    >>> logs.try_acquire()
    True
    >>> clock.advance(10_000_000)  # 10 ms
    >>> orders.try_acquire(), acme.balance_tokens(), api.balance_tokens()
    (True, 0, 908)
    """

    def __init__(self, *, clock: Clock = _SYSTEM_CLOCK, resolution_ns: int = RESOLUTION_NS) -> None:
        check_whole("resolution_ns", resolution_ns, 0)
        self._queue = TurnQueue(clock)
        self._resolution_ns = resolution_ns
        self._threads = WaitingThreads(self._queue)
        self._tasks = WaitingTasks(self._queue)
        self._by_level: WeakKeyDictionary[Level, LevelState] = WeakKeyDictionary()

    def level(self, name: str, limit: Limit | int, *, initial_tokens: int | None = None) -> Level:
        """Return a new level, also if another has this name: the two do not share tokens.

        Parameters
        ----------
        limit
            A whole number is so many tokens a second.
        initial_tokens
            What it holds at first: its burst, unless given.
        """
        checked = _limit_of(limit)
        initial = checked.burst_tokens if initial_tokens is None else initial_tokens
        check_whole("initial_tokens", initial, 0, checked.burst_tokens)
        with self._queue.lock:
            state = LevelState(
                name, checked, initial, now_ns=self._queue.clock.now_ns(), resolution_ns=self._resolution_ns
            )
            self._queue.add(state)
        level = Level(self._queue, state)
        self._by_level[level] = state
        return level

    def producer(self, *levels: Level) -> Producer:
        """Return a producer of these levels whose threads wait.

        Raises
        ------
        ConfigurationError
            If no level is given, or one twice, or one of another pacer.
        """
        return Producer(self._queue, self._states(levels), self._threads)

    def async_producer(self, *levels: Level) -> AsyncProducer:
        """Return a producer of these levels whose asyncio tasks wait; errors are those of `producer`."""
        return AsyncProducer(self._queue, self._states(levels), self._tasks)

    def close(self) -> None:
        """Let nobody through any more: who waits, and who calls from now on, gets a `PacerClosedError`."""
        with self._queue.lock:
            self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _states(self, levels: tuple[object, ...]) -> tuple[LevelState, ...]:
        """Return the states of levels of this pacer."""
        if not levels:
            raise ConfigurationError("a producer without a level would never wait; give at least one level")
        found = []
        for level in levels:
            state = self._by_level.get(level) if isinstance(level, Level) else None
            if state is None:
                raise ConfigurationError(f"{level!r} is no level of this pacer; make it with level() of this one")
            if state in found:
                raise ConfigurationError(f"{level!r} is given twice, and would be charged twice; give each level once")
            found.append(state)
        return tuple(found)


def _limit_of(limit: Limit | int) -> Limit:
    return limit if isinstance(limit, Limit) else Limit.of(limit)
