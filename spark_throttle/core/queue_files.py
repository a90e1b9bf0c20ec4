"""The files that hold the payload of waiting rows, and when such a file may be deleted.

The state keeps this list, so it goes back with the state when a checkpoint is put back. A file of which no row waits
stays until no checkpoint can be put back to a batch in which one waited. Its age is counted in epochs: each epoch is at
least one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
