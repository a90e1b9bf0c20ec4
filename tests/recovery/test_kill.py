"""What was killed goes on as if it had not been, though the policies changed meanwhile.

All processes of a job are killed with SIGKILL: the driver, the JVM, Python's workers and the control source's. The
kills stand at points where something is written and what makes it count is not, and where a destination refuses or does
not answer. The crash program (`tests.crash`) kills a job in many more ways, in the middle of a file too, and recounts
what it leaves.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.parquet as pq
import pytest

from demos.tables import read_paying_times_ms
from spark_throttle.spark.sinks.payload import StagedPayload
from tests.effort import thorough_after
from tests.ledger import BATCH, count_out_of_order, excess, read_table
from tests.recovery import faults, paced_job, throttled_job
from tests.recovery.killed_queries import (
    REFUSED,
    REJECTS,
    ROWS_REFUSED,
    ROWS_SENT,
    TABLES,
    Killed,
    Refuses,
    batch_of,
    killed_queries,
)
from tests.recovery.throttled_job import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LESS = REJECTS.replace("1200", "600").replace("800,", "400,")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """Yield what is left of a job with a query for each test that is to run."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    tables = [each for each in TABLES if {"table": each} in calls]
    refusals = [each for each in REFUSED if {"status": each[0], "point": each[1]} in calls]
    with killed_queries(tmp_path_factory.mktemp("killed"), tables, refusals) as found:
        yield found


def planned_batches(place: Place) -> int:
    return sum(path.name.isdigit() for path in (place.checkpoint / "offsets").glob("*"))


def attempts(place: Place) -> dict[int, list[str]]:
    """Return of every batch what was decided at each attempt, as digests."""
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
def _journalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the journal in this process too, where what was killed is finished."""
    # What is restored in the end.
    monkeypatch.setattr(StagedPayload, "take", StagedPayload.take)
    faults.keep_journal()


@pytest.mark.usefixtures("_journalled")
@pytest.mark.parametrize("table", thorough_after(1, TABLES))
def test_replay_decides_the_same_though_the_policies_changed(spark: SparkSession, killed: Killed, table: str) -> None:
    place = killed.into_delta[table]
    torn = planned_batches(place) - 1
    assert set(read_table(place.admitted)[BATCH]) == set(range(torn + 1))
    assert set(read_table(place.rejected)[BATCH]) == set(range(torn if table == "partitioned" else torn + 1))
    place.policies.write_text(LESS)
    throttled_job.start(spark, place, table).awaitTermination()

    replayed = attempts(place)
    assert {batch for batch, digests in replayed.items() if len(digests) > 1} == {torn}
    assert {batch: digests for batch, digests in replayed.items() if len(set(digests)) > 1} == {}

    admitted, rejected = read_table(place.admitted), read_table(place.rejected)
    pd.testing.assert_frame_equal(as_sent(pd.concat([admitted, rejected])), as_sent(read_input(place)))
    # A table has no order within a batch.
    assert count_out_of_order(admitted.sort_values([BATCH, "id"]), key="namespace", by="id") == 0
    assert excess_of(place, of_tenants(admitted, "gold"), [(1200, 1200), (600, 600)]) <= 1
    assert excess_of(place, of_tenants(admitted, "silver"), [(800, 800), (400, 400)]) <= 1

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


def test_query_killed_while_it_sends_sends_the_same_bytes_under_the_same_keys(
    spark: SparkSession, killed: Killed
) -> None:
    sent = killed.sends
    record, first = sent.record, {batch_of(arrival.key) for arrival in sent.record.arrivals}
    again = len(record.arrivals)
    paced_job.start(spark, sent.root, record.url, sent.policies).awaitTermination()
    again_from = min(batch_of(arrival.key) for arrival in record.arrivals[again:])
    assert again_from == max(first) > 0, "batches that were committed are not sent again"
    kept = record.by_key()  # which fails where a key comes with other bytes
    assert len(record.arrivals) > len(kept)
    by_namespace: dict[str, list[int]] = {}
    for key, body in sorted(kept.items(), key=lambda item: (batch_of(item[0]), int(item[0].split("/")[4]))):
        by_namespace.setdefault(key.split("/")[3], []).extend(row["id"] for row in json.loads(body))
    assert by_namespace == {f"{'ab'[n % 2]}%2F{n}": list(range(n, ROWS_SENT, 6)) for n in range(6)}


@pytest.mark.parametrize(("status", "point"), thorough_after(2, REFUSED))
def test_query_killed_while_its_destination_refuses_loses_no_row_and_has_none_taken_under_two_keys(
    spark: SparkSession, killed: Killed, status: int, point: str
) -> None:
    sent = killed.refused[status, point]
    record, refuses = sent.record, sent.answer
    assert isinstance(refuses, Refuses)
    assert faults.reached(sent.root).exists() == bool(point)
    paced_job.start(spark, sent.root, record.url, sent.policies).awaitTermination()
    record.by_key()  # which fails where a key comes with other bytes
    keys_of = defaultdict[int, set[str]](set)
    for arrival in refuses.taken:
        for row in arrival.rows:
            keys_of[row["id"]].add(arrival.key)
    assert {row: len(keys) for row, keys in keys_of.items() if len(keys) > 1} == {}
    assert len(keys_of) == ROWS_REFUSED
    first = {arrival.key: arrival for arrival in reversed(refuses.taken)}
    found = defaultdict[str, list[int]](list)
    for arrival in sorted(first.values(), key=lambda arrival: arrival.at_ns):
        found[arrival.namespace].extend(row["id"] for row in arrival.rows)
    assert found == {f"{'ab'[n % 2]}/{n}": list(range(n, ROWS_REFUSED, 6)) for n in range(6)}
