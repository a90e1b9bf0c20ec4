"""A batch that is run again after a kill returns the same bytes, though the policies changed meanwhile.

All processes of the job are killed with SIGKILL: the driver, the JVM, Python's workers and the control source's. The
kills stand at points where something is written and what makes it count is not. The crash program (`tests.crash`)
kills a job in many more ways, in the middle of a file too, and recounts what it leaves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.parquet as pq
import pytest

from spark_throttle.spark import writer as stream_writer
from spark_throttle.spark.sinks.batch_sink import BatchSink
from spark_throttle.spark.sinks.delta_sink import ThrottleDeltaSink
from tests.ledger import BATCH, count_out_of_order, excess, read_table
from tests.paying_times import read_paying_times_ms
from tests.recovery import faults, throttled_job
from tests.recovery.processes import Job
from tests.recovery.throttled_job import SHARDS, Place, write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 4
ROWS_A_FILE = 5_000
WRITERS = ("native", "spark")

pytestmark = pytest.mark.timeout(900)

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


class Run(Job):
    """One run of the job that the tests below kill."""

    def __init__(self, place: Place, *options: str) -> None:
        place.reached.unlink(missing_ok=True)
        self.place = place
        super().__init__("tests.recovery.throttled_job", [str(place.root), *options], place.root / "job.log")


def kill_at_point(place: Place, writer: str, point: str, turn: int) -> None:
    """Run the job and kill it at a point."""
    run = Run(place, "--writer", writer, "--pause-at", point, "--turn", str(turn))
    try:
        assert run.wait_for(place.reached), f"the job ended before {point} {turn}:\n{run.tail()}"
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


def excess_of(place: Place, rows: pd.DataFrame, quotas: Sequence[tuple[int, int]]) -> float:
    """Return by how much `rows` pass a quota, at worst, in windows of batches of one revision of the policies.

    `quotas` are (a second, burst) of the revisions in the order in which they came into force.
    """
    usage = read_table(place.usage, ["revision", "epoch"]).drop_duplicates(BATCH).sort_values(BATCH)
    times_ms = read_paying_times_ms(place.checkpoint)
    assert usage[BATCH].tolist() == list(times_ms)
    revisions = usage["revision"].unique().tolist()
    assert len(revisions) == len(quotas)
    by_batch = rows.groupby(BATCH)
    passed = by_batch.size()
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
@pytest.mark.parametrize("writer", WRITERS)
def test_replay_decides_the_same_though_the_policies_changed(spark: SparkSession, place: Place, writer: str) -> None:
    write_source(place, count=FILES * ROWS_A_FILE, files=FILES, with_bad_rows=True)
    place.policies.write_text(REJECTS)
    point = faults.AFTER_FEEDBACK if writer == "native" else faults.AFTER_ADMITTED
    kill_at_point(place, writer, point, 1)
    torn = planned_batches(place) - 1
    assert set(read_table(place.admitted)[BATCH]) == set(range(torn + 1))
    assert set(read_table(place.rejected)[BATCH]) == set(range(torn if writer == "spark" else torn + 1))
    place.policies.write_text(LESS)
    throttled_job.start(spark, place, writer).awaitTermination()

    replayed = attempts(place)
    assert {batch for batch, digests in replayed.items() if len(digests) > 1} == {torn}
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
