"""Policies in a YAML file that people may also edit, with its history in a file next to it.

`policies.yaml` is the document in force, so a job may also follow the file itself; `policies.yaml.history` has every
commit (`history`). A commit writes the whole document, which suits a few thousand namespaces; larger policies belong in
a `delta_store`.

A commit is written to the history, then the document is moved into place, then the commit is published; an author keeps
the history locked until then. So whoever finds a commit that is not published finds what a crash left: it was made if
the document says it, and is dropped if not. A document that was edited by hand becomes a commit of its own, with the
author `HAND`, as soon as the store is read by who may write it. A document without a history becomes a store with the
first change; who only reads it makes no file.

The first line of a store's document names the history, so a document that is there without it has lost it. Readers then
go on with the document as it stands. Changes are refused: they would be made on other policies than the document's, or
begin a history anew in which every entry is the administrators', and revisions that others have seen are given again.
Whoever means that makes an empty file in its place.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Final

from spark_throttle.errors import (
    DamagedError,
    OutcomeUnknownError,
    PolicyError,
    StoredPolicyError,
    StoreUnavailableError,
)
from spark_throttle.policy.codec import dump_policies, parse_policies
from spark_throttle.policy.source import SETTLING_NS
from spark_throttle.store.entries import bodies_of, changes_between, document_of, entries_of
from spark_throttle.store.file.document import Document, digest_of
from spark_throttle.store.file.history import History, Pages, Recorded, damaged
from spark_throttle.store.memory_store import Commit, MemoryStore
from spark_throttle.store.store import Author, Change, Entry, Key, Kind, Revision, check_newest

logger = logging.getLogger(__name__)

HAND: Final = "edited by hand"
"""Author of a change that is found in the document but not in its history."""


class FileStore:
    """A `PolicyStore` in a YAML file.

    Parameters
    ----------
    path
        The document. Its history is a file next to it.
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
        self._document = Document(Path(path))
        self._clock_ns = clock_ns
        self._history = History(self._document)
        self._lock = threading.RLock()
        self._memory = MemoryStore(self.location)
        self._digest = ""
        """Of the document whose entries the memory has."""

        self._signature: tuple[int, ...] = ()
        self._is_settled = False
        self._generation = 0
        self._newest: Recorded | None = None
        """The newest commit that was read from the history."""

        self._is_recorded = False
        """Whether the memory has the history's commits; otherwise it has what the document says."""

        self._has_known_history = self._is_replaced = False
        """Whether a history was read, and whether it was replaced or damaged since the document last was its end."""

        self._problem: DamagedError | None = None
        """What is wrong with the history."""

        self._refresh()

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> FileStore:
        """Return the store at `path`; create it if it does not exist.

        Raises
        ------
        DamagedError
            If only its document does not exist.
        """
        document = Document(Path(path))
        document.check_there()
        with document.told("it cannot be created: "), suppress(FileExistsError):
            if not os.path.lexists(path):
                document.path.parent.mkdir(parents=True, exist_ok=True)
                History(document).make()
                with document.path.open("xb") as file:
                    file.write(document.head + b"{}\n")
        store = cls(path)
        store._begin()
        return store

    @property
    def location(self) -> str:
        """Name of the store in messages."""
        return self._document.location

    @property
    def generation(self) -> int:
        """How often the history was found to be another than was read before, or the document without a whole one."""
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
        """Refuse to go on without the history, or with one that cannot be read."""
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
            self.check_whole()  # a document that cannot be read becomes no store
            self._document.check_no_link()
            with self._document.told(), self._history.written() as pages:
                self._take_in(pages, self._document.content(), is_author=True)
                if self._problem is not None:
                    raise self._problem
                newest = self._memory.revision()
                check_newest(self, expected_revision, newest)
                revision = Revision.of(newest + 1, at_ms, author, len(changes))
                self._write(pages, Commit(revision, tuple(changes)))
            self._note(self._document.signature())
            return revision.revision

    def _fresh(self) -> MemoryStore:
        with self._lock:
            self._refresh()
            return self._memory

    def _refresh(self) -> None:
        """Read what others have committed or edited."""
        signature = self._document.signature()
        if signature == self._signature and self._is_as_read():
            return
        self._signature = ()  # what cannot be read is tried again
        with self._document.told():
            self._read(signature)

    def _read(self, signature: tuple[int, ...]) -> None:
        content = self._document.content()
        lack = self._lack(content)
        if lack is not None:
            self._go_on_without(lack)
            self._take_in_edit(None, content)
        elif not self._document.history_path.exists():
            self._take_in_mere_document(content)
        else:
            with self._history.read() as pages:
                content = self._document.content()
                is_behind = self._may_write() and self._is_behind(pages, content)
                if not is_behind:
                    self._take_in(pages, content, is_writing=False)
            if is_behind:
                with self._history.written() as pages:
                    self._take_in(pages, self._document.content())
                signature = self._document.signature()
        self._note(signature)

    def _begin(self) -> None:
        """Make the history of a document that has none."""
        with self._lock:
            if self._problem is None and not self._document.history_path.exists():
                self._document.check_no_link()
                with self._document.told(), self._history.written() as pages:
                    self._take_in(pages, self._document.content())

    def _lack(self, content: bytes) -> DamagedError | None:
        """Return what is wrong if there is no history where it must be."""
        path = self._document.history_path
        if path.is_file() or path.is_symlink():  # `opened` says what to do about a link
            return None
        if os.path.lexists(path):
            return damaged(
                self.location, f"its history {path} is a folder or no file at all", "put an empty file in its place"
            )
        is_named = content.startswith(self._document.head) and not self._document.path.is_symlink()
        if self._has_known_history or is_named:
            problem = f"its history {path} is not there, and with it who wrote which entry"
            return damaged(self.location, problem, "make an empty file of that name")
        return None

    def _may_write(self) -> bool:
        """Return whether this process may do what a crash or an edit left to the next reader; others only read."""
        is_effective = os.access in os.supports_effective_ids
        places = (self._document.path.parent, self._document.history_path)
        return all(os.access(place, os.W_OK, effective_ids=is_effective) for place in places)

    def _is_behind(self, pages: Pages, content: bytes) -> bool:
        """Return whether the history lacks what the document says, or a crash left a commit in it."""
        try:
            newest = pages.newest()
        except DamagedError:
            return False
        return newest is None or not newest.is_published or newest.document != digest_of(content)

    def _take_in_mere_document(self, content: bytes) -> None:
        if digest_of(content) != self._digest:
            self._forget()  # so that every process gives the same revision
            self._take_in_edit(None, content)

    def _note(self, signature: tuple[int, ...]) -> None:
        """Keep the signature that the files had before they were read."""
        self._signature, self._is_settled = signature, False

    def _is_as_read(self) -> bool:
        """Return whether the document, whose signature is as it was, is the one that was read.

        A file that has just changed may change again without a new modification time.
        """
        if not self._is_settled:
            now_ns = self._clock_ns()
            is_settled = not any(0 <= now_ns - time_ns < SETTLING_NS for time_ns in self._signature[::3])
            with self._document.told():
                if digest_of(self._document.content()) != self._digest:
                    return False
            self._is_settled = is_settled
        return True

    def _take_in(self, pages: Pages, content: bytes, *, is_writing: bool = True, is_author: bool = False) -> None:
        """Read the new commits, finish one that a crash left, and commit what was edited by hand.

        Without a whole history, only what the document says is read. Who may not write reads what an author would find.
        So does a reader of a history that was replaced: somebody may be putting a backup back, and the document belongs
        to that history.
        """
        digest = digest_of(content)
        try:
            self._read_history(pages, digest, is_writing=is_writing)
        except DamagedError as error:
            self._go_on_without(error)
        self._is_replaced = self._is_replaced and digest != self._digest and not is_author
        self._take_in_edit(pages if is_writing and not self._is_replaced else None, content)

    def _read_history(self, pages: Pages, digest: str, *, is_writing: bool) -> None:
        """Read the commits since the history was last read; all of them, if it is not that history any more.

        Then this process knows commits that no other can find.
        """
        newest = pages.newest()
        until = newest.revision.revision if newest else 0
        if newest is not None and not newest.is_published:
            is_made = newest.document == digest
            if is_writing:
                (pages.publish if is_made else pages.drop)(until)
            if not is_made:
                until -= 1
        known = self._newest
        is_same = known is None or (
            (found := pages.recorded(known.revision.revision)) is not None
            and (found.revision, found.document) == (known.revision, known.document)
        )
        after = self._memory.revision() if self._is_recorded and is_same else 0
        commits = pages.commits(after=after, until=until)
        newest = pages.recorded(until)
        if not (self._is_recorded and is_same):
            self._forget()
            self._is_replaced = self._is_replaced or not is_same
        self._memory.replay(commits)
        if commits and newest is not None:
            self._newest, self._digest = newest, newest.document
        self._is_recorded, self._has_known_history, self._problem = True, True, None

    def _go_on_without(self, error: DamagedError) -> None:
        """Keep what is known of a history that cannot be read; what the document says is in force."""
        if str(error) != str(self._problem):
            logger.error("%s", error)
        self._is_recorded, self._is_replaced, self._problem = False, True, error

    def _take_in_edit(self, pages: Pages | None, content: bytes) -> None:
        """Take in what the document says; it is a commit of the history that is opened to write, if one is."""
        digest = digest_of(content)
        if digest == self._digest:
            return
        try:
            document = parse_policies(content)
        except PolicyError as error:
            problem = f"{error.problem} (in {self._document.path}; correct it, then try again)"
            raise StoredPolicyError(error.path, problem) from None
        changes = tuple(changes_between(bodies_of(self._memory.scan()), entries_of(document)))
        if changes:
            at_ms = self._document.path.stat().st_mtime_ns // 1_000_000
            revision = Revision.of(self._memory.revision() + 1, at_ms, Author(HAND, door="hand"), len(changes))
            commit = Commit(revision, changes)
            if pages is not None and self._is_recorded:
                pages.add(commit, digest, is_published=True)
                self._newest = Recorded(revision, digest, is_published=True)
            else:
                self._is_recorded = False
                self._generation += 1
            self._memory.replay([commit])
        self._digest = digest

    def _write(self, pages: Pages, commit: Commit) -> None:
        """Write a commit: to the history, then the document, and publish it."""
        policies = dump_policies(document_of(self._memory.with_changes(commit).scan(), what=self.location))
        content = self._document.head + policies.encode()
        number, digest = commit.revision.revision, digest_of(content)
        pages.add(commit, digest, is_published=False)
        try:
            self._document.replace(content)
        except OSError:
            pages.drop(number)
            raise
        self._memory.replay([commit])
        self._digest, self._newest = digest, Recorded(commit.revision, digest, is_published=True)
        try:
            self._document.keep_place()
            pages.publish(number)
        except (OSError, StoreUnavailableError, DamagedError) as error:
            raise OutcomeUnknownError(self.location, number, str(error)) from error

    def _forget(self) -> None:
        self._memory = MemoryStore(self.location)
        self._digest, self._newest = "", None
        self._generation += 1
