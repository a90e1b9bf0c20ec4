"""The payload of a batch that was decided on references: its rows, read from their files by Spark, once.

The operator's frames name the rows that leave by their places. Spark reads the files of these rows and looks each row
up by its position in its file (`references.selection`): a join with a small table, which is broadcast, so a row of the
payload never leaves the JVM. A file of which nothing leaves is not read. Rows that wait stay in their files.

The first reading and this one must have seen the same rows. Before a sink is given anything, each file is compared with
what its extent says of it, and Spark counts the admitted rows by its own evaluation of the user's expressions: their
number, and the sums of their positions, their sizes and the lengths of their namespaces. Of the rejected rows it counts
the number and the positions, and whether those without a namespace or a size have none. All must be what was decided.

Rows have no order within a batch, as in any table. Only a sink that is no table and no file, such as a topic, is given
the rows of each namespace in the order in which they were admitted, which takes a shuffle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructField, StructType

from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.core.codec import unpack_usage
from spark_throttle.core.quota import Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import ExtentName, Extents, SourceFile
from spark_throttle.spark.references.file_feed import FileFeed
from spark_throttle.spark.references.reading import PLACE
from spark_throttle.spark.references.selection import (
    FileRows,
    admitted_rows,
    as_table,
    coded_rows,
    file_numbers,
    positions,
    spark_path,
)
from spark_throttle.spark.rows.frames import FrameKind, decode
from spark_throttle.spark.shard.shard_batch import THROTTLE
from spark_throttle.spark.sinks.batch_sink import BatchFunction, Target

Transform = Callable[[DataFrame, Sequence[str]], DataFrame]
"""The user's row-wise expressions; the columns that are named beside the rows are kept."""

_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
"""Characters of a path that Spark would take for a pattern."""

_FILE, _NUMBER, _ROW = "__throttle_file", "__throttle_number", "__throttle_row"
_VALUES, _CODE, _PARTITION = "__throttle_values", "__throttle_code", "__throttle_partition_"
_NO_NAMESPACE, _NO_SIZE = "namespace_missing", "size_missing"
_RESTORE: Final = "restore the files as they were, then start the query again: nothing of this batch was written"


@dataclass(frozen=True, slots=True)
class ReferencePayload:
    """How the payload of a query's batches is read.

    Its methods run on the driver, once per attempt at a batch.
    """

    control_path: str
    checkpoint: str
    root: str
    feed: FileFeed
    schema: StructType
    """Schema of the source."""

    transform: Transform
    """The user's row-wise expressions."""

    namespace: Column
    size: Column
    order: tuple[Column, ...]

    def take(self, frames: DataFrame, batch: int) -> ReferenceRows:
        """Return the rows of a batch; every partition of the frames is computed, once."""
        places: dict[FrameKind, list[pa.Table]] = {FrameKind.ADMITTED: [], FrameKind.REJECTED: []}
        usage = []
        for row in frames.select("kind", "frame").collect():
            kind = FrameKind(row["kind"])
            if kind == FrameKind.USAGE:
                usage.append(bytes(row["frame"]))
            else:
                places[kind].append(decode(bytes(row["frame"])))
        admitted, rejected = (pa.concat_tables(tables) if tables else None for tables in places.values())
        found = _places(admitted)
        payload = _FilesOfBatch(self, frames.sparkSession, batch)
        if len(found):
            payload.check(found, [unpack_usage(block, f"a usage report of batch {batch}") for block in usage])
        if rejected is not None:
            payload.check_rejected(_places(rejected), rejected.column(THROTTLE).combine_chunks())
        return ReferenceRows(payload, usage, found, rejected)


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """The rows of a batch that was decided on references."""

    files: _FilesOfBatch
    usage: list[bytes]
    """The packed usage reports."""

    admitted_places: Int64s
    explained: pa.Table | None
    """The places of the rejected rows, with the ``throttle`` column."""

    def admitted(self, target: Target | BatchFunction) -> DataFrame:
        """Return the admitted rows, in their order if the target may depend on it."""
        is_ordered = isinstance(target, Target) and not target.is_paid_by_bytes
        return self.files.admitted(self.admitted_places, is_ordered=is_ordered)

    def rejected(self, target: Target) -> DataFrame:  # noqa: ARG002 - the files say how many tasks there are
        """Return the rejected rows, with the ``throttle`` column."""
        assert self.explained is not None  # noqa: S101 - called only if rows were rejected
        return self.files.explained(_places(self.explained), self.explained.column(THROTTLE).combine_chunks())

    def close(self) -> None:
        """Do nothing: no row was kept."""


