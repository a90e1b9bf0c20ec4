"""Producers: what sends, is charged at all its levels at once, and is held while any of them throttles it.

`Producer` is for threads, `AsyncProducer` for asyncio; both may share levels, and stand in one queue. A producer's
first calls cost a lock and a clock. Most later ones take from what its levels have handed out in advance: calls of one
size cost neither, calls of changing sizes the lock. A call takes from all its levels at once. Those that have nothing
left it asks under the lock, and if one of them throttles, it gives back what it took of the others. While its narrowest
level throttles and nobody waits, calls are refused without the lock.

Surprises: while one thread has taken what it will give back, another may be refused, or wait for a moment. Several
threads may call one producer; their calls share its place, so each of its turns lets one of them through. `try_acquire`
returns False while another call of the same producer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from itertools import accumulate, compress, zip_longest
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

from spark_throttle.errors import ConfigurationError
from spark_throttle.pace.forks import Staying
from spark_throttle.pace.level_state import NOTHING, LevelState, Place
from spark_throttle.pace.limit import MOST, NS_PER_SECOND, check_whole
from spark_throttle.pace.turn_queue import TurnQueue
from spark_throttle.pace.waiting import WaitingTasks, WaitingThreads

_ONE: Final = 1
"""Compared by identity, which is cheaper; another 1 takes the longer way, to the same result."""

_InAdvance: TypeAlias = tuple[Iterator[tuple[bool, ...]], Sequence[Iterator[bool]]]
"""Calls that are let through in advance: for each, which levels let it through; and the allowances of the levels from
which these are taken."""

_MOST_SECONDS: Final = MOST // NS_PER_SECOND


class Array(Protocol):
    """An array of numbers that turns into a list by itself: of the module `array`, of NumPy, of pandas."""

    def tolist(self) -> list[Any]:
        """Return its elements as Python's own numbers."""


class TryingProducer(Staying):
    """What a producer does without waiting; made by `Pacer`."""

    __slots__ = ("_all", "_in_advance", "_narrowest_first", "_place", "_queue", "_quick")

    def __init__(self, queue: TurnQueue, levels: tuple[LevelState, ...]) -> None:
        self._queue = queue
        self._place = Place(levels)
        self._narrowest_first = tuple(sorted(levels, key=lambda level: level.worth_tokens))
        self._in_advance: dict[int, _InAdvance] = {}
        """By the tokens of a call, one size at a time."""
        self._all = (True,) * len(levels)
        # A producer of several levels never finds anything handed out here.
        self._quick = levels[0] if len(levels) == 1 else _NO_LEVEL

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(level.name for level in self._place.levels)}>"

    def try_acquire(self, tokens: int = 1) -> bool:
        """Charge tokens at all levels if none of them throttles now, and return whether they were charged.

        Raises
        ------
        ConfigurationError
            If `tokens` is no whole number or below 0.
        PacerClosedError
            If the pacer is closed.

        Examples
        --------
        >>> from spark_throttle.pace import ManualClock, Pacer
        >>> pacer = Pacer(clock=ManualClock())
        >>> producer = pacer.producer(pacer.level("api", 2))
        >>> [producer.try_acquire() for _ in range(3)]
        [True, True, False]
        """
        if tokens is _ONE and next(self._quick.allowance, False):
            return True
        if type(tokens) is not int or not 0 <= tokens <= MOST:
            check_whole("tokens", tokens, 0)
        in_advance, got = self._in_advance.get(tokens), None
        if in_advance is not None:
            got = next(in_advance[0], None)
            if got == self._all:
                return True
        queue, narrowest = self._queue, self._narrowest_first[0]
        if got is None and narrowest.is_throttling and not queue.has_work and queue.clock.now_ns() < narrowest.due_ns:
            return False  # it throttled when it was asked, at a moment during the call
        with queue.lock:
            if in_advance is not None and got is not None:
                taken = zip(self._narrowest_first, in_advance[1], strict=True)
                return self._try_missing(tokens, dict(compress(taken, got)))
            if narrowest.worth_tokens <= 1:  # which hands nothing out
                return queue.try_now(self._place, [tokens], queue.clock.now_ns()) > 0
            return _take_of_budgets(self._narrowest_first, tokens) or self._try_missing(tokens, {})

    def _try_missing(self, tokens: int, taken: dict[LevelState, Iterator[bool]]) -> bool:
        """Charge the levels that have not let a call through yet; if they throttle, the others get theirs back.

        Parameters
        ----------
        taken
            The levels that have, and the allowances that the call is of.
        """
        missing: list[LevelState] = []
        for level in self._narrowest_first:
            if level not in taken:
                allowance = level.allowances.get(tokens, NOTHING)
                if next(allowance, False):
                    taken[level] = allowance
                else:
                    missing.append(level)
        if missing and not _take_of_budgets(missing, tokens):
            queue, now_ns = self._queue, self._queue.clock.now_ns()
            if not queue.try_now(self._place, [tokens], now_ns, missing):
                closed = [level for level, allowance in taken.items() if not level.give_back(tokens, allowance)]
                if closed:
                    queue.give_back(closed, tokens, now_ns)
                self._in_advance = {}
                return False
        opened = [level.allowances.get(tokens, NOTHING) for level in self._narrowest_first]
        is_open = NOTHING not in opened
        self._in_advance = {tokens: (zip_longest(*opened, fillvalue=False), opened)} if is_open else {}
        return True

    def try_acquire_many(self, tokens: Iterable[int] | Array) -> int:
        """Charge as many of the first items as pass now, one after the other, and return how many that is.

        Examples
        --------
        >>> from spark_throttle.pace import ManualClock, Pacer
        >>> pacer = Pacer(clock=ManualClock())
        >>> producer = pacer.producer(pacer.level("bytes", 1_000))
        >>> producer.try_acquire_many([300, 500, 900, 10])  # the 200 that are left let the 900 through, into debt
        3
        """
        sums = _sums(tokens)
        return self._try(sums) if sums else 0

    @property
    def throttled_by(self) -> tuple[str, ...]:
        """The names of the levels that throttle it now; how many they are is PIP-322's throttle count."""
        with self._queue.lock:
            now_ns = self._queue.clock.now_ns()
            self._queue.serve(now_ns)
            self._place.throttling_at(now_ns)  # which brings its levels up to date
            return self._place.throttled_by

    def _try(self, sums: list[int]) -> int:
        queue = self._queue
        with queue.lock:
            return queue.try_now(self._place, sums, queue.clock.now_ns())


