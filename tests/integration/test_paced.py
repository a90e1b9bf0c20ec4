"""Throttled queries that send to a real HTTP server on loopback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.spark.paced import HttpSender, IdempotencyKey
from tests.integration.streams import Lake, finish, policies, publish
from tests.receiver import Arrival, Record, receiver

SLOW = policies(tenants={"a": publish(messages_per_second=200, burst_seconds=1)})
"""Of the tenant, batch by batch, what a second allows; namespaces without a limit are not held."""

EVENTS = [(number, f"{'ab'[number % 2]}/{number % 6}", 10) for number in range(900)]


@pytest.fixture
def record() -> Iterator[Record]:
    with receiver() as found:
        yield found


def check_all_arrived(record: Record, events: list[Any] = EVENTS) -> None:
    """Each event arrived under one key, in its namespace's order."""
    found: dict[str, list[int]] = {}
    seen = set()
    for arrival in record.arrivals:
        if arrival.key not in seen:
            seen.add(arrival.key)
            found.setdefault(arrival.namespace, []).extend(row["id"] for row in arrival.rows)
            assert {row["ns"] for row in arrival.rows} == {arrival.namespace}
    assert found == {name: [number for number, ns, _ in events if ns == name] for _, name, _ in events}


def test_row_arrives_once_in_order_no_faster_than_its_tenant_may_and_a_batch_again_sends_the_same_bytes(
    lake: Lake, record: Record
) -> None:
    lake.offer(EVENTS[:300])
    lake.offer(EVENTS[300:])
    slow = policies(tenants={"a": publish(units_per_second=400, burst_seconds=1)})
    query = lake.writer(lake.throttle(slow, units="2")).format("throttle_paced").option("url", record.url)
    finish(query.start())
    check_all_arrived(record)
    first = record.by_key()
    assert len(first) == len(record.arrivals)
    times: dict[str, list[int]] = {}
    for arrival in record.arrivals:
        if arrival.namespace.startswith("a/"):
            times.setdefault(arrival.key.split("/")[1], []).extend([arrival.at_ns] * len(arrival.rows))
    assert max(map(len, times.values())) >= 200
    for each in times.values():
        # The first calls of three namespaces wait for nothing: whatever the machine does, no less time.
        assert (max(each) - min(each)) / 1e9 >= (len(each) - 3 * 2) / 200 / 1.08 - 0.1
    last = max(int(key.split("/")[1]) for key in first)
    lake.crash_in(last)
    # Meanwhile the policies and the trigger changed, which the batch that is run again must not see.
    slower = policies(tenants={"a": publish(units_per_second=180)})
    other = lake.throttle(slower, units="2").write_stream(lake.events())
    other = other.option("checkpointLocation", lake.checkpoint).trigger(processingTime="2 seconds")
    record.arrivals.clear()
    running = other.paced(HttpSender(record.url), concurrency=3).start()
    running.processAllAvailable()
    running.stop()
    sent, again = (
        {key: body for key, body in found.items() if key.split("/")[1] == str(last)}
        for found in (first, record.by_key())
    )
    assert again == sent


@pytest.mark.thorough
def test_batch_that_a_refusal_ended_is_sent_again_under_its_keys(lake: Lake, record: Record) -> None:
    lake.offer(EVENTS)

    def refuses_the_fifth_call_of_a_namespace(arrival: Arrival) -> int:
        calls = Counter(each.namespace for each in record.arrivals)
        return 400 if calls[arrival.namespace] == 5 else 200

    record.answer = refuses_the_fifth_call_of_a_namespace
    writer = lake.writer(lake.throttle(SLOW)).format("throttle_paced").option("url", record.url)
    with pytest.raises(StreamingQueryException, match="it answered 400"):
        finish(writer.start())
    first = record.by_key()
    record.answer = lambda _: 200
    finish(writer.start())
    assert set(first) & {arrival.key for arrival in record.arrivals[len(first) :]}
    record.by_key()
    check_all_arrived(record)


def test_plain_function_gets_rows_and_key_and_rejected_rows_are_dead_letters(lake: Lake) -> None:
    out = Path(lake.path("sent"))
    out.mkdir()

    def send(rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
        lines = "".join(f"{key.namespace} {row['id']}\n" for row in rows)
        (out / key.text.replace("/", "_")).write_text(lines)

    lake.offer([(1, "good/a", 10), (2, "bad/a", 20), (3, "good/b", 30), (4, "bad/a", 40)])
    limits = policies(tenants={"bad": publish(messages_per_second=0, on_excess="reject")})
    finish(lake.writer(lake.throttle(limits)).paced(send).start())
    assert sorted("".join(path.read_text() for path in out.iterdir()).split("\n")) == ["", "good/a 1", "good/b 3"]
    assert lake.rejected_ids == [2, 4]
