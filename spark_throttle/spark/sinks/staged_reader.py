"""The reading of rows by Spark from their files: for every sink that takes no files, once, in the JVM, with any type.

A file all of whose rows leave is read as it is. Of another, a broadcast table says by the file's name which rows are
wanted: a bit, or a code, for each position. A file that has rows of several files (a rest, a pack) has their places as
columns. A file that was decided on and is read under another name is an error, and so is a copy that lacks a row:
without this, a join would lose rows in silence. What a batch brings of the stream's source, `source_reader` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.spark.columns.payload_columns import from_staged, staged_schema
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.move.cutting import FILE, ROW
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.waiting_files import FormerFiles, InlineRows, inline_file_of, is_former, places_in
from spark_throttle.spark.references.second_reading import FileRows, as_table
from spark_throttle.spark.sinks.source_reader import VALUES, SourceReader, strict_scan

_NUMBER: Final = "__throttle_number"
IS_SET: Final = f"getbit(get({VALUES}, int(shiftright({ROW}, 6))), int({ROW} & 63)) = 1"
"""Whether a row is wanted, of the words that a lookup finds for its file (`second_reading.admitted_rows`)."""


@dataclass(frozen=True, slots=True)
class StagedReader:
    """A reader of the rows of one batch."""

    spark: SparkSession
    schema: StructType
    """The user's columns, or those of the source."""

    table_root: str
    waiting: StagingPlace
    former: dict[str, bool]
    """By the names of files that are known: whether they have other columns (`move.waiting_files`)."""

    inline: tuple[bytes, ...] = ()
    """The frames of the inline files of which rows leave."""

    source: SourceReader | None = None
    """What reads the files that the batch brings, if these are the source's."""

    @property
    def carried(self) -> StructType:
        """The columns in the types in which they are staged."""
        return staged_schema(self.schema)

    @property
    def staged_root(self) -> str:
        """The folder of the files in the control directory."""
        return self.waiting.root

    def nothing(self) -> DataFrame:
        """Return no rows."""
        return from_staged(self.spark.createDataFrame([], self.carried), self.schema)

    def whole(self, files: Sequence[FileAnswer]) -> DataFrame:
        """Return all rows of files that lie as they were staged."""
        if self.source is not None:
            return self.source.whole([file.name for file in files])
        parts, inline = list[DataFrame](), [file for file in files if file.is_inline]
        lying = [self._location(file) for file in files if not file.is_inline]
        if lying:
            parts.append(self._strict(self.carried, lying))
        if inline:
            parts.append(self._inline_rows(inline).drop(FILE, ROW))
        return from_staged(reduce(DataFrame.union, parts), self.schema)

    def coded(self, files: Sequence[FileAnswer], rows: Sequence[FileRows], code: str) -> DataFrame:
        """Return the rows of files that have a code, with it in a column; 0 is none."""
        return self._looked_up(files, rows, f"get({VALUES}, int({ROW}))", code).where(f"{code} > 0")

    def admitted(self, files: Sequence[FileAnswer], rows: Sequence[FileRows]) -> DataFrame:
        """Return the rows of files whose bits are set."""
        return self._looked_up(files, rows, IS_SET, _NUMBER).where(_NUMBER).drop(_NUMBER)

    def check_copies(self, files: Sequence[FileAnswer], wanted: Mapping[int, Int64s]) -> None:
        """Refuse the batch if a copy lacks one of the rows that leave, or has it twice.

        Raises
        ------
        DamagedError
            If one does.
        """
        for name in dict.fromkeys(file.copy for file in files if file.copy and not file.is_inline):
            of_copy = [file for file in files if file.copy == name]
            places = places_in(self.staged_root, name)
            for file in of_copy:
                found = places.get(file.name, np.zeros(0, dtype=np.int64))
                found = found[np.isin(found, wanted[file.number])]
                if len(found) != len(wanted[file.number]) or len(np.unique(found)) != len(found):
                    problem = f"of {len(wanted[file.number])} rows of {file.name} that leave, it has {len(found)}"
                    raise DamagedError(f"the file of waiting rows {name}", problem, RESTORE_CHECKPOINT)

    def _looked_up(self, files: Sequence[FileAnswer], rows: Sequence[FileRows], value: str, name: str) -> DataFrame:
        """Return all rows of files with a value of what the lookup finds for them."""
        by_number = {file.number: file for file in files}
        brought: dict[str, npt.NDArray[np.integer[Any]]] = {}
        if self.source is not None:
            brought = {file.name: each.values for each in rows if (file := by_number[each.number]).is_new}
            files = [file for file in files if not file.is_new]
            rows = [each for each in rows if not by_number[each.number].is_new]
        found = list[DataFrame]()
        if files:
            found.append(from_staged(self._found(files, rows, value, name), self.schema))
        if self.source is not None and brought:
            found.append(self.source.looked_up(brought, value, name).drop(FILE, ROW))
        return reduce(DataFrame.unionByName, found)

    def _found(self, files: Sequence[FileAnswer], rows: Sequence[FileRows], value: str, name: str) -> DataFrame:
        """Return what `_looked_up` does, of files that were staged, in the types in which they are."""
        by_number = {file.number: file for file in files}
        table = as_table(rows, [by_number[each.number].name for each in rows]).rename_columns([FILE, _NUMBER, VALUES])
        wanted = F.broadcast(self.spark.createDataFrame(table.drop_columns([_NUMBER])))
        found = list[DataFrame]()
        inline = [file for file in files if file.is_inline]
        if inline:
            found.append(self._inline_rows(inline).join(wanted, FILE).withColumn(name, F.expr(value)))
        files = [file for file in files if not file.is_inline]
        former = self._former(files)
        files = [file for file in files if (file.copy or file.name) not in former]
        as_staged = [self._location(file) for file in files if not file.copy]
        if as_staged:
            place = f"_metadata.file_name AS {FILE}", f"_metadata.row_index AS {ROW}"
            scan = self._strict(self.carried, as_staged).selectExpr("*", *place)
            problem = "rows of this file were decided on, and Spark reads it by another name: "
            strict = f"if(isnull({VALUES}), raise_error(concat('{problem}', {FILE})), {value})"
            found.append(scan.join(wanted, FILE, "left").withColumn(name, F.expr(strict)))
        if former:
            read = FormerFiles(self.waiting, former)
            rows_of = self.spark.range(0, len(former), 1, len(former)).mapInArrow(read, self._with_places)
            found.append(rows_of.join(wanted, FILE).withColumn(name, F.expr(value)))
        copies = sorted({f"{self.staged_root}/{file.copy}" for file in files if file.copy})
        if copies:
            found.append(self._strict(self._with_places, copies).join(wanted, FILE).withColumn(name, F.expr(value)))
        return reduce(DataFrame.unionByName, found).drop(FILE, ROW, VALUES)

    def _inline_rows(self, files: Sequence[FileAnswer]) -> DataFrame:
        """Return all rows of inline files, with their places."""
        wanted = {file.copy or file.name for file in files}
        frames = [frame for frame in self.inline if inline_file_of(frame).name in wanted]
        if len(frames) != len(wanted):
            problem = f"of {len(wanted)} files of which rows leave, it has {len(frames)}"
            raise DamagedError("the decider's answer", problem, RESTORE_CHECKPOINT)
        came = self.spark.createDataFrame(pa.table({"frame": pa.array(frames, pa.binary())}))
        return came.mapInArrow(InlineRows(self.waiting), self._with_places)

    @property
    def _with_places(self) -> StructType:
        return StructType([*self.carried, StructField(FILE, StringType()), StructField(ROW, LongType())])

    def _former(self, files: Sequence[FileAnswer]) -> tuple[str, ...]:
        """Return the names of the files that have other columns; one of this batch has none."""
        waited = {file.copy or file.name: None if file.copy else file.rows for file in files if not file.is_new}
        names = sorted(waited)
        for name in names:
            if name not in self.former:
                self.former[name] = is_former(self.waiting, name, waited[name])
        return tuple(name for name in names if self.former[name])

    def _location(self, file: FileAnswer) -> str:
        return f"{self.table_root if file.is_outside else self.staged_root}/{file.name}"

    def _strict(self, schema: StructType, locations: Sequence[str]) -> DataFrame:
        return strict_scan(self.spark, schema, locations)


def codes_of(codes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """Return codes in the type that Spark indexes with."""
    return codes.astype(np.int32)
