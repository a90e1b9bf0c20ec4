"""Turns: fair among callers, bounded, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from spark_throttle.admin.api.turns import NoTurnError, Turns


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
