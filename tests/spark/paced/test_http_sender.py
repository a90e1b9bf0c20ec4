"""`HttpSender` against a real server on loopback."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.errors import ConfigurationError, DeliveryError
from spark_throttle.spark.paced import HttpSender, http_sender
from spark_throttle.spark.paced.calls import calls_of
from spark_throttle.spark.paced.http_sender import encoded
from spark_throttle.spark.paced.paced_options import http_sender as from_options
from spark_throttle.spark.paced.sending import BatchName, Flow, send_flows
from tests.receiver import Arrival, Record, receiver

NAME = BatchName("q", 3, "id")


@pytest.fixture
def record() -> Iterator[Record]:
    with receiver() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sender, "_FIRST_PAUSE_SECONDS", 0.0)


def send(sender: HttpSender, rows: int = 12) -> None:
    calls = calls_of(np.zeros(rows, dtype=np.int64), 0, 3)
    flows = [Flow("t/n", pa.table({"id": range(rows)}), calls)]
    asyncio.run(send_flows(flows, sender, NAME, concurrency=4, in_order=True))


def test_rows_arrive_as_json_under_their_keys_over_one_connection(record: Record) -> None:
    send(HttpSender(record.url, headers={"Authorization": "Bearer x"}))
    assert [arrival.key for arrival in record.arrivals] == [f"q/3/id/t%2Fn/{place}" for place in (0, 3, 6, 9)]
    assert [row["id"] for arrival in record.arrivals for row in arrival.rows] == list(range(12))
    assert {arrival.headers["Authorization"] for arrival in record.arrivals} == {"Bearer x"}
    assert {arrival.headers["Content-Type"] for arrival in record.arrivals} == {"application/json"}
    assert len({arrival.connection for arrival in record.arrivals}) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_call_that_is_refused_for_now_is_made_again_with_the_same_key_and_bytes(record: Record, status: int) -> None:
    def answer(arrival: Arrival) -> int:
        return 200 if [each.key for each in record.arrivals].count(arrival.key) == 3 else status

    record.answer = answer
    send(HttpSender(record.url, attempts=3))
    assert len(record.arrivals) == 12
    assert [row["id"] for body in record.by_key().values() for row in json.loads(body)] == list(range(12))


def test_call_without_an_answer_ends_the_batch_after_the_last_attempt() -> None:
    with receiver() as gone:
        url = gone.url
    with pytest.raises(DeliveryError, match=r"q/3/id/t%2Fn/0: no answer \(ConnectError\) \(attempt 2\); repair"):
        send(HttpSender(url, attempts=2))


@pytest.mark.parametrize(("status", "attempts"), [(400, 1), (404, 1), (301, 1), (503, 2)])
def test_refusal_ends_the_batch_with_key_status_and_remedy(record: Record, status: int, attempts: int) -> None:
    record.answer = lambda _: status
    with pytest.raises(DeliveryError, match=f"q/3/id/t%2Fn/0: it answered {status} .attempt {attempts}.; repair"):
        send(HttpSender(record.url, attempts=2))
    assert len(record.arrivals) == attempts


def test_values_of_every_kind_are_written_alike_each_time() -> None:
    rows: list[dict[str, Any]] = [
        {"d": Decimal("1.50"), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "raw": b"\xff", "n": None, "s": "é"},
        {"d": None, "at": dt.date(2026, 1, 2), "raw": b"", "n": [1, {"x": 2}], "s": '"'},
    ]
    assert encoded(rows) == encoded([dict(row) for row in rows])
    assert json.loads(encoded(rows))[0] == {
        "d": "1.50", "at": "2026-01-02T00:00:00+00:00", "raw": "/w==", "n": None, "s": "é",
    }  # fmt: skip


def test_headers_are_not_shown() -> None:
    assert "secret" not in repr(HttpSender("http://api.example", headers={"Authorization": "secret"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs option\('url'"),
        ({"url": "ftp://x"}, "begins with http"),
        ({"url": "http://x", "attempts": "0"}, "attempts is 0; give a number from 1 on"),
        ({"url": "http://x", "timeout_seconds": "0"}, "timeout_seconds is 0.0"),
        ({"url": "http://x", "concurrency": "0"}, "concurrency is 0; give"),
        ({"url": "http://x", "rows_per_call": "many"}, "rows_per_call is 'many'; give a number"),
        ({"url": "http://x", "in_order": "no"}, "in_order is 'no'; give true or false"),
        ({"url": "http://x", "speed": "1"}, "no option 'speed'"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_options(options)


def test_options_describe_a_sender_and_its_calls() -> None:
    sender, calls = from_options(
        {"url": "http://x", "header.A": "b", "timeout_seconds": "2.5", "attempts": "7", "in_order": "false"}
    )
    assert (sender.headers, sender.timeout_seconds, sender.attempts) == ({"A": "b"}, 2.5, 7)
    assert (calls.in_order, calls.concurrency, calls.rows_per_call) == (False, 16, 100)
