"""Whose turn it is at a YAML store: authors one after another, readers not while an author writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_throttle.errors import StoreUnavailableError
from spark_throttle.files import ownership
from spark_throttle.store.file.commit_log import CommitLog
from spark_throttle.store.file.document_files import absence_of, beside, reason_of


class DocumentTurns:
    """The lock beside a document, on a disk that all authors see."""

    def __init__(self, document: Path, log: CommitLog) -> None:
        self._document = document
        self._log = log
        self.path = beside(document, ".lock")

    @contextmanager
    def to_write(self, *, has_known_log: bool) -> Iterator[None]:
        """Hold the lock alone; where there is none, the log is made first, unless it is known that there was one."""
        try:
            if not self._document.exists():
                raise absence_of(self._document)
            if not (self.path.exists() or has_known_log or self._log.path.is_dir()):
                self._log.opened().close()
            with ownership.held(self.path, beside=self._document):
                yield
        except OSError as error:
            raise StoreUnavailableError(f"file:{self._document}", reason_of(error)) from error

    @contextmanager
    def to_read(self) -> Iterator[None]:
        """Hold the lock with other readers."""
        try:
            with ownership.held_to_read(self.path):
                yield
        except OSError as error:
            raise StoreUnavailableError(f"file:{self._document}", reason_of(error)) from error

    def may_write(self) -> bool:
        """Return whether this process may do what a crash or an edit left to the next reader; others only read."""
        places = (self._document.parent, self._log.path, self.path)
        is_effective = os.access in os.supports_effective_ids
        return all(os.access(place, os.W_OK, effective_ids=is_effective) for place in places if place.exists())
