"""A store reads its Delta table anew only where it may have changed, and refuses one that is not whole.

On a disk, reading anew costs two `stat` while nothing changes. A table that was deleted, replaced by another or put
back is noticed by the newest commit that was read, whose file is another then: delta-rs would go on with what it has
read.

delta-rs takes a commit for whole that was cut off after a line, and a table for whole whose middle is gone. But every
commit adds the rows of one revision, and says their numbers in the statistics of its files. So one look at the list of
files, which delta-rs holds in memory, finds a revision that has no rows, and rows that no commit has. It cannot be
noticed that the newest commits were removed whole: what is left is a whole table of an older revision.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from spark_throttle.errors import ConfigurationError, DamagedError, StoreUnavailableError, ThrottleError
from spark_throttle.files.storage import one_line
from spark_throttle.policy.source import SETTLING_NS
from spark_throttle.remedies import Remedy
from spark_throttle.store.delta.rows import APP, SCHEMA, SNAPSHOT_APP, View, view_at, with_changes, with_tail
from spark_throttle.store.store import Entry, check_revision

_RESTORE: Final = "restore it from a backup of the store"
_FORMS: Final = ("form=change", "form=snapshot")
"""Folders of the files that hold a store's rows."""

_SAID: Final = re.compile(
    r"Json error|Expected contiguous commit files|No table metadata|protocol found in delta log|Invalid Checkpoint|"
    r"[Pp]arquet (argument )?error|Parquet (file size|magic)|magic bytes|deserialize thrift|[Cc]orrupt|"
    r"Unexpected end of stream|non.?UTF-?8|^revision \d+ of \d+ is missing|^the checksum of |at line \d+ column \d+|"
    r"flatbuffers|base64|[Dd]ecompress|Malformed|Requested range was invalid|Object at location .* not found"
)
"""What delta-rs and Arrow say of a file that they have read and cannot understand, and `rows` of a hole."""

_UNREACHED: Final = re.compile(
    r"Generic (?!delta)\w+ error(?!: Requested range was invalid)|error sending request|timed out|Connection"
)
"""What they say of an object store that they did not reach."""


def damaged(location: str, problem: str, remedy: str = _RESTORE) -> DamagedError:
    """Return the error of a store that says `problem`."""
    return DamagedError(f"the policy store {location}", problem, remedy)


def error_of(location: str, said: str) -> ThrottleError:
    """Return what an error of delta-rs or Arrow means: the contents of a file, or that it was not reached."""
    is_damage = _SAID.search(said) is not None and _UNREACHED.search(said) is None
    return damaged(location, said) if is_damage else StoreUnavailableError(location, said)


def absence(location: str, remains: list[str]) -> ThrottleError:
    """Return the error of a store whose log has no commit: there is none, or its log is lost.

    Parameters
    ----------
    remains
        The files that only a store leaves (`remains_of`).
    """
    if not remains:
        return StoreUnavailableError(location, "there is no policy store", Remedy.MAKE_STORE)
    return damaged(
        location,
        f"its log has no commit, though {remains[0]} is there",
        "restore _delta_log from a backup of the store, or, if its policies and their history may be lost, move the "
        "folder of the store away",
    )


def remains_of(location: str, folder: Path | None, options: Mapping[str, str] | None) -> list[str]:
    """Return the files of rows in the place of a table, by path.

    Parameters
    ----------
    folder
        The table's folder, if it is on a disk.

    Raises
    ------
    DeltaError, OSError, pyarrow.ArrowException
        If the place cannot be listed.
    """
    files = (
        fs.PyFileSystem(DeltaStorageHandler(location, dict(options or {})))
        if folder is None
        else fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    )
    found = list[str]()
    for form in _FORMS:
        with suppress(TableNotFoundError):
            found += [info.path for info in files.get_file_info(fs.FileSelector(form, allow_not_found=True))]
    return sorted(path for path in found if path.endswith(".parquet"))


