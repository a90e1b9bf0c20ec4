"""Delta tables without a JVM, and what their logs say."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.spark.delta.table_log import open_table


def mark_of(batch: int, identity: str = "a", query: str = "q") -> BatchMark:
    return BatchMark(query, batch, f"{identity}{batch}")


def note_opened(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """Return the locations of the tables that a module opens, as they come."""
    found: list[str] = []

    def noted(location: str) -> DeltaTable | None:
        found.append(location)
        return open_table(location)

    monkeypatch.setattr(module, "open_table", noted)
    return found


def make_table(
    path: Path,
    schema: StructType | str,
    *,
    partition_columns: tuple[str, ...] = (),
    properties: dict[str, str] | None = None,
    protocol: dict[str, Any] | None = None,
) -> Path:
    """Write the first version of a table's log as Spark would, without data."""
    schema_text = schema if isinstance(schema, str) else schema.json()
    metadata = {
        "id": "0", "format": {"provider": "parquet", "options": {}}, "schemaString": schema_text,
        "partitionColumns": list(partition_columns), "configuration": properties or {}, "createdTime": 0,
    }  # fmt: skip
    actions = [{"protocol": protocol or {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    (path / "_delta_log").mkdir(parents=True)
    (path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return path


def rows_of(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table in the order of their values."""
    found = DeltaTable(path).to_pyarrow_table(columns=list(columns) or None)
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)
