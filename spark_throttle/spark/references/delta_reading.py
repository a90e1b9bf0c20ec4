"""Whether the data files of a Delta table may be read as plain Parquet, given the table's protocol and properties.

A reference is a place in a data file, so what a file holds must be what the table holds: no deletion vectors, no mapped
columns. A table of any other kind is read by Spark's own source, and its rows are staged.

Source: "Reader Requirements" of the Delta protocol.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that leave a data file as plain Parquet."""

_MAPPING: Final = "delta.columnMapping.mode"
_FIRST_WITH_MAPPING: Final = 2
_OF_A_TYPE: Final = ("name", "type", "fields", "elementType", "keyType", "valueType")
_PARTITION_TYPES: Final = ("string", "byte", "short", "integer", "long", "boolean", "date")


def reading_problem(table: DeltaTable) -> str | None:
    """Return why a table's data files are not what the table holds; `None` if they are."""
    protocol, properties = table.protocol(), table.metadata().configuration
    if properties.get(_MAPPING, "none") != "none":
        return f"the table's columns are mapped ({_MAPPING})"
    others = sorted(set(protocol.reader_features or ()) - _FEATURES)
    if others:
        return f"the table has the feature {others[0]!r}, which its readers must know"
    if protocol.min_reader_version > _FIRST_WITH_MAPPING and protocol.reader_features is None:
        return f"the table's readers must be of version {protocol.min_reader_version}"
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    for column in table.metadata().partition_columns:
        if types[column] not in _PARTITION_TYPES:
            return f"the table's partition column {column!r} is {types[column]}"
    paths = pa.table(table.get_add_actions()).column("path")
    if any(map(is_elsewhere, paths.to_pylist())):
        return "it has files in another place, as a shallow clone has"
    return None


def is_elsewhere(path: str) -> bool:
    """Return whether the path of a file in a table's log does not begin at the table.

    Examples
    --------
    >>> is_elsewhere("file:/lake/a.parquet"), is_elsewhere("/lake/a.parquet"), is_elsewhere("at=10%3A00/a.parquet")
    (True, True, False)
    """
    return path.startswith("/") or ":" in path.partition("/")[0]


def columns_of(schema: str) -> str:
    """Return the names and types of a schema's columns, given as JSON in the form that Delta and Spark share.

    Examples
    --------
    >>> columns_of('{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}')
    '{"fields": [{"name": "id", "type": "long"}], "type": "struct"}'
    """
    return json.dumps(_bare(json.loads(schema)), sort_keys=True)


def _bare(node: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if isinstance(node, dict):
        return {key: _bare(value) for key, value in node.items() if key in _OF_A_TYPE}
    return node
