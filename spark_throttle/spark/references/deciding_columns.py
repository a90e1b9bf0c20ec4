"""Which columns of a source decide, and the expressions over them, if no expression takes Spark to compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
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
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_throttle.spark.columns.payload_columns import ColumnLike
from spark_throttle.spark.references.deciding_values import ArrowExpression, Kind, arrow_expression, kind_of
from spark_throttle.spark.references.row_condition import RowCondition

_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
_ORDERED: Final = (
    *_NUMBERS, BooleanType, DateType, DecimalType, DoubleType, FloatType, TimestampNTZType, TimestampType,
)  # fmt: skip


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


def deciding_columns_of(
    schema: StructType,
    known: Mapping[str, str],
    namespace: ColumnLike,
    size: ColumnLike | None,
    order_by: Sequence[ColumnLike] | None,
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
    if size is None:
        return "size is not given, and the length of a row as JSON takes the whole row"
    types = {field.name: field.dataType for field in schema}
    kinds = kinds_of(schema, known)
    found = []
    order = list(order_by or ())
    for what, given in (
        ("namespace", namespace),
        ("size", size),
        *((f"order_by[{i}]", c) for i, c in enumerate(order)),
    ):
        if not isinstance(given, str):
            return (
                f"{what} is a Column; a text such as 'size' or \"concat(tenant, '/', topic)\" can be read without Spark"
            )
        expression = arrow_expression(given, kinds)
        if expression is None:
            return f"{what} is {given!r}, which takes Spark to compute"
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
    arrow = to_arrow_schema(read, timezone="UTC")
    read_types = {field.name: field.type for field in arrow}
    return DecidingColumns(found[0], found[1], tuple(found[2:]), read_types, checked, condition)


def kinds_of(schema: StructType, known: Mapping[str, str]) -> dict[str, Kind]:
    """Return the kind of each column of a stream that is a column of its source."""
    types = {field.name: field.dataType for field in schema}
    return {name: _kind(types[of]) for name, of in known.items()}


def _kind(data_type: DataType) -> Kind:
    if data_type == StringType():
        return "text"
    if isinstance(data_type, BinaryType):
        return "binary"
    return "number" if isinstance(data_type, _NUMBERS) else "other"


def _problem(
    what: str, expression: ArrowExpression, kinds: Mapping[str, Kind], types: Mapping[str, DataType]
) -> str | None:
    kind = kind_of(expression, kinds)
    if what == "namespace" and kind != "text":
        return f"namespace is not a text ({kind})"
    if what == "size" and kind != "number":
        return f"size is not a whole number ({kind})"
    if kind == "other" and not isinstance(types[str(expression.name)], _ORDERED):
        return f"{what} is {types[str(expression.name)].simpleString()}, whose order is Spark's"
    return None
