"""Tasks of asyncio wait for their turns by a manual clock: no test sleeps, and time passes only where a loop waits."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from spark_throttle.errors import PacerClosedError, TurnTimeoutError
from spark_throttle.pace import AsyncProducer, Limit, ManualClock, Pacer
from tests.pace.simulated_loop import SimulatedLoop, run

MS = 1_000_000


def milliseconds(clock: ManualClock) -> int:
    """Return the time; a loop keeps it as a float, and so may be a nanosecond off."""
    return round(clock.now_ns() / MS)


def pacer_of(rate: int, *, burst: int = 1, target: int = 1) -> tuple[ManualClock, Pacer, AsyncProducer]:
    """Return a producer of one level that starts full."""
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(rate, burst_tokens=burst, target_tokens=target))
    return clock, pacer, pacer.async_producer(level)


def test_task_waits_exactly_until_its_level_holds_its_target() -> None:
    clock, _, producer = pacer_of(1000, burst=100, target=16)

    async def main() -> list[int]:
        times = []
        for tokens in (100, 1, 20):
            await producer.acquire(tokens)
            times.append(milliseconds(clock))
        return times

    # Empty at 0 ms: 16 tokens at 16 ms, of which 15 are left; the 20 leave a debt of 5.
    assert run(clock, main()) == [0, 16, 16]
    assert not producer.try_acquire()


def test_thousand_waiting_tasks_are_served_in_order_at_the_rate() -> None:
    clock, _, producer = pacer_of(100)
    served: list[int] = []

    async def one(number: int) -> None:
        await producer.acquire()
        served.append(number)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(1000)))

    run(clock, main())
    assert served == list(range(1000))
    assert milliseconds(clock) == 999 * 10


def test_turns_of_tasks_go_round_between_producers() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(100, burst_tokens=1), initial_tokens=0)
    served: list[str] = []

    async def one(name: str, producer: AsyncProducer) -> None:
        async with producer:
            served.append(name)

    async def main() -> None:
        greedy, modest = pacer.async_producer(level), pacer.async_producer(level)
        await asyncio.gather(*(one("greedy", greedy) for _ in range(5)), *(one("modest", modest) for _ in range(2)))

    run(clock, main())
    assert served == ["greedy", "modest", "greedy", "modest", "greedy", "greedy", "greedy"]


def test_cancelled_task_leaves_the_queue_and_is_charged_nothing() -> None:
    clock, _, producer = pacer_of(10)

    async def main() -> None:
        await producer.acquire()
        waiting = [asyncio.create_task(producer.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        await waiting[2]

    run(clock, main())
    assert milliseconds(clock) == 100


def test_task_that_is_cancelled_between_its_turn_and_its_run_gives_the_turn_to_the_next() -> None:
    clock, _, producer = pacer_of(10)

    async def main() -> None:
        await producer.acquire()
        first, second = (asyncio.create_task(producer.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        clock.advance(100 * MS)
        assert not producer.try_acquire()  # which gives the turn to the first, before it runs
        first.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()

    run(clock, main())
    assert milliseconds(clock) == 100


def test_timeout_of_a_task_names_who_throttles_and_charges_nothing() -> None:
    clock, _, producer = pacer_of(1)

    async def main() -> None:
        await producer.acquire()
        with pytest.raises(TurnTimeoutError, match="no turn within 250 ms: throttled by api") as caught:
            await producer.acquire(timeout_seconds=0.25)
        assert caught.value.throttled_by == ("api",)
        await producer.acquire(timeout_seconds=1)

    run(clock, main())
    assert milliseconds(clock) == 1000


def test_deadline_of_asyncio_stays_a_timeout_of_asyncio() -> None:
    clock, _, producer = pacer_of(1)

    async def main() -> None:
        await producer.acquire()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.25):
                await producer.acquire()
        assert not isinstance(caught.value, TurnTimeoutError)

    run(clock, main())


def test_task_waits_for_ever_at_a_rate_of_zero_until_the_rate_is_raised() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", 0)
    producer = pacer.async_producer(level)

    async def main() -> None:
        waiting = asyncio.create_task(producer.acquire())
        await asyncio.sleep(3600)
        assert not waiting.done()
        level.set_limit(10)
        await waiting

    run(clock, main())
    assert milliseconds(clock) == 3_600_100  # the hour paid nothing


def test_raised_rate_serves_those_who_wait_sooner_and_a_lowered_one_later() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(10, target_tokens=1))
    producer = pacer.async_producer(level)

    async def main() -> list[int]:
        await producer.acquire(30)  # a debt of 20: 2.1 s until one token is there
        first = asyncio.create_task(producer.acquire())
        await asyncio.sleep(1)  # a debt of 10
        level.set_limit(Limit.of(100, target_tokens=1))
        await first
        times = [milliseconds(clock)]
        second = asyncio.create_task(producer.acquire(11))
        await second  # the token is gone: one more is there after 10 ms
        times.append(milliseconds(clock))
        third = asyncio.create_task(producer.acquire())  # 11 ticks of 10 ms, of which 5 pass at the old rate
        await asyncio.sleep(0.05)
        level.set_limit(Limit.of(1, target_tokens=1))
        await third
        times.append(milliseconds(clock))
        return times

    assert run(clock, main()) == [1110, 1120, 1170 + 6000]


def test_closing_ends_every_wait() -> None:
    clock, pacer, producer = pacer_of(1)

    async def main() -> list[BaseException | None]:
        await producer.acquire()
        waiting = [asyncio.create_task(producer.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        pacer.close()
        with pytest.raises(PacerClosedError):
            producer.try_acquire()
        with pytest.raises(PacerClosedError):
            await producer.acquire()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(each) for each in run(clock, main())] == [PacerClosedError] * 3


def test_closed_pacer_hands_out_nothing_that_was_left() -> None:
    pacer = Pacer(clock=ManualClock())
    producer = pacer.producer(pacer.level("api", 1_000_000))
    assert producer.try_acquire()
    assert producer.try_acquire()  # from what was handed out
    pacer.close()
    with pytest.raises(PacerClosedError):
        producer.try_acquire()


def test_tasks_of_a_closed_loop_give_their_turns_to_others() -> None:
    clock, pacer, producer = pacer_of(10)
    level = pacer.level("other", 1000)
    loop = SimulatedLoop(clock)
    loop.run_until_complete(producer.acquire())
    lost = loop.create_task(producer.acquire())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()  # nobody cancels the task

    async def main() -> None:
        await producer.acquire()
        await pacer.async_producer(level).acquire()

    run(clock, main())
    assert milliseconds(clock) == 100
    assert not lost.done()
    lost._log_destroy_pending = False  # type: ignore[attr-defined] # what this test is about


@pytest.mark.slow
def test_task_that_is_collected_after_its_turn_gives_it_back() -> None:
    clock, _, producer = pacer_of(10)
    coroutine = producer.acquire()
    loop = SimulatedLoop(clock)
    loop.run_until_complete(producer.acquire())
    asyncio.set_event_loop(None)
    waiting = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()
    clock.advance(100 * MS)
    assert not producer.try_acquire()  # the turn is the task's
    waiting._log_destroy_pending = False  # type: ignore[attr-defined] # as above
    loop.close()
    del waiting
    coroutine.close()
    gc.collect()
    assert producer.try_acquire()


def test_tasks_of_two_loops_and_a_thread_stand_in_one_queue() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", Limit.of(10, burst_tokens=1), initial_tokens=0)
    order: list[str] = []
    is_waiting = threading.Event()

    def thread() -> None:
        pacer.producer(level).acquire()
        order.append("thread")

    def other_loop() -> None:
        async def wait() -> None:
            asyncio.get_running_loop().call_soon(is_waiting.set)
            await pacer.async_producer(level).acquire()
            order.append("other loop")

        asyncio.run(wait())

    async def main() -> None:
        await pacer.async_producer(level).acquire()
        order.append("loop")

    threads = [threading.Thread(target=thread), threading.Thread(target=other_loop)]
    threads[0].start()
    clock.wait_until_parked(1)
    threads[1].start()
    is_waiting.wait()
    run(clock, main())
    for each in threads:
        each.join()
    assert milliseconds(clock) == 300
    assert sorted(order) == ["loop", "other loop", "thread"]