class _FilesOfBatch:
    """The files to which a batch's places refer."""

    def __init__(self, payload: ReferencePayload, spark: SparkSession, batch: int) -> None:
        self._payload = payload
        self._spark = spark
        self._batch = batch
        self._by_number: dict[int, SourceFile] | None = None

    def check(self, places: Int64s, reports: Sequence[UsageReport]) -> None:
        """Refuse the batch if Spark does not see the rows that were decided.

        Raises
        ------
        SourceChangedError
            If a file has changed, or an expression has other values in Spark.
        """
        payload = self._payload
        selected = self._selected(admitted_rows(places))
        letters = F.octet_length(payload.namespace)
        counted = (F.lit(1), F.col(_NUMBER), F.col(_ROW), payload.size.cast("bigint"), letters)
        sums = [F.sum(each).alias(f"s{at}") for at, each in enumerate(counted)]
        row = payload.transform(selected, (_NUMBER, _ROW)).select(*sums).collect()[0]
        seen = tuple(int(row[f"s{at}"] or 0) for at in range(len(sums)))
        decided = (*_place_sums(places), *_admitted_sums(reports))
        self._compare(decided, seen, "files, positions, sizes and lengths of namespaces")

    def check_rejected(self, places: Int64s, throttle: pa.StructArray) -> None:
        """Refuse the batch if Spark does not see the rows that were rejected, or sees a value where none was seen.

        Raises
        ------
        SourceChangedError
            If a file has changed, or an expression has other values in Spark.
        """
        payload = self._payload
        reason = throttle.field("reason")
        codes = _equal(reason, _NO_NAMESPACE) + 2 * _equal(reason, _NO_SIZE)
        coded = self._coded(places, codes).select(*self._own_columns(), _NUMBER, _ROW, _CODE)
        letters = F.when(F.col(_CODE) == 2, F.octet_length(payload.namespace))
        has_size = F.when((F.col(_CODE) == 3) & payload.size.isNotNull(), 1)
        sums = [
            F.sum(each).alias(f"s{at}")
            for at, each in enumerate((F.lit(1), F.col(_NUMBER), F.col(_ROW), letters, has_size))
        ]
        row = payload.transform(coded, (_NUMBER, _ROW, _CODE)).select(*sums).collect()[0]
        seen = tuple(int(row[f"s{at}"] or 0) for at in range(len(sums)))
        self._compare((*_place_sums(places), 0, 0), seen, "files, positions, missing namespaces and missing sizes")

    def _compare(self, decided: tuple[int, ...], seen: tuple[int, ...], of: str) -> None:
        if seen != decided:
            raise SourceChangedError(
                f"the source {self._payload.root}",
                f"batch {self._batch} was decided for rows whose number and sums (of {of}) are {decided}, and Spark "
                f"reads rows with {seen}",
                "restore its files; or, if an expression makes several rows of one or depends on other rows, set "
                "option('throttle.source', 'frames') on a new checkpoint",
            )

    def admitted(self, places: Int64s, *, is_ordered: bool) -> DataFrame:
        """Return the rows at the places; if they are to be in order, those of a namespace are in one partition."""
        payload = self._payload
        if not len(places):
            return payload.transform(self._spark.createDataFrame([], payload.schema), ())
        selected = self._selected(admitted_rows(places))
        if not is_ordered:
            return payload.transform(selected.drop(_NUMBER, _ROW), ())
        rows = payload.transform(selected, (_NUMBER, _ROW)).repartition(payload.namespace)
        order = [column.asc_nulls_last() for column in payload.order]
        return rows.sortWithinPartitions(*order, _NUMBER, _ROW).drop(_NUMBER, _ROW)

    def explained(self, places: Int64s, throttle: pa.StructArray) -> DataFrame:
        """Return the rows at the places, each with its value of the ``throttle`` column."""
        distinct, codes = distinct_values(throttle)
        table = pa.table({_CODE: pa.array(np.arange(1, len(distinct) + 1)), THROTTLE: distinct})
        explanations = F.broadcast(self._spark.createDataFrame(table))
        found = self._coded(places, codes).join(explanations, _CODE)
        return self._payload.transform(found.select(*self._own_columns(), THROTTLE), (THROTTLE,))

    def _selected(self, rows: Sequence[FileRows]) -> DataFrame:
        """Return the admitted rows of the source's columns, with the numbers of their files and their positions."""
        joined = self._joined(rows)
        word = F.get(F.col(_VALUES), F.shiftright(F.col(_ROW), 6).cast("int"))
        bit = F.getbit(word, F.col(_ROW).bitwiseAND(F.lit(63)).cast("int"))
        return joined.where(bit == 1).select(*self._own_columns(), _NUMBER, _ROW)

    def _coded(self, places: Int64s, codes: Int64s) -> DataFrame:
        """Return the rows of the source at the places, with the code of each plus 1."""
        code = F.get(F.col(_VALUES), F.col(_ROW).cast("int"))
        return self._joined(coded_rows(places, codes)).withColumn(_CODE, code).where(F.col(_CODE) > 0)

    def _own_columns(self) -> list[Column]:
        return [F.col(_quoted(field.name)) for field in self._payload.schema]

    def _joined(self, rows: Sequence[FileRows]) -> DataFrame:
        """Return all rows of the files, with their numbers, positions and values."""
        alike: dict[frozenset[str], list[tuple[FileRows, SourceFile]]] = {}
        own = {field.name.lower() for field in self._payload.schema}
        for each in rows:
            file = self._file(each.number)
            names = frozenset(name.lower() for name, _ in file.partition_values) & own
            alike.setdefault(names, []).append((each, file))
        return reduce(DataFrame.unionByName, (self._read(names, found) for names, found in alike.items()))

    def _read(self, names: Collection[str], found: Sequence[tuple[FileRows, SourceFile]]) -> DataFrame:
        """Return the rows of files whose partitions have these columns, whose values come from the extents.

        The folders of a Delta table need not say them.
        """
        root = self._payload.root.rstrip("/")
        locations = [f"{root}/{file.path}" for _, file in found]
        table = as_table([rows for rows, _ in found], [spark_path(location) for location in locations])
        table = table.rename_columns([_FILE, _NUMBER, _VALUES])
        columns = []
        for at, field in enumerate(self._payload.schema):
            if field.name.lower() not in names:
                columns.append(F.col(_quoted(field.name)))
                continue
            values = [_of_partition(file, field.name) for _, file in found]
            table = table.append_column(f"{_PARTITION}{at}", pa.array(values, pa.string()))
            columns.append(_cast(F.col(f"{_PARTITION}{at}"), field).alias(field.name))
        in_files = StructType([field for field in self._payload.schema if field.name.lower() not in names])
        reader = self._spark.read.schema(in_files).options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
        read = reader.parquet(*(_GLOB.sub(r"\\\g<0>", location) for location in locations))
        metadata = [F.col("_metadata.file_path").alias(_FILE), F.col("_metadata.row_index").alias(_ROW)]
        joined = read.select("*", *metadata).join(F.broadcast(self._spark.createDataFrame(table)), _FILE)
        return joined.select(*columns, _NUMBER, _ROW, _VALUES)

    def _file(self, number: int) -> SourceFile:
        """Return a file by its number, after comparing it with what its extent says."""
        file = self._files()[number]
        problem = self._payload.feed.changed(file.path, file.size_bytes, file.modified_ms)
        if problem is not None:
            raise SourceChangedError(f"the file {self._payload.root.rstrip('/')}/{file.path}", problem, _RESTORE)
        return file

    def _files(self) -> dict[int, SourceFile]:
        if self._by_number is None:
            offsets = source_offsets(Directory(self._payload.checkpoint), self._batch)
            names = [ExtentName(int(each["extent"]), str(each["file"])) for each in offsets if "extent" in each]
            if len(names) != 1:
                what = f"the offsets of batch {self._batch} in {self._payload.checkpoint}"
                raise DamagedError(what, "they name no list of files", RESTORE_CHECKPOINT)
            history = Extents(Directory(self._payload.control_path)).history(names[0])
            self._by_number = {file.number: file for file in history}
        return self._by_number


