"""The queue decides as its rule, walked through plainly, after any history; and every level keeps its limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, combinations_with_replacement
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_throttle.pace import Limit, ManualClock
from spark_throttle.pace.level_state import LevelState, Place, Request
from spark_throttle.pace.turn_queue import TurnQueue
from tests.pace.slow_pacer import SlowLevel, SlowPacer, SlowProducer

MS = 1_000_000

limits = st.builds(
    lambda tokens, burst, target: Limit.of(tokens, burst_tokens=burst, target_tokens=target),
    st.sampled_from([0, 3, 7, 10, 30, 100, 100]), st.sampled_from([1, 1, 2, 5, 50]), st.sampled_from([0, 1, 2, 20]),
)  # fmt: skip
items = st.lists(st.sampled_from([0, 1, 1, 1, 2, 9]), min_size=1, max_size=3)
wait = st.tuples(st.just("wait"), st.integers(0, 5), items)
advance = st.tuples(st.just("advance"), st.sampled_from([0, 1, 7 * MS, 16 * MS, 43 * MS, 100 * MS, 10**9]))
step = st.one_of(
    wait, wait, wait, advance, advance, advance,
    st.tuples(st.just("try"), st.integers(0, 5), items),
    st.tuples(st.just("withdraw"), st.integers(0, 20)),
    st.tuples(st.just("set_limit"), st.integers(0, 2), limits),
)  # fmt: skip
memberships = st.lists(st.sets(st.integers(0, 2), min_size=1, max_size=3), min_size=6, max_size=6)
histories = st.lists(step, min_size=5, max_size=60)


@dataclass
class Both:
    """The queue and its oracle, side by side."""

    clock: ManualClock
    queue: TurnQueue
    levels: list[LevelState]
    places: list[Place]
    slow: SlowPacer
    calls: list[Request | None]
    turns: list[tuple[int, int]]

    @classmethod
    def of(cls, of_levels: list[Limit], members: list[set[int]]) -> Both:
        clock = ManualClock()
        queue = TurnQueue(clock)
        levels = [
            LevelState(str(at), limit, limit.burst_tokens, now_ns=0, resolution_ns=0)
            for at, limit in enumerate(of_levels)
        ]
        for level in levels:
            queue.add(level)
        slow_levels = [SlowLevel(limit, limit.burst_tokens, 0) for limit in of_levels]
        slow = SlowPacer(slow_levels, [SlowProducer([slow_levels[at] for at in sorted(each)]) for each in members])
        places = [Place(tuple(levels[at] for at in sorted(each))) for each in members]
        return cls(clock, queue, levels, places, slow, [], [])

    def run(self, name: str, *given: Any) -> None:
        steps: dict[str, Callable[..., None]] = {
            "advance": self.advance, "try": partial(self.call, waits=False), "wait": partial(self.call, waits=True),
            "withdraw": self.withdraw, "set_limit": self.set_limit,
        }  # fmt: skip
        steps[name](*given)
        self.compare()

    def advance(self, by_ns: int) -> None:
        self.clock.advance(by_ns)
        self.queue.serve(self.clock.now_ns())
        self.slow.advance(self.clock.now_ns())

    def call(self, at: int, tokens: list[int], *, waits: bool) -> None:
        now_ns, number = self.clock.now_ns(), len(self.calls)
        sums = list(accumulate(tokens))
        passed = self.queue.try_now(self.places[at], sums, now_ns)
        assert passed == self.slow.call(self.slow.producers[at], number, tokens, waits=waits)
        request = None
        if waits and not passed:
            request = Request(self.places[at], sums, partial(self.note, number))
            self.queue.enqueue(request, now_ns)
        self.calls.append(request)

    def note(self, number: int) -> bool:
        request = self.calls[number]
        assert request is not None
        self.turns.append((number, request.passed))
        return True

    def withdraw(self, number: int) -> None:
        if number < len(self.calls) and (request := self.calls[number]) is not None:
            self.calls[number] = None
            self.queue.withdraw(request, self.clock.now_ns())
            self.slow.withdraw(number)

    def set_limit(self, at: int, limit: Limit) -> None:
        now_ns = self.clock.now_ns()
        self.levels[at].set_limit(limit, now_ns)
        self.queue.look_again(self.levels[at], now_ns)
        self.slow.levels[at].set_limit(limit)
        self.slow.walk()

    def compare(self) -> None:
        now_ns = self.clock.now_ns()
        assert self.turns == self.slow.turns
        for mine, slow in zip(self.levels, self.slow.levels, strict=True):
            assert (mine.balance_at(now_ns), mine.throttles_at(now_ns)) == (slow.balance, slow.is_throttling)
        waiting = sorted((place.age, at) for at, place in enumerate(self.places) if place.held_by is not None)
        assert [at for _, at in waiting] == [self.slow.producers.index(each) for each in self.slow.queue]


TEN_OF_ONE = Limit.of(10, burst_tokens=1)
in_turn = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 5), st.sampled_from([[1], [1], [2], [1, 3]])),
    st.tuples(st.just("wait"), st.integers(3, 5), st.just([1])),
    st.tuples(st.just("advance"), st.sampled_from([11 * MS, 33 * MS, 34 * MS, 50 * MS, 100 * MS])),
    st.tuples(st.just("advance"), st.sampled_from([33 * MS, 34 * MS, 50 * MS])),
    st.tuples(st.just("withdraw"), st.integers(3, 40)),
    st.tuples(st.just("set_limit"), st.integers(0, 2), st.sampled_from([TEN_OF_ONE, Limit.of(1, target_tokens=1)])),
)


@pytest.mark.slow
@settings(max_examples=max(150, settings().max_examples))
@given(st.lists(in_turn, min_size=10, max_size=70))
def test_queue_decides_as_its_rule_where_levels_are_free_in_turn(history: list[tuple[Any, ...]]) -> None:
    both = Both.of([TEN_OF_ONE] * 3, [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
    for at in range(3):
        both.run("try", at, [1])
        both.run("advance", 33 * MS)
    for each in history:
        both.run(*each)


def test_levels_that_are_never_free_at_one_moment_do_not_hold_a_producer_of_both_for_ever() -> None:
    both = Both.of([Limit.of(10, burst_tokens=1)] * 3, [{0}, {1}, {0, 1}, {0}, {1}, {0, 1}])
    both.run("try", 0, [1])
    both.run("advance", 50 * MS)
    both.run("try", 1, [1])
    for at in (0, 1) * 20:
        both.run("wait", at, [1])
    waiting = len(both.calls)
    both.run("wait", 2, [1])
    for _ in range(8):  # the one frees at 100 ms, 200 ms, …, the other at 150 ms, 250 ms, …
        both.run("advance", 50 * MS)
    assert waiting in [number for number, _ in both.turns]


TEN = Limit.of(10, target_tokens=1)


@pytest.mark.slow
@example(
    [TEN] * 3, [{0}, {0}, {0, 1}, {1}, {2}, {2}],
    [("try", 0, [10]), ("wait", 0, [1]), ("wait", 0, [1]), ("wait", 1, [1]), ("wait", 2, [1]), ("advance", 10**9)],
)  # fmt: skip
@settings(max_examples=max(150, settings().max_examples))
@given(st.lists(limits, min_size=3, max_size=3), memberships, histories)
def test_queue_decides_as_its_rule_and_no_level_gives_out_more_than_its_largest_burst_and_its_rates_and_one_charge(
    of_levels: list[Limit], members: list[set[int]], history: list[tuple[Any, ...]]
) -> None:
    """After every step the queue is compared with its rule, and in the end the windows of every level are added up."""
    both = Both.of(of_levels, members)
    for each in history:
        both.run(*each)
    largest = largest_item(history)
    for at, level in enumerate(both.slow.levels):  # whose charges are the queue's, as `run` has compared
        charges = level.charges
        bursts = [
            of_levels[at].burst_tokens,
            *(given[1].burst_tokens for name, *given in history if name == "set_limit"),
        ]
        for first, last in combinations_with_replacement(range(len(charges)), 2):
            begun_ns, ended_ns = charges[first].at_ns, charges[last].at_ns
            earned = sum(made for at_ns, made in level.earned if begun_ns < at_ns <= ended_ns)
            taken = sum(charge.tokens for charge in charges[first : last + 1])
            assert taken <= max(bursts) + earned + largest


def largest_item(history: list[tuple[Any, ...]]) -> int:
    """Return what a charge may go into debt for: of the items that pass in one turn, only the last need not fit."""
    return max((tokens for name, *given in history if name in {"try", "wait"} for tokens in given[1]), default=0)


@pytest.mark.slow
@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.integers(1, 3))
def test_turns_go_round_however_many_calls_a_producer_has(calls: list[int], tokens: int) -> None:
    members = [{0}] * len(calls)
    both = Both.of([Limit.of(100, burst_tokens=1, target_tokens=1)] * 3, members)
    both.run("try", 0, [1])
    owners = []
    for at, many in enumerate(calls):
        for _ in range(many):
            both.run("wait", at, [tokens])
            owners.append(at)
    for _ in owners:
        both.run("advance", 30 * MS)
    served = [owners[number - 1] for number, _ in both.turns]
    assert len(served) == len(owners)
    for upto in range(len(served)):
        counts = [served[: upto + 1].count(at) for at in range(len(calls))]
        busy = [done for done, many in zip(counts, calls, strict=True) if done < many]
        assert max(counts) - min(busy, default=max(counts)) <= 1
