"""What Spark's state store keeps of a job from one batch to the next. It is a stored record, and stored compressed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.limits.paying import PayingTime
from spark_throttle.core.queue_files import NO_FILES, QueueFiles
from spark_throttle.core.quota import Int64s
from spark_throttle.core.state import DeciderState


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """All that Spark's state store keeps: the input of decisions, and the payload of waiting rows."""

    state: DeciderState
    policy: bytes
    """The policy in force, packed; stored so that a batch without an epoch can be decided."""

    frames: list[bytes]
    """The payloads of the rows that wait or may come back (`spark.rows.frames`), or their places in files; of a
    namespace, what left stands before what waits."""

    frame_of_row: Int64s
    """For every row, the position in `frames` of the frame that holds it."""

    row_in_frame: Int64s
    """For every row, its position in that frame."""

    paying: PayingTime
    """The clock reading pinned by the last epoch."""

    files: QueueFiles = NO_FILES
    """The files that hold the payloads which are not in `frames` themselves."""

    left_at: Int64s | None = None
    """The position, among all rows in `frames`, of each row of `state.left`; `None` for none."""

    @property
    def left_positions(self) -> Int64s:
        """`left_at` as an array."""
        return np.zeros(0, dtype=np.int64) if self.left_at is None else self.left_at