def check_no_revision_is_missing(location: str, table: DeltaTable, newest: int, *, after: int | None = None) -> None:
    """Refuse a table that lacks the rows of a revision since its newest snapshot, or the end of a commit.

    Parameters
    ----------
    newest
        Its newest revision, by its log.
    after
        The revision after which none may be missing, if not the newest snapshot's.

    Raises
    ------
    DamagedError
        If it does.
    """
    changes, snapshot = _revisions_in(table)
    if changes is None:
        return  # another program has rewritten the files without statistics; the readers of rows look for themselves
    highest = max((last for _, last in changes), default=newest)
    if highest > newest:
        raise damaged(location, f"it has rows of revision {highest}, and its log ends with {newest}")
    expected = (snapshot if after is None else after) + 1
    for first, last in sorted(changes):
        if first > expected:
            break
        expected = max(expected, last + 1)
    if expected <= newest:
        raise damaged(location, f"revision {expected} of {newest} is missing")


def _revisions_in(table: DeltaTable) -> tuple[list[tuple[int, int]] | None, int]:
    """Return the first and the last revision of every file of changes, and the newest snapshot's, by the log."""
    adds = pa.table(table.get_add_actions(flatten=True))
    if not {"min.revision", "max.revision"} <= set(adds.column_names):
        return None, 0
    columns = (adds[name].to_pylist() for name in ("partition.form", "min.revision", "max.revision"))
    rows = list(zip(*columns, strict=True))
    changes = [(first, last) for form, first, last in rows if form == "change"]
    newest_snapshot = max((first for form, first, _ in rows if form == "snapshot" and first is not None), default=0)
    return None if any(None in each for each in changes) else changes, newest_snapshot


_Stamp: TypeAlias = tuple[int, int, int]
_NOTHING_READ: Final = View(0, None, 0, 0, {})


