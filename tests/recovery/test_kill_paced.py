"""A job that sends at a pace is killed while it sends: what it sends again has the same keys and the same bytes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.receiver import Arrival, Record, receiver
from tests.recovery.processes import Job

pytestmark = pytest.mark.timeout(600)

ROWS = 900


class KilledAt:
    """Answers until so many calls have come; from then on it answers none before the job is dead."""

    def __init__(self, record: Record, calls: int) -> None:
        self.record, self.calls = record, calls
        self.is_reached, self.is_dead = threading.Event(), threading.Event()

    def __call__(self, arrival: Arrival) -> int:
        if len(self.record.arrivals) >= self.calls and not self.is_dead.is_set():
            self.is_reached.set()
            self.is_dead.wait(120)
        return 200


def test_job_killed_while_it_sends_sends_the_same_bytes_under_the_same_keys(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    rows = [{"id": number, "ns": f"{'ab'[number % 2]}/{number % 6}", "size": 10} for number in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), source / "all.parquet")
    with receiver() as record:
        for calls in (60, 420):
            record.answer = killed = KilledAt(record, calls)
            job = Job("tests.recovery.paced_job", [str(tmp_path), record.url], tmp_path / "log")
            assert killed.is_reached.wait(240), job.tail()
            job.kill()
            killed.is_dead.set()
        record.answer = lambda _: 200
        Job("tests.recovery.paced_job", [str(tmp_path), record.url], tmp_path / "log").finish()
    kept = record.by_key()  # which fails where a key comes with other bytes
    assert len(record.arrivals) > len(kept)
    by_namespace: dict[str, list[int]] = {}
    for key, body in sorted(kept.items(), key=lambda item: (int(item[0].split("/")[1]), int(item[0].split("/")[4]))):
        by_namespace.setdefault(key.split("/")[3], []).extend(row["id"] for row in json.loads(body))
    assert by_namespace == {f"{'ab'[n % 2]}%2F{n}": list(range(n, ROWS, 6)) for n in range(6)}
