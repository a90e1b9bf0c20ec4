"""Policies in a YAML file that people may also edit, with its history in a file next to it.

`policies.yaml` is the document in force, so a job may also follow the file itself; `policies.yaml.log` has a line of
JSON for every commit. A commit writes the whole document, which suits a few thousand namespaces; larger policies belong
in a `delta_store`.

Authors take turns by a lock on `policies.yaml.lock`, on a disk that all of them see. Before the document is moved into
place, its commit is written to `policies.yaml.pending`; the next reader or author finishes or drops a commit that a
crash left there. A document that was edited by hand becomes a commit of its own, with the author `HAND`, as soon as the
store is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

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
from spark_throttle.files.versioned_json import parse_versioned
from spark_throttle.policy.codec import dump_policies, parse_policies
from spark_throttle.store.entries import changes_between, document_of, entries_of
from spark_throttle.store.memory_store import Commit, MemoryStore
from spark_throttle.store.store import KINDS, Author, Change, Entry, Kind, Revision

HAND: Final = "edited by hand"
"""Author of a change that is found in the document but not in its log."""

FORMAT: Final = 2
"""The newest format of a line of the log. A line without an entry that a tenant's administrator wrote has format 1, so
that older releases read it."""

_UNPENDING: Final = "remove the file; what the document has of it already is then a change that was edited by hand"
_ABSENT: Final = "there is no such file; create it, or correct the path"


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
        self._refresh()

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> FileStore:
        """Return the store at `path`; create it if it does not exist."""
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
        """How often the log was found to be another than was read before."""
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
        return self._fresh().changed(after=after, until=until)

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first."""
        return self._fresh().history(before=before, limit=limit)

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that holds nobody up: a commit waits for its own turn."""
        return nullcontext()

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        """Write or remove entries, and return the new revision."""
        with self._lock, self._locked():
            self._take_in()
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
            log_bytes = self._log.stat().st_size if self._log.exists() else 0
        except FileNotFoundError as error:
            raise StoreUnavailableError(self.location, _ABSENT) from error
        except OSError as error:
            raise StoreUnavailableError(self.location, f"cannot read it: {error.strerror}") from error
        return document.st_mtime_ns, document.st_size, document.st_ino, log_bytes, int(self._pending.exists())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            if not self._path.exists():
                raise StoreUnavailableError(self.location, _ABSENT)
            with file_lock.held(self._lock_file, beside=self._path):
                yield
        except OSError as error:
            raise StoreUnavailableError(self.location, f"{error.strerror}") from error

    def _take_in(self) -> None:
        """Read the new part of the log, finish a pending commit, and commit what was edited by hand."""
        self._read_log()
        content = self._path.read_bytes()
        digest = _digest(content)
        if self._pending.exists():
            line = self._pending.read_bytes()
            revision, document = self._read_pending(line)
            if document == digest and revision > self._memory.revision():
                self._append_to_log(line)
            self._pending.unlink()
        if digest != self._digest:
            self._take_in_edit(content, digest)
        self._signature = self._signed()

    def _read_pending(self, line: bytes) -> tuple[int, str]:
        """Return the revision of the pending commit, and the digest of its document."""
        what = f"the pending commit {self._pending}"
        try:
            commit, document = _parsed(line, what)
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
            self._append_to_log(_line(Commit(revision, changes), digest).encode())
        self._digest = digest

    def _write(self, commit: Commit) -> None:
        """Write a commit: the pending file, the document and the log, in this order."""
        after = MemoryStore()
        first = replace(commit.revision, revision=1)
        after.replay([Commit(first, tuple(_as_changes(self._memory.scan())) + commit.changes)])
        content = dump_policies(document_of(after.scan(), what=self.location)).encode()
        line = _line(commit, _digest(content))
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
        try:
            descriptor = opened(self._log, os.O_RDONLY)
        except FileNotFoundError:
            self._forget()
            return
        with os.fdopen(descriptor, "rb") as file:
            file.seek(self._log_bytes - len(self._last_line))
            lines = file.read()
            if not lines.startswith(self._last_line):
                self._forget()
                file.seek(0)
                lines = file.read()
        lines = lines[len(self._last_line) :]
        complete = lines[: lines.rfind(b"\n") + 1]
        for line in complete.splitlines():
            commit, self._digest = _parsed(line, f"the policy log {self._log}")
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


def _as_changes(entries: Iterator[Entry]) -> Iterator[Change]:
    return (Change(entry.kind, entry.name, entry.body, entry.given) for entry in entries)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _replace(path: Path, content: bytes, *, like: Path) -> None:
    """Write a complete file, then move it into place; it has the mode of another, and its owner, if root writes it."""
    replace_whole(path, content, mode=None, like=like, is_owner_needed=False)


def _line(commit: Commit, digest: str) -> str:
    has_given = any(change.given is not None for change in commit.changes)
    changes = [
        [change.kind, change.name, change.body, *([change.given] if has_given else [])] for change in commit.changes
    ]
    fields = {"format": FORMAT if has_given else 1, **asdict(commit.revision), "entries": changes, "document": digest}
    return json.dumps(fields, ensure_ascii=True) + "\n"


def _parsed(line: bytes, what: str) -> tuple[Commit, str]:
    def commit_of(fields: dict[str, Any]) -> tuple[Commit, str]:
        # Releases before the last two fields write the same format, and read lines that have them.
        names = ("revision", "at_ms", "who", "why", "changes")
        revision = Revision(*(fields[name] for name in names), fields.get("door"), fields.get("caller"))  # type: ignore[call-arg] # mypy counts a generator as all
        commit = Commit(revision, tuple(Change(*change) for change in fields["entries"]))
        _check_types(commit)
        return commit, str(fields["document"])

    return parse_versioned(line, what, FORMAT, commit_of, remedy="restore it from a backup of the store")


def _check_types(commit: Commit) -> None:
    """Refuse a commit with a field of another type than `_line` writes."""
    facts = commit.revision
    numbers, texts = (facts.revision, facts.at_ms, facts.changes), [facts.who, facts.why]
    optional = [facts.door, facts.caller]
    for change in commit.changes:
        texts += [change.kind, change.name]
        optional += [change.body, change.given]
    is_right = all(type(number) is int for number in numbers) and all(isinstance(text, str) for text in texts)
    if not is_right or not all(isinstance(text, str | None) for text in optional):
        raise TypeError("a field has another type than a commit's")
    if not set(KINDS).issuperset(change.kind for change in commit.changes):
        raise ValueError("an entry is of no known kind")
