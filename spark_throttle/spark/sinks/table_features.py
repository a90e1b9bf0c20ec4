"""Whether the native writer may append to a Delta table: what the table's protocol, properties and columns ask of it.

The `deltalake` package refuses some features by itself and writes past others, so that a table could be left with
rows that break its constraints or that Spark cannot see. So the table is asked here, when a query starts and again
before every commit, and whatever this writer does not know to be right is left to Spark's.

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

from spark_throttle.errors import ConfigurationError, NativeWriterError

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
"""Of tables that list no features: appends, invariants, constraints, change data feed and generated columns."""

_FEATURES: Final = frozenset({
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "deletionVectors", "timestampNtz",
})  # fmt: skip
"""Those that ask nothing of an append, or whose use is seen in the properties and the columns."""

_COLUMN_RULES: Final = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
    "delta.typeChanges": "was widened",
    "CURRENT_DEFAULT": "has a default",
    "__CHAR_VARCHAR_TYPE_STRING": "has a bounded length",
    "__COLLATIONS": "has a collation",
}
_ON: Final = {"delta.autoOptimize.optimizeWrite", "delta.autoOptimize.autoCompact"}
"""Properties that ask more of a writer than rows."""

_NUMBERS: Final = {"byte", "short", "integer", "long", "float", "double", "decimal"}
_TIMES: Final = {"date", "timestamp", "timestamp_ntz"}


def check_types(what: str, schema: StructType) -> None:
    """Refuse rows of types that the native writer does not write as Spark would.

    Raises
    ------
    NativeWriterError
        For intervals, variants, shapes, collated and bounded strings.
    """
    for field in schema:
        if not _is_known(field.dataType):
            raise NativeWriterError(what, f"the column {field.name!r} is {field.dataType.simpleString()}")


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
    """Refuse a table that rows of `schema` cannot be appended to without Spark.

    Parameters
    ----------
    partition_columns
        What the caller says that the table is partitioned by; empty for whatever it is.

    Raises
    ------
    NativeWriterError
        If it asks for what only Spark's writer does.
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
                raise NativeWriterError(what, f"its column {path!r} {meaning}")
    types = {field["name"]: field["type"] for field in fields}
    odd = [name for name in found_partitions if types[name] not in _PARTITION_TYPES]
    if odd:
        raise NativeWriterError(what, f"it is partitioned by {odd[0]!r}, which is {types[odd[0]]}")
    if set(schema.names) <= set(found_partitions):
        raise NativeWriterError(what, "the rows have no column beside those it is partitioned by")


def _check_protocol(table: DeltaTable, what: str) -> None:
    protocol = table.protocol()
    features = protocol.writer_features
    if features is None:
        if protocol.min_writer_version > _NEWEST_WRITER_VERSION:
            raise NativeWriterError(what, f"it needs a writer of version {protocol.min_writer_version}")
        return
    unknown = sorted({*features, *(protocol.reader_features or ())} - _FEATURES)
    if unknown:
        raise NativeWriterError(what, f"it has the table feature {', '.join(unknown)}")


def _check_properties(what: str, properties: dict[str, str]) -> None:
    mode = properties.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise NativeWriterError(what, f"it maps its columns (delta.columnMapping.mode is {mode!r})")
    for name, value in sorted(properties.items()):
        if name.startswith("delta.constraints."):
            raise NativeWriterError(what, f"it has a constraint ({name.removeprefix('delta.constraints.')}: {value})")
        if name in _ON and value.lower() != "false":
            raise NativeWriterError(what, f"it asks its writers to optimize ({name} is {value})")


def _check_columns(what: str, schema: StructType, fields: dict[str, dict[str, Any]]) -> None:
    for column in schema:
        if column.name not in fields:
            _refuse_unknown(what, column.name, fields)
        _check_type(what, column.name, column.dataType.jsonValue(), fields[column.name]["type"])
    given = {column.name: column.nullable for column in schema}
    for name, field in fields.items():
        if not field["nullable"] and given.get(name, True):
            raise NativeWriterError(what, f"its column {name!r} takes no null and the rows may hold one")


def _refuse_unknown(what: str, name: str, fields: dict[str, dict[str, Any]]) -> None:
    alike = [other for other in fields if other.lower() == name.lower()]
    if alike:
        raise NativeWriterError(what, f"the column {name!r} is written {alike[0]!r} there")
    raise ConfigurationError(
        f"{what} has no column {name!r}, which the rows have: add it to the table, select it away before the throttle, "
        f"or set option('mergeSchema', True)"
    )


def _check_type(what: str, name: str, given: Any, found: Any) -> None:  # noqa: ANN401 - types in Spark's JSON
    if _bare(given) != _bare(found):
        kinds = {_kind(given), _kind(found)}
        # Spark casts some of these.
        if len(kinds) == 1 or kinds <= _NUMBERS or kinds <= _TIMES:
            raise NativeWriterError(what, f"the column {name!r} is {_text(given)} and the table's is {_text(found)}")
        raise ConfigurationError(
            f"{what} has the column {name!r} as {_text(found)} and the rows have it as {_text(given)}: cast it before "
            f"the throttle, or write to another table"
        )
    if given != found and _holds_no_null(found):
        raise NativeWriterError(what, f"its column {name!r} takes no null inside, or is otherwise declared")


def _bare(data_type: Any) -> Any:  # noqa: ANN401 - as above
    """Return a type without what it says of nulls and without metadata."""
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
    """Yield all fields, those in structs too, with their paths."""
    for field in fields:
        path = f"{above}{field['name']}"
        yield path, field
        inner = field["type"]
        while isinstance(inner, dict) and inner["type"] in ("array", "map"):
            inner = inner["elementType"] if inner["type"] == "array" else inner["valueType"]
        if isinstance(inner, dict):
            yield from _walk(inner["fields"], f"{path}.")
