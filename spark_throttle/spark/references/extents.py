"""Which files each batch of a reference stream brings, and the number of each file in its stream.

A row's last tie-break is one integer: the number of its file, times 2^32, plus the position of the row in the file. So
rows sort as they arrived, file by file.

An *extent* is the list of files that one batch brings, in order. It is written once, before the offset that names it,
so a batch that runs again reads the same files. Its name holds its number and a digest of its content, and each extent
names the one before it: an offset pins the whole history of its stream. After a checkpoint was put back, the history
goes on from the older extent, and the later ones are left alone.

Every hundredth extent repeats all files before it, so that a restart reads at most a hundred extents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack, unpack
from spark_throttle.spark.rows.digest import ROW_BITS

MOST_ROWS: Final = 1 << 31
"""Most rows of a file: Spark indexes arrays with 32-bit integers."""

FOLDER: Final = "extents"
_REPEATED_EVERY: Final = 100

Position = Mapping[str, int]
"""Where a feed goes on after an extent, in words of the feed."""


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
