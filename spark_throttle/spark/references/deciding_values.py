"""The expressions that can be computed from a file's columns without Spark, and their values.

A query decides on references only if its namespace, size and order are columns of the source, or simple expressions of
them: ``concat`` or ``||``, ``length``, ``octet_length``, and ``coalesce`` with a constant. All others need Spark, so
their rows are staged. sqlglot reads the expressions in Spark's dialect.

Values equal Spark's, the length in characters of text that is not valid UTF-8 included: what a batch admits is counted
again by Spark before it is written (`sinks.source_reader`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

Operation = Literal["column", "constant", "concat", "characters", "bytes", "coalesce"]
Kind = Literal["text", "binary", "number", "other"]

MOST_TEXT: Final = 10_000
"""Longest text of an expression, or of a condition, that is read."""

_MOST_NUMBER: Final = (1 << 63) - 1
"""Spark takes a greater number for a decimal."""


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
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > MOST_TEXT:
        return None
    try:
        return translated(sqlglot.parse_one(text, read="spark"), kinds)
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
