"""Kept calls that are sent while batches come and go: who learns of it, and when it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.core.lending.destinations import WHOLE
from spark_throttle.errors import Backpressure, DeliveryError
from spark_throttle.spark.paced.calls import Call
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.kept_sender import KeptSender, SentMeanwhile
from spark_throttle.spark.paced.sending import BatchName, Flow, Sent, Stop, parcels_of, send_flows
from spark_throttle.spark.paced.unsent_calls import count_rows, tables_of

ROWS = 40
FOREVER = Terms(row_ns=1_000, floor_part=WHOLE, seconds=10.0**6, is_timed=True)


class Destination:
    """Takes so many calls, says so, and lets those after that wait, or refuses them for an hour."""

    def __init__(self, calls: int, *, refuses: bool) -> None:
        self.taken: list[int] = []
        self.is_reached, self.goes_on = threading.Event(), threading.Event()
        self._calls, self._refuses = calls, refuses

    async def __call__(self, rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
        if len(self.taken) >= self._calls:
            self.is_reached.set()
            if self._refuses:
                raise Backpressure(3_600)
            await asyncio.to_thread(self.goes_on.wait, 20)
        self.taken += [row["id"] for row in rows]

    def send(self, stop: Stop) -> SentMeanwhile:
        calls = [Call(place, 1, 0) for place in range(ROWS)]
        parcels = parcels_of("d/a", pa.table({"id": range(ROWS)}), calls, BatchName("q", 3, "id"))
        sending = send_flows(
            [Flow("d/a", parcels, "d")], self, concurrency=4, in_order=True, patience_seconds=60, terms={"d": FOREVER},
            stop=stop,
        )  # fmt: skip
        sent: Sent = asyncio.run(sending)
        return SentMeanwhile(tables_of(sent.unsent), sent.told, {}, 0)


@pytest.mark.parametrize("refuses", [False, True])
def test_call_that_is_on_its_way_ends_and_the_next_batch_gets_the_others(refuses: bool) -> None:
    destination, kept = Destination(7, refuses=refuses), KeptSender()
    kept.begin(3, destination.send)
    assert destination.is_reached.wait(20)
    threading.Timer(0.05, destination.goes_on.set).start()
    found = kept.end()
    assert found is not None
    assert destination.taken == list(range(7 if refuses else 8))
    assert count_rows(found.unsent) == ROWS - len(destination.taken)
    assert found.told["d"].accepted == len(destination.taken)
    assert kept.end() is None


def test_sending_that_ended_by_itself_is_told_to_the_batch_after_it_and_to_no_other() -> None:
    destination, kept = Destination(ROWS, refuses=False), KeptSender()
    assert not kept.goes_on(-1)
    kept.begin(3, destination.send)
    assert (kept.goes_on(2), kept.goes_on(3)) == (False, True)
    while len(destination.taken) < ROWS:
        pass
    found = kept.end()
    assert found is not None
    assert (found.unsent, found.told["d"].accepted) == ([], ROWS)
    assert not kept.goes_on(3)


@pytest.mark.timeout(60)
def test_sending_ends_with_its_query() -> None:
    destination, kept = Destination(7, refuses=True), KeptSender()
    looked = threading.Event()

    def is_active() -> bool:
        looked.set()
        raise ConnectionError("the session is gone")

    kept.follow(is_active)
    kept.begin(3, destination.send)
    assert looked.wait(20)
    thread = kept._thread
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()
    assert len(destination.taken) <= 7


def test_what_ends_the_sending_ends_the_next_batch() -> None:
    kept = KeptSender()

    def send(_: Stop) -> SentMeanwhile:
        raise DeliveryError("api", "key", "it answered 400", 1)

    kept.begin(3, send)
    with pytest.raises(DeliveryError, match="it answered 400"):
        kept.end()
