"""The copies of rows that wait, of queries that decide on references: each row leaves once, whatever has its copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

from spark_throttle.spark.state_reader import queued_after, read_queued
from tests.effort import thorough_after
from tests.integration.reference_queries import BOUNDED, pack_with, rows, run, start, stream
from tests.integration.streams import Lake, finish, policies, publish

SPARK_SCHEMA = StructType().add("id", "long").add("ns", "string").add("size", "long")
SHUT = policies(tenants={"shut": publish(messages_per_second=0)})


def copies(lake: Lake) -> list[Path]:
    return sorted((lake.control / "staged").glob("*"))


def test_source_may_lose_a_file_once_the_batch_that_brought_it_is_committed(lake: Lake) -> None:
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
    (copy,) = copies(lake)
    copied = sorted(pq.read_table(copy).column("id").to_pylist())
    assert set(range(21, 60)) <= set(copied), "what waited"
    assert len(copied) == len(set(copied)), "copied once"


@pytest.mark.parametrize("harm", thorough_after(1, ["gone", "of fewer rows"]))
def test_copy_that_is_harmed_stops_the_query_before_a_sink_is_given_anything(lake: Lake, harm: str) -> None:
    lake.offer([*rows("free/a", range(5)), *rows("shut/a", range(100, 140))])
    run(lake, SHUT)
    (copy,) = copies(lake)
    moved = copy.rename(lake.root / "moved")
    if harm != "gone":
        pq.write_table(pq.read_table(moved).slice(1), copy)
    lake.offer(rows("free/a", range(5, 10)))
    with pytest.raises(StreamingQueryException, match=r"DamagedError: the file of waiting rows .* restore"):
        run(lake, policies())
    assert lake.admitted_ids == [0, 1, 2, 3, 4]
    moved.replace(copy)
    run(lake, policies())
    assert lake.admitted_ids == [*range(10), *range(100, 140)]


def test_leftovers_of_copies_are_packed_and_their_rows_leave_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_with(monkeypatch, {"_MANY_LEFTOVERS": 2})
    document = policies(
        namespaces={"good/a": publish(messages_per_second=20, burst_seconds=1)},
        tenants={"shut": publish(messages_per_second=0)},
    )
    for file in range(5):
        lake.offer([*rows("good/a", range(10 * file, 10 * file + 10)), *rows("shut/a", [100 + file])])
    run(lake, document)
    shut = list(range(100, 105))
    assert any("-pack-" in copy.name for copy in copies(lake))
    assert [row[0] for row in lake.admitted] == list(range(50)), "in order, each once"
    assert sorted(row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()) == shut
    before, last = dict(lake.kept), lake.last_batch()
    lake.crash_in(last)
    lake.kept.clear()
    run(lake, policies())
    assert lake.kept.pop(last, []) == before.get(last, []), "the batch that ran again"
    assert lake.admitted_ids == shut


def test_rows_wait_and_leave_under_a_path_that_spark_takes_for_a_pattern(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_with(monkeypatch, {"_MANY_LEFTOVERS": 1})
    checkpoint = lake.path("my checkpoint {a}[b]*")
    for number, document in enumerate((SHUT, policies())):
        lake.offer([*rows("shut/a", [10 * number + 1, 10 * number + 2]), *rows("free/a", [10 * number + 3])])
        lake.offer(rows("free/a", [10 * number + 4]))
        throttle = lake.throttle(document)
        writer = throttle.write_stream(stream(lake, throttle)).option("checkpointLocation", checkpoint)
        finish(writer.trigger(availableNow=True).foreachBatch(lake.keep).start())
    assert lake.admitted_ids == [1, 2, 3, 4, 11, 12, 13, 14]


def test_waiting_rows_of_files_with_other_columns_are_read_for_an_audit_with_those_of_the_query(lake: Lake) -> None:
    """Files of fewer columns, of smaller numbers, and of a column that the query leaves out."""
    events = Path(lake.path("events"))
    events.mkdir()
    small = pa.table({"id": pa.array([1, 2], pa.int32()), "ns": ["shut/a"] * 2, "size": pa.array([1, 2], pa.int32())})
    pq.write_table(small, events / "0.parquet")
    wide = pa.table({"id": [3, 4], "ns": ["shut/a"] * 2, "size": [3, 4], "note": ["x", "y"], "other": [1, 2]})
    pq.write_table(wide, events / "1.parquet", row_group_size=1)
    pq.write_table(wide.slice(0, 0), events / "2.parquet")
    schema = StructType().add("id", "long").add("ns", "string").add("size", "long").add("note", "string")
    wanted = [(1, 1, None), (2, 2, None), (3, 3, "x"), (4, 4, "y")]
    for document in (SHUT, policies()):
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
    lake.offer(rows("shut/a", range(3)))
    run(lake, SHUT)
    saved, checkpoint = lake.root / "saved", Path(lake.checkpoint)
    for log in ("offsets", "commits", "state"):
        shutil.copytree(checkpoint / log, saved / log)
    for first in (10, 20):
        lake.offer(rows("shut/a", range(first, first + 3)))
    run(lake, SHUT)
    shutil.rmtree(checkpoint / "state")
    shutil.copytree(saved, checkpoint, dirs_exist_ok=True)
    lake.crash_in(max(int(path.name) for path in (saved / "commits").iterdir() if path.name.isdigit()) + 1)
    for path in (checkpoint / "offsets").iterdir():
        if not (saved / "offsets" / path.name).exists():
            path.unlink()
    shutil.rmtree(lake.control / "batches")
    for file in sorted(Path(lake.path("events")).iterdir())[1:]:
        file.unlink()
    lake.offer(rows("free/a", [100]))
    lake.offer(rows("shut/a", [101, 102, 103]))
    run(lake, SHUT)
    waits = [0, 1, 2, 101, 102, 103]
    assert sorted(row["id"] for row in read_queued(lake.spark, lake.checkpoint).collect()) == waits
    lake.kept.clear()
    run(lake, policies())
    assert lake.admitted_ids == waits
