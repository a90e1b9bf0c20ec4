"""The one fair queue: who may go now, who is held, and when that may change.

A producer is held while any of its levels throttles it (PIP-322's throttle count is above zero), and goes when none
does. Going charges all its levels at once. The rule, which the tests' oracle executes word by word:

    each waiting place stands with one level, the first of its levels that throttled it when it was looked at last; at
    any time, look at the oldest place whose level throttles no longer; if none of its levels does, its oldest call
    goes, and the place goes to the back if it has another; else it stands with the level that does; look again,
    until no place is left to be looked at.

Two levels that are free in turn, but never at the same moment, would hold a place of both for ever. So a level whose
place must move on keeps a turn for it: it charges the call's first item then, and is asked no more. One place has a
level's kept turn at a time, and only if the other levels are due within a second.

A turn takes a logarithm of the waiting places: they stand in a heap by level, and levels in a heap by due time.

Laws: a newcomer is judged after those who wait, so it overtakes only places that cannot go. A decided call was charged
exactly once, and a withdrawn one gets it back. Nothing here waits: `Driver`s bring threads and event loops back when
the next level is due. There is no thread of its own.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Final
from weakref import WeakSet

from spark_throttle.errors import PacerClosedError
from spark_throttle.pace.clock import Clock
from spark_throttle.pace.forks import outlive_forks
from spark_throttle.pace.level_state import Driver, LevelState, Place, Request, passing
from spark_throttle.pace.limit import NEVER_NS, NS_PER_SECOND

_SOON_NS: Final = NS_PER_SECOND
"""A level keeps its turn only for a place that its other levels will let go so soon, as far as is known."""


class TurnQueue:
    """The levels of one pacer and who waits for them; all but `abandon` and `has_work` is used under `lock`."""

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.Lock()
        self.clock = clock
        self.drivers: list[Driver] = []
        self.is_closed = False
        self._levels: WeakSet[LevelState] = WeakSet()
        self._ages = count(1)
        self._entries = count(1)
        self._due: list[tuple[int, int, LevelState]] = []
        self._abandoned: deque[Request] = deque()
        outlive_forks(self)

    def add(self, level: LevelState) -> None:
        """Take a level in."""
        self._levels.add(level)

    # ------------------------------------------------------------------------------------------------- calls

    def try_now(self, place: Place, sums: list[int], now_ns: int, missing: Sequence[LevelState] | None = None) -> int:
        """Let through what may go now, and return how many items that is; 0 if the place is held.

        Parameters
        ----------
        missing
            Those of the place's levels that have not let it through yet; all, unless given.
        """
        if self._abandoned or (self._due and self._due[0][0] <= now_ns):
            self.serve(now_ns)
        if self.is_closed:
            raise PacerClosedError
        levels = place.levels if missing is None else missing
        for level in levels:  # one that waits is held by one of them
            if level.throttles_at(now_ns):
                return 0
        passed = 1 if len(sums) == 1 else passing(sums, min([level.held_tokens for level in levels]))
        tokens = sums[passed - 1]
        for level in levels:
            level.charge(tokens)
        for level in levels:
            if level.worth_tokens > 1:
                level.hand_out(tokens)
        return passed

    @property
    def has_work(self) -> bool:
        """Whether a call may find more to do than its own; needs no lock."""
        return bool(self._due or self._abandoned or self.is_closed)

    def give_back(self, levels: Iterable[LevelState], tokens: int, now_ns: int) -> None:
        """Give levels back what a call has taken of them that does not go."""
        self._refund(levels, tokens, now_ns)
        self.serve(now_ns)

    def enqueue(self, request: Request, now_ns: int) -> None:
        """Let a call wait for its turn; `try_now` has just returned 0 for it."""
        place = request.place
        place.requests[request] = None
        if request.driver is not None:
            request.driver.waiting += 1
        if place.held_by is None:
            place.age = next(self._ages)
            level = place.throttling_at(now_ns)
            assert level is not None  # noqa: S101 - else the call would have gone
            self._hold(place, level, now_ns)
        self._arm()

    def withdraw(self, request: Request, now_ns: int) -> None:
        """Take a call back that nobody waits for any more; what it was charged is given back."""
        self._take_back(request, now_ns)
        self.serve(now_ns)

    def abandon(self, request: Request) -> None:
        """Withdraw a call at the next opportunity: who is collected may interrupt whoever holds the lock."""
        self._abandoned.append(request)

    def look_again(self, level: LevelState, now_ns: int) -> None:
        """Serve those whom a level holds by its new limit."""
        if level.oldest() is not None:
            self._expect(level, now_ns)
        self.serve(now_ns)

    def close(self) -> None:
        """Let nobody through any more, and tell so those who wait."""
        self.is_closed = True
        for request in self._dismissed():
            request.error = PacerClosedError()
            self._decided(request)

    def begin_in_child(self) -> None:
        """Forget all who wait: the process was forked, and they wait in its parent."""
        self._abandoned.clear()
        for _ in self._dismissed():
            pass
        for driver in self.drivers:
            driver.forget()

    def _dismissed(self) -> Iterator[Request]:
        """Let every place go, and yield their calls in order."""
        now_ns = self.clock.now_ns()
        places: dict[int, Place] = {}
        for level in self._levels:
            level.balance_at(now_ns)  # which closes the allowance
            level.queued_due_ns = NEVER_NS
            while (place := level.oldest()) is not None:
                level.let_go(place)
                places[place.age] = place
        for _, place in sorted(places.items()):
            self._refund(_forget_kept(place), next(iter(place.requests)).sums[0], now_ns)
            while place.requests:
                request, _ = place.requests.popitem(last=False)
                yield request
        self._due.clear()

    # ------------------------------------------------------------------------------------------------- turns

    def serve(self, now_ns: int) -> None:
        """Give a turn to every place that may go, in order, and arrange for the next time."""
        while self._abandoned:
            self._take_back(self._abandoned.popleft(), now_ns)
        free = self._freed(now_ns)
        while free:
            _, level = heapq.heappop(free)
            if level.is_throttling:  # a turn before this one has emptied it
                self._expect(level, now_ns)
                continue
            place = level.oldest()
            if place is not None:
                level.let_go(place)
                other = place.throttling_at(now_ns)
                if other is not None:
                    _keep_turn(place, level, now_ns)
                    self._hold(place, other, now_ns)
                else:
                    self._give_turn(place, level, now_ns)
            if (following := level.oldest()) is not None:
                heapq.heappush(free, (following.age, level))
        self._arm()

    def _freed(self, now_ns: int) -> list[tuple[int, LevelState]]:
        """Return a heap of the levels that hold places and throttle no longer, by the age of their oldest place."""
        found: dict[LevelState, int] = {}
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, level = heapq.heappop(self._due)
            if level.queued_due_ns == due_ns:
                level.queued_due_ns = NEVER_NS
            place = level.oldest()
            if place is None:
                continue
            if level.throttles_at(now_ns):
                self._expect(level, now_ns)
            else:
                found[level] = place.age
        free = [(age, level) for level, age in found.items()]
        heapq.heapify(free)
        return free

    def _give_turn(self, place: Place, level: LevelState, now_ns: int) -> None:
        """Let the oldest call of a place through; `level` has just stopped holding it."""
        request, _ = place.requests.popitem(last=False)
        self._let_through(request)
        if place.requests:
            place.age = next(self._ages)
            throttling = place.throttling_at(now_ns)
            if throttling is None:
                level.hold(place)  # which `serve` looks at again
            else:
                self._hold(place, throttling, now_ns)
        if not self._decided(request):
            self._take_back(request, now_ns)

    def _let_through(self, request: Request) -> None:
        place = request.place
        levels = [level for level in place.levels if level not in place.kept]
        request.passed = 1 if place.kept else passing(request.sums, min(level.held_tokens for level in levels))
        request.charged_tokens = request.sums[request.passed - 1]
        for level in levels:
            level.charge(request.charged_tokens)
        _forget_kept(place)

    def _decided(self, request: Request) -> bool:
        """Wake who waits for a decided call, and return whether anyone does."""
        if request.driver is not None:
            request.driver.waiting -= 1
        return request.wake is None or request.wake()

    def _take_back(self, request: Request, now_ns: int) -> None:
        place = request.place
        if request in place.requests:
            if place.kept and request is next(iter(place.requests)):
                self._refund(_forget_kept(place), request.sums[0], now_ns)
            del place.requests[request]
            if request.driver is not None:
                request.driver.waiting -= 1
            if not place.requests and place.held_by is not None:
                place.held_by.forget(place)
        elif request.passed:
            request.passed = 0
            self._refund(place.levels, request.charged_tokens, now_ns)

    def _refund(self, levels: Iterable[LevelState], tokens: int, now_ns: int) -> None:
        for level in levels:
            level.refund(tokens, now_ns)
            if level.oldest() is not None:
                self._expect(level, now_ns)

    # ------------------------------------------------------------------------------------------------- times

    @property
    def next_due_ns(self) -> int:
        """When the next level that holds places stops throttling; `NEVER_NS` if time alone changes nothing."""
        return self._due[0][0] if self._due else NEVER_NS

    def _hold(self, place: Place, level: LevelState, now_ns: int) -> None:
        level.hold(place)
        self._expect(level, now_ns)

    def _expect(self, level: LevelState, now_ns: int) -> None:
        """Arrange that `serve` looks at a level when it stops throttling."""
        due_ns = level.due_ns if level.is_throttling else now_ns
        if due_ns < NEVER_NS and due_ns != level.queued_due_ns:
            level.queued_due_ns = due_ns
            heapq.heappush(self._due, (due_ns, next(self._entries), level))
            if len(self._due) > 64 + 2 * len(self._levels):  # most are of limits that have changed since
                self._due = [entry for entry in self._due if entry[0] == entry[2].queued_due_ns]
                heapq.heapify(self._due)

    def _arm(self) -> None:
        due_ns = self.next_due_ns
        for driver in self.drivers:
            if driver.waiting and due_ns < driver.armed_ns:
                driver.arm(due_ns)


def _keep_turn(place: Place, level: LevelState, now_ns: int) -> None:
    """Charge a place at a level that is free, while others hold it, if the level can keep a turn for it."""
    others = [each for each in place.levels if each is not level and each not in place.kept]
    is_soon = all(not each.is_throttling or each.due_ns - now_ns <= _SOON_NS for each in others)
    if is_soon and not level.is_turn_kept:
        level.is_turn_kept = True
        level.charge(next(iter(place.requests)).sums[0])
        place.kept.append(level)


def _forget_kept(place: Place) -> list[LevelState]:
    """Return the levels that have kept a turn for a place, which do so no longer."""
    kept, place.kept = place.kept, []
    for level in kept:
        level.is_turn_kept = False
    return kept
