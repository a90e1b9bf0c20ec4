"""A job that is killed in the middle and started again ends with the same rows as one that was not.

All processes of the job are killed with SIGKILL: the driver, the JVM, Python's workers and the control source's. The
kills stand at points where something is written and what makes it count is not, and at moments drawn from a seed. What
is asserted is counted from the input and the tables alone. By hand, ``KILLS=10`` in the environment kills the first job
ten times, ``KILL_SEED`` elsewhere.
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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.parquet as pq
import pytest

from spark_throttle.spark import writer as stream_writer
from spark_throttle.spark.batch_sink import BatchSink
from spark_throttle.spark.delta_sink import ThrottleDeltaSink
from tests.ledger import BATCH, count_out_of_order, excess, read_batch_times_ms, read_table
from tests.recovery import faults, throttled_job
from tests.recovery.throttled_job import SHARDS, Place, write_source
from tests.sessions import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILL_SEED", "20260719"))
FILES = 4 + 3 * max(0, KILLS - 2)
ROWS_A_FILE = 5_000
LARGEST_BYTES = 200
PATIENCE_SECONDS = 300
WRITERS = ("native", "spark")

pytestmark = pytest.mark.timeout(900 + 300 * KILLS)

# A full bucket is less than what a file brings, and one a file less than all: some wait, however slow the batches are.
DELAYS = """\
resource_groups:
  shared: {publish: {messages_per_second: 3200, bytes_per_second: 300000, burst_seconds: 1}}
tenants:
  gold: {resource_group: shared}
  silver: {resource_group: shared, publish: {messages_per_second: 1200, burst_seconds: 1}}
namespaces:
  open/02: {publish: {messages_per_second: 300, burst_seconds: 1}}
"""
"""Of the 5,000 rows of a file gold brings 2,250 and silver 1,520, of 100 bytes on average; open/02 brings 355."""

REJECTS = """\
resource_groups:
  shared: {publish: {messages_per_second: 1200, burst_seconds: 1, on_excess: reject}}
tenants:
  gold: {resource_group: shared}
  silver: {publish: {messages_per_second: 800, burst_seconds: 1}}
queue: {messages: 1800}
"""
"""gold is rejected at its quota, silver waits until the queue is full, open passes; some rows are unusable."""

LESS = REJECTS.replace("1200", "600").replace("800,", "400,")


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


def kill_at_point(place: Place, writer: str, point: str, turn: int) -> None:
    """Run the job and kill it at a point."""
    run = Run(place, "--writer", writer, "--pause-at", point, "--turn", str(turn))
    try:
        assert run.wait_for(place.reached), f"the job ended before {point} {turn}:\n{run.tail()}"
    finally:
        run.kill()


def kill_at_moment(place: Place, writer: str, moments: random.Random) -> None:
    """Run the job and kill it at a drawn moment of a drawn batch; a job that ends before is let be."""
    batch = planned_batches(place) + moments.randrange(2)
    run = Run(place, "--writer", writer)
    try:
        if run.wait_for(place.checkpoint / "offsets" / str(batch)):
            run.ends_within(moments.uniform(0, 1.5))
    finally:
        run.kill()


def planned_batches(place: Place) -> int:
    return sum(path.name.isdigit() for path in (place.checkpoint / "offsets").glob("*"))


def attempts(place: Place) -> dict[int, list[str]]:
    """Return of every batch what the operator returned at each attempt, as digests."""
    digests = defaultdict(list)
    for line in place.journal.read_text().splitlines():
        entry = json.loads(line)
        digests[entry["batch"]].append(entry["digest"])
    return digests


def read_input(place: Place) -> pd.DataFrame:
    return pd.concat([pq.read_table(path).to_pandas() for path in sorted(place.source.iterdir())], ignore_index=True)


def as_sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the user's columns in the order of their ids."""
    columns = ["id", "namespace", "size", "note"]
    return rows[columns].astype({"id": "int64", "size": "int64"}).sort_values("id").reset_index(drop=True)


def excess_of(place: Place, rows: pd.DataFrame, quotas: Sequence[tuple[int, int]], *, what: str = "messages") -> float:
    """Return by how much `rows` pass a quota, at worst, in windows of batches of one revision of the policies.

    `quotas` are (a second, burst) of the revisions in the order in which they came into force.
    """
    usage = read_table(place.usage, ["revision", "epoch"]).drop_duplicates(BATCH).sort_values(BATCH)
    times_ms = read_batch_times_ms(place.checkpoint)
    assert usage[BATCH].tolist() == list(times_ms)
    revisions = usage["revision"].unique().tolist()
    assert len(revisions) == len(quotas)
    by_batch = rows.groupby(BATCH)
    passed = by_batch.size() if what == "messages" else by_batch["size"].sum()
    found = []
    for revision, (per_second, burst) in zip(revisions, quotas, strict=True):
        of_revision = {batch: times_ms[batch] for batch in usage[BATCH][usage["revision"] == revision]}
        found.append(excess(passed, of_revision, per_second=per_second, burst=burst))
    return max(found)


