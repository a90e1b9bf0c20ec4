"""Policies in a Delta table: an append-only log of changes, and snapshots of all entries at some revisions.

No JVM is needed (delta-rs), and Spark reads the table like any other::

    form      partition: `change` (a row per entry that a commit wrote) or `snapshot` (a row per entry of a revision)
    revision  of the commit; in a snapshot, the revision that it shows
    kind, name, body, resource_group    the entry; a `change` without a body removed it
    entry_revision                      of the commit that wrote the entry
    given                               what administrators wrote there, if a tenant's administrator wrote the entry
    at, who, why, door, caller, commit_id    of a change

**A commit is one compare-and-swap.** Appends do not conflict in Delta, so two authors who have both seen revision 7
would both succeed. Therefore a commit may take only one place in Delta's log, the one after the version that its author
has read (`max_commit_retries=0`). It also carries the revision as an application's transaction, which makes Delta
refuse a second commit that began before it. Of several authors one wins, and the others read again.

**A change costs as much as it changes.** It writes its own rows, one small file. Every `SNAPSHOT_REVISIONS` commits, or
when the log since the last snapshot has grown to a certain part of it, the author of the commit adds a snapshot, sorted
by kind and name, and merges the small files. A page is read from the sorted snapshot, by its statistics, and from the
few changes since. Only `scan` reads everything, a batch of rows at a time.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from spark_throttle.errors import (
    ConfigurationError,
    DamagedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from spark_throttle.files import file_lock
from spark_throttle.files.ownership import keep_folder_as_root
from spark_throttle.policy.source import SETTLING_NS
from spark_throttle.store.delta.kept_commits import keep_commit
from spark_throttle.store.delta.log_damage import APP, REVISION_KEY
from spark_throttle.store.delta.log_stamps import LogStamps
from spark_throttle.store.delta.rows import (
    ENTRY_COLUMNS,
    EPOCH,
    LATER_COLUMNS,
    MILLISECOND,
    SCHEMA,
    change_rows,
    changes_in,
    check_no_gap,
    columns_in,
    entries_in,
)
from spark_throttle.store.delta.snapshot import SNAPSHOT_APP, write_snapshot
from spark_throttle.store.delta.table_checks import TableChecks
from spark_throttle.store.delta.table_files import TableFiles
from spark_throttle.store.delta.view import View, merged, scanned, view_at, with_changes, with_tail
from spark_throttle.store.entries import resource_group_of
from spark_throttle.store.store import Author, Change, Entry, Kind, Revision, check_newest, check_revision

logger = logging.getLogger(__name__)

SNAPSHOT_REVISIONS: Final = 500
"""Number of commits after which a snapshot is made; it bounds the number of files that a reader opens."""

SNAPSHOT_SHARE: Final = 10
"""A snapshot is also made when the entries changed since are at least 1/10 of its rows, and `SNAPSHOT_ROWS`."""

SNAPSHOT_ROWS: Final = 10_000

_MOST_RACES: Final = 100
_FACTS: Final = ["revision", "at", "who", "why", "door", "caller"]
_NOTHING_READ: Final = View(0, None, 0, 0, {})
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class DeltaStore:
    """A `PolicyStore` in a Delta table.

    Parameters
    ----------
    location
        Path or URI of the table.
    storage_options
        Credentials and settings of an object store, as delta-rs takes them; by default from the environment.
    clock_ns
        The wall clock, which is compared only with modification times.

    Raises
    ------
    StoreUnavailableError
        If the store does not exist; `create` creates it.
    """

    def __init__(
        self,
        location: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,  # noqa: TID251 - the clock of the log folder's modification times
    ) -> None:
        self._path = location
        self._storage_options = dict(storage_options) if storage_options else None
        self._clock_ns = clock_ns
        self._lock = threading.RLock()
        self._log_folder = _local_log(location)
        self._changed_ns = -1
        """Modification time of the log's folder when it was last read; -1 if it must be read in any case."""

        self._stamps = None if self._log_folder is None else LogStamps(self._log_folder)
        """The log's files that were read; while they stay the same, no other table has replaced this one."""

        self._newest = self._newest_snapshot = 0
        """Revisions of the newest commit and the newest snapshot when the table was last read."""

        self._noted_version = -1
        """Version of the table of which these were taken, and which was found whole."""

        self._proven_snapshot = 0
        """Revision of the snapshot of which rows were last read to see whether that works."""

        self._files = _files_of(location, storage_options)
        self._checks = TableChecks(self.location, self._files, self._opened)
        self._generation = 0
        self._is_opened = False
        with self._guarded():
            self._table = self._opened()
            self._is_opened = True
            self._id = self._table.metadata().id
            self._note()
        self._view = _NOTHING_READ

    @classmethod
    def create(cls, location: str, *, storage_options: Mapping[str, str] | None = None) -> DeltaStore:
        """Return the store at `location`; create it if it does not exist.

        Raises
        ------
        DamagedError
            If a store has been there that has lost its log.
        """
        options = dict(storage_options or {})
        checks = TableChecks(f"delta:{location}", _files_of(location, options), lambda: DeltaTable(location))
        try:
            # Looked for first: another process may make the store, and commit, between the two.
            if checks.remains() and not DeltaTable.is_deltatable(location, options):
                raise checks.absence()
            DeltaTable.create(
                location, SCHEMA, mode="ignore", partition_by=["form"], name="policies",
                description="policies of spark-throttle: a log of changes, and snapshots",
                storage_options=options or None,
            )  # fmt: skip
        except (DeltaError, OSError) as error:
            # Of several processes that create one table at once, one succeeds; the others find it below.
            if not DeltaTable.is_deltatable(location, options):
                raise StoreUnavailableError(f"delta:{location}", f"it cannot be created: {_said(error)}") from error
        return cls(location, storage_options=storage_options)

    @property
    def location(self) -> str:
        """Name of the store in messages."""
        return f"delta:{self._path}"

    @property
    def generation(self) -> int:
        """How often the table's log was found to be another than was read before."""
        return self._generation

    def revision(self) -> int:
        """Return the newest revision; on a disk, nothing is read while nothing changes."""
        with self._lock, self._guarded():
            self._refresh()
            return self._newest

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        with self._guarded():
            view = self._view_of(at)
            if (kind, name) in view.tail:
                entry = view.tail[kind, name]
                return None if entry.body is None else entry
            if view.snapshot is None:
                return None
            here = (ds.field("kind") == kind) & (ds.field("name") == name)
            found = view.snapshot.to_table(columns=columns_in(view.snapshot, ENTRY_COLUMNS), filter=here)
            return next(entries_in(found.to_batches()), None)

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[Entry]:
        """Return at most `limit` entries of a kind whose names follow `after`, by name."""
        here = ds.field("kind") == kind
        if after:
            here &= ds.field("name") > after
        if resource_group is not None:
            here &= ds.field("resource_group") == resource_group
        with self._guarded():
            view = self._view_of(at)
            changed = [
                entry
                for entry in view.tail.values()
                if entry.kind == kind
                and (not after or entry.name > after)
                and resource_group in (None, resource_group_of(entry.body))
            ]
            return list(islice(merged(view, here, changed), limit))

    def scan(self, *, at: int | None = None) -> Iterator[Entry]:
        """Yield every entry, by kind and name, a batch of rows at a time."""
        with self._guarded():
            yield from scanned(self._view_of(at))

    def delegated(self, *, at: int | None = None) -> list[Entry]:
        """Return the namespaces' entries that tenants' administrators wrote, by name."""
        with self._guarded():
            view = self._view_of(at)
            changed = [e for e in view.tail.values() if e.kind == "namespace" and e.given is not None]
            if view.snapshot is not None and "given" not in view.snapshot.schema.names:
                view = replace(view, snapshot=None)  # no entry of it is a tenant's
            here = (ds.field("kind") == "namespace") & ds.field("given").is_valid()
            # Of a file that is older than the column, delta-rs claims that all its values are valid.
            return [entry for entry in merged(view, here, changed) if entry.given is not None]

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        """Yield the entries that the commits after revision `after`, up to and including `until`, wrote, in order."""
        with self._guarded():
            with self._lock:
                self._refresh()
                rows = changes_in(self._table, after, until, ENTRY_COLUMNS)
            check_no_gap(rows["entry_revision"], after, until, until)
            yield from entries_in(rows.to_batches())

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        with self._guarded():
            with self._lock:
                self._refresh()
                until = self._newest if before is None else before - 1
                newest, after = self._newest, max(0, until - limit)
                rows = changes_in(self._table, after, until, _FACTS)
            check_no_gap(rows["revision"], after, min(until, newest), newest)
            found = rows.group_by(rows.column_names).aggregate([([], "count_all")])
        revisions = [_revision(row) for row in found.to_pylist()]
        return sorted(revisions, key=lambda revision: -revision.revision)

    def check_whole(self) -> None:
        """Refuse to go on with a table that lacks a file, a revision of its history, or rows of its newest entries."""
        with self._guarded(), self._lock:
            self._refresh()
            self._checks.check_whole(self._table, self._newest)
            view = self._view_of(None)
            if view.snapshot is not None and view.snapshot_revision != self._proven_snapshot:
                view.snapshot.head(1)
                self._proven_snapshot = view.snapshot_revision

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other author on this disk has a turn; on an object store there are no turns."""
        if self._log_folder is None:
            yield
            return
        with ExitStack() as turn:
            lock = self._log_folder / "_turn.lock"
            try:
                turn.enter_context(file_lock.held(lock, beside=self._log_folder))
            except FileNotFoundError as error:
                raise self._checks.absence() from error
            except PermissionError as error:
                raise StoreUnavailableError(
                    self.location,
                    f"nothing was changed, for {lock} cannot be locked: {error.strerror}; run this as the owner of the "
                    f"folder, or, as that owner, remove the file if it is another's",
                ) from error
            except OSError as error:
                raise StoreUnavailableError(
                    self.location, f"nothing was changed, for {lock} cannot be locked: {error.strerror}"
                ) from error
            yield

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        """Write or remove entries, and return the new revision."""
        if not changes:
            raise ConfigurationError("a commit without changes would be a revision that says nothing; give one or more")
        commit_id = uuid.uuid4().hex
        rows = change_rows(changes, expected_revision + 1, author, at_ms, commit_id)
        with self._lock:
            with self._guarded():
                self._refresh()
                check_newest(self, expected_revision, self._newest)
                self._checks.check_files(self._table)
                self._keep_folders()
            self._append(rows, expected_revision + 1, commit_id)
            self._checks.keep(self._table.version(), expected_revision + 1)
            if self._view.revision == expected_revision:
                self._view = with_changes(self._view, entries_in(rows.select(ENTRY_COLUMNS).to_batches()))
        self._snapshot_if_due()
        return expected_revision + 1

    def _append(self, rows: pa.Table, revision: int, commit_id: str) -> None:
        """Commit the rows of the revision that follows the newest one that was read."""
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(APP, revision)],
            custom_metadata={REVISION_KEY: str(revision)},
        )
        for _ in range(_MOST_RACES):
            try:
                self._append_once(rows, properties)
            except (DeltaError, OSError) as error:
                if self._is_committed(revision, commit_id, error):
                    return
            else:
                self._newest, self._noted_version = revision, self._table.version()
                return
        raise StoreUnavailableError(
            self.location, f"{_MOST_RACES} attempts to commit lost to maintenance of the table; try again later"
        )

    def _append_once(self, rows: pa.Table, properties: CommitProperties) -> None:
        held = {field.name for field in self._table.schema().fields}
        unneeded = [name for name in LATER_COLUMNS if name not in held and rows[name].null_count == len(rows)]
        mode: Literal["merge"] | None = "merge" if set(rows.column_names) - held - set(unneeded) else None
        write_deltalake(
            self._table, rows.drop_columns(unneeded), mode="append", schema_mode=mode, commit_properties=properties
        )

    def _is_committed(self, revision: int, commit_id: str, error: Exception) -> bool:
        """Return whether a commit happened although it ended with an error; false means that it lost a race.

        An object store may report that a commit's place is taken when the commit itself has taken it.
        """
        try:
            self._refresh(is_forced=True)
            if self._newest >= revision:
                ids = changes_in(self._table, revision - 1, revision, ["commit_id"])["commit_id"].unique().to_pylist()
                if ids == [commit_id]:
                    return True
        except (DeltaError, OSError, pa.ArrowException, StoreUnavailableError, DamagedError) as unread:
            raise OutcomeUnknownError(self.location, revision, f"{_said(error)}; then {_said(unread)}") from error
        check_newest(self, revision - 1, self._newest)
        if isinstance(error, CommitFailedError):
            return False
        if self._log_folder is None:
            # The request may still be under way.
            raise OutcomeUnknownError(self.location, revision, _said(error)) from error
        raise StoreUnavailableError(self.location, f"nothing was changed: {_said(error)}") from error

    def _keep_folders(self) -> None:
        """Make the folders of a table on a disk that root writes to: its owner adds files to them too."""
        if self._log_folder is not None:
            for form in ("change", "snapshot"):
                keep_folder_as_root(self._log_folder.parent / f"form={form}")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn the errors of delta-rs and Arrow into `DamagedError` or `StoreUnavailableError`."""
        try:
            yield
        except TableNotFoundError as error:
            raise self._checks.absence() from error
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self._checks.error_of(_said(error), self._table if self._is_opened else None) from error

    def _opened(self) -> DeltaTable:
        table = DeltaTable(self._path, storage_options=self._storage_options)
        names = {field.name for field in table.schema().fields}
        needed = set(SCHEMA.names) - set(LATER_COLUMNS)
        if not needed <= names:
            missing = ", ".join(sorted(needed - names))
            raise ConfigurationError(f"the Delta table {self._path} is not a policy store: it has no columns {missing}")
        return table

    def _refresh(self, *, is_forced: bool = False) -> None:
        """Read new commits; on a disk this costs one `stat` while there are none.

        A table that was deleted or replaced by another is noticed here: delta-rs would go on with what it has read.
        """
        if self._log_folder is None or self._stamps is None:
            self._replace(self._opened())
            self._note()
            if self._view.revision > self._newest:
                self._forget_view()
            return
        try:
            changed_ns = self._log_folder.stat().st_mtime_ns
        except FileNotFoundError as error:
            raise self._checks.absence() from error
        is_known = self._stamps.are_unchanged()
        if is_known and changed_ns == self._changed_ns and not is_forced:
            return
        if is_known:
            self._table.update_incremental()
        else:
            # A file that was read is another now: what was read from it may be gone for everybody else.
            self._changed_ns = -1
            self._stamps.forget()
            self._checks.forget()
            self._replace(self._opened())
            self._forget_view()
        if is_forced or not is_known or self._table.version() != self._noted_version:
            self._note()
        self._stamps.note(self._table.version())
        is_settling = 0 <= self._clock_ns() - changed_ns < SETTLING_NS
        self._changed_ns = -1 if is_settling else changed_ns

    def _forget_view(self) -> None:
        self._view = _NOTHING_READ
        self._generation += 1

    def _replace(self, table: DeltaTable) -> None:
        if table.metadata().id != self._id:
            raise StoreUnavailableError(
                self.location, "another table has taken its place; open the store again to use that one"
            )
        self._table = table

    def _note(self) -> None:
        newest = self._table.transaction_version(APP) or 0
        self._checks.check_newest(self._table, newest)
        self._newest = newest
        self._noted_version = self._table.version()
        self._newest_snapshot = self._table.transaction_version(SNAPSHOT_APP) or 0

    def _view_of(self, at: int | None) -> View:
        with self._lock:
            if at is None or at > self._newest:
                self._refresh()
            revision = check_revision(at, self._newest)
            if revision < self._view.revision:
                return view_at(self._table, revision)
            if self._view.snapshot_revision < self._newest_snapshot <= revision:
                self._view = view_at(self._table, revision)
            elif self._view.revision < revision:
                self._view = with_tail(self._view, self._table, revision)
            return self._view

    def _snapshot_if_due(self) -> None:
        """Add a snapshot and merge small files if it is time; a failure makes later reads slower, and nothing else."""
        try:
            view = self._view_of(None)
            commits, rows = view.revision - view.snapshot_revision, len(view.tail)
            if commits < SNAPSHOT_REVISIONS and rows < max(SNAPSHOT_ROWS, view.snapshot_rows // SNAPSHOT_SHARE):
                return
            # On a separate `DeltaTable`, so that readers go on meanwhile.
            table = self._opened()
            before = table.version()
            write_snapshot(table, view, self._storage_options)
            table.optimize.compact(partition_filters=[("form", "=", "change")])
            for version in range(before + 1, table.version() + 1):
                keep_commit(self._files, version)
        except (DeltaError, OSError, pa.ArrowException, StoreUnavailableError, DamagedError) as error:
            logger.warning("%s: no snapshot was made, so reads take longer: %s", self.location, _said(error))


def _revision(row: Mapping[str, Any]) -> Revision:
    at_ms = (row["at"] - EPOCH) // MILLISECOND
    return Revision(
        row["revision"], at_ms, row["who"], row["why"], row["count_all"], row.get("door"), row.get("caller")
    )


def _local_log(location: str) -> Path | None:
    """Return the folder of the table's log; `None` if it is not on a disk."""
    if "://" in location:
        return Path(location.removeprefix("file://")) / "_delta_log" if location.startswith("file://") else None
    return Path(location) / "_delta_log"


def _files_of(location: str, options: Mapping[str, str] | None) -> TableFiles:
    log = _local_log(location)
    return TableFiles(location, None if log is None else log.parent, options)


def _said(error: Exception) -> str:
    """Return the first line of an error's message."""
    return _COLOUR.sub("", str(error)).partition("\n")[0].strip() or type(error).__name__
