"""What happens in a task while a destination says "not now", by a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.errors import Backpressure, DeliveryError
from spark_throttle.pace import ManualClock
from spark_throttle.spark.paced.calls import calls_of
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.sending import BatchName, Flow, Rows, send_flows
from tests.pace.simulated_loop import run

MS = 1_000_000
SECOND = 1_000 * MS


class Destination:
    """Answers by a function of the time and of the key; records what it was asked, and what it took."""

    def __init__(self, answer: Callable[[float, IdempotencyKey], Backpressure | None]) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[float, str, bool]] = []
        self.taken: dict[str, list[int]] = {}
        self._answer = answer

    async def __call__(self, rows: Rows, key: IdempotencyKey) -> None:
        now = self.clock.now_ns() / SECOND
        refusal = self._answer(now, key)
        self.asked.append((now, key.namespace, refusal is None))
        await asyncio.sleep(0.01)
        if refusal is not None:
            raise refusal
        self.taken.setdefault(key.namespace, []).extend(row["id"] for row in rows)

    def send(self, rows_of: dict[str, int], *, in_order: bool = True, patience_seconds: float = 60) -> int:
        flows = [
            Flow(name, pa.table({"id": range(rows)}), calls_of(np.full(rows, 10 * MS), 0, 1))
            for name, rows in rows_of.items()
        ]
        return run(self.clock, send_flows(
            flows, self, BatchName("q", 3, "id"), concurrency=4, in_order=in_order, patience_seconds=patience_seconds,
            clock=self.clock,
        ))  # fmt: skip

    def refused(self, namespace: str) -> list[float]:
        return [at for at, name, is_taken in self.asked if name == namespace and not is_taken]


def test_refused_call_is_made_again_after_the_time_that_was_asked_for_and_others_go_on() -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        return Backpressure(2.5) if key.namespace == "t/a" and 0.3 <= now < 2.5 else None

    destination = Destination(answer)
    assert destination.send({"t/a": 100, "t/b": 100}) == 200
    assert destination.taken == {"t/a": list(range(100)), "t/b": list(range(100))}
    (refused,) = destination.refused("t/a")
    after = min(at for at, name, _ in destination.asked if name == "t/a" and at > refused)
    assert 2.5 <= after - refused <= 2.52
    assert max(at for at, name, _ in destination.asked if name == "t/b") < 1.1


def test_pauses_double_while_one_call_at_a_time_asks_again() -> None:
    destination = Destination(lambda now, _: Backpressure() if now < 8 else None)
    destination.send({"t/a": 20}, in_order=False)
    asked = [at for at, *_ in destination.asked if at < 12]
    first = [at for at in asked if at < 0.1]
    assert len(first) <= 4  # the calls in flight when the first refusal came
    again = [at for at in asked if at >= 0.1]
    pauses = [after - before for before, after in pairwise(again)][:5]
    assert [round(pause, 1) for pause in pauses] == [0.2, 0.4, 0.8, 1.6, 3.2]


def test_scope_that_a_refusal_names_holds_all_that_were_refused_by_it_and_nobody_else() -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        return Backpressure(1.0, scope="api") if key.namespace != "t/c" and now < 0.9 else None

    destination = Destination(answer)
    destination.send({"t/a": 20, "t/b": 20, "t/c": 20})
    assert sum(len(destination.refused(name)) for name in ("t/a", "t/b")) == 2
    assert max(at for at, name, _ in destination.asked if name == "t/c") < 0.3


def test_destination_that_refuses_for_longer_than_the_patience_ends_the_batch() -> None:
    destination = Destination(lambda *_: Backpressure(problem="it answered 503"))
    with pytest.raises(DeliveryError, match=r"t/a did not take the rows of call q/3/id/t%2Fa/0: it answered 503"):
        destination.send({"t/a": 3}, patience_seconds=7)
    assert 3 <= destination.clock.now_ns() / SECOND <= 7


@given(
    outages=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 2_000)), max_size=4),
    asked_ms=st.none() | st.integers(0, 1_500),
    in_order=st.booleans(),
)
def test_every_row_is_taken_once_whatever_is_refused(
    outages: list[tuple[int, int]], asked_ms: int | None, *, in_order: bool
) -> None:
    def answer(now: float, key: IdempotencyKey) -> Backpressure | None:
        is_out = any(start <= now * 1_000 < start + length for start, length in outages)
        return Backpressure(None if asked_ms is None else asked_ms / 1_000) if is_out else None

    destination = Destination(answer)
    assert destination.send({"t/a": 60, "t/b": 30}, in_order=in_order) == 90
    for name, rows in (("t/a", 60), ("t/b", 30)):
        taken = destination.taken[name]
        assert (taken if in_order else sorted(taken)) == list(range(rows))
