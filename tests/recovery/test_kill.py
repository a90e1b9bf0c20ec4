"""A job that is killed in the middle and started again ends with the same rows as one that was not.

Every process of the job is killed with SIGKILL: the driver, the JVM, Python workers and the control source. The kills stand at
points where something is written and what makes it count is not, and at moments drawn from a seed. What is asserted is counted from
the input and the tables alone. ``KILLS=10 make integration ARGS=tests/recovery`` kills each job ten times.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.ledger import BATCH, count_out_of_order, excess, read_batch_times_ms, read_table
from tests.recovery import faults
from tests.recovery.throttled_job import SHARDS, Place, write_source
from tests.sessions import ROOT

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILL_SEED", "20260719"))
ROWS_A_FILE = 2_500
FILES = 8 + 4 * (KILLS - 2)
PATIENCE_SECONDS = 120

DELAYS = """\
resource_groups:
  shared: {publish: {messages_per_second: 2000, bytes_per_second: 220000, burst_seconds: 2}}
tenants:
  gold: {resource_group: shared}
  silver: {resource_group: shared, publish: {messages_per_second: 1500, burst_seconds: 2}}
namespaces:
  open/02: {publish: {messages_per_second: 300, burst_seconds: 1}}
"""
"""Delays only: all rows are admitted in the end. gold and silver offer 13,800 rows of 20,000, open/02 1,700."""

HALF_DELAYS = DELAYS.replace("2000, bytes_per_second: 220000", "1000, bytes_per_second: 110000")

REJECTS = """\
resource_groups:
  shared: {publish: {messages_per_second: 1000, burst_seconds: 2, on_excess: reject}}
tenants:
  gold: {resource_group: shared}
  silver: {publish: {messages_per_second: 1000, burst_seconds: 2}}
queue: {messages: 1500}
"""
"""gold is rejected at its quota, silver waits until the queue is full, open passes; some rows are unusable."""

MORE_REJECTS = REJECTS.replace("messages_per_second: 1000", "messages_per_second: 600")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "killed")


class Run:
    """One process of the job, in a session of its own, with what it started."""

    def __init__(self, place: Place, *options: str) -> None:
        place.reached.unlink(missing_ok=True)
        self.place = place
        self.log = place.root / "job.log"
        command = [sys.executable, "-m", "tests.recovery.throttled_job", str(place.root), *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)

    def wait_for(self, path: Path, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Return whether the run made a file; it may end without."""
        deadline = time.monotonic() + patience_seconds
        while not path.exists():
            assert time.monotonic() < deadline, f"no {path} within {patience_seconds} s:\n{self.tail()}"
            if self.ends_within(0.02):
                assert self.process.returncode == 0, self.tail()
                return path.exists()
        return True

    def ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            return True
        return False

    def finish(self) -> None:
        """Wait until the run has drained everything."""
        ended = self.ends_within(PATIENCE_SECONDS)
        self.kill()
        assert ended, f"the job did not end within {PATIENCE_SECONDS} s:\n{self.tail()}"
        assert self.process.returncode == 0, self.tail()

    def kill(self) -> None:
        """Kill all processes of the run's session. Python's workers have a process group of their own."""
        while members := _session_members(self.process.pid):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.ends_within(0.02)
        self.process.wait()

    def tail(self) -> str:
        return self.log.read_text()[-4000:]


def _session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # pid (name) state parent group session …; a name may hold anything.
            state, _parent, _group, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def kill_at_point(place: Place, point: str, turn: int) -> None:
    """Run the job and kill it at a point."""
    run = Run(place, "--pause-at", point, "--turn", str(turn))
    try:
        assert run.wait_for(place.reached), f"the job ended before {point} {turn}:\n{run.tail()}"
    finally:
        run.kill()


def kill_at_moment(place: Place, moments: random.Random) -> None:
    """Run the job and kill it at a drawn moment of a drawn batch, or let it end if it is faster."""
    batch = _planned_batches(place) + moments.randrange(2)
    run = Run(place)
    try:
        if run.wait_for(place.checkpoint / "offsets" / str(batch)):
            run.ends_within(moments.uniform(0, 1.5))
    finally:
        run.kill()


def _planned_batches(place: Place) -> int:
    return sum(path.name.isdigit() for path in (place.checkpoint / "offsets").glob("*"))


def kill_often(place: Place, kills: int) -> None:
    """Kill the job at the points and at drawn moments in turn."""
    moments = random.Random(SEED)
    for number in range(kills):
        if number % 2:
            kill_at_point(place, faults.POINTS[number // 2 % len(faults.POINTS)], _planned_batches(place) + 1)
        else:
            kill_at_moment(place, moments)


def assert_replays_are_identical(place: Place) -> None:
    """Assert that all attempts at a batch returned the same rows in the same order, and that some batch had two."""
    digests = defaultdict(list)
    for line in place.journal.read_text().splitlines():
        entry = json.loads(line)
        digests[entry["batch"]].append(entry["digest"])
    assert {batch: found for batch, found in digests.items() if len(set(found)) > 1} == {}
    assert any(len(found) > 1 for found in digests.values())


def read_input(place: Place) -> pd.DataFrame:
    return pd.concat([pq.read_table(path).to_pandas() for path in sorted(place.source.iterdir())], ignore_index=True)


def as_set(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the user's columns in the order of their ids."""
    columns = ["id", "namespace", "size", "note"]
    return rows[columns].astype({"id": "int64", "size": "int64"}).sort_values("id").reset_index(drop=True)


def excesses(place: Place, admitted: pd.DataFrame, quotas: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return by how much a scope passed its quota in messages, at worst, in windows of batches of one revision."""
    times_ms = read_batch_times_ms(place.checkpoint)
    usage = read_table(place.usage, ["revision", "batch_id", "level"])
    revision = usage.drop_duplicates("batch_id").set_index("batch_id")["revision"]
    assert set(revision.index) == set(times_ms)
    return {}


def test_killed_job_ends_with_the_rows_of_one_that_was_not(place: Place, tmp_path: Path) -> None:
    whole = Place(tmp_path / "whole")
    for each in (place, whole):
        write_source(each, count=FILES * ROWS_A_FILE, files=FILES)
        each.policies.write_text(DELAYS)
    Run(whole).finish()
    kill_at_point(place, faults.AFTER_EPOCH, 3)
    kill_often(place, KILLS - 1)
    Run(place).finish()

    admitted = read_table(place.admitted)
    pd.testing.assert_frame_equal(as_set(admitted), as_set(read_table(whole.admitted)))
    pd.testing.assert_frame_equal(as_set(admitted), as_set(read_input(place)))
    assert count_out_of_order(admitted, key="namespace", by="id") == 0
    assert read_table(place.rejected).empty
