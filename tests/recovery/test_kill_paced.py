"""A job that sends at a pace is killed while it sends: what it sends again has the same keys and the same bytes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.receiver import Arrival, Record, receiver
from tests.recovery import paced_job
from tests.recovery.processes import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

ROWS = 900


CALLS = 20


class KilledAmid:
    """Answers until some calls of a batch after the first have come; from then on it answers none."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.is_reached, self.is_dead = threading.Event(), threading.Event()

    def __call__(self, _: Arrival) -> int:
        if sum(batch_of(arrival.key) > 0 for arrival in self.record.arrivals) >= CALLS:
            self.is_reached.set()
            self.is_dead.wait(120)
        return 200


def batch_of(key: str) -> int:
    return int(key.split("/")[1])


def test_job_killed_while_it_sends_sends_the_same_bytes_under_the_same_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    paced_job.write_source(tmp_path, ROWS)
    with receiver() as record:
        record.answer = killed = KilledAmid(record)
        job = Job("tests.recovery.paced_job", [str(tmp_path), record.url], tmp_path / "log")
        is_reached = killed.is_reached.wait(240)
        job.kill()
        killed.is_dead.set()
        assert is_reached, job.tail()
        first = {batch_of(arrival.key) for arrival in record.arrivals}
        again = len(record.arrivals)
        record.answer = lambda _: 200
        paced_job.drain(spark, tmp_path, record.url)
        again_from = min(batch_of(arrival.key) for arrival in record.arrivals[again:])
    assert again_from == max(first) > 0, "batches that were committed are not sent again"
    kept = record.by_key()  # which fails where a key comes with other bytes
    assert len(record.arrivals) > len(kept)
    by_namespace: dict[str, list[int]] = {}
    for key, body in sorted(kept.items(), key=lambda item: (batch_of(item[0]), int(item[0].split("/")[4]))):
        by_namespace.setdefault(key.split("/")[3], []).extend(row["id"] for row in json.loads(body))
    assert by_namespace == {f"{'ab'[n % 2]}%2F{n}": list(range(n, ROWS, 6)) for n in range(6)}
