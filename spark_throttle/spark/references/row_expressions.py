"""Expressions of a row's columns, and conditions on them, that take no Spark to compute; their values equal Spark's.

A query decides on references only if its namespace, size and order are columns of the source, or simple expressions of
them: ``concat`` or ``||``, ``length``, ``octet_length``, and ``coalesce`` with a constant. All others need Spark, so
their rows are staged. sqlglot reads the expressions in Spark's dialect.

Conditions of ``where`` that take no Spark are comparisons of texts or of whole numbers, ``IS NULL``, ``IN`` and
``BETWEEN``, and those joined by ``AND``, ``OR`` and ``NOT``, by SQL's logic of three values.

The length in characters of text that is not valid UTF-8 is Spark's too. Spark counts the rows that its own evaluation
keeps, and what a batch admits, before a batch is written (`sinks.source_reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

_Read = TypeVar("_Read")

Operation = Literal["column", "constant", "concat", "characters", "bytes", "coalesce"]
Kind = Literal["text", "binary", "number", "other"]

_MOST_TEXT: Final = 10_000
"""Longest text of an expression, or of a condition, that is read."""

_MOST_NUMBER: Final = (1 << 63) - 1
"""Spark takes a greater number for a decimal."""

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

NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class ArrowExpression:
    """An expression of a file's columns: an operation, and what it takes."""

    operation: Operation
    name: str | int = ""
    """The name of the column, or the constant."""

    of: tuple[ArrowExpression, ...] = ()

    def columns(self) -> set[str]:
        """Return the columns from which it is computed."""
        if self.operation == "column":
            return {str(self.name)}
        return set().union(*(part.columns() for part in self.of))

    def renamed(self, names: Mapping[str, str]) -> ArrowExpression:
        """Return the expression over columns of other names."""
        name = names[str(self.name)] if self.operation == "column" else self.name
        return ArrowExpression(self.operation, name, tuple(part.renamed(names) for part in self.of))

    def values(self, table: pa.Table) -> pa.ChunkedArray | pa.Array | pa.Scalar:
        """Return its value for every row.

        Examples
        --------
        >>> rows = pa.table({"tenant": ["a", None], "topic": ["x", "y"]})
        >>> tenant, slash, topic = column("tenant"), ArrowExpression("constant", "/"), column("topic")
        >>> ArrowExpression("concat", of=(tenant, slash, topic)).values(rows).to_pylist()
        ['a/x', None]
        """
        if self.operation == "column":
            return table.column(str(self.name))
        if self.operation == "constant":
            return pa.scalar(self.name, pa.int64() if isinstance(self.name, int) else pa.string())
        parts = [part.values(table) for part in self.of]
        if self.operation == "concat":
            return pc.binary_join_element_wise(*map(_plain, parts), "")
        if self.operation == "coalesce":
            return pc.coalesce(*map(_plain, parts))
        (only,) = parts
        return _length(_plain(only), in_bytes=self.operation == "bytes")

    def to_fields(self) -> list[Any]:
        """Return the fields that `from_fields` takes."""
        return [self.operation, self.name, [part.to_fields() for part in self.of]]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> ArrowExpression:
        """Return the expression of the fields that `to_fields` returned."""
        operation, name, parts = fields
        return cls(operation, name, tuple(cls.from_fields(part) for part in parts))


def column(name: str) -> ArrowExpression:
    """Return the expression of a column."""
    return ArrowExpression("column", name)


def _plain(values: Any) -> Any:  # noqa: ANN401 - arrays and scalars of pyarrow
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _length(values: pa.ChunkedArray, *, in_bytes: bool) -> pa.ChunkedArray:
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    found = _characters(values) if is_text and not in_bytes else pc.binary_length(values)
    return found.cast(pa.int64())


