"""Parquet files of a table, written on the executors without Spark, and the entries of a Delta log that describe them.

A file has a name that no other attempt uses, and counts only once a log names it. A file that a task left when it
failed, or was killed while writing, is never read and stays until it is vacuumed. Rows are stored in the order in
which they were added, and the files of a task are listed in the order in which they were written.
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
from spark_throttle.spark.rows.gathering import gathered
from spark_throttle.spark.rows.partition_names import folder, partition_values

FILE_BYTES: Final = 128 << 20
"""Approximate uncompressed bytes of rows that are collected before a file is written; Spark's row group size."""

ROW_GROUP_ROWS: Final = 1 << 24
"""Most rows of a row group, which Spark reads in one task; a file of as many rows has one."""

_SAMPLE_ROWS: Final = 10_000


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
