"""Throttled queries whose destination pushes back: a real HTTP server on loopback that refuses some of the calls."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from spark_throttle.checkpoint.told import ToldInBatch
from spark_throttle.checkpoint.unsent import GivenUpCalls
from spark_throttle.control.epochs import EpochName, Epochs
from spark_throttle.control.feedback import write_reports
from spark_throttle.files.storage import Directory
from spark_throttle.record import unpack
from spark_throttle.spark.paced import HttpSender
from spark_throttle.spark.paced.kept_sender import KeptSender, SentMeanwhile
from spark_throttle.spark.sinks import batch_sink
from tests.effort import thorough_after
from tests.integration.streams import Lake, finish, policies, publish
from tests.receiver import Arrival, Record, receiver

API = policies(
    resource_groups={
        "api": {
            **publish(messages_per_second=300, burst_seconds=2),
            "destination": {"floor_messages_per_second": 5, "open_after_seconds": 0.1},
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


def check_taken(answer: Refuses) -> None:
    """Each event was taken once, in its namespace's order."""
    found: dict[str, list[int]] = {}
    for arrival in answer.taken:
        found.setdefault(arrival.namespace, []).extend(row["id"] for row in arrival.rows)
    assert found == {name: [number for number, ns, _ in EVENTS if ns == name] for _, name, _ in EVENTS}


@pytest.mark.parametrize("status", thorough_after(1, [429, 503]))
def test_calls_that_are_refused_for_longer_than_a_batch_are_sent_by_later_ones(
    lake: Lake, record: Record, status: int
) -> None:
    record.answer = answer = Refuses(20, 12, status)
    lake.offer(EVENTS)
    throttle = lake.throttle(API)
    while answer.left or len(record.by_key()) > len(answer.taken):
        finish(lake.writer(throttle).paced(HttpSender(record.url)).start())
    check_taken(answer)
    control = Path(lake.checkpoint) / "throttle"
    assert list((control / "unsent").iterdir())
    epochs = sorted(path.name for path in (control / "epochs").iterdir())
    loaded = [Epochs(Directory(str(control))).load(EpochName(int(name[:12]), name)) for name in epochs]
    rates = [each.destinations for each in loaded if each.destinations is not None]
    shown = [(each.refused_for_ms, each.unsent_messages, each.is_open, each.in_force_micro_per_ms) for each in rates]
    assert len(rates) == len(loaded)
    assert any(each.is_open.any() for each in rates), shown
    assert not rates[-1].is_open.any(), shown


def sent_elsewhere(rows: object, key: object) -> None:
    """Take rows in place of the destination."""


@pytest.mark.thorough
def test_query_ends_while_a_destination_refuses_and_goes_on_only_to_where_its_calls_were_to_go(
    lake: Lake, record: Record
) -> None:
    record.answer = answer = Refuses(20, 10**6, 503)
    lake.offer(EVENTS)
    throttle = lake.throttle(API)
    finish(lake.writer(throttle).paced(HttpSender(record.url)).start())
    asked = len(record.arrivals)
    taken = sum(len(arrival.rows) for arrival in answer.taken)
    assert 450 < taken < 900
    for writer, problem in (
        (lake.writer(throttle).foreachBatch(lambda *_: None), "this query sends by the function"),
        (lake.writer(throttle).format("parquet").option("path", lake.path("out")), "this query does not send"),
        (lake.writer(throttle).paced(HttpSender(record.url + "2")), "this query sends by http"),
        (lake.writer(throttle).paced(sent_elsewhere), "this query sends by the function"),
    ):
        with pytest.raises(StreamingQueryException, match=problem) as error:
            finish(writer.start())
        assert f"{900 - taken} messages that {record.url} did not take" in str(error.value)
        assert "start it with the paced(…) or foreachBatch(…) that it had" in str(error.value)
    assert len(record.arrivals) == asked
    checkpoint, backup = Path(lake.checkpoint), lake.root / "backup"
    shutil.copytree(checkpoint, backup)
    answer.left = 0
    finish(lake.writer(throttle).paced(HttpSender(record.url)).start())
    kept = record.by_key()
    check_taken(answer)
    # The checkpoint is put back to before that run, but not what the throttle keeps in it.
    shutil.rmtree(backup / "throttle")
    (checkpoint / "throttle").rename(backup / "throttle")
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    before = len(record.arrivals)
    finish(lake.writer(throttle).paced(HttpSender(record.url)).start())
    assert sum(len(arrival.rows) for arrival in record.arrivals[before:]) == 900 - taken
    assert record.by_key() == kept


