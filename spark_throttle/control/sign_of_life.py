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
from spark_throttle.files.typed_fields import MOST_MS, short_text, true_or_false, whole_number
from spark_throttle.files.versioned_json import read_versioned, versioned

NAME: Final = "alive.json"
FORMAT: Final = 1

SIGN_INTERVAL_MS: Final = 10_000
"""How often a job gives a sign of life. On an object store that is one read and one write of a small file each time."""

MOST_INTERVAL_MS: Final = 86_400_000
"""A sign that says it is given less often than once a day is damaged: its job would never count as silent."""


MOST_CORES: Final = 10_000_000


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

    cores: int | None = None
    """The cores of the job's cluster when its run began; `None` where an older release gave the sign."""


def write_sign_of_life(directory: Directory, sign: SignOfLife) -> None:
    """Write a sign of life over the one before."""
    directory.write(NAME, versioned(FORMAT, asdict(sign)))


def read_sign_of_life(directory: Directory) -> SignOfLife | None:
    """Return the newest sign of life; `None` where a job of an older release wrote none."""
    return read_versioned(directory, NAME, "the sign of life", FORMAT, _parsed)


def _parsed(fields: dict[str, Any]) -> SignOfLife:
    # The steady clock counts from the start of the machine, so nothing of the run is longer ago than that.
    steady_ms = whole_number(fields, "steady_ms", most=MOST_MS)
    return SignOfLife(
        short_text(fields, "run", least=1), whole_number(fields, "number"),
        whole_number(fields, "interval_ms", least=1, most=MOST_INTERVAL_MS),
        whole_number(fields, "wall_ms", most=MOST_MS), steady_ms, short_text(fields, "boot"),
        whole_number(fields, "asked_ms", most=steady_ms),
        whole_number(fields, "longest_pause_ms", most=steady_ms), true_or_false(fields, "has_ended"),
        None if fields.get("cores") is None else whole_number(fields, "cores", least=1, most=MOST_CORES),
    )  # fmt: skip
