"""Sending: the calls of many namespaces leave in one event loop, each when its namespace's bucket lets it.

Every namespace has a bucket of its own, filled with time: a call costs the time for which its namespace sends nothing
else (`calls.Call.takes_ns`). A call is charged at the moment when it leaves, after it has got one of the `concurrency`
places. After its last call a namespace waits out what it owes, 100 ms at most: so the first call of the next batch
comes no sooner than it would have come in this one.

A call that raises `Backpressure` is made again, with the same key, once the gate of its destination lets it through
(`gate`). It waits without a place among the calls in flight, so other destinations go on. The destination of a
namespace is the namespace itself, until a refusal names another scope. A second attempt is charged like the first.

A destination that the policy knows (`gate.Terms`) takes what it takes in the time of the batch. Its other calls are
returned. They wait for its rate, and for the time that it asks for, in whosever name they are refused. One call that is
never taken holds only its namespace back.

Surprises: any other exception of `send` ends all others of the task, and the batch. A `send` that is no coroutine runs
in threads, and a thread that is sending is not interrupted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from spark_throttle.core.shares.destinations import Told
from spark_throttle.errors import Backpressure, DeliveryError, TurnTimeoutError
from spark_throttle.pace import Clock, Limit, Pacer, SystemClock
from spark_throttle.spark.paced.calls import SLACK_NS, Call, IdempotencyKey, plain_rows
from spark_throttle.spark.paced.gate import Deadline, Gate, Terms, UndeliveredError

Rows: TypeAlias = list[dict[str, Any]]
Send: TypeAlias = Callable[[Rows, IdempotencyKey], Any]
"""A function or a coroutine function; what it returns is not looked at."""

AsyncSend: TypeAlias = Callable[[Rows, IdempotencyKey], Awaitable[Any]]

_LONGEST_WAIT_SECONDS: Final = 0.1
"""The limit is promised for any 100 ms."""

_NO_TERMS: Final[Mapping[str, Terms]] = MappingProxyType({})

_TIME: Final = Limit.of(1, period_ns=1, burst_tokens=SLACK_NS, target_tokens=1)
"""A token is a nanosecond."""

_ALONE: Final = 2
"""So often a call is refused while its destination takes others, until it is refused in its own name."""

_EARLIER: Final = -1
"""The turn of a call that left before a gate was shut."""


@runtime_checkable
class OpenedPerTask(Protocol):
    """A sender that opens something, such as connections, once per task."""

    def opened(self) -> AbstractAsyncContextManager[Send]:
        """Return a context whose value sends."""
        ...


@dataclass(frozen=True, slots=True)
class BatchName:
    """What the keys of a batch begin with."""

    query: str
    batch: int
    identity: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """The rows of one call, and its key."""

    rows: pa.Table
    key: IdempotencyKey
    takes_ns: int
    """The time for which the namespace sends nothing else."""

    place: int = 0
    """The place of the first row among the namespace's rows that leave in the batch."""

    may_be_taken: bool = False
    """Whether nobody knows if an earlier call with this key was taken."""


@dataclass(frozen=True, slots=True)
class Held:
    """In whose name the calls of a namespace are refused, where it is not their destination's."""

    scope: str
    until_ms: int = 0
    """The wall-clock time before which the scope asks not to be called; 0 if it does not ask."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The calls of one namespace, in their order."""

    namespace: str
    parcels: Sequence[Parcel]
    destination: str | None = None
    """The destination that the policy names; the namespace is its own unless given."""

    held: Held | None = None
    """In whose name an earlier batch was refused, if not in the destination's."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the calls of a task."""

    rows: int
    """The rows that were sent."""

    undelivered: list[Parcel]
    """The calls that were not, the calls of a namespace in their order."""

    told: dict[str, Told]
    """What the destinations that the policy names said, by destination."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """In whose names these calls are refused, if not in their destinations', by namespace."""


def parcels_of(namespace: str, rows: pa.Table, calls: Sequence[Call], name: BatchName, first: int = 0) -> list[Parcel]:
    """Return the calls of a namespace of a batch with their rows and keys.

    Parameters
    ----------
    first
        How many rows go before the first call.
    """
    return [
        Parcel(
            rows.slice(first + call.place, call.rows),
            IdempotencyKey(name.query, name.batch, name.identity, namespace, first + call.place),
            call.takes_ns,
            first + call.place,
        )
        for call in calls
    ]


