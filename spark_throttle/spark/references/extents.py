"""An extent is the list of files that one batch of a reference stream brings, in order, each with its number.

A row's last tie-break is one integer: the number of its file, times 2^32, plus the position of the row in the file. So
rows sort as they arrived, file by file.

An extent is written once, before the offset that names it, so a batch that runs again reads the same files. Its name
holds its number and a digest of its content, and each extent names the one before it: an offset pins the whole history
of its stream. After a checkpoint was put back, the history goes on from the older extent, and the later ones are left
alone. Every hundredth extent repeats all files before it, so that a restart reads at most a hundred extents.

A *feed* finds what is new since an extent. A file is the one that an extent lists if it has its length, and was written
when it was. Both readings compare this before they read a file, and the second once more when all sinks have taken
what it read. The log of a Delta table says that its files never change, so there only the length is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyarrow import fs

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack, unpack
from spark_throttle.spark.rows.digest import ROW_BITS

MOST_ROWS: Final = 1 << 31
"""Most rows of a file: Spark indexes arrays with 32-bit integers."""

FOLDER: Final = "extents"
_REPEATED_EVERY: Final = 100

Position = Mapping[str, int]
"""Where a feed goes on after an extent, in words of the feed."""

_RESTORE = (
    "restore it with its time of writing (as cp -p does), then start the query again: nothing of this batch was written"
)
_PUT_BACK = (
    "the sink may have been given other rows than were decided: restore the file with its time of writing (as cp -p "
    "does), put the sink back to before this batch, then start the query again"
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a stream, as it was when its extent was written."""

    number: int
    """The number of the file in its stream, from 0."""

    path: str
    """Its path below the root of the stream."""

    size_bytes: int
    modified_ms: int
    """When it was last written; 0 where the feed's own log says that files never change."""

    partition_values: tuple[tuple[str, str | None], ...] = ()
    """The values of the partition columns, which are not in the file."""

    def value_of(self, column: str) -> str | None:
        """Return the value of a partition column, by its name in any case; `None` if the file has the column itself.

        Examples
        --------
        >>> SourceFile(0, "day=1/a.parquet", 10, 0, (("Day", "1"),)).value_of("day")
        '1'
        """
        return {name.lower(): value for name, value in self.partition_values}.get(column.lower())

    @property
    def name(self) -> str:
        """The name by which a decider knows it: after a checkpoint was put back, its number may be another file's."""
        identity = repr((self.path, self.size_bytes, self.modified_ms)).encode()
        return f"{self.number:012d}-{hashlib.sha256(identity).hexdigest()[:16]}.parquet"

    @property
    def first_tie(self) -> int:
        """The tie of its first row.

        Examples
        --------
        >>> SourceFile(3, "part-0.parquet", 10, 0).first_tie == 3 << 32
        True
        """
        return self.number << ROW_BITS


@dataclass(frozen=True, slots=True)
class ExtentName:
    """The name of an extent, as an offset holds it."""

    number: int
    """Number of the extent; 0 before the first."""

    file: str


NO_EXTENT: Final = ExtentName(0, "")


@dataclass(frozen=True, slots=True)
class Extent:
    """The files that one batch brings."""

    number: int
    previous: ExtentName
    files: tuple[SourceFile, ...]
    position: Position
    earlier: tuple[SourceFile, ...] | None = None
    """All files of the extents before it, if it repeats them."""


