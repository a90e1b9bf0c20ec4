"""The document of a YAML store is the file in force; its first line names the history beside it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_throttle.errors import DamagedError, StoreUnavailableError
from spark_throttle.files.ownership import replace_whole, sync_folder
from spark_throttle.remedies import Remedy


class Document:
    """The document at a path; it need not be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history_path = path.with_name(path.name + ".history")

    @property
    def location(self) -> str:
        """The store's name in messages."""
        return f"file:{self.path}"

    @property
    def head(self) -> bytes:
        """The first line of a document that has a history: people read it, and it tells if the history was lost."""
        name = self.history_path.name
        return f"# {name} has the history of this file; a change by hand becomes a part of it.\n".encode()

    def content(self) -> bytes:
        """Return what it says."""
        return self.path.read_bytes()

    def replace(self, content: bytes) -> None:
        """Put another in its place, with its mode, and with its owner if root does it."""
        replace_whole(self.path, content, mode=None, like=self.path, is_owner_needed=False)

    def keep_place(self) -> None:
        """Have the disk keep that it was replaced."""
        sync_folder(self.path.parent)

    def signature(self) -> tuple[int, ...]:
        """Return the time, the size and the number of its file and of the history's.

        Raises
        ------
        StoreUnavailableError
            If it is not there, or cannot be read.
        """
        with self.told():
            found = self.path.stat()
            if stat.S_ISFIFO(found.st_mode):
                raise StoreUnavailableError(
                    self.location, f"{self.path} is a pipe; give a file, which can be read again"
                )
            history = [self.history_path.lstat()] if os.path.lexists(self.history_path) else []
        return tuple(value for each in (found, *history) for value in (each.st_mtime_ns, each.st_size, each.st_ino))

    def check_there(self) -> None:
        """Refuse a history without its document: a new document would be a change that removes every policy.

        Raises
        ------
        DamagedError
            If there is one.
        """
        try:
            found = self.history_path.lstat()
        except FileNotFoundError:
            return
        is_new = stat.S_ISREG(found.st_mode) and not found.st_size
        if not is_new and not self.path.exists():
            raise DamagedError(
                f"the policy store {self.location}",
                f"its document is not there, and its history {self.history_path} is",
                "restore the document from a backup, or, to begin a new store, move the history away first",
            )

    def check_no_link(self) -> None:
        """Refuse to change a document by a link to it.

        The link would be replaced by a file, and who reads the document by its own name would never see the change.

        Raises
        ------
        StoreUnavailableError
            If it is a link.
        """
        if self.path.is_symlink():
            raise StoreUnavailableError(
                self.location,
                f"{self.path} is a link, and a change would put a file in its place; give the document by its own "
                f"name, file:{self.path.resolve()}",
            )

    @contextmanager
    def told(self, before: str = "") -> Iterator[None]:
        """Say what the system says of a file as an error of the store."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self.path.exists() and not before:
                self.check_there()
                raise StoreUnavailableError(self.location, "there is no such file", Remedy.MAKE_STORE) from error
            raise StoreUnavailableError(self.location, before + reason_of(error)) from error


def reason_of(error: OSError) -> str:
    """Return what the system says of a file, with its name."""
    said = error.strerror or str(error)
    name = error.filename
    said = said if name is None or str(name) in said else f"{name}: {said}"
    return f"{said}; run this as the owner of the folder" if error.errno == errno.EACCES else said


def digest_of(content: bytes) -> str:
    """Return what tells a document from every other."""
    return hashlib.sha256(content).hexdigest()
