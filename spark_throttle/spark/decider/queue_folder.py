"""The frames that have the places of waiting rows: in the state as long as they are small, then in files beside it.

Spark copies the whole state to Python and back in every batch, so a long queue must not lie in it. If the frames
in the state become larger than `INLINE_BYTES`, they are written, once, to one file in the control directory. The state
keeps the *place* of each: the file, where the frame begins, its length, and its checksum. A batch reads only the frames
of which rows leave.

A file is named by a number that the state counts, and a digest of its content. So a batch that runs again
writes the same file, and a batch after a checkpoint was put back never writes over a file that it may still need.

If the frames that are left of a file are less than half of it, they come back into the state, and go to another file
with the next ones. So rows that wait for long do not keep files that are full of rows which have left.

A file of which no row waits is not deleted at once: a checkpoint that is put back needs it again. The state remembers
the epoch in which its last row left (`core.state`). The decider deletes it when no checkpoint can be put back
that far. If a checkpoint is put back, the files of the batches that this undoes stay for good.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final

from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory

FOLDER: Final = "queue"
INLINE_BYTES: Final = 1 << 20
"""Most bytes of frames that the state keeps: fewer would make many files, more would cost every batch."""

SLACK_EPOCHS: Final = 100
"""Epochs for which a file is kept beyond the batches of Spark's log, from which Spark may delete later than we do."""

_SMALL_BYTES: Final = 1 << 16
"""A frame smaller than this is joined with a neighbour when one is written: the last frame with the rows that join."""

_GAP_BYTES: Final = 1 << 20
"""Frames of a file that lie no further apart are read at once: on an object store, a request costs more than that."""

_PLACE_BEGINS: Final = b"["
"""A frame in the state is an Arrow stream, which begins with 0xFFFFFFFF."""


@dataclass(frozen=True, slots=True)
class FramePlace:
    """Where a frame lies in a file."""

    file: str
    first_byte: int
    size_bytes: int
    checksum: int
    """CRC-32 of the frame."""

    file_bytes: int
    """Size of the whole file."""

    def pack(self) -> bytes:
        """Return the place as the state keeps it in place of the frame."""
        return json.dumps(astuple(self), separators=(",", ":")).encode()

    @classmethod
    def of(cls, frame: bytes) -> FramePlace | None:
        """Return the place that `pack` packed; `None` if the bytes are the frame itself.

        Examples
        --------
        >>> place = FramePlace("1-ab", 0, 400, 7, 900)
        >>> FramePlace.of(place.pack()) == place, FramePlace.of(bytes([255] * 4))
        (True, None)
        """
        return cls(*json.loads(frame)) if is_place(frame) else None


def is_place(frame: bytes) -> bool:
    """Return whether the state keeps the place of a frame here, and not the frame itself."""
    return frame.startswith(_PLACE_BEGINS)


