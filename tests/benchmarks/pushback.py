"""How a paced sink follows a destination that pushes back: a throttled query, and a server with a limit of its own.

    python -m tests.benchmarks.pushback [--phase N] [--outage N] [--interval N] [--master MASTER] [--out FILE]

More is offered than the server ever allows, and the policy allows twice what it ever does. The server refuses with 429
what is above its limit, which steps down to a quarter and up again; then it answers 503 to everything, and then allows
as much as before. It limits the tenant `api` alone. The tenant `other` stands for another destination, which takes
everything: it goes to the same server, at a quota of its own.
By phase, each without its first ten seconds (but the outage):

- `goodput`: the rows that were taken, of those that the server allows;
- `refused`: the refused calls, of all calls;
- `right_after_seconds`: from the step, when the rows taken in three seconds first reach 0.9 of what is allowed;
- `other`: the rows of the other tenant, of its quota.

Each row is counted once, by its call's key. `lost` are the rows that a namespace did not get before a later one of its.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_throttle.spark import Throttle
from spark_throttle.spark.paced import HttpSender
from tests.benchmarks.results import save
from tests.receiver import Arrival, receiver
from tests.sessions import open_session

ALLOWED: Final = 120
"""Rows a second."""

OTHER: Final = 20
BURST_SECONDS: Final = 0.5
BURST_OF_QUOTAS_SECONDS: Final = 12
SETTLE_SECONDS: Final = 10
NAMESPACES: Final = ("api/a", "api/b", "api/c", "other/a")
POLICIES: Final[dict[str, Any]] = {
    "version": 1,
    "resource_groups": {
        "api": {
            "publish": {"messages_per_second": 2 * ALLOWED, "burst_seconds": BURST_OF_QUOTAS_SECONDS},
            "destination": {"floor_messages_per_second": 2, "open_after_seconds": 5},
        },
        "other": {
            "publish": {"messages_per_second": OTHER, "burst_seconds": BURST_OF_QUOTAS_SECONDS},
            "destination": {"open_after_seconds": 5},
        },
    },
    "tenants": {"api": {"resource_group": "api"}, "other": {"resource_group": "other"}},
    "queue": {"messages": 10_000_000},
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which the server allows something."""

    name: str
    seconds: float
    allowed: float
    status: int = 429


class Limited:
    """What the server answers, by the phase and a token bucket of rows."""

    def __init__(self, phases: list[Phase]) -> None:
        self.phases = phases
        self.answers: list[tuple[float, Arrival, bool]] = []
        """When each call came, by the time since the first, and whether it was taken."""

        self._lock = threading.Lock()
        self._began = self._last = 0.0
        self._tokens = ALLOWED * BURST_SECONDS

    def __call__(self, arrival: Arrival) -> int:
        with self._lock:
            now = time.monotonic()
            if not self.answers:
                self._began = self._last = now
            phase = self._phase(now - self._began)
            held = self._tokens + (now - self._last) * phase.allowed
            self._tokens, self._last = min(held, max(1.0, phase.allowed * BURST_SECONDS)), now
            rows = len(arrival.rows)
            is_taken = not arrival.namespace.startswith("api/") or (phase.allowed > 0 and self._tokens >= 1)
            if is_taken and arrival.namespace.startswith("api/"):
                self._tokens -= rows
            self.answers.append((now - self._began, arrival, is_taken))
            return 200 if is_taken else phase.status

    def _phase(self, at: float) -> Phase:
        for phase in self.phases:
            at -= phase.seconds
            if at < 0:
                return phase
        return self.phases[-1]


