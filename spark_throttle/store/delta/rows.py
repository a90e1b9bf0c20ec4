"""A Delta store's rows are changes and snapshots; the entries of a revision are its snapshot's and the changes since.

A snapshot is every entry of a revision in one sorted file. `delta_store` describes the table.
"""

from __future__ import annotations

import heapq
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow import fs

from spark_throttle.record import checksum_of
from spark_throttle.store.entries import resource_group_of
from spark_throttle.store.store import KINDS, Author, Change, Entry, Key, Revision, check_wanted

SCHEMA: Final = pa.schema([
    pa.field("form", pa.string(), nullable=False), pa.field("revision", pa.int64(), nullable=False),
    pa.field("kind", pa.string(), nullable=False), pa.field("name", pa.string(), nullable=False),
    pa.field("body", pa.string()), pa.field("resource_group", pa.string()), pa.field("entry_revision", pa.int64()),
    pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("who", pa.string()), pa.field("why", pa.string()),
    pa.field("commit_id", pa.string()), pa.field("given", pa.string()), pa.field("door", pa.string()),
    pa.field("caller", pa.string()), pa.field("checksum", pa.int64()), pa.field("commit_checksum", pa.int64()),
])  # fmt: skip
"""Schema of the table."""

ENTRY_COLUMNS: Final = ["kind", "name", "body", "entry_revision", "given", "checksum"]
"""The columns that make up an entry, and their checksum: Parquet's pages have none that is looked at."""

