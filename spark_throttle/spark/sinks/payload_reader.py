"""The second reading of a batch: the rows at given places, read by Spark from the source's files or from copies.

Spark looks each row up by its position in its file (`references.selection`): a join with a small table, which is
broadcast, so a row never leaves the JVM. A file of which no row is wanted is not read. A row that has waited is read
from the copy that was made when it joined the queue (`references.waiting_rows`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import LongType, StructField, StructType

from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import ExtentName, Extents, SourceFile
from spark_throttle.spark.references.file_feed import FileFeed
from spark_throttle.spark.references.selection import FileRows, as_table, spark_path
from spark_throttle.spark.references.waiting_rows import WaitingAccount

FILE, ROW = "__throttle_file", "__throttle_row"
"""Names of the columns of a row's place: the number of its file, and its position in the file."""

_PATH, _VALUES = "__throttle_path", "__throttle_values"
_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
"""Characters of a path that Spark would take for a pattern."""

_RESTORE: Final = "restore the files as they were, then start the query again: nothing of this batch was written"


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """Where the payload of a query's rows lies."""

    control_path: str
    checkpoint: str
    root: str
    feed: FileFeed
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
        self._waiting = waiting
        self._by_number: dict[int, SourceFile] | None = None

    @property
    def columns(self) -> list[Column]:
        """The source's columns."""
        return [F.col(f"`{field.name.replace('`', '``')}`") for field in self._schema]

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

    def copies(self, folder: str) -> DataFrame:
        """Return the rows that were copied to a folder of the control directory, with their places."""
        places = [StructField(name, LongType(), nullable=False) for name in (FILE, ROW)]
        reader = self._strict().schema(StructType([*self._schema, *places]))
        return reader.parquet(f"{self._source.control_path}/{folder}")

    def _read(self, rows: Sequence[FileRows]) -> DataFrame:
        """Return all rows of the files, or of their copies, with their places and with the files' values."""
        folders = {each.number: self._waiting.folder_of(each.number) for each in rows}
        in_files = [each for each in rows if folders[each.number] is None]
        found = [self._from_files(in_files)] if in_files else []
        for folder in dict.fromkeys(folder for folder in folders.values() if folder is not None):
            copied = [each for each in rows if folders[each.number] == folder]
            wanted = self._wanted(copied, [""] * len(copied)).drop(_PATH)
            found.append(self.copies(folder.name).join(F.broadcast(wanted), FILE))
        names = [*self._schema.names, FILE, ROW, _VALUES]
        quoted = [F.col(f"`{name.replace('`', '``')}`") for name in names]
        return reduce(DataFrame.unionByName, [each.select(*quoted) for each in found])

    def _from_files(self, rows: Sequence[FileRows]) -> DataFrame:
        locations = [f"{self._root}/{self._file(each.number).path}" for each in rows]
        wanted = self._wanted(rows, [spark_path(location) for location in locations])
        reader = self._strict().schema(self._schema).option("basePath", self._root)
        read = reader.parquet(*(_GLOB.sub(r"\\\g<0>", location) for location in locations))
        metadata = [F.col("_metadata.file_path").alias(_PATH), F.col("_metadata.row_index").alias(ROW)]
        return read.select("*", *metadata).join(F.broadcast(wanted), _PATH)

    def _strict(self) -> DataFrameReader:
        return self._spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")

    def _wanted(self, rows: Sequence[FileRows], paths: Sequence[str]) -> DataFrame:
        return self._spark.createDataFrame(as_table(rows, paths).rename_columns([_PATH, FILE, _VALUES]))

    def _file(self, number: int) -> SourceFile:
        """Return a file by its number, after comparing it with what its extent says.

        Raises
        ------
        SourceChangedError
            If the file is not as it was.
        """
        file = self._files()[number]
        problem = self._source.feed.changed(file.path, file.size_bytes, file.modified_ms)
        if problem is not None:
            raise SourceChangedError(f"the file {self._root}/{file.path}", problem, _RESTORE)
        return file

    def _files(self) -> dict[int, SourceFile]:
        if self._by_number is None:
            offsets = source_offsets(Directory(self._source.checkpoint), self._batch)
            names = [ExtentName(int(each["extent"]), str(each["file"])) for each in offsets if "extent" in each]
            if len(names) != 1:
                what = f"the offsets of batch {self._batch} in {self._source.checkpoint}"
                raise DamagedError(what, "they name no list of files", RESTORE_CHECKPOINT)
            history = Extents(Directory(self._source.control_path)).history(names[0])
            self._by_number = {file.number: file for file in history}
        return self._by_number