async def send_flows(  # noqa: PLR0913 - how to send, given once
    flows: Sequence[Flow],
    send: Send | OpenedPerTask,
    *,
    concurrency: int,
    in_order: bool,
    patience_seconds: float,
    terms: Mapping[str, Terms] = _NO_TERMS,
    clock: Clock | None = None,
    began_ms: int = 0,
    first: int = 0,
) -> Sent:
    """Send the calls of all flows.

    Parameters
    ----------
    concurrency
        The number of calls in flight at most.
    in_order
        Whether a call of a namespace begins only after the one before it ended.
    patience_seconds
        How long a destination that the policy does not know may refuse everything.
    terms
        How to send to the destinations that the policy knows, by name.
    began_ms
        The wall-clock time now.
    first
        The place of the flow that begins.

    Raises
    ------
    DeliveryError
        If a destination did so for longer, or asks to.
    Exception
        What `send` raised first; other calls are cancelled.
    """
    pacer = Pacer(clock=SystemClock() if clock is None else clock, resolution_ns=0)
    gates = {name: Gate(name, pacer, each, began_ms=began_ms) for name, each in terms.items()}
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(send.opened()) if isinstance(send, OpenedPerTask) else send
        call = awaitable(sender, stack.enter_context(ThreadPoolExecutor(concurrency)))
        now = asyncio.get_running_loop().time()
        deadlines = {name: Deadline(now + each.seconds, each.is_timed) for name, each in terms.items()}
        places = asyncio.Semaphore(concurrency)
        task = _Task(pacer, places, gates, deadlines, patience_seconds, call, now, began_ms)
        paced = [_PacedFlow(flow, task) for flow in flows]
        try:
            async with asyncio.TaskGroup() as group:
                for each in [*paced[first:], *paced[:first]]:
                    group.create_task(each.send(None if in_order else group))
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        undelivered = [parcel for each in paced for parcel in each.undelivered]
        return Sent(
            sum(parcel.rows.num_rows for flow in flows for parcel in flow.parcels)
            - sum(parcel.rows.num_rows for parcel in undelivered),
            undelivered,
            {name: gates[name].told() for name in terms},
            {each.flow.namespace: each.held for each in paced if each.held is not None and each.undelivered},
        )


@dataclass(frozen=True, slots=True)
class _Task:
    pacer: Pacer
    places: asyncio.Semaphore
    gates: dict[str, Gate]
    """By destination."""

    deadlines: dict[str, Deadline]
    """When no call waits any more, by destination of the policy."""

    patience_seconds: float
    call: AsyncSend
    began: float
    """By the loop's time."""

    began_ms: int
    """By the wall clock."""

    def gate(self, destination: str) -> Gate:
        """Return the gate of a destination."""
        if destination not in self.gates:
            elapsed_ms = int(1_000 * (asyncio.get_running_loop().time() - self.began))
            self.gates[destination] = Gate(destination, self.pacer, began_ms=self.began_ms + elapsed_ms)
        return self.gates[destination]