APP: Final = "spark-throttle-policies"
"""Application id in Delta's log; the versions of its transactions are the revisions of the store."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


def changes_in(table: DeltaTable, after: int, until: int, columns: list[str]) -> pa.Table:
    """Return the rows of the commits after revision `after`, up to and including `until`, in commit order."""
    if after >= until:
        return SCHEMA.empty_table().select(columns)
    predicate = [("form", "=", "change"), ("revision", ">", after), ("revision", "<=", until)]
    dataset = table.to_pyarrow_dataset(file_pruning_predicate=predicate)
    wanted = [*columns, *({"revision"} - set(columns))]
    here = (ds.field("form") == "change") & (ds.field("revision") > after) & (ds.field("revision") <= until)
    rows = dataset.to_table(columns=wanted, filter=here)
    return rows.take(pc.sort_indices(rows["revision"])).select(columns)


def check_no_gap(found: pa.ChunkedArray, after: int, until: int, newest: int) -> None:
    """Refuse rows that lack a revision after `after`, up to and including `until`.

    Raises
    ------
    OSError
        If one is missing: without it the policies, or their history, would have a hole that nobody wrote.
    """
    present = set(found.unique().to_pylist())
    missing = next((each for each in range(after + 1, until + 1) if each not in present), None)
    if missing is not None:
        raise OSError(f"revision {missing} of {newest} is missing")


def change_rows(changes: Sequence[Change], revision: int, author: Author, at_ms: int, commit_id: str) -> pa.Table:
    """Return the rows of a commit."""
    n = len(changes)
    commit = checksum(*astuple(Revision.of(revision, at_ms, author, n)))
    at = EPOCH + timedelta(milliseconds=at_ms)
    return pa.table({
        "form": ["change"] * n, "revision": [revision] * n, "kind": [change.kind for change in changes],
        "name": [change.name for change in changes], "body": [change.body for change in changes],
        "resource_group": [resource_group_of(change.body) for change in changes], "entry_revision": [revision] * n,
        "at": [at] * n, "who": [author.who] * n, "why": [author.why] * n, "commit_id": [commit_id] * n,
        "given": [change.given for change in changes], "door": [author.door] * n, "caller": [author.caller] * n,
        "checksum": [checksum(each.kind, each.name, each.body, revision, each.given) for each in changes],
        "commit_checksum": [commit] * n,
    }, schema=SCHEMA)  # fmt: skip


def checksum(*values: str | int | None) -> int:
    """Return the CRC-32 of values."""
    return checksum_of(values)


def check_sum(what: str, expected: int | None, *values: str | int | None) -> None:
    """Refuse values that are not those that were written.

    Raises
    ------
    OSError
        If their checksum is another.
    """
    if checksum(*values) != expected:
        raise OSError(f"the checksum of {what} is not the one that was written with it")


def entries_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
    """Yield the entries that rows hold.

    Raises
    ------
    OSError
        If one is not as it was written.
    """
    for batch in batches:
        check_wanted()
        columns = (batch.column(name).to_pylist() for name in ENTRY_COLUMNS)
        for kind, name, body, revision, given, written in zip(*columns, strict=True):
            check_sum(f"{kind} {name} of revision {revision}", written, kind, name, body, revision, given)
            yield Entry(kind, name, body, revision, given)


BATCH_ROWS = 8192
"""Number of rows that are read at once, and of rows in a row group of a snapshot."""


@dataclass(frozen=True, slots=True)
class View:
    """The entries of one revision: a snapshot, and the newest change of every entry that changed since."""

    revision: int
    snapshot: ds.Dataset | None
    snapshot_revision: int
    snapshot_rows: int
    tail: Mapping[Key, Entry]


def view_at(table: DeltaTable, revision: int) -> View:
    """Return the entries of a revision, from the newest snapshot that is not after it."""
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    snapshots = {row["min.revision"]: row["num_records"] for row in rows if row["partition.form"] == "snapshot"}
    newest = max((at for at in snapshots if at <= revision), default=0)
    return with_tail(_snapshot_view(table, newest, snapshots.get(newest, 0)), table, revision)


def _snapshot_view(table: DeltaTable, revision: int, rows: int) -> View:
    if not revision:
        return View(0, None, 0, 0, {})
    predicate = [("form", "=", "snapshot"), ("revision", "=", revision)]
    dataset = table.to_pyarrow_dataset(file_pruning_predicate=predicate)
    return View(revision, dataset.filter(ds.field("revision") == revision), revision, rows, {})


def with_tail(view: View, table: DeltaTable, revision: int) -> View:
    """Return the entries of a later revision: those of `view`, and the changes in the log since."""
    rows = changes_in(table, view.revision, revision, ENTRY_COLUMNS)
    check_no_gap(rows["entry_revision"], view.revision, revision, revision)
    return replace(with_changes(view, entries_in(rows.to_batches())), revision=revision)


def with_changes(view: View, entries: Iterable[Entry]) -> View:
    """Return the view after `entries` were written or removed."""
    tail = {(entry.kind, entry.name): entry for entry in entries}
    newest = max((entry.revision for entry in tail.values()), default=view.revision)
    return replace(view, revision=newest, tail={**view.tail, **tail} if view.tail else tail)


def found(view: View, keys: Collection[Key]) -> dict[Key, Entry]:
    """Return those of some entries that exist; a few names are looked for by the statistics of the snapshot."""
    entries = {key: view.tail[key] for key in keys if key in view.tail}
    here = ds.scalar(value=False)
    for kind in {kind for kind, name in keys}:
        names = [name for of, name in keys if of == kind and (kind, name) not in entries]
        named = ds.field("name") == names[0] if len(names) == 1 else ds.field("name").isin(names)
        here = here | ((ds.field("kind") == kind) & named)
    if view.snapshot is not None and len(entries) < len(keys):
        rows = view.snapshot.to_table(columns=ENTRY_COLUMNS, filter=here)
        entries |= {entry.key: entry for entry in entries_in(rows.to_batches())}
    return {key: entry for key, entry in entries.items() if entry.body is not None}


def scanned(view: View) -> Iterator[Entry]:
    """Yield every entry, by kind and name."""
    for kind in KINDS:
        changed = [entry for entry in view.tail.values() if entry.kind == kind]
        yield from merged(view, ds.field("kind") == kind, changed)


def merged(view: View, here: ds.Expression, changed: list[Entry]) -> Iterator[Entry]:
    """Yield the entries of one kind by name: those of the snapshot that have not changed since, and `changed`."""
    newer = sorted((entry for entry in changed if entry.body is not None), key=lambda entry: entry.name)
    if view.snapshot is None:
        return iter(newer)
    batches = view.snapshot.to_batches(
        columns=ENTRY_COLUMNS,
        filter=here,
        batch_size=BATCH_ROWS,
        batch_readahead=1,
        fragment_readahead=1,
    )
    kept = (entry for entry in entries_in(batches) if (entry.kind, entry.name) not in view.tail)
    return heapq.merge(kept, newer, key=lambda entry: entry.name)


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
            **{name: [None] * n for name in ("at", "who", "why", "commit_id", "door", "caller", "commit_checksum")},
            "given": [entry.given for entry in part],
            "checksum": [checksum(each.kind, each.name, each.body, each.revision, each.given) for each in part],
        }, schema=schema)  # fmt: skip
