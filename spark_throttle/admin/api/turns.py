"""Turns of requests: a bound on those that are worked on at once, a fair queue before it, and a rate for each caller.

The callers in the queue take turns, whichever of them asked most often, and none has more than a quarter of the turns:
whatever a caller's requests cost, three quarters are for others. A request is refused only if the queue is full or it
has waited too long. In a full queue the newest request of the caller with the most of them gives way, as rows do in the
queue of a job.

How many requests and changes a caller may make is bounded by a token bucket each (`pace.TokenCounter`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_throttle.pace.limit import Limit
from spark_throttle.pace.token_bucket import TokenCounter

MOST_CALLERS: Final = 10_000
"""Number of buckets kept; beyond it the caller that was away longest is forgotten, and returns with a full bucket."""


class RequestRates:
    """The request buckets of a server; safe for use by several threads.

    Parameters
    ----------
    per_second
        Number of requests per second that a caller may make.
    burst_seconds
        How many seconds of its rate an idle caller saves up.

    Examples
    --------
    >>> now_ms = 0
    >>> rates = RequestRates(2, burst_seconds=1, clock_ms=lambda: now_ms)
    >>> [rates.throttle_time_ms("ann") for _ in range(5)]
    [0, 0, 0, 500, 500]
    >>> now_ms = 500
    >>> rates.throttle_time_ms("ann"), rates.throttle_time_ms("bob")
    (0, 0)
    """

    def __init__(self, per_second: int, *, burst_seconds: int = 5, clock_ms: Callable[[], int]) -> None:
        self._limit = Limit.of(per_second, burst_tokens=per_second * burst_seconds)
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, TokenCounter] = OrderedDict()

    def throttle_time_ms(self, caller: str) -> int:
        """Charge a request and return 0; or charge nothing and return the time until the caller may try again."""
        with self._lock:
            now_ns = self._clock_ms() * 1_000_000
            bucket = self._buckets.pop(caller, None) or TokenCounter(self._limit, self._limit.burst_tokens, now_ns)
            self._buckets[caller] = bucket
            if len(self._buckets) > MOST_CALLERS:
                self._buckets.popitem(last=False)
            if bucket.charge_at(now_ns, 0, 0) < 0:
                return -((now_ns - bucket.due_ns(0)) // 1_000_000)
            bucket.charge(1)
            return 0


TENANT_CHANGE_BURST_SECONDS: Final = 60
"""Each change is a revision, which every history keeps and all jobs read: a tenant may make as many as people make."""


@dataclass(frozen=True, slots=True)
class ServerRates:
    """The rate limits of a server."""

    tokens: RequestRates
    """On the requests with each token."""

    tenant_changes: RequestRates
    """On the changes by the administrators of each tenant."""

    guesses: RequestRates
    """On all requests without a valid token, which may be guesses, together."""

    addresses: RequestRates
    """On what needs no token, of each address."""

    @classmethod
    def of(cls, requests_per_second: int, clock_ms: Callable[[], int]) -> ServerRates:
        """Return the limits of a server where a token may make so many requests per second."""
        tokens, addresses = (RequestRates(requests_per_second, clock_ms=clock_ms) for _ in range(2))
        guesses = RequestRates(max(1, requests_per_second // 5), clock_ms=clock_ms)
        changes = max(1, requests_per_second // 100)
        tenant_changes = RequestRates(changes, burst_seconds=TENANT_CHANGE_BURST_SECONDS, clock_ms=clock_ms)
        return cls(tokens, tenant_changes, guesses, addresses)


_Ticket: TypeAlias = "asyncio.Future[None]"

CALLERS_SHARE: Final = 4
"""One caller has at most a fourth of the turns, and at least one."""


class NoTurnError(Exception):
    """There was no turn for a request; nothing was done."""


class Turns:
    """The turns of a server, for use in one event loop.

    Parameters
    ----------
    at_once
        Number of requests that are worked on at once.
    most_waiting
        Number of requests in the queue.
    wait_seconds
        How long a request waits at most.

    Examples
    --------
    >>> async def order():
    ...     turns, done = Turns(1, most_waiting=9, wait_seconds=5), []
    ...
    ...     async def ask(caller):
    ...         await turns.take(caller)
    ...         done.append(caller)
    ...         turns.give_back(caller)
    ...
    ...     await turns.take("ann")
    ...     waiting = [asyncio.create_task(ask(caller)) for caller in ("ann", "ann", "ann", "bob")]
    ...     await asyncio.sleep(0)
    ...     turns.give_back("ann")
    ...     await asyncio.gather(*waiting)
    ...     return done
    >>> asyncio.run(order())
    ['ann', 'bob', 'ann', 'ann']
    """

    def __init__(self, at_once: int, *, most_waiting: int, wait_seconds: float) -> None:
        self._free = at_once
        self._most_of_one = max(1, at_once // CALLERS_SHARE)
        self._held = Counter[str]()
        self._most_waiting = most_waiting
        self._wait_seconds = wait_seconds
        self._waiting = 0
        self._queues: OrderedDict[str, deque[_Ticket]] = OrderedDict()

    async def take(self, caller: str) -> None:
        """Wait for a turn, which `give_back` ends.

        Raises
        ------
        NoTurnError
            If there is none.
        """
        if self._free and self._held[caller] < self._most_of_one:
            self._begin(caller)
            return
        if self._waiting >= self._most_waiting:
            self._make_room(caller)
        ticket: _Ticket = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(ticket)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_seconds):
                await ticket
        except BaseException as error:
            if ticket.done() and not ticket.cancelled() and ticket.exception() is None:
                self.give_back(caller)  # the turn came at the moment in which the request gave up
            else:
                self._remove(caller, ticket)
            if isinstance(error, TimeoutError):
                raise NoTurnError(f"the request waited {self._wait_seconds} s for a turn") from None
            raise

    def give_back(self, caller: str) -> None:
        """End a caller's turn; it goes to the one whose last turn is longest ago, of those that may have another."""
        self._free += 1
        self._held[caller] -= 1
        self._held += Counter()  # keeps those above 0
        while self._free:
            following = next((each for each in self._queues if self._held[each] < self._most_of_one), None)
            if following is None:
                return
            ticket = self._queues[following][0]
            self._remove(following, ticket)
            if following in self._queues:
                self._queues.move_to_end(following)
            if not ticket.done():
                self._begin(following)
                ticket.set_result(None)

    def _begin(self, caller: str) -> None:
        self._free -= 1
        self._held[caller] += 1

    def _make_room(self, caller: str) -> None:
        longest = max(self._queues, key=lambda other: len(self._queues[other]), default=caller)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(caller, ())) + 1:
            raise NoTurnError(f"{self._waiting} requests wait already")
        ticket = self._queues[longest][-1]
        self._remove(longest, ticket)
        if not ticket.done():
            ticket.set_exception(NoTurnError(f"{self._waiting + 1} requests wait already, and this caller's are most"))

    def _remove(self, caller: str, ticket: _Ticket) -> None:
        queue = self._queues.get(caller)
        if queue is None or ticket not in queue:
            return
        queue.remove(ticket)
        self._waiting -= 1
        if not queue:
            del self._queues[caller]
