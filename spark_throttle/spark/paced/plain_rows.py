"""Rows of Arrow as Python dictionaries, whatever bytes their text has.

A Spark string is bytes that claim to be UTF-8; `cast(value AS string)` does not look. Arrow refuses to decode one that
is not, and one such row would end its batch at every start. So what cannot be decoded is U+FFFD here, as it is in
every sink of the JVM. Only rows that cannot be decoded as they are take the slow way.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as kinds


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    r"""Return the rows of a table.

    Examples
    --------
    >>> broken = pa.array([b"na\xc3\xafve", b"na\xefve"]).view(pa.string())
    >>> plain_rows(pa.table({"name": broken}))
    [{'name': 'naïve'}, {'name': 'na�ve'}]
    """
    try:
        return table.to_pylist()
    except UnicodeDecodeError:
        columns = [
            [_decoded(value, column.type) for chunk in column.chunks for value in _as_bytes(chunk).to_pylist()]
            for column in table.columns
        ]
        return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _as_bytes(values: pa.Array) -> pa.Array:
    return values.cast(_type_of_bytes(values.type))


def _type_of_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of text."""
    if kinds.is_string(kind):
        return pa.binary()
    if kinds.is_large_string(kind):
        return pa.large_binary()
    if kinds.is_map(kind):
        return pa.map_(_type_of_bytes(kind.key_type), _type_of_bytes(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        inner = kind.value_field.with_type(_type_of_bytes(kind.value_type))
        return pa.large_list(inner) if kinds.is_large_list(kind) else pa.list_(inner)
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_type_of_bytes(field.type)) for field in kind.fields])
    return kind


def _decoded(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - what Arrow makes of a column
    """Return a value with text in place of bytes, where its type is text."""
    if value is None:
        return None
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return value.decode(errors="replace")
    if kinds.is_map(kind):
        return [(_decoded(key, kind.key_type), _decoded(item, kind.item_type)) for key, item in value]
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return [_decoded(each, kind.value_type) for each in value]
    if kinds.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind.fields}
    return value
