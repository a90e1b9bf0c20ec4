"""Files of a table have all rows, in their order and partition, and statistics never narrower than the rows."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from spark_throttle.spark.delta import table_files
from spark_throttle.spark.delta.table_files import (
    LONGEST_TEXT,
    FileForm,
    IndexedColumns,
    TableFileWriter,
    WrittenFile,
    by_partition,
    described_columns,
    stats_json,
)

SCHEMA = pa.schema([("id", pa.int64()), ("ns", pa.string()), ("on", pa.bool_())])

INNER = pa.struct([("a", pa.int8()), ("l", pa.list_(pa.int32())), ("b", pa.string())])


def batch(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def write(root: Path, batches: list[pa.RecordBatch], form: FileForm) -> list[WrittenFile]:
    writer = TableFileWriter(fs.LocalFileSystem(), str(root), form, "part-00007-")
    for rows in batches:
        writer.add(rows)
    return writer.finish()


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert write(tmp_path / "t", [], FileForm(SCHEMA)) == []
    assert not (tmp_path / "t").exists()


def test_rows_stand_in_the_order_in_which_they_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "FILE_BYTES", 1)  # a file for every batch
    batches = [batch([(n, "a", True), (n + 1, None, None)]) for n in range(0, 10, 2)]
    files = write(tmp_path, batches, FileForm(SCHEMA))
    assert len({file.path for file in files}) == 5
    found = [row for file in files for row in pq.read_table(tmp_path / file.path)["id"].to_pylist()]
    assert found == list(range(10))
    assert [json.loads(file.stats)["numRecords"] for file in files] == [2] * 5
    assert all(file.size_bytes == (tmp_path / file.path).stat().st_size for file in files)
    assert all(file.path.startswith("part-00007-") and file.path.endswith(".snappy.parquet") for file in files)


def test_two_attempts_share_no_name(tmp_path: Path) -> None:
    first, second = (write(tmp_path, [batch([(1, "a", True)])], FileForm(SCHEMA)) for _ in range(2))
    assert first[0].path != second[0].path


def test_footer_says_what_sparks_readers_look_for(tmp_path: Path) -> None:
    form = FileForm(SCHEMA, {"org.apache.spark.version": "4.2.0"}, compression="zstd")
    (file,) = write(tmp_path, [batch([(1, "a", True)])], form)
    metadata = pq.ParquetFile(tmp_path / file.path).metadata
    assert metadata.metadata == {b"org.apache.spark.version": b"4.2.0"}
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.path.endswith(".zstd.parquet")


def test_columns_that_repeat_have_a_dictionary_wherever_they_are_nested(tmp_path: Path) -> None:
    inner = pa.struct([("a", pa.string()), ("l", pa.list_(pa.int64()))])
    schema = pa.schema([("id", pa.int64()), ("ns", pa.string()), ("m", pa.map_(pa.string(), inner))])
    rows = batch([(n, f"ns{n % 3}", [("k", {"a": "x", "l": [1]})]) for n in range(50)], schema)
    (file,) = write(tmp_path, [rows], FileForm(schema))
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {
        "ns", "m.key_value.key", "m.key_value.value.a", "m.key_value.value.l.list.element"
    }  # fmt: skip


def test_partitions_have_directories_that_any_value_is_safe_in(tmp_path: Path) -> None:
    rows = batch([(1, "a/b c", True), (2, "../é%", True), (3, None, False), (4, "", False), (5, "a/b c", None)])
    files = write(tmp_path, [rows], FileForm(SCHEMA, partition_columns=("ns", "on")))
    found = {file.partition_values: pq.read_table(tmp_path / file.path, partitioning=None) for file in files}
    assert {values: table["id"].to_pylist() for values, table in found.items()} == {
        (("ns", "a/b c"), ("on", "true")): [1],
        (("ns", "../é%"), ("on", "true")): [2],
        (("ns", None), ("on", "false")): [3, 4],
        (("ns", "a/b c"), ("on", None)): [5],
    }
    assert all(table.column_names == ["id"] for table in found.values())
    assert {file.path.rpartition("/")[0] for file in files} == {
        "ns=a%2Fb c/on=true",
        "ns=..%2Fé%25/on=true",
        "ns=__HIVE_DEFAULT_PARTITION__/on=false",
        "ns=a%2Fb c/on=__HIVE_DEFAULT_PARTITION__",
    }


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "", None]),
            st.sampled_from([date(2026, 7, 1), date(1500, 1, 1), None]),
            st.integers(-2, 2) | st.none(),
        ),
        min_size=1,
    )
)
def test_every_row_is_in_its_partition_once_and_in_order(keys: list[tuple[Any, ...]]) -> None:
    schema = pa.schema([("s", pa.string()), ("d", pa.date32()), ("n", pa.int16()), ("id", pa.int64())])
    rows = [(*key, number) for number, key in enumerate(keys)]
    half = len(rows) // 2
    table = pa.Table.from_batches([batch(part, schema) for part in (rows[:half], rows[half:]) if part])
    expected: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        expected[tuple(None if value in (None, "") else str(value) for value in key)].append(number)
    found = by_partition(table, ("s", "d", "n"))
    assert [(tuple(dict(values).values()), part["id"].to_pylist()) for values, part in found] == list(expected.items())


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
