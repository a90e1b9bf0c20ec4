"""A Delta table takes a batch as files that Spark did not write: named by one commit, once, with the batch's mark.

Files that were staged in the table's directory and of which all rows leave are committed as they lie; of others the
rows that leave were written to new files by executors (`move.cutting`). A table that has the batch does not take it
again (`delta.table_log`), so files of an earlier attempt are never named. A different batch of the same number, as a
checkpoint that was put back plans it, is refused (`checkpoint.batch_mark`).

The `deltalake` package refuses some features of tables itself and ignores others, which could leave a table with rows
that break its constraints or that Spark cannot see. So the table's protocol, properties and columns are checked when a
query starts, and again before every commit, because it may have got a property meanwhile that only Spark's writer
knows. Every table that is not known to take files safely is left to Spark's writer.

Source: "Writer Requirements" of the Delta protocol.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyarrow import fs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.manifest import Manifest
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import ConfigurationError, DamagedError, ForeignFilesError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.delta.table_files import FileForm, IndexedColumns, TableFileWriter, WrittenFile
from spark_throttle.spark.delta.table_log import append_to_table
from spark_throttle.spark.metering.charging import decided_policy
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.rows.partition_names import PARTITION_TYPES
from spark_throttle.spark.spark_version import to_arrow

if TYPE_CHECKING:
    from deltalake import DeltaTable


_WHOLE_NUMBERS = ByteType | ShortType | IntegerType | LongType
_PLAIN_TYPES = (
    _WHOLE_NUMBERS
    | FloatType
    | DoubleType
    | DecimalType
    | BooleanType
    | BinaryType
    | DateType
    | TimestampType
    | TimestampNTZType
)

_NEWEST_WRITER_VERSION: Final = 4
"""Newest writer version for a table that lists no features.

Versions up to it have append-only tables, invariants, constraints, change data feed and generated columns.
"""

_FEATURES: Final = frozenset({
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "deletionVectors", "timestampNtz",
})  # fmt: skip
"""Features that require nothing of an append, or whose use shows in the table's properties and columns."""

_COLUMN_RULES: Final = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
    "delta.typeChanges": "has a widened type",
    "CURRENT_DEFAULT": "has a default",
    "__CHAR_VARCHAR_TYPE_STRING": "has a bounded length",
    "__COLLATIONS": "has a collation",
}
_ON: Final = {"delta.autoOptimize.optimizeWrite", "delta.autoOptimize.autoCompact"}
"""Properties that require more of a writer than to write the rows."""

_NUMBERS: Final = {"byte", "short", "integer", "long", "float", "double", "decimal"}
_TIMES: Final = {"date", "timestamp", "timestamp_ntz"}


def check_types(what: str, schema: StructType) -> None:
    """Refuse rows with types that pyarrow does not write as Spark would.

    Raises
    ------
    ForeignFilesError
        If a column holds intervals, variants, shapes, or collated or bounded strings.
    """
    for field in schema:
        if not _is_known(field.dataType):
            raise ForeignFilesError(what, f"the column {field.name!r} is {field.dataType.simpleString()}")


