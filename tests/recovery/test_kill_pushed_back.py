"""A job is killed while its destination refuses, or while it keeps calls: no row is lost, and none gets a new key."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.receiver import Arrival, receiver
from tests.recovery import paced_job
from tests.recovery.paced_job import AFTER_KEPT, AMID_KEPT, BEFORE_KEPT, NOWHERE, PUSHED_BACK
from tests.recovery.processes import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

ROWS = 600
TAKEN = 40
REFUSALS = 4


class Refuses:
    """Refuses tenant ``a`` after some calls, until it is told to stop; says when it has refused some calls again."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.is_over = False
        self.is_reached = threading.Event()
        self.taken: list[Arrival] = []
        self._lock = threading.Lock()
        self._asked = self._refused = 0

    def __call__(self, arrival: Arrival) -> int:
        with self._lock:
            if arrival.namespace.startswith("a/") and not self.is_over:
                self._asked += 1
                if self._asked > TAKEN:
                    self._refused += 1
                    if self._refused >= REFUSALS:
                        self.is_reached.set()
                    return self.status
            self.taken.append(arrival)
            return 200


@pytest.mark.parametrize(
    ("status", "point"), [(429, NOWHERE), (503, NOWHERE), (503, BEFORE_KEPT), (429, AMID_KEPT), (503, AFTER_KEPT)]
)
def test_job_killed_while_its_destination_refuses_loses_no_row_and_gives_none_a_new_key(
    spark: SparkSession, tmp_path: Path, status: int, point: str
) -> None:
    paced_job.write_source(tmp_path, ROWS)
    with receiver() as record:
        record.answer = refuses = Refuses(status)
        job = Job("tests.recovery.paced_job", [str(tmp_path), record.url, point], tmp_path / "log")
        is_reached = refuses.is_reached.wait(240) if point == NOWHERE else job.comes_to(tmp_path / "reached", 240)
        job.kill()
        assert is_reached, job.tail()
        refuses.is_over = True
        paced_job.drain(spark, tmp_path, record.url, PUSHED_BACK)
        record.by_key()  # which fails where a key comes with other bytes
    keys_of = defaultdict[int, set[str]](set)
    for arrival in record.arrivals:
        for row in arrival.rows:
            keys_of[row["id"]].add(arrival.key)
    assert {row: len(keys) for row, keys in keys_of.items() if len(keys) > 1} == {}
    assert len(keys_of) == ROWS
    first = {arrival.key: arrival for arrival in reversed(refuses.taken)}
    found = defaultdict[str, list[int]](list)
    for arrival in sorted(first.values(), key=lambda arrival: arrival.at_ns):
        found[arrival.namespace].extend(row["id"] for row in arrival.rows)
    assert found == {f"{'ab'[n % 2]}/{n}": list(range(n, ROWS, 6)) for n in range(6)}
