"""Policies in a YAML file that people may also edit, with its history in a file next to it.

`policies.yaml` is the document in force, so a job may also follow the file itself; `policies.yaml.log` has a line of
JSON for every commit. A commit writes the whole document, which suits a few thousand namespaces; larger policies belong
in a `delta_store`.

Authors take turns by a lock on `policies.yaml.lock`, on a disk that all of them see. Before the document is moved into
place, its commit is written to `policies.yaml.pending`; the next reader or author finishes or drops a commit that a
crash left there. A document that was edited by hand becomes a commit of its own, with the author `HAND`, as soon as the
store is read by who may write it. A document that has neither a log nor a lock becomes a store with the first change;
who only reads it makes no file.

The log is made, empty, before the lock is, so a lock without a log means that the log was lost; a process that has read
a log knows it without the lock. Each line has the revision that follows the line before it, so a line that is missing
in the middle, doubled or altered is noticed too. Readers then go on with the document as it stands. Changes are
refused: they would be made on other policies than the document's, or begin a history anew in which every entry is the
administrators', and revisions that others have seen are given again. Whoever means that makes an empty log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final

from spark_throttle.errors import (
    DamagedError,
    OutcomeUnknownError,
    PolicyError,
    StoredPolicyError,
    StoreUnavailableError,
)
from spark_throttle.files.ownership import sync_folder
from spark_throttle.policy.codec import dump_policies, parse_policies
from spark_throttle.policy.source import SETTLING_NS
from spark_throttle.store.entries import bodies_of, changes_between, document_of, entries_of
from spark_throttle.store.file.commit_lines import line_of, parsed_pending
from spark_throttle.store.file.commit_log import CommitLog, append
from spark_throttle.store.file.document_files import (
    beside,
    check_document,
    check_no_link,
    digest_of,
    reason_of,
    replace_document,
    signature_of,
)
from spark_throttle.store.file.document_turns import DocumentTurns
from spark_throttle.store.memory_store import Commit, MemoryStore
from spark_throttle.store.store import Author, Change, Entry, Key, Kind, Revision, check_newest

logger = logging.getLogger(__name__)

HAND: Final = "edited by hand"
"""Author of a change that is found in the document but not in its log."""

_REPLACED: Final = "was replaced while it was written; a backup is put back with the lock held (flock)"


class FileStore:
    """A `PolicyStore` in a YAML file.

    Parameters
    ----------
    path
        The document. Its history, lock and pending commit are files next to it.
    clock_ns
        The wall clock, which is compared only with modification times.

    Raises
    ------
    StoreUnavailableError
        If the file does not exist; `create` creates it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock_ns: Callable[[], int] = time.time_ns,  # noqa: TID251 - the clock of the files' modification times
    ) -> None:
        self._path = Path(path)
        self._clock_ns = clock_ns
        self._log = CommitLog(self._path)
        self._turns = DocumentTurns(self._path, self._log)
        self._pending = beside(self._path, ".pending")
        self._lock = threading.RLock()
        self._memory = MemoryStore(self.location)
        self._digest = ""
        self._signature: tuple[int, ...] = ()
        self._is_settled = False
        self._generation = 0
        self._is_from_log = False
        """Whether the memory has the log's commits; otherwise it has what the document says."""

        self._has_known_log = self._is_replaced = False
        """Whether a log was read, and whether it was replaced or damaged since it last ended with the document."""

        self._problem: DamagedError | None = None
        """What is wrong with the log."""

        self._refresh()

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> FileStore:
        """Return the store at `path`; create it if it does not exist.

        Raises
        ------
        DamagedError
            If only its document does not exist.
        """
        document = Path(path)
        check_document(document)
        try:
            if not os.path.lexists(document):
                document.parent.mkdir(parents=True, exist_ok=True)
                # A lock of an older store may be there, and with it a document without a log would have lost its log.
                CommitLog(document).opened().close()
                with document.open("x", encoding="utf-8") as file:
                    file.write("{}\n")
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreUnavailableError(f"file:{path}", f"it cannot be created: {reason_of(error)}") from error
        store = cls(path)
        store._begin()
        return store

    @property
    def location(self) -> str:
        """Name of the store in messages."""
        return f"file:{self._path}"

    @property
    def generation(self) -> int:
        """How often the log was found to be another than was read before, or the document without a whole one."""
        return self._generation

    def revision(self) -> int:
        """Return the newest revision; while the files do not change, only `stat` is called."""
        return self._fresh().revision()

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""
        return self._fresh().get(kind, name, at=at)

    def find(self, keys: Collection[Key], *, at: int | None = None) -> dict[Key, Entry]:
        """Return those of some entries that exist."""
        return self._fresh().find(keys, at=at)

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
        """Refuse to go on without the log, or with a log that has a damaged line."""
        with self._lock:
            self._refresh()
            if self._problem is not None:
                raise self._problem

    def turn(self) -> AbstractContextManager[None]:
        """Return a context that holds nobody up: a commit waits for its own turn."""
        return nullcontext()

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        """Write or remove entries, and return the new revision."""
        with self._lock:
            self._refresh()  # a document that cannot be read becomes no store
            check_no_link(self._path)
            with self._turns.to_write(has_known_log=self._has_known_log):
                self._take_in(is_author=True)
                return self._commit(changes, expected_revision, author, at_ms)

    def _commit(self, changes: Sequence[Change], expected_revision: int, author: Author, at_ms: int) -> int:
        if self._problem is not None:
            raise self._problem
        newest = self._memory.revision()
        check_newest(self, expected_revision, newest)
        revision = Revision.of(newest + 1, at_ms, author, len(changes))
        self._write(Commit(revision, tuple(changes)))
        return revision.revision

    def _fresh(self) -> MemoryStore:
        with self._lock:
            self._refresh()
            return self._memory

    def _refresh(self) -> None:
        """Read what others have committed or edited."""
        signature = signature_of(self._path)
        if signature == self._signature and self._is_as_read():
            return
        self._signature = ()  # what cannot be read is tried again
        if self._is_mere_document():
            self._take_in_mere_document()
            self._note(signature)
            return
        if self._turns.may_write():
            with self._turns.to_write(has_known_log=self._has_known_log):
                self._take_in()
        else:
            with self._turns.to_read():
                self._take_in(is_writing=False)

    def _begin(self) -> None:
        """Make the log and the lock of a document that has neither."""
        with self._lock:
            if self._is_mere_document():
                check_no_link(self._path)
                with self._turns.to_write(has_known_log=self._has_known_log):
                    self._take_in()

    def _is_mere_document(self) -> bool:
        return not (self._has_known_log or os.path.lexists(self._log.path) or os.path.lexists(self._turns.path))

    def _take_in_mere_document(self) -> None:
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise StoreUnavailableError(self.location, reason_of(error)) from error
        digest = digest_of(content)
        if digest != self._digest:
            self._forget()  # so that every process gives the same revision
            self._take_in_edit(content, digest)

    def _note(self, signature: tuple[int, ...]) -> None:
        """Keep the signature that the files had before they were read."""
        self._signature, self._is_settled = signature, False

    def _is_as_read(self) -> bool:
        """Return whether the document, whose signature is as it was, is the one that was read.

        A file that has just changed may change again without a new modification time.
        """
        if not self._is_settled:
            times_ns = (self._signature[0], *self._signature[5:6])
            now_ns = self._clock_ns()
            is_settled = not any(0 <= now_ns - time_ns < SETTLING_NS for time_ns in times_ns)
            try:
                if digest_of(self._path.read_bytes()) != self._digest:
                    return False
            except OSError as error:
                raise StoreUnavailableError(self.location, reason_of(error)) from error
            self._is_settled = is_settled
        return True

    def _take_in(self, *, is_writing: bool = True, is_author: bool = False) -> None:
        """Read the new part of the log, finish a pending commit, and commit what was edited by hand.

        Without a whole log, only what the document says is read. Who may not write reads what an author would find. So
        does a reader of a log that was replaced: somebody may be putting a backup back, and it belongs to that log.
        """
        self._signature = ()
        signature = signature_of(self._path)
        self._read_history(is_writing=is_writing)
        content = self._path.read_bytes()
        digest = digest_of(content)
        if self._pending.exists() and self._is_from_log:
            line = self._pending.read_bytes()
            commit, document = parsed_pending(line, f"the pending commit {self._pending}", self._memory.revision())
            is_made = document == digest and commit.revision.revision > self._memory.revision()
            if not is_writing and is_made:
                self._add_unlogged(commit)
                self._digest = digest
            elif is_writing and is_made:
                self._append_to_log(line)
            if is_writing:
                self._pending.unlink()
        self._is_replaced = self._is_replaced and digest != self._digest and not is_author
        if digest != self._digest:
            self._take_in_edit(content, digest, is_writing=is_writing and not self._is_replaced)
            if self._is_from_log:
                return  # the log has one more line: the files are looked at once more
        self._note(signature)

    def _add_unlogged(self, commit: Commit) -> None:
        """Add a commit that the log lacks; when the files change again, all of the log is read."""
        self._memory.replay([commit])
        self._is_from_log = False
        self._generation += 1

    def _read_history(self, *, is_writing: bool) -> None:
        """Read the log. If it is not whole, this process keeps what it knows of the history, and reads the document."""
        kept, digest, generation, known = self._memory, self._digest, self._generation, self._problem
        try:
            self._log.check_there()
            if not self._is_from_log:
                self._forget()
            self._read_log(is_writing=is_writing)
        except DamagedError as error:
            self._memory, self._digest, self._generation = kept, digest, generation
            self._log.forget()
            self._is_from_log, self._is_replaced, self._problem = False, True, error
        else:
            self._is_from_log, self._has_known_log, self._problem = True, True, None
        if self._problem is not None and str(self._problem) != str(known):
            logger.error("%s", self._problem)

    def _take_in_edit(self, content: bytes, digest: str, *, is_writing: bool = True) -> None:
        try:
            document = parse_policies(content)
        except PolicyError as error:
            problem = f"{error.problem} (in {self._path}; correct it, then try again)"
            raise StoredPolicyError(error.path, problem) from None
        changes = tuple(changes_between(bodies_of(self._memory.scan()), entries_of(document)))
        if changes:
            at_ms = self._path.stat().st_mtime_ns // 1_000_000
            revision = Revision.of(self._memory.revision() + 1, at_ms, Author(HAND, door="hand"), len(changes))
            commit = Commit(revision, changes)
            if self._is_from_log and is_writing:
                self._append_to_log(line_of(commit, digest).encode())
                if not self._ends_with(commit, digest):
                    raise StoreUnavailableError(self.location, f"its log {self._log.path} {_REPLACED}")
            else:
                self._add_unlogged(commit)
        self._digest = digest

    def _ends_with(self, commit: Commit, digest: str) -> bool:
        """Return whether the log, as it was just read, ends with a commit; else its entries are not the document's."""
        return (self._memory.revision(), self._digest) == (commit.revision.revision, digest)

    def _write(self, commit: Commit) -> None:
        """Write a commit: the pending file, the document and the log, in this order."""
        content = dump_policies(document_of(self._memory.with_changes(commit).scan(), what=self.location)).encode()
        digest = digest_of(content)
        line = line_of(commit, digest).encode()
        with self._log.opened() as log:
            replace_document(self._pending, line, like=self._path)
            try:
                replace_document(self._path, content, like=self._path)
            except OSError:
                self._pending.unlink(missing_ok=True)
                raise
            try:
                sync_folder(self._path.parent)
                self._append_to(log, line)
                if not self._ends_with(commit, digest):
                    raise OutcomeUnknownError(self.location, commit.revision.revision, f"{self._log.path} {_REPLACED}")
                self._pending.unlink()
                self._note(signature_of(self._path))
            except OSError as error:
                raise OutcomeUnknownError(self.location, commit.revision.revision, str(error.strerror)) from error

    def _append_to_log(self, line: bytes) -> None:
        with self._log.opened() as log:
            self._append_to(log, line)

    def _append_to(self, log: BinaryIO, line: bytes) -> None:
        append(log, line)
        self._read_log()

    def _read_log(self, *, is_writing: bool = True) -> None:
        """Read the commits that were appended since the log was last read; all of them, if it is not that log any more.

        Then this process knows commits that no other can find.
        """
        unread = self._log.unread(is_writing=is_writing)
        if unread.is_another:
            self._is_replaced = True
            self._forget()
        read = list(self._log.commits(unread, self._memory.revision()))
        if read:
            self._memory.replay([commit for commit, _ in read])
            self._digest = read[-1][1]
        self._log.note(unread, is_writing=is_writing)

    def _forget(self) -> None:
        self._memory = MemoryStore(self.location)
        self._log.forget()
        self._digest = ""
        self._generation += 1
