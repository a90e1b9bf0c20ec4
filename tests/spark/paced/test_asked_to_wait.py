"""A time that a destination asks for holds for everybody who sends there, until it is over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.shares.destinations import WHOLE
from spark_throttle.errors import Backpressure
from spark_throttle.pace import ManualClock
from spark_throttle.spark.paced.calls import IdempotencyKey, calls_of
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.sending import BatchName, Flow, Held, Rows, parcels_of, send_flows
from tests.pace.simulated_loop import run
from tests.spark.paced.destinations import MS, SECOND, Destination

ROWS = {"d/a": 20, "d/b": 20}
ASKED_MS = 120_000
DAY_MS = 86_400_000


def terms(closed_until_ms: int = 0, *, seconds: float = 5.0) -> dict[str, Terms]:
    """Return how a batch of some seconds sends 200 rows a second to a destination."""
    return {"d": Terms(5 * MS, WHOLE // 100, seconds, closed_until_ms=closed_until_ms)}


def takes_all() -> Destination:
    return Destination(lambda *_: None)


@pytest.mark.slow
@given(seconds=st.sampled_from([1.0, 5.0, 30.0]), is_timed=st.booleans(), is_unavailable=st.booleans())
def test_destination_is_not_called_before_by_this_batch_nor_by_later_ones(
    seconds: float, *, is_timed: bool, is_unavailable: bool
) -> None:
    def how(closed_until_ms: int = 0) -> dict[str, Terms]:
        of_d = terms(closed_until_ms, seconds=seconds)["d"]
        return {"d": replace(of_d, is_timed=is_timed, is_unavailable=is_unavailable)}

    asks, began_ms = Destination(lambda *_: Backpressure(ASKED_MS / 1_000)), 1_000
    closed_until_ms = asks.send(ROWS, terms=how(), began_ms=began_ms).told["d"].closed_until_ms
    assert 0 <= closed_until_ms - (began_ms + 1_000 * asks.asked[0][0] + ASKED_MS) <= 60
    while began_ms + 2_000 * seconds < closed_until_ms:
        began_ms += int(1_000 * seconds)
        later = takes_all()
        sent = later.send(ROWS, terms=how(closed_until_ms), began_ms=began_ms)
        told = sent.told["d"]
        assert later.asked == []
        assert (told.accepted, told.refused, len(sent.undelivered)) == (0, 0, 40)
        assert told.closed_until_ms == closed_until_ms
    last = takes_all()
    last.send(ROWS, terms=how(closed_until_ms), began_ms=closed_until_ms - 500)
    assert 0.5 <= last.asked[0][0] < 0.6
    assert sum(map(len, last.taken.values())) > 20


def test_scope_is_not_called_before_by_those_that_it_refused_and_others_go_on() -> None:
    asks = Destination(lambda _, key: Backpressure(120, scope="x") if key.namespace == "d/a" else None)
    sent = asks.send(ROWS, terms=terms())
    assert len(asks.taken["d/b"]) == 20
    assert set(sent.held) == {"d/a"}
    held = sent.held["d/a"]
    assert (held.scope, held.until_ms // 1_000) == ("x", 120)
    assert sent.told["d"].closed_until_ms == 0
    later = takes_all()
    again = later.send(ROWS, terms=terms(), began_ms=60_000, held=sent.held)
    assert set(later.taken) == {"d/b"}
    assert again.held == sent.held
    last = takes_all()
    assert not last.send(ROWS, terms=terms(), began_ms=119_000, held=sent.held).undelivered
    assert min(last.asked_at("d/a")) >= 1


def test_call_that_was_held_and_is_taken_is_taken_by_its_destination() -> None:
    destination = Destination(lambda now, _: Backpressure(1) if now < 0.5 else None)
    sent = destination.send({"d/a": 20}, terms=terms(), held={"d/a": Held("d/a", 0)})
    assert not sent.undelivered
    assert sent.told["d"].accepted == 20


@pytest.mark.slow
def test_answer_that_comes_late_closes_a_destination_that_has_opened_again() -> None:
    """The first call takes a second, and is told to wait for five."""
    clock, left = ManualClock(), list[float]()

    async def send(rows: Rows, key: IdempotencyKey) -> None:
        left.append(clock.now_ns() / SECOND)
        number = len(left)
        await asyncio.sleep(1.0 if number == 1 else 0.001)
        if number == 1:
            raise Backpressure(5.0)
        if number == 2:
            raise Backpressure

    rows, calls = pa.table({"id": range(400)}), calls_of(np.full(400, 10 * MS), 0, 1)
    flow = Flow("d/a", parcels_of("d/a", rows, calls, BatchName("q", 3, "id")), "d")
    sending = send_flows(
        [flow], send, concurrency=4, in_order=False, patience_seconds=60, terms=terms(seconds=30.0), clock=clock
    )
    run(clock, sending)
    assert any(0.2 < at < 1.0 for at in left)
    assert not [at for at in left if 1.001 < at < 6.0]


def test_refusal_without_a_time_shortens_none_that_was_asked_for() -> None:
    """Both namespaces are refused in the name of one scope."""
    times = iter([Backpressure(5.0, scope="x"), Backpressure(scope="x")])
    destination = Destination(lambda *_: next(times, None))
    destination.send(ROWS, terms=terms(seconds=30.0))
    assert not [at for at, *_ in destination.asked[2:] if at < 5.0]


@pytest.mark.parametrize("asked", [0.0, 0.001, 0.05])
def test_destination_that_asks_for_no_time_is_not_called_at_once(asked: float) -> None:
    destination = Destination(lambda *_: Backpressure(asked))
    sent = destination.send({"d/a": 20}, terms=terms(seconds=10.0))
    assert len(sent.undelivered) == 20
    pauses = [after - before for before, after in pairwise(destination.asked_at("d/a"))]
    assert min(pauses) >= 0.1
    assert len(pauses) < 15


def test_destination_that_asks_for_years_is_asked_after_a_day() -> None:
    destination = Destination(lambda *_: Backpressure(1e300))
    assert destination.send(ROWS, terms=terms()).told["d"].closed_until_ms <= DAY_MS + 100
    later = takes_all()
    later.send({"d/a": 1}, terms=terms(10**15, seconds=2.0 * DAY_MS / 1_000))
    assert DAY_MS / 1_000 <= later.asked[0][0] <= DAY_MS / 1_000 + 1


def refuses_one(now: float, key: IdempotencyKey) -> Backpressure | None:
    """Refuse the first row of a namespace for ever."""
    return Backpressure(problem="it answered 500") if (key.namespace, key.place) == ("d/a", 0) else None


@pytest.mark.slow
def test_row_that_is_never_taken_holds_only_its_namespace_back() -> None:
    destination = Destination(refuses_one)
    rows = {"d/a": 50, "d/b": 1_300, "d/c": 1_300}
    sent = destination.send(rows, terms=terms(seconds=12.0))
    assert sum(map(len, destination.taken.values())) > 0.7 * 200 * 12  # of what the destination's rate gives
    assert "d/a" not in destination.taken
    assert len(destination.asked_at("d/a")) < 15
    assert sent.held == {"d/a": Held("d/a")}
    later = Destination(refuses_one)
    told = later.send(rows, terms=terms(seconds=6.0), held=sent.held).told["d"]
    assert told.refused == 0
    assert sum(map(len, later.taken.values())) > 0.9 * 200 * 6


@pytest.mark.slow
def test_namespace_whose_row_is_taken_at_last_follows_the_rate_of_its_destination_again() -> None:
    destination = Destination(lambda now, key: refuses_one(now, key) if now < 3 else None)
    how = {"d": Terms(20 * MS, WHOLE // 100, 30.0)}
    sent = destination.send({"d/a": 200, "d/b": 400}, terms=how)
    assert sent.held == {}
    assert not sent.undelivered
    at = [at for at, _, is_taken in destination.asked if is_taken]
    assert all(after - before > 0.9 for before, after in zip(at, at[50:], strict=False))


def test_scope_frees_no_call_of_the_rate_of_its_destination() -> None:
    first = iter([Backpressure(0.1, scope="x")])
    destination = Destination(lambda *_: next(first, None))
    how = {"d": Terms(20 * MS, WHOLE // 100, 4.0)}
    told = destination.send({"d/a": 400}, terms=how).told["d"]
    assert 180 <= len(destination.taken["d/a"]) <= 203
    assert told.accepted == len(destination.taken["d/a"])
