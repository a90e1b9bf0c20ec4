"""Threads wait for their turns by a manual clock: a test advances it when all that should wait do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_throttle.errors import PacerClosedError, TurnTimeoutError
from spark_throttle.pace import Level, Limit, ManualClock, Pacer, Producer, SystemClock

MS = 1_000_000


class Crowd:
    """Threads that each do one thing, and what came of it, in the order in which it came."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._threads: list[threading.Thread] = []
        self.results: list[str] = []

    def start(self, name: str, call: Callable[[], object]) -> None:
        """Start a thread, and return when it waits; others wait already."""

        def run() -> None:
            try:
                call()
            except (TurnTimeoutError, PacerClosedError) as error:
                self.results.append(f"{name}: {type(error).__name__}")
            else:
                self.results.append(name)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        self._clock.wait_until_parked(len(self._threads) - len(self.results))

    def advance(self, by_ns: int, *, until_waiting: int) -> None:
        """Let time pass, and return when so many threads still wait."""
        self._clock.advance(by_ns)
        self._clock.wait_until_parked(until_waiting)
        alive = [thread for thread in self._threads if thread.is_alive()]
        while len(alive) > until_waiting:
            for thread in alive:
                thread.join(0.01)
            alive = [thread for thread in alive if thread.is_alive()]

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def world(rate: int = 10, *, burst: int = 1) -> tuple[ManualClock, Pacer, Level, Crowd]:
    """Return a level that is empty at first."""
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(rate, burst_tokens=burst, target_tokens=1), initial_tokens=0)
    return clock, pacer, level, Crowd(clock)


def test_thread_waits_until_its_level_holds_a_token() -> None:
    _, pacer, level, crowd = world()
    crowd.start("one", pacer.producer(level).acquire)
    crowd.advance(99 * MS, until_waiting=1)
    assert crowd.results == []
    crowd.advance(1 * MS, until_waiting=0)
    assert crowd.results == ["one"]


def test_turns_of_threads_go_round_between_producers() -> None:
    _, pacer, level, crowd = world()
    greedy, modest = pacer.producer(level), pacer.producer(level)
    for number in range(3):
        crowd.start(f"greedy {number}", greedy.acquire)
    crowd.start("modest", modest.acquire)
    for left in (3, 2, 1, 0):
        crowd.advance(100 * MS, until_waiting=left)
    assert crowd.results == ["greedy 0", "modest", "greedy 1", "greedy 2"]


def test_producer_goes_when_the_last_of_its_levels_stops_throttling_it() -> None:
    clock, pacer, level, crowd = world()
    slow = pacer.level("slow", Limit.of(1, target_tokens=1), initial_tokens=0)
    both = pacer.producer(level, slow)
    assert both.throttled_by == ("api", "slow")
    crowd.start("both", both.acquire)
    crowd.advance(100 * MS, until_waiting=1)
    assert list(both.throttled_by) == ["slow"]
    assert level.balance_tokens() == 0  # the level has given its turn, and is charged
    crowd.advance(100 * MS, until_waiting=1)
    assert pacer.producer(level).try_acquire()  # who waits for another level keeps nobody from this one
    crowd.advance(700 * MS, until_waiting=1)
    crowd.advance(100 * MS, until_waiting=0)
    assert clock.now_ns() == 1000 * MS
    assert (level.balance_tokens(), slow.balance_tokens()) == (1, 0)


@pytest.mark.slow
def test_oldest_waits_no_longer_for_a_level_that_others_keep_busy() -> None:
    _, pacer, level, crowd = world()
    slow = pacer.level("slow", Limit.of(1, burst_tokens=1, target_tokens=1), initial_tokens=0)
    crowd.start("both", pacer.producer(level, slow).acquire)
    busy = pacer.producer(level)
    for number in range(20):
        crowd.start(f"busy {number}", busy.acquire)
    crowd.advance(100 * MS, until_waiting=21)  # the level's turn is kept for the oldest, which is there within a second
    for left in range(20, 12, -1):
        crowd.advance(100 * MS, until_waiting=left)
    assert crowd.results == [f"busy {number}" for number in range(8)]
    crowd.advance(100 * MS, until_waiting=11)
    assert sorted(crowd.results[8:]) == ["both", "busy 8"]
    pacer.close()
    crowd.join()


