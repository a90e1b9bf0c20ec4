"""The state of a shard, with the payload of its waiting rows, in another number of shards.

`core.resharding` divides the state. Here the frames of each former shard are divided, once, and written anew: a file of
waiting rows belongs to one shard, which deletes it when no checkpoint can need it any more. The former files go to one
of the new shards, which deletes them that way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.codec import StoredShard, pack_shard, unpack_shard
from spark_throttle.core.names.sharding import slice_of
from spark_throttle.core.policy_codec import pack_policy, unpack_policy
from spark_throttle.core.queue_files import QueueFiles
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.resharding import joined, paid_until, parts_of
from spark_throttle.spark.rows.frames import decode, encode_whole, pieces
from spark_throttle.spark.shard.queue_folder import FramePlace, QueueFolder

_HELD_BYTES: Final = 32 << 20
"""Bytes of rows that are held before they are written."""


def divided(block: bytes, shard: int, shards: int, to_ms: int, folder_of: Callable[[int], QueueFolder]) -> list[bytes]:
    """Return the part of every new shard of the state of a former one, each packed as a state.

    Parameters
    ----------
    shard
        The number of the former shard.
    to_ms
        The time up to which balances are paid.
    folder_of
        Returns the folder of the queue of a new shard.
    """
    stored = unpack_shard(block, f"the state of shard {shard}")
    policy = unpack_policy(stored.policy, f"the policy of shard {shard}")
    parts = list(parts_of(paid_until(stored.state, policy, to_ms=to_ms), shards))
    writers = [_PartWriter(folder_of(each), stored.files.written) for each in range(shards)]
    for rows in _rows_of_frames(stored, [part.rows for part in parts], folder_of(0)):
        for writer, table in zip(writers, rows, strict=True):
            writer.add(table)
        if sum(writer.held_bytes for writer in writers) > _HELD_BYTES:
            for writer in writers:
                writer.flush(is_last=False)
    epoch, files = stored.state.grants.epoch, stored.files
    former = (*files.left, *((name, epoch) for name in files.waiting))
    found = []
    for each, (part, writer) in enumerate(zip(parts, writers, strict=True)):
        writer.flush(is_last=True)
        left = former if each == shard % shards else ()
        found.append(pack_shard(writer.stored(replace(stored, state=part.state, policy=b""), left)))
    return found


def united(parts: Sequence[bytes], shard: int, shards: int, policy: CompiledPolicy) -> bytes:
    """Return the state of a new shard from its parts, in the order of the former shards.

    Parameters
    ----------
    policy
        The whole policy in force.
    """
    stored = [unpack_shard(part, f"a part of shard {shard}") for part in parts]
    frames_before = np.cumsum([0, *(len(each.frames) for each in stored)])
    files = QueueFiles(
        max(each.files.written for each in stored),
        tuple(dict.fromkeys(name for each in stored for name in each.files.waiting)),
        tuple(left for each in stored for left in each.files.left),
    )
    return pack_shard(StoredShard(
        joined([each.state for each in stored]),
        pack_policy(slice_of(policy, shard, shards)),
        [frame for each in stored for frame in each.frames],
        np.concatenate([each.frame_of_row + start for each, start in zip(stored, frames_before[:-1], strict=True)]),
        np.concatenate([each.row_in_frame for each in stored]),
        max(stored, key=lambda each: each.state.grants.epoch).paying,
        files,
    ))  # fmt: skip


def _rows_of_frames(stored: StoredShard, rows: Sequence[Int64s], folder: QueueFolder) -> Iterator[list[pa.Table]]:
    """Yield, for every frame, its waiting rows by new shard."""
    shard_of_row = np.zeros(len(stored.frame_of_row), dtype=np.int64)
    for each, at in enumerate(rows):
        shard_of_row[at] = each
    bounds = np.searchsorted(stored.frame_of_row, np.arange(len(stored.frames) + 1))
    for number, frame in enumerate(stored.frames):
        span = slice(bounds[number], bounds[number + 1])
        (opened,) = folder.open([frame])
        folder.forget()
        table, places, shard = decode(opened), stored.row_in_frame[span], shard_of_row[span]
        yield [table.take(pa.array(places[shard == each])) for each in range(len(rows))]


@dataclass(slots=True)
class _PartWriter:
    """The rows that one former shard hands to one new one."""

    folder: QueueFolder
    written: int
    held: list[pa.Table] = field(default_factory=list)
    held_bytes: int = 0
    frames: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Take rows, in the order of the queue."""
        if rows.num_rows:
            self.held.append(rows)
            self.held_bytes += rows.nbytes

    def flush(self, *, is_last: bool) -> None:
        """Make frames of the rows that are held; the last ones stay in the state if they are small enough for it."""
        frames = []
        for _, alike in groupby(self.held, key=lambda table: table.schema.serialize().to_pybytes()):
            for piece in pieces(pa.concat_tables(list(alike)).combine_chunks()):
                frames.append(encode_whole(piece))
                self.counts.append(piece.num_rows)
        if frames and (self.folder.is_full(frames) if is_last else self.folder.has_files):
            frames = self.folder.write(self.written, frames)
            self.folder.forget()
            self.written += 1
            self.files += [place.file for frame in frames[:1] if (place := FramePlace.of(frame)) is not None]
        self.frames += frames
        self.held, self.held_bytes = [], 0

    def stored(self, stored: StoredShard, left: tuple[tuple[str, int], ...]) -> StoredShard:
        """Return a part of a shard's state with the frames of its rows."""
        counts = np.array(self.counts, dtype=np.int64)
        frame_of_row = np.repeat(np.arange(len(counts)), counts)
        in_frame = np.arange(len(frame_of_row)) - np.repeat(np.cumsum(counts) - counts, counts)
        files = QueueFiles(self.written, tuple(self.files), left)
        return replace(stored, frames=self.frames, frame_of_row=frame_of_row, row_in_frame=in_frame, files=files)