class OpenTable:
    """The table of a store; its users hold `lock` while they read it anew, or use `table`.

    Parameters
    ----------
    location
        Path or URI of the table.
    storage_options
        Credentials and settings of an object store, as delta-rs takes them.
    clock_ns
        The wall clock, which is compared only with modification times.

    Raises
    ------
    StoreUnavailableError
        If there is no table.
    """

    def __init__(self, location: str, storage_options: Mapping[str, str] | None, clock_ns: Callable[[], int]) -> None:
        self._path = location
        self._storage_options = dict(storage_options) if storage_options else None
        self._clock_ns = clock_ns
        self.lock = threading.RLock()
        self.log_folder = local_log(location)
        """Folder of the table's log; `None` if it is not on a disk."""

        self._changed_ns = -1
        """Modification time of the log's folder when it was last read; -1 if it must be read in any case."""

        self._stamp: _Stamp | None = None
        """Of the newest commit that was read; while it stays the same, no other table has replaced this one."""

        self.newest = self.newest_snapshot = 0
        """Revisions of the newest commit and the newest snapshot when the table was last read."""

        self._noted_version = -1
        """Version of the table of which these were taken, and which was found whole."""

        self._proven_snapshot = 0
        """Revision of the snapshot of which rows were last read to see whether that works."""

        self.generation = 0
        with self.guarded():
            self.table = self.opened_anew()
            self._id = self.table.metadata().id
            self._note()
        self.view = _NOTHING_READ

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the errors of delta-rs and Arrow into `DamagedError` or `StoreUnavailableError`."""
        try:
            yield
        except TableNotFoundError as error:
            raise self.absence() from error
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise error_of(f"delta:{self._path}", one_line(error)) from error

    def absence(self) -> ThrottleError:
        """Return the error of a table that has no log."""
        location, folder = f"delta:{self._path}", None if self.log_folder is None else self.log_folder.parent
        try:
            remains = remains_of(self._path, folder, self._storage_options)
        except (DeltaError, OSError, pa.ArrowException) as error:
            return StoreUnavailableError(location, one_line(error))
        return absence(location, remains)

    def opened_anew(self) -> DeltaTable:
        """Return the table as it is now, apart from the one that readers go on with.

        Raises
        ------
        ConfigurationError
            If it is not a policy store.
        """
        table = DeltaTable(self._path, storage_options=self._storage_options)
        names = {field.name for field in table.schema().fields}
        if not names.issuperset(SCHEMA.names):
            missing = ", ".join(sorted(set(SCHEMA.names) - names))
            raise ConfigurationError(f"the Delta table {self._path} is not a policy store: it has no columns {missing}")
        return table

    def refresh(self, *, is_forced: bool = False) -> None:
        """Read new commits; on a disk this costs two `stat` while there are none."""
        if self.log_folder is None:
            self._replace(self.opened_anew())
            self._note()
            if self.view.revision > self.newest:
                self._forget_view()
            return
        try:
            changed_ns = self.log_folder.stat().st_mtime_ns
        except FileNotFoundError as error:
            raise self.absence() from error
        is_known = self._stamp is not None and self._stamp == self._stamp_of(self.log_folder)
        if is_known and changed_ns == self._changed_ns and not is_forced:
            return
        if is_known:
            self.table.update_incremental()
        else:
            # The newest commit is another now: what was read from it may be gone for everybody else.
            self._changed_ns = -1
            self._replace(self.opened_anew())
            self._forget_view()
        if is_forced or not is_known or self.table.version() != self._noted_version:
            self._note()
        self._stamp = self._stamp_of(self.log_folder)
        is_settling = 0 <= self._clock_ns() - changed_ns < SETTLING_NS
        self._changed_ns = -1 if is_settling else changed_ns

    def view_of(self, at: int | None) -> View:
        """Return the entries of a revision; of the newest, which is read anew, if `at` is `None`."""
        with self.lock:
            if at is None or at > self.newest:
                self.refresh()
            revision = check_revision(at, self.newest)
            if revision < self.view.revision:
                return view_at(self.table, revision)
            if self.view.snapshot_revision < self.newest_snapshot <= revision:
                self.view = view_at(self.table, revision)
            elif self.view.revision < revision:
                self.view = with_tail(self.view, self.table, revision)
            return self.view

    def check_whole(self) -> None:
        """Refuse to go on with a table that lacks a revision of its history, or rows of its newest entries."""
        with self.lock:
            self.refresh()
            check_no_revision_is_missing(f"delta:{self._path}", self.table, self.newest, after=0)
            view = self.view_of(None)
            if view.snapshot is not None and view.snapshot_revision != self._proven_snapshot:
                view.snapshot.head(1)
                self._proven_snapshot = view.snapshot_revision

    def note_own(self, revision: int) -> None:
        """Note that this process has just committed a revision."""
        self.newest, self._noted_version = revision, self.table.version()

    def take_in(self, revision: int, entries: Iterator[Entry]) -> None:
        """Take in the entries of a revision that this process has committed, which need not be read then."""
        if self.view.revision == revision - 1:
            self.view = with_changes(self.view, entries)

    def _stamp_of(self, log: Path) -> _Stamp | None:
        """Return what tells the file of the newest commit that was read from another of its name."""
        try:
            found = (log / f"{self.table.version():020d}.json").stat()
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino

    def _forget_view(self) -> None:
        self.view = _NOTHING_READ
        self.generation += 1

    def _replace(self, table: DeltaTable) -> None:
        if table.metadata().id != self._id:
            raise StoreUnavailableError(
                f"delta:{self._path}", "another table has taken its place; open the store again to use that one"
            )
        self.table = table

    def _note(self) -> None:
        newest = self.table.transaction_version(APP) or 0
        check_no_revision_is_missing(f"delta:{self._path}", self.table, newest)
        self.newest = newest
        self._noted_version = self.table.version()
        self.newest_snapshot = self.table.transaction_version(SNAPSHOT_APP) or 0


def local_log(location: str) -> Path | None:
    """Return the folder of the table's log; `None` if it is not on a disk."""
    if "://" in location:
        return Path(location.removeprefix("file://")) / "_delta_log" if location.startswith("file://") else None
    return Path(location) / "_delta_log"
