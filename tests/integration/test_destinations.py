"""Throttled queries whose destination pushes back: a real HTTP server on loopback that refuses some of the calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.checkpoint.delivery import Delivery, write_delivery
from spark_throttle.control.epochs import EpochName, Epochs
from spark_throttle.files.storage import Directory
from spark_throttle.record import unpack
from spark_throttle.spark.paced import HttpSender, paced_sink
from spark_throttle.spark.sinks import batch_sink
from spark_throttle.spark.spark_version import ends_when_drained
from spark_throttle.spark.state_reader import read_queued
from tests.effort import thorough_after
from tests.integration.streams import Lake, finish, policies, publish
from tests.receiver import Arrival, Record, receiver

API = policies(
    resource_groups={
        "api": {
            **publish(messages_per_second=300, burst_seconds=2),
            "destination": {"floor_messages_per_second": 20, "open_after_seconds": 0.1},
        }
    },
    tenants={"a": {"resource_group": "api"}},
)
EVENTS = [(number, f"{'ab'[number % 2]}/{number % 6}", 10) for number in range(900)]


@pytest.fixture
def record() -> Iterator[Record]:
    with receiver() as found:
        yield found


class Refuses:
    """Refuses the calls of tenant ``a`` from one on, so many of them."""

    def __init__(self, first: int, calls: int, status: int) -> None:
        self.first, self.left, self.status = first, calls, status
        self.seen = 0
        self.taken: list[Arrival] = []

    def __call__(self, arrival: Arrival) -> int:
        if arrival.namespace.startswith("a/"):
            self.seen += 1
            if self.seen > self.first and self.left:
                self.left -= 1
                return self.status
        self.taken.append(arrival)
        return 200

    def taken_once(self) -> list[Arrival]:
        """Return what was taken, each key once."""
        return list({arrival.key: arrival for arrival in reversed(self.taken)}.values())[::-1]


def check_taken(answer: Refuses) -> None:
    """Each event was taken once, in its namespace's order."""
    found: dict[str, list[int]] = {}
    for arrival in answer.taken_once():
        found.setdefault(arrival.namespace, []).extend(row["id"] for row in arrival.rows)
    assert found == {name: [number for number, ns, _ in EVENTS if ns == name] for _, name, _ in EVENTS}


def run_until_taken(lake: Lake, record: Record, answer: Refuses, rows: int = len(EVENTS), policies: Any = API) -> None:
    """Run the query again and again until its destination has so many rows."""
    for _ in range(30):
        finish(lake.writer(lake.throttle(policies)).paced(HttpSender(record.url)).start())
        if sum(len(arrival.rows) for arrival in answer.taken_once()) >= rows:
            return


@pytest.mark.parametrize("status", thorough_after(1, [429, 503]))
def test_rows_that_are_refused_for_longer_than_a_batch_go_back_and_are_sent_by_later_ones(
    lake: Lake, record: Record, status: int
) -> None:
    record.answer = answer = Refuses(20, 12, status)
    lake.offer(EVENTS)
    run_until_taken(lake, record, answer)
    check_taken(answer)
    epochs = sorted(path.name for path in (lake.control / "epochs").iterdir())
    loaded = [Epochs(Directory(str(lake.control))).load(EpochName(int(name[:12]), name)) for name in epochs]
    assert any(each.undelivered is not None and len(each.undelivered.names) for each in loaded)
    rates = [each.destinations for each in loaded if each.destinations is not None]
    assert any(each.is_open.any() for each in rates)
    assert not rates[-1].is_open.any()


@pytest.mark.thorough
def test_query_ends_while_a_destination_refuses_and_its_rows_wait_for_whatever_sink_comes_next(
    lake: Lake, record: Record
) -> None:
    record.answer = answer = Refuses(20, 10**6, 503)
    lake.offer(EVENTS)
    throttle = lake.throttle(API)
    finish(lake.writer(throttle).paced(HttpSender(record.url)).start())
    sent = [row["id"] for arrival in answer.taken for row in arrival.rows]
    assert 450 < len(sent) < 900
    waiting = [row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()]
    assert sorted([*sent, *waiting]) == [number for number, *_ in EVENTS]
    finish(lake.writer(throttle).format("parquet").option("path", lake.path("out")).start())
    out = [row["id"] for row in lake.spark.read.parquet(lake.path("out")).collect()]
    assert sorted(out) == sorted(waiting)