class _PacedFlow:
    def __init__(self, flow: Flow, task: _Task) -> None:
        self.flow = flow
        self._task = task
        self._home = self._gate = task.gate(flow.destination or flow.namespace)
        self._deadline = task.deadlines.get(flow.destination or "")
        self._own = task.pacer.async_producer(task.pacer.level(flow.namespace, _TIME, initial_tokens=1))
        self._producer = self._producer_there = self._home.producer()
        self._done: set[int] = set()
        self._doubtful: set[int] = set()
        if flow.held is not None and self._deadline is not None:
            self._turn_to(task.gate(flow.held.scope))
            self._gate.close(flow.held.until_ms)

    @property
    def undelivered(self) -> list[Parcel]:
        """The calls that were not accepted."""
        return [
            replace(parcel, may_be_taken=parcel.may_be_taken or at in self._doubtful)
            for at, parcel in enumerate(self.flow.parcels)
            if at not in self._done
        ]

    @property
    def held(self) -> Held | None:
        """In whose name the calls are refused, if not in their destination's, which the policy knows."""
        if self._deadline is None or self._gate is self._home:
            return None
        return Held(self._gate.name, self._gate.closed_until_ms)

    async def send(self, group: asyncio.TaskGroup | None) -> None:
        """Send the calls in turn; if a group is given, they run there and nobody waits for their ends."""
        with suppress(UndeliveredError):
            for at, parcel in enumerate(self.flow.parcels):
                gate, turn = await self._leave(parcel)
                if group is None:
                    await self._send(at, parcel, gate, turn)
                else:
                    group.create_task(self._send_alone(at, parcel, gate, turn))
        with suppress(TurnTimeoutError):  # what is still owed then is owed for longer than the promise looks
            await self._own.acquire(0, _LONGEST_WAIT_SECONDS)

    async def _leave(self, parcel: Parcel) -> tuple[Gate, int]:
        """Wait until a call may leave, charge it, and return the gate through which it leaves, and its turn there.

        Another call of the namespace may meanwhile be refused in another name: then it says so at its own gate.
        """
        rows = parcel.rows.num_rows
        while True:
            await self._own_turn()
            if self._gate is not self._home:
                await self._home.charged(self._producer, rows, self._deadline)
                if self._home.asks_first and not self._gate.closed_until_ms:
                    self._turn_to(self._home)
            gate = self._gate
            turn = await gate.passed(self._producer_there, rows, self._deadline, self)
            await self._task.places.acquire()
            if turn == gate.turn:
                break
            self._task.places.release()  # the gate was shut meanwhile
        self._own.try_acquire(parcel.takes_ns)  # where calls are in order, nobody else charges this bucket
        return gate, turn

    async def _own_turn(self) -> None:
        """Wait for the namespace's own bucket, at most until no call waits any more in any case."""
        if self._deadline is None or not self._deadline.is_timed:
            await self._own.acquire(0)
            return
        try:
            await self._own.acquire(0, max(0.0, self._deadline.left_seconds))
        except TurnTimeoutError as error:
            raise UndeliveredError from error

    async def _send(self, at: int, parcel: Parcel, gate: Gate, turn: int) -> None:
        attempts, alone, others = 1, 0, -1
        while (refusal := await self._refusal(parcel)) is not None:
            if refusal.may_be_taken:
                self._doubtful.add(at)
            alone += 0 <= others < self._home.accepted
            others = self._home.accepted
            name = refusal.scope or self._refusing(gate, is_alone=alone >= _ALONE)
            if name != gate.name:
                gate.pass_on()
                gate = self._task.gate(name)
                self._turn_to(gate)
                turn = gate.turn if gate.is_open else _EARLIER
            gate.refuse(refusal, turn, self)
            refused_seconds = gate.refused_for_seconds + gate.shut_for_seconds
            if self._deadline is None and refused_seconds > self._task.patience_seconds:
                problem = (
                    f"{refusal.problem}, and takes no call for {refused_seconds:.0f} s, more than "
                    f"patience_seconds={self._task.patience_seconds:g}"
                )
                raise DeliveryError(gate.name, parcel.key.text, problem, attempts) from refusal
            attempts += 1
            gate, turn = await self._leave(parcel)
        gate.accept()
        if gate is not self._home and self._deadline is not None:
            self._home.accept()
            if gate.name == self.flow.namespace:
                self._turn_to(self._home)
        self._done.add(at)

    def _turn_to(self, gate: Gate) -> None:
        """Let later calls leave through a gate."""
        if gate is not self._gate:
            self._gate = gate
            self._producer_there = self._producer if gate is self._home else gate.producer()

    def _refusing(self, gate: Gate, *, is_alone: bool) -> str:
        """Return in whose name a call is refused that left through a gate, if the refusal names nobody.

        A call that is refused again and again while its destination takes others is refused in its namespace's name.
        """
        if self._deadline is None:
            return gate.name
        return self.flow.namespace if is_alone or gate.name == self.flow.namespace else self._home.name

    async def _send_alone(self, at: int, parcel: Parcel, gate: Gate, turn: int) -> None:
        with suppress(UndeliveredError):
            await self._send(at, parcel, gate, turn)

    async def _refusal(self, parcel: Parcel) -> Backpressure | None:
        """Make a call, and return how it was refused, if it was."""
        try:
            await self._task.call(plain_rows(parcel.rows), parcel.key)
        except Backpressure as refusal:
            return refusal
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # `send` let the end of a task of its own through; a group takes a task that ends so for one that is done.
            raise DeliveryError(self._gate.name, parcel.key.text, "send was cancelled by itself", 1) from error
        finally:
            self._task.places.release()
        return None


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


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
