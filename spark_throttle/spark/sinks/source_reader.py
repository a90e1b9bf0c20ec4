"""The second reading of a batch that was decided on where its files lie: by Spark, from the stream's source, once.

A file all of whose rows leave is read as it is. Of another, Spark looks each row up by its position in the file
(`references.second_reading`): a join with a small table, which is broadcast, so a row never leaves the JVM. A file of
which no row is wanted is not read. Only files that the batch brings are read here: rows that wait are copied in that
batch.

**The two readings are compared** before a sink is given anything. Each file must be what its extent says of it, and
Spark computes the same sums of all rows of the batch's files, by its own evaluation of the user's expressions, as the
first reading had (`references.second_reading`). When all sinks have taken the batch, the files are compared with their
extents once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, reduce
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructField, StructType

from spark_throttle.checkpoint.offset_log import source_offsets
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.columns.payload_columns import quoted
from spark_throttle.spark.move.cutting import FILE, ROW
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, SourceFile, check_file, check_read
from spark_throttle.spark.references.second_reading import FileRows, ReadingSums, as_table, path_in_store, text_of_sums
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE
from spark_throttle.spark.rows.partition_names import PARTITION_PREFIX

Transform = Callable[[DataFrame, Sequence[str]], DataFrame]
"""The user's row-wise expressions; the columns that are named beside the rows are kept."""

VALUES: Final = "__throttle_values"
"""What a lookup finds for the rows of a file."""

_PATH, _NUMBER = "__throttle_path", "__throttle_number"

_OTHER_NAMES: Final = "read the stream with spark.readStream on a new checkpoint, and report the names"
_OF_CONDITION: Final = "rows that meet the stream's condition"
_REMEDY: Final = (
    "restore its files; or, if an expression makes several rows of one or depends on other rows, "
    "read the stream with spark.readStream on a new checkpoint"
)

_MOST_SCANS: Final = 8
"""Most partitions whose files are read apart, each with its values as constants; a join finds the values of more."""

_GLOB: Final = re.compile(r"[{}\[\]*?\\]")
"""Characters of a path that Spark would take for a pattern."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a query whose rows are decided on where they lie."""

    checkpoint: str
    extents: Extents
    root: str
    schema: StructType
    """The columns of the source, before any expression of the user."""

    transform: Transform
    """The user's expressions, for all rows of files; they drop those that do not meet a condition."""

    transform_decided: Transform
    """The same without the conditions, for rows that were decided on."""

    namespace: Column
    size: Column | None
    """The size, if it is a column: to compute it from a payload, the check would read every row as a whole."""

    drops_rows: bool
    """Whether the stream drops rows by a condition."""