class QueueFolder:
    """The files of the queue, in the process that decides a batch.

    Frames that were read stay in memory as long as this object, which is one batch.

    Parameters
    ----------
    directory
        The control directory; `None` to keep all frames in the state.
    inline_bytes
        Most bytes of frames that the state keeps; `None` to keep all of them there from now on.
    kept_epochs
        Epochs after which a file is deleted of which no row waits.
    """

    def __init__(
        self, directory: Directory | None, *, inline_bytes: int | None = INLINE_BYTES, kept_epochs: int = 0
    ) -> None:
        self._files = directory
        self._inline_bytes = inline_bytes if directory is not None else None
        self._small_bytes = _SMALL_BYTES if self._inline_bytes is None else min(_SMALL_BYTES, self._inline_bytes // 2)
        self.kept_epochs = kept_epochs
        self._read: dict[bytes, bytes] = {}

    def is_small(self, frame: bytes) -> bool:
        """Return whether a frame in the state is so small that it is joined with a neighbour."""
        return len(frame) < self._small_bytes and not is_place(frame)

    @property
    def has_files(self) -> bool:
        """Whether frames may go to files."""
        return self._inline_bytes is not None

    def forget(self) -> None:
        """Drop the frames that are in memory."""
        self._read.clear()

    def is_full(self, frames: Sequence[bytes]) -> bool:
        """Return whether the frames in the state have become too large for it."""
        return self._inline_bytes is not None and sum(map(len, frames)) > self._inline_bytes

    def write(self, number: int, frames: Sequence[bytes]) -> list[bytes]:
        """Write frames to the file of a number, and return what the state keeps of each."""
        content = b"".join(frames)
        name = f"{number:012d}-{hashlib.sha256(content).hexdigest()[:16]}"
        self._directory.write(f"{FOLDER}/{name}", content)
        places, first_byte = [], 0
        for frame in frames:
            place = FramePlace(name, first_byte, len(frame), zlib.crc32(frame), len(content)).pack()
            self._read[place] = frame
            places.append(place)
            first_byte += len(frame)
        return places

    def open(self, frames: Iterable[bytes]) -> list[bytes]:
        """Return frames, each given as itself or by its place.

        Raises
        ------
        DamagedError
            If a file is gone, or is not as it was written.
        """
        frames = list(frames)
        found = {frame: place for frame in frames if (place := FramePlace.of(frame)) is not None}
        missing = {frame: place for frame, place in found.items() if frame not in self._read}
        by_file: dict[str, list[tuple[bytes, FramePlace]]] = {}
        for frame, place in sorted(missing.items(), key=lambda each: each[1].first_byte):
            by_file.setdefault(place.file, []).append((frame, place))
        for name, places in by_file.items():
            for run in _runs(places):
                self._load(name, run)
        return [self._read[frame] if frame in found else frame for frame in frames]

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; a missing one is no error, for an earlier attempt at the batch may have deleted it."""
        for name in names:
            self._directory.delete(f"{FOLDER}/{name}")

    @property
    def _directory(self) -> Directory:
        assert self._files is not None  # noqa: S101 - without one, no frame has left the state
        return self._files

    def _load(self, name: str, run: Sequence[tuple[bytes, FramePlace]]) -> None:
        first = run[0][1].first_byte
        end = run[-1][1].first_byte + run[-1][1].size_bytes
        content = self._directory.read_part(f"{FOLDER}/{name}", first, end - first)
        what = f"the file of waiting rows {self._directory.shown(f'{FOLDER}/{name}')}"
        if content is None:
            raise DamagedError(what, "it is gone", RESTORE_CHECKPOINT)
        for frame, place in run:
            found = content[place.first_byte - first : place.first_byte - first + place.size_bytes]
            if zlib.crc32(found) != place.checksum:
                problem = f"the {place.size_bytes} bytes from {place.first_byte} on do not have their checksum"
                raise DamagedError(what, problem, RESTORE_CHECKPOINT)
            self._read[frame] = found


@dataclass(frozen=True, slots=True)
class QueueStorage:
    """Where the queues of a query lie, as it is sent to the executors."""

    control_path: str
    kept_epochs: int = 0
    inline_bytes: int | None = INLINE_BYTES

    def folder(self) -> QueueFolder:
        """Return the files of the queue."""
        directory = _opened(self.control_path)
        return QueueFolder(directory, inline_bytes=self.inline_bytes, kept_epochs=self.kept_epochs)


@lru_cache(maxsize=8)
def _opened(control_path: str) -> Directory:
    return Directory(control_path)


def _runs(places: Sequence[tuple[bytes, FramePlace]]) -> list[list[tuple[bytes, FramePlace]]]:
    """Return places of one file, in their order, in groups that are read at once."""
    runs: list[list[tuple[bytes, FramePlace]]] = []
    end = 0
    for frame, place in places:
        if not runs or place.first_byte - end > _GAP_BYTES:
            runs.append([])
        runs[-1].append((frame, place))
        end = place.first_byte + place.size_bytes
    return runs