def _characters(values: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return the number of characters of texts, as Spark counts them."""
    content = values.cast(pa.large_binary())
    try:
        content.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else _skipped(each) for each in content.to_pylist()], pa.int64())
    return pc.utf8_length(values)


def _skipped(text: bytes) -> int:
    """Return the number of characters of a text: Spark skips as many bytes as each first byte announces.

    Examples
    --------
    >>> _skipped("aé€😀".encode()), _skipped(bytes([0xC3, 0x28, 0xFF, 0xFF])), _skipped(bytes([0xE9]))
    (4, 3, 1)
    """
    at = found = 0
    while at < len(text):
        first = text[at]
        at += 4 if 0xF0 <= first <= 0xF4 else 3 if 0xE0 <= first <= 0xEF else 2 if 0xC2 <= first <= 0xDF else 1
        found += 1
    return found


def arrow_expression(text: str, kinds: Mapping[str, Kind]) -> ArrowExpression | None:
    """Return the expression that a SQL text describes; `None` if it takes Spark to compute it.

    Parameters
    ----------
    kinds
        The kind of each column of the source. A name that fits several columns, or none, takes Spark, which says so.

    Examples
    --------
    >>> kinds = {"tenant": "text", "value": "binary"}
    >>> arrow_expression("tenant || '/' || 'x'", kinds).columns()
    {'tenant'}
    >>> arrow_expression("coalesce(octet_length(VALUE), 0)", kinds).of[1].name
    0
    >>> arrow_expression("upper(tenant)", kinds) is None
    True
    """
    return _read(text, lambda node: translated(node, kinds))


def _read(text: str, translate: Callable[[Any], _Read | None]) -> _Read | None:
    """Return what a SQL text is translated to; `None` if it is no such text, or too long or deep."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > _MOST_TEXT:
        return None
    try:
        return translate(sqlglot.parse_one(text, read="spark"))
    except (SqlglotError, RecursionError):
        return None


def kind_of(expression: ArrowExpression, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of an expression's values."""
    match expression.operation:
        case "column":
            return kinds[str(expression.name)]
        case "constant":
            return "number" if isinstance(expression.name, int) else "text"
        case "concat":
            return "text"
        case "coalesce":
            return kind_of(expression.of[0], kinds)
        case "characters" | "bytes":
            return "number"


def translated(node: Any, kinds: Mapping[str, Kind]) -> ArrowExpression | None:  # noqa: ANN401 - sqlglot's nodes
    """Return the expression of a node of sqlglot; `None` if it is not one of the operations above."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        return translated(node.this, kinds)
    if isinstance(node, exp.Column):
        return _column(node, kinds)
    if isinstance(node, exp.Literal):
        return _constant(node)
    operation, nodes = _operation(node)
    if operation is None:
        return None
    parts = [translated(part, kinds) for part in nodes]
    of = tuple(part for part in parts if part is not None)
    if len(of) < len(parts) or not _fits(operation, [kind_of(part, kinds) for part in of]):
        return None
    return ArrowExpression(operation, of=of)


def _operation(node: Any) -> tuple[Operation | None, list[Any]]:  # noqa: ANN401 - sqlglot's nodes
    from sqlglot import exp

    if type(node) is exp.Concat:  # `ConcatWs`, which joins otherwise, is a kind of it
        return "concat", list(node.expressions)
    if isinstance(node, exp.DPipe):
        return "concat", [node.left, node.right]
    if isinstance(node, exp.Coalesce):
        return "coalesce", [node.this, *node.expressions]
    if isinstance(node, exp.Length):
        return "characters", [node.this]
    if isinstance(node, exp.ByteLength) or (isinstance(node, exp.Anonymous) and node.name.lower() == "octet_length"):
        return "bytes", [node.this] if isinstance(node, exp.ByteLength) else list(node.expressions)
    return None, []


def _column(node: Any, kinds: Mapping[str, Kind]) -> ArrowExpression | None:  # noqa: ANN401 - sqlglot's nodes
    if node.table:
        return None
    fitting = [name for name in kinds if name.lower() == node.name.lower()]
    return column(fitting[0]) if len(fitting) == 1 else None


def _constant(node: Any) -> ArrowExpression | None:  # noqa: ANN401 - sqlglot's nodes
    text = str(node.this)
    if node.is_string:
        return ArrowExpression("constant", text) if "\\" not in text else None
    return ArrowExpression("constant", int(text)) if text.isdigit() and int(text) <= _MOST_NUMBER else None


def _fits(operation: Operation, kinds: list[Kind]) -> bool:
    """Return whether an operation takes values of these kinds without a conversion."""
    if operation == "concat":
        return set(kinds) == {"text"}
    if operation == "coalesce":
        return len(set(kinds)) == 1 and kinds[0] in ("text", "number")
    return len(kinds) == 1 and kinds[0] in ("text", "binary")


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
    return _read(text, lambda node: _condition(node, kinds))


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


def kinds_of(schema: StructType, known: Mapping[str, str]) -> dict[str, Kind]:
    """Return the kind of each column of a stream that is a column of its source."""
    types = {field.name: field.dataType for field in schema}
    return {name: _kind(types[of]) for name, of in known.items()}


def _kind(data_type: DataType) -> Kind:
    if data_type == StringType():
        return "text"
    if isinstance(data_type, BinaryType):
        return "binary"
    return "number" if isinstance(data_type, NUMBERS) else "other"
