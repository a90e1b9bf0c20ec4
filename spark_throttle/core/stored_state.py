"""What Spark's state store keeps of a job from one batch to the next. It is a stored record, and stored compressed."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The payloads of the waiting rows, in the order of the queue (`spark.rows.frames`), or their places in files."""

    frame_of_row: Int64s
    """For every queued row, the position in `frames` of the frame that holds it."""

    row_in_frame: Int64s
    """For every queued row, its position in that frame."""

    paying: PayingTime
    """The clock reading pinned by the last epoch."""

    files: QueueFiles = NO_FILES
    """The files that hold the payloads which are not in `frames` themselves."""
