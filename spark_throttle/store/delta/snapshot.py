"""Snapshots of a Delta store: every entry of a revision in one sorted file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow import fs

from spark_throttle.store.delta.rows import SCHEMA
from spark_throttle.store.delta.view import BATCH_ROWS, View, scanned
from spark_throttle.store.entries import resource_group_of

SNAPSHOT_APP: Final = "spark-throttle-snapshots"
"""Application id in Delta's log; the versions of its transactions are the revisions of the snapshots."""


def write_snapshot(table: DeltaTable, view: View, options: Mapping[str, str] | None) -> None:
    """Append a snapshot; of several processes that write the same one at once, one succeeds.

    The file is written here, and delta-rs only commits it: delta-rs would write the rows in several threads, in any
    order.
    """
    name = f"form=snapshot/{view.revision:012d}-{uuid.uuid4().hex}.parquet"
    files = fs.PyFileSystem(DeltaStorageHandler(table.table_uri, dict(options or {})))
    schema = pa.schema([field for field in SCHEMA if field.name != "form"])  # the folder's name has that
    statistics = _Statistics()
    with (
        files.open_output_stream(name) as stream,
        pq.ParquetWriter(
            stream, schema, compression="zstd", use_dictionary=["kind", "body", "resource_group"]
        ) as writer,
    ):
        for batch in _snapshot_batches(view, schema):
            writer.write_batch(batch, row_group_size=BATCH_ROWS)
            statistics.add(batch)
    (status,) = files.get_file_info([name])
    add = AddAction(name, status.size, {"form": "snapshot"}, 0, data_change=True, stats=statistics.as_json())
    table.create_write_transaction(
        [add], "append", table.schema(), ["form"],
        commit_properties=CommitProperties(app_transactions=[Transaction(SNAPSHOT_APP, view.revision)]),
    )  # fmt: skip


class _Statistics:
    """Statistics of a file's columns for Delta's log; a column without statistics would be taken for empty."""

    def __init__(self) -> None:
        self._rows = 0
        self._nulls: dict[str, int] = {}
        self._least: dict[str, int | str] = {}
        self._most: dict[str, int | str] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the file."""
        self._rows += len(batch)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if column.null_count < len(column):
                least, most = (each.as_py() for each in pc.min_max(column).values())
                self._least[name] = min(least, self._least.get(name, least))
                self._most[name] = max(most, self._most.get(name, most))

    def as_json(self) -> str:
        """Return the statistics in Delta's form."""
        said = {"numRecords": self._rows, "minValues": self._least, "maxValues": self._most, "nullCount": self._nulls}
        return json.dumps(said, ensure_ascii=False)


def _snapshot_batches(view: View, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    entries = scanned(view)
    while part := list(islice(entries, BATCH_ROWS)):
        n = len(part)
        yield pa.RecordBatch.from_pydict({
            "revision": [view.revision] * n, "kind": [entry.kind for entry in part],
            "name": [entry.name for entry in part], "body": [entry.body for entry in part],
            "resource_group": [resource_group_of(entry.body) for entry in part],
            "entry_revision": [entry.revision for entry in part],
            **{name: [None] * n for name in ("at", "who", "why", "commit_id", "door", "caller")},
            "given": [entry.given for entry in part],
        }, schema=schema)  # fmt: skip
