"""Calls on their way: after a stop no other leaves, and nobody has to wait for those that do not end.

Each batch stops the sending of kept calls, to learn what was taken. Calls that are on their way then get a moment to
end. Those that need longer go on in their thread. They count as unsent, and whoever sends next waits for their ends
where it would make them. So a destination that does not answer holds no batch up.

Law: no call is made while it is on its way.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from spark_throttle.spark.paced.gate import UnsentError
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.plain_rows import plain_rows

if TYPE_CHECKING:
    from spark_throttle.spark.paced.sending import Rows, Send

AsyncSend: TypeAlias = "Callable[[Rows, IdempotencyKey], Awaitable[Any]]"
InFlight: TypeAlias = Mapping[str, "Future[None]"]
"""The ends of calls that are on their way, by the text of their keys."""

NONE_IN_FLIGHT: Final[InFlight] = MappingProxyType({})

_Tasks: TypeAlias = "set[asyncio.Task[Any]]"


class Stop:
    """Lets no call leave any more; set from any thread, for one event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: _Tasks = set()
        self._sending: _Tasks = set()
        self._is_set = False

    def set(self, *, moment_seconds: float | None = None) -> None:
        """Let no call leave any more.

        Parameters
        ----------
        moment_seconds
            How long those on their way are waited for; `None` if until they end.
        """
        with self._lock:
            self._is_set = True
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop is over, and so is all that waited
                    self._loop.call_soon_threadsafe(self._wake, moment_seconds)

    def begin(self) -> None:
        """Belong to the loop that runs."""
        with self._lock:
            self._loop = asyncio.get_running_loop()

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Wait within it for a call's turn.

        Raises
        ------
        UnsentError
            If no call leaves any more.
        """
        if self._is_set:
            raise UnsentError
        with self._woken(self._waiting):
            yield

    @contextmanager
    def waits_for_end(self) -> Iterator[None]:
        """Wait within it for the end of a call.

        Raises
        ------
        UnsentError
            If it is not waited for any longer.
        """
        with self._woken(self._sending):
            yield

    @contextmanager
    def _woken(self, tasks: _Tasks) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - whoever waits is one
        tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_set or not task.cancelling():
                raise
            task.uncancel()
            raise UnsentError from None
        finally:
            tasks.discard(task)

    def _wake(self, moment_seconds: float | None) -> None:
        for task in self._waiting:
            task.cancel()
        if moment_seconds is not None and self._loop is not None:
            self._loop.call_later(moment_seconds, self._wake_sending)

    def _wake_sending(self) -> None:
        for task in self._sending:
            task.cancel()


class Calls:
    """Makes the calls of one sending.

    Parameters
    ----------
    earlier
        Calls that an earlier sending has made, and that are on their way.
    stop
        What ends the sending; `None` if calls are always waited for.
    """

    def __init__(self, call: AsyncSend, stop: Stop | None, earlier: InFlight) -> None:
        self._call = call
        self._stop = stop
        self._earlier = dict(earlier)
        self._on_way: dict[str, asyncio.Future[Any]] = {}
        """Those that were made here."""

    async def ended(self, rows: pa.Table, key: IdempotencyKey) -> None:
        """Make a call, or find it on its way, and wait until it ends.

        Raises
        ------
        UnsentError
            If the sending was stopped, and the call did not end soon.
        Exception
            What the call raised.
        """
        if self._stop is None:
            await self._call(plain_rows(rows), key)
            return
        text = key.text
        earlier = self._earlier.get(text)
        way: asyncio.Future[Any]
        if earlier is None:
            way = self._on_way[text] = asyncio.ensure_future(self._call(plain_rows(rows), key))
        else:
            way = asyncio.wrap_future(earlier)
        try:
            with self._stop.waits_for_end():
                await asyncio.shield(way)
        finally:
            if way.done():
                self._on_way.pop(text, None)
                self._earlier.pop(text, None)
            elif earlier is not None:
                way.cancel()  # it is of this loop; the call goes on

    def left(self) -> InFlight:
        """Return the calls that nobody waits for here any more."""
        return {**self._earlier, **{key: _end_of(way) for key, way in self._on_way.items()}}

    async def all_ended(self) -> None:
        """Wait until those of them have ended that were made here."""
        if self._on_way:
            await asyncio.wait(list(self._on_way.values()))

    def cancel(self) -> None:
        """Give up what is on its way."""
        for way in self._on_way.values():
            way.cancel()


def awaitable(send: Send, threads: ThreadPoolExecutor) -> AsyncSend:
    """Return a sender that can be awaited; one that is no coroutine function runs in threads.

    What would end more than the call, such as `SystemExit`, is an error of the call.
    """
    called = getattr(send, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function is none itself
    is_coroutine = inspect.iscoroutinefunction(send) or inspect.iscoroutinefunction(called)

    def in_thread(rows: Rows, key: IdempotencyKey) -> object:
        try:
            return send(rows, key)
        except StopIteration as error:  # no future can hold it: its call would never end
            raise RuntimeError("send raised StopIteration") from error

    async def call(rows: Rows, key: IdempotencyKey) -> None:
        try:
            if is_coroutine:
                await send(rows, key)
                return
            result = await asyncio.get_running_loop().run_in_executor(threads, in_thread, rows, key)
            if inspect.isawaitable(result):  # of a function that calls a coroutine function
                await result
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"send raised {error!r}") from error

    return call


def _end_of(way: asyncio.Future[Any]) -> Future[None]:
    """Return the end of a call, for other loops."""
    found = Future[None]()
    found.set_running_or_notify_cancel()  # nobody cancels it

    def tell(ended: asyncio.Future[Any]) -> None:
        if ended.cancelled():
            found.set_exception(RuntimeError("the call was cancelled"))
        elif (error := ended.exception()) is not None:
            found.set_exception(error)
        else:
            found.set_result(None)

    way.add_done_callback(tell)
    return found
