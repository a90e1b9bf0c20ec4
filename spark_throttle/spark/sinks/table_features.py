"""Whether a Delta table takes files that Spark did not write, given the table's protocol, properties and columns.

The `deltalake` package refuses some features itself and ignores others, which could leave a table with rows that break
its constraints or that Spark cannot see. So this module checks the table when a query starts, and again before every
commit. Every table that is not known to take them safely is left to Spark's writer.

Source: "Writer Requirements" of the Delta protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

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

from spark_throttle.errors import ConfigurationError, ForeignFilesError

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
_PARTITION_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")

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
    odd = [name for name in found_partitions if types[name] not in _PARTITION_TYPES]
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
