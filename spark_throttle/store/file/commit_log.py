"""The log of a YAML store: what was appended since it was last read, and whether it is still the log that was read.

Somebody may cut a log, or put a backup in its place; then all of it is read anew. A crash may cut off the last line:
its commit is pending or was never made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from spark_throttle.errors import DamagedError
from spark_throttle.files.ownership import opened, opened_or_made
from spark_throttle.store.file.commit_lines import is_whole, parsed_line
from spark_throttle.store.file.document_files import beside, lack_of_log
from spark_throttle.store.memory_store import Commit

_AS_IT_STANDS: Final = "policies are read as they stand, and nothing is changed"
_RESTORE: Final = "restore the log from a backup, or, if the history may begin anew, "
_PUT_EMPTY: Final = "put an empty file in its place"


@dataclass(frozen=True, slots=True)
class UnreadLines:
    """The lines that were appended since a log was last read."""

    lines: bytes
    """The complete ones, each with its end."""

    is_another: bool
    """Whether it is not the log any more that was read before; then these are all its lines."""

    is_cut_off: bool
    """Whether a part of a line follows them."""

    time_ns: int
    """When the log was modified."""


class CommitLog:
    """The log beside a document, and how far it was read.

    Parameters
    ----------
    document
        The document of the store; its log need not be there.
    """

    def __init__(self, document: Path) -> None:
        self._document = document
        self.path = beside(document, ".log")
        self._bytes = 0
        self._last_line = b""
        self._time_ns = 0

    def forget(self) -> None:
        """Read all of the log the next time."""
        self._bytes, self._last_line = 0, b""

    def check_there(self) -> None:
        """Refuse to go on if there is no log where it must be.

        Raises
        ------
        DamagedError
            If there is none.
        """
        if (lack := lack_of_log(self.path)) is not None:
            raise self._damaged(*lack)

    def opened(self) -> BinaryIO:
        """Open the log to write to it; make it where there is none."""
        descriptor, _ = opened_or_made(self.path, os.O_WRONLY | os.O_APPEND, 0o666, beside=self._document)
        return os.fdopen(descriptor, "ab")

    def unread(self, *, is_writing: bool) -> UnreadLines:
        """Return the lines since those that were last noted.

        Parameters
        ----------
        is_writing
            Whether a last line that lacks only its end gets it.
        """
        is_another = False
        with os.fdopen(opened(self.path, os.O_RDONLY), "rb") as file:
            found = os.fstat(file.fileno())
            file.seek(self._bytes - len(self._last_line))
            lines = file.read()
            is_altered = found.st_size == self._bytes and found.st_mtime_ns != self._time_ns
            if is_altered or not lines.startswith(self._last_line):
                is_another = True
                self.forget()
                file.seek(0)
                lines = file.read()
            lines = lines[len(self._last_line) :]
            complete = lines[: lines.rfind(b"\n") + 1]
            if is_writing and len(complete) < len(lines) and is_whole(lines[len(complete) :]):
                # An editor took the end of the last line, or a crash cut off no more than that.
                with self.opened() as log:
                    log.write(b"\n")
                lines = complete = lines + b"\n"
                found = os.fstat(file.fileno())
        return UnreadLines(complete, is_another, len(complete) < len(lines), found.st_mtime_ns)

    def commits(self, unread: UnreadLines, newest: int) -> Iterator[tuple[Commit, str]]:
        """Yield the commit of each line, and the digest of its document.

        Parameters
        ----------
        newest
            The revision of the line before the first.

        Raises
        ------
        DamagedError
            If a line cannot be read, or has not the revision that follows the line before it.
        """
        for number, line in enumerate(unread.lines.split(b"\n")[:-1], start=newest + 1):
            where = f"line {number} of its log {self.path}"
            try:
                commit, digest = parsed_line(line, f"line {number} of the policy log {self.path}")
            except DamagedError as error:
                raise self._damaged(f"{where} cannot be read: {error.problem}", _PUT_EMPTY) from error
            found = commit.revision.revision
            if found != number:
                problem = f"{where} has revision {found}, so lines before it are missing, doubled or out of order"
                raise self._damaged(problem, _PUT_EMPTY)
            yield commit, digest

    def note(self, unread: UnreadLines, *, is_writing: bool) -> None:
        """Go on behind these lines the next time; who may write removes the part of a line that follows them."""
        if unread.lines:
            self._last_line = unread.lines[unread.lines.rfind(b"\n", 0, -1) + 1 :]
        self._bytes += len(unread.lines)
        self._time_ns = unread.time_ns
        if is_writing and unread.is_cut_off:
            with self.opened() as log:
                log.truncate(self._bytes)

    def _damaged(self, problem: str, anew: str) -> DamagedError:
        return DamagedError(f"the policy store file:{self._document}", f"{problem}; {_AS_IT_STANDS}", _RESTORE + anew)


def append(log: BinaryIO, line: bytes) -> None:
    """Write a line to an opened log, down to the disk."""
    log.write(line)
    log.flush()
    os.fsync(log.fileno())
