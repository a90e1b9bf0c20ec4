"""The Parquet files of a Delta table, written on the executors without Spark, and what a log says of each.

A file has a name that no other attempt uses, and counts only once a log names it. A file that a task left when it
failed, or was killed while writing, is never read and stays until it is vacuumed. Rows are stored in the order in which
they were added, and the files of a task are listed in the order in which they were written.

By the statistics of its columns readers skip a file. The numbers are those that the Parquet writer collected. A value
that cannot be stated correctly is left out, and readers then read the file. Text longer than `LONGEST_TEXT` is cut as
Spark cuts it, and times are truncated to milliseconds (readers add one). Text that is not valid UTF-8 has no bounds.

A column that holds NaN has no statistics, either in the log or in the file itself. Spark treats NaN as the largest
number, but pyarrow leaves it out of the bounds, so with a filter ``x > 100`` Spark would skip rows that match.

Source: "Per-file Statistics" of the Delta protocol.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow import parquet as pq

from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Int64s
from spark_throttle.spark.rows.gathering import gathered
from spark_throttle.spark.rows.partition_names import folder, partition_values

LONGEST_TEXT: Final = 32
"""Number of characters of a text that are kept, as in Delta's own writer."""

_LAST_CHARACTER: Final = "\U0010ffff"
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_FIRST_DAY, _LAST_DAY = _FIRST_MS // 86_400_000, _LAST_MS // 86_400_000
"""Bounds of the years 1 to 9999: not every reader can parse other years."""

Path: TypeAlias = tuple[str, ...]
Bounds: TypeAlias = tuple[Any, Any]

FILE_BYTES: Final = 128 << 20
"""Approximate uncompressed bytes of rows that are collected before a file is written; Spark's row group size."""

ROW_GROUP_ROWS: Final = 1 << 24
"""Most rows of a row group, which Spark reads in one task; a file of as many rows has one."""

_SAMPLE_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class IndexedColumns:
    """The columns for which a table collects statistics."""

    first: int = 32
    """Number of leading columns with statistics (``delta.dataSkippingNumIndexedCols``); all if negative."""

    named: tuple[str, ...] | None = None
    """Columns that replace `first` (``delta.dataSkippingStatsColumns``); a struct includes all of its fields."""

    def holds(self, place: int, path: Path) -> bool:
        """Return whether the column at this position of the schema, with this path, has statistics."""
        if self.named is not None:
            return any(".".join(path[:depth]) in self.named for depth in range(1, len(path) + 1))
        return self.first < 0 or place < self.first


def stats_json(table: pa.Table, metadata: pq.FileMetaData, indexed: IndexedColumns) -> str:
    """Return the statistics of a file that holds `table`, written with statistics of `described_columns`.

    Examples
    --------
    >>> rows, found = pa.table({"id": [3, None, 5], "name": ["a", "b", "b"]}), []
    >>> pq.write_table(
    ...     rows, pa.BufferOutputStream(), write_statistics=described_columns(rows), metadata_collector=found
    ... )
    >>> stats_json(rows, found[0], IndexedColumns(first=1))
    '{"numRecords":3,"minValues":{"id":3},"maxValues":{"id":5},"nullCount":{"id":1}}'
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    place = 0
    for column, (path, data_type) in enumerate(_leaves(table.schema)):
        if path is None:
            continue
        if indexed.holds(place, path):
            groups = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
            if all(group is not None and group.has_null_count for group in groups):
                _put(nulls, path, sum(group.null_count for group in groups))
            bounds = _bounds(groups, data_type)
            if bounds is not None:
                _put(lowest, path, bounds[0])
                _put(highest, path, bounds[1])
        place += 1
    return _json({"numRecords": table.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def described_columns(table: pa.Table) -> list[str]:
    """Return the columns that may have statistics, in Parquet's dotted form."""
    return [
        ".".join(path)
        for path, data_type in _leaves(table.schema)
        if path is not None and not _may_hold_nan(table, path, data_type)
    ]


def _leaves(fields: pa.Schema | pa.StructType, above: Path = ()) -> Iterator[tuple[Path | None, pa.DataType]]:
    """Yield Parquet's columns in order; those inside a list or a map, which have no statistics, have no path."""
    for part in fields:
        if pa.types.is_struct(part.type):
            yield from _leaves(part.type, (*above, part.name))
        elif pa.types.is_nested(part.type):
            yield from _inner_leaves(part.type)
        else:
            yield (*above, part.name), part.type


def _inner_leaves(data_type: pa.DataType) -> Iterator[tuple[None, pa.DataType]]:
    if pa.types.is_nested(data_type):
        for place in range(data_type.num_fields):
            yield from _inner_leaves(data_type.field(place).type)
    else:
        yield None, data_type


