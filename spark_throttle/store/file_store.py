"""Policies in a YAML file that people may also edit, with its history in a file next to it.

`policies.yaml` is the document in force, so a job may also follow the file itself; `policies.yaml.log` has a line of
JSON for every commit. A commit writes the whole document, which suits a few thousand namespaces; larger policies belong
in a `delta_store`.

Authors take turns by a lock on `policies.yaml.lock`, on a disk that all of them see. Before the document is moved into
place, its commit is written to `policies.yaml.pending`; the next reader or author finishes or drops a commit that a
crash left there. A document that was edited by hand becomes a commit of its own, with the author `HAND`, as soon as the
store is read.

The log is made, empty, before the lock is, so a lock without a log means that the log was lost. Readers then go on with
the policies as they stand. Changes are refused, for they would begin a history anew in which every entry is the
administrators', and revisions that others have seen are given again. Whoever means that makes an empty log.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from spark_throttle.errors import (
    ConflictError,
    DamagedError,
    OutcomeUnknownError,
    PolicyError,
    StoredPolicyError,
    StoreUnavailableError,
)
from spark_throttle.files import file_lock
from spark_throttle.files.ownership import opened, opened_or_made, replace_whole
from spark_throttle.policy.codec import dump_policies, parse_policies
from spark_throttle.remedies import Remedy
from spark_throttle.store.commit_lines import line_of, parsed_line
from spark_throttle.store.entries import changes_between, document_of, entries_of
from spark_throttle.store.memory_store import Commit, MemoryStore
from spark_throttle.store.store import Author, Change, Entry, Kind, Revision

logger = logging.getLogger(__name__)

HAND: Final = "edited by hand"
"""Author of a change that is found in the document but not in its log."""

_UNPENDING: Final = "remove the file; what the document has of it already is then a change that was edited by hand"
_ABSENT: Final = ("there is no such file", Remedy.MAKE_STORE)


class FileStore:
    """A `PolicyStore` in a YAML file.

    Parameters
    ----------
    path
        The document. Its history, lock and pending commit are files next to it.

    Raises
    ------
    StoreUnavailableError
        If the file does not exist; `create` creates it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._log, self._pending, self._lock_file = (
            self._path.with_name(self._path.name + suffix) for suffix in (".log", ".pending", ".lock")
        )
        self._lock = threading.RLock()
        self._memory = MemoryStore(self.location)
        self._log_bytes = 0
        self._last_line = b""
        self._digest = ""
        self._signature: tuple[int, ...] = ()
        self._generation = 0
        self._is_log_lost = False
        self._refresh()

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> FileStore:
        """Return the store at `path`; create it if it does not exist.

        Raises
        ------
        DamagedError
            If only its document does not exist.
        """
        _check_document(Path(path))
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("x", encoding="utf-8") as file:
                file.write("{}\n")
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreUnavailableError(f"file:{path}", f"it cannot be created: {error.strerror}") from error
        return cls(path)

    @property
    def location(self) -> str:
        """Name of the store in messages."""
        return f"file:{self._path}"

    @property
    def generation(self) -> int:
        """How often the log was found to be another than was read before, or the document without one."""
        return self._generation

    def revision(self) -> int:
        """Return the newest revision; while the files do not change, only `stat` is called."""
        return self._fresh().revision()

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        return self._fresh().get(kind, name, at=at)

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[Entry]:
        """Return at most `limit` entries of a kind whose names follow `after`, by name."""
        return self._fresh().page(kind, after=after, limit=limit, at=at, resource_group=resource_group)

    def scan(self, *, at: int | None = None) -> Iterator[Entry]:
        """Yield every entry, by kind and name."""
        return self._fresh().scan(at=at)

    def delegated(self, *, at: int | None = None) -> list[Entry]:
        """Return the namespaces' entries that tenants' administrators wrote, by name."""
        return self._fresh().delegated(at=at)

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        """Yield the entries that the commits after revision `after`, up to and including `until`, wrote, in order."""
        memory = self._fresh()
        if after < until:
            self.check_whole()
        return memory.changed(after=after, until=until)

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        self.check_whole()
        return self._fresh().history(before=before, limit=limit)

    def check_whole(self) -> None:
        """Refuse to go on without the log."""
        with self._lock:
            self._refresh()
            if self._is_log_lost:
                raise self._lost_log()

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that holds nobody up: a commit waits for its own turn."""
        return nullcontext()

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        """Write or remove entries, and return the new revision."""
        with self._lock, self._locked():
            self._take_in()
            if self._is_log_lost:
                raise self._lost_log()
            newest = self._memory.revision()
            if expected_revision != newest:
                raise ConflictError(f"the policy store {self.location}", expected_revision, newest)
            revision = Revision.of(newest + 1, at_ms, author, len(changes))
            self._write(Commit(revision, tuple(changes)))
        return revision.revision

    def _fresh(self) -> MemoryStore:
        with self._lock:
            self._refresh()
            return self._memory

    def _refresh(self) -> None:
        """Read what others have committed or edited."""
        if self._signed() == self._signature:
            return
        with self._locked():
            self._take_in()

    def _signed(self) -> tuple[int, ...]:
        """Return values that change when a file does: a commit grows the log, an edit gives the document a new time."""
        try:
            document = self._path.stat()
            log_bytes = self._log.stat().st_size if self._log.exists() else -1
        except FileNotFoundError as error:
            _check_document(self._path)
            raise StoreUnavailableError(self.location, *_ABSENT) from error
        except OSError as error:
            raise StoreUnavailableError(self.location, f"cannot read it: {error.strerror}") from error
        return document.st_mtime_ns, document.st_size, document.st_ino, log_bytes, int(self._pending.exists())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            if not self._path.exists():
                _check_document(self._path)
                raise StoreUnavailableError(self.location, *_ABSENT)
            if not self._lock_file.exists():
                self._opened_log().close()
            with file_lock.held(self._lock_file, beside=self._path):
                yield
        except OSError as error:
            raise StoreUnavailableError(self.location, f"{error.strerror}") from error

    def _take_in(self) -> None:
        """Read the new part of the log, finish a pending commit, and commit what was edited by hand.

        Without its log, only what the document says is read.
        """
        self._note_whether_log_is_lost()
        if not self._is_log_lost:
            self._read_log()
        content = self._path.read_bytes()
        digest = _digest(content)
        if self._pending.exists() and not self._is_log_lost:
            line = self._pending.read_bytes()
            revision, document = self._read_pending(line)
            if document == digest and revision > self._memory.revision():
                self._append_to_log(line)
            self._pending.unlink()
        if digest != self._digest:
            self._take_in_edit(content, digest)
        self._signature = self._signed()

    def _note_whether_log_is_lost(self) -> None:
        was_lost, self._is_log_lost = self._is_log_lost, not self._log.exists()
        if was_lost and not self._is_log_lost:
            self._forget()
        elif self._is_log_lost and not was_lost:
            logger.error("%s", self._lost_log())

    def _lost_log(self) -> DamagedError:
        return DamagedError(
            f"the policy store {self.location}",
            f"its log {self._log} is not there, and with it the history and who wrote which entry; policies are read "
            f"as they stand, and nothing is changed",
            "restore the log from a backup, or, if the history may begin anew, make an empty file of that name",
        )

    def _read_pending(self, line: bytes) -> tuple[int, str]:
        """Return the revision of the pending commit, and the digest of its document."""
        what = f"the pending commit {self._pending}"
        try:
            commit, document = parsed_line(line, what)
        except DamagedError as error:
            raise DamagedError(what, error.problem, _UNPENDING) from error
        revision, newest = commit.revision.revision, self._memory.revision()
        if not line.endswith(b"\n") or revision > newest + 1:
            raise DamagedError(
                what, f"revision {revision} does not follow revision {newest}, or is cut off", _UNPENDING
            )
        return revision, document

    def _take_in_edit(self, content: bytes, digest: str) -> None:
        try:
            document = parse_policies(content)
        except PolicyError as error:
            problem = f"{error.problem} (in {self._path}; correct it, then try again)"
            raise StoredPolicyError(error.path, problem) from None
        before = {(entry.kind, entry.name): entry.body or "{}" for entry in self._memory.scan()}
        changes = tuple(changes_between(before, entries_of(document)))
        if changes:
            at_ms = self._path.stat().st_mtime_ns // 1_000_000
            revision = Revision.of(self._memory.revision() + 1, at_ms, Author(HAND, door="hand"), len(changes))
            commit = Commit(revision, changes)
            if self._is_log_lost:
                self._memory.replay([commit])
                self._generation += 1
            else:
                self._append_to_log(line_of(commit, digest).encode())
        self._digest = digest

    def _write(self, commit: Commit) -> None:
        """Write a commit: the pending file, the document and the log, in this order."""
        after = MemoryStore()
        first = replace(commit.revision, revision=1)
        after.replay([Commit(first, tuple(_as_changes(self._memory.scan())) + commit.changes)])
        content = dump_policies(document_of(after.scan(), what=self.location)).encode()
        line = line_of(commit, _digest(content))
        with self._opened_log() as log:
            _replace(self._pending, line.encode(), like=self._path)
            try:
                _replace(self._path, content, like=self._path)
            except OSError:
                self._pending.unlink(missing_ok=True)
                raise
            try:
                self._append_to(log, line.encode())
                self._pending.unlink()
                self._signature = self._signed()
            except OSError as error:
                raise OutcomeUnknownError(self.location, commit.revision.revision, str(error.strerror)) from error

    def _append_to_log(self, line: bytes) -> None:
        with self._opened_log() as log:
            self._append_to(log, line)

    def _opened_log(self) -> BinaryIO:
        descriptor, _ = opened_or_made(self._log, os.O_WRONLY | os.O_APPEND, 0o666, beside=self._path)
        return os.fdopen(descriptor, "ab")

    def _append_to(self, log: BinaryIO, line: bytes) -> None:
        log.write(line)
        log.flush()
        os.fsync(log.fileno())
        self._read_log()

    def _read_log(self) -> None:
        """Read the commits that were appended since the log was last read; all of them, if it is not that log any more.

        Somebody may have cut it or put a backup in its place: then this process knows commits that no other can find.
        """
        with os.fdopen(opened(self._log, os.O_RDONLY), "rb") as file:
            file.seek(self._log_bytes - len(self._last_line))
            lines = file.read()
            if not lines.startswith(self._last_line):
                self._forget()
                file.seek(0)
                lines = file.read()
        lines = lines[len(self._last_line) :]
        complete = lines[: lines.rfind(b"\n") + 1]
        for line in complete.splitlines():
            commit, self._digest = parsed_line(line, f"the policy log {self._log}")
            self._memory.replay([commit])
            self._last_line = line + b"\n"
        self._log_bytes += len(complete)
        if len(complete) < len(lines):  # a crash cut off the last line; its commit is pending or was never made
            with self._opened_log() as log:
                log.truncate(self._log_bytes)

    def _forget(self) -> None:
        self._memory = MemoryStore(self.location)
        self._log_bytes, self._last_line, self._digest = 0, b"", ""
        self._generation += 1


def _check_document(path: Path) -> None:
    """Refuse a log without its document: a new document would be a change that removes every policy."""
    log = path.with_name(path.name + ".log")
    if not path.exists() and log.exists() and log.stat().st_size:
        raise DamagedError(
            f"the policy store file:{path}",
            f"its document is not there, and its log {log} is",
            "restore the document from a backup, or, to begin a new store, move the log away first",
        )


def _as_changes(entries: Iterator[Entry]) -> Iterator[Change]:
    return (Change(entry.kind, entry.name, entry.body, entry.given) for entry in entries)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _replace(path: Path, content: bytes, *, like: Path) -> None:
    """Write a complete file, then move it into place; it has the mode of another, and its owner, if root writes it."""
    replace_whole(path, content, mode=None, like=like, is_owner_needed=False)
