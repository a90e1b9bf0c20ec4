"""Rows to frames and back: sizes, splitting, changed schemas, and the order in which rows are decided."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.rows.frames import (
    FRAME_BYTES,
    NAMESPACE,
    ORDER_PREFIX,
    SIZE,
    TIE,
    aligned,
    arranged,
    decode,
    encode,
    in_order,
    payload,
)
from spark_throttle.spark.rows.row_digests import row_digests


def events(ids: list[int]) -> pa.Table:
    n = len(ids)
    return pa.table({
        "id": pa.array(ids, pa.int64()), "nested": pa.array([{"a": [i, None]} if i % 3 else None for i in ids]),
        NAMESPACE: pa.array([f"t/{i}" for i in ids]), SIZE: pa.array([1] * n, pa.int64()),
        TIE: pa.array(ids, pa.int64()),
    })  # fmt: skip


def unpacked(table: pa.Table, schema: pa.Schema) -> pa.Table:
    batches = [batch for frame in encode(table) for batch in decode(frame).to_batches()]
    return pa.Table.from_batches([aligned(batch, schema) for batch in batches], schema=schema)


# Encoding


@pytest.mark.slow
@given(st.lists(st.sampled_from([0, 10, 70_000, 700_000]), max_size=30))
def test_frames_hold_all_rows_in_order_and_only_single_rows_are_large(widths: list[int]) -> None:
    table = pa.table({"id": pa.array(range(len(widths)), pa.int64()), "text": ["x" * width for width in widths]})
    frames = encode(table)
    rows = [decode(frame) for frame in frames]
    assert [i for part in rows for i in part.column("id").to_pylist()] == list(range(len(widths)))
    for frame, part in zip(frames, rows, strict=True):
        assert part.num_rows == 1 or len(frame) <= 1.1 * FRAME_BYTES


def test_table_of_wide_and_narrow_rows_makes_no_humongous_frame() -> None:
    text = ["x" * 100_000] * 100 + [""] * 9_900
    frames = encode(pa.table({"text": text}))
    assert max(map(len, frames)) <= 1.1 * FRAME_BYTES
    assert sum(decode(frame).num_rows for frame in frames) == 10_000


def test_no_rows_make_no_frame() -> None:
    assert encode(pa.table({"id": pa.array([], pa.int64())})) == []


def test_frame_of_a_slice_does_not_carry_the_whole() -> None:
    table = pa.table({"text": ["x" * 1_000] * 500})
    assert len(encode(table.slice(3, 1))[0]) < 2_000


def test_payload_is_without_the_helper_columns() -> None:
    assert payload(events([1])).column_names == ["id", "nested"]


# Unpacking rows that were queued under another schema


def test_rows_of_the_streams_schema_pass_as_they_are() -> None:
    table = payload(events([1, 2, 3]))
    assert unpacked(table, table.schema) == table


def test_added_column_is_null_and_columns_are_found_by_name() -> None:
    schema = pa.schema([("new", pa.string()), ("nested", pa.struct([("a", pa.list_(pa.int64()))])), ("id", pa.int64())])
    found = unpacked(payload(events([1, 3])), schema)
    assert found.to_pylist() == [
        {"new": None, "nested": {"a": [1, None]}, "id": 1}, {"new": None, "nested": None, "id": 3},
    ]  # fmt: skip


def test_column_without_a_type_takes_any_type() -> None:
    rows = pa.RecordBatch.from_arrays([pa.nulls(2)], ["c"])
    assert aligned(rows, pa.schema([("c", pa.timestamp("us"))])).column(0).to_pylist() == [None, None]


def test_removed_column_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match=r"have the columns \['nested'\], which the stream no longer has"):
        unpacked(payload(events([1])), pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize(
    ("values", "before", "after"),
    [
        ([1, None], pa.int32(), pa.int64()),
        ([1.5, float("nan"), None], pa.float32(), pa.float64()),
        ([Decimal("1.25")], pa.decimal128(10, 2), pa.decimal128(38, 2)),
        (["é", None], pa.string(), pa.large_string()),
        ([b"\xc3\xa9", None], pa.binary(), pa.string()),
        ([[1], None], pa.list_(pa.int32()), pa.large_list(pa.int64())),
        ([{"a": 1}, None], pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([{"a": float("nan")}], pa.struct([("a", pa.float64())]), pa.struct([("a", pa.float64()), ("b", pa.int8())])),
        ([datetime(9999, 12, 31)], pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "UTC")),  # noqa: DTZ001
        ([2**53], pa.int64(), pa.float64()),
    ],
)
def test_type_that_holds_all_values_takes_them(values: list[object], before: pa.DataType, after: pa.DataType) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(values, before)], ["c"])
    found = aligned(rows, pa.schema([("c", after)]))
    assert found.schema.field("c").type == after
    assert repr(found.column(0).cast(before).to_pylist()) == repr(rows.column(0).to_pylist())


def test_values_that_python_has_none_for_are_taken_too() -> None:
    fields = {
        "x": pa.array([float("nan"), -0.0]),
        "s": pa.array([b"\xe9", b"\xff"], pa.binary()).view(pa.string()),
        "d": pa.array([-(2**31), 2**31 - 1], pa.int32()).view(pa.date32()),
        "t": pa.array([-(2**63), 2**63 - 1]).view(pa.timestamp("us")),
    }
    struct = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    wider = pa.struct([*struct.type, ("new", pa.int8())])
    found = aligned(pa.RecordBatch.from_arrays([struct], ["c"]), pa.schema([("c", wider)])).column(0)
    assert (row_digests(pa.table({"c": found.cast(struct.type)})) == row_digests(pa.table({"c": struct}))).all()


@pytest.mark.parametrize(
    ("values", "before", "after"),
    [
        ([2**40], pa.int64(), pa.int32()),
        ([2**53 + 1], pa.int64(), pa.float64()),
        ([1.1], pa.float64(), pa.float32()),
        ([Decimal("1.25")], pa.decimal128(10, 2), pa.decimal128(10, 1)),
        ([datetime(2024, 5, 5, 1)], pa.timestamp("us"), pa.date32()),  # noqa: DTZ001
        ([date(2024, 5, 5)], pa.date32(), pa.int64()),
        ([2], pa.int64(), pa.bool_()),
        ([2], pa.int32(), pa.date32()),
        ([2], pa.int64(), pa.timestamp("us", "UTC")),
        ([2], pa.int64(), pa.string()),
        (["2"], pa.string(), pa.int64()),
        ([date(2024, 5, 5)], pa.date32(), pa.timestamp("us", "UTC")),
        ([datetime(2024, 5, 5)], pa.timestamp("us", "UTC"), pa.timestamp("us")),  # noqa: DTZ001
        ([{"a": 1}], pa.struct([("a", pa.int64())]), pa.struct([("a", pa.timestamp("us"))])),
        ([[1]], pa.list_(pa.int64()), pa.list_(pa.string())),
        ([[(1, 2)]], pa.map_(pa.int64(), pa.int64()), pa.map_(pa.int64(), pa.string())),
        (["x"], pa.string(), pa.int64()),
        ([b"\xff"], pa.binary(), pa.string()),
        ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("a", pa.int64())])),
        ([[{"a": 1, "b": 2}]], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())])),
         pa.list_(pa.struct([("a", pa.int64())]))),
        ([{"a": 1}], pa.struct([("a", pa.int64())]), pa.string()),
    ],
)  # fmt: skip
def test_type_that_would_change_a_value_is_an_error(
    values: list[object], before: pa.DataType, after: pa.DataType
) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(values, before)], ["c"])
    with pytest.raises(ConfigurationError, match="keep the old type until the queue has drained"):
        aligned(rows, pa.schema([("c", after)]))


# The order of decisions


def ordered(table: pa.Table) -> list[object]:
    taken: list[object] = table.take(pa.array(in_order(table))).column("id").to_pylist()
    return taken


def test_rows_are_decided_by_the_order_columns_and_then_by_hash() -> None:
    table = pa.table({
        "id": [0, 1, 2, 3, 4], f"{ORDER_PREFIX}000": [2, 1, 1, None, 1],
        f"{ORDER_PREFIX}001": ["b", "b", "a", "a", "a"], TIE: [0, 0, 9, 0, 5],
    })  # fmt: skip
    assert ordered(table) == [4, 2, 1, 0, 3]


def test_rows_without_order_columns_are_decided_by_hash() -> None:
    assert ordered(pa.table({"id": [0, 1, 2], TIE: [5, -3, 4]})) == [1, 2, 0]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(), st.just(0.0)), st.integers(0, 3)), max_size=12), st.randoms()
)
def test_order_is_that_of_the_rows_as_a_set(rows: list[tuple[float | None, int]], rng: random.Random) -> None:
    table = pa.table({
        "id": pa.array([repr(row) for row in rows], pa.string()),
        f"{ORDER_PREFIX}000": pa.array([value for value, _ in rows], pa.float64()),
        TIE: pa.array([hash_ for _, hash_ in rows], pa.int64()),
    })  # fmt: skip
    shuffled = table.take(pa.array(rng.sample(range(len(rows)), len(rows)), pa.int64()))

    def key(order: list[object]) -> list[str]:
        return [str(one).replace("-0.0", "0.0") for one in order]

    assert key(ordered(shuffled)) == key(ordered(table))
    assert isinstance(in_order(table), np.ndarray)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4, 5, 6], ["", "a", "aé", "b", "ba", "c"], [b"", b"\x00", b"a", b"b", b"ba", b"\xff"],
        [0.5, 1.5, 2.5, 3.5, 4.5, float("inf")], [Decimal(f"{n}.5") for n in range(6)],
        [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 7)], [date(1, 1, day) for day in range(1, 7)],
        [timedelta(days) for days in range(6)], [time(hour) for hour in range(6)],
    ],
)  # fmt: skip
def test_tables_that_follow_on_one_another_are_not_copied(values: list[object]) -> None:
    table = pa.table({f"{ORDER_PREFIX}000": values, TIE: [0] * 6})
    parts = [table.slice(4, 2), table.slice(0, 3), table.slice(3, 1)]
    found = arranged(parts)
    assert found.equals(table)
    assert found.column(TIE).num_chunks == 3


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([None, True, False]), st.integers(0, 3), st.integers(0, 9)), min_size=1),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([[0], [0, 1], [1], [1, 0], []]),
    st.booleans(),
)
def test_tables_are_arranged_as_a_sort_of_all_rows_would(
    parts: list[list[tuple[bool | None, int, int]]], order: list[int], is_sorted: bool
) -> None:
    """With distinct rows, so that there is one order; parts that are sorted already, and parts that are not."""
    rows = sorted({row for part in parts for row in part}, key=repr)
    kinds = [pa.bool_(), pa.int64()]

    def table(part: list[tuple[bool | None, int, int]]) -> pa.Table:
        columns = {"id": pa.array([str(row) for row in part], pa.string())}
        for place, at in enumerate(order):
            columns[f"{ORDER_PREFIX}{place:03d}"] = pa.array([row[at] for row in part], kinds[at])
        columns[TIE] = pa.array([hash_of(row) for row in part], pa.int64())
        return pa.table(columns)

    def hash_of(row: tuple[bool | None, int, int]) -> int:
        return rows.index(row) * 7 % 1_009

    whole = table(rows)
    expected = [rows[at] for at in in_order(whole)]
    given = expected if is_sorted else rows
    cuts = [given[start : start + 3] for start in range(0, len(given), 3)][::-1]
    assert arranged([table(cut) for cut in cuts]).column("id").to_pylist() == [str(row) for row in expected]
