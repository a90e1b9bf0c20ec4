"""A job's sign of life: a small file in its control directory that its driver writes again and again, also when idle.

An idle query runs no batch, so an old batch says nothing about whether the job lives. The sign is for people, and for
the watch of a server: no decision reads it. It counts up, so that whoever watches it sees it change without comparing
two machines' clocks. It also says when Spark last asked the driver for the next batch: a query that hangs keeps its
process, and thus its sign, but it asks for nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from spark_throttle.files.storage import Directory
from spark_throttle.files.versioned_json import read_versioned, versioned

NAME: Final = "alive.json"
FORMAT: Final = 1

SIGN_INTERVAL_MS: Final = 10_000
"""How often a job gives a sign of life. On an object store that is one read and one write of a small file each time."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a job's driver last wrote about itself."""

    run: str
    """The run that gave the sign (`run_fence`); of two runs, only the directory's owner counts."""

    number: int
    """How many signs the run had given before this one."""

    interval_ms: int
    """How often the run gives a sign."""

    wall_ms: int
    """When the sign was given, by the wall clock of the job's machine."""

    steady_ms: int
    """The same by its steady clock, which only a reader on the same boot of the same machine can compare."""

    boot: str
    """An id of the machine start from which the steady clock counts."""

    asked_ms: int
    """How long before the sign Spark had last asked for a batch."""

    longest_pause_ms: int
    """The longest time between two such calls in this run: a trigger or a batch may take that long."""

    has_ended: bool = False
    """Whether the query ended in good order after this sign."""


def write_sign_of_life(directory: Directory, sign: SignOfLife) -> None:
    """Write a sign of life over the one before."""
    directory.write(NAME, versioned(FORMAT, asdict(sign)))


def read_sign_of_life(directory: Directory) -> SignOfLife | None:
    """Return the newest sign of life; `None` where a job of an older release wrote none."""
    return read_versioned(directory, NAME, "the sign of life", FORMAT, _parsed)


def _parsed(fields: dict[str, Any]) -> SignOfLife:
    return SignOfLife(
        str(fields["run"]), int(fields["number"]), int(fields["interval_ms"]), int(fields["wall_ms"]),
        int(fields["steady_ms"]), str(fields["boot"]), int(fields["asked_ms"]), int(fields["longest_pause_ms"]),
        bool(fields["has_ended"]),
    )  # fmt: skip
