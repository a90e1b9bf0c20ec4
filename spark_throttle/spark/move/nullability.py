"""Schemas in which everything may be null: pyarrow writes no null of a struct whose fields may not be null.

Spark's variants and shapes are such structs, and so are structs of the user. The bytes of an array do not depend on
what may be null, so rows get such a schema without a copy.
"""

from __future__ import annotations

import pyarrow as pa


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which everything may be null, but for the keys of maps.

    Examples
    --------
    >>> inner = pa.field("value", pa.binary(), nullable=False)
    >>> nullable(pa.schema([("v", pa.struct([inner]))])).field("v").type.field("value").nullable
    True
    """
    return pa.schema([_nullable(field) for field in schema])


def as_nullable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with a schema in which everything may be null, without a copy.

    Examples
    --------
    >>> inner = pa.struct([pa.field("value", pa.int64(), nullable=False)])
    >>> rows = pa.RecordBatch.from_arrays([pa.array([{"value": 1}, None], inner)], names=["v"])
    >>> as_nullable(rows).column("v").to_pylist()
    [{'value': 1}, None]
    """
    schema = nullable(rows.schema)
    return rows if rows.schema.equals(schema) else described(rows, schema)


def described(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with a schema of the same types that says otherwise what may be null, without a copy."""
    _, content = rows.__arrow_c_array__()
    return pa.RecordBatch._import_from_c_capsule(schema.__arrow_c_schema__(), content)  # noqa: SLF001 - Arrow's own way


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(part) for part in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    return pa.field(field.name, kind, nullable=True, metadata=field.metadata)
