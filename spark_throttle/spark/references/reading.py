"""The first reading of a batch: what decides of every row, as digests, with pyarrow and without a JVM.

It is made of the columns of the source that decide, if no expression takes Spark to compute (`row_expressions`).
Spark's executors run it. A task reads pieces of files: row groups, of which it takes only these columns. The decider is
told of a file as it is of one that was staged.

Columns have the types that Spark gives them, whatever a file's own are; a column that a file lacks is null. Names are
compared without case, as Spark does by default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_throttle.errors import SourceChangedError
from spark_throttle.files.storage import file_system
from spark_throttle.spark.columns.payload_columns import RowExpressions
from spark_throttle.spark.references.extents import MOST_ROWS, SourceFile, check_file
from spark_throttle.spark.references.row_expressions import (
    NUMBERS,
    ArrowExpression,
    Kind,
    RowCondition,
    arrow_expression,
    kind_of,
    kinds_of,
)
from spark_throttle.spark.rows.digest import FRAME_ROWS, StagedFile, digest_frames
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE, TIE, UNITS
from spark_throttle.spark.rows.partition_names import PARTITION_PREFIX
from spark_throttle.spark.spark_version import to_arrow

_ORDERED: Final = (
    *NUMBERS, BooleanType, DateType, DecimalType, DoubleType, FloatType, TimestampNTZType, TimestampType,
)  # fmt: skip
_PIECE_BYTES: Final = 32 << 20
"""Bytes of files for which a task of its own pays."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The row groups of a file whose middle lies between two positions of the file."""

    file: SourceFile
    first_byte: int
    end_byte: int