def main() -> None:
    """Run the query, measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--phase", type=int, default=60, help="seconds of each phase but the outage")
    parser.add_argument("--outage", type=int, default=300, help="seconds of 503")
    parser.add_argument("--interval", type=float, default=5, help="the trigger's, in seconds")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    phases = [
        Phase("begin", given.phase, ALLOWED),
        Phase("down", given.phase, ALLOWED / 4),
        Phase("up", given.phase, ALLOWED),
        Phase("outage", given.outage, 0, 503),
        Phase("after", given.phase, ALLOWED),
    ]
    server = Limited(phases)
    with receiver() as record, tempfile.TemporaryDirectory() as scratch:
        record.answer = server
        batches = run(Path(scratch), record.url, given.master, given.interval, server)
    numbers = {"master": given.master, "interval_seconds": given.interval, **batches, **measured(server)}
    save(numbers, given.out)
    print(json.dumps(numbers))


def run(scratch: Path, url: str, master: str, interval: float, server: Limited) -> dict[str, Any]:
    """Run the query until the phases are over, and return what its batches took."""
    spark = open_session(scratch, settings={"spark.master": master})
    names = ", ".join(f"'{name}'" for name in NAMESPACES)
    events = spark.readStream.format("rate").option("rowsPerSecond", 4 * ALLOWED).load()
    events = events.selectExpr(
        "value AS id", f"element_at(array({names}), cast(value % {len(NAMESPACES)} AS int) + 1) AS ns"
    )
    throttle = Throttle(json.dumps(POLICIES), namespace="ns", size="8", order_by=["id"])
    writer = throttle.write_stream(events).option("checkpointLocation", str(scratch / "checkpoint"))
    query = writer.trigger(processingTime=f"{interval} seconds").paced(HttpSender(url)).start()
    try:
        end, pause = sum(phase.seconds for phase in server.phases), threading.Event()
        while query.isActive and not (server.answers and server.answers[-1][0] > end):
            pause.wait(1)
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        progress = [each["durationMs"] for each in query.recentProgress]
    finally:
        query.stop()
        spark.stop()
    planned = sorted(each["triggerExecution"] - each.get("addBatch", 0) for each in progress)
    return {"batches": len(progress), "planning_ms": planned[len(planned) // 2]}


def measured(server: Limited) -> dict[str, Any]:
    """Return the figures of each phase."""
    began, found, keys = 0.0, dict[str, Any](), set[str]()
    taken: list[tuple[float, str, list[int]]] = []
    for at, arrival, is_taken in server.answers:
        if is_taken and arrival.key not in keys:
            keys.add(arrival.key)
            taken.append((at, arrival.namespace, [row["id"] for row in arrival.rows]))
    for phase in server.phases:
        first, end = began + (SETTLE_SECONDS if phase.allowed else 0), began + phase.seconds
        seconds = end - first
        calls = [was for at, arrival, was in server.answers if first <= at < end and arrival.namespace[:3] == "api"]
        api = [(at, len(ids)) for at, name, ids in taken if name[:3] == "api"]
        other = sum(len(ids) for at, name, ids in taken if name[:5] == "other" and first <= at < end)
        found[phase.name] = {"other": round(other / (OTHER * seconds), 3), "calls": len(calls)}
        if phase.allowed:
            rows = sum(count for at, count in api if first <= at < end)
            found[phase.name] |= {
                "goodput": round(rows / (phase.allowed * seconds), 3),
                "refused": round(1 - sum(calls) / max(1, len(calls)), 4),
                "right_after_seconds": right_after(api, began, end, phase.allowed),
            }
        began = end
    return {"phases": found, "lost": lost(taken), "calls": len(server.answers)}


def right_after(api: list[tuple[float, int]], began: float, end: float, allowed: float) -> float | None:
    """Return from when on, after a step, three seconds first bring 0.9 of what is allowed; `None` if never."""
    at = began
    while at + 3 <= end:
        if sum(count for when, count in api if at <= when < at + 3) >= 0.9 * allowed * 3:
            return round(at - began, 1)
        at += 0.5
    return None


def lost(taken: list[tuple[float, str, list[int]]]) -> int:
    """Return how many rows are missing before the last one of each namespace."""
    ids_of = defaultdict[str, set[int]](set)
    for _, name, ids in taken:
        ids_of[name].update(ids)
    return sum(
        len(range(NAMESPACES.index(name), max(ids) + 1, len(NAMESPACES))) - len(ids) for name, ids in ids_of.items()
    )


if __name__ == "__main__":
    main()
