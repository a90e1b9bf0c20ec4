"""PIP-322's `AsyncTokenBucket`: a sophisticated counter that knows its clock and may be used by many threads.

It has no side effects outside itself: it tells whether tokens are left, and how long a throttled producer should pause;
it holds nobody. `Pacer` does. There is no scheduler: what time has added is computed by the call that needs it, once a
resolution (16 ms). Between two updates calls are only counted, so a balance is behind by one resolution's tokens at
most; `is_consistent=True` brings it up to date first.

Surprises: a bucket with exactly 0 tokens is empty (for KIP-599 it is not). `consume` looks at no clock: after an idle
hour, what it takes is taken from the tokens that the hour added, before they are cut to the burst. A limit of rate 0
pays nothing, where Pulsar divides by zero.

Balances: what a bucket holds at a time, by the two rules that Pulsar shipped under the name of PIP-322.

A counter is plain arithmetic: no clock, no lock, no thread. Its balance is brought up to date by the call that charges
it, from the time that the caller passes. With `earned` tokens since the last update, `pending` ones charged since and
`n` charged now:

- as shipped since, in Pulsar 4.2 (`TokenCounter`): ``balance = min(balance + earned - pending, burst) - n``;
- as published and in 4.0.0 (`PublishedCounter`): ``balance = min(balance + earned, burst) - pending - n``.

Between two updates a charge is only counted as pending. Tokens may go below zero: what was charged is never forgiven.

Laws: time is paid once and exactly, whatever the steps in which it passes: the part of a token that is not whole yet
is carried (`carry`, in token-nanoseconds, less than a period). A clock that goes back pays nothing, and nothing again
until it has passed the time up to which it has paid.

Surprises, kept because the vectors have them: as published, any number of charges within one resolution see the
balance before them, and a clock that reads 0 counts as one that was never read. Pulsar rounds the carried time up to a
whole nanosecond at every update, and so pays up to one nanosecond twice; this is exact.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal

from spark_throttle.errors import ConfigurationError
from spark_throttle.pace.forks import Staying
from spark_throttle.pace.limit import MOST, NEVER_NS, RESOLUTION_NS, Limit, check_whole


class TokenCounter:
    """The balance of one bucket, as Pulsar 4.2 computes it.

    Examples
    --------
    >>> counter = TokenCounter(Limit.of(10, burst_tokens=100), 0, now_ns=0)
    >>> counter.charge_at(5_000_000_000, 100, 16_000_000)
    -50
    >>> counter.due_ns(1)
    10100000000
    """

    __slots__ = ("advanced_to_ns", "balance_tokens", "carry", "limit", "pending_tokens")

    def __init__(self, limit: Limit, balance_tokens: int, now_ns: int) -> None:
        self.limit = limit
        self.balance_tokens = balance_tokens
        """As of the last update."""
        self.pending_tokens = 0
        """What was charged since."""
        self.advanced_to_ns = now_ns
        """The time up to which tokens were added."""
        self.carry = 0
        """Token-nanoseconds that are no whole token yet: `limit.period_ns` of them are one."""

    def charge(self, tokens: int) -> None:
        """Count tokens as pending; no time is looked at."""
        self.pending_tokens += tokens

    def charge_at(self, now_ns: int, tokens: int, resolution_ns: int, *, is_consistent: bool = False) -> int:
        """Charge tokens, update the balance if the last update is longer ago than the resolution, and return it.

        What is returned includes all that was charged; what time has added since the last update may be missing from
        it, for one resolution at most; nothing is missing if the resolution is 0, or the view must be consistent.
        """
        earned = self._earn(now_ns, 0 if is_consistent else resolution_ns)
        if earned:
            held = self.balance_tokens + earned - self.pending_tokens
            self.pending_tokens = 0
            self.balance_tokens = min(held, self.limit.burst_tokens) - tokens
            return self.balance_tokens
        self.pending_tokens += tokens
        return self.balance_tokens - self.pending_tokens

    def pay(self, now_ns: int) -> None:
        """Add what time has brought, to the last whole token: `charge_at` without tokens, and without a resolution."""
        limit = self.limit
        credit = (now_ns - self.advanced_to_ns) * limit.tokens + self.carry
        if credit >= limit.period_ns:
            self.advanced_to_ns = now_ns
            earned, self.carry = divmod(credit, limit.period_ns)
            self.balance_tokens = min(self.balance_tokens + earned - self.pending_tokens, limit.burst_tokens)
            self.pending_tokens = 0

    def refund(self, tokens: int) -> None:
        """Give tokens back that were charged and not used; no more than fit."""
        held = self.balance_tokens - self.pending_tokens + tokens
        self.pending_tokens = 0
        self.balance_tokens = min(held, max(self.balance_tokens, self.limit.burst_tokens))

    def due_ns(self, required_tokens: int) -> int:
        """Return the first time at which an update finds so many tokens; `NEVER_NS` if time alone never brings them."""
        limit = self.limit
        missing = required_tokens - self.balance_tokens + self.pending_tokens
        if missing <= 0:
            return self.advanced_to_ns
        if limit.tokens == 0 or required_tokens > limit.burst_tokens:
            return NEVER_NS
        return self.advanced_to_ns - (self.carry - missing * limit.period_ns) // limit.tokens

    def set_limit(self, limit: Limit, now_ns: int) -> None:
        """Change the limit: the time until now is paid at the old one, and the balance is cut to the new burst."""
        self.pay(now_ns)
        old, elapsed_ns = self.limit, max(0, now_ns - self.advanced_to_ns)
        self.carry = (self.carry + elapsed_ns * old.tokens) * limit.period_ns // old.period_ns
        self.advanced_to_ns += elapsed_ns
        self.balance_tokens = min(self.balance_tokens - self.pending_tokens, limit.burst_tokens)
        self.pending_tokens = 0
        self.limit = limit

    def set_limit_unpaid(self, limit: Limit) -> None:
        """Change the limit as Pulsar does: the time since the last update will be paid at the new one."""
        old = self.limit
        self.carry = self.carry * limit.tokens // old.tokens if old.tokens else 0
        self.limit = limit

    def _earn(self, now_ns: int, resolution_ns: int) -> int:
        """Return the tokens that time has added, if an update is due; then they are counted as added."""
        limit, elapsed_ns = self.limit, now_ns - self.advanced_to_ns
        if limit.tokens == 0:
            self.advanced_to_ns = max(now_ns, self.advanced_to_ns)
            return 0
        credit = elapsed_ns * limit.tokens + self.carry
        if limit.period_ns // limit.tokens > resolution_ns:
            if credit < limit.period_ns:  # a token takes longer than the resolution, and none is whole
                return 0
        elif elapsed_ns <= resolution_ns:
            return 0
        self.advanced_to_ns = now_ns
        earned, self.carry = divmod(credit, limit.period_ns)
        return earned


class PublishedCounter(TokenCounter):
    """The balance of one bucket as PIP-322 was published, and Pulsar 4.0.0 computed it.

    Examples
    --------
    >>> counter = PublishedCounter(Limit.of(10, burst_tokens=100), 100, now_ns=16_000_000)
    >>> counter.charge_at(16_000_000, 0, 16_000_000)
    100
    >>> [counter.charge_at(17_000_000, 90, 16_000_000) for _ in range(3)]  # one tick: each sees the 100
    [10, 10, 10]
    >>> counter.charge_at(17_000_000, 0, 16_000_000, is_consistent=True)
    -170
    """

    __slots__ = ("_tick",)

    def __init__(self, limit: Limit, balance_tokens: int, now_ns: int) -> None:
        super().__init__(limit, balance_tokens, now_ns)
        self._tick = 0

    def charge_at(self, now_ns: int, tokens: int, resolution_ns: int, *, is_consistent: bool = False) -> int:
        """Charge tokens, update the balance if this tick has not yet, and return the balance as far as it is known."""
        tick = now_ns // resolution_ns if resolution_ns else 0
        if 0 < tick <= self._tick and not is_consistent:
            self.pending_tokens += tokens
            return self.balance_tokens - tokens
        self._tick = max(tick, self._tick)
        earned = self._earn(now_ns, 0)
        held = min(self.balance_tokens + earned, self.limit.burst_tokens)
        self.balance_tokens = held - self.pending_tokens - tokens
        self.pending_tokens = 0
        return self.balance_tokens

    def _earn(self, now_ns: int, resolution_ns: int) -> int:
        if self.advanced_to_ns == 0:
            self.advanced_to_ns = now_ns
            return 0
        return super()._earn(now_ns, resolution_ns)


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