def _may_hold_nan(table: pa.Table, path: Path, data_type: pa.DataType) -> bool:
    if not pa.types.is_floating(data_type):
        return False
    return len(path) > 1 or bool(pc.any(pc.is_nan(table.column(path[0]))).as_py())


def _bounds(groups: list[pq.Statistics | None], data_type: pa.DataType) -> Bounds | None:
    """Return the least and the greatest value in the log's form; `None` if unknown or not representable."""
    # A row group that holds only nulls has no bounds and widens none.
    known = [group for group in groups if group is not None and group.num_values]
    if not known or any(group is None for group in groups) or not all(group.has_min_max for group in known):
        return None
    if pa.types.is_timestamp(data_type):
        return _times(min(g.min_raw for g in known) // 1000, max(g.max_raw for g in known) // 1000, data_type.tz)
    if pa.types.is_date(data_type):
        return _days(min(g.min_raw for g in known), max(g.max_raw for g in known))
    if not (pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type)):
        return _texts(min(g.min_raw for g in known), max(g.max_raw for g in known)) if _is_text(data_type) else None
    least, greatest = min(g.min for g in known), max(g.max for g in known)
    return (least, greatest) if np.isfinite(float(least)) and np.isfinite(float(greatest)) else None


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _times(least_ms: int, greatest_ms: int, zone: str | None) -> Bounds | None:
    if least_ms < _FIRST_MS or greatest_ms > _LAST_MS:
        return None
    end = "" if zone is None else "Z"
    return f"{np.datetime64(least_ms, 'ms')}{end}", f"{np.datetime64(greatest_ms, 'ms')}{end}"


def _days(least: int, greatest: int) -> Bounds | None:
    if least < _FIRST_DAY or greatest > _LAST_DAY:
        return None
    return str(np.datetime64(least, "D")), str(np.datetime64(greatest, "D"))


def _texts(least_bytes: bytes, greatest_bytes: bytes) -> Bounds | None:
    """Return the bounds of texts in the order of their UTF-8 bytes, which is Spark's order."""
    try:
        least, greatest = least_bytes.decode(), greatest_bytes.decode()
    except UnicodeDecodeError:
        return None
    cut = greatest[:LONGEST_TEXT]
    if len(greatest) > LONGEST_TEXT:
        # Greater than every text with this prefix, unless the part that was cut off begins with that character itself.
        if greatest[LONGEST_TEXT] == _LAST_CHARACTER:
            return None
        cut += _LAST_CHARACTER
    return least[:LONGEST_TEXT], cut


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:  # noqa: ANN401 - a leaf of JSON
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _json(value: Any) -> str:  # noqa: ANN401 - as above
    """Return JSON in which decimals keep all their digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(part)}" for name, part in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file as a Delta log describes it."""

    path: str
    """Path of the file relative to the table."""

    size_bytes: int
    partition_values: tuple[tuple[str, str | None], ...]
    stats: str


@dataclass(frozen=True, slots=True)
class FileForm:
    """The form in which a table's files are written."""

    schema: pa.Schema
    """Schema of the incoming rows, including the partition columns."""

    footer: dict[str, str] = field(default_factory=dict)
    """Key-value metadata of the Parquet footer."""

    partition_columns: tuple[str, ...] = ()
    compression: str = "snappy"
    indexed: IndexedColumns = field(default_factory=IndexedColumns)


class TableFileWriter:
    """A buffer that collects rows and writes them to files; one per task and table.

    Parameters
    ----------
    root
        Directory to which the files' paths are relative.
    prefix
        Prefix of the files' names.
    """

    def __init__(self, files: fs.FileSystem, root: str, form: FileForm, prefix: str) -> None:
        self._files, self._root, self._form, self._prefix = files, root, form, prefix
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._written: list[WrittenFile] = []

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows that `add` takes."""
        return self._form.schema

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows; write a file once enough are collected."""
        self._gathered.append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= FILE_BYTES:
            self._flush()

    def finish(self) -> list[WrittenFile]:
        """Write the remaining rows, and return the files of all rows that were added."""
        self._flush()
        return self._written

    def _flush(self) -> None:
        if not self._gathered:
            return
        table = pa.Table.from_batches(self._gathered, self._form.schema)
        self._gathered, self._gathered_bytes = [], 0
        if not self._form.partition_columns:
            self._written.append(self.write(table))
            return
        for values, rows in by_partition(table, self._form.partition_columns):
            self._written.append(self.write(rows, values))

    def write(self, table: pa.Table, values: tuple[tuple[str, str | None], ...] = ()) -> WrittenFile:
        """Write rows of one partition to a file of their own, whatever was added before, and return it."""
        compression = self._form.compression
        suffix = "" if compression == "none" else f".{compression}"
        name = f"{self._prefix}{uuid.uuid4()}{suffix}.parquet"
        path = str(PurePosixPath(*(folder(*value) for value in values), name))
        with self._open(f"{self._root}/{path}") as sink:
            stats = write_parquet(sink, table, self._form)
            size_bytes = sink.tell()
        return WrittenFile(path, size_bytes, values, stats)

    def _open(self, target: str) -> Any:  # noqa: ANN401 - pyarrow is untyped
        try:
            return self._files.open_output_stream(target)
        except FileNotFoundError:
            self._files.create_dir(str(PurePosixPath(target).parent), recursive=True)
            return self._files.open_output_stream(target)


