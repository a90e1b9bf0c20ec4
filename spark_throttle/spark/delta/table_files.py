"""Rows into Parquet files of a table, with what a Delta log has to say of each: on the executors, without Spark.

A file is written under a name that no other attempt uses and counts only once a log names it: what a task that
failed, or was killed in the middle of a file, has left lies there unread until it is vacuumed. Rows stand in the
files in the order in which they were added, and the files of a task in the order in which they were written.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow import parquet as pq

from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Int64s
from spark_throttle.spark.delta.file_stats import IndexedColumns, described_columns, stats_json
from spark_throttle.spark.rows.partition_names import folder, partition_values

FILE_BYTES: Final = 128 << 20
"""Rows are gathered to about so many bytes, uncompressed, before a file is written: a row group of Spark's."""

_ROW_GROUP_ROWS: Final = 1 << 24
_SAMPLE_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file, as a Delta log describes it."""

    path: str
    """Below the table."""

    size_bytes: int
    partition_values: tuple[tuple[str, str | None], ...]
    stats: str


@dataclass(frozen=True, slots=True)
class FileForm:
    """How a table's files are written."""

    schema: pa.Schema
    """Of the rows as they come, partition columns included."""

    footer: dict[str, str] = field(default_factory=dict)
    """What the files say of themselves, beside their columns."""

    partition_columns: tuple[str, ...] = ()
    compression: str = "snappy"
    indexed: IndexedColumns = field(default_factory=IndexedColumns)


class TableFileWriter:
    """Gathers rows and writes them; one a task and table.

    Parameters
    ----------
    root
        The directory that the paths are below.
    prefix
        What the names of the files begin with.
    """

    def __init__(self, files: fs.FileSystem, root: str, form: FileForm, prefix: str) -> None:
        self._files, self._root, self._form, self._prefix = files, root, form, prefix
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._written: list[WrittenFile] = []

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that are taken."""
        return self._form.schema

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        self._gathered.append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= FILE_BYTES:
            self._flush()

    def finish(self) -> list[WrittenFile]:
        """Return the files of all rows that were added."""
        self._flush()
        return self._written

    def _flush(self) -> None:
        if not self._gathered:
            return
        table = pa.Table.from_batches(self._gathered, self._form.schema)
        self._gathered, self._gathered_bytes = [], 0
        if not self._form.partition_columns:
            self._write(table, ())
            return
        for values, rows in by_partition(table, self._form.partition_columns):
            self._write(rows, values)

    def _write(self, table: pa.Table, values: tuple[tuple[str, str | None], ...]) -> None:
        compression = self._form.compression
        suffix = "" if compression == "none" else f".{compression}"
        name = f"{self._prefix}{uuid.uuid4()}{suffix}.parquet"
        path = str(PurePosixPath(*(folder(*value) for value in values), name))
        target = f"{self._root}/{path}"
        found: list[pq.FileMetaData] = []
        with self._open(target) as sink:
            with pq.ParquetWriter(
                sink,
                table.schema,
                compression=compression,
                use_dictionary=dictionary_columns(table),
                write_statistics=described_columns(table),
                store_decimal_as_integer=True,  # as Spark
                store_schema=False,  # Arrow's own, which Spark does not read
                metadata_collector=found,
            ) as writer:
                writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
                writer.add_key_value_metadata(self._form.footer)
            size_bytes = sink.tell()
        self._written.append(WrittenFile(path, size_bytes, values, stats_json(table, found[0], self._form.indexed)))

    def _open(self, target: str) -> Any:  # noqa: ANN401 - pyarrow is untyped
        try:
            return self._files.open_output_stream(target)
        except FileNotFoundError:
            self._files.create_dir(str(PurePosixPath(target).parent), recursive=True)
            return self._files.open_output_stream(target)


def dictionary_columns(table: pa.Table) -> list[str]:
    """Return the columns worth a dictionary, in Parquet's dotted form: values that seldom repeat only fill one up.

    Examples
    --------
    >>> rows = pa.table({"id": range(100), "day": ["mon", "tue"] * 50, "tags": [["a"]] * 100})
    >>> dictionary_columns(rows)
    ['day', 'tags.list.element']
    """
    found: list[str] = []
    for field_ in table.schema:
        if pa.types.is_nested(field_.type):
            found += _leaf_names(field_.name, field_.type)
            continue
        sample = table.column(field_.name).slice(0, _SAMPLE_ROWS)
        if 2 * pc.count_distinct(sample, mode="all").as_py() <= len(sample):
            found.append(field_.name)
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
    """Return the rows of every partition in their own order, without the partition columns.

    Examples
    --------
    >>> rows = pa.table({"day": ["tue", "mon", "tue"], "id": [1, 2, 3]})
    >>> [(values, part["id"].to_pylist()) for values, part in by_partition(rows, ("day",))]
    [((('day', 'tue'),), [1, 3]), ((('day', 'mon'),), [2])]
    """
    table = table.combine_chunks()
    named = {column: _named(table.column(column)) for column in columns}
    layout, first = _partitions([values.indices.to_numpy() for values in named.values()])
    rows = table.drop_columns(list(columns)).take(pa.array(layout.order))
    texts = [values.take(pa.array(first)).to_pylist() for values in named.values()]
    found = []
    for at, values in enumerate(zip(*texts, strict=True)):
        part = rows.slice(layout.starts[at], layout.counts[at])
        found.append((tuple(zip(columns, values, strict=True)), part))
    return found


def _named(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return the values in the form of a log, each distinct one once: of values that are written alike there is one."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    texts = partition_values(coded.dictionary).dictionary_encode(null_encoding="encode")
    return pa.DictionaryArray.from_arrays(texts.indices.take(coded.indices), texts.dictionary)


def _partitions(codes: list[npt.NDArray[np.int32]]) -> tuple[Segments, Int64s]:
    """Return the rows laid out by partition, in the order in which partitions first occur, and those first rows."""
    key = np.zeros(len(codes[0]), dtype=np.int64)
    for code in codes:
        _, key = np.unique(key * (int(code.max()) + 1) + code, return_inverse=True)
    _, first = np.unique(key, return_index=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return Segments.by_key(place[key], len(first)), np.sort(first)
