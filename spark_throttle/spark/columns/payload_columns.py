"""The user's columns and expressions: converted to the form in which rows are staged and back, and as text.

The text is the query's definition. Spark prints an expression in the name of the column that it selects. On Spark
Connect the server chooses that name, so the text is the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    DoubleType,
    FloatType,
    GeographyType,
    GeometryType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from spark_throttle.checkpoint.definition import Definition, digest
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.rows.digest import HelperColumns
from spark_throttle.spark.rows.frames import (
    HELPER_PREFIX,
    IDENTITY,
    NAMESPACE,
    ORDER_PREFIX,
    SIZE,
    THROTTLE,
    TIE,
    UNITS,
)
from spark_throttle.spark.rows.identities import check_identity, identity_column
from spark_throttle.spark.rows.row_digests import VERSION

ColumnLike = Column | str

SOURCE_ORDERS: Final[Mapping[frozenset[str], tuple[str, ...]]] = {
    frozenset(("topic", "partition", "offset")): ("partition", "offset"),  # Kafka
}
"""By the columns that identify a source's stream: those that order its rows if the user gives no order."""

_INTERVALS = YearMonthIntervalType | CalendarIntervalType
_SHAPES = GeometryType | GeographyType
_UNHASHED = MapType | VariantType
_UNORDERED = ArrayType | MapType | StructType | VariantType | NullType | _INTERVALS | _SHAPES

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LENGTH = re.compile(
    r"\s*(?:length|len|char_length|character_length|(?P<octet>octet_length))\s*\(\s*(?P<of>\w+)\s*\)\s*", re.IGNORECASE
)
_CONSTANT = re.compile(r"true|false|null|user|session_user|(current|local)[a-z_]*", re.IGNORECASE)

_SETTINGS: Final = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings of the session on which casts, times in JSON and arithmetic depend."""

_NAMED: Final = re.compile(r" AS \w+$")

_JSON_LENGTH: Final = "the length of the row as JSON"


@dataclass(frozen=True, slots=True)
class RowExpressions:
    """What of a row decides; `throttle.Throttle` documents each."""

    namespace: ColumnLike
    size: ColumnLike | None = None
    order_by: Sequence[ColumnLike] | None = None
    units: ColumnLike | None = None
    reservation: ColumnLike | None = None


def as_column(value: ColumnLike) -> Column:
    """Return the column that a SQL expression describes, or the given column."""
    return F.expr(value) if isinstance(value, str) else value


def check_columns(schema: StructType) -> None:
    """Refuse columns that cannot be staged.

    Raises
    ------
    ConfigurationError
        If two columns have the same name, a name is reserved by the throttle, or a type cannot be carried.
    """
    names = [name.lower() for name in schema.names]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigurationError(f"the stream has several columns named {doubled}; rename all but one")
    taken = [name for name in schema.names if name.lower().startswith(HELPER_PREFIX) or name.lower() == THROTTLE]
    if taken:
        raise ConfigurationError(f"the columns {taken} have names that the throttle uses; rename them")
    for field in schema:
        nested = isinstance(field.dataType, ArrayType | MapType | StructType)
        if isinstance(field.dataType, CalendarIntervalType) or (nested and _holds(field.dataType, _INTERVALS)):
            raise ConfigurationError(
                f"column {field.name!r} is {field.dataType.simpleString()}, an interval that Arrow does not carry: "
                f"cast its months to int before the throttle and back after it"
            )
        if nested and _holds(field.dataType, _SHAPES):
            raise ConfigurationError(
                f"column {field.name!r} is {field.dataType.simpleString()}, and Spark cannot hash a shape inside "
                f"another type: move the shape to a column of its own, or use its st_asbinary"
            )


def check_amount(what: Literal["size", "units"], amount: StructField) -> None:
    """Refuse a size, or units, that are no number: as text, such as a payload itself, they would reject every row.

    Raises
    ------
    ConfigurationError
        If it is not of a type of numbers.
    """
    kind = amount.dataType
    if not isinstance(kind, NumericType):
        measured = what == "size" and isinstance(kind, StringType | BinaryType)
        remedy = "octet_length(…) of it for its length in bytes" if measured else "an expression that is one"
        are, of = ("is", "bytes") if what == "size" else ("are", "units")
        raise ConfigurationError(f"{what} {are} {kind.simpleString()}, and no number of {of}: give {remedy}")


def _check_order(orders: StructType) -> None:
    for place, field in enumerate(orders):
        if isinstance(field.dataType, _UNORDERED):
            raise ConfigurationError(
                f"order_by[{place}] is {field.dataType.simpleString()}, which has no order: give a number, a time, a "
                f"string or a binary"
            )


def _holds(data_type: DataType, kinds: type | UnionType) -> bool:
    """Return whether a type is one of `kinds` or contains one of them."""
    if isinstance(data_type, StructType):
        return any(_holds(field.dataType, kinds) for field in data_type)
    if isinstance(data_type, ArrayType):
        return _holds(data_type.elementType, kinds)
    if isinstance(data_type, MapType):
        return issubclass(MapType, kinds) or _holds(data_type.keyType, kinds) or _holds(data_type.valueType, kinds)
    return isinstance(data_type, kinds)


def carried_schema(schema: StructType) -> StructType:
    """Return the schema in which rows travel: a year-month interval is carried as a number of months."""
    return StructType(
        [
            StructField(f.name, IntegerType(), f.nullable, f.metadata)
            if isinstance(f.dataType, YearMonthIntervalType)
            else f
            for f in schema
        ]
    )


def to_carried(schema: StructType) -> list[Column]:
    """Return the user's columns converted to `carried_schema`."""
    columns = []
    for field in schema:
        column = F.col(quoted(field.name))
        if isinstance(field.dataType, YearMonthIntervalType):
            # Only an interval of a single unit can be cast to a number.
            column = column.cast("interval month").cast("int").alias(field.name)
        columns.append(column)
    return columns