def write_parquet(sink: Any, table: pa.Table, form: FileForm) -> str:  # noqa: ANN401 - pyarrow is untyped
    """Write rows to an open stream as a file of a form, and return its statistics as a Delta log has them."""
    found: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=form.compression,
        use_dictionary=dictionary_columns(table),
        write_statistics=described_columns(table),
        store_decimal_as_integer=True,  # as Spark
        store_schema=False,  # Arrow's schema, which Spark does not read
        write_page_checksum=True,
        metadata_collector=found,
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata(form.footer)
    return stats_json(table, found[0], form.indexed)


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the columns worth a dictionary, in Parquet's dotted form; values that rarely repeat would only fill it.

    Examples
    --------
    >>> rows = pa.table({"id": range(100), "day": ["mon", "tue"] * 50, "tags": [["a"]] * 100})
    >>> dictionary_columns(rows)
    ['day', 'tags.list.element']
    """
    found: list[str] = []
    for column in table.schema:
        if pa.types.is_nested(column.type):
            found += _leaf_names(column.name, column.type)
            continue
        sample = table.column(column.name).slice(0, _SAMPLE_ROWS)
        if 2 * pc.count_distinct(sample, mode="all").as_py() <= len(sample):
            found.append(column.name)
    return found


def _leaf_names(name: str, data_type: pa.DataType) -> list[str]:
    if not pa.types.is_nested(data_type):
        return [name]
    if pa.types.is_map(data_type):
        inner = [("key_value.key", data_type.key_type), ("key_value.value", data_type.item_type)]
    elif pa.types.is_struct(data_type):
        inner = [(part.name, part.type) for part in data_type]
    else:
        inner = [("list.element", data_type.value_type)]
    return [leaf for part, part_type in inner for leaf in _leaf_names(f"{name}.{part}", part_type)]


def by_partition(
    table: pa.Table, columns: tuple[str, ...]
) -> list[tuple[tuple[tuple[str, str | None], ...], pa.Table]]:
    """Return each partition's values and rows; rows keep their order and lose the partition columns.

    Examples
    --------
    >>> rows = pa.table({"day": ["tue", "mon", "tue"], "id": [1, 2, 3]})
    >>> [(values, part["id"].to_pylist()) for values, part in by_partition(rows, ("day",))]
    [((('day', 'tue'),), [1, 3]), ((('day', 'mon'),), [2])]
    """
    table = table.combine_chunks()
    named = {column: _named(table.column(column)) for column in columns}
    layout, first = _partitions([values.indices.to_numpy() for values in named.values()])
    rows = gathered(table.drop_columns(list(columns)), layout.order)
    texts = [values.take(pa.array(first)).to_pylist() for values in named.values()]
    found = []
    for at, values in enumerate(zip(*texts, strict=True)):
        part = rows.slice(layout.starts[at], layout.counts[at])
        found.append((tuple(zip(columns, values, strict=True)), part))
    return found


def _named(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return the values in the form of a log, dictionary-encoded: values with the same text share one entry."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    texts = partition_values(coded.dictionary).dictionary_encode(null_encoding="encode")
    return pa.DictionaryArray.from_arrays(texts.indices.take(coded.indices), texts.dictionary)


def _partitions(codes: list[npt.NDArray[np.int32]]) -> tuple[Segments, Int64s]:
    """Return the rows grouped by partition, in order of the partitions' first rows, and the positions of those rows."""
    key = np.zeros(len(codes[0]), dtype=np.int64)
    for code in codes:
        _, key = np.unique(key * (int(code.max()) + 1) + code, return_inverse=True)
    _, first = np.unique(key, return_index=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return Segments.by_key(place[key], len(first)), np.sort(first)
