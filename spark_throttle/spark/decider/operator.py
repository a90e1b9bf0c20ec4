"""The function that Spark calls for every batch: it takes frames and the state, and returns frames.

`applyInPandasWithState` keeps one value, for there is one key: the format of a `core.stored_state`, and the block that
it is packed to. The batch time is Spark's, from the offset log, so it is the same when a batch is run again.
`core.limits.paying` derives from it the time that earns tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from spark_throttle.core.quota import QueueBounds
from spark_throttle.errors import UnknownVersionError
from spark_throttle.record import FORMAT
from spark_throttle.spark.decider.decider_batch import BatchOutcome, run_batch
from spark_throttle.spark.decider.queue_folder import QueueFolder, QueueStorage
from spark_throttle.spark.rows.frames import FrameKind, encode, encode_whole
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

STATE_SCHEMA = "version int, block binary"


@dataclass(frozen=True, slots=True)
class Decider:
    """A function that decides a batch; called on an executor once per batch, and again if the task fails.

    Spark calls it for every batch that brings a control row or an arrival. Its output and the new state depend only on
    the old state, the set of frames and the batch time. Frames may come in any number of pieces and in any order.
    """

    room: QueueBounds | None = None
    """The queue's bounds when the query started; a batch that failed under smaller bounds is run again with these."""

    partition_columns: tuple[str, ...] = ()
    """Partition columns of the sink."""

    sums_of: Callable[[pa.Table], bytes] | None = None
    """What is returned of the rows that arrived, beside those that join the queue; `None` to return neither."""

    queue: QueueStorage | None = None
    """Where waiting rows lie that are too large for the state; `None` to keep all of them there."""

    keeps_left: bool = False
    """Whether rows that leave for a destination may come back, because the sink says what it did not deliver."""

    def __call__(
        self, _key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Yield the frames of a batch, the usage report last."""
        set_loaded_aside()
        control, frames = None, []
        for piece in pieces:
            for kind, frame in zip(piece["kind"], piece["frame"], strict=True):
                if kind == FrameKind.CONTROL:
                    control = bytes(frame)
                else:
                    frames.append(bytes(frame))
        folder = QueueFolder(None) if self.queue is None else self.queue.folder()
        outcome = run_batch(
            _stored_block(state),
            control,
            frames,
            now_ms=state.getCurrentProcessingTimeMs(),
            is_explained=False,
            room=self.room,
            partition_columns=self.partition_columns,
            folder=folder,
            keeps_left=self.keeps_left,
        )
        folder.delete(outcome.deletable_files)
        state.update((FORMAT, outcome.state))
        for kind, tables in ((FrameKind.ADMITTED, outcome.admitted), (FrameKind.REJECTED, outcome.rejected)):
            for table in tables:
                for frame in encode(table):
                    yield _row(kind, frame)
        if self.sums_of is not None:
            yield from _queue_frames(outcome, self.sums_of)
        yield from _freed_frames(outcome)
        yield _row(FrameKind.USAGE, outcome.usage)


def _stored_block(state: GroupState) -> bytes | None:
    if not state.exists:
        return None
    version, block = state.get
    if version != FORMAT:
        raise UnknownVersionError("the decider's state", int(version), FORMAT)
    return bytes(block)


def _queue_frames(outcome: BatchOutcome, sums_of: Callable[[pa.Table], bytes]) -> Iterator[pd.DataFrame]:
    if outcome.joined is not None:
        for frame in encode(outcome.joined):
            yield _row(FrameKind.WAITING, frame)
    if outcome.arrived is not None:
        yield _row(FrameKind.ARRIVED, sums_of(outcome.arrived))


def _freed_frames(outcome: BatchOutcome) -> Iterator[pd.DataFrame]:
    if outcome.freed is None:
        return
    yield _row(FrameKind.FREED, encode_whole(pa.table({})))  # also where none was freed, it is told
    for table in outcome.freed:
        for frame in encode(table):
            yield _row(FrameKind.FREED, frame)


def _row(kind: FrameKind, frame: bytes) -> pd.DataFrame:
    return pd.DataFrame({"kind": [int(kind)], "frame": [frame]})