def _from_carried(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return rows converted back from `carried_schema` to the user's types; columns that were added follow."""
    if not any(isinstance(field.dataType, YearMonthIntervalType) for field in schema):
        return frame
    behind = [F.col(quoted(name)) for name in frame.columns if name not in schema.names]
    columns = []
    for field in schema:
        column = F.col(quoted(field.name))
        if isinstance(field.dataType, YearMonthIntervalType):
            column = F.make_ym_interval(F.lit(0), column).cast(field.dataType).alias(field.name)
        columns.append(column)
    return frame.select(*columns, *behind)


def staged_schema(schema: StructType) -> StructType:
    """Return the schema in which rows lie in files: `carried_schema` without the columns that hold nothing.

    All columns are nullable: a row that waited lacks those that the stream got meanwhile. A shape is what Arrow carries
    of it: its reference system, and its well-known binary.
    """
    shape = StructType().add("srid", IntegerType()).add("wkb", BinaryType())
    return StructType(
        [
            StructField(field.name, shape, nullable=True)
            if isinstance(field.dataType, _SHAPES)
            else StructField(field.name, field.dataType, nullable=True, metadata=field.metadata)
            for field in carried_schema(schema)
            if not isinstance(field.dataType, NullType)
        ]
    )


def from_staged(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return rows converted back from `staged_schema` to the user's types; columns that were added follow."""
    if any(isinstance(field.dataType, NullType | _SHAPES) for field in schema):
        behind = [F.col(quoted(name)) for name in frame.columns if name not in schema.names]
        frame = frame.select(*map(_unstaged, schema), *behind)
    return _from_carried(frame, schema)


def _unstaged(field: StructField) -> Column:
    name, kind = quoted(field.name), field.dataType
    if isinstance(kind, NullType):
        return F.lit(None).alias(field.name)
    if not isinstance(kind, _SHAPES):
        return F.col(name)
    made = F.st_geomfromwkb if isinstance(kind, GeometryType) else F.st_geogfromwkb
    # Where all shapes have one system, the type says it, and so must a constant; else the type is of any.
    system = F.lit(kind.srid) if kind.srid >= 0 else F.col(f"{name}.srid")
    return F.st_setsrid(made(F.col(f"{name}.wkb")), system).alias(field.name)


def with_helpers(
    events: DataFrame,
    given: RowExpressions,
    derived: Collection[str] = (),
    volatile: Collection[str] = (),
) -> DataFrame:
    """Return the events in `carried_schema`, with the helper columns that decisions need, except those in `derived`.

    Without a `size` expression the size of a row is the length of its JSON form, a stable stand-in for its payload. A
    size that cannot be cast to a 64-bit integer counts as missing, whether or not the session's casts would fail on it,
    and units too. The order defaults to the source's own (`SOURCE_ORDERS`). Columns in `volatile`
    (`columns.stream_plan`) count for neither size nor hash: rows that differ only in them are interchangeable.
    """
    schema = events.schema
    check_columns(schema)
    name = as_column(given.namespace).cast("string")
    orders = {_order_name(i): as_column(c) for i, c in enumerate(_order(schema, given.order_by))}
    _check_order(events.select(*(column.alias(helper) for helper, column in orders.items())).schema)
    length, tie = row_columns(schema, given.size, volatile)
    helpers = {NAMESPACE: name, SIZE: length.try_cast("bigint"), TIE: tie, **orders}
    if given.units is not None:
        helpers[UNITS] = as_column(given.units).try_cast("bigint")
    if given.reservation is not None:
        identity = as_column(given.reservation)
        helpers[IDENTITY] = identity_column(identity, events.select(identity).schema[0].dataType)
    sent = [column.alias(helper) for helper, column in helpers.items() if helper not in derived]
    return events.select(*to_carried(schema), *sent)


def row_columns(schema: StructType, size: ColumnLike | None, volatile: Collection[str]) -> tuple[Column, Column]:
    """Return the expressions of a row's size and of its hash."""
    lasting = StructType([field for field in schema if field.name not in volatile])
    if size is not None:
        return as_column(size), _hash(lasting)
    return F.octet_length(F.to_json(F.struct(*map(_written, lasting or schema)))), _hash(lasting)


def deciding_columns(
    schema: StructType,
    given: RowExpressions,
) -> dict[str, Column]:
    """Return the user's expressions that decide batches, by the name of the argument."""
    others = {"size": given.size, "units": given.units, "reservation": given.reservation}
    found = {"namespace": given.namespace} | {what: each for what, each in others.items() if each is not None}
    found |= {f"order_by[{place}]": column for place, column in enumerate(_order(schema, given.order_by))}
    return {name: as_column(column) for name, column in found.items()}


def derived_columns(
    schema: StructType,
    given: RowExpressions,
) -> HelperColumns:
    """Return the helper columns that need not be sent: those that copy a column of the user, or measure its length.

    Examples
    --------
    >>> schema = StructType().add("ns", "string").add("id", "integer").add("value", "binary")
    >>> columns = derived_columns(schema, RowExpressions("ns", "length(value)", ["id", "length(ns)"]))
    >>> columns.same
    {'__throttle_namespace': 'ns', '__throttle_order_000': 'id'}
    >>> columns.characters_of, columns.bytes_of
    ('value', None)
    """
    told = {NAMESPACE: given.namespace, SIZE: given.size, UNITS: given.units}
    told |= {_order_name(i): c for i, c in enumerate(_order(schema, given.order_by))}
    carried = {NAMESPACE: StringType, SIZE: LongType, UNITS: LongType}
    types = {field.name: field.dataType for field in schema}
    same = {
        helper: name
        for helper, name in told.items()
        if isinstance(name, str) and _is_name(name) and isinstance(types.get(name), carried.get(helper, DataType))
    }
    length = _LENGTH.fullmatch(given.size) if isinstance(given.size, str) else None
    if length is None or not _is_name(length["of"]) or type(types.get(length["of"])) not in (StringType, BinaryType):
        return HelperColumns(same)
    return (
        HelperColumns(same, bytes_of=length["of"])
        if length["octet"]
        else HelperColumns(same, characters_of=length["of"])
    )


def half_hashed_columns(schema: StructType, volatile: Collection[str]) -> tuple[str, ...]:
    """Return the columns of which the hash of `with_helpers` does not see everything.

    Examples
    --------
    >>> schema = StructType().add("ns", "string").add("tags", ArrayType(StringType())).add("at", "timestamp")
    >>> half_hashed_columns(schema.add("name", StringType("UNICODE_CI")), ())
    ('tags', 'name')
    """
    return tuple(field.name for field in schema if field.name not in volatile and _is_half_hashed(field.dataType))


def _is_half_hashed(data_type: DataType) -> bool:
    is_collated = isinstance(data_type, StringType) and data_type != StringType()
    return is_collated or isinstance(data_type, ArrayType | MapType | StructType | VariantType)


def _is_name(text: str) -> bool:
    """Return whether SQL reads a text as the name of a column, given that such a column exists."""
    return _NAME.fullmatch(text) is not None and _CONSTANT.fullmatch(text) is None


def _order(schema: StructType, order_by: Sequence[ColumnLike] | None) -> Sequence[ColumnLike]:
    if order_by is not None:
        return order_by
    return next((order for marks, order in SOURCE_ORDERS.items() if marks <= set(schema.names)), ())


def _order_name(place: int) -> str:
    return f"{ORDER_PREFIX}{place:03d}"


def _hash(schema: StructType) -> Column:
    """Return a hash of the row's columns except those that Spark cannot hash.

    It covers flat values completely. Inside arrays and structs it ignores nulls and the sign of zero, and it sees
    collated text as its collation key. `frames.arranged` tells rows with the same hash apart.
    """
    parts = []
    for field in schema:
        if _holds(field.dataType, _UNHASHED):
            continue
        column = _written(field)
        if field.nullable:
            parts.append(column.isNull())  # Spark's hash skips nulls: (null, 1) would hash like (1, null)
        if isinstance(field.dataType, FloatType | DoubleType):
            parts.append((column == 0) & column.cast("string").startswith("-"))  # Spark hashes -0.0 like 0.0
        parts.append(column)
    return F.xxhash64(*parts) if parts else F.lit(0).cast("bigint")


def _written(field: StructField) -> Column:
    """Return a column in a form that Spark can hash and write as JSON: a shape becomes binary."""
    column = F.col(quoted(field.name))
    return F.st_asbinary(column).alias(field.name) if isinstance(field.dataType, _SHAPES) else column


def quoted(name: str) -> str:
    """Return a column's name as Spark's expressions take it, whatever characters it has.

    Examples
    --------
    >>> quoted("a.b`c")
    '`a.b``c`'
    """
    return f"`{name.replace('`', '``')}`"


def stream_definition(
    events: DataFrame,
    given: RowExpressions,
    volatile: Collection[str],
    targets: Mapping[str, str],
    partition_columns: Sequence[str] = (),
) -> Definition:
    """Return the definition of a query over a stream.

    The sink's partition columns are part of it: a row for which they give no folder is rejected.
    """
    schema, session = events.schema, events.sparkSession
    deciding = deciding_columns(schema, given)
    length, tie = row_columns(schema, given.size, volatile)
    check_amount("size", events.select(length).schema[0])
    if given.units is not None:
        check_amount("units", events.select(as_column(given.units)).schema[0])
    if given.reservation is not None:
        check_identity("reservation", events.select(as_column(given.reservation)).schema[0].dataType)
    *texts, length_text, tie_text = printed(events, [*deciding.values(), length, tie])
    expressions = dict(zip(deciding, texts, strict=True))
    columns = tuple((field.name, field.dataType.simpleString()) for field in schema)
    if given.size is None:
        expressions["size"] = _JSON_LENGTH
        tie_text = f"{length_text}, {tie_text}"
    if partition_columns:
        expressions["partitionBy"] = ", ".join(partition_columns)
    settings = {name: str(session.conf.get(name, None)) for name in _SETTINGS}
    ties = digest(f"{tie_text}, digests {VERSION}")
    return Definition(expressions, columns, ties, settings, dict(targets))


def printed(events: DataFrame, expressions: Sequence[Column]) -> list[str]:
    """Return expressions as Spark prints them, without their aliases."""
    names = events.select(*map(F.isnull, expressions)).columns
    return [_NAMED.sub("", name.removeprefix("(").removesuffix(" IS NULL)")) for name in names]
