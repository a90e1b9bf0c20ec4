"""Turns: fair among callers, bounded, and none is lost; and the rates before them, which are exact."""

from __future__ import annotations

import asyncio
import math
import random
from fractions import Fraction

import pytest

from spark_throttle.admin.api import turns as turns_module
from spark_throttle.admin.api.turns import NoTurnError, RequestRates, Turns


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_newest_request_of_the_caller_with_most_gives_way_in_a_full_queue() -> None:
    async def fill() -> list[str]:
        turns, ends = Turns(1, most_waiting=4, wait_seconds=60), []

        async def ask(name: str) -> None:
            try:
                await turns.take(name[0])
            except NoTurnError:
                ends.append(f"-{name}")
                return
            ends.append(name)
            turns.give_back(name[0])

        await turns.take("z")
        tasks = []
        for name in ("a1", "a2", "a3", "a4", "a5", "b1", "c1"):
            tasks.append(asyncio.create_task(ask(name)))
            await settled()
        turns.give_back("z")
        await asyncio.gather(*tasks)
        await turns.take("z")  # the turn came back
        return ends

    assert asyncio.run(fill()) == ["-a5", "-a4", "-a3", "a1", "b1", "c1", "a2"]


def test_turn_of_a_request_that_gave_up_is_not_lost() -> None:
    async def give_up() -> None:
        turns = Turns(1, most_waiting=9, wait_seconds=0.05)
        await turns.take("a")
        with pytest.raises(NoTurnError, match=r"waited 0\.05 s"):
            await turns.take("b")
        waiting = asyncio.create_task(turns.take("b"))
        await settled()
        turns.give_back("a")  # gives it to the task, which is cancelled at the same moment
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await turns.take("c")

    asyncio.run(give_up())


def test_no_more_than_the_bound_are_worked_on_at_once() -> None:
    async def work() -> int:
        turns, now, most = Turns(3, most_waiting=100, wait_seconds=60), 0, 0

        async def ask(caller: str) -> None:
            nonlocal now, most
            await turns.take(caller)
            now += 1
            most = max(most, now)
            await settled()
            now -= 1
            turns.give_back(caller)

        await asyncio.gather(*(ask(f"caller-{at % 7}") for at in range(60)))
        return most

    assert asyncio.run(work()) == 3


def test_one_caller_has_a_quarter_of_the_turns_and_others_have_theirs_at_once() -> None:
    async def flood() -> list[str]:
        turns, begun = Turns(8, most_waiting=99, wait_seconds=60), list[str]()

        async def ask(name: str) -> None:
            await turns.take(name[0])
            begun.append(name)

        tasks = [asyncio.create_task(ask(f"a{at}")) for at in range(9)]
        await settled()
        tasks += [asyncio.create_task(ask(name)) for name in ("b0", "c0")]
        await settled()
        first = list(begun)
        turns.give_back("b")  # is for others: a has its part
        await settled()
        assert begun == first
        turns.give_back("a")
        await settled()
        for task in tasks:
            task.cancel()
        return begun

    assert asyncio.run(flood()) == ["a0", "a1", "b0", "c0", "a2"]


@pytest.mark.parametrize("per_second", [1, 3, 7, 100])
def test_rate_of_a_caller_is_that_of_an_exact_bucket(per_second: int) -> None:
    draw, now_ms = random.Random(per_second), 0
    rates = RequestRates(per_second, burst_seconds=2, clock_ms=lambda: now_ms)
    held = burst = Fraction(2 * per_second)
    for _ in range(3000):
        passed_ms = draw.choice((0, 0, 0, 0, 1, 7, 400 // per_second))
        now_ms += passed_ms
        held = min(held + Fraction(passed_ms * per_second, 1000), burst)
        expected = max(0, math.ceil(-held * 1000 / per_second))
        assert rates.throttle_time_ms("ann") == expected
        held -= expected == 0


def test_caller_that_was_away_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "MOST_CALLERS", 2)
    rates = RequestRates(1, burst_seconds=1, clock_ms=lambda: 0)
    waits = [rates.throttle_time_ms(name) for name in ("ann", "ann", "ann", "bob", "bob", "ann", "cid", "ann", "bob")]
    assert waits == [0, 0, 1000, 0, 0, 1000, 0, 1000, 0]
