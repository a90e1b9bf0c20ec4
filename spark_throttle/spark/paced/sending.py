"""Sending: the calls of many namespaces leave in one event loop, each when its namespace's bucket lets it.

Every namespace has a bucket of its own, filled with time: a call costs the time for which its namespace sends nothing
else (`calls.Call.takes_ns`). A call is charged at the moment when it leaves, after it has got one of the `concurrency`
places. After its last call a namespace waits out what it owes, 100 ms at most: so the first call of the next batch
comes no sooner than it would have come in this one.

A call that raises `Backpressure` is made again, with the same key, once the gate of its destination lets it through
(`gate`). It waits without a place among the calls in flight, so other destinations go on. The destination of a
namespace is the namespace itself, until a refusal names another scope. A second attempt is charged like the first.

Surprises: any other exception of `send` ends all others of the task, and the batch. A `send` that is no coroutine runs
in threads, and a thread that is sending is not interrupted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from spark_throttle.errors import Backpressure, DeliveryError, TurnTimeoutError
from spark_throttle.pace import AsyncProducer, Clock, Limit, Pacer, SystemClock
from spark_throttle.spark.paced.calls import SLACK_NS, Call
from spark_throttle.spark.paced.gate import Gate
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.plain_rows import plain_rows

Rows: TypeAlias = list[dict[str, Any]]
Send: TypeAlias = Callable[[Rows, IdempotencyKey], Any]
"""A function or a coroutine function; what it returns is not looked at."""

_AsyncSend: TypeAlias = Callable[[Rows, IdempotencyKey], Awaitable[Any]]

_LONGEST_WAIT_SECONDS: Final = 0.1
"""The limit is promised for any 100 ms."""

_TIME: Final = Limit.of(1, period_ns=1, burst_tokens=SLACK_NS, target_tokens=1)
"""A token is a nanosecond."""


@runtime_checkable
class OpenedPerTask(Protocol):
    """A sender that opens something, such as connections, once per task."""

    def opened(self) -> AbstractAsyncContextManager[Send]:
        """Return a context whose value sends."""
        ...


@dataclass(frozen=True, slots=True)
class Flow:
    """The rows of one namespace in a batch, and their calls."""

    namespace: str
    rows: pa.Table
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class BatchName:
    """What the keys of a batch begin with."""

    query: str
    batch: int
    identity: str


async def send_flows(
    flows: Sequence[Flow],
    send: Send | OpenedPerTask,
    name: BatchName,
    *,
    concurrency: int,
    in_order: bool,
    patience_seconds: float,
    clock: Clock | None = None,
) -> int:
    """Send all rows of all flows, and return how many rows were taken.

    Parameters
    ----------
    concurrency
        The number of calls in flight at most.
    in_order
        Whether a call of a namespace begins only after the one before it ended.
    patience_seconds
        How long a destination may refuse everything.

    Raises
    ------
    DeliveryError
        If a destination did so for longer, or asks to.
    Exception
        What `send` raised first; other calls are cancelled.
    """
    pacer = Pacer(clock=SystemClock() if clock is None else clock, resolution_ns=0)
    places = asyncio.Semaphore(concurrency)
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(send.opened()) if isinstance(send, OpenedPerTask) else send
        gates: dict[str, Gate] = {}
        call = _awaitable(sender, stack.enter_context(ThreadPoolExecutor(concurrency)))
        paced_flows = []
        try:
            async with asyncio.TaskGroup() as group:
                for flow in flows:
                    level = pacer.level(flow.namespace, _TIME, initial_tokens=1)
                    producer = pacer.async_producer(level)
                    paced = _PacedFlow(flow, name, producer, places, gates, patience_seconds, call, flow.namespace)
                    paced_flows.append(paced)
                    group.create_task(paced.send(None if in_order else group))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
    return sum(paced.sent_rows for paced in paced_flows)


@dataclass(slots=True)
class _PacedFlow:
    flow: Flow
    name: BatchName
    producer: AsyncProducer
    places: asyncio.Semaphore
    gates: dict[str, Gate]
    """By destination."""

    patience_seconds: float
    call: _AsyncSend
    destination: str
    sent_rows: int = 0

    async def send(self, group: asyncio.TaskGroup | None) -> None:
        """Send the calls in turn; if a group is given, they run there and nobody waits for their ends."""
        for call in self.flow.calls:
            sent = self._send(call, await self._leave(call))
            if group is None:
                await sent
            else:
                group.create_task(sent)
        with suppress(TurnTimeoutError):  # what is still owed then is owed for longer than the promise looks
            await self.producer.acquire(0, _LONGEST_WAIT_SECONDS)

    async def _leave(self, call: Call) -> int:
        """Wait until a call may leave, charge it, and return its turn at the gate."""
        while True:
            turn = await self._gate.passed()
            await self.producer.acquire(0)
            await self.places.acquire()
            if turn == self._gate.turn:
                break
            self.places.release()  # the gate was shut meanwhile
        self.producer.try_acquire(call.takes_ns)  # where calls are in order, nobody else charges this bucket
        return turn

    async def _send(self, call: Call, turn: int) -> None:
        name, flow = self.name, self.flow
        key = IdempotencyKey(name.query, name.batch, name.identity, flow.namespace, call.place)
        attempts = 1
        while (refusal := await self._refusal(call, key)) is not None:
            if refusal.scope not in (None, self.destination):
                self.destination = refusal.scope
                turn = self._gate.turn
            gate = self._gate
            gate.refuse(refusal, turn)
            if gate.refused_for_seconds + gate.shut_for_seconds > self.patience_seconds:
                raise DeliveryError(gate.name, key.text, refusal.problem, attempts) from refusal
            attempts += 1
            turn = await self._leave(call)
        self._gate.accept()
        self.sent_rows += call.rows

    async def _refusal(self, call: Call, key: IdempotencyKey) -> Backpressure | None:
        """Make a call, and return how it was refused, if it was."""
        try:
            await self.call(plain_rows(self.flow.rows.slice(call.place, call.rows)), key)
        except Backpressure as refusal:
            return refusal
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # `send` let the end of a task of its own through; a group takes a task that ends so for one that is done.
            raise DeliveryError(self.destination, key.text, "send was cancelled by itself", 1) from error
        finally:
            self.places.release()
        return None

    @property
    def _gate(self) -> Gate:
        return self.gates.setdefault(self.destination, Gate(self.destination))


def _awaitable(send: Send, threads: ThreadPoolExecutor) -> _AsyncSend:
    """Return a sender that can be awaited; one that is no coroutine function runs in threads."""
    if inspect.iscoroutinefunction(send) or inspect.iscoroutinefunction(getattr(send, "__call__", None)):  # noqa: B004
        return send

    def in_thread(rows: Rows, key: IdempotencyKey) -> object:
        try:
            return send(rows, key)
        except StopIteration as error:  # no future can hold it: its call would never end
            raise RuntimeError("send raised StopIteration") from error

    async def call(rows: Rows, key: IdempotencyKey) -> None:
        result = await asyncio.get_running_loop().run_in_executor(threads, in_thread, rows, key)
        if inspect.isawaitable(result):  # of a function that calls a coroutine function
            await result

    return call


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
