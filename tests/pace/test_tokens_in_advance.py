"""Tokens handed out in advance change no decision: calls are let through as if each looked at the clock."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_throttle.errors import PacerClosedError
from spark_throttle.pace import Level, Limit, ManualClock, Pacer, Producer
from spark_throttle.pace.level_state import Request

MS = 1_000_000


@dataclass
class PlainLevel:
    """A level while time stands still: nothing is earned."""

    balance_tokens: int

    @property
    def throttles(self) -> bool:
        return self.balance_tokens <= 0


levels_of_producers = st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=4)
calls = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 1, 1, 2, 2, 3, 40]), st.integers(1, 30)), max_size=60
)


@pytest.mark.slow
@settings(max_examples=max(100, settings().max_examples))
@given(st.lists(st.integers(1, 300), min_size=4, max_size=4), levels_of_producers, calls)
def test_calls_at_any_levels_are_decided_one_by_one_while_time_stands_still(
    bursts: list[int], members: list[set[int]], history: list[tuple[int, int, int]]
) -> None:
    pacer = Pacer(clock=ManualClock())
    levels = [pacer.level(str(at), Limit.of(10**6, burst_tokens=each)) for at, each in enumerate(bursts)]
    plain = [PlainLevel(each) for each in bursts]
    producers = [pacer.producer(*(levels[at] for at in sorted(each))) for each in members]
    for which, tokens, times in history:
        number = which % len(producers)
        for _ in range(times):
            may = not any(plain[at].throttles for at in members[number])
            assert producers[number].try_acquire(tokens) == may
            for at in members[number] if may else ():
                plain[at].balance_tokens -= tokens
    assert [level.balance_tokens() for level in levels] == [each.balance_tokens for each in plain]


def wide_and_narrow(pacer: Pacer) -> tuple[Level, Level]:
    return (
        pacer.level("api", Limit.of(10**6, burst_tokens=1_000, target_tokens=500)),
        pacer.level("acme", Limit.of(10**5, burst_tokens=10)),
    )


def test_refused_call_leaves_its_other_levels_as_they_were() -> None:
    pacer = Pacer(clock=ManualClock())
    wide, narrow = wide_and_narrow(pacer)
    producer = pacer.producer(wide, narrow)
    assert sum(producer.try_acquire() for _ in range(100)) == 10
    assert wide.balance_tokens() == 990


def test_call_that_is_given_back_does_not_make_its_level_throttle() -> None:
    pacer = Pacer(clock=ManualClock())
    wide, narrow = wide_and_narrow(pacer)
    alone, both = pacer.producer(wide), pacer.producer(wide, narrow)
    assert sum(both.try_acquire() for _ in range(10)) == 10
    assert sum(alone.try_acquire() for _ in range(989)) == 989
    assert not both.try_acquire()
    assert alone.try_acquire()


def test_call_goes_on_without_the_lock_where_another_producer_opened_a_level_anew() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    shared = pacer.level("api", 10**9)
    producers = [pacer.producer(shared, pacer.level(str(at), 10**9)) for at in range(3)]
    for at in range(3_000):
        assert producers[at % 3].try_acquire()
    assert shared.balance_tokens() == 10**9 - 3_000


@pytest.mark.parametrize(
    ("later_ns", "balance_tokens"),
    [(0, 1_000 - 3 - 1), (10**9, 1_000)],  # a millisecond has repaid the two that were not taken in advance
)
def test_call_that_was_charged_by_anothers_turn_is_given_back_too(later_ns: int, balance_tokens: int) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    shared = pacer.level("api", Limit.of(10**6, burst_tokens=1_000))
    slow, narrow = (
        pacer.level("slow", Limit.of(1_000, burst_tokens=1)),
        pacer.level("acme", Limit.of(125, burst_tokens=4)),
    )
    waiting, other = pacer.producer(shared, slow), pacer.producer(shared, narrow)
    assert [waiting.try_acquire(), waiting.try_acquire()] == [True, False]
    request = Request(waiting._place, [1])
    pacer._queue.enqueue(request, clock.now_ns())
    assert sum(other.try_acquire() for _ in range(9)) == 4
    clock.advance(MS)
    assert not other.try_acquire()  # gives the one that waits its turn, which charges all that was taken of both levels
    assert request.is_decided
    clock.advance(later_ns)
    assert shared.balance_tokens() == balance_tokens


class CountingLock:
    """A lock that counts how often it is taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_calls_of_one_size_seldom_take_the_lock(tokens: int) -> None:
    pacer = Pacer(clock=ManualClock())
    producer = pacer.producer(*(pacer.level(str(at), 10**9) for at in range(4)))
    lock = CountingLock()
    pacer._queue.lock = lock  # type: ignore[assignment]
    assert all(producer.try_acquire(tokens) for _ in range(10_000))
    assert 0 < lock.taken <= 10_000 // 30  # those of a size that is new have the lock at first


def test_refused_calls_take_no_lock_until_there_is_something_to_do() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    producer = pacer.producer(pacer.level("api", 10**9), pacer.level("acme", Limit.of(1_000, burst_tokens=20)))
    lock = CountingLock()
    pacer._queue.lock = lock  # type: ignore[assignment]
    while producer.try_acquire():
        pass
    taken = lock.taken
    assert not any(producer.try_acquire() for _ in range(100))
    assert lock.taken == taken
    clock.advance(100 * MS)
    assert producer.try_acquire()
    while producer.try_acquire():
        pass
    pacer.close()
    with pytest.raises(PacerClosedError):
        producer.try_acquire()


def in_threads(works: list[Any]) -> None:
    """Run functions in threads that begin at once."""
    barrier = threading.Barrier(len(works))

    def begin(work: Any) -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_of_many_producers_get_no_token_more_and_none_less_than_a_shared_level_has() -> None:
    pacer = Pacer(clock=ManualClock())
    shared = pacer.level("api", Limit.of(50_000, burst_tokens=30_000))
    taken: list[int] = []

    def work(producer: Producer, tokens: int) -> None:
        got = 0
        while not producer.throttled_by:
            got += tokens * sum(producer.try_acquire(tokens) for _ in range(50))
        taken.append(got)

    # Some have a level of their own that throttles first, and give back what they took of the shared one.
    own = [pacer.level(str(at), Limit.of(10**6, burst_tokens=700 if at % 2 else 10**6)) for at in range(8)]
    in_threads([lambda at=at: work(pacer.producer(shared, own[at]), 1 + at % 3) for at in range(8)])
    assert sum(taken) == 30_000 - shared.balance_tokens()
    assert -3 < shared.balance_tokens() <= 0