def test_batch_that_crashes_after_its_record_sends_nothing_again(
    lake: Lake, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.answer = answer = Refuses(20, 5, 503)
    lake.offer(EVENTS)

    def crash(*_: Any) -> None:
        raise RuntimeError("crashed")

    with monkeypatch.context() as patched:
        patched.setattr(batch_sink, "write_report", crash)
        with pytest.raises(StreamingQueryException, match="crashed"):
            finish(lake.writer(lake.throttle(API)).paced(HttpSender(record.url)).start())
    asked = {arrival.key for arrival in record.arrivals}
    before = len(record.arrivals)
    run_until_taken(lake, record, answer)
    assert not {arrival.key for arrival in record.arrivals[before:]} & asked
    check_taken(answer)


def test_batch_that_crashes_before_its_record_sends_all_again_and_what_is_refused_then_keeps_its_key(
    lake: Lake, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination has taken the first batch, and refuses a part of it when that runs again."""
    record.answer = answer = Refuses(10**6, 0, 503)
    lake.offer(EVENTS)

    def crash(control: Directory, batch: int, batch_ms: int, delivery: Delivery) -> None:
        if not answer.left:
            answer.first, answer.left = answer.seen + 20, 12
            raise RuntimeError("crashed")
        write_delivery(control, batch, batch_ms, delivery)

    with monkeypatch.context() as patched:
        patched.setattr(paced_sink, "write_delivery", crash)
        with pytest.raises(StreamingQueryException, match="crashed"):
            finish(lake.writer(lake.throttle(API)).paced(HttpSender(record.url)).start())
    run_until_taken(lake, record, answer)
    assert not answer.left
    record.by_key()  # each key had the same bytes
    check_taken(answer)


def test_rows_of_an_unavailable_destination_go_to_the_dead_letters_if_the_policy_says_so(
    lake: Lake, record: Record
) -> None:
    if not ends_when_drained(lake.spark.version):
        pytest.skip("the query would not end before the destination answers")
    record.answer = answer = Refuses(20, 10**6, 503)
    api = API["resource_groups"]["api"]
    given_up = api | {"destination": api["destination"] | {"on_unavailable": "dead_letters"}}
    lake.offer(EVENTS)
    writer = lake.writer(lake.throttle(API | {"resource_groups": {"api": given_up}}))
    finish(writer.paced(HttpSender(record.url)).rejected("delta", path=lake.path("dead")).start())
    dead = lake.spark.read.format("delta").load(lake.path("dead")).select("id", "ns", "throttle.*").collect()
    assert {(row["verdict"], row["reason"], row["level"], row["scope"]) for row in dead} == {
        ("REJECT", "destination_unavailable", "resource_group", "api")
    }
    assert {row["ns"][0] for row in dead} == {"a"}
    sent = [row["id"] for arrival in answer.taken for row in arrival.rows]
    waiting = [row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()]
    assert sorted([*sent, *waiting, *(row["id"] for row in dead)]) == [number for number, *_ in EVENTS]


class Bucket:
    """Takes so many calls of tenant ``a`` a second and refuses the others; says when it has all rows."""

    def __init__(self, calls_a_second: int, rows: int) -> None:
        self.taken: list[Arrival] = []
        self.has_all = threading.Event()
        self._rate, self._rows = calls_a_second, rows
        self._saved, self._last_ns = 1.0, time.monotonic_ns()
        self._lock = threading.Lock()

    def __call__(self, arrival: Arrival) -> int:
        with self._lock:
            now_ns = time.monotonic_ns()
            self._saved = min(self._rate / 2, self._saved + (now_ns - self._last_ns) * self._rate / 1e9)
            self._last_ns = now_ns
            if arrival.namespace.startswith("a/"):
                if self._saved < 1:
                    return 429
                self._saved -= 1
            self.taken.append(arrival)
            if sum(len(each.rows) for each in self.taken) == self._rows:
                self.has_all.set()
            return 200


def test_destination_with_a_limit_of_its_own_gets_all_rows_in_order_batch_by_batch(lake: Lake, record: Record) -> None:
    record.answer = answer = Bucket(50, len(EVENTS))
    lake.offer(EVENTS)
    writer = lake.writer(lake.throttle(API)).trigger(processingTime="2 seconds")
    query = writer.paced(HttpSender(record.url)).start()
    assert answer.has_all.wait(120), query.status
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    assert len({arrival.key for arrival in answer.taken}) == len(answer.taken)
    taken: dict[str, list[int]] = {}
    for arrival in answer.taken:
        taken.setdefault(arrival.namespace, []).extend(row["id"] for row in arrival.rows)
    assert taken == {name: [number for number, ns, _ in EVENTS if ns == name] for _, name, _ in EVENTS}


class Asks:
    """Refuses a call of tenant ``a``, and asks to wait; takes all others."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrivals: list[Arrival] = []
        self.has_all = threading.Event()

    def __call__(self, arrival: Arrival) -> int:
        self.arrivals.append(arrival)
        if self.of_a[self.number : self.number + 1] == [arrival]:
            return 503
        if len({row["id"] for each in self.arrivals for row in each.rows}) == len(EVENTS):
            self.has_all.set()
        return 200

    @property
    def of_a(self) -> list[Arrival]:
        return [each for each in self.arrivals if each.namespace.startswith("a/")]


@pytest.mark.thorough
def test_destination_is_not_called_before_the_time_it_asks_for_by_any_batch_nor_after_a_restart(
    lake: Lake, record: Record
) -> None:
    record.answer = answer = Asks(20)
    record.headers = {"Retry-After": "12"}
    lake.offer(EVENTS)
    throttle = lake.throttle(API)

    def closed() -> bool:
        blocks = [path.read_bytes() for path in sorted((lake.control / "batches").glob("*.delivery.*"))]
        return any(told.closed_until_ms for block in blocks for told in unpack(Delivery, block, "").told.values())

    query = lake.writer(throttle).trigger(processingTime="1 second").paced(HttpSender(record.url)).start()
    pause = threading.Event()
    while not closed():
        assert query.isActive, query.exception()
        pause.wait(0.1)
    query.stop()
    query = lake.writer(throttle).trigger(processingTime="1 second").paced(HttpSender(record.url)).start()
    assert answer.has_all.wait(60), query.status
    query.stop()
    assert query.exception() is None
    asked, *later = [each.at_ns / 1e9 for each in answer.of_a[20:]]
    of_that_batch = 3.0  # other tasks call until they are refused themselves
    assert min(at for at in later if at > asked + of_that_batch) >= asked + 12
