"""Statistics of files: never narrower than the rows, in the form of Delta's own, left out where they could mislead."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.delta.file_stats import LONGEST_TEXT, IndexedColumns, described_columns, stats_json

INNER = pa.struct([("a", pa.int8()), ("l", pa.list_(pa.int32())), ("b", pa.string())])


def raw_stats(table: pa.Table, indexed: IndexedColumns | None = None, *, rows_a_group: int = 1_000) -> str:
    found: list[pq.FileMetaData] = []
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, write_statistics=described_columns(table), metadata_collector=found, row_group_size=rows_a_group,
        store_decimal_as_integer=True,
    )  # fmt: skip
    return stats_json(table, found[0], indexed or IndexedColumns())


def stats(table: pa.Table, indexed: IndexedColumns | None = None, *, rows_a_group: int = 1_000) -> dict[str, Any]:
    return json.loads(raw_stats(table, indexed, rows_a_group=rows_a_group))


def column(values: list[Any], data_type: pa.DataType, **options: Any) -> tuple[Any, Any, Any]:
    """Return least, greatest and nulls of a column, `None` for what is not said."""
    found = stats(pa.table({"c": pa.array(values, data_type)}), **options)
    return tuple(found[part].get("c") for part in ("minValues", "maxValues", "nullCount"))


@pytest.mark.parametrize(
    ("values", "data_type", "expected"),
    [
        ([3, None, -5], pa.int32(), (-5, 3, 1)),
        ([None, None], pa.int64(), (None, None, 2)),
        ([1.5, -0.25], pa.float32(), (-0.25, 1.5, 0)),
        ([1.5, float("nan")], pa.float64(), (None, None, None)),
        ([1.5, float("inf")], pa.float64(), (None, None, 0)),
        (["b", "", None], pa.string(), ("", "b", 1)),
        (["x" * 40], pa.string(), ("x" * LONGEST_TEXT, "x" * LONGEST_TEXT + "\U0010ffff", 0)),
        (["é" * 32], pa.string(), ("é" * 32, "é" * 32, 0)),
        (["x" * LONGEST_TEXT + "\U0010ffff"], pa.string(), (None, None, 0)),
        (["x" * 10_000], pa.string(), (None, None, 0)),  # longer than Parquet keeps
        ([b"a", None], pa.binary(), (None, None, 1)),
        (["", "a\0b"], pa.string(), ("", "a\0b", 0)),
        (["\ue000" * 33], pa.string(), ("\ue000" * 32, "\ue000" * 32 + "\U0010ffff", 0)),
        ([True, None], pa.bool_(), (None, None, 1)),
        ([date(1500, 1, 1), date(9999, 12, 31)], pa.date32(), ("1500-01-01", "9999-12-31", 0)),
        ([[1], None], pa.list_(pa.int32()), (None, None, None)),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int32()), (None, None, None)),
    ],
)
def test_column_is_described_as_delta_describes_it(
    values: list[Any], data_type: pa.DataType, expected: tuple[Any, Any, Any]
) -> None:
    assert column(values, data_type) == expected


def test_times_are_cut_to_milliseconds_towards_the_past() -> None:
    before_1970, new_year = -1, 1_704_067_200_000_999
    assert times([before_1970], "UTC") == ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z", 0)
    assert times([new_year], None) == ("2024-01-01T00:00:00.000", "2024-01-01T00:00:00.000", 0)


def test_years_that_not_every_reader_knows_are_left_out() -> None:
    assert times([253_402_300_799_999_999], "UTC")[1] == "9999-12-31T23:59:59.999Z"
    assert times([253_402_300_800_000_000], "UTC") == (None, None, 0)
    assert times([-62_135_596_800_000_001], "UTC") == (None, None, 0)
    days = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    assert stats(pa.table({"c": days}))["minValues"] == {}


def times(values_us: list[int], zone: str | None) -> tuple[Any, Any, Any]:
    found = stats(pa.table({"c": pa.array(values_us, pa.int64()).cast(pa.timestamp("us", tz=zone))}))
    return tuple(found[part].get("c") for part in ("minValues", "maxValues", "nullCount"))


def test_decimals_keep_all_their_digits() -> None:
    wide = [Decimal("-12345678901234567890123456.78"), Decimal("0.10")]
    text = raw_stats(pa.table({"c": pa.array(wide, pa.decimal128(30, 2))}))
    assert '"minValues":{"c":-12345678901234567890123456.78},"maxValues":{"c":0.10}' in text
    assert '"minValues":{"c":-1.50}' in raw_stats(pa.table({"c": pa.array([Decimal("-1.50")], pa.decimal128(9, 2))}))


def test_structs_are_described_by_their_fields() -> None:
    rows = pa.array([{"a": 1, "l": [7], "b": "x"}, None, {"a": None, "l": None, "b": "y"}], INNER)
    found = stats(pa.table({"s": rows, "after": [1, 2, 3]}))
    assert found["minValues"] == {"s": {"a": 1, "b": "x"}, "after": 1}
    assert found["maxValues"] == {"s": {"a": 1, "b": "y"}, "after": 3}
    assert found["nullCount"] == {"s": {"a": 2, "b": 1}, "after": 0}


def test_numbers_that_may_be_nan_have_no_bounds_in_the_file_either() -> None:
    nested = pa.array([{"x": 1.0}], pa.struct([("x", pa.float64())]))
    table = pa.table({"nan": [float("nan")], "x": [1.0], "dotted.name": [1], "s": nested, "list": [[1]]})
    assert described_columns(table) == ["x", "dotted.name"]
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_statistics=described_columns(table))
    group = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.row_group(0)
    described = [group.column(n).path_in_schema for n in range(5) if group.column(n).is_stats_set]
    assert described == ["x", "dotted.name"]


def test_only_indexed_columns_are_described() -> None:
    table = pa.table({"a": [1], "s": pa.array([{"a": 1, "l": [1], "b": "x"}], INNER), "z": [2]})
    first = {"a": 1, "s": {"a": 1}}
    assert stats(table, IndexedColumns(first=2))["minValues"] == first
    assert stats(table, IndexedColumns(first=0)) == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}}
    assert stats(table, IndexedColumns(first=-1))["minValues"] == {"a": 1, "s": {"a": 1, "b": "x"}, "z": 2}
    assert stats(table, IndexedColumns(named=("s", "z")))["minValues"] == {"s": {"a": 1, "b": "x"}, "z": 2}
    assert stats(table, IndexedColumns(named=("s.b",)))["minValues"] == {"s": {"b": "x"}}


@pytest.mark.parametrize("text", [b"na\xefve", b"\xff", b"x" * 40 + b"\xff"])
def test_text_that_is_no_utf8_has_no_bounds_but_is_counted(text: bytes) -> None:
    values = pa.array([text, b"a", None], pa.binary()).view(pa.string())
    inside = pa.StructArray.from_arrays([values], names=["s"])
    table = pa.table({"c": values, "st": inside, "l": pa.array([[1]] * 3)})
    found = stats(table, rows_a_group=2)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"] == {"c": 1, "st": {"s": 1}}


def test_row_group_of_nulls_alone_widens_nothing() -> None:
    table = pa.table({"c": pa.array([None, None, 4, 2], pa.int64())})
    assert stats(table, rows_a_group=2) == {
        "numRecords": 4,
        "minValues": {"c": 2},
        "maxValues": {"c": 4},
        "nullCount": {"c": 2},
    }


@pytest.mark.slow
@given(st.lists(st.text(max_size=40) | st.none(), min_size=1), st.integers(1, 3))
def test_texts_lie_within_their_bounds(values: list[str | None], rows_a_group: int) -> None:
    least, greatest, nulls = column(values, pa.string(), rows_a_group=rows_a_group)
    assert nulls == values.count(None)
    held = [value.encode() for value in values if value is not None]
    if least is not None:
        assert least.encode() <= min(held)
        assert max(held) <= greatest.encode()
        assert len(least) <= LONGEST_TEXT
    else:
        assert not held or any(len(value.decode()) > LONGEST_TEXT for value in held)


@pytest.mark.slow
@given(st.lists(st.floats(width=32) | st.none(), min_size=1))
def test_numbers_lie_within_their_bounds(values: list[float | None]) -> None:
    least, greatest, _ = column(values, pa.float32())
    held = [value for value in values if value is not None]
    if least is not None:
        assert all(least <= value <= greatest for value in held)
    else:
        assert not held or not all(abs(value) < float("inf") for value in held)
