"""A call is one POST under its key, made again until it is taken, and no sooner than the answer asks for."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.errors import Backpressure, ConfigurationError, DeliveryError
from spark_throttle.spark.paced import HttpSender, gate, http_sender
from spark_throttle.spark.paced.calls import IdempotencyKey, calls_of
from spark_throttle.spark.paced.http_sender import encoded, retry_after_seconds
from spark_throttle.spark.paced.paced_options import http_sender as from_options
from spark_throttle.spark.paced.paced_options import send_options
from spark_throttle.spark.paced.sending import BatchName, Flow, parcels_of, send_flows
from tests.receiver import Arrival, Record, receiver

NAME = BatchName("q", 3, "id")

NOW = "Sun, 06 Nov 1994 08:49:37 GMT"
DAY = 86_400


@pytest.fixture
def record() -> Iterator[Record]:
    with receiver() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sender, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(gate, "FIRST_PAUSE_SECONDS", 0.0)


def send(sender: HttpSender, rows: int = 12, patience_seconds: float = 60) -> None:
    calls = calls_of(np.zeros(rows, dtype=np.int64), 0, 3)
    flows = [Flow("t/n", parcels_of("t/n", pa.table({"id": range(rows)}), calls, NAME))]
    asyncio.run(send_flows(flows, sender, concurrency=4, in_order=True, patience_seconds=patience_seconds))


def test_rows_arrive_as_json_under_their_keys_over_one_connection(record: Record) -> None:
    send(HttpSender(record.url, headers={"Authorization": "Bearer x"}))
    assert [arrival.key for arrival in record.arrivals] == [f"q/3/id/t%2Fn/{place}" for place in (0, 3, 6, 9)]
    assert [row["id"] for arrival in record.arrivals for row in arrival.rows] == list(range(12))
    assert {arrival.headers["Authorization"] for arrival in record.arrivals} == {"Bearer x"}
    assert {arrival.headers["Content-Type"] for arrival in record.arrivals} == {"application/json"}
    assert len({arrival.connection for arrival in record.arrivals}) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
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
    with pytest.raises(
        DeliveryError, match=rf"q/3/id/t%2Fn/0: no answer \(ConnectError: .+\) at {url}, and takes .*; repair"
    ):
        send(HttpSender(url, attempts=2), patience_seconds=0)


@pytest.mark.parametrize("status", [400, 404, 301])
def test_refusal_ends_the_batch_with_key_status_and_remedy(record: Record, status: int) -> None:
    record.answer = lambda _: status
    with pytest.raises(DeliveryError, match=f"q/3/id/t%2Fn/0: it answered {status} .attempt 1.; repair"):
        send(HttpSender(record.url, attempts=2))
    assert len(record.arrivals) == 1


@pytest.mark.parametrize(("status", "requests"), [(429, 1), (503, 1), (500, 2), (408, 2)])
def test_answer_that_means_not_now_is_backpressure(record: Record, status: int, requests: int) -> None:
    record.answer = lambda _: status
    record.headers = {"Retry-After": "0"}

    async def one_call() -> None:
        async with HttpSender(record.url, attempts=2).opened() as call:
            await call([{"id": 1}], IdempotencyKey("q", 3, "id", "t/n", 0))

    with pytest.raises(Backpressure, match=f"it answered {status} at {record.url}; it asks to wait 0.0 s") as refusal:
        asyncio.run(one_call())
    assert (refusal.value.retry_after_seconds, refusal.value.scope) == (0.0, None)
    assert len(record.arrivals) == requests


@pytest.mark.parametrize(
    ("statuses", "may_be_taken"),
    [([429], False), ([503], False), ([500, 500], True), ([500, 429], True), ([504, 504], True)],
)
def test_refusal_says_whether_the_call_may_have_been_taken(
    record: Record, statuses: list[int], *, may_be_taken: bool
) -> None:
    left = iter(statuses)
    record.answer = lambda _: next(left)

    async def one_call() -> None:
        async with HttpSender(record.url, attempts=2).opened() as call:
            await call([{"id": 1}], IdempotencyKey("q", 3, "id", "t/n", 0))

    with pytest.raises(Backpressure) as refusal:
        asyncio.run(one_call())
    assert refusal.value.may_be_taken == may_be_taken


def test_destination_that_asks_for_more_than_the_patience_ends_the_batch_at_once(record: Record) -> None:
    record.answer = lambda _: 503
    record.headers = {"Retry-After": "3600"}
    said = (
        rf"t/n did not take .* q/3/id/t%2Fn/0: it answered 503 at {record.url}, and takes no call for 3600 s, more than"
    )
    with pytest.raises(DeliveryError, match=f"{said} patience_seconds=60"):
        send(HttpSender(record.url))
    assert len(record.arrivals) == 1


@pytest.mark.parametrize(("status", "asked"), [(500, "3600"), (503, "3600"), (408, "6")])
def test_destination_that_asks_to_wait_for_long_is_not_waited_for_in_the_call(
    record: Record, status: int, asked: str
) -> None:
    record.answer = lambda _: status
    record.headers = {"Retry-After": asked}
    with pytest.raises(Backpressure) as refusal:
        asyncio.run(one_call(record.url, attempts=2))
    assert refusal.value.retry_after_seconds == float(asked)
    assert len(record.arrivals) == 1


async def one_call(url: str, **options: Any) -> None:
    async with HttpSender(url, **options).opened() as call:
        await call([{"id": 1}], IdempotencyKey("q", 3, "id", "t/n", 0))


def ask(answer: Callable[[asyncio.StreamWriter], Awaitable[None]], **options: Any) -> None:
    """Make one call to a server whose answer is written by a function."""

    serving = list[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    async def run() -> None:
        async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
            try:
                await one_call(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", **options)
            finally:
                for task in serving:
                    task.cancel()
                await asyncio.wait(serving)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_answer_that_never_ends_ends_with_the_time_of_a_request() -> None:
    async def dribble(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    with pytest.raises(Backpressure, match=r"no answer \(TimeoutError\)"):
        ask(dribble, timeout_seconds=0.5, attempts=1)


@pytest.mark.timeout(20)
def test_no_more_is_read_of_a_long_answer_than_tells_that_the_rows_were_taken() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    ask(endless)


def test_body_of_an_answer_is_not_looked_at() -> None:
    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
        await asyncio.Event().wait()

    ask(broken)


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_destination_that_does_not_answer_is_not_tried_again_after_the_time_of_a_request() -> None:
    asked = []

    async def silent(writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        await asyncio.Event().wait()

    with pytest.raises(Backpressure, match=r"no answer \(ReadTimeout\)"):
        ask(silent, timeout_seconds=0.2, attempts=5)
    assert len(asked) == 1


def test_values_of_every_kind_are_written_alike_each_time() -> None:
    rows: list[dict[str, Any]] = [
        {"d": Decimal("1.50"), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "raw": b"\xff", "n": None, "s": "é"},
        {"d": None, "at": dt.date(2026, 1, 2), "raw": b"", "n": [1, {"x": 2}], "s": '"'},
    ]
    assert encoded(rows) == encoded([dict(row) for row in rows])
    assert json.loads(encoded(rows))[0] == {
        "d": "1.50", "at": "2026-01-02T00:00:00+00:00", "raw": "/w==", "n": None, "s": "é",
    }  # fmt: skip


def test_what_is_no_number_is_a_word_wherever_it_stands_and_the_text_is_json() -> None:
    row = {"a": float("nan"), "b": {"c": [float("inf"), (1.5, float("-inf"))]}, "raw": b"x", "d": Decimal("NaN")}
    text = encoded([row])

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(text, parse_constant=refuse)
    assert found == [{"a": "NaN", "b": {"c": ["Infinity", [1.5, "-Infinity"]]}, "raw": "eA==", "d": "NaN"}]


def test_headers_are_not_shown() -> None:
    assert "secret" not in repr(HttpSender("http://api.example", headers={"Authorization": "secret"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs option\('url'"),
        ({"url": "ftp://x"}, "begins with http"),
        ({"url": "http://x", "attempts": "0"}, "attempts is 0; give a whole number from 1 on"),
        ({"url": "http://x", "timeout_seconds": "0"}, "timeout_seconds is 0.0"),
        ({"url": "http://x", "concurrency": "0"}, "concurrency is 0; give a whole number from 1 on"),
        ({"url": "http://x", "rows_per_call": "many"}, "rows_per_call is 'many'; give a whole number"),
        ({"url": "http://x", "patience_seconds": "-1"}, "patience_seconds is -1.0; give a number from 0 on"),
        ({"url": "http://x", "in_order": "no"}, "in_order is 'no'; give true or false"),
        ({"url": "http://x", "speed": "1"}, "no option 'speed'"),
        ({"url": "http://x", "header.A": "b\nC: d"}, "the header 'A' has a character that no header may have"),
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": 5}, r"url is 5; give"),
        ({"url": "https://"}, r"url is 'https://'; give .* names a host"),
        ({"url": "https://a b/x"}, r"url is .*; give"),
        ({"url": "http://a:99999/x"}, r"url is .*; give"),
        ({"attempts": "3"}, r"attempts is '3'; give a whole number from 1 on"),
        ({"attempts": 2.5}, r"attempts is 2.5; give a whole number from 1 on"),
        ({"timeout_seconds": "1"}, r"timeout_seconds is '1'; give a number above 0"),
        ({"timeout_seconds": math.inf}, r"timeout_seconds is inf; give a number above 0"),
        ({"headers": [("a", "b")]}, r"headers is a list; give a dictionary"),
        ({"headers": {"X": 5}}, r"the header 'X' is no text; give its name and its value as text"),
        ({"headers": {"X Y": "a"}}, r"the header 'X Y' has a character that no header may have"),
        ({"headers": {"": "a"}}, r"the header '' has no name; give it one"),
        ({"headers": {"idempotency-key": "a"}}, r"the header 'idempotency-key' is the call's key, .*leave it out"),
    ],
)
def test_sender_that_could_never_send_is_refused_when_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HttpSender(**{"url": "http://api.example", **given})


def test_secrets_of_a_url_are_not_shown(record: Record) -> None:
    record.answer = lambda _: 400
    secret = record.url.replace("http://", "http://me:secret@") + "?key=secret"
    sender = HttpSender(secret)
    with pytest.raises(DeliveryError) as caught:
        send(sender)
    assert record.url in str(caught.value)
    assert "secret" not in str(caught.value) + repr(sender)
    with pytest.raises(ConfigurationError) as refused:
        HttpSender("https://me:secret@:80/x?key=secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concurrency": "4"}, "concurrency is '4'; give a whole number from 1 on"),
        ({"concurrency": 4.5}, "concurrency is 4.5; give a whole number from 1 on"),
        ({"rows_per_call": True}, "rows_per_call is True; give a whole number from 1 on"),
        ({"patience_seconds": "60"}, "patience_seconds is '60'; give a number from 0 on"),
        ({"patience_seconds": None}, "patience_seconds is None; give a number from 0 on"),
        ({"in_order": "no"}, "in_order is 'no'; give True or False"),
    ],
)
def test_argument_of_paced_that_means_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    how: dict[str, Any] = {"concurrency": 4, "rows_per_call": 100, "in_order": True, "patience_seconds": 60, **given}
    with pytest.raises(ConfigurationError, match=message):
        send_options(how.pop("concurrency"), how.pop("rows_per_call"), **how)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 120 ", 120),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30),
        ("Sunday, 06-Nov-94 08:50:07 GMT", 30),
        ("Sun Nov  6 08:50:07 1994", 30),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("86401", DAY),
        ("9" * 400, DAY),
        ("Sun, 06 Nov 2094 08:50:07 GMT", DAY),
        ("120, 60", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        ("Sun, 99 Nov 1994 08:50:07 GMT", None),
    ],
)
def test_seconds_and_dates_are_read_and_anything_else_says_nothing(text: str, seconds: int | None) -> None:
    assert retry_after_seconds({"retry-after": text, "date": NOW}) == seconds


def test_answer_without_the_header_says_nothing() -> None:
    assert retry_after_seconds({"date": NOW}) is None


def test_date_of_an_answer_without_its_own_date_is_compared_with_the_clock() -> None:
    assert retry_after_seconds({"retry-after": NOW}) == 0
    assert retry_after_seconds({"retry-after": "Fri, 31 Dec 2999 00:00:00 GMT"}) == DAY


@pytest.mark.slow
@given(st.text(max_size=40))
def test_no_text_is_an_error(text: str) -> None:
    found = retry_after_seconds({"retry-after": text, "date": text})
    assert found is None or found >= 0
