"""How evenly a paced sink sends, and how much: a throttled query, two executors, a real HTTP server on loopback.

    python -m tests.benchmarks.paced [--seconds N] [--interval N] [--master MASTER] [--out FILE]

More is offered than any quota allows. `own/a` and `own/b` have a rate of their own each; the namespaces of `many` share
one, and are sent by different tasks. The server records when requests arrive, on the clock by which they are counted:

- `worst_window`: of all windows of 100 ms, the most rows that arrived, beside what may leave: what the rate gives in
  116 ms, and one message of each namespace of the scope;
- `sent_of_allowed`: the rows that arrived in the measured time, beside what the rate allows in it.

Arrivals are later than departures by what the machine and the connection take, which differs from call to call. So a
window of arrivals may hold a call more than one of departures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import HttpSender
from tests.benchmarks.results import save
from tests.receiver import Arrival, Record, receiver
from tests.sessions import open_session

WINDOW_NS: Final = 100_000_000
RATES: Final = {"own/a": 100, "own/b": 20, "many": 100}
"""By scope: messages per second."""

NAMESPACES: Final = ("own/a", "own/b", "many/a", "many/b", "many/c")
WARM_UP_SECONDS: Final = 30
POLICIES: Final[dict[str, Any]] = {
    "version": 1,
    "tenants": {"many": {"publish": {"messages_per_second": RATES["many"], "burst_seconds": 25}}},
    "namespaces": {
        name: {"publish": {"messages_per_second": RATES[name], "burst_seconds": 25}} for name in ("own/a", "own/b")
    },
    "queue": {"messages": 1_000_000},
}


def main() -> None:
    """Run the query, measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60, help="of measuring, after a warm-up")
    parser.add_argument("--interval", type=int, default=20, help="the trigger's, in seconds")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with receiver() as record, tempfile.TemporaryDirectory() as scratch:
        batches = run(Path(scratch), record, given.master, given.interval, given.seconds)
    numbers = {"master": given.master, "interval_seconds": given.interval, **batches, **measured(record, given.seconds)}
    save(numbers, given.out)
    print(json.dumps(numbers))


def run(scratch: Path, record: Record, master: str, interval: int, seconds: int) -> dict[str, Any]:
    """Run the query until the measured time is over, and return what its batches took."""
    spark = open_session(scratch, settings={"spark.master": master})
    names = ", ".join(f"'{name}'" for name in NAMESPACES)
    events = spark.readStream.format("rate").option("rowsPerSecond", 600).load()
    events = events.selectExpr(
        "value AS id", f"element_at(array({names}), cast(value % {len(NAMESPACES)} AS int) + 1) AS ns"
    )
    throttle = Throttle(json.dumps(POLICIES), namespace="ns", size="8", order_by=["id"])
    writer = throttle.write_stream(events).option("checkpointLocation", str(scratch / "checkpoint"))
    query = writer.trigger(processingTime=f"{interval} seconds").paced(HttpSender(record.url)).start()
    try:
        threading.Event().wait(WARM_UP_SECONDS + seconds + 2 * interval)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        progress = [each["durationMs"] for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
        spark.stop()
    unsent = [each["triggerExecution"] - each["addBatch"] for each in progress]
    return {"batches": len(progress), "planning_ms": max(unsent[1:], default=0)}


def measured(record: Record, seconds: int) -> dict[str, Any]:
    """Return the figures of each scope."""
    first_ns = record.arrivals[0].at_ns + WARM_UP_SECONDS * 10**9
    kept = [each for each in record.arrivals if first_ns <= each.at_ns < first_ns + seconds * 10**9]
    found: dict[str, Any] = {}
    for scope, rate in RATES.items():
        own = [each for each in kept if each.namespace == scope or each.namespace.startswith(f"{scope}/")]
        may = rate * 0.116 + len({each.namespace for each in own})
        found[scope] = {
            "rate": rate,
            "worst_window": most_in_a_window(own),
            "may": round(may, 1),
            "sent_of_allowed": round(sum(len(each.rows) for each in own) / (rate * seconds), 4),
        }
    connections = len({each.connection for each in record.arrivals})
    return {"scopes": found, "calls": len(record.arrivals), "connections": connections}


def most_in_a_window(arrivals: list[Arrival]) -> int:
    """Return the largest number of rows that arrived in 100 ms."""
    ordered = sorted(arrivals, key=lambda each: each.at_ns)
    first = rows = most = 0
    for each in ordered:
        rows += len(each.rows)
        while each.at_ns - ordered[first].at_ns > WINDOW_NS:
            rows -= len(ordered[first].rows)
            first += 1
        most = max(most, rows)
    return most


if __name__ == "__main__":
    main()
