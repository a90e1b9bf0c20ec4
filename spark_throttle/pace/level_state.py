"""A level holds a balance, knows whether it throttles and whom it holds, and hands out tokens in advance.

All of it is read and changed under the lock of the level's `TurnQueue`, but for one thing: the allowance. It is an
iterator of calls that are let through without lock and clock, by `next`, which is atomic while there is a global
interpreter lock: a call that gets one from all its levels is admitted. Without that lock nothing is handed out this
way. An allowance is for calls of one size: one token, or as many as each of the last two had. Where sizes change, calls
take from `budget_tokens` instead, with the lock and without a clock. So a level's balance is updated once for at most
one resolution's worth of tokens. This is PIP-322's idea, that between two updates calls are only counted, in the form
that is cheapest in Python.

Laws: whoever takes from what was closed gets nothing. What was taken is charged when it is closed, after time has been
paid and cut to the burst: as if all of it were taken at that moment. So a level never gives out more than
``burst + rate * time`` and one charge, whenever its tokens were really taken. A level that throttles has handed out
nothing, so nobody overtakes those who wait.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final, Protocol

from spark_throttle.errors import ThrottleError
from spark_throttle.pace.limit import NEVER_NS, Limit
from spark_throttle.pace.token_bucket import TokenCounter

NOTHING: Final[Iterator[bool]] = iter(())
_CALL: Final = True
_IS_NEXT_ATOMIC: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
_MOST_IN_ADVANCE: Final = 256
"""How many calls may go by without a look at the clock: an update costs no more than a few of them."""


class LevelState:
    """A level as its queue sees it."""

    __slots__ = (
        "__weakref__", "_call_tokens", "_handed_out", "_resolution_ns", "_stale", "allowance", "allowances",
        "budget_tokens", "counter", "due_ns", "held", "is_throttling", "is_turn_kept", "name", "queued_due_ns",
        "worth_tokens",
    )  # fmt: skip

    def __init__(self, name: str, limit: Limit, initial_tokens: int, *, now_ns: int, resolution_ns: int) -> None:
        self.name = name
        self.counter = TokenCounter(limit, initial_tokens, now_ns)
        self.held: list[tuple[int, Place]] = []
        """A heap, by age, of the places that this level holds: each waiting place stands with one of the levels that
        throttle it. An entry whose place has left or has another age is void."""
        self.allowance: Iterator[bool] = NOTHING
        """Calls of one token that are let through in advance; never while there is a budget."""
        self.allowances: dict[int, Iterator[bool]] = {}
        """The same by the tokens of a call; at most one size at a time."""
        self.budget_tokens = 0
        """Tokens handed out in advance, to be counted."""
        self.is_throttling = False
        self.is_turn_kept = False
        """Whether a place that another level holds has this level's turn already; one has it at a time."""
        self.due_ns = NEVER_NS
        """When a level that throttles will stop."""
        self.queued_due_ns = NEVER_NS
        """The due time for which the queue has an entry."""
        self._call_tokens = 1
        """The tokens of a call of the allowance; or if there is none, of the last call that asked for one."""
        self._handed_out = 0
        self._stale = 0
        self._resolution_ns = resolution_ns
        self.worth_tokens = 0
        """What one resolution adds: no more is handed out in advance."""
        self._weigh()
        self._judge()

    # ------------------------------------------------------------------------------------------------- tokens

    def balance_at(self, now_ns: int) -> int:
        """Return the balance at a time, after the allowance was closed."""
        self.counter.pay(now_ns)
        if self._handed_out:
            allowances, self.allowances, self.allowance = self.allowances, {}, NOTHING
            left = sum(len(tuple(allowance)) for allowance in allowances.values()) * self._call_tokens
            taken = self._handed_out - left - self.budget_tokens
            self._handed_out = self.budget_tokens = 0
            self.charge(taken)
        return self.held_tokens

    def throttles_at(self, now_ns: int) -> bool:
        """Return whether the level throttles at a time; one whose time has come no longer does."""
        if self._handed_out:
            self.balance_at(now_ns)
        else:
            self.counter.pay(now_ns)
        if self.is_throttling and now_ns >= self.due_ns:
            self._judge()
        return self.is_throttling

    def charge(self, tokens: int) -> None:
        """Charge tokens at the time of the last update; without any left, the level throttles."""
        counter = self.counter
        counter.pending_tokens += tokens
        if counter.balance_tokens <= counter.pending_tokens:
            self._judge()

    def refund(self, tokens: int, now_ns: int) -> None:
        """Give back what was charged and not used."""
        self.balance_at(now_ns)
        self.counter.refund(tokens)
        self._judge()

    def give_back(self, tokens: int, allowance: Iterator[bool]) -> bool:
        """Take a call of an allowance back; False if that was closed since, so that the call was charged.

        Until then it was not charged, and made nothing throttle.
        """
        if self.allowances.get(tokens) is not allowance:
            return False
        self._handed_out -= tokens
        return True

    def set_limit(self, limit: Limit, now_ns: int) -> None:
        """Change the limit: time until now is paid at the old one, and debt stays."""
        self.balance_at(now_ns)
        self.counter.set_limit(limit, now_ns)
        self._weigh()
        self._judge()

    def hand_out(self, tokens_of_call: int) -> None:
        """Open an allowance or a budget, for calls of as many tokens as the last one, if the balance is worth one."""
        is_repeated, self._call_tokens = tokens_of_call in (1, self._call_tokens), tokens_of_call
        tokens = min(self.held_tokens, self.worth_tokens)
        if self.is_throttling or tokens <= tokens_of_call:
            return
        if is_repeated and tokens_of_call and _IS_NEXT_ATOMIC:
            calls = min(tokens // tokens_of_call, _MOST_IN_ADVANCE)
            self._handed_out = calls * tokens_of_call
            allowance = repeat(_CALL, calls)
            self.allowances = {tokens_of_call: allowance}
            if tokens_of_call == 1:
                self.allowance = allowance
        else:
            self._handed_out = self.budget_tokens = min(tokens, max(tokens_of_call, 1) * _MOST_IN_ADVANCE)

    def _weigh(self) -> None:
        limit = self.counter.limit
        self.worth_tokens = self._resolution_ns * limit.tokens // limit.period_ns

    @property
    def held_tokens(self) -> int:
        """What it held at the last update, below zero if tokens are owed; without what was handed out."""
        return self.counter.balance_tokens - self.counter.pending_tokens

    def _judge(self) -> None:
        """Decide whether the level throttles: from an empty balance on, until it holds its target."""
        counter = self.counter
        held, target = self.held_tokens, counter.limit.target_tokens
        self.is_throttling = held <= 0 or (self.is_throttling and held < target)
        self.due_ns = counter.due_ns(target) if self.is_throttling else NEVER_NS

    # ------------------------------------------------------------------------------------------------- who is held

    def hold(self, place: Place) -> None:
        """Hold a place by this level."""
        place.held_by = self
        heapq.heappush(self.held, (place.age, place))

    def oldest(self) -> Place | None:
        """Return the place that has waited longest of those that are held."""
        while self.held:
            age, place = self.held[0]
            if place.held_by is self and place.age == age:
                return place
            heapq.heappop(self.held)
            self._stale -= 1
        return None

    def let_go(self, place: Place) -> None:
        """Hold the oldest place no longer."""
        heapq.heappop(self.held)
        place.held_by = None

    def forget(self, place: Place) -> None:
        """Hold a place no longer, wherever it stands: its entry is void, and dropped before most of them are."""
        place.held_by = None
        self._stale += 1
        if self._stale > 16 and 2 * self._stale > len(self.held):
            self.held = [(age, each) for age, each in self.held if each.held_by is self and each.age == age]
            heapq.heapify(self.held)
            self._stale = 0


class Place:
    """Where a producer stands, and what it asks for.

    A producer has one place in the queue, however many of its calls wait: each turn lets one of them through, and then
    the place goes to the back. So a turn goes round between producers, not between calls.
    """

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
