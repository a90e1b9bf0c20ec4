"""The history of a YAML store is an SQLite file beside the document, with a row for every commit and every entry of it.

SQLite sees to what such a file needs: a commit is there whole or not at all, on the disk, authors write one after
another, and readers see none of a commit that is being made. An author keeps the lock of the file from the first look
until the document is in its place (`locking_mode=EXCLUSIVE`). A commit is *published* when the document says it; one
that is not is what a crash left between the two, and the next author publishes or drops it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from spark_throttle.errors import DamagedError, StoreUnavailableError, UnknownVersionError
from spark_throttle.files.ownership import check_writable, opened_or_made, status_of
from spark_throttle.record import checksum_of
from spark_throttle.store.file.document import Document
from spark_throttle.store.memory_store import Commit
from spark_throttle.store.store import KINDS, Change, Revision

FORMAT: Final = 1
_LOOKING: Final = threading.Lock()
"""While a process makes a history: to close a file ends all locks that the process has on it, SQLite's too."""

_SECONDS: Final = 30.0
"""How long a caller waits for its turn."""

_COMMITS: Final = """CREATE TABLE commits (
    revision INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL,
    changes INTEGER NOT NULL, door TEXT, caller TEXT, document TEXT NOT NULL, is_published INTEGER NOT NULL,
    checksum INTEGER NOT NULL
)"""
_ENTRIES: Final = """CREATE TABLE entries (
    revision INTEGER NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT, given TEXT,
    PRIMARY KEY (revision, position)
) WITHOUT ROWID"""
_TABLES: Final = (_COMMITS, _ENTRIES, f"PRAGMA user_version = {FORMAT}")
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""SQLite's codes for a file that is not as it was written; all others are of a file that cannot be used now."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The facts of a commit in a history."""

    revision: Revision
    document: str
    """Digest of the document after it."""

    is_published: bool


class History:
    """The history beside a document.

    Parameters
    ----------
    document
        The document of the store; neither need be there.
    """

    def __init__(self, document: Document) -> None:
        self._document = document

    def make(self) -> None:
        """Make it, empty, where there is none.

        Raises
        ------
        OSError
            If it cannot be made, is a link, or if root would write to a file that stands elsewhere too.
        """
        with _LOOKING:
            path = self._document.history_path
            with suppress(FileNotFoundError):
                check_writable(path.with_name(path.name + "-journal"))  # SQLite's, while it writes
            try:
                check_writable(path)
            except FileNotFoundError:
                beside = self._document.path
                descriptor, _ = opened_or_made(path, os.O_RDWR, 0o666, beside=beside)
                os.close(descriptor)

    @contextmanager
    def read(self) -> Iterator[Pages]:
        """Return what it says now, as long as the context lasts; an author waits until it ends.

        Raises
        ------
        OSError
            If it cannot be read, or is a link.
        StoreUnavailableError
            If an author keeps it for long.
        """
        with _LOOKING:
            status_of(self._document.history_path)  # refuses a link
        with self._connected("ro") as pages:
            pages.execute("BEGIN")
            yield pages

    @contextmanager
    def written(self) -> Iterator[Pages]:
        """Keep it to write; others wait until the context ends.

        Raises
        ------
        OSError
            As `make`.
        StoreUnavailableError
            If another author keeps it for long.
        DamagedError
            If it is no history.
        """
        self.make()
        with self._connected("rw") as pages:
            pages.execute("BEGIN EXCLUSIVE")
            # Not before: of two that wait with a read lock that they do not give back, neither would go on.
            pages.execute("PRAGMA locking_mode = EXCLUSIVE")
            for statement in () if pages.format() else _TABLES:
                pages.execute(statement)
            yield pages

    @contextmanager
    def _connected(self, mode: str) -> Iterator[Pages]:
        path = self._document.history_path
        uri = f"file:{quote(str(path))}?mode={mode}"
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreUnavailableError(self._document.location, f"{path}: {error}") from error
        with closing(connection):
            yield Pages(connection, path, self._document.location)


