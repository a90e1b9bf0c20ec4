"""PIP-322's `AsyncTokenBucket`: a sophisticated counter that knows its clock and may be used by many threads.

It has no side effects outside itself: it tells whether tokens are left, and how long a throttled producer should pause;
it holds nobody. `Pacer` does. There is no scheduler: what time has added is computed by the call that needs it, once a
resolution (16 ms). Between two updates calls are only counted, so a balance is behind by one resolution's tokens at
most; `is_consistent=True` brings it up to date first.

Surprises: a bucket with exactly 0 tokens is empty (for KIP-599 it is not). `consume` looks at no clock: after an idle
hour, what it takes is taken from the tokens that the hour added, before they are cut to the burst. A limit of rate 0
pays nothing, where Pulsar divides by zero.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal

from spark_throttle.errors import ConfigurationError
from spark_throttle.pace.limit import MOST, NEVER_NS, RESOLUTION_NS, Limit, check_whole
from spark_throttle.pace.staying import Staying
from spark_throttle.pace.token_counter import PublishedCounter, TokenCounter

Rule = Literal["shipped", "published"]

_COUNTERS: Final[dict[Rule, type[TokenCounter]]] = {"shipped": TokenCounter, "published": PublishedCounter}


class AsyncTokenBucket(Staying):
    """A bucket that is charged now and asked now; whoever finds it empty pauses for `throttle_time_ns`.

    Parameters
    ----------
    limit
        Its rate, burst and target.
    initial_tokens
        What it holds at first: its burst, unless given.
    resolution_ns
        How long the balance may go without an update: 16 ms, as PIP-322 has it; 0 updates it at each call.
    rule
        ``"shipped"``, as Pulsar 4.2 computes, or ``"published"``, as in PIP-322 and Pulsar 4.0.0.
    clock_ns
        A monotonic clock in nanoseconds.

    Examples
    --------
    Pulsar's own test: 10 a second, at most 100, empty at first.

    >>> from spark_throttle.pace import Limit, ManualClock
    >>> clock = ManualClock(100_000_000_000)
    >>> bucket = AsyncTokenBucket(Limit.of(10, burst_tokens=100), initial_tokens=0, clock_ns=clock.now_ns)
    >>> clock.advance(5_000_000_000)
    >>> bucket.balance_tokens()
    50
    >>> bucket.consume_and_check(100)
    False
    >>> bucket.balance_tokens(), bucket.throttle_time_ns() // 1_000_000
    (-50, 5100)
    """

    __slots__ = ("_clock_ns", "_counter", "_lock", "_resolution_ns", "_rule")

    def __init__(
        self,
        limit: Limit,
        *,
        initial_tokens: int | None = None,
        resolution_ns: int = RESOLUTION_NS,
        rule: Rule = "shipped",
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        check_whole("resolution_ns", resolution_ns, 0)
        if initial_tokens is not None:
            check_whole("initial_tokens", initial_tokens, 0)
        if rule not in _COUNTERS:
            raise ConfigurationError(f"rule is {rule!r}; give one of {', '.join(map(repr, _COUNTERS))}")
        initial = limit.burst_tokens if initial_tokens is None else initial_tokens
        self._lock = threading.Lock()
        self._clock_ns = clock_ns
        self._resolution_ns = resolution_ns
        self._rule: Rule = rule
        now_ns = clock_ns()
        self._counter = _COUNTERS[rule](limit, initial, now_ns)
        self._counter.charge_at(now_ns, 0, resolution_ns)  # as published, the first tick is over with this

    @property
    def limit(self) -> Limit:
        """The limit in force."""
        return self._counter.limit

    def set_limit(self, limit: Limit, *, is_past_paid: bool = True) -> None:
        """Change rate, burst and target.

        Parameters
        ----------
        is_past_paid
            Whether the time until now is paid at the old rate first. Pulsar does not: it pays the time since the last
            update at the new rate.
        """
        with self._lock:
            if is_past_paid:
                self._counter.set_limit(limit, self._clock_ns())
            else:
                self._counter.set_limit_unpaid(limit)

    def consume(self, tokens: int = 1) -> None:
        """Charge tokens; the balance may go below zero.

        Raises
        ------
        ConfigurationError
            If `tokens` is no whole number or below 0.
        """
        if type(tokens) is not int or not 0 <= tokens <= MOST:
            check_whole("tokens", tokens, 0)
        with self._lock:
            if self._rule == "shipped":
                self._counter.charge(tokens)
            else:
                self._counter.charge_at(self._clock_ns(), tokens, self._resolution_ns)

    def consume_and_check(self, tokens: int = 1) -> bool:
        """Charge tokens, and return whether any are left: if not, their producer should be throttled.

        Raises
        ------
        ConfigurationError
            If `tokens` is no whole number or below 0.
        """
        if type(tokens) is not int or not 0 <= tokens <= MOST:
            check_whole("tokens", tokens, 0)
        with self._lock:
            return self._counter.charge_at(self._clock_ns(), tokens, self._resolution_ns) > 0

    def contains_tokens(self, *, is_consistent: bool = False) -> bool:
        """Return whether any tokens are left."""
        return self.balance_tokens(is_consistent=is_consistent) > 0

    def balance_tokens(self, *, is_consistent: bool = False) -> int:
        """Return the balance, below zero if tokens are owed."""
        with self._lock:
            return self._counter.charge_at(self._clock_ns(), 0, self._resolution_ns, is_consistent=is_consistent)

    def throttle_time_ns(self, required_tokens: int | None = None) -> int:
        """Return how long to pause until the bucket holds the target, or so many tokens; 0 if it holds them.

        Returns
        -------
        int
            Rounded down, as Pulsar does: ask `contains_tokens` again after the pause. `NEVER_NS` if the rate is 0. As
            published, a bucket with any token needs no pause, although it may be below its target.
        """
        if required_tokens is not None:
            check_whole("required_tokens", required_tokens, 0)
        with self._lock:
            is_published = self._rule == "published"
            now_ns = self._clock_ns()
            balance = self._counter.charge_at(now_ns, 0, self._resolution_ns, is_consistent=is_published)
            limit = self._counter.limit
        enough = limit.target_tokens if required_tokens is None else required_tokens
        if balance >= enough or (is_published and required_tokens is None and balance > 0):
            return 0
        return (enough - balance) * limit.period_ns // limit.tokens if limit.tokens else NEVER_NS
