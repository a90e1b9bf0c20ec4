"""The second reading of a batch: the rows at given places, read by Spark from the source's files or from copies.

A file all of whose rows leave is read as it is. Of another, Spark looks each row up by its position in the file
(`references.selection`): a join with a small table, which is broadcast, so a row never leaves the JVM. A file of which
no row is wanted is not read. A row that has waited is read from the copy that was made when it joined the queue
(`references.waiting_rows`), be it of its file or of the row alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructField, StructType

from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.core.quota import Int64s
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.columns.payload_columns import quoted
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, SourceFile
from spark_throttle.spark.references.file_identity import check_file, check_read
from spark_throttle.spark.references.selection import (
    FileRows,
    admitted_rows,
    as_table,
    coded_rows,
    file_numbers,
    path_in_store,
)
from spark_throttle.spark.references.waiting_copies import FILE, ROW, WaitingCopies, with_places
from spark_throttle.spark.references.waiting_rows import CopyKind, WaitingAccount, WaitingFolder
from spark_throttle.spark.rows.partition_names import PARTITION_PREFIX

_PATH, _VALUES = "__throttle_path", "__throttle_values"
_COPY: Final = "#"
"""What the lookup finds the rows of a copy by begins so, where that of a file has its path."""

_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
"""Characters of a path that Spark would take for a pattern."""

_OTHER_NAMES: Final = "read the stream with spark.readStream on a new checkpoint, and report the names"

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
        self._asked: dict[int, SourceFile] = {}
        self.copies = WaitingCopies(Directory(source.control_path))

    def nothing(self) -> DataFrame:
        """Return no rows, with the source's columns."""
        return self._spark.createDataFrame([], self._schema)

    def admitted(self, places: Int64s) -> DataFrame:
        """Return the rows at places, with their places."""
        is_wanted = f"getbit(get({_VALUES}, int(shiftright({ROW}, 6))), int({ROW} & 63)) = 1"
        return self._read(admitted_rows(places), places).where(is_wanted).drop(_VALUES)

    def coded(self, places: Int64s, codes: npt.NDArray[np.integer[Any]], code: str) -> DataFrame:
        """Return the rows at places, with their places and with their codes, each plus 1, in a column `code`."""
        return self._coded(coded_rows(places, codes), places, code)

    def parted(
        self, places: Int64s, parts: npt.NDArray[np.integer[Any]], part: str
    ) -> tuple[DataFrame, list[FileRows]]:
        """Return what `coded` returns, and the codes."""
        rows = coded_rows(places, parts)
        return self._coded(rows, places, part), rows

    def _coded(self, rows: Sequence[FileRows], places: Int64s, code: str) -> DataFrame:
        found = self._read(rows, places).withColumn(code, F.expr(f"get({_VALUES}, int({ROW}))"))
        return found.where(f"{code} > 0").drop(_VALUES)

    def whole(self, numbers: Sequence[int], *, has_rows: bool = False) -> DataFrame:
        """Return all rows of files, which are not looked up; in place of their places they have zeros.

        Parameters
        ----------
        has_rows
            Whether they have their positions in their files all the same.
        """
        alike: dict[frozenset[tuple[str, str | None]], list[SourceFile]] = {}
        for number in numbers:
            file = self._files[number]
            values = ((name.lower(), value) for name, value in file.partition_values)
            alike.setdefault(frozenset(each for each in values if each[0] in self._names), []).append(file)
        row = "_metadata.row_index" if has_rows else "0L"
        if len(alike) <= _MOST_SCANS:
            found = [self._with_values(dict(values), files, row) for values, files in alike.items()]
            return reduce(DataFrame.unionByName, found)
        rows = self._looked_up([FileRows(number, np.zeros(0, dtype=np.int64)) for number in numbers]).drop(_VALUES)
        return rows if has_rows else rows.withColumns({FILE: F.expr("0L"), ROW: F.expr("0L")})

    def arrived(self, *, has_rows: bool = False) -> DataFrame | None:
        """Return all rows of the files that the batch brings, as `whole` does; `None` if there is no file."""
        numbers = [file.number for file in self._arrived]
        return self.whole(numbers, has_rows=has_rows) if numbers else None

    def arrived_files(self, numbers: Collection[int]) -> list[SourceFile]:
        """Return those of the files that the batch brings that have these numbers."""
        return [file for file in self._arrived if file.number in numbers]

    def check_sources(self, numbers: Sequence[int]) -> None:
        """Refuse the batch if one of the files from which rows leave has neither arrived in it nor was copied.

        Raises
        ------
        DamagedError
            If the account of waiting rows does not know of a file: all rows of it would be taken to leave.
        """
        arrived = {file.number for file in self._arrived}
        lost = [number for number in numbers if number not in arrived and self._waiting.folder_of(number) is None]
        if lost:
            what = f"the account of waiting rows of batch {self._batch - 1} in {self._source.control_path}"
            problem = f"it is gone, or names no copies of the file {self._files[lost[0]].path}, of which rows waited"
            raise DamagedError(what, problem, RESTORE_CHECKPOINT)

    def keep(self, numbers: Sequence[int], folder: str) -> None:
        """Copy whole files to a folder of the control directory."""
        system, root = file_system(self._root)
        files = [self._file(number) for number in numbers]
        self.copies.keep(system, [(file, f"{root.rstrip('/')}/{file.path}") for file in files], folder)

    def check_read(self) -> None:
        """Refuse the batch if a file became another one while sinks read it."""
        system, root = file_system(self._root)
        files = list(self._asked.values())
        if files:
            check_read(system, [f"{root.rstrip('/')}/{file.path}" for file in files], files)

    def _read(self, rows: Sequence[FileRows], places: Int64s) -> DataFrame:
        """Return rows of files, those at the places among them, with their places and with the files' values.

        They are read from the files, from copies of them, or from copies of their rows.
        """
        folders = {each.number: self._waiting.folder_of(each.number) for each in rows}
        copied = {number: folder for number, folder in folders.items() if folder and folder.kind != CopyKind.FILES}
        return self._looked_up(rows, self._copied(copied, places) if copied else None, copied)

    def _copied(self, folder_of: Mapping[int, WaitingFolder], places: Int64s) -> DataFrame:
        """Return the rows of the copies in which places of these files lie, with what the lookup finds them by."""
        files, names = file_numbers(places), list[str]()
        for folder in dict.fromkeys(folder_of.values()):
            numbers = [number for number, of in folder_of.items() if of == folder]
            names += self.copies.names(folder, places[np.isin(files, numbers)])
        reader = self._strict().schema(with_places(self._schema))
        rows = reader.parquet(*(_GLOB.sub(r"\\\g<0>", f"{self._source.control_path}/{name}") for name in names))
        return rows.withColumn(_PATH, F.expr(f"concat('{_COPY}', {FILE})")).drop(FILE)

    def _looked_up(
        self, rows: Sequence[FileRows], copies: DataFrame | None = None, copied: Collection[int] = ()
    ) -> DataFrame:
        """Return all rows of files, with their places and the files' values.

        The lookup is one join for all of them, for Spark plans and sends each by itself. Values of partition columns
        come from the extents: the folders of a Delta table need not say them.

        Parameters
        ----------
        copies
            The rows of the copies in which the rows of files `copied` are looked up; they may have rows of other files.
        """
        alike: dict[frozenset[str], list[int]] = {}
        for each in rows:
            if each.number not in copied:
                of_folder = self._files[each.number].partition_values
                alike.setdefault(frozenset(name.lower() for name, _ in of_folder) & self._names, []).append(each.number)
        outside = frozenset[str]().union(*alike)
        paths = {number: f"{_COPY}{number}" for number in copied}
        found = [] if copies is None else [copies]
        for names, numbers in alike.items():
            locations = [self._location(number) for number in numbers]
            scan = self._scan(locations, names)
            paths |= zip(numbers, self._named(scan, locations), strict=True)
            inside = [
                f"CAST(NULL AS {each.dataType.simpleString()}) AS {quoted(each.name)}"
                for each in self._schema
                if each.name.lower() in names
            ]
            place = f"_metadata.file_path AS {_PATH}", f"_metadata.row_index AS {ROW}"
            found.append(scan.selectExpr("*", *inside, *place))
        table = as_table(rows, [paths[each.number] for each in rows]).rename_columns([_PATH, FILE, _VALUES])
        columns: dict[str, Column] = {}
        for at, field in enumerate(self._schema):
            if field.name.lower() in outside:
                of_files = [self._files[each.number].value_of(field.name) for each in rows]
                table = table.append_column(f"{PARTITION_PREFIX}{at}", pa.array(of_files, pa.string()))
                value = _cast(_matched(f"{PARTITION_PREFIX}{at}"), field)
                columns[field.name] = F.coalesce(F.col(quoted(field.name)), value).alias(field.name)
        wanted = F.broadcast(self._spark.createDataFrame(table))
        joined = reduce(DataFrame.unionByName, found).join(wanted, _PATH, "left")
        values = _matched(_VALUES).alias(_VALUES)
        if not columns:
            return joined.withColumn(_VALUES, values).drop(_PATH)
        order = (*self._schema.names, FILE, ROW)
        return joined.select(*(columns.get(name, F.col(quoted(name))) for name in order), values)

    def _named(self, scan: DataFrame, locations: Sequence[str]) -> list[str]:
        """Return what Spark calls the files at locations, by which it finds their rows.

        Raises
        ------
        SourceChangedError
            If it does not read each of them, once.
        """
        names = (re.sub(r"^file:/+", "file:/", name) for name in scan.inputFiles())
        named = {path_in_store(unquote(name)): name for name in names}
        paths = [path_in_store(location) for location in locations]
        if len(named) != len(paths) or not set(paths) <= set(named):
            problem = f"Spark reads {sorted(named)}, and the batch has rows of {sorted(paths)}"
            raise SourceChangedError(f"the source {self._root}", problem, _OTHER_NAMES)
        return [named[path] for path in paths]

    def _with_values(self, values: Mapping[str, str | None], files: Sequence[SourceFile], row: str) -> DataFrame:
        """Return all rows of files of one partition, with `row` in place of their positions."""
        locations = [self._location(file.number) for file in files]
        found = self._scan(locations, values).selectExpr("*", f"0L AS {FILE}", f"{row} AS {ROW}")
        if not values:
            return found
        columns = []
        for field in self._schema:
            name = field.name.lower()
            constant = F.lit(values[name]).cast("string") if name in values else None
            column = F.col(quoted(field.name)) if constant is None else _cast(constant, field).alias(field.name)
            columns.append(column)
        return found.select(*columns, FILE, ROW)

    def _scan(self, locations: Sequence[str], outside: Collection[str]) -> DataFrame:
        """Return what lies in files: all columns but some that lie outside of them."""
        schema = StructType([field for field in self._schema if field.name.lower() not in outside])
        return self._strict().schema(schema).parquet(*(_GLOB.sub(r"\\\g<0>", location) for location in locations))

    def _location(self, number: int) -> str:
        """Return where a file is to be read, after comparing it with what its extent says."""
        folder = self._waiting.folder_of(number)
        if folder is not None and folder.kind == CopyKind.FILES:
            return f"{self._source.control_path}/{self.copies.kept(self._files[number], folder.name)}"
        return f"{self._root}/{self._file(number).path}"

    def _strict(self) -> DataFrameReader:
        return self._spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")

    def _file(self, number: int) -> SourceFile:
        """Return a file by its number, after comparing it with what its extent says.

        Raises
        ------
        SourceChangedError
            If the file is not as it was.
        """
        file = self._files[number]
        system, root = file_system(self._root)
        check_file(system, f"{root.rstrip('/')}/{file.path}", file)
        self._asked[number] = file
        return file

    @cached_property
    def _arrived(self) -> list[SourceFile]:
        start = self._extent(self._batch - 1) if self._batch else NO_EXTENT
        return self._source.extents.between(start, self._end)

    @cached_property
    def _files(self) -> dict[int, SourceFile]:
        return {file.number: file for file in self._source.extents.history(self._end)}

    @cached_property
    def _end(self) -> ExtentName:
        return self._extent(self._batch)

    def _extent(self, batch: int) -> ExtentName:
        """Return the extent that the offsets of a batch name."""
        offsets = source_offsets(Directory(self._source.checkpoint), batch)
        names = [ExtentName(int(each["extent"]), str(each["file"])) for each in offsets if "extent" in each]
        if len(names) != 1:
            what = f"the offsets of batch {batch} in {self._source.checkpoint}"
            raise DamagedError(what, "they name no list of files", RESTORE_CHECKPOINT)
        return names[0]


def _matched(column: str) -> Column:
    """Return a column of the file that the lookup has found for a row; where it has none, an error.

    So Spark keeps the join an outer one, and no row is lost. Only copies may have rows of files that nobody asks for.
    """
    problem = "rows of this file were decided on, and Spark reads it by another name: "
    missing = f"if(startswith({_PATH}, '{_COPY}'), NULL, raise_error(concat('{problem}', {_PATH})))"
    return F.expr(f"if(isnull({_VALUES}), {missing}, {column})")


def _cast(value: Column, field: StructField) -> Column:
    """Return the value of a partition in its column's type; a value that is none is an error, never a null."""
    found = value.cast(field.dataType)
    problem = F.concat(F.lit(f"no {field.dataType.simpleString()} for the partition column {field.name}: "), value)
    return F.when(value.isNotNull() & found.isNull(), F.raise_error(problem)).otherwise(found)
