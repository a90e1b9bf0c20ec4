"""Attempts to break the pacer: crowds, cancellations, clocks that jump, tokens in advance."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_throttle.errors import PacerClosedError, TurnTimeoutError
from spark_throttle.pace import AsyncTokenBucket, Limit, ManualClock, Pacer, SystemClock, level_state
from spark_throttle.pace.level_state import Request
from spark_throttle.pace.turn_queue import TurnQueue
from tests.pace.simulated_loop import run

MS = 1_000_000
SECOND = 1000 * MS
THREADS = 8


def together(work: Callable[[int], object]) -> list[BaseException]:
    """Run a function in eight threads that begin at once, and return what they raised."""
    barrier = threading.Barrier(THREADS)
    raised: list[BaseException] = []

    def begin(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except PacerClosedError as error:
            raised.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


class TickingClock(SystemClock):
    """A clock that goes on by a microsecond whenever it is read."""

    def __init__(self) -> None:
        self._ticks = count()

    def now_ns(self) -> int:
        return next(self._ticks) * 1000


# ----------------------------------------------------------------------------------------------------- crowds


@pytest.mark.parametrize("levels", [1, 3])
def test_eight_threads_get_no_token_more_and_none_less_than_there_are(levels: int) -> None:
    pacer = Pacer(clock=ManualClock())
    # One call takes tokens that the balance does not hold, at most: what is given out is the burst, and a debt of one.
    producer = pacer.producer(*(pacer.level(str(at), Limit.of(50_000, burst_tokens=30_000)) for at in range(levels)))
    taken = [0] * THREADS

    def work(number: int) -> None:
        drawn = random.Random(number)
        while True:
            way = drawn.randrange(3)
            if way == 0:
                got = sum(producer.try_acquire() for _ in range(100))
            elif way == 1:
                got = 2 * producer.try_acquire(2)
            else:
                got = producer.try_acquire_many([1, 1, 1])
            taken[number] += got
            if producer.throttled_by:
                return

    together(work)
    assert 30_000 <= sum(taken) <= 30_001


def test_eight_threads_never_exceed_a_rate_while_time_passes() -> None:
    clock = TickingClock()
    pacer = Pacer(clock=clock)
    producer = pacer.producer(pacer.level("api", Limit.of(100_000, burst_tokens=100)))
    begun_ns = clock.now_ns()
    taken = [0] * THREADS

    def work(number: int) -> None:
        for _ in range(5_000):
            taken[number] += producer.try_acquire()

    together(work)
    assert 100 <= sum(taken) <= 100 + 100_000 * (clock.now_ns() - begun_ns) // SECOND + 1


def test_no_wake_up_is_lost_between_eight_threads() -> None:
    clock = ManualClock(is_self_winding=True)
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(1_000, burst_tokens=3, target_tokens=2))
    shared = pacer.producer(level)

    def work(number: int) -> None:
        own = pacer.producer(level)
        for at in range(60):
            (own if at % 2 else shared).acquire(1 + (number + at) % 3)

    together(work)
    charged = sum(1 + (number + at) % 3 for number in range(THREADS) for at in range(60))
    assert level.balance_tokens() <= 3
    assert charged <= 3 + 1_000 * clock.now_ns() // SECOND + 3


def test_closing_in_the_middle_ends_every_thread() -> None:
    clock = ManualClock(is_self_winding=True)
    pacer = Pacer(clock=clock)
    producer = pacer.producer(pacer.level("api", 1_000))
    calls = count()

    def work(_: int) -> None:
        while True:
            producer.acquire()
            if next(calls) == 3_000:
                pacer.close()

    assert len(together(work)) == THREADS


def test_bucket_loses_no_charge_of_eight_threads() -> None:
    bucket = AsyncTokenBucket(Limit.of(10**9), initial_tokens=0, clock_ns=ManualClock().now_ns)

    def work(_: int) -> None:
        for _ in range(2_000):
            bucket.consume()
            bucket.consume_and_check(2)

    together(work)
    assert bucket.balance_tokens(is_consistent=True) == -3 * 2_000 * THREADS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_thousand_tasks_of_which_any_are_cancelled_leave_no_trace(seed: int) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(1_000, burst_tokens=5, target_tokens=1))
    other = pacer.level("other", Limit.of(900, burst_tokens=1))
    producers = [pacer.async_producer(level, *([other] * (at % 2))) for at in range(10)]
    drawn = random.Random(seed)
    served = 0

    async def one(number: int) -> None:
        nonlocal served
        await producers[number % 10].acquire(timeout_seconds=drawn.choice([None, None, 0.05, 0.5]))
        served += 1

    async def main() -> None:
        tasks = [asyncio.create_task(one(number)) for number in range(1_000)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(drawn.choice([0, 0.001, 0.02]))
            for task in drawn.sample(tasks, 5):
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(clock, main())
    clock.advance(3600 * SECOND)
    assert 0 < served < 1_000
    assert (level.balance_tokens(), other.balance_tokens()) == (5, 1)
    assert all(producer.try_acquire() for producer in producers[:2])


@pytest.mark.slow
def test_calls_that_give_up_leave_no_memory_behind() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", 0)
    producers = [pacer.producer(level) for _ in range(10)]
    for at in range(5_000):
        with pytest.raises(TurnTimeoutError):
            producers[at % 10].acquire(timeout_seconds=0)
    queue = pacer._queue
    assert sum(len(each.held) for each in queue._levels) < 100

    def wait() -> None:
        with pytest.raises(PacerClosedError):
            producers[0].acquire()

    parked = threading.Thread(target=wait)
    parked.start()
    clock.wait_until_parked(1)
    for at in range(5_000):
        level.set_limit(Limit.of(1, period_ns=10**15 + at, burst_tokens=1))
    assert len(queue._due) < 100
    pacer.close()
    parked.join()


# ----------------------------------------------------------------------------------------------------- clocks


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-(10**12), 10**12), st.sampled_from([1, 1, 2, 7])), max_size=60))
def test_clock_that_jumps_to_and_fro_pays_nothing_twice(history: list[tuple[int, int]]) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(3, burst_tokens=10))
    producer = pacer.producer(level)
    latest_ns = taken = 0
    for by_ns, tokens in history:
        clock.advance(by_ns)
        latest_ns = max(latest_ns, clock.now_ns())
        taken += tokens * producer.try_acquire(tokens)
        assert level.balance_tokens() <= 10
        assert taken <= 10 + 3 * latest_ns // SECOND + 7


@pytest.mark.parametrize("jump_ns", [10**9, 3_600 * 10**9, 10**18, 10**27])
def test_clock_that_leaps_pays_one_burst(jump_ns: int) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(10**9, burst_tokens=10))
    producer = pacer.producer(level)
    for _ in range(3):
        assert sum(producer.try_acquire() for _ in range(100)) == 10
        clock.advance(jump_ns)
        assert level.balance_tokens() == 10


def test_clock_that_stands_still_lets_nobody_through_and_wakes_nobody() -> None:
    clock = ManualClock()
    reads = 0

    class Counting(ManualClock):
        def now_ns(self) -> int:
            nonlocal reads
            reads += 1
            return clock.now_ns()

    pacer = Pacer(clock=Counting())
    producer = pacer.async_producer(pacer.level("api", Limit.of(1000, burst_tokens=1)))

    async def main() -> None:
        await producer.acquire()
        with pytest.raises(TurnTimeoutError):
            await producer.acquire(timeout_seconds=0.02)

    asyncio.run(main())  # the loop's own clock goes on: its timer comes every millisecond, and finds nothing
    assert reads < 200


# ------------------------------------------------------------------------------------------------ tokens in advance


@pytest.mark.slow
@settings(max_examples=max(100, settings().max_examples))
@given(
    st.sampled_from([100, 1_000, 50_000]), st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 40 * MS), st.integers(1, 300), st.sampled_from([1, 1, 2, 3, 40])), max_size=40),
)  # fmt: skip
def test_tokens_in_advance_never_exceed_a_limit_in_any_window(
    rate: int, burst: int, history: list[tuple[int, int, int]]
) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(rate, burst_tokens=burst))
    other = pacer.level("acme", Limit.of(2 * rate, burst_tokens=3 * burst))
    producers = [pacer.producer(level), pacer.producer(level), pacer.producer(level, other), pacer.producer(other)]
    taken: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for at, (by_ns, calls, tokens) in enumerate(history):
        clock.advance(by_ns)
        for call in range(calls):
            which = (at + call) % 4 if at % 2 else at % 4
            got = tokens * producers[which].try_acquire(tokens)
            if which < 3:
                taken[0].append((clock.now_ns(), got))
            if which >= 2:
                taken[1].append((clock.now_ns(), got))
        if at % 3 == 0:
            assert level.balance_tokens() <= burst
    for number, limit in enumerate((level.limit, other.limit)):
        by_time: dict[int, int] = {}
        for now_ns, got in taken[number]:
            by_time[now_ns] = by_time.get(now_ns, 0) + got
        for begun_ns in by_time:
            total = 0
            for now_ns in (each for each in by_time if each >= begun_ns):
                total += by_time[now_ns]
                assert total <= limit.burst_tokens + limit.tokens * (now_ns - begun_ns) // SECOND + 40


@pytest.mark.parametrize("rate", [10, 1_000, 100_000])
def test_level_that_is_asked_all_the_time_gives_out_its_whole_rate(rate: int) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    producer = pacer.producer(pacer.level("api", rate, initial_tokens=0))
    taken = 0
    for _ in range(10_000):
        clock.advance(MS)
        while producer.try_acquire():
            taken += 1
    assert 10 * rate - max(1, rate * 16 // 1000) <= taken <= 10 * rate


# ------------------------------------------------------------------------------------------- threads that leave


def waiting_threads(clock: ManualClock, calls: list[Callable[[], None]]) -> list[threading.Thread]:
    """Start a thread for each call, each when the one before it waits."""
    threads = []
    for number, call in enumerate(calls, 1):
        threads.append(threading.Thread(target=call, daemon=True))
        threads[-1].start()
        clock.wait_until_parked(number)
    return threads


def test_watch_is_kept_by_another_when_the_newest_was_decided_before_it_could_take_over() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(10, burst_tokens=2, target_tokens=2), initial_tokens=0)
    greedy, modest = pacer.producer(level), pacer.producer(level)
    # The turn goes round: the first greedy call, which keeps watch, and the modest one, which came last, go together.
    threads = waiting_threads(clock, [greedy.acquire, greedy.acquire, greedy.acquire, modest.acquire])
    clock.advance(200 * MS)
    for thread in (threads[0], threads[3]):
        thread.join(10)
    clock.wait_until_parked(2)
    clock.advance(200 * MS)
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_thread_that_is_interrupted_as_soon_as_it_stands_in_the_queue_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(10, burst_tokens=1), initial_tokens=0)
    producer = pacer.producer(level)
    enqueue = TurnQueue.enqueue

    def interrupted(queue: TurnQueue, request: Request, now_ns: int) -> None:
        enqueue(queue, request, now_ns)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TurnQueue, "enqueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.acquire()
    (thread,) = waiting_threads(clock, [producer.acquire])
    clock.advance(100 * MS)
    thread.join(10)
    assert not thread.is_alive()


def test_without_a_global_interpreter_lock_no_token_is_handed_out_without_the_queues_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(level_state, "_IS_NEXT_ATOMIC", False)
    pacer = Pacer(clock=ManualClock())
    level = pacer.level("api", 1_000)
    producer = pacer.producer(level)
    assert sum(producer.try_acquire() for _ in range(10)) == 10
    assert next(level._state.allowance, None) is None
    assert level._state.budget_tokens > 0
    assert sum(producer.try_acquire() for _ in range(2_000)) == 990


# ----------------------------------------------------------------------------------------------------- forks


def test_child_of_a_fork_does_not_wait_for_the_threads_of_its_parent() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(10, burst_tokens=1), initial_tokens=0)
    producer = pacer.producer(level)
    threads = waiting_threads(clock, [producer.acquire, producer.acquire])
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends the child if it waits for ever
        pacer._queue.clock = ManualClock(is_self_winding=True)
        producer.acquire()
        producer.acquire()
        os._exit(7 if pacer._queue.clock.now_ns() == 200 * MS else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for thread in threads:
        assert thread.is_alive()
        clock.wait_until_parked(sum(each.is_alive() for each in threads))
        clock.advance(100 * MS)
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


# ------------------------------------------------------------------------------------------- contexts of tasks


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_context_of_a_task_may_have_any_number_of_levels(levels: int) -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    producer = pacer.async_producer(*(pacer.level(str(at), 10) for at in range(levels)))

    async def main() -> int:
        entered = 0
        for _ in range(20):
            async with producer as same:
                assert same is producer
                entered += 1
        with pytest.raises(ValueError, match="the body's own"):
            async with producer:
                raise ValueError("the body's own")
        return entered

    assert run(clock, main()) == 20
    assert clock.now_ns() >= 1000 * MS
