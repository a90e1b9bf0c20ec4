"""The storage of a simulated job: a control directory in memory, a checkpoint, and the points at which a batch may die.

A crash is requested by the name of a write and a side of it, before or after. Everything written earlier remains, and
nothing is written later. There are no half-written files, because real files are moved into place whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from spark_throttle.errors import ConfigurationError, ThrottleError
from spark_throttle.files.storage import Directory

CrashPoint: TypeAlias = Literal[
    "before epoch", "after epoch", "before offset", "after offset", "before state", "after state",
    "before table", "after table", "before plain sink", "after plain sink", "before dead letters", "after dead letters",
    "before feedback", "after feedback", "before commit", "after commit",
]  # fmt: skip
"""Where a batch can die: before or after each of its writes, in the order in which a query makes them."""

CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)
"""Every `CrashPoint`."""


class SimulatedCrash(BaseException):
    """The death of the simulated process; no code of the process may catch it."""


class Interruptions:
    """What the next batch that reaches a crash point is to do there: to die, or to be held up; each happens once."""

    def __init__(self) -> None:
        self._crash_at: CrashPoint | None = None
        self._held_up: tuple[CrashPoint, Callable[[], None]] | None = None

    def crash(self, at: CrashPoint) -> None:
        """Let the batch die at a point."""
        self._crash_at = _known(at)

    def hold_up(self, at: CrashPoint, meanwhile: Callable[[], None]) -> None:
        """Call `meanwhile` when the batch reaches a point."""
        self._held_up = _known(at), meanwhile

    def passes(self, point: CrashPoint) -> None:
        """Do what was asked for at a point that a batch reaches."""
        if self._held_up is not None and point == self._held_up[0]:
            meanwhile, self._held_up = self._held_up[1], None
            meanwhile()
        if point == self._crash_at:
            self._crash_at = None
            raise SimulatedCrash(point)


def _known(at: CrashPoint) -> CrashPoint:
    if at not in CRASH_POINTS:
        raise ConfigurationError(f"{at!r} is not a crash point; give one of {', '.join(CRASH_POINTS)}")
    return at


class ConcurrentRunError(ThrottleError):
    """Another run of the query logged a batch first, as Spark's offset log shows."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        super().__init__(
            f"batch {batch} was logged by another run of this query: let one of them run, or give each a checkpoint"
        )


class MemoryDirectory(Directory):
    """A control directory in a dictionary: files are written whole, and a copy of it is a backup.

    Parameters
    ----------
    files
        The files' contents, by name; changed in place.
    passes
        Called with each crash point that a write passes.
    place
        The directory's place; a copy of the directory has another.
    """

    def __init__(self, files: dict[str, bytes], passes: Callable[[CrashPoint], None], place: str) -> None:
        self.location = "memory:control"
        self.files = files
        self._passes = passes
        self._place = place

    @property
    def is_on_disk(self) -> bool:
        """Whether a look at it costs next to nothing."""
        return True

    def path(self, name: str) -> str:
        """Return the name of a file in error messages."""
        return f"{self.location}/{name}"

    def place(self) -> str:
        """Return the place, which distinguishes this directory from a copy of it."""
        return self._place

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or `None` if it does not exist."""
        return self.files.get(name)

    def read_part(self, name: str, first_byte: int, size_bytes: int) -> bytes | None:
        """Return a part of a file, or `None` if the file does not exist."""
        content = self.files.get(name)
        return None if content is None else content[first_byte : first_byte + size_bytes]

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, replacing an existing one."""
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
        """Delete a file; a missing file is no error."""
        self.files.pop(name, None)


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The offset log's entry for a batch, and the true time at which the batch was planned."""

    start: dict[str, Any]
    """Offset of the control source before the batch."""

    end: dict[str, Any]
    """Offset of the control source after the batch."""

    first_row: int
    """Position in the source of the batch's first row."""

    end_row: int
    """Position after the batch's last row."""

    now_ms: int
    """The batch time."""

    steady_ms: int
    """The true time, which no code of the job sees."""

    first_cost: int = 0
    """Position in the stream of late costs of the first that the batch brings."""

    end_cost: int = 0
    """Position after the last."""


@dataclass(slots=True)
class Checkpoint:
    """The data that Spark and the control plane store for a query."""

    log: list[LoggedBatch] = field(default_factory=list)
    """The planned batches; a batch's number is its position."""

    committed: int = 0
    """Number of committed batches: all the planned ones, or all but the last."""

    states: dict[int, bytes | None] = field(default_factory=lambda: {0: None})
    """The decider's state, by the number of the batch that begins with it; `None` before the first."""

    control: dict[str, bytes] = field(default_factory=dict)
    """The control directory's files."""

    def copy(self) -> Checkpoint:
        """Return a backup."""
        return Checkpoint(list(self.log), self.committed, dict(self.states), dict(self.control))

    def put_back(self, batches: int) -> None:
        """Undo Spark's part of the last `batches` committed batches, and of an uncommitted one."""
        keep = max(0, self.committed - batches, min(self.states))
        del self.log[keep:]
        self.states = {number: state for number, state in self.states.items() if number <= keep}
        self.committed = keep

    def forget(self, retained: int) -> None:
        """Delete the states that no restore to one of the last `retained` batches needs."""
        for number in [number for number in self.states if number < self.committed - retained]:
            del self.states[number]