def test_rows_that_an_unavailable_destination_does_not_take_go_to_the_dead_letters_if_the_policy_says_so(
    lake: Lake, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch that gives rows up crashes after its dead letters, and runs again."""
    record.answer = answer = Refuses(20, 10**6, 503)
    api = API["resource_groups"]["api"]
    given_up = api | {"destination": api["destination"] | {"on_unavailable": "dead_letters"}}
    lake.offer([*EVENTS, (900, "b/1", 10)])
    lake.offer([(901, "a/0", 10), (902, "b/1", 10)])
    throttle = lake.throttle(API | {"resource_groups": {"api": given_up}})

    def dead_letters() -> list[Row]:
        return lake.spark.read.format("delta").load(lake.path("dead")).select("id", "ns", "throttle.*").collect()

    def run() -> None:
        writer = lake.writer(throttle).paced(HttpSender(record.url)).rejected("delta", path=lake.path("dead"))
        finish(writer.start())

    def crash(directory: Any, batch: int, packed: Any) -> None:
        if any(unpack(GivenUpCalls, note.read_bytes(), "").keys for note in lake.control.glob("given_up/*")):
            raise RuntimeError("crashed")
        write_reports(directory, batch, packed)

    with monkeypatch.context() as patched:
        patched.setattr(batch_sink, "write_reports", crash)
        with pytest.raises(StreamingQueryException, match="crashed"):
            run()
    dead = dead_letters()
    assert {(row["verdict"], row["reason"], row["level"], row["scope"]) for row in dead} == {
        ("REJECT", "destination_unavailable", "resource_group", "api")
    }
    assert {row["ns"][0] for row in dead} == {"a"}
    # The batch runs again, and the destination is back: it gets the others, and none of these.
    answer.left = 0
    run()
    assert sorted(dead_letters()) == sorted(dead)
    sent = [row["id"] for arrival in answer.taken for row in arrival.rows]
    assert sorted({*sent, *(row["id"] for row in dead)}) == list(range(903))
    assert not set(sent) & {row["id"] for row in dead}


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


def test_kept_calls_are_sent_while_batches_come_and_go_and_no_call_that_was_taken_is_made_again(
    lake: Lake, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[SentMeanwhile] = []
    end = KeptSender.end

    def noted_end(self: KeptSender, **how: bool) -> SentMeanwhile | None:
        meanwhile = end(self, **how)
        found.extend([] if meanwhile is None else [meanwhile])
        return meanwhile

    monkeypatch.setattr(KeptSender, "end", noted_end)
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
    told = sum(told.accepted for meanwhile in found for told in meanwhile.told.values())
    assert told == sum(arrival.namespace.startswith("a/") for arrival in answer.taken)
    assert not [path for path in (lake.control / "unsent").iterdir() if int(path.name[:12]) == lake.last_batch()]


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
        blocks = [path.read_bytes() for path in sorted((lake.control / "told").glob("*[0-9]"))]
        return any(
            told.closed_until_ms for block in blocks for told in unpack(ToldInBatch, block, "told").by_group.values()
        )

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
    in_flight = 0.3  # calls that had left
    assert min(at for at in later if at > asked + in_flight) >= asked + 12
