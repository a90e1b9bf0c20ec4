"""Policies in a Delta table: an append-only log of changes, and snapshots of all entries at some revisions.

No JVM is needed (delta-rs), and Spark reads the table like any other::

    form      partition: `change` (a row per entry that a commit wrote) or `snapshot` (a row per entry of a revision)
    revision  of the commit; in a snapshot, the revision that it shows
    kind, name, body, resource_group    the entry; a `change` without a body removed it
    entry_revision                      of the commit that wrote the entry
    given                               what administrators wrote there, if a tenant's administrator wrote the entry
    checksum                            of the entry
    at, who, why, door, caller, commit_id, commit_checksum    of a change

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
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from spark_throttle.errors import (
    ConfigurationError,
    DamagedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from spark_throttle.files import ownership
from spark_throttle.files.ownership import keep_folder_as_root
from spark_throttle.files.storage import one_line
from spark_throttle.store.delta.open_table import OpenTable, absence, local_log, remains_of
from spark_throttle.store.delta.rows import (
    APP,
    ENTRY_COLUMNS,
    EPOCH,
    MILLISECOND,
    SCHEMA,
    change_rows,
    changes_in,
    check_no_gap,
    check_sum,
    entries_in,
    found,
    merged,
    scanned,
    write_snapshot,
)
from spark_throttle.store.entries import resource_group_of
from spark_throttle.store.store import Author, Change, Entry, Key, Kind, Revision, check_newest

logger = logging.getLogger(__name__)

SNAPSHOT_REVISIONS: Final = 500
"""Number of commits after which a snapshot is made; it bounds the number of files that a reader opens."""

SNAPSHOT_SHARE: Final = 10
"""A snapshot is also made when the entries changed since are at least 1/10 of its rows, and `SNAPSHOT_ROWS`."""

SNAPSHOT_ROWS: Final = 10_000

_MOST_RACES: Final = 100
_FACTS: Final = ["revision", "at", "who", "why", "door", "caller", "commit_checksum"]


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
        self._location = location
        self._storage_options = dict(storage_options) if storage_options else None
        self._open = OpenTable(location, storage_options, clock_ns)

    @classmethod
    def create(cls, location: str, *, storage_options: Mapping[str, str] | None = None) -> DeltaStore:
        """Return the store at `location`; create it if it does not exist.

        Raises
        ------
        DamagedError
            If a store has been there that has lost its log.
        """
        options, log = dict(storage_options or {}), local_log(location)
        try:
            # Looked for first: another process may make the store, and commit, between the two.
            remains = remains_of(location, None if log is None else log.parent, options)
            if remains and not DeltaTable.is_deltatable(location, options):
                raise absence(f"delta:{location}", remains)
            DeltaTable.create(
                location, SCHEMA, mode="ignore", partition_by=["form"], name="policies",
                description="policies of spark-throttle: a log of changes, and snapshots",
                storage_options=options or None,
            )  # fmt: skip
        except (DeltaError, OSError, pa.ArrowException) as error:
            # Of several processes that create one table at once, one succeeds; the others find it below.
            if not DeltaTable.is_deltatable(location, options):
                raise StoreUnavailableError(f"delta:{location}", f"it cannot be created: {one_line(error)}") from error
        return cls(location, storage_options=storage_options)

    @property
    def location(self) -> str:
        """Name of the store in messages."""
        return f"delta:{self._location}"

    @property
    def generation(self) -> int:
        """How often the table's log was found to be another than was read before."""
        return self._open.generation

    def revision(self) -> int:
        """Return the newest revision; on a disk, nothing is read while nothing changes."""
        with self._open.lock, self._open.guarded():
            self._open.refresh()
            return self._open.newest

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        return self.find([(kind, name)], at=at).get((kind, name))

    def find(self, keys: Collection[Key], *, at: int | None = None) -> dict[Key, Entry]:
        """Return those of some entries that exist; the snapshot is read once."""
        with self._open.guarded():
            return found(self._open.view_of(at), keys)

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[Entry]:
        """Return at most `limit` entries of a kind whose names follow `after`, by name."""
        here = ds.field("kind") == kind
        if after:
            here &= ds.field("name") > after
        if resource_group is not None:
            here &= ds.field("resource_group") == resource_group
        with self._open.guarded():
            view = self._open.view_of(at)
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
        with self._open.guarded():
            yield from scanned(self._open.view_of(at))

    def delegated(self, *, at: int | None = None) -> list[Entry]:
        """Return the namespaces' entries that tenants' administrators wrote, by name."""
        with self._open.guarded():
            view = self._open.view_of(at)
            changed = [e for e in view.tail.values() if e.kind == "namespace" and e.given is not None]
            here = (ds.field("kind") == "namespace") & ds.field("given").is_valid()
            return list(merged(view, here, changed))

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        """Yield the entries that the commits after revision `after`, up to and including `until`, wrote, in order."""
        with self._open.guarded():
            with self._open.lock:
                self._open.refresh()
                rows = changes_in(self._open.table, after, until, ENTRY_COLUMNS)
            check_no_gap(rows["entry_revision"], after, until, until)
            yield from entries_in(rows.to_batches())

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        with self._open.guarded():
            with self._open.lock:
                self._open.refresh()
                until = self._open.newest if before is None else before - 1
                newest, after = self._open.newest, max(0, until - limit)
                rows = changes_in(self._open.table, after, until, _FACTS)
            check_no_gap(rows["revision"], after, min(until, newest), newest)
            commits = rows.group_by(rows.column_names).aggregate([([], "count_all")])
            revisions = [_revision(row) for row in commits.to_pylist()]
        return sorted(revisions, key=lambda revision: -revision.revision)

    def check_whole(self) -> None:
        """Refuse to go on with a table that lacks a file, a revision of its history, or rows of its newest entries."""
        with self._open.guarded():
            self._open.check_whole()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other author on this disk has a turn; on an object store there are no turns."""
        if self._open.log_folder is None:
            yield
            return
        with ExitStack() as turn:
            lock = self._open.log_folder / "_turn.lock"
            try:
                turn.enter_context(ownership.held(lock, beside=self._open.log_folder))
            except FileNotFoundError as error:
                raise self._open.absence() from error
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
        with self._open.lock:
            with self._open.guarded():
                self._open.refresh()
                check_newest(self, expected_revision, self._open.newest)
                self._keep_folders()
            self._append(rows, expected_revision + 1, commit_id)
            self._open.take_in(expected_revision + 1, entries_in(rows.select(ENTRY_COLUMNS).to_batches()))
        self._snapshot_if_due()
        return expected_revision + 1

    def _append(self, rows: pa.Table, revision: int, commit_id: str) -> None:
        """Commit the rows of the revision that follows the newest one that was read."""
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(APP, revision)],
        )
        for _ in range(_MOST_RACES):
            try:
                write_deltalake(self._open.table, rows, mode="append", commit_properties=properties)
            except (DeltaError, OSError) as error:
                if self._is_committed(revision, commit_id, error):
                    return
            else:
                self._open.note_own(revision)
                return
        raise StoreUnavailableError(
            self.location, f"{_MOST_RACES} attempts to commit lost to maintenance of the table; try again later"
        )

    def _is_committed(self, revision: int, commit_id: str, error: Exception) -> bool:
        """Return whether a commit happened although it ended with an error; false means that it lost a race.

        An object store may report that a commit's place is taken when the commit itself has taken it.
        """
        try:
            self._open.refresh(is_forced=True)
            if self._open.newest >= revision:
                rows = changes_in(self._open.table, revision - 1, revision, ["commit_id"])
                if rows["commit_id"].unique().to_pylist() == [commit_id]:
                    return True
        except (DeltaError, OSError, pa.ArrowException, StoreUnavailableError, DamagedError) as unread:
            raise OutcomeUnknownError(self.location, revision, f"{one_line(error)}; then {one_line(unread)}") from error
        check_newest(self, revision - 1, self._open.newest)
        if isinstance(error, CommitFailedError):
            return False
        if self._open.log_folder is None:
            # The request may still be under way.
            raise OutcomeUnknownError(self.location, revision, one_line(error)) from error
        raise StoreUnavailableError(self.location, f"nothing was changed: {one_line(error)}") from error

    def _keep_folders(self) -> None:
        """Make the folders of a table on a disk that root writes to: its owner adds files to them too."""
        if self._open.log_folder is not None:
            for form in ("change", "snapshot"):
                keep_folder_as_root(self._open.log_folder.parent / f"form={form}")

    def _snapshot_if_due(self) -> None:
        """Add a snapshot and merge small files if it is time; a failure makes later reads slower, and nothing else."""
        try:
            view = self._open.view_of(None)
            commits, rows = view.revision - view.snapshot_revision, len(view.tail)
            if commits < SNAPSHOT_REVISIONS and rows < max(SNAPSHOT_ROWS, view.snapshot_rows // SNAPSHOT_SHARE):
                return
            # On a separate `DeltaTable`, so that readers go on meanwhile.
            table = self._open.opened_anew()
            write_snapshot(table, view, self._storage_options)
            table.optimize.compact(partition_filters=[("form", "=", "change")])
        except (DeltaError, OSError, pa.ArrowException, StoreUnavailableError, DamagedError) as error:
            logger.warning("%s: no snapshot was made, so reads take longer: %s", self.location, one_line(error))


def _revision(row: Mapping[str, Any]) -> Revision:
    at_ms = (row["at"] - EPOCH) // MILLISECOND
    found = Revision(row["revision"], at_ms, row["who"], row["why"], row["count_all"], row["door"], row["caller"])
    check_sum(f"revision {found.revision}", row["commit_checksum"], *astuple(found))
    return found
