"""The rows of the Delta table that holds policies, and their columns.

`delta_store` describes the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from spark_throttle.store.entries import resource_group_of
from spark_throttle.store.store import Author, Change, Entry
from spark_throttle.store.wanted import check_wanted

SCHEMA: Final = pa.schema([
    pa.field("form", pa.string(), nullable=False), pa.field("revision", pa.int64(), nullable=False),
    pa.field("kind", pa.string(), nullable=False), pa.field("name", pa.string(), nullable=False),
    pa.field("body", pa.string()), pa.field("resource_group", pa.string()), pa.field("entry_revision", pa.int64()),
    pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("who", pa.string()), pa.field("why", pa.string()),
    pa.field("commit_id", pa.string()), pa.field("given", pa.string()), pa.field("door", pa.string()),
    pa.field("caller", pa.string()),
])  # fmt: skip
"""Schema of the table."""

ENTRY_COLUMNS: Final = ["kind", "name", "body", "entry_revision", "given"]
"""The columns that make up an entry."""

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
    at = EPOCH + timedelta(milliseconds=at_ms)
    return pa.table({
        "form": ["change"] * n, "revision": [revision] * n, "kind": [change.kind for change in changes],
        "name": [change.name for change in changes], "body": [change.body for change in changes],
        "resource_group": [resource_group_of(change.body) for change in changes], "entry_revision": [revision] * n,
        "at": [at] * n, "who": [author.who] * n, "why": [author.why] * n, "commit_id": [commit_id] * n,
        "given": [change.given for change in changes], "door": [author.door] * n, "caller": [author.caller] * n,
    }, schema=SCHEMA)  # fmt: skip


def entries_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
    """Yield the entries that rows hold."""
    for batch in batches:
        check_wanted()
        columns = (batch.column(name).to_pylist() for name in ENTRY_COLUMNS)
        for kind, name, body, revision, given in zip(*columns, strict=True):
            yield Entry(kind, name, body, revision, given)
