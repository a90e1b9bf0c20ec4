"""The queries that one job runs until it is killed with SIGKILL, and what their destinations have seen by then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.receiver import Arrival, Record, receiver
from tests.recovery import paced_job
from tests.recovery.faults import AFTER_ADMITTED, AFTER_FEEDBACK, AFTER_KEPT, AMID_KEPT, BEFORE_KEPT
from tests.recovery.killed_job import Planned, start_job
from tests.recovery.paced_job import POLICIES, PUSHED_BACK
from tests.recovery.processes import Job
from tests.recovery.throttled_job import Place, write_source

FILES = 3
ROWS_A_FILE = 5_000
REJECTS = """\
resource_groups:
  shared: {publish: {messages_per_second: 1200, burst_seconds: 1, on_excess: reject}}
tenants:
  gold: {resource_group: shared}
  silver: {publish: {messages_per_second: 800, burst_seconds: 1}}
queue: {messages: 900}
"""
"""gold is rejected at its quota, silver waits until the queue is full, open passes; some rows are unusable."""

TABLES = {"whole": AFTER_FEEDBACK, "partitioned": AFTER_ADMITTED}
"""Where each is killed."""

NOWHERE = ""
REFUSED = [(429, AMID_KEPT), (503, NOWHERE), (503, AFTER_KEPT), (503, BEFORE_KEPT), (429, NOWHERE)]
"""What a destination answers, and where the query is killed: while it waits for an answer, or at a point."""

ROWS_SENT = 900
ROWS_REFUSED = 600
_CALLS = 20
_TAKEN = 40
_REFUSALS = 4
_LONGEST_SECONDS = 480.0


def batch_of(key: str) -> int:
    return int(key.split("/")[1])


class KilledAmid:
    """Answers until some calls of a batch after the first have come; from then on it answers none."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.is_reached, self.is_dead = threading.Event(), threading.Event()

    def __call__(self, _: Arrival) -> int:
        if sum(batch_of(arrival.key) > 0 for arrival in self.record.arrivals) >= _CALLS:
            self.is_reached.set()
            self.is_dead.wait(_LONGEST_SECONDS)
        return 200


class Refuses:
    """Refuses tenant ``a`` after some calls, until the job is dead; says when it has refused some calls again."""

    def __init__(self, status: int, *, is_held: bool) -> None:
        self.status = status
        self.is_held = is_held
        """Whether it then lets the job wait for an answer until it is dead."""

        self.is_reached, self.is_dead = threading.Event(), threading.Event()
        self.taken: list[Arrival] = []
        self._lock = threading.Lock()
        self._asked = self._refused = 0

    def __call__(self, arrival: Arrival) -> int:
        if not self._refuses(arrival):
            return 200
        if self.is_held and self.is_reached.is_set():
            self.is_dead.wait(_LONGEST_SECONDS)
        return self.status

    def _refuses(self, arrival: Arrival) -> bool:
        with self._lock:
            if arrival.namespace.startswith("a/") and not self.is_dead.is_set():
                self._asked += 1
                if self._asked > _TAKEN:
                    self._refused += 1
                    if self._refused >= _REFUSALS:
                        self.is_reached.set()
                    return True
            self.taken.append(arrival)
            return False


@dataclass(frozen=True, slots=True)
class Sent:
    """A query that sends."""

    root: Path
    record: Record
    policies: str
    answer: KilledAmid | Refuses

    def planned(self, point: str) -> Planned:
        return Planned(str(self.root), url=self.record.url, policies=self.policies, point=point)


@dataclass(frozen=True, slots=True)
class Killed:
    """What the queries have left."""

    into_delta: dict[str, Place]
    """By table."""

    sends: Sent
    refused: dict[tuple[int, str], Sent]
    """By what the destination answered, and the point."""


@contextmanager
def killed_queries(root: Path, tables: Sequence[str], refusals: Sequence[tuple[int, str]]) -> Iterator[Killed]:
    """Yield what is left of the queries of a job when all of its processes were killed at once.

    `tables` and `refusals` are those of `TABLES` and `REFUSED` that are to run.
    """
    into_delta = {table: Place(root / table) for table in tables}
    for place in into_delta.values():
        write_source(place, count=FILES * ROWS_A_FILE, files=FILES, with_bad_rows=True)
        place.policies.write_text(REJECTS)
    with ExitStack() as receivers:
        record = receivers.enter_context(receiver())
        sends = Sent(root / "sends", record, POLICIES, KilledAmid(record))
        refused = {
            (status, point): Sent(
                root / f"refused-{status}-{point}",
                receivers.enter_context(receiver()),
                PUSHED_BACK,
                Refuses(status, is_held=point == NOWHERE),
            )
            for status, point in refusals
        }
        for sent, count in ((sends, ROWS_SENT), *((each, ROWS_REFUSED) for each in refused.values())):
            sent.record.answer = sent.answer
            paced_job.write_source(sent.root, count)
        plan = [Planned(str(place.root), table=name, point=TABLES[name]) for name, place in into_delta.items()]
        plan += [sends.planned(NOWHERE), *(sent.planned(point) for (_, point), sent in refused.items())]
        _kill(start_job(root / "job", plan), [sends.answer, *(sent.answer for sent in refused.values())])
        yield Killed(into_delta, sends, refused)


def _kill(job: Job, answers: Sequence[KilledAmid | Refuses]) -> None:
    """Kill a job once all answers have come so far; it begins last what pauses nowhere."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    try:
        for answer in answers:
            while not answer.is_reached.wait(0.1):
                assert not job.ends_within(0), job.tail()
                assert time.monotonic() < deadline, job.tail()
    finally:
        job.kill()
        for answer in answers:
            answer.is_dead.set()
