"""The payload of waiting rows: frames in the shard's state, opened only when one of their rows leaves.

A queued row is (frame, place in it), in the order of the queue. A frame is written once, when its rows are queued,
and dropped when its last row has left; one that is opened and found less than half alive is written anew with
what remains. So a long backlog costs Python the frames that a batch touches, not the rows that wait.

Spark, though, takes the whole state to Python and back at every batch, byte by byte, and writes it to the checkpoint:
what waits costs the bytes of its compressed frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.spark.rows.frames import decode, encode_whole, pieces

_SMALL_FRAME_BYTES = 1 << 16
"""A last frame smaller than this is written anew together with the rows that join the queue."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardQueue:
    """Frames, and where the queued rows stand in them."""

    frames: list[bytes]
    frame_of_row: Int64s
    """Ascending."""

    row_in_frame: Int64s

    @classmethod
    def empty(cls) -> ShardQueue:
        """Return a queue without rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls([], nothing, nothing)

    def rows(self, is_wanted: Bools) -> list[pa.Table]:
        """Return the wanted rows, in order, a table a frame."""
        wanted = np.flatnonzero(is_wanted)
        touched, starts = np.unique(self.frame_of_row[wanted], return_index=True)
        places = np.split(self.row_in_frame[wanted], starts[1:])
        return [decode(self.frames[at]).take(pa.array(rows)) for at, rows in zip(touched, places, strict=False)]

    def after(self, stays: Bools, joining: pa.Table | None) -> ShardQueue:
        """Return the queue in which the rows that do not stay are gone and `joining` has come last."""
        frames: list[bytes] = []
        counts: list[int] = []
        places: list[Int64s] = []
        bounds = np.searchsorted(self.frame_of_row, np.arange(len(self.frames) + 1))
        for at, old in enumerate(self.frames):
            span = slice(bounds[at], bounds[at + 1])
            alive = self.row_in_frame[span][stays[span]]
            if not len(alive):
                continue
            is_last = at == len(self.frames) - 1
            if is_last and joining is not None and len(old) < _SMALL_FRAME_BYTES:
                last = decode(old)
                if last.schema.equals(joining.schema):
                    joining = pa.concat_tables([last.take(pa.array(alive)), joining])
                    continue
            frame = old
            if len(alive) < (bounds[at + 1] - bounds[at]) and len(alive) * 2 < (rows := decode(old)).num_rows:
                frame = encode_whole(rows.take(pa.array(alive)))
                alive = np.arange(len(alive))
            frames.append(frame)
            counts.append(len(alive))
            places.append(alive)
        for piece in pieces(joining.combine_chunks()) if joining is not None else []:
            frames.append(encode_whole(piece))
            counts.append(piece.num_rows)
            places.append(np.arange(piece.num_rows))
        frame_of_row = np.repeat(np.arange(len(frames)), np.array(counts, dtype=np.int64))
        return ShardQueue(frames, frame_of_row, np.concatenate([np.zeros(0, dtype=np.int64), *places]))
