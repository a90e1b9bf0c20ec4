"""The files of a stream as a feed finds them: what is new since an extent, at most as many as a batch may bring.

Whether a file is still the one that an extent lists: by its length, and by when it was written.

Both readings ask before they read a file, and the second asks again when all sinks have taken what it read. The log of
a Delta table says that its files never change, so there only the length is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyarrow import fs

from spark_throttle.errors import SourceChangedError
from spark_throttle.spark.references.extents import Position, SourceFile


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that no batch has brought yet."""

    path: str
    """Its path below the root of the stream."""

    size_bytes: int
    modified_ms: int
    partition_values: tuple[tuple[str, str | None], ...] = ()


class FileFeed(Protocol):
    """A finder of new files, in the process of the source's reader, for the whole run of a query."""

    def next_files(self, position: Position, known: set[str]) -> tuple[list[FoundFile], Position]:
        """Return the files of the next batch in their order, and where the feed then goes on; no files if none is new.

        Parameters
        ----------
        position
            Where the feed goes on after the last extent; empty before the first.
        known
            The paths of all files of the stream so far.
        """
        ...

    def stop_at_newest(self) -> None:
        """Find no file that appears from now on; called once, when a query is to end with what is available."""
        ...

    def to_fields(self) -> dict[str, Any]:
        """Return the feed's settings as JSON values."""
        ...


_RESTORE = (
    "restore it with its time of writing (as cp -p does), then start the query again: nothing of this batch was written"
)
_PUT_BACK = (
    "the sink may have been given other rows than were decided: restore the file with its time of writing (as cp -p "
    "does), put the sink back to before this batch, then start the query again"
)


def written_ms(info: fs.FileInfo) -> int:
    """Return when a file was last written, in whole milliseconds; 0 if its file system does not say."""
    return int((info.mtime_ns or 0) // 1_000_000)


def check_file(system: fs.FileSystem, location: str, file: SourceFile) -> None:
    """Refuse to go on if a file is not the one that its extent lists.

    Raises
    ------
    SourceChangedError
        If it is gone, has another length, or was written again.
    """
    problem = _problem(system.get_file_info(location), file)
    if problem is not None:
        raise SourceChangedError(f"the file {location}", problem, _RESTORE)


def check_read(system: fs.FileSystem, locations: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Refuse to go on if a file became another one while it was read; one that is gone was read before.

    Raises
    ------
    SourceChangedError
        If a file has another length, or was written again.
    """
    for info, file in zip(system.get_file_info(list(locations)), files, strict=True):
        problem = None if info.type == fs.FileType.NotFound else _problem(info, file)
        if problem is not None:
            raise SourceChangedError(f"the file {info.path}", f"while a batch was written, {problem}", _PUT_BACK)


def _problem(info: fs.FileInfo, file: SourceFile) -> str | None:
    """Return how a file differs from what its extent says of it; `None` if it does not."""
    if info.type != fs.FileType.File:
        return "it is gone"
    if info.size != file.size_bytes:
        return f"it has {info.size} bytes and had {file.size_bytes}"
    if file.modified_ms and written_ms(info) != file.modified_ms:
        return f"it was written again (at {written_ms(info)} ms, before at {file.modified_ms} ms)"
    return None
