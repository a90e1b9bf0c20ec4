"""Files of a table: all rows, in their order, in the partition they belong to, under names of their own."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from spark_throttle.spark.delta import table_files
from spark_throttle.spark.delta.table_files import FileForm, TableFileWriter, WrittenFile, by_partition

SCHEMA = pa.schema([("id", pa.int64()), ("ns", pa.string()), ("on", pa.bool_())])


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
