"""The places of waiting rows lie in frames: in the state as long as these are small, then in files beside it.

A queued row is a pair (frame, position in the frame), in the order of the queue. A frame is written once, when its rows
are queued, opened only when one of its rows leaves, and dropped when its last row has left. If rows leave a frame, and
those that remain are fewer than half of its rows or less than a third of its bytes, it is rewritten with them. So a
long backlog costs Python the frames that a batch touches, not all waiting rows.

A batch takes the first rows of every namespace, and there may be thousands of them. In the order of arrival these rows
would lie in all frames. So rows join the queue in the order in which they are likely to leave (`likely_order`).

Spark copies the whole state to Python and back in every batch, so a long queue must not lie in it. If the frames in the
state become larger than `INLINE_BYTES`, they are written, once, to one file in the control directory, neighbours joined
to frames of the usual size. The state keeps the *place* of each: the file, where the frame begins, its length, and its
checksum. A file is named by a number that the state counts, and a digest of its content. So a batch that runs again
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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.core.state import QueueFiles
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.rows.frames import decode, encode_whole, pieces

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

_FASTEST_MICRO_PER_MS: Final = 1 << 32
"""Of faster paces it does not matter how fast they are."""

_DROPPED_BITS: Final = 42
"""A float of 64 bits keeps its sign, its exponent and ten more bits."""

_LEAST_CODE: Final = int(np.float64(1 / _FASTEST_MICRO_PER_MS).view(np.int64)) >> _DROPPED_BITS
_MOST_CODE: Final = (1 << 16) - 1

_Part = tuple[bytes, Int64s]
"""A frame, and the positions of its rows that wait."""


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


@dataclass(frozen=True, slots=True, eq=False)
class QueueFrames:
    """Frames, and the positions of the queued rows in them."""

    frames: list[bytes]
    """Each is a frame, or the place of one in a file."""

    frame_of_row: Int64s
    """Index of each row's frame, ascending."""

    row_in_frame: Int64s

    @classmethod
    def empty(cls) -> QueueFrames:
        """Return a queue without rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls([], nothing, nothing)

    @classmethod
    def _of(cls, parts: Sequence[_Part]) -> QueueFrames:
        counts = np.array([len(rows) for _, rows in parts], dtype=np.int64)
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for _, rows in parts)])
        return cls([frame for frame, _ in parts], np.repeat(np.arange(len(parts)), counts), positions)

    def rows(self, is_wanted: Bools, folder: QueueFolder) -> list[pa.Table]:
        """Return the wanted rows in order, one table per frame."""
        wanted = np.flatnonzero(is_wanted)
        touched, starts = np.unique(self.frame_of_row[wanted], return_index=True)
        places = np.split(self.row_in_frame[wanted], starts[1:])
        opened = folder.open(self.frames[at] for at in touched)
        return [decode(frame).take(pa.array(rows)) for frame, rows in zip(opened, places, strict=False)]

    def after(self, stays: Bools, joining: pa.Table | None, folder: QueueFolder) -> QueueFrames:
        """Return the queue with only the rows that stay, and with `joining` at its end."""
        parts: list[_Part] = []
        bounds = np.searchsorted(self.frame_of_row, np.arange(len(self.frames) + 1))
        for at, old in enumerate(self.frames):
            span = slice(bounds[at], bounds[at + 1])
            alive = self.row_in_frame[span][stays[span]]
            if not len(alive):
                continue
            if at == len(self.frames) - 1 and joining is not None and folder.is_small(old):
                last = decode(old)
                if last.schema.equals(joining.schema):
                    joining = pa.concat_tables([last.take(pa.array(alive)), joining])
                    continue
            parts.append(_rewritten(old, alive, folder) if len(alive) < bounds[at + 1] - bounds[at] else (old, alive))
        parts += _parts(joining) if joining is not None else []
        return self._of(parts)

    def moved(self, files: QueueFiles, epoch: int, folder: QueueFolder) -> tuple[QueueFrames, QueueFiles]:
        """Return the queue after its frames went to a file, if they are too large for the state, and its files.

        The last frame stays if it is small: the next rows join it.
        """
        queue, written = self._without_sparse_files(folder), files.written
        if folder.is_full([frame for frame in queue.frames if not is_place(frame)]):
            ends = np.cumsum(np.bincount(queue.frame_of_row, minlength=len(queue.frames)))[:-1]
            parts = list(zip(queue.frames, np.split(queue.row_in_frame, ends), strict=True))
            kept = parts[-1:] if folder.is_small(queue.frames[-1]) else []
            joined = _joined(parts[: len(parts) - len(kept)], folder)
            inline = [frame for frame, _ in joined if not is_place(frame)]
            if inline:
                places = iter(folder.write(written, inline))
                moved = [(frame if is_place(frame) else next(places), rows) for frame, rows in joined]
                queue, written = self._of([*moved, *kept]), written + 1
        found = [place.file for frame in queue.frames if (place := FramePlace.of(frame)) is not None]
        return queue, files.after(tuple(dict.fromkeys(found)), written, epoch, folder.kept_epochs)

    def _without_sparse_files(self, folder: QueueFolder) -> QueueFrames:
        """Return the queue with the frames in the state that are less than half of their file."""
        places = {frame: place for frame in self.frames if (place := FramePlace.of(frame)) is not None}
        needed_bytes: Counter[str] = Counter()
        for place in places.values():
            needed_bytes[place.file] += place.size_bytes
        sparse = [frame for frame, place in places.items() if needed_bytes[place.file] * 2 < place.file_bytes]
        if not sparse:
            return self
        opened = dict(zip(sparse, folder.open(sparse), strict=True))
        return replace(self, frames=[opened.get(frame, frame) for frame in self.frames])


def likely_order(flow: Int64s, first: int, pace_micro_per_ms: Int64s) -> Int64s:
    """Return the order in which the rows of a queue from `first` on are likely to leave, as positions behind `first`.

    A row leaves when the rows of its namespace before it have left. Times that differ by less than a thousandth count
    as equal: rows of one namespace then stand together.

    Parameters
    ----------
    flow
        The number of each row's namespace.
    pace_micro_per_ms
        How fast the rows of each namespace leave.

    Examples
    --------
    >>> likely_order(np.array([0, 0, 0, 1, 1, 1]), 1, np.array([2_500, 1_000])).tolist()
    [0, 2, 1, 3, 4]
    """
    flows = len(pace_micro_per_ms)
    layout = Segments.by_key(flow[first:], flows)
    nth = layout.rank + np.repeat(np.bincount(flow[:first], minlength=flows) + 1, layout.counts)
    pace = np.repeat(np.minimum(pace_micro_per_ms, _FASTEST_MICRO_PER_MS), layout.counts)
    # This decides where a row lies and not whether it leaves, so floats will do. They are the same on every machine.
    with np.errstate(divide="ignore"):
        due = nth / pace
    # The leading bits of a positive float, exponent first, ascend with it. NumPy sorts 16 bits in linear time.
    code = (due.view(np.int64) >> _DROPPED_BITS) - _LEAST_CODE
    return layout.order[np.argsort(np.clip(code, 0, _MOST_CODE).astype(np.uint16), kind="stable")]


def _rewritten(frame: bytes, alive: Int64s, folder: QueueFolder) -> _Part:
    """Return a frame of which rows left: without them, if less than half of its rows or a third of its bytes remain."""
    (opened,) = folder.open([frame])
    rows = decode(opened)
    gone = np.delete(np.arange(rows.num_rows), alive)
    if len(alive) >= len(gone) and rows.take(pa.array(gone)).nbytes * 3 <= rows.nbytes * 2:
        return frame, alive
    return encode_whole(rows.take(pa.array(alive))), np.arange(len(alive))


def _parts(rows: pa.Table) -> list[_Part]:
    return [(encode_whole(piece), np.arange(piece.num_rows)) for piece in pieces(rows.combine_chunks())]


def _joined(parts: Sequence[_Part], folder: QueueFolder) -> list[_Part]:
    """Return parts of a queue, small neighbours in the state as one frame if their columns are the same."""
    found: list[_Part] = []
    for is_small, neighbours in groupby(parts, key=lambda part: folder.is_small(part[0])):
        if not is_small:
            found += neighbours
            continue
        tables = [decode(frame).take(pa.array(rows)) for frame, rows in neighbours]
        for _, alike in groupby(tables, key=lambda table: table.schema.serialize().to_pybytes()):
            found += _parts(pa.concat_tables(list(alike)))
    return found