class Producer(TryingProducer):
    """A producer whose threads wait for their turns.

    Examples
    --------
    >>> from spark_throttle.pace import ManualClock, Pacer
    >>> clock = ManualClock(is_self_winding=True)
    >>> pacer = Pacer(clock=clock)
    >>> producer = pacer.producer(pacer.level("api", 1_000, initial_tokens=1))
    >>> producer.acquire(5)
    >>> with producer:  # the debt of 4 and 16 ms' worth of tokens have come
    ...     print(clock.now_ns() // 1_000_000, "ms")
    20 ms
    """

    __slots__ = ("_waiting",)

    def __init__(self, queue: TurnQueue, levels: tuple[LevelState, ...], waiting: WaitingThreads) -> None:
        super().__init__(queue, levels)
        self._waiting = waiting

    def acquire(self, tokens: int = 1, timeout_seconds: float | None = None) -> None:
        """Wait for a turn, and charge tokens at all levels.

        Parameters
        ----------
        timeout_seconds
            How long to wait at most; for ever, unless given.

        Raises
        ------
        TurnTimeoutError
            If no turn came in time; nothing was charged.
        PacerClosedError
            If the pacer is closed, or is while this waits; nothing was charged.
        ConfigurationError
            If an argument is no number that can be meant.
        """
        if timeout_seconds is not None:
            _check_seconds(timeout_seconds)
        if tokens is _ONE and next(self._quick.allowance, False):
            return
        if not self.try_acquire(tokens):
            self._waiting.turn(self._place, [tokens], timeout_seconds)

    def acquire_many(self, tokens: Iterable[int] | Array, timeout_seconds: float | None = None) -> int:
        """Wait for a turn, charge as many of the first items as pass then, and return how many: at least one.

        Errors are those of `acquire`. Without items nothing waits.

        Examples
        --------
        >>> from spark_throttle.pace import ManualClock, Pacer
        >>> pacer = Pacer(clock=ManualClock(is_self_winding=True))
        >>> producer = pacer.producer(pacer.level("bytes", 1_000))
        >>> sizes = [400] * 5
        >>> while sizes:
        ...     passed = producer.acquire_many(sizes)
        ...     del sizes[:passed]
        ...     print(passed)
        3
        1
        1
        """
        if timeout_seconds is not None:
            _check_seconds(timeout_seconds)
        sums = _sums(tokens)
        return (self._try(sums) or self._waiting.turn(self._place, sums, timeout_seconds)) if sums else 0

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give nothing back: what was sent was sent."""


class AsyncProducer(TryingProducer):
    """A producer whose tasks wait for their turns.

    Examples
    --------
    >>> import asyncio
    >>> from spark_throttle.pace import Pacer
    >>> async def send_three() -> int:
    ...     pacer = Pacer()
    ...     producer = pacer.async_producer(pacer.level("api", 1_000))
    ...     await producer.acquire()
    ...     async with producer:
    ...         return await producer.acquire_many([1, 1, 1])
    >>> asyncio.run(send_three())
    3
    """

    __slots__ = ("_entered", "_has_entered", "_left", "_quick_to_enter", "_waiting")

    def __init__(self, queue: TurnQueue, levels: tuple[LevelState, ...], waiting: WaitingTasks) -> None:
        super().__init__(queue, levels)
        self._waiting = waiting
        # Futures that are done: to await one costs half of what a coroutine costs that returns at once.
        # They need a running loop, so the first to enter makes them; until then nothing quick is found to enter by.
        self._has_entered = False
        self._entered: asyncio.Future[Self]
        self._left: asyncio.Future[None]
        self._quick_to_enter: LevelState | _NoLevel = _NO_LEVEL

    async def acquire(self, tokens: int = 1, timeout_seconds: float | None = None) -> None:
        """Wait for a turn, and charge tokens at all levels; as `Producer.acquire`."""
        if timeout_seconds is not None:
            _check_seconds(timeout_seconds)
        if tokens is _ONE and next(self._quick.allowance, False):
            return
        if not self.try_acquire(tokens):
            await self._waiting.turn(self._place, [tokens], timeout_seconds)

    async def acquire_many(self, tokens: Iterable[int] | Array, timeout_seconds: float | None = None) -> int:
        """Wait for a turn, and charge as many of the first items as pass then; as `Producer.acquire_many`."""
        if timeout_seconds is not None:
            _check_seconds(timeout_seconds)
        sums = _sums(tokens)
        return await self._waiting.turn(self._place, sums, timeout_seconds) if sums else 0

    def __aenter__(self) -> Awaitable[Self]:
        if next(self._quick_to_enter.allowance, False):
            return self._entered
        return self._enter()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        """Give nothing back: what was sent was sent."""
        return self._left

    async def _enter(self) -> Self:
        await self.acquire()
        if not self._has_entered:
            loop = asyncio.get_running_loop()
            self._left = loop.create_future()
            self._left.set_result(None)
            self._entered = loop.create_future()
            self._entered.set_result(self)
            self._has_entered = True
            self._quick_to_enter = self._quick
        return self


class _NoLevel:
    """Stands where a producer of several levels has no level of its own."""

    __slots__ = ("allowance",)

    def __init__(self) -> None:
        self.allowance: Iterator[bool] = iter(())


_NO_LEVEL: Final = _NoLevel()


def _take_of_budgets(levels: Sequence[LevelState], tokens: int) -> bool:
    """Take tokens of the budgets of levels if all have them; then none of them throttles."""
    for level in levels:
        if tokens >= level.budget_tokens:
            return False
    for level in levels:
        level.budget_tokens -= tokens
    return True


def _sums(tokens: Iterable[int] | Array) -> list[int]:
    """Return the running sums of items.

    Raises
    ------
    ConfigurationError
        If one of them is no whole number or below 0, or if their sum is too large.
    """
    items: Any = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(items, Iterable):
        raise ConfigurationError(f"tokens is {items!r}, which has no items; give one number for each item")
    items = list(items)
    if not items:
        return []
    if not set(map(type, items)) <= {int} or min(items) < 0:
        for at, item in enumerate(items):
            check_whole(f"tokens[{at}]", item, 0)
    sums = list(accumulate(items))
    check_whole("the sum of tokens", sums[-1], 0, MOST)
    return sums


def _check_seconds(seconds: object) -> None:
    if type(seconds) not in {int, float} or not 0 <= seconds <= _MOST_SECONDS:  # type: ignore[operator]
        raise ConfigurationError(
            f"timeout_seconds is {seconds!r}; give a number of seconds from 0 on, at most {_MOST_SECONDS}, or "
            "leave it out to wait for ever"
        )
