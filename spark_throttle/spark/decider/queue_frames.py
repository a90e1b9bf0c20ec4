"""The places of waiting rows: in frames, opened only when one of their rows leaves.

A queued row is a pair (frame, position in the frame), in the order of the queue. A frame is written once, when its rows
are queued, and dropped when its last row has left. If rows leave a frame, and those that remain are fewer than half of
its rows or less than a third of its bytes, it is rewritten with them. So a long backlog costs Python the frames that a
batch touches, not all waiting rows.

A batch takes the first rows of every namespace, and there may be thousands of them. In the order of arrival these rows
would lie in all frames. So rows join the queue in the order in which they are likely to leave (`likely_order`).

Small frames lie in the state. If they become many, they go to a file together, neighbours joined to frames of
the usual size (`queue_folder`). What a rewritten frame leaves small is joined with its neighbours that way too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.core.state import QueueFiles
from spark_throttle.spark.decider.queue_folder import FramePlace, QueueFolder, is_place
from spark_throttle.spark.rows.frames import decode, encode_whole, pieces

_FASTEST_MICRO_PER_MS: Final = 1 << 32
"""Of faster paces it does not matter how fast they are."""

_DROPPED_BITS: Final = 42
"""A float of 64 bits keeps its sign, its exponent and ten more bits."""

_LEAST_CODE: Final = int(np.float64(1 / _FASTEST_MICRO_PER_MS).view(np.int64)) >> _DROPPED_BITS
_MOST_CODE: Final = (1 << 16) - 1

_Part = tuple[bytes, Int64s]
"""A frame, and the positions of its rows that wait."""


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
