"""The columns of a source that decide, and the conditions on its rows, if no expression takes Spark to compute.

Conditions of ``where`` that take no Spark are comparisons of texts or of whole numbers (`deciding_values`), ``IS
NULL``, ``IN`` and ``BETWEEN``, and those joined by ``AND``, ``OR`` and ``NOT``, by SQL's logic of three values. All
others take Spark. Spark counts the rows that its own evaluation keeps before a batch is written
(`sinks.source_reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
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
from spark_throttle.spark.references.deciding_values import (
    MOST_TEXT,
    ArrowExpression,
    Kind,
    arrow_expression,
    kind_of,
    translated,
)

_COMPARISONS: Final[Mapping[str, Callable[..., Any]]] = {
    "equal": pc.equal,
    "not_equal": pc.not_equal,
    "less": pc.less,
    "less_equal": pc.less_equal,
    "greater": pc.greater,
    "greater_equal": pc.greater_equal,
}
_JOINTS: Final[Mapping[str, Callable[..., Any]]] = {"and": pc.and_kleene, "or": pc.or_kleene}

_OPERATIONS: Final[Mapping[str, str]] = {
    "EQ": "equal", "NEQ": "not_equal", "LT": "less", "LTE": "less_equal", "GT": "greater", "GTE": "greater_equal",
}  # fmt: skip
"""The operation of each of sqlglot's comparisons."""

_NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
_ORDERED: Final = (
    *_NUMBERS, BooleanType, DateType, DecimalType, DoubleType, FloatType, TimestampNTZType, TimestampType,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowCondition:
    """A condition: an operation, and the conditions or values that it takes."""

    operation: str
    of: tuple[RowCondition | ArrowExpression, ...]

    def columns(self) -> set[str]:
        """Return the columns from which it is computed."""
        return set().union(*(part.columns() for part in self.of))

    def renamed(self, names: Mapping[str, str]) -> RowCondition:
        """Return the condition over columns of other names."""
        return RowCondition(self.operation, tuple(part.renamed(names) for part in self.of))

    def keeps(self, table: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return for every row whether it is kept; a row for which the condition is unknown is not.

        Examples
        --------
        >>> rows = pa.table({"n": [1, 2, None]})
        >>> row_condition("n > 1 OR n IS NULL", {"n": "number"}).keeps(rows).to_pylist()
        [False, True, True]
        >>> row_condition("NOT n > 1", {"n": "number"}).keeps(rows).to_pylist()
        [True, False, False]
        """
        found = self.values(table)
        if isinstance(found, pa.Scalar):  # a comparison of constants
            return pa.repeat(pa.scalar(bool(found.as_py())), table.num_rows)
        return pc.fill_null(found, pa.scalar(value=False))

    def values(self, table: pa.Table) -> Any:  # noqa: ANN401 - arrays and scalars of pyarrow
        """Return its truth for every row; null where it is unknown."""
        parts = [part.values(table) for part in self.of]
        if self.operation == "not":
            return pc.invert(*parts)
        if self.operation == "is_null":
            return pc.is_null(*parts)
        if self.operation in _JOINTS:
            return reduce(_JOINTS[self.operation], parts)
        return _COMPARISONS[self.operation](*parts)

    def to_fields(self) -> list[Any]:
        """Return the fields that `from_fields` takes."""
        return [self.operation, [part.to_fields() for part in self.of]]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> RowCondition:
        """Return the condition of the fields that `to_fields` returned."""
        operation, parts = fields
        return cls(operation, tuple(cls._part(part) for part in parts))

    @classmethod
    def _part(cls, fields: list[Any]) -> RowCondition | ArrowExpression:
        # An expression has three fields: an operation, a name, and what it takes.
        return cls.from_fields(fields) if len(fields) == 2 else ArrowExpression.from_fields(fields)


def both(first: RowCondition | None, second: RowCondition | None) -> RowCondition | None:
    """Return the condition that two conditions make together; `None` keeps every row."""
    if first is None or second is None:
        return first or second
    return RowCondition("and", (first, second))


def row_condition(text: str, kinds: Mapping[str, Kind]) -> RowCondition | None:
    """Return the condition that a SQL text describes; `None` if it takes Spark to compute it.

    Parameters
    ----------
    kinds
        The kind of each column of the source.

    Examples
    --------
    >>> kinds = {"tenant": "text", "size": "number"}
    >>> row_condition("tenant <> 'test' AND size BETWEEN 1 AND 9", kinds).columns() == {"tenant", "size"}
    True
    >>> row_condition("tenant LIKE 'a%'", kinds) is None, row_condition("size > '9'", kinds) is None
    (True, True)
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > MOST_TEXT:
        return None
    try:
        return _condition(sqlglot.parse_one(text, read="spark"), kinds)
    except (SqlglotError, RecursionError):
        return None


def _condition(node: Any, kinds: Mapping[str, Kind]) -> RowCondition | None:  # noqa: ANN401 - sqlglot's nodes
    """Return the condition of a node of sqlglot; `None` if it is not one of the operations above."""
    found = None
    match type(node).__name__:
        case "Paren":
            found = _condition(node.this, kinds)
        case "And" | "Or" as name:
            found = _joint(name.lower(), [_condition(node.this, kinds), _condition(node.expression, kinds)])
        case "Not":
            found = _joint("not", [_condition(node.this, kinds)])
        case "Is":
            value = translated(node.this, kinds)
            if value is not None and type(node.expression).__name__ == "Null":
                found = RowCondition("is_null", (value,))
        case "Between" if not node.args.get("symmetric"):
            bounds = (("greater_equal", node.args["low"]), ("less_equal", node.args["high"]))
            found = _joint("and", [_comparison(operation, node.this, bound, kinds) for operation, bound in bounds])
        case "In" if node.expressions:
            found = _joint("or", [_comparison("equal", node.this, each, kinds) for each in node.expressions])
        case name if name in _OPERATIONS:
            found = _comparison(_OPERATIONS[name], node.this, node.expression, kinds)
    return found


def _joint(operation: str, parts: list[RowCondition | None]) -> RowCondition | None:
    known = tuple(part for part in parts if part is not None)
    return RowCondition(operation, known) if len(known) == len(parts) else None


def _comparison(operation: str, left: Any, right: Any, kinds: Mapping[str, Kind]) -> RowCondition | None:  # noqa: ANN401
    first, second = translated(left, kinds), translated(right, kinds)
    if first is None or second is None:
        return None
    kind = kind_of(first, kinds)
    if kind not in ("text", "number") or kind_of(second, kinds) != kind:
        return None  # Spark would convert one of them, or orders them by a rule of its own
    return RowCondition(operation, (first, second))


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
