"""The payload of waiting rows: frames in the shard's state, opened only when one of their rows leaves.

A queued row is a pair (frame, position in the frame), in the order of the queue. A frame is written once, when its rows
are queued, and dropped when its last row has left. If a frame is opened and fewer than half of its rows remain, it is
rewritten with those rows. So a long backlog costs Python the frames that a batch touches, not all waiting rows.

Spark, however, copies the whole state to Python and back in every batch, and writes it to the checkpoint. So waiting
rows cost Spark the bytes of their compressed frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.spark.rows.frames import decode, encode_whole, pieces

_SMALL_FRAME_BYTES = 1 << 16
"""A last frame smaller than this is rewritten together with the rows that join the queue."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardQueue:
    """Frames, and the positions of the queued rows in them."""

    frames: list[bytes]
    frame_of_row: Int64s
    """Index of each row's frame, ascending."""

    row_in_frame: Int64s

    @classmethod
    def empty(cls) -> ShardQueue:
        """Return a queue without rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls([], nothing, nothing)

    def rows(self, is_wanted: Bools) -> list[pa.Table]:
        """Return the wanted rows in order, one table per frame."""
        wanted = np.flatnonzero(is_wanted)
        touched, starts = np.unique(self.frame_of_row[wanted], return_index=True)
        places = np.split(self.row_in_frame[wanted], starts[1:])
        return [decode(self.frames[at]).take(pa.array(rows)) for at, rows in zip(touched, places, strict=False)]

    def after(self, stays: Bools, joining: pa.Table | None) -> ShardQueue:
        """Return the queue with only the rows that stay, and with `joining` at its end."""
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
