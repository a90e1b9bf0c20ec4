"""The record of a job in Spark's state store, from one batch to the next; it is stored compressed.

It lists the files that hold the places of waiting rows, so the list goes back with the state when a checkpoint is put
back. A file of which no row waits stays until no checkpoint can be put back to a batch in which one waited. Its age is
counted in epochs: each epoch is at least one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.limits.paying import PayingTime
from spark_throttle.core.quota import Int64s
from spark_throttle.core.state import DeciderState

DELETED_FILES: Final = 20
"""Most files that a batch deletes: on an object store each is a request, for which the batch waits. As a batch writes
at most one file, no more are left in the long run."""


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The files outside the state that hold payload of waiting rows, or held some not long ago."""

    written: int = 0
    """Number of files that were written; the next file has this number."""

    waiting: tuple[str, ...] = ()
    """The names of the files of which rows wait."""

    left: tuple[tuple[str, int], ...] = ()
    """The names of the files of which no row waits any more, and the epoch in which the last one left."""

    deletable: tuple[str, ...] = ()
    """The names of files that no checkpoint can need, and that the batch deletes."""

    def after(self, waiting: tuple[str, ...], written: int, epoch: int, kept_epochs: int) -> QueueFiles:
        """Return the files after a batch.

        Parameters
        ----------
        waiting
            The files of which rows wait after the batch.
        epoch
            The epoch of the batch.
        kept_epochs
            Epochs for which a file is kept after its last row has left.

        Examples
        --------
        >>> files = QueueFiles(2, ("a", "b")).after(("b",), 2, epoch=7, kept_epochs=3)
        >>> files.left, files.deletable
        ((('a', 7),), ())
        >>> files.after(("b",), 2, epoch=10, kept_epochs=3).deletable
        ('a',)
        """
        needed = set(waiting)
        gone = [(name, epoch) for name in self.waiting if name not in needed]
        left = (*self.left, *gone)
        deletable = [name for name, since in left if since <= epoch - kept_epochs][:DELETED_FILES]
        kept = tuple(each for each in left if each[0] not in deletable)
        return QueueFiles(written, waiting, kept, tuple(deletable))


NO_FILES: Final = QueueFiles()


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
