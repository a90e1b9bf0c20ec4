"""The entries of one revision of a Delta store, read from its snapshot and the few changes since."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from spark_throttle.store.delta.rows import ENTRY_COLUMNS, changes_in, check_no_gap, entries_in
from spark_throttle.store.store import KINDS, Entry, Key

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
