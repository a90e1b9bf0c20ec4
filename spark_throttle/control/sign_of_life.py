"""A job's sign of life: a small file in its control directory that its driver writes again and again, also when idle.

An idle query runs no batch, so an old batch says nothing about whether the job lives. The sign is for people, and for
the watch of a server: no decision reads it. It counts up, so that whoever watches it sees it change without comparing
two machines' clocks. It also says when Spark last asked the driver for the next batch: a query that hangs keeps its
process, and thus its sign, but it asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from spark_throttle.files.storage import Directory, read_note
from spark_throttle.record import Count, Name, WallMs, Within, to_json

NAME: Final = "alive.json"

SIGN_INTERVAL_MS: Final = 10_000
"""How often a job gives a sign of life. On an object store that is one read and one write of a small file each time."""

MOST_INTERVAL_MS: Final = 86_400_000
"""A sign that says it is given less often than once a day is damaged: its job would never count as silent."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a job's driver last wrote about itself."""

    run: Name
    """The run that gave the sign (`run_fence`); of two runs, only the directory's owner counts."""

    number: Count
    """How many signs the run had given before this one."""

    interval_ms: Annotated[int, Within(1, MOST_INTERVAL_MS)]
    """How often the run gives a sign."""

    wall_ms: WallMs
    """When the sign was given, by the wall clock of the job's machine."""

    steady_ms: WallMs
    """The same by its steady clock, which only a reader on the same boot of the same machine can compare."""

    boot: Annotated[str, Within(0, 1000)]
    """An id of the machine start from which the steady clock counts."""

    asked_ms: WallMs
    """How long before the sign Spark had last asked for a batch."""

    longest_pause_ms: WallMs
    """The longest time between two such calls in this run: a trigger or a batch may take that long."""

    has_ended: bool = False
    """Whether the query ended in good order after this sign."""

    cores: Annotated[int, Within(1, 10_000_000)] | None = None
    """The cores of the job's cluster when its run began; `None` where nobody knows them."""

    def __post_init__(self) -> None:
        # The steady clock counts from the start of the machine, so nothing of the run is longer ago than that.
        for name in ("asked_ms", "longest_pause_ms"):
            if getattr(self, name) > self.steady_ms:
                raise ValueError(f"{name} is {getattr(self, name)}, and the machine has run for {self.steady_ms} ms")


def write_sign_of_life(directory: Directory, sign: SignOfLife) -> None:
    """Write a sign of life over the one before."""
    directory.write(NAME, to_json(sign))


def read_sign_of_life(directory: Directory) -> SignOfLife | None:
    """Return the newest sign of life; `None` where the job gave none."""
    return read_note(directory, NAME, SignOfLife, "the sign of life")
