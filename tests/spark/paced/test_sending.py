"""Flows are sent by a manual clock: how much leaves in any 100 ms, in which order, under which keys."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.errors import DeliveryError
from spark_throttle.pace import ManualClock
from spark_throttle.spark.paced.calls import IdempotencyKey, calls_of
from spark_throttle.spark.paced.sending import BatchName, Flow, Rows, Send, parcels_of, send_flows
from tests.pace.simulated_loop import run

NAME = BatchName("q", 3, "id")
MS = 1_000_000
SECOND = 1_000 * MS


def flow(costs_ns: Sequence[int], window_ns: int = 0, namespace: str = "t/n", rows_per_call: int = 100) -> Flow:
    rows = pa.table({"id": range(len(costs_ns)), "cost": pa.array(costs_ns, pa.int64())})
    calls = calls_of(np.array(costs_ns, dtype=np.int64), window_ns, rows_per_call)
    return Flow(namespace, parcels_of(namespace, rows, calls, NAME))


class Receiver:
    """Records when which row left; every call takes a time drawn from `delays_ns`, in turn."""

    def __init__(self, clock: ManualClock, delays_ns: Sequence[int] = (0,)) -> None:
        self.clock = clock
        self.left: list[tuple[int, str, int, int]] = []
        self.keys: list[IdempotencyKey] = []
        self.in_flight = self.most_in_flight = 0
        self._delays_ns = delays_ns

    async def __call__(self, rows: Rows, key: IdempotencyKey) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        now_ns = self.clock.now_ns()
        self.left += [(now_ns, key.namespace, row["id"], row["cost"]) for row in rows]
        self.keys.append(key)
        await asyncio.sleep(self._delays_ns[len(self.keys) % len(self._delays_ns)] / SECOND)
        self.in_flight -= 1

    def ids(self, namespace: str = "t/n") -> list[int]:
        return [row for _, name, row, _ in self.left if name == namespace]


def send(receiver: Receiver, *flows: Flow, concurrency: int = 8, in_order: bool = True) -> int:
    sending = send_flows(
        flows, receiver, concurrency=concurrency, in_order=in_order, patience_seconds=60, clock=receiver.clock
    )
    return run(receiver.clock, sending).rows


def check_limit(left: Sequence[tuple[int, str, int, int]]) -> None:
    """In any 100 ms leaves what the rate gives in 116 ms, and one message."""
    first, cost_ns = 0, 0
    for at, (now_ns, _, _, cost) in enumerate(left):
        cost_ns += cost
        while left[first][0] < now_ns - 100 * MS:
            cost_ns -= left[first][3]
            first += 1
        assert cost_ns <= 116 * MS + max(row[3] for row in left[first : at + 1])


COSTS = st.lists(st.integers(1_000, 40 * MS), min_size=1, max_size=120)
DELAYS = st.lists(st.integers(0, 150 * MS), min_size=1, max_size=20)


@pytest.mark.slow
@given(
    batches=st.lists(st.tuples(COSTS, st.sampled_from([0, 50 * MS, 2 * SECOND])), min_size=1, max_size=4),
    delays=DELAYS,
    concurrency=st.integers(1, 4),
    in_order=st.booleans(),
)
def test_in_any_100_ms_a_namespace_sends_what_its_rate_gives_in_116_ms_and_one_message(
    batches: list[tuple[list[int], int]], delays: list[int], concurrency: int, *, in_order: bool
) -> None:
    receiver = Receiver(ManualClock(), delays)
    for costs, window_ns in batches:  # one right after the other, as if no time went into planning
        assert send(receiver, flow(costs, window_ns), concurrency=concurrency, in_order=in_order) == len(costs)
    check_limit(receiver.left)


@pytest.mark.slow
@given(
    counts=st.lists(st.integers(1, 60), min_size=2, max_size=5),
    delays=DELAYS,
    concurrency=st.integers(1, 4),
)
def test_limit_holds_for_each_namespace_that_waits_for_a_place_among_others(
    counts: list[int], delays: list[int], concurrency: int
) -> None:
    receiver = Receiver(ManualClock(), delays)
    flows = [flow([1 + 7 * MS // (at + 1)] * count, namespace=f"t/{at}") for at, count in enumerate(counts)]
    send(receiver, *flows, concurrency=concurrency)
    assert receiver.most_in_flight <= concurrency
    for each, count in zip(flows, counts, strict=True):
        check_limit([left for left in receiver.left if left[1] == each.namespace])
        assert receiver.ids(each.namespace) == list(range(count))


@pytest.mark.slow
@given(COSTS, DELAYS, st.booleans())
def test_rows_of_a_namespace_leave_in_their_order(costs: list[int], delays: list[int], in_order: bool) -> None:
    receiver = Receiver(ManualClock(), delays)
    send(receiver, flow(costs), in_order=in_order)
    assert receiver.ids() == list(range(len(costs)))


def test_keys_do_not_depend_on_the_time_that_calls_take() -> None:
    costs = [MS, 5 * MS, 100_000, 100_000] * 20
    first, again = Receiver(ManualClock()), Receiver(ManualClock(), [30 * MS, 0])
    send(first, flow(costs, 2 * SECOND))
    send(again, flow(costs), concurrency=1)
    assert first.keys == again.keys
    assert len({key.text for key in first.keys}) == len(first.keys)


def test_rows_leave_evenly_over_the_window() -> None:
    receiver = Receiver(ManualClock())
    send(receiver, flow([MS] * 100, 10 * SECOND, rows_per_call=1))
    times_ms = [round(left[0] / MS) for left in receiver.left]
    assert {after - before for before, after in pairwise(times_ms)} <= set(range(95, 106))
    assert 9_890 <= times_ms[-1] <= 9_910


@pytest.mark.slow
def test_99_percent_of_a_minute_is_sent_though_nothing_is_while_a_batch_is_planned() -> None:
    rate, planning_ns, interval_ns = 200, 300 * MS, 5 * SECOND
    receiver, admitted = Receiver(ManualClock()), 0
    clock = receiver.clock
    while clock.now_ns() < 70 * SECOND:
        next_ns = (clock.now_ns() // interval_ns + 1) * interval_ns
        earned = clock.now_ns() * rate // SECOND - admitted
        clock.advance(planning_ns)
        admitted += send(receiver, flow([SECOND // rate] * earned, next_ns - clock.now_ns()))
        clock.advance(max(0, next_ns - clock.now_ns()))
    check_limit(receiver.left)
    sent = sum(1 for left in receiver.left if 5 * SECOND <= left[0] < 65 * SECOND)
    assert 0.99 * 60 * rate <= sent <= 60 * rate


def test_first_error_ends_the_other_calls() -> None:
    clock = ManualClock()
    cancelled = []

    async def fails(rows: Rows, key: IdempotencyKey) -> None:
        if key.namespace == "t/bad":
            await asyncio.sleep(1)
            raise OSError(f"no route for {key.text}")
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.append(key.namespace)
            raise

    flows = [flow([MS], namespace="t/bad"), flow([MS] * 9, namespace="t/good")]
    with pytest.raises(OSError, match="no route for q/3/id/t%2Fbad/0"):
        run(clock, send_flows(flows, fails, concurrency=4, in_order=True, patience_seconds=60, clock=clock))
    assert cancelled == ["t/good"]


def test_plain_function_runs_in_threads_of_its_own() -> None:
    seen = []

    def plain(rows: Rows, key: IdempotencyKey) -> None:
        seen.append((threading.current_thread() is threading.main_thread(), key.place, rows[0]["id"]))

    flows = [flow([MS] * 3, rows_per_call=1)]
    assert asyncio.run(send_flows(flows, plain, concurrency=2, in_order=True, patience_seconds=60)).rows == 3
    assert seen == [(False, 0, 0), (False, 1, 1), (False, 2, 2)]


def test_sender_is_opened_once_and_closed_after_an_error() -> None:
    clock = ManualClock()
    events: list[str | int] = []

    class Opens:
        def opened(self) -> AbstractAsyncContextManager[Send]:
            return self._opened()

        @asynccontextmanager
        async def _opened(self) -> AsyncIterator[Send]:
            events.append("open")
            try:
                yield self._send
            finally:
                events.append("close")

        async def _send(self, rows: Rows, key: IdempotencyKey) -> Any:
            events.append(key.place)
            if key.place == 1:
                raise ValueError("enough")

    flows = [flow([MS] * 3, rows_per_call=1)]
    with pytest.raises(ValueError, match="enough"):
        run(clock, send_flows(flows, Opens(), concurrency=2, in_order=True, patience_seconds=60, clock=clock))
    assert events == ["open", 0, 1, "close"]


# What a `send` of somebody else's may do: no row that it did not take counts as sent.


def taken(function: Send, rows: int = 3) -> int:
    sending = send_flows([flow([1_000] * rows)], function, concurrency=2, in_order=True, patience_seconds=60)

    async def bounded() -> int:
        return (await asyncio.wait_for(sending, 30)).rows

    return asyncio.run(bounded())


def test_send_that_lets_a_cancellation_of_its_own_through_ends_the_batch() -> None:
    async def cancelled(rows: Rows, key: IdempotencyKey) -> None:
        raise asyncio.CancelledError

    with pytest.raises(DeliveryError, match="send was cancelled by itself"):
        taken(cancelled)


def test_coroutine_that_a_plain_function_returns_is_awaited() -> None:
    found: list[int] = []

    async def later(rows: Rows) -> None:
        found.extend(row["id"] for row in rows)

    assert taken(lambda rows, _: later(rows)) == 3
    assert found == [0, 1, 2]


def test_plain_function_that_raises_stop_iteration_ends_the_batch() -> None:
    def exhausted(rows: Rows, key: IdempotencyKey) -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="send raised StopIteration"):
        taken(exhausted)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_send_that_would_end_the_process_ends_the_batch(error: BaseException, is_coroutine: bool) -> None:
    def exits(rows: Rows, key: IdempotencyKey) -> None:
        raise error

    async def exits_later(rows: Rows, key: IdempotencyKey) -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"send raised {type(error).__name__}"):
        taken(exits_later if is_coroutine else exits)
