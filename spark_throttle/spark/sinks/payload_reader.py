"""The second reading of a batch: the rows at given places, read by Spark from the source's files or from copies.

A file all of whose rows leave is read as it is. Of another, Spark looks each row up by its position in the file
(`references.selection`): a join with a small table, which is broadcast, so a row never leaves the JVM. A file of which
no row is wanted is not read. A row that has waited is read from the copy that was made when it joined the queue
(`references.waiting_rows`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import LongType, StructField, StructType

from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.columns.payload_columns import quoted
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, SourceFile
from spark_throttle.spark.references.file_identity import check_file, check_read
from spark_throttle.spark.references.selection import FileRows, as_table, spark_path
from spark_throttle.spark.references.waiting_rows import WaitingAccount
from spark_throttle.spark.rows.partition_names import PARTITION_PREFIX

FILE, ROW = "__throttle_file", "__throttle_row"
"""Names of the columns of a row's place: the number of its file, and its position in the file."""

_PATH, _VALUES = "__throttle_path", "__throttle_values"
_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
"""Characters of a path that Spark would take for a pattern."""

_MOST_SCANS: Final = 8
"""Most partitions whose files are read apart, each with its values as constants; a join finds the values of more."""


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """Where the payload of a query's rows lies."""

    control_path: str
    checkpoint: str
    extents: Extents
    root: str
    schema: StructType
    """Schema of the source."""