def distinct_values(values: pa.StructArray) -> tuple[pa.StructArray, Int64s]:
    """Return the distinct values of a column of structs, and the position among them of each row's value.

    Examples
    --------
    >>> rows = pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": "x"}])
    >>> distinct, codes = distinct_values(rows)
    >>> distinct.to_pylist(), codes.tolist()
    ([{'a': None, 'b': 'x'}, {'a': 1, 'b': 'x'}], [1, 0, 1])
    """
    code = np.zeros(len(values), dtype=np.int64)
    for field in values.flatten():
        coded = field.dictionary_encode()
        part = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        _, code = np.unique(code * (len(coded.dictionary) + 1) + part, return_inverse=True)
    _, first, found = np.unique(code, return_index=True, return_inverse=True)
    return values.take(pa.array(first)), found.astype(np.int64)


def _places(table: pa.Table | None) -> Int64s:
    if table is None:
        return np.zeros(0, dtype=np.int64)
    found: Int64s = table.column(PLACE).to_numpy()
    return found


def _place_sums(places: Int64s) -> tuple[int, int, int]:
    """Return how many places there are, and the sums of their files' numbers and of their positions."""
    return len(places), int(file_numbers(places).sum()), int(positions(places).sum())


def _equal(texts: pa.Array, text: str) -> Int64s:
    found: Int64s = (
        pc.equal(texts, pa.scalar(text))
        .fill_null(pa.scalar(value=False))
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    return found


def _admitted_sums(reports: Sequence[UsageReport]) -> tuple[int, int]:
    """Return the bytes of the admitted rows, and the bytes of their namespaces."""
    size_bytes = name_bytes = 0
    for report in reports:
        size_bytes += int(report.admitted[:, 1].sum())
        lengths = pc.binary_length(report.names).to_numpy(zero_copy_only=False).astype(np.int64)
        name_bytes += int((lengths * report.admitted[:, 0]).sum())
    return size_bytes, name_bytes


def _of_partition(file: SourceFile, name: str) -> str | None:
    return {column.lower(): value for column, value in file.partition_values}[name.lower()]


def _cast(value: Column, field: StructField) -> Column:
    """Return the value of a partition in its column's type; a value that is none is an error, never a null."""
    found = value.cast(field.dataType)
    problem = F.concat(F.lit(f"no {field.dataType.simpleString()} for the partition column {field.name}: "), value)
    return F.when(value.isNotNull() & found.isNull(), F.raise_error(problem)).otherwise(found)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
