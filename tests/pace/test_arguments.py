"""Arguments that mean nothing are refused with the value, the bound and the remedy, and cost nothing."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spark_throttle.errors import ConfigurationError, TurnTimeoutError
from spark_throttle.pace import NEVER_NS, AsyncTokenBucket, Limit, ManualClock, Pacer
from spark_throttle.pace.limit import MOST

NO_TOKENS: list[Any] = [-1, True, False, 1.0, 2.5, math.nan, math.inf, "1", None, MOST + 1, 10**30, np.int64(3), [1]]


@pytest.mark.parametrize("tokens", NO_TOKENS, ids=repr)
def test_tokens_that_mean_nothing_are_refused_with_value_and_bound(tokens: Any) -> None:
    pacer = Pacer(clock=ManualClock())
    level = pacer.level("api", 1_000)
    producer, tasks = pacer.producer(level), pacer.async_producer(level)
    assert producer.try_acquire()  # something is handed out in advance now
    bucket = AsyncTokenBucket(level.limit)
    refused: list[Callable[[], object]] = [
        lambda: producer.try_acquire(tokens), lambda: producer.acquire(tokens),
        lambda: producer.acquire_many([1, tokens]), lambda: producer.try_acquire_many([tokens]),
        lambda: asyncio.run(tasks.acquire(tokens)), lambda: bucket.consume(tokens),
        lambda: bucket.consume_and_check(tokens), lambda: pacer.level("x", tokens),
    ]  # fmt: skip
    for call in refused:
        with pytest.raises(ConfigurationError, match="; give a whole number from 0 to 9223372036854775807"):
            call()
    assert level.balance_tokens() == 999


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, 1e300, 10**400, True, "1", [1]], ids=repr)
def test_timeout_that_means_nothing_is_refused_even_where_nothing_waits(seconds: Any) -> None:
    pacer = Pacer(clock=ManualClock())
    level = pacer.level("api", 10)
    for call in (
        pacer.producer(level).acquire,
        lambda **given: asyncio.run(pacer.async_producer(level).acquire(**given)),
    ):
        with pytest.raises(ConfigurationError, match=r"timeout_seconds is .*; give a number of seconds from 0 on"):
            call(timeout_seconds=seconds)


@pytest.mark.parametrize(
    "given",
    [{"period_ns": 0}, {"period_ns": -1}, {"burst_tokens": 0}, {"burst_tokens": 2**63}, {"target_tokens": -1},
     {"period_ns": 1.5}, {"target_tokens": True}],
    ids=repr,
)  # fmt: skip
def test_limit_that_cannot_work_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} is .*; give a whole number from [01] to"):
        Limit.of(10, **given)


@pytest.mark.parametrize("items", [[], (), array("q"), np.array([], dtype=np.int64), range(0)], ids=repr)
def test_no_items_are_no_wait(items: Any) -> None:
    pacer = Pacer(clock=ManualClock())
    producer = pacer.producer(pacer.level("api", 0))
    assert producer.try_acquire_many(items) == producer.acquire_many(items) == 0


@pytest.mark.parametrize(
    "items",
    [[3, 3, 3], (3, 3, 3), array("i", [3, 3, 3]), np.array([3, 3, 3], dtype=np.uint8), range(3, 4), {3: "a key"}],
    ids=repr,
)
def test_items_come_in_any_sequence(items: Any) -> None:
    pacer = Pacer(clock=ManualClock())
    assert pacer.producer(pacer.level("api", 5)).try_acquire_many(items) == min(2, len(items))


@pytest.mark.parametrize(
    "items",
    [np.array([1.0]), np.array([[1]]), np.array([True]), [2**62, 2**62], array("d", [1]), ["1"], np.array(5), 5, None],
    ids=repr,
)
def test_items_that_mean_nothing_are_refused(items: Any) -> None:
    pacer = Pacer(clock=ManualClock())
    level = pacer.level("api", 5)
    with pytest.raises(ConfigurationError, match="tokens"):
        pacer.producer(level).try_acquire_many(items)
    assert level.balance_tokens() == 5


def test_largest_charge_is_owed_and_times_out_without_an_overflow() -> None:
    pacer = Pacer()
    level = pacer.level("api", Limit.of(1, period_ns=MOST, burst_tokens=1))
    producer, tasks = pacer.producer(level), pacer.async_producer(level)
    producer.acquire(MOST)
    assert level.balance_tokens() == 1 - MOST
    assert 2**62 < level.throttle_time_ns() <= NEVER_NS
    with pytest.raises(TurnTimeoutError):
        producer.acquire(timeout_seconds=0.001)

    async def main() -> None:
        with pytest.raises(TurnTimeoutError):
            await tasks.acquire(timeout_seconds=0.001)

    asyncio.run(main())


def test_zero_tokens_wait_their_turn_and_cost_nothing() -> None:
    clock = ManualClock()
    pacer = Pacer(clock=clock)
    level = pacer.level("api", 10)
    producer = pacer.producer(level)
    assert producer.try_acquire(0)
    assert level.balance_tokens() == 10
    assert producer.try_acquire(10)
    assert not producer.try_acquire(0)


def test_levels_are_given_once_and_are_of_this_pacer() -> None:
    pacer = Pacer()
    level = pacer.level("api", 1)
    with pytest.raises(ConfigurationError, match="at least one level"):
        pacer.producer()
    with pytest.raises(ConfigurationError, match=r"api.*given twice"):
        pacer.producer(level, level)
    other: Any
    for other in (level, "api", None, [level]):
        with pytest.raises(ConfigurationError, match="no level of this pacer"):
            Pacer().async_producer(other)


def test_what_a_pacer_made_refuses_to_travel_and_says_where_to_make_it() -> None:
    pacer = Pacer()
    level = pacer.level("api", 1)
    for own in (pacer, level, pacer.producer(level), pacer.async_producer(level), AsyncTokenBucket(level.limit)):
        for travel in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=rf"{type(own).__name__} .* .*make it in the process that uses it"):
                travel(own)
    assert pickle.loads(pickle.dumps(level.limit)) == level.limit  # noqa: S301 - our own


def test_pacers_and_producers_tell_their_levels() -> None:
    pacer = Pacer()
    api, acme = pacer.level("api", 5), pacer.level("acme", 1)
    assert repr(pacer.producer(api, acme)) == "<Producer of api, acme>"
    assert repr(pacer.async_producer(acme)) == "<AsyncProducer of acme>"