def _is_known(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return bool(data_type.fields) and all(_is_known(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return _is_known(data_type.elementType)
    if isinstance(data_type, MapType):
        return _is_known(data_type.keyType) and _is_known(data_type.valueType)
    if isinstance(data_type, StringType):
        return data_type == StringType()
    return isinstance(data_type, _PLAIN_TYPES)


def check_table(table: DeltaTable, what: str, schema: StructType, partition_columns: tuple[str, ...]) -> None:
    """Refuse a table to which rows of `schema` cannot be appended without Spark.

    Parameters
    ----------
    partition_columns
        Partition columns that the caller gave; empty to accept those of the table.

    Raises
    ------
    ForeignFilesError
        If the table requires something that only Spark's writer does.
    ConfigurationError
        If no writer could append the rows.
    """
    fields = json.loads(table.schema().to_json())["fields"]
    metadata = table.metadata()
    found_partitions = tuple(metadata.partition_columns)
    if partition_columns and partition_columns != found_partitions:
        raise ConfigurationError(
            f"{what} is partitioned by {list(found_partitions)} and partitionBy says {list(partition_columns)}: "
            f"leave partitionBy out, or give what the table has"
        )
    _check_columns(what, schema, {field["name"]: field for field in fields})
    _check_protocol(table, what)
    _check_properties(what, metadata.configuration)
    for path, field in _walk(fields):
        for rule, meaning in _COLUMN_RULES.items():
            if rule in field["metadata"]:
                raise ForeignFilesError(what, f"its column {path!r} {meaning}")
    types = {field["name"]: field["type"] for field in fields}
    odd = [name for name in found_partitions if types[name] not in PARTITION_TYPES]
    if odd:
        raise ForeignFilesError(what, f"it is partitioned by {odd[0]!r}, which is {types[odd[0]]}")
    if set(schema.names) <= set(found_partitions):
        raise ForeignFilesError(what, "the rows have no column except those by which it is partitioned")


def _check_protocol(table: DeltaTable, what: str) -> None:
    protocol = table.protocol()
    features = protocol.writer_features
    if features is None:
        if protocol.min_writer_version > _NEWEST_WRITER_VERSION:
            raise ForeignFilesError(what, f"it needs a writer of version {protocol.min_writer_version}")
        return
    unknown = sorted({*features, *(protocol.reader_features or ())} - _FEATURES)
    if unknown:
        raise ForeignFilesError(what, f"it has the table feature {', '.join(unknown)}")


def _check_properties(what: str, properties: dict[str, str]) -> None:
    mode = properties.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise ForeignFilesError(what, f"it uses column mapping (delta.columnMapping.mode is {mode!r})")
    for name, value in sorted(properties.items()):
        if name.startswith("delta.constraints."):
            raise ForeignFilesError(what, f"it has a constraint ({name.removeprefix('delta.constraints.')}: {value})")
        if name in _ON and value.lower() != "false":
            raise ForeignFilesError(what, f"it asks its writers to optimize ({name} is {value})")


def _check_columns(what: str, schema: StructType, fields: dict[str, dict[str, Any]]) -> None:
    for column in schema:
        if column.name not in fields:
            _refuse_unknown(what, column.name, fields)
        _check_type(what, column.name, column.dataType.jsonValue(), fields[column.name]["type"])
    for name, field in fields.items():
        if not field["nullable"]:
            raise ForeignFilesError(what, f"its column {name!r} takes no null, and a row that waited may have one")


def _refuse_unknown(what: str, name: str, fields: dict[str, dict[str, Any]]) -> None:
    alike = [other for other in fields if other.lower() == name.lower()]
    if alike:
        raise ForeignFilesError(what, f"the column {name!r} is spelled {alike[0]!r} in the table")
    raise ConfigurationError(
        f"{what} has no column {name!r}, which the rows have: add it to the table, select it away before the throttle, "
        f"or set option('mergeSchema', True)"
    )


def _check_type(what: str, name: str, given: Any, found: Any) -> None:  # noqa: ANN401 - types in Spark's JSON
    if _bare(given) != _bare(found):
        kinds = {_kind(given), _kind(found)}
        # Spark's writer casts between some of these types.
        if len(kinds) == 1 or kinds <= _NUMBERS or kinds <= _TIMES:
            raise ForeignFilesError(what, f"the column {name!r} is {_text(given)}, and in the table {_text(found)}")
        raise ConfigurationError(
            f"{what} has the column {name!r} as {_text(found)} and the rows have it as {_text(given)}: cast it before "
            f"the throttle, or write to another table"
        )
    if given != found and _holds_no_null(found):
        raise ForeignFilesError(what, f"its column {name!r} takes no null inside, and the rows declare it differently")


def _bare(data_type: Any) -> Any:  # noqa: ANN401 - as above
    """Return a type without its nullability and metadata."""
    if not isinstance(data_type, dict):
        return data_type
    if data_type["type"] == "struct":
        return [(field["name"], _bare(field["type"])) for field in data_type["fields"]]
    return {part: _bare(value) for part, value in data_type.items() if "ontainsNull" not in part}


def _holds_no_null(data_type: Any) -> bool:  # noqa: ANN401 - as above
    if not isinstance(data_type, dict):
        return False
    if data_type["type"] == "struct":
        return any(not field["nullable"] or _holds_no_null(field["type"]) for field in data_type["fields"])
    return any(_holds_no_null(part) or (part is False) for part in data_type.values())


def _kind(data_type: Any) -> str:  # noqa: ANN401 - as above
    return str(data_type["type"] if isinstance(data_type, dict) else data_type.partition("(")[0])


def _text(data_type: Any) -> str:  # noqa: ANN401 - as above
    return data_type if isinstance(data_type, str) else json.dumps(data_type)


def _walk(fields: list[dict[str, Any]], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all fields, including those in structs, with their paths."""
    for field in fields:
        path = f"{above}{field['name']}"
        yield path, field
        inner = field["type"]
        while isinstance(inner, dict) and inner["type"] in ("array", "map"):
            inner = inner["elementType"] if inner["type"] == "array" else inner["valueType"]
        if isinstance(inner, dict):
            yield from _walk(inner["fields"], f"{path}.")


@dataclass(frozen=True, slots=True)
class FileTable:
    """A Delta table that takes files, as it was found when the query started."""

    location: str
    schema_json: str
    """Spark's schema of the rows, as JSON."""

    partition_columns: tuple[str, ...] = ()
    compression: str = "snappy"
    first_indexed: int = 32
    named_indexed: tuple[str, ...] | None = None

    @property
    def schema(self) -> StructType:
        """Spark's schema of the rows."""
        return StructType.fromJson(json.loads(self.schema_json))

    def form(self) -> FileForm:
        """Return the form of the files: the same as Spark's, with the footer entry that Spark's readers look for."""
        footer = {"org.apache.spark.version": pyspark.__version__}  # or Spark cannot tell the calendar of dates
        indexed = IndexedColumns(self.first_indexed, self.named_indexed)
        # A row that waited lacks the columns that the stream got meanwhile, whether or not they may be null there.
        schema = pa.schema([field.with_nullable(True) for field in to_arrow(self.schema)])  # noqa: FBT003 - pyarrow's
        return FileForm(schema, footer, self.partition_columns, self.compression, indexed)

    def append(self, mark: BatchMark, written: Callable[[], list[WrittenFile]]) -> None:
        """Append the files that `written` returns, unless the table already has the batch; it has its mark at any rate.

        Raises
        ------
        CheckpointMismatchError
            If the table has a different batch of that number, or a later one.
        ForeignFilesError, ConfigurationError
            If the table was changed so that the files can no longer be appended. Nothing of the batch was committed.
        """
        append_to_table(self.location, mark, self._check_as_found, written)

    def append_staged(self, mark: BatchMark, files: Sequence[FileAnswer], cut: Sequence[WrittenFile]) -> None:
        """Append a batch: the files of which all rows are admitted, and what was written of those that were cut.

        Raises
        ------
        DamagedError
            If one of the first is gone, or is not as long as it was when it was staged.
        """
        whole = [
            WrittenFile(file.name, file.size_bytes, (), file.stats)
            for file in files
            if file.is_outside and file.is_admitted_whole
        ]

        def written() -> list[WrittenFile]:
            self._check_there(whole)
            return [*whole, *cut]

        self.append(mark, written)

    def append_usage(self, directory: Directory, mark: BatchMark, report: UsageReport, manifest: Manifest) -> None:
        """Append the usage report of a batch, once."""
        from spark_throttle.status.usage_table import SHARE_SCHEMA, batch_usage  # slow to load, and rarely needed

        def write() -> list[WrittenFile]:
            files, root = file_system(self.location)
            writer = TableFileWriter(files, root, self.form(), "part-")
            has_shares = set(SHARE_SCHEMA.names) <= set(self.schema.names)
            policy = decided_policy(directory, report)
            usage = batch_usage(directory, report, mark.batch, has_shares=has_shares, manifest=manifest, policy=policy)
            for rows in usage.to_batches():
                writer.add(rows)
            return writer.finish()

        self.append(mark, write)

    def _check_there(self, staged: Sequence[WrittenFile]) -> None:
        """Refuse files that are not there as they were staged: the table would take any that a commit names.

        A directory may be one that each machine has for itself, and its files may be cut short when a machine fails. An
        object is whole as soon as it is there, for all, so a store is not asked for each.
        """
        files, root = file_system(self.location)
        if not isinstance(files, fs.LocalFileSystem):
            return
        found = files.get_file_info([f"{root.rstrip('/')}/{file.path}" for file in staged])
        for file, info in zip(staged, found, strict=True):
            if info.size != file.size_bytes:
                problem = "it is gone" if info.size is None else f"it has {info.size} bytes, and had {file.size_bytes}"
                raise DamagedError(f"the staged file {file.path} of {self.location}", problem, "restart the query")

    def _check_as_found(self, table: DeltaTable) -> None:
        """Refuse a table that can no longer take the files as they are written since the query started."""
        found = tuple(table.metadata().partition_columns)
        if found != self.partition_columns:
            raise ConfigurationError(
                f"{self.location} was partitioned by {list(self.partition_columns)} when the query started, and is now "
                f"by {list(found)}: restart the query, without partitionBy or with what the table has"
            )
        check_table(table, self.location, self.schema, self.partition_columns)