class PayloadReader:
    """A reader of the rows of one batch.

    Parameters
    ----------
    waiting
        The account of waiting rows before the batch.
    """

    def __init__(self, spark: SparkSession, batch: int, source: PayloadSource, waiting: WaitingAccount) -> None:
        self._spark = spark
        self._batch = batch
        self._source = source
        self._root = source.root.rstrip("/")
        self._schema = source.schema
        self._names = {field.name.lower() for field in source.schema}
        self._waiting = waiting
        self._by_number: dict[int, SourceFile] | None = None
        self._asked: dict[int, SourceFile] = {}

    @property
    def columns(self) -> list[Column]:
        """The source's columns."""
        return [F.col(quoted(field.name)) for field in self._schema]

    def nothing(self) -> DataFrame:
        """Return no rows, with the source's columns."""
        return self._spark.createDataFrame([], self._schema)

    def admitted(self, rows: Sequence[FileRows]) -> DataFrame:
        """Return the rows whose bits are set, with their places."""
        word = F.get(F.col(_VALUES), F.shiftright(F.col(ROW), 6).cast("int"))
        bit = F.getbit(word, F.col(ROW).bitwiseAND(F.lit(63)).cast("int"))
        return self._read(rows).where(bit == 1).select(*self.columns, FILE, ROW)

    def coded(self, rows: Sequence[FileRows], code: str) -> DataFrame:
        """Return the rows that have a code, with their places and their codes."""
        found = self._read(rows).withColumn(code, F.get(F.col(_VALUES), F.col(ROW).cast("int")))
        return found.where(F.col(code) > 0).select(*self.columns, FILE, ROW, code)

    def whole(self, numbers: Sequence[int], *, has_rows: bool = False) -> DataFrame:
        """Return all rows of files, which are not looked up; in place of their places they have zeros.

        Parameters
        ----------
        has_rows
            Whether they have their positions in their files all the same.
        """
        alike: dict[frozenset[tuple[str, str | None]], list[SourceFile]] = {}
        for number in numbers:
            file = self._file(number)
            values = ((name.lower(), value) for name, value in file.partition_values)
            alike.setdefault(frozenset(each for each in values if each[0] in self._names), []).append(file)
        if len(alike) <= _MOST_SCANS:
            found = [self._with_values(dict(values), files) for values, files in alike.items()]
        else:
            found = [self._from_files([FileRows(number, np.zeros(0, dtype=np.int64)) for number in numbers])]
        zero = F.lit(0).cast("bigint")
        row = (F.col(ROW) if has_rows else zero).alias(ROW)
        return reduce(DataFrame.unionByName, found).select(*self.columns, zero.alias(FILE), row)

    def arrived(self, besides: Collection[int]) -> DataFrame | None:
        """Return all rows of the files that the batch brings, but for some files; `None` if there is no other."""
        end = self._extent(self._batch)
        start = self._extent(self._batch - 1) if self._batch else NO_EXTENT
        numbers = [file.number for file in self._source.extents.between(start, end) if file.number not in besides]
        return self.whole(numbers).select(*self.columns) if numbers else None

    def copies(self, *folders: str) -> DataFrame:
        """Return the rows that were copied to folders of the control directory, with their places."""
        directory = Directory(self._source.control_path)
        for folder in folders:
            if not directory.names(folder):
                raise DamagedError(
                    f"the copies of waiting rows {directory.shown(folder)}", "they are gone", RESTORE_CHECKPOINT
                )
        places = [StructField(name, LongType(), nullable=False) for name in (FILE, ROW)]
        reader = self._strict().schema(StructType([*self._schema, *places]))
        return reader.parquet(*(f"{self._source.control_path}/{folder}" for folder in folders))

    def check_read(self) -> None:
        """Refuse the batch if a file became another one while sinks read it."""
        system, root = file_system(self._root)
        files = list(self._asked.values())
        if files:
            check_read(system, [f"{root.rstrip('/')}/{file.path}" for file in files], files)

    def _read(self, rows: Sequence[FileRows]) -> DataFrame:
        """Return all rows of the files, or of their copies, with their places and with the files' values."""
        folders = {each.number: self._waiting.folder_of(each.number) for each in rows}
        in_files = [each for each in rows if folders[each.number] is None]
        found = [self._from_files(in_files)] if in_files else []
        copied = [each for each in rows if folders[each.number] is not None]
        if copied:
            # A row has been copied again if it was a leftover, but then all that waits of its file has.
            names = dict.fromkeys(folder.name for each in copied if (folder := folders[each.number]) is not None)
            wanted = self._spark.createDataFrame(self._wanted(copied, [""] * len(copied)).drop_columns([_PATH]))
            found.append(self.copies(*names).join(F.broadcast(wanted), FILE))
        columns = [F.col(quoted(name)) for name in (*self._schema.names, FILE, ROW, _VALUES)]
        return reduce(DataFrame.unionByName, [each.select(*columns) for each in found])

    def _from_files(self, rows: Sequence[FileRows]) -> DataFrame:
        """Return all rows of files; those whose partitions have the same columns are read together."""
        alike: dict[frozenset[str], list[tuple[FileRows, SourceFile]]] = {}
        for each in rows:
            file = self._file(each.number)
            names = frozenset(name.lower() for name, _ in file.partition_values) & self._names
            alike.setdefault(names, []).append((each, file))
        return reduce(DataFrame.unionByName, (self._from_alike(names, found) for names, found in alike.items()))

    def _from_alike(self, names: Collection[str], found: Sequence[tuple[FileRows, SourceFile]]) -> DataFrame:
        """Return all rows of files whose partitions have the columns `names`, whose values come from the extents.

        The folders of a Delta table need not say them.
        """
        table = self._wanted([rows for rows, _ in found], [spark_path(self._location(file)) for _, file in found])
        columns = []
        for at, field in enumerate(self._schema):
            if field.name.lower() not in names:
                columns.append(F.col(quoted(field.name)))
                continue
            values = [_of_partition(file, field.name) for _, file in found]
            table = table.append_column(f"{PARTITION_PREFIX}{at}", pa.array(values, pa.string()))
            columns.append(_cast(F.col(f"{PARTITION_PREFIX}{at}"), field).alias(field.name))
        metadata = [F.col("_metadata.file_path").alias(_PATH), F.col("_metadata.row_index").alias(ROW)]
        wanted = F.broadcast(self._spark.createDataFrame(table))
        read = self._scan([file for _, file in found], names).select("*", *metadata)
        return read.join(wanted, _PATH).select(*columns, FILE, ROW, _VALUES)

    def _with_values(self, values: Mapping[str, str | None], files: Sequence[SourceFile]) -> DataFrame:
        """Return all rows of files of one partition, and their positions."""
        columns = []
        for field in self._schema:
            name = field.name.lower()
            constant = F.lit(values[name]).cast("string") if name in values else None
            found = F.col(quoted(field.name)) if constant is None else _cast(constant, field).alias(field.name)
            columns.append(found)
        return self._scan(files, values).select(*columns, F.col("_metadata.row_index").alias(ROW))

    def _scan(self, files: Sequence[SourceFile], outside: Collection[str]) -> DataFrame:
        """Return what lies in files: all columns but some that lie outside of them."""
        schema = StructType([field for field in self._schema if field.name.lower() not in outside])
        paths = (_GLOB.sub(r"\\\g<0>", self._location(file)) for file in files)
        return self._strict().schema(schema).parquet(*paths)

    def _location(self, file: SourceFile) -> str:
        return f"{self._root}/{file.path}"

    def _strict(self) -> DataFrameReader:
        return self._spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")

    @staticmethod
    def _wanted(rows: Sequence[FileRows], paths: Sequence[str]) -> pa.Table:
        return as_table(rows, paths).rename_columns([_PATH, FILE, _VALUES])

    def _file(self, number: int) -> SourceFile:
        """Return a file by its number, after comparing it with what its extent says.

        Raises
        ------
        SourceChangedError
            If the file is not as it was.
        """
        file = self._files()[number]
        system, root = file_system(self._root)
        check_file(system, f"{root.rstrip('/')}/{file.path}", file)
        self._asked[number] = file
        return file

    def _files(self) -> dict[int, SourceFile]:
        if self._by_number is None:
            history = self._source.extents.history(self._extent(self._batch))
            self._by_number = {file.number: file for file in history}
        return self._by_number

    def _extent(self, batch: int) -> ExtentName:
        """Return the extent that the offsets of a batch name."""
        offsets = source_offsets(Directory(self._source.checkpoint), batch)
        names = [ExtentName(int(each["extent"]), str(each["file"])) for each in offsets if "extent" in each]
        if len(names) != 1:
            what = f"the offsets of batch {batch} in {self._source.checkpoint}"
            raise DamagedError(what, "they name no list of files", RESTORE_CHECKPOINT)
        return names[0]


def _of_partition(file: SourceFile, name: str) -> str | None:
    return {column.lower(): value for column, value in file.partition_values}[name.lower()]


def _cast(value: Column, field: StructField) -> Column:
    """Return the value of a partition in its column's type; a value that is none is an error, never a null."""
    found = value.cast(field.dataType)
    problem = F.concat(F.lit(f"no {field.dataType.simpleString()} for the partition column {field.name}: "), value)
    return F.when(value.isNotNull() & found.isNull(), F.raise_error(problem)).otherwise(found)
