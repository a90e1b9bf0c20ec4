"""Rows to frames, and the helper columns that are found where they are needed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_throttle.spark.rows.frames import FRAME_SCHEMA, NAMESPACE, SIZE, TIE, FrameKind, decode, payload
from spark_throttle.spark.rows.helper_columns import FramePacker, HelperColumns, arrivals_of


def events(ids: list[int]) -> pa.Table:
    n = len(ids)
    return pa.table({
        "id": pa.array(ids, pa.int64()), "nested": pa.array([{"a": [i, None]} if i % 3 else None for i in ids]),
        NAMESPACE: pa.array([f"t/{i % 50}" for i in ids], pa.string()), SIZE: pa.array([1] * n, pa.int64()),
        TIE: pa.array(ids, pa.int64()),
    })  # fmt: skip


@pytest.mark.parametrize("rows_a_batch", [1, 3, 1_000])
def test_packed_rows_are_the_rows_under_one_key(rows_a_batch: int) -> None:
    table = events(list(range(200)))
    batches = [*table.to_batches(max_chunksize=rows_a_batch), table.slice(0, 0).combine_chunks().to_batches()]
    batches = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
    found, keys = list[int](), set[int]()
    for batch in FramePacker()(batches):
        assert batch.schema == FRAME_SCHEMA
        for row in batch.to_pylist():
            assert row["kind"] == FrameKind.ROWS
            rows = decode(row["frame"])
            assert rows.select(["nested"]).to_pylist() == [
                {"nested": {"a": [i, None]} if i % 3 else None} for i in rows.column("id").to_pylist()
            ]
            found += rows.column("id").to_pylist()
            keys.add(row["key"])
    assert found == list(range(200))
    assert len(keys) == 1


def test_task_without_rows_packs_nothing() -> None:
    empty = events([]).combine_chunks().to_batches()
    assert list(FramePacker()(iter(empty))) == []
    assert list(FramePacker()(iter([]))) == []


def test_helper_column_that_is_a_column_of_the_users_does_not_travel_twice() -> None:
    table = events([3, 1, 2])
    sent = table.drop_columns([NAMESPACE, TIE]).append_column("ns", table.column(NAMESPACE))
    pack = FramePacker(HelperColumns({NAMESPACE: "ns", TIE: "id"}))
    (batch,) = pack(sent.to_batches())
    frame = batch.column("frame")[0].as_py()
    assert set(decode(frame).column_names) == {"id", "nested", "ns", SIZE}
    rows = arrivals_of(frame)
    assert rows.column(NAMESPACE).to_pylist() == ["t/3", "t/1", "t/2"]
    assert rows.column(TIE).to_pylist() == [3, 1, 2]
    assert payload(rows).column_names == ["id", "nested", "ns"]
    assert payload(rows).schema.metadata is None


@pytest.mark.parametrize(
    ("kind", "in_bytes", "sizes"),
    [
        (pa.string(), False, [0, 1, None, 3]), (pa.large_string(), False, [0, 1, None, 3]),
        (pa.string(), True, [0, 2, None, 8]), (pa.binary(), False, [0, 2, None, 8]),
        (pa.binary(), True, [0, 2, None, 8]),
    ],
)  # fmt: skip
def test_size_that_is_a_length_is_found_by_the_decider(
    kind: pa.DataType, in_bytes: bool, sizes: list[int | None]
) -> None:
    values = pa.array(["", "é", None, "a\U0001f600漢"], pa.string())
    sent = events([0, 1, 2, 3]).drop_columns([SIZE]).append_column("value", values.cast(pa.binary()).cast(kind))
    derived = HelperColumns(bytes_of="value") if in_bytes else HelperColumns(characters_of="value")
    assert derived.helpers == {SIZE}
    (batch,) = FramePacker(derived=derived)(sent.to_batches())
    frame = batch.column("frame")[0].as_py()
    assert SIZE not in decode(frame).column_names
    found = arrivals_of(frame).column(SIZE)
    assert (found.type, found.to_pylist()) == (pa.int64(), sizes)


def test_frames_with_all_columns_say_nothing() -> None:
    (batch,) = FramePacker()(events([1]).to_batches())
    frame = batch.column("frame")[0].as_py()
    assert decode(frame).schema.metadata is None
    assert arrivals_of(frame).equals(decode(frame))
