"""What a simulated job keeps, and where it may die: a control directory in memory, a checkpoint, the writes of a batch.

A crash is asked for by the name of a write and a side of it. Everything that was written before stands, nothing after
it does; there are no half-written files, for the real ones are moved into place whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from spark_throttle.errors import ThrottleError
from spark_throttle.files.storage import Directory

CrashPoint: TypeAlias = Literal[
    "before epoch", "after epoch", "before offset", "after offset", "before state", "after state",
    "before table", "after table", "before plain sink", "after plain sink", "before dead letters", "after dead letters",
    "before feedback", "after feedback", "before commit", "after commit",
]  # fmt: skip
"""Where a batch can die: before or after each of its writes, in the order in which a query makes them."""

CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)


class SimulatedCrash(BaseException):
    """The process is gone; no code of the process may catch it."""


class ConcurrentRunError(ThrottleError):
    """Another run of the query has logged a batch first; Spark's offset log says so."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        super().__init__(
            f"batch {batch} was logged by another run of this query: let one of them run, or give each a checkpoint"
        )


class MemoryDirectory(Directory):
    """A control directory that is a dictionary: files are written whole, and a copy of it is a backup.

    Parameters
    ----------
    files
        What stands there, by name; changed in place.
    passes
        Called with the crash points that a write passes.
    place
        Where it lies: a copy of it lies elsewhere.
    """

    def __init__(self, files: dict[str, bytes], passes: Callable[[CrashPoint], None], place: str) -> None:
        self.location = "memory:control"
        self.files = files
        self._passes = passes
        self._place = place

    def path(self, name: str) -> str:
        """Return the name under which errors speak of a file."""
        return f"{self.location}/{name}"

    def place(self) -> str:
        """Return what tells this directory from a copy of it."""
        return self._place

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or `None` where there is none."""
        return self.files.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, over what was there."""
        is_epoch = name.startswith("epochs/")
        if is_epoch:
            self._passes("before epoch")
        self.files[name] = bytes(content)
        if is_epoch:
            self._passes("after epoch")

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        prefix = f"{folder}/"
        return sorted(name.removeprefix(prefix) for name in self.files if name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Delete a file; one that is not there is no error."""
        self.files.pop(name, None)


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """What the offset log says of a batch, and the true time at which it was planned."""

    start: dict[str, Any]
    """Offset of the control source before the batch."""

    end: dict[str, Any]
    """And behind it."""

    first_row: int
    """Position in the source of the first row that the batch brings."""

    end_row: int
    """Position behind the last one."""

    now_ms: int
    """The batch time."""

    steady_ms: int
    """The true time; no code of the job sees it."""


@dataclass(slots=True)
class Checkpoint:
    """What Spark and the control plane keep of a query."""

    log: list[LoggedBatch] = field(default_factory=list)
    """Every planned batch, by its number."""

    committed: int = 0
    """How many of them are committed: all, or all but the last."""

    states: dict[int, dict[int, bytes]] = field(default_factory=lambda: {0: {}})
    """Of every shard, before the batch of a number."""

    control: dict[str, bytes] = field(default_factory=dict)
    """The control directory's files."""

    @property
    def rows_taken(self) -> int:
        """How many rows of the source the planned batches bring."""
        return self.log[-1].end_row if self.log else 0

    def copy(self) -> Checkpoint:
        """Return a backup."""
        return Checkpoint(list(self.log), self.committed, dict(self.states), dict(self.control))

    def put_back(self, batches: int) -> None:
        """Undo Spark's part of the last `batches` committed batches, and of one that is not committed."""
        keep = max(0, self.committed - batches, min(self.states))
        del self.log[keep:]
        self.states = {number: states for number, states in self.states.items() if number <= keep}
        self.committed = keep

    def forget(self, retained: int) -> None:
        """Forget the states that no batch which may be put back needs."""
        for number in [number for number in self.states if number < self.committed - retained]:
            del self.states[number]