class SourceReader:
    """A reader of the rows that one batch brings."""

    def __init__(self, spark: SparkSession, batch: int, source: Source) -> None:
        self._spark = spark
        self._batch = batch
        self._source = source
        self._root = source.root.rstrip("/")
        self._schema = source.schema
        self._names = {field.name.lower() for field in source.schema}
        self._asked: dict[str, SourceFile] = {}

    def check(self, decided: ReadingSums) -> None:
        """Refuse the batch if Spark does not see the rows that were decided on.

        Raises
        ------
        SourceChangedError
            If their number, or one of their sums, is another one.
        """
        source, seen = self._source, ReadingSums()
        if self._arrived:
            keep = (ROW,) if source.drops_rows else ()
            rows = source.transform(self.whole(list(self._arrived), has_rows=source.drops_rows), keep)
            columns = [source.namespace.alias(NAMESPACE)]
            if source.size is not None:
                columns.append(source.size.cast("bigint").alias(SIZE))
            size, position = None if source.size is None else SIZE, ROW if source.drops_rows else None
            (sums,) = rows.select(*columns, *keep).selectExpr(text_of_sums(position, NAMESPACE, size)).collect()
            seen = ReadingSums(*(value or 0 for value in sums[0]))
        decided = decided.comparable(has_positions=source.drops_rows, has_sizes=source.size is not None)
        if seen != decided:
            raise SourceChangedError(
                f"the source {source.root}",
                f"a batch was decided for {_OF_CONDITION if source.drops_rows else 'rows'} whose number and sums are "
                f"{astuple(decided)}, and Spark reads rows with {astuple(seen)}",
                _REMEDY,
            )

    def whole(self, names: Sequence[str], *, has_rows: bool = False) -> DataFrame:
        """Return all rows of files, which are not looked up.

        Parameters
        ----------
        has_rows
            Whether they have their positions in their files.
        """
        alike: dict[frozenset[tuple[str, str | None]], list[str]] = {}
        for name in names:
            values = ((column.lower(), value) for column, value in self._arrived[name].partition_values)
            alike.setdefault(frozenset(each for each in values if each[0] in self._names), []).append(name)
        if len(alike) <= _MOST_SCANS:
            found = [self._with_values(dict(values), files, has_rows=has_rows) for values, files in alike.items()]
            return reduce(DataFrame.unionByName, found)
        nothing = np.zeros(0, dtype=np.int64)
        rows = self.looked_up(dict.fromkeys(names, nothing), VALUES, _NUMBER).drop(_NUMBER, FILE)
        return rows if has_rows else rows.drop(ROW)

    def looked_up(self, values: Mapping[str, npt.NDArray[np.integer[Any]]], value: str, column: str) -> DataFrame:
        """Return all rows of files, with the names of their files and their positions there.

        The lookup is one join for all of them, for Spark plans and sends each by itself. Values of partition columns
        come from the extents: the folders of a Delta table need not say them.

        Parameters
        ----------
        values
            What the lookup finds for the rows of each file.
        value
            The expression over what is found, which is called ``__throttle_values``.
        column
            The name of the column that has the expression's value.
        """
        alike: dict[frozenset[str], list[str]] = {}
        for name in values:
            of_folder = self._arrived[name].partition_values
            alike.setdefault(frozenset(each.lower() for each, _ in of_folder) & self._names, []).append(name)
        outside, paths, found = frozenset[str]().union(*alike), dict[str, str](), list[DataFrame]()
        for columns, names in alike.items():
            locations = [self._location(name) for name in names]
            scan = self._scan(locations, columns)
            paths |= zip(names, self._named(scan, locations), strict=True)
            inside = [
                f"CAST(NULL AS {each.dataType.simpleString()}) AS {quoted(each.name)}"
                for each in self._schema
                if each.name.lower() in columns
            ]
            place = f"_metadata.file_path AS {_PATH}", f"_metadata.row_index AS {ROW}"
            found.append(scan.selectExpr("*", *inside, *place))
        rows = [FileRows(at, each) for at, each in enumerate(values.values())]
        table = as_table(rows, [paths[name] for name in values]).rename_columns([_PATH, _NUMBER, VALUES])
        table = table.drop_columns([_NUMBER]).append_column(FILE, pa.array(list(values), pa.string()))
        selected: list[Column] = []
        for at, field in enumerate(self._schema):
            selected.append(F.col(quoted(field.name)))
            if field.name.lower() in outside:
                of_files = [self._arrived[name].value_of(field.name) for name in values]
                table = table.append_column(f"{PARTITION_PREFIX}{at}", pa.array(of_files, pa.string()))
                of_folder_value = _cast(_matched(f"{PARTITION_PREFIX}{at}"), field)
                selected[-1] = F.coalesce(selected[-1], of_folder_value).alias(field.name)
        wanted = F.broadcast(self._spark.createDataFrame(table))
        joined = reduce(DataFrame.unionByName, found).join(wanted, _PATH, "left")
        return joined.select(*selected, FILE, ROW, _matched(value).alias(column))

    def check_read(self) -> None:
        """Refuse the batch if a file became another one while sinks read it."""
        system, root = file_system(self._root)
        files = list(self._asked.values())
        if files:
            check_read(system, [f"{root.rstrip('/')}/{file.path}" for file in files], files)

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

    def _with_values(self, values: Mapping[str, str | None], names: Sequence[str], *, has_rows: bool) -> DataFrame:
        """Return all rows of files of one partition."""
        rows = (f"_metadata.row_index AS {ROW}",) if has_rows else ()
        found = self._scan([self._location(name) for name in names], values).selectExpr("*", *rows)
        if not values:
            return found
        columns = []
        for field in self._schema:
            name = field.name.lower()
            constant = F.lit(values[name]).cast("string") if name in values else None
            column = F.col(quoted(field.name)) if constant is None else _cast(constant, field).alias(field.name)
            columns.append(column)
        return found.select(*columns, *((ROW,) if has_rows else ()))

    def _scan(self, locations: Sequence[str], outside: Collection[str]) -> DataFrame:
        """Return what lies in files: all columns but some that lie outside of them."""
        schema = StructType([field for field in self._schema if field.name.lower() not in outside])
        return strict_scan(self._spark, schema, locations)

    def _location(self, name: str) -> str:
        """Return where a file is to be read, after comparing it with what its extent says.

        Raises
        ------
        SourceChangedError
            If the file is not as it was.
        """
        file = self._arrived[name]
        system, root = file_system(self._root)
        check_file(system, f"{root.rstrip('/')}/{file.path}", file)
        self._asked[name] = file
        return f"{self._root}/{file.path}"

    @cached_property
    def _arrived(self) -> dict[str, SourceFile]:
        """The files that the batch brings, by the names by which the decider knows them."""
        start = self._extent(self._batch - 1) if self._batch else NO_EXTENT
        found = self._source.extents.between(start, self._extent(self._batch))
        return {file.name: file for file in found}

    def _extent(self, batch: int) -> ExtentName:
        """Return the extent that the offsets of a batch name."""
        offsets = source_offsets(Directory(self._source.checkpoint), batch)
        names = [ExtentName(int(each["extent"]), str(each["file"])) for each in offsets if "extent" in each]
        if len(names) != 1:
            what = f"the offsets of batch {batch} in {self._source.checkpoint}"
            raise DamagedError(what, "they name no list of files", RESTORE_CHECKPOINT)
        return names[0]


def strict_scan(spark: SparkSession, schema: StructType, locations: Sequence[str]) -> DataFrame:
    """Return the rows of Parquet files, all of which must be there and whole."""
    reader = spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")  # of a file whose writer gave it any
    return reader.schema(schema).parquet(*(_GLOB.sub(r"\\\g<0>", location) for location in locations))


def _matched(value: str) -> Column:
    """Return an expression over what the lookup has found for a row; where it has found nothing, an error.

    So Spark keeps the join an outer one, and no row is lost.
    """
    problem = "rows of this file were decided on, and Spark reads it by another name: "
    return F.expr(f"if(isnull({VALUES}), raise_error(concat('{problem}', {_PATH})), {value})")


def _cast(value: Column, field: StructField) -> Column:
    """Return the value of a partition in its column's type; a value that is none is an error, never a null."""
    found = value.cast(field.dataType)
    problem = F.concat(F.lit(f"no {field.dataType.simpleString()} for the partition column {field.name}: "), value)
    return F.when(value.isNotNull() & found.isNull(), F.raise_error(problem)).otherwise(found)