def of_tenants(rows: pd.DataFrame, *tenants: str) -> pd.DataFrame:
    return rows[rows["namespace"].str.partition("/")[0].isin(tenants)]


@pytest.fixture
def journalled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the journal in this process too, where the killed job is finished."""
    # What is restored in the end.
    monkeypatch.setattr(BatchSink, "__call__", BatchSink.__call__)
    monkeypatch.setattr(stream_writer, "ThrottleDeltaSink", ThrottleDeltaSink)
    faults.keep_journal(place.journal)


@pytest.mark.usefixtures("journalled")
def test_killed_job_ends_with_the_rows_of_one_that_was_not(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    whole = Place(tmp_path / "whole")
    for each in (whole, place):
        write_source(each, count=FILES * ROWS_A_FILE, files=FILES)
        each.policies.write_text(DELAYS)
    # Each run writes as the one before did not.
    kill_at_point(place, "spark", faults.AFTER_EPOCH, 3)
    moments = random.Random(SEED)
    for number in range(KILLS - 1):
        writer = WRITERS[number % 2]
        if number % 4 > 1:
            kill_at_point(place, writer, moments.choice(faults.POINTS), planned_batches(place) + 1)
        else:
            kill_at_moment(place, writer, moments)
    throttled_job.start(spark, place, WRITERS[(KILLS - 1) % 2]).awaitTermination()
    throttled_job.start(spark, whole, "spark").awaitTermination()

    admitted = read_table(place.admitted)
    pd.testing.assert_frame_equal(as_sent(admitted), as_sent(read_table(whole.admitted)))
    pd.testing.assert_frame_equal(as_sent(admitted), as_sent(read_input(place)))
    assert read_table(place.rejected).empty
    assert count_out_of_order(admitted, key="namespace", by="id") == 0
    shared = of_tenants(admitted, "gold", "silver")
    assert excess_of(place, shared, [(3200, 3200)]) <= SHARDS
    assert excess_of(place, shared, [(300_000, 300_000)], what="bytes") <= SHARDS * LARGEST_BYTES
    assert excess_of(place, of_tenants(admitted, "silver"), [(1200, 1200)]) <= SHARDS
    assert excess_of(place, admitted[admitted["namespace"] == "open/02"], [(300, 300)]) <= 1
    assert set(of_tenants(admitted[admitted[BATCH] >= FILES], "gold", "silver")["namespace"])  # some had to wait


@pytest.mark.usefixtures("journalled")
@pytest.mark.parametrize("writer", WRITERS)
def test_replay_decides_the_same_though_the_policies_changed(spark: SparkSession, place: Place, writer: str) -> None:
    write_source(place, count=FILES * ROWS_A_FILE, files=FILES, with_bad_rows=True)
    place.policies.write_text(REJECTS)
    kill_at_point(place, writer, faults.AFTER_ADMITTED, 1)
    torn = planned_batches(place) - 1
    assert set(read_table(place.admitted)[BATCH]) == set(range(torn + 1))
    assert set(read_table(place.rejected)[BATCH]) == set(range(torn))
    place.policies.write_text(LESS)
    if writer == "native":
        kill_at_point(place, writer, faults.IN_FILE, torn + 1)
    kill_at_point(place, writer, faults.AFTER_FEEDBACK, torn + 2)
    throttled_job.start(spark, place, writer).awaitTermination()

    replayed = attempts(place)
    assert {batch for batch, digests in replayed.items() if len(digests) > 1} == {torn, torn + 2}
    assert {batch: digests for batch, digests in replayed.items() if len(set(digests)) > 1} == {}

    admitted, rejected = read_table(place.admitted), read_table(place.rejected)
    pd.testing.assert_frame_equal(as_sent(pd.concat([admitted, rejected])), as_sent(read_input(place)))
    assert count_out_of_order(admitted, key="namespace", by="id") == 0
    assert excess_of(place, of_tenants(admitted, "gold"), [(1200, 1200), (600, 600)]) <= SHARDS
    assert excess_of(place, of_tenants(admitted, "silver"), [(800, 800), (400, 400)]) <= SHARDS

    unusable = rejected["namespace"].isna() | (rejected["size"] < 0)
    whose = rejected["namespace"].str.partition("/")[0].where(~unusable, "unusable")
    verdicts = pd.DataFrame(rejected["throttle"].tolist()).assign(whose=whose)
    assert set(verdicts[["whose", "verdict", "reason"]].itertuples(index=False, name=None)) == {
        ("gold", "REJECT", "quota"),
        ("silver", "REJECT", "queue_full"),
        ("unusable", "REJECT", "namespace_missing"),
        ("unusable", "REJECT", "size_negative"),
    }
    assert set(verdicts["scope"][verdicts["reason"] == "quota"]) == {"shared"}
    usage = read_table(place.usage).query("level == 'job'")
    assert usage["admitted_messages"].sum() == len(admitted)
    assert usage["rejected_messages"].sum() == len(rejected)