def test_watch_passes_on_when_the_thread_that_keeps_it_gives_up() -> None:
    _, pacer, level, crowd = world()
    producer = pacer.producer(level)
    crowd.start("gives up", lambda: producer.acquire(timeout_seconds=0.05))
    crowd.start("stays", producer.acquire)
    crowd.advance(50 * MS, until_waiting=1)
    assert crowd.results == ["gives up: TurnTimeoutError"]
    crowd.advance(50 * MS, until_waiting=0)
    assert crowd.results[1:] == ["stays"]


def test_watch_passes_on_when_its_own_turn_has_come() -> None:
    _, pacer, level, crowd = world()
    producer = pacer.producer(level)
    for number in range(3):
        crowd.start(str(number), producer.acquire)
    for left in (2, 1, 0):
        crowd.advance(100 * MS, until_waiting=left)
    assert crowd.results == ["0", "1", "2"]


def test_timeout_of_zero_does_not_wait() -> None:
    _, pacer, level, _ = world()
    with pytest.raises(TurnTimeoutError, match="no turn within 0 ms: throttled by api"):
        pacer.producer(level).acquire(timeout_seconds=0)


def test_turn_that_comes_with_the_timeout_is_taken() -> None:
    _, pacer, level, crowd = world()
    producer = pacer.producer(level)
    crowd.start("one", lambda: producer.acquire(timeout_seconds=0.1))
    crowd.advance(100 * MS, until_waiting=0)
    assert crowd.results == ["one"]


def test_raised_rate_wakes_the_watch() -> None:
    _, pacer, level, crowd = world(rate=0)
    crowd.start("one", pacer.producer(level).acquire)
    crowd.advance(3600 * 1000 * MS, until_waiting=1)
    level.set_limit(Limit.of(10, burst_tokens=1))
    crowd.advance(99 * MS, until_waiting=1)
    crowd.advance(1 * MS, until_waiting=0)


def test_limit_that_fills_a_level_at_once_serves_at_once() -> None:
    clock, pacer, level, crowd = world(burst=1_000)
    level.set_limit(Limit.of(10, burst_tokens=1_000, target_tokens=50))
    crowd.start("one", pacer.producer(level).acquire)
    crowd.advance(1_000 * MS, until_waiting=1)
    level.set_limit(Limit.of(10, burst_tokens=1_000, target_tokens=1))
    crowd.join()
    assert clock.now_ns() == 1_000 * MS


def test_closing_ends_the_wait_of_threads_in_their_order() -> None:
    _, pacer, level, crowd = world()
    producer = pacer.producer(level)
    crowd.start("one", producer.acquire)
    crowd.start("two", producer.acquire)
    pacer.close()
    crowd.join()
    assert sorted(crowd.results) == ["one: PacerClosedError", "two: PacerClosedError"]


def test_many_items_pass_in_turns_of_what_fits() -> None:
    clock = ManualClock(is_self_winding=True)
    pacer = Pacer(clock=clock)
    producer = pacer.producer(pacer.level("bytes", 1_000))
    passed = []
    items = [400] * 6
    while items:
        passed.append(producer.acquire_many(items))
        del items[: passed[-1]]
    assert passed == [3, 1, 1, 1]
    # 2400 of them, less the last, against a burst of 1000 and a target of 16: the last went when -200 had become 16.
    assert clock.now_ns() // MS == 200 + 16 + 2 * 400


def test_interrupted_thread_leaves_nothing_behind() -> None:
    class Interrupted(SystemClock):
        def park(self, event: threading.Event, until_ns: int) -> None:
            raise KeyboardInterrupt

    pacer = Pacer(clock=Interrupted())
    level = pacer.level("api", 0)
    producer = pacer.producer(level)
    with pytest.raises(KeyboardInterrupt):
        producer.acquire()
    level.set_limit(Limit.of(1, period_ns=10**18, burst_tokens=1))
    assert level.balance_tokens() == 0
    assert producer.throttled_by == ("api",)
    pacer.close()


def test_producer_is_throttled_by_nothing_once_time_has_filled_its_levels() -> None:
    clock, pacer, level, _ = world()
    producer = pacer.producer(level)
    assert list(producer.throttled_by) == ["api"]
    clock.advance(100 * MS)
    assert list(producer.throttled_by) == []


def test_producer_as_a_context_takes_one_token_and_gives_none_back() -> None:
    pacer = Pacer(clock=ManualClock())
    level = pacer.level("api", 10)
    producer: Producer = pacer.producer(level)
    with producer as same:
        assert same is producer
    assert level.balance_tokens() == 9