class Extents:
    """The extents of one query in its control directory.

    The last two, between which a batch lies, are kept in memory, and the history that was asked for last.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._known: dict[ExtentName, Extent] = {}
        self._history: tuple[ExtentName, list[SourceFile]] = (NO_EXTENT, [])

    def load(self, name: ExtentName) -> Extent:
        """Return an extent.

        Raises
        ------
        DamagedError
            If its file is gone, or is not as it was written.
        """
        if name not in self._known:
            content = self._directory.read(f"{FOLDER}/{name.file}")
            what = f"the list of files {self._directory.shown(f'{FOLDER}/{name.file}')}"
            if content is None or _name(name.number, content) != name:
                problem = "it is gone" if content is None else "its content does not belong to its name"
                raise DamagedError(what, problem, RESTORE_CHECKPOINT)
            self._remember(name, unpack(Extent, content, what))
        return self._known[name]

    def between(self, start: ExtentName, end: ExtentName) -> list[SourceFile]:
        """Return the files that the extents after `start` bring, up to `end`."""
        found: list[tuple[SourceFile, ...]] = []
        while end not in (start, NO_EXTENT):
            extent = self.load(end)
            found.append(extent.files)
            end = extent.previous
        return [file for files in reversed(found) for file in files]

    def history(self, name: ExtentName) -> list[SourceFile]:
        """Return all files of a stream up to an extent, by their number."""
        newest, found = name, list[tuple[SourceFile, ...]]()
        known, files = self._history
        while name not in (NO_EXTENT, known):
            extent = self.load(name)
            found.append(extent.files)
            name = extent.previous
            if extent.earlier is not None:
                name, files = known, list(extent.earlier)
        files = [*(files if name == known else ()), *(file for part in reversed(found) for file in part)]
        self._history = (newest, files)
        return files

    def write(self, previous: ExtentName, files: list[SourceFile], position: Position) -> ExtentName:
        """Write the extent after `previous`, and return its name."""
        number = previous.number + 1
        earlier = None if number % _REPEATED_EVERY else tuple(self.history(previous))
        extent = Extent(number, previous, tuple(files), position, earlier)
        content = pack(extent, is_compressed=True)
        name = _name(number, content)
        self._directory.write(f"{FOLDER}/{name.file}", content)
        self._remember(name, extent)
        return name

    def _remember(self, name: ExtentName, extent: Extent) -> None:
        self._known = {**dict(list(self._known.items())[-1:]), name: extent}


def _name(number: int, content: bytes) -> ExtentName:
    return ExtentName(number, f"{number:012d}-{hashlib.sha256(content).hexdigest()[:16]}")


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
    problem = _difference(system.get_file_info(location), file)
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
        problem = None if info.type == fs.FileType.NotFound else _difference(info, file)
        if problem is not None:
            raise SourceChangedError(f"the file {info.path}", f"while a batch was written, {problem}", _PUT_BACK)


def _difference(info: fs.FileInfo, file: SourceFile) -> str | None:
    """Return how a file differs from what its extent says of it; `None` if it does not."""
    if info.type != fs.FileType.File:
        return "it is gone"
    if info.size != file.size_bytes:
        return f"it has {info.size} bytes and had {file.size_bytes}"
    if file.modified_ms and written_ms(info) != file.modified_ms:
        return f"it was written again (at {written_ms(info)} ms, before at {file.modified_ms} ms)"
    return None


class NewFiles:
    """The writer of extents: it asks the feed what is new, and numbers the files.

    It keeps the history of the stream in memory, and reads it again only if it is asked to go on from another extent.
    """

    def __init__(self, extents: Extents, feed: FileFeed) -> None:
        self._extents = extents
        self._feed = feed
        self._name: ExtentName | None = None
        self._known: set[str] = set()
        self._next_number = 0
        self._position: Position = {}

    def stop_at_newest(self) -> None:
        """Find no file that appears from now on."""
        self._feed.stop_at_newest()

    def after(self, name: ExtentName) -> ExtentName:
        """Return the extent after `name`, which is written; `name` itself if no file is new."""
        if name != self._name:
            history = self._extents.history(name)
            self._known = {file.path for file in history}
            self._next_number = history[-1].number + 1 if history else 0
            self._position = {} if name == NO_EXTENT else self._extents.load(name).position
            self._name = name
        found, self._position = self._feed.next_files(self._position, self._known)
        if not found:
            return name
        files = [
            SourceFile(number, file.path, file.size_bytes, file.modified_ms, file.partition_values)
            for number, file in enumerate(found, self._next_number)
        ]
        self._name = self._extents.write(name, files, self._position)
        self._known |= {file.path for file in files}
        self._next_number += len(files)
        return self._name
