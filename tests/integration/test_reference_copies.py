"""The copies of rows that wait, of queries that decide on references: each row leaves once, whatever has its copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

from spark_throttle.spark.references import waiting_rows
from spark_throttle.spark.state_reader import queued_after, read_queued
from tests.effort import thorough_after
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from collections.abc import Callable


from tests.integration.reference_queries import BOUNDED, rows, run, start, stream

SPARK_SCHEMA = StructType().add("id", "long").add("ns", "string").add("size", "long")


def copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


def copied_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rows, "_MOST_KEPT_FILES", 0)


def copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rows, "_MOST_KEPT_MESSAGES", 10)
    monkeypatch.setattr(waiting_rows, "_PART_MESSAGES", 7)


COPIES = [(copied_whole, "waiting-files"), (copied_in_parts, "waiting"), (copied_by_row, "waiting")]


@pytest.mark.parametrize(("copied", "found_in"), thorough_after(2, COPIES))
def test_source_may_lose_a_file_once_the_batch_that_brought_it_is_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, copied: Callable[[pytest.MonkeyPatch], None], found_in: str
) -> None:
    copied(monkeypatch)
    lake.offer([*rows("good/a", range(60)), *rows("good/b", range(100, 103))])
    file = next(Path(lake.path("events")).glob("*.parquet"))
    throttle = lake.throttle(BOUNDED)

    def keep(batch_rows: Any, batch: int) -> None:
        lake.keep(batch_rows, batch)
        if batch == 1:
            file.unlink()

    writer = throttle.write_stream(stream(lake, throttle)).option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).foreachBatch(keep).start())
    assert lake.admitted_ids == [*range(60), 100, 101, 102]
    assert len(lake.kept) > 2
    assert {path.name for path in lake.control.glob("waiting*")} == {found_in, "waiting-accounts"}
    (folder,) = (lake.control / found_in).iterdir()
    copies = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).column("id").to_pylist()]
    waited, others = list(range(21, 60)), [*range(21), 100, 101, 102]
    assert sorted(copies) == sorted([*waited, *(others if copied is copied_whole else [])]), "copied once"


@pytest.mark.parametrize(("copied", "found_in"), thorough_after(1, COPIES[1:] + COPIES[:1]))
def test_waiting_rows_are_read_for_an_audit_whatever_has_their_copies(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, copied: Callable[[pytest.MonkeyPatch], None], found_in: str
) -> None:
    copied(monkeypatch)
    lake.offer([*rows("free/a", range(5)), *rows("shut/a", range(100, 140))])
    lake.offer(rows("shut/b", range(200, 230)))
    run(lake, policies(tenants={"shut": publish(messages_per_second=0)}))
    assert (lake.control / found_in).exists()
    waits, batch = [*range(100, 140), *range(200, 230)], lake.last_batch()
    for found in (
        read_queued(lake.spark, lake.checkpoint),
        read_queued(lake.spark, lake.checkpoint, schema=SPARK_SCHEMA),
        queued_after(lake.spark, lake.checkpoint, str(lake.control), batch, schema=SPARK_SCHEMA),
    ):
        assert sorted((row["id"], row["size"]) for row in found.collect()) == [(each, 10 + each) for each in waits]


@pytest.mark.parametrize(("copied", "found_in"), thorough_after(1, COPIES))
def test_copy_that_is_gone_stops_the_query_before_a_sink_is_given_anything(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, copied: Callable[[pytest.MonkeyPatch], None], found_in: str
) -> None:
    copied(monkeypatch)
    lake.offer([*rows("free/a", range(5)), *rows("shut/a", range(100, 140))])
    run(lake, policies(tenants={"shut": publish(messages_per_second=0)}))
    (copy, *_) = sorted((lake.control / found_in).rglob("*.parquet"))
    moved = copy.rename(lake.root / "moved")
    lake.offer(rows("free/a", range(5, 10)))
    with pytest.raises(StreamingQueryException, match=r"DamagedError: the cop(y|ies) .* restore"):
        run(lake, policies())
    assert lake.admitted_ids == [0, 1, 2, 3, 4]
    moved.rename(copy)
    run(lake, policies())
    assert lake.admitted_ids == [*range(10), *range(100, 140)]


@pytest.mark.thorough
def test_leftovers_of_copies_are_joined_and_their_rows_leave_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rows, "_MANY_LEFTOVERS", 2)
    document = policies(
        namespaces={"good/a": publish(messages_per_second=20, burst_seconds=1)},
        tenants={"shut": publish(messages_per_second=0)},
    )
    for file in range(5):
        lake.offer([*rows("good/a", range(10 * file, 10 * file + 10)), *rows("shut/a", [100 + file])])
    run(lake, document)
    shut = list(range(100, 105))
    assert any((lake.control / "waiting").glob("joined=*"))
    assert [row[0] for row in lake.admitted] == list(range(50)), "in order, each once"
    assert sorted(row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()) == shut
    before, last = dict(lake.kept), lake.last_batch()
    lake.crash_in(last)
    lake.kept.clear()
    run(lake, policies())
    assert lake.kept.pop(last, []) == before.get(last, []), "the batch that ran again"
    assert lake.admitted_ids == shut


@pytest.mark.parametrize("harm", thorough_after(1, ["all accounts", "the last account"]))
def test_rows_whose_account_is_gone_stop_the_query_and_no_row_of_their_file_leaves_again(lake: Lake, harm: str) -> None:
    lake.offer([*rows("free/a", range(5)), *rows("shut/a", range(100, 104))])
    run(lake, policies(tenants={"shut": publish(messages_per_second=0)}))
    accounts = sorted((lake.control / "waiting-accounts").iterdir())
    for account in accounts if harm == "all accounts" else accounts[-1:]:
        account.unlink()
    with pytest.raises(StreamingQueryException, match=r"DamagedError: the account .* 000000\.parquet.* restore"):
        run(lake, policies())
    assert lake.admitted_ids == [0, 1, 2, 3, 4]


def test_rows_wait_and_leave_under_a_path_that_spark_takes_for_a_pattern(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state reader of Spark does not find it: leftovers stay where they are."""
    monkeypatch.setattr(waiting_rows, "_MANY_LEFTOVERS", 1)
    checkpoint = lake.path("my checkpoint {a}[b]*")
    for number, document in enumerate((policies(tenants={"shut": publish(messages_per_second=0)}), policies())):
        lake.offer([*rows("shut/a", [10 * number + 1, 10 * number + 2]), *rows("free/a", [10 * number + 3])])
        lake.offer(rows("free/a", [10 * number + 4]))
        throttle = lake.throttle(document)
        writer = throttle.write_stream(stream(lake, throttle)).option("checkpointLocation", checkpoint)
        finish(writer.trigger(availableNow=True).foreachBatch(lake.keep).start())
    assert lake.admitted_ids == [1, 2, 3, 4, 11, 12, 13, 14]