def tasks_of(files: Sequence[SourceFile], most_tasks: int) -> list[tuple[FilePiece, ...]]:
    """Return the pieces of files for each task, in order, so that each task has about as many bytes.

    Examples
    --------
    >>> files = [SourceFile(0, "a", 96 << 20, 0), SourceFile(1, "b", 32 << 20, 0)]
    >>> [[(piece.file.path, piece.end_byte >> 20) for piece in task] for task in tasks_of(files, 2)]
    [[('a', 64)], [('a', 96), ('b', 32)]]
    """
    total = sum(file.size_bytes for file in files)
    tasks = max(1, min(most_tasks, -(-total // _PIECE_BYTES)))
    share = -(-total // tasks) if total else 1
    found: list[list[FilePiece]] = [[] for _ in range(tasks)]
    before = 0
    for file in files:
        first = 0
        while first < file.size_bytes or first == 0:
            task = min((before + first) // share, tasks - 1)
            end = file.size_bytes if task == tasks - 1 else min(file.size_bytes, (task + 1) * share - before)
            found[task].append(FilePiece(file, first, end))
            if end <= first:
                break
            first = end
        before += file.size_bytes
    return [tuple(pieces) for pieces in found if pieces]


@dataclass(frozen=True, slots=True)
class DecidingColumns:
    """The expressions that decide, over the columns of the source."""

    namespace: ArrowExpression
    size: ArrowExpression
    order: tuple[ArrowExpression, ...]
    types: Mapping[str, pa.DataType]
    """The Arrow types of all columns that are read."""

    partition_columns: Mapping[str, str]
    condition: RowCondition | None = None
    """Which rows the stream keeps; `None` for all."""

    units: ArrowExpression | None = None
    """`None` if rows have none."""


def deciding_columns_of(
    schema: StructType,
    known: Mapping[str, str],
    given: RowExpressions,
    partition_columns: Sequence[str],
    condition: RowCondition | None = None,
) -> DecidingColumns | str:
    """Return the expressions that decide; a text says which of them takes Spark.

    Parameters
    ----------
    schema
        Schema of the source.
    known
        The source's column for each column of the stream that is one.
    partition_columns
        Partition columns of the sink; those whose values may have no folder are read.
    condition
        Which rows the stream keeps, over the columns of the source.
    """
    if given.size is None:
        return "size is not given, and the length of a row as JSON takes the whole row"
    types = {field.name: field.dataType for field in schema}
    kinds = kinds_of(schema, known)
    found = []
    order = list(given.order_by or ())
    for what, each in (
        ("namespace", given.namespace),
        ("size", given.size),
        *((f"order_by[{i}]", c) for i, c in enumerate(order)),
        *([] if given.units is None else [("units", given.units)]),
    ):
        if not isinstance(each, str):
            return (
                f"{what} is a Column; a text such as 'size' or \"concat(tenant, '/', topic)\" can be read without Spark"
            )
        expression = arrow_expression(each, kinds)
        if expression is None:
            return f"{what} is {each!r}, which takes Spark to compute"
        problem = _problem(what, expression, kinds, {name: types[of] for name, of in known.items()})
        if problem is not None:
            return problem
        found.append(expression.renamed(known))
    checked = {}
    for column in partition_columns:
        of = {each.lower(): source for each, source in known.items()}.get(column.lower())
        if of is None:
            return f"the sink is partitioned by {column!r}, which takes Spark to compute"
        if isinstance(types[of], StringType | BinaryType | DateType):
            checked[column] = of
    conditions = () if condition is None else (condition,)
    names = set().union(checked.values(), *(each.columns() for each in (*found, *conditions)))
    read = StructType([field for field in schema if field.name in names])
    arrow = to_arrow(read)
    read_types = {field.name: field.type for field in arrow}
    units = None if given.units is None else found.pop()
    return DecidingColumns(found[0], found[1], tuple(found[2:]), read_types, checked, condition, units)


def _problem(
    what: str, expression: ArrowExpression, kinds: Mapping[str, Kind], types: Mapping[str, DataType]
) -> str | None:
    kind = kind_of(expression, kinds)
    if what == "namespace" and kind != "text":
        return f"namespace is not a text ({kind})"
    if what in ("size", "units") and kind != "number":
        return f"{what} {'is' if what == 'size' else 'are'} not a whole number ({kind})"
    if kind == "other" and not isinstance(types[str(expression.name)], _ORDERED):
        return f"{what} is {types[str(expression.name)].simpleString()}, whose order is Spark's"
    return None


@dataclass(frozen=True, slots=True)
class FirstReading:
    """What is read of every file, and how a row's namespace, order, size and units come of it."""

    root: str
    columns: DecidingColumns

    def to_json(self) -> str:
        """Return the settings as JSON; the types as an Arrow schema."""
        given = self.columns
        return json.dumps({
            "root": self.root,
            "types": pa.schema(list(given.types.items())).serialize().to_pybytes().hex(),
            "namespace": given.namespace.to_fields(),
            "size": given.size.to_fields(),
            "order": [each.to_fields() for each in given.order],
            "partition_columns": dict(given.partition_columns),
            "condition": None if given.condition is None else given.condition.to_fields(),
            "units": None if given.units is None else given.units.to_fields(),
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> FirstReading:
        """Return the settings of the text that `to_json` returned."""
        fields: dict[str, Any] = json.loads(text)
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(fields["types"])))
        columns = DecidingColumns(
            ArrowExpression.from_fields(fields["namespace"]),
            ArrowExpression.from_fields(fields["size"]),
            tuple(ArrowExpression.from_fields(each) for each in fields["order"]),
            {field.name: field.type for field in schema},
            fields["partition_columns"],
            None if fields["condition"] is None else RowCondition.from_fields(fields["condition"]),
            None if fields["units"] is None else ArrowExpression.from_fields(fields["units"]),
        )
        return cls(fields["root"], columns)

    def frames(self, pieces: Sequence[FilePiece]) -> Iterator[pa.RecordBatch]:
        """Yield the digests of pieces of files."""
        for piece in pieces:
            yield from self._digests(piece)

    def _digests(self, piece: FilePiece) -> Iterator[pa.RecordBatch]:
        files, root = file_system(self.root)
        path = f"{root.rstrip('/')}/{piece.file.path}"
        check_file(files, path, piece.file)
        try:
            with (
                files.open_input_file(path) as stream,
                pq.ParquetFile(stream, coerce_int96_timestamp_unit="us") as parquet,
            ):
                file = _described(piece.file, parquet.metadata)
                gathered: list[pa.Table] = []
                for group, first_row in _row_groups(parquet.metadata, piece):
                    gathered.append(self._deciding(parquet, group, piece.file, piece.file.first_tie + first_row))
                    if sum(map(len, gathered)) >= FRAME_ROWS:
                        yield from digest_frames(file, pa.concat_tables(gathered))
                        gathered = []
                if gathered:
                    yield from digest_frames(file, pa.concat_tables(gathered))
        except (FileNotFoundError, pa.ArrowException) as error:
            problem = "it is gone" if isinstance(error, FileNotFoundError) else f"it cannot be read ({error})"
            raise SourceChangedError(f"the file {path}", problem, "restore it, then start the query again") from error

    def _deciding(self, parquet: pq.ParquetFile, group: int, file: SourceFile, first_tie: int) -> pa.Table:
        """Return the helper columns of the rows of a row group that the stream keeps."""
        given, values = self.columns, {name.lower(): value for name, value in file.partition_values}
        names = _by_lower_name(parquet.schema_arrow.names)
        wanted = [names[name.lower()] for name in given.types if name.lower() in names]
        rows = parquet.read_row_group(group, columns=wanted, use_threads=False)
        count = parquet.metadata.row_group(group).num_rows
        columns = {}
        for name, kind in given.types.items():
            if name.lower() in values:
                columns[name] = pa.repeat(_of_folder(name, values[name.lower()], kind), count)
            elif name.lower() in names:
                columns[name] = _cast(rows.column(names[name.lower()]), kind)
            else:
                columns[name] = pa.nulls(count, kind)
        table = pa.table(columns)
        helpers = {
            NAMESPACE: _plain(given.namespace.values(table), count),
            SIZE: _plain(given.size.values(table), count).cast(pa.int64()),
            TIE: pa.array(first_tie + np.arange(count, dtype=np.int64)),
        }
        if given.units is not None:
            helpers[UNITS] = _plain(given.units.values(table), count).cast(pa.int64())
        helpers |= {f"{ORDER_PREFIX}{i:03d}": _plain(each.values(table), count) for i, each in enumerate(given.order)}
        helpers |= {f"{PARTITION_PREFIX}{name}": table.column(of) for name, of in given.partition_columns.items()}
        found = pa.table(helpers)
        return found if given.condition is None else found.filter(given.condition.keeps(table))


def _described(file: SourceFile, metadata: pq.FileMetaData) -> StagedFile:
    return StagedFile(
        file.name, in_table=False, rows=metadata.num_rows, size_bytes=file.size_bytes, stats="", is_source=True
    )


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    is_text_of_bytes = pa.types.is_string(kind) and (
        pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    )
    return column.cast(kind, safe=not is_text_of_bytes)  # Spark does not ask whether text is UTF-8


def _of_folder(name: str, value: str | None, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(value, pa.string()).cast(kind)
    except pa.ArrowException as error:
        problem = f"its value {value!r} is a {kind} for Spark alone ({error})"
        remedy = "read the stream with spark.readStream on a new checkpoint"
        raise SourceChangedError(f"the partition column {name!r}", problem, remedy) from error


def _row_groups(metadata: pq.FileMetaData, piece: FilePiece) -> Iterator[tuple[int, int]]:
    """Yield the number and the first row of the row groups whose middle lies in a piece."""
    first_row = first_byte = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(at).total_compressed_size for at in range(group.num_columns))
        if piece.first_byte <= min(first_byte + size // 2, piece.file.size_bytes - 1) < piece.end_byte:
            yield number, first_row
        first_row += group.num_rows
        first_byte += size
    if first_row > MOST_ROWS:
        raise SourceChangedError(f"the file {piece.file.path}", f"it has {first_row} rows", "split it")


def _by_lower_name(names: Sequence[str]) -> dict[str, str]:
    return {name.lower(): name for name in reversed(names)}


def _plain(values: pa.ChunkedArray | pa.Array | pa.Scalar, rows: int) -> pa.ChunkedArray | pa.Array:
    return pa.repeat(values, rows) if isinstance(values, pa.Scalar) else values