class Pages:
    """An opened history.

    Every method raises `DamagedError` if the file is not what was written, and `StoreUnavailableError` if SQLite cannot
    use it now.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, location: str) -> None:
        self._connection = connection
        self._path = path
        self._location = location

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        with self._told():
            return self._connection.execute(statement, values).fetchall()

    def format(self) -> int:
        """Return the format of the tables; 0 where there are none.

        Raises
        ------
        UnknownVersionError
            If a newer release made them.
        """
        ((found,),) = self.execute("PRAGMA user_version")
        if int(found) > FORMAT:
            raise UnknownVersionError(f"the history {self._path}", int(found), FORMAT)
        if not found and self.execute("SELECT name FROM sqlite_master"):
            raise self._damaged("its tables have no format")
        return int(found)

    def newest(self) -> Recorded | None:
        """Return the newest commit, published or not; `None` if there is none."""
        return self._one("SELECT * FROM commits ORDER BY revision DESC LIMIT 1")

    def recorded(self, revision: int) -> Recorded | None:
        """Return the facts of a commit."""
        return self._one("SELECT * FROM commits WHERE revision = ?", revision)

    def commits(self, *, after: int, until: int) -> list[Commit]:
        """Return the commits of these revisions.

        Raises
        ------
        DamagedError
            If one of them is missing, or not all of its entries are there.
        """
        facts = self._rows("SELECT * FROM commits WHERE revision > ? AND revision <= ? ORDER BY revision", after, until)
        rows = self._rows(
            "SELECT revision, kind, name, body, given FROM entries WHERE revision > ? AND revision <= ? "
            "ORDER BY revision, position", after, until,
        )  # fmt: skip
        entries = {revision: tuple(row[1:] for row in each) for revision, each in groupby(rows, lambda row: row[0])}
        found: list[Commit] = []
        for number, row in enumerate(facts, start=after + 1):
            recorded, checksum = _recorded(row), row[-1]
            revision = recorded.revision
            changes = tuple(Change(*entry) for entry in entries.get(revision.revision, ()))
            is_whole = len(changes) == revision.changes and set(KINDS).issuperset(each.kind for each in changes)
            if revision.revision != number or not is_whole:
                raise self._damaged(f"revision {number} is missing from it, or a part of it")
            commit = Commit(revision, changes)
            if checksum != _checksum(commit, recorded.document):
                raise self._damaged(f"revision {number} is not what was written")
            found.append(commit)
        if len(found) != until - after:
            raise self._damaged(f"revision {after + len(found) + 1} is missing from it, or a part of it")
        return found

    def add(self, commit: Commit, document: str, *, is_published: bool) -> None:
        """Write a commit, down to the disk."""
        each = commit.revision
        self.execute(
            "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            each.revision, each.at_ms, each.who, each.why, each.changes, each.door, each.caller, document, is_published,
            _checksum(commit, document),
        )  # fmt: skip
        rows = [(each.revision, at, *_fields(change)) for at, change in enumerate(commit.changes)]
        with self._told():
            self._connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._keep()

    def publish(self, revision: int) -> None:
        """Note that the document says a commit."""
        self.execute("UPDATE commits SET is_published = 1 WHERE revision = ?", revision)
        self._keep()

    def drop(self, revision: int) -> None:
        """Take out a commit that was never published."""
        self.execute("DELETE FROM entries WHERE revision = ?", revision)
        self.execute("DELETE FROM commits WHERE revision = ?", revision)
        self._keep()

    def _keep(self) -> None:
        """Have the disk keep what was written; the file stays locked."""
        self.execute("COMMIT")
        self.execute("BEGIN EXCLUSIVE")

    def _one(self, statement: str, *values: object) -> Recorded | None:
        rows = self._rows(statement, *values)
        return _recorded(rows[0]) if rows else None

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return what a query finds; an empty file has no tables."""
        return self.execute(statement, *values) if self.format() else []

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second of a name that SQLite wants to tell
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _DAMAGE:
                raise self._damaged(f"SQLite says of it: {error}") from error
            said = f"another author has kept it for {_SECONDS:g} s" if code == sqlite3.SQLITE_BUSY else str(error)
            raise StoreUnavailableError(self._location, f"{self._path}: {said}") from error

    def _damaged(self, problem: str) -> DamagedError:
        return damaged(
            self._location, f"its history {self._path} cannot be read: {problem}", "put an empty file in its place"
        )


def damaged(location: str, problem: str, anew: str) -> DamagedError:
    """Return the error for a store without a whole history; `anew` says how another one is begun."""
    return DamagedError(
        f"the policy store {location}",
        f"{problem}; policies are read as they stand, and nothing is changed",
        f"restore the history from a backup, or, if it may begin anew, {anew}",
    )


def _recorded(row: tuple[Any, ...]) -> Recorded:
    revision, at_ms, who, why, changes, door, caller, document, is_published, _ = row
    facts = Revision(revision, at_ms, who, why, changes, door, caller)
    return Recorded(facts, str(document), bool(is_published))


def _checksum(commit: Commit, document: str) -> int:
    """Return the checksum of a commit and of its document's digest: SQLite's pages have none."""
    return checksum_of([*astuple(commit.revision), document, *map(_fields, commit.changes)])


def _fields(change: Change) -> tuple[str, str, str | None, str | None]:
    return change.kind, change.name, change.body, change.given