def test_waiting_rows_of_files_with_other_columns_are_read_for_an_audit_with_those_of_the_query(lake: Lake) -> None:
    """Files that were copied whole: of fewer columns, of smaller numbers, and of a column that the query leaves out."""
    events = Path(lake.path("events"))
    events.mkdir()
    small = pa.table({"id": pa.array([1, 2], pa.int32()), "ns": ["shut/a"] * 2, "size": pa.array([1, 2], pa.int32())})
    pq.write_table(small, events / "0.parquet")
    wide = pa.table({"id": [3, 4], "ns": ["shut/a"] * 2, "size": [3, 4], "note": ["x", "y"], "other": [1, 2]})
    pq.write_table(wide, events / "1.parquet", row_group_size=1)
    pq.write_table(wide.slice(0, 0), events / "2.parquet")
    schema = StructType().add("id", "long").add("ns", "string").add("size", "long").add("note", "string")
    wanted = [(1, 1, None), (2, 2, None), (3, 3, "x"), (4, 4, "y")]
    for document in (policies(tenants={"shut": publish(messages_per_second=0)}), policies()):
        throttle = lake.throttle(document)
        stream_of = throttle.read_stream(lake.spark).schema(schema).parquet(str(events))
        finish(start(lake, throttle, stream_of))
        if lake.admitted:
            break
        control, batch = str(lake.control), lake.last_batch()
        for found in (
            read_queued(lake.spark, lake.checkpoint),
            queued_after(lake.spark, lake.checkpoint, control, batch),
            queued_after(lake.spark, lake.checkpoint, control, batch, schema=schema),
        ):
            assert found.columns[:5] == ["id", "ns", "size", "note", "namespace"]
            assert sorted((row["id"], row["size"], row["note"]) for row in found.collect()) == wanted
    assert sorted((row[0], row[2], row[3]) for row in lake.admitted) == wanted  # type: ignore[misc]


def test_audit_reads_no_copies_of_batches_that_were_undone(lake: Lake) -> None:
    """The query has other rows at the places that undone batches copied."""
    shut = policies(tenants={"shut": publish(messages_per_second=0)})
    lake.offer(rows("shut/a", range(3)))
    run(lake, shut)
    saved, checkpoint = lake.root / "saved", Path(lake.checkpoint)
    for log in ("offsets", "commits", "state"):
        shutil.copytree(checkpoint / log, saved / log)
    for first in (10, 20):
        lake.offer(rows("shut/a", range(first, first + 3)))
    run(lake, shut)
    shutil.copytree(saved, checkpoint, dirs_exist_ok=True)
    lake.crash_in(max(int(path.name) for path in (saved / "commits").iterdir() if path.name.isdigit()) + 1)
    for path in (checkpoint / "offsets").iterdir():
        if not (saved / "offsets" / path.name).exists():
            path.unlink()
    shutil.rmtree(lake.control / "feedback")
    for file in sorted(Path(lake.path("events")).iterdir())[1:]:
        file.unlink()
    lake.offer(rows("free/a", [100]))
    lake.offer(rows("shut/a", [101, 102, 103]))
    run(lake, shut)
    waits = [0, 1, 2, 101, 102, 103]
    assert sorted(row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()) == waits
    lake.kept.clear()
    run(lake, policies())
    assert lake.admitted_ids == waits
