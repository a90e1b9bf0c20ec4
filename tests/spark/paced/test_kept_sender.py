"""Kept calls that are sent while batches come and go: who learns of it, and when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.core.shares.destinations import WHOLE
from spark_throttle.errors import Backpressure, DeliveryError
from spark_throttle.spark.paced.calls import Call
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.in_flight import Stop
from spark_throttle.spark.paced.kept_sender import KeptSender, Sending, SentMeanwhile
from spark_throttle.spark.paced.sending import BatchName, Flow, Sent, parcels_of, send_flows
from spark_throttle.spark.paced.unsent_calls import count_rows, parcels_of_table, tables_of

ROWS = 40
FOREVER = Terms(row_ns=1_000, floor_part=WHOLE, seconds=10.0**6, is_timed=True)
PARCELS = parcels_of(
    "d/a", pa.table({"id": range(ROWS)}), [Call(place, 1, 0) for place in range(ROWS)], BatchName("q", 3, "id")
)
NEW = SentMeanwhile(tables_of(PARCELS), {}, {}, 0)


class Destination:
    """Takes so many calls, says so, and lets those after that wait, or refuses them for an hour."""

    def __init__(self, calls: int, *, refuses: bool, answer: Exception | None = None) -> None:
        self.taken: list[int] = []
        self.made = Counter[str]()
        self.is_reached, self.goes_on = threading.Event(), threading.Event()
        self._calls, self._refuses, self._answer = calls, refuses, answer

    async def __call__(self, rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
        self.made[key.text] += 1
        if len(self.taken) >= self._calls:
            self.is_reached.set()
            if self._refuses:
                raise Backpressure(3_600)
            await asyncio.to_thread(self.goes_on.wait, 20)
            answer, self._answer = self._answer, None
            if answer is not None:
                raise answer
        self.taken += [row["id"] for row in rows]

    def sending(self, before: SentMeanwhile = NEW) -> Sending:
        """Return what sends what an earlier sending left."""

        def send(stop: Stop, tell: Callable[[SentMeanwhile], None]) -> None:
            def stopped(sent: Sent) -> None:
                tell(SentMeanwhile(tables_of(sent.unsent), sent.told, {}, 0, sent.held, sent.in_flight))

            parcels = [parcel for table in before.unsent for parcel in parcels_of_table(table, 0)]
            sending = send_flows(
                [Flow("d/a", parcels, "d")], self, concurrency=4, in_order=True, patience_seconds=60,
                terms={"d": FOREVER}, stop=stop, in_flight=before.in_flight, stopped=stopped,
            )  # fmt: skip
            asyncio.run(sending)

        return send


def ended(kept: KeptSender, *, hands_over: bool = False) -> SentMeanwhile:
    found = kept.end(hands_over=hands_over)
    assert found is not None
    return found


def go_on(kept: KeptSender, destination: Destination) -> None:
    """Run batches for ever."""
    while True:
        kept.begin(8, destination.sending(ended(kept, hands_over=True)))


def threads() -> int:
    """Return how many threads send."""
    return sum(thread.name == "sends kept calls" for thread in threading.enumerate())


@pytest.mark.parametrize("refuses", [False, True])
def test_call_that_is_on_its_way_ends_and_the_next_batch_gets_the_others(refuses: bool) -> None:
    destination, kept = Destination(7, refuses=refuses), KeptSender()
    kept.begin(3, destination.sending())
    assert destination.is_reached.wait(20)
    threading.Timer(0.05, destination.goes_on.set).start()
    found = ended(kept)
    assert destination.taken == list(range(7 if refuses else 8))
    assert count_rows(found.unsent) == ROWS - len(destination.taken)
    assert found.told["d"].accepted == len(destination.taken)
    assert kept.end() is None


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("answer", [None, Backpressure(0.1), DeliveryError("d", "key", "it answered 400", 1)])
def test_call_that_does_not_end_keeps_no_batch_waiting_and_is_not_made_again(answer: Exception | None) -> None:
    destination, kept = Destination(7, refuses=False, answer=answer), KeptSender()
    kept.begin(3, destination.sending())
    assert destination.is_reached.wait(20)
    found = ended(kept, hands_over=True)
    for batch in range(4, 7):  # each takes what is on its way from the one before
        assert (destination.taken, count_rows(found.unsent)) == (list(range(7)), ROWS - 7)
        assert list(found.in_flight) == ["q/3/id/d%2Fa/7"]
        kept.begin(batch, destination.sending(found))
        found = ended(kept, hands_over=True)
    kept.begin(7, destination.sending(found))
    destination.goes_on.set()
    if isinstance(answer, DeliveryError):
        with pytest.raises(DeliveryError, match="it answered 400"):
            go_on(kept, destination)
        return
    while len(destination.taken) < ROWS:
        pass
    found = ended(kept)
    assert destination.taken == list(range(ROWS))
    assert found.told["d"].refused == (answer is not None)
    assert set(destination.made.values()) == ({1} if answer is None else {1, 2})
    assert (found.unsent, dict(found.in_flight)) == ([], {})


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_thread_that_waits_for_the_call_of_another_ends_with_its_batch() -> None:
    destination, kept, before = Destination(7, refuses=False), KeptSender(), threads()
    kept.begin(3, destination.sending())
    assert destination.is_reached.wait(20)
    found = ended(kept, hands_over=True)
    for batch in range(4, 8):
        kept.begin(batch, destination.sending(found))
        found = ended(kept, hands_over=True)
    while threads() > before + 1:
        pass
    destination.goes_on.set()
    while threads() > before:
        pass


def test_sending_that_ended_by_itself_is_told_to_the_batch_after_it_and_to_no_other() -> None:
    destination, kept = Destination(ROWS, refuses=False), KeptSender()
    assert not kept.goes_on(-1)
    kept.begin(3, destination.sending())
    assert (kept.goes_on(2), kept.goes_on(3)) == (False, True)
    while len(destination.taken) < ROWS:
        pass
    found = ended(kept)
    assert (found.unsent, found.told["d"].accepted) == ([], ROWS)
    assert not kept.goes_on(3)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_sending_ends_with_its_query() -> None:
    destination, kept, before = Destination(7, refuses=True), KeptSender(), threads()
    looked = threading.Event()

    def is_active() -> bool:
        looked.set()
        raise ConnectionError("the session is gone")

    kept.follow(is_active)
    kept.begin(3, destination.sending())
    assert looked.wait(20)
    while threads() > before:
        pass
    assert len(destination.taken) <= 7


def test_what_ends_the_sending_ends_the_next_batch() -> None:
    kept = KeptSender()

    def send(*_: Any) -> None:
        raise DeliveryError("api", "key", "it answered 400", 1)

    kept.begin(3, send)
    with pytest.raises(DeliveryError, match="it answered 400"):
        kept.end()
