"""The note that a checkpoint was drained: its waiting rows lie elsewhere, and no query may admit them again.

It is written before the first row is, so a query that is started while rows are written, or after the writer was
killed, is refused as well. It names the attempt by which a Delta table recognizes the rows when they are written again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from spark_throttle.errors import DrainedError
from spark_throttle.files.storage import Directory
from spark_throttle.files.typed_fields import short_text, true_or_false, whole_number
from spark_throttle.files.versioned_json import read_versioned, versioned

NAME: Final = "drained.json"
FORMAT: Final = 1

_LONGEST_PLACE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Drained:
    """Where the waiting rows of a checkpoint went."""

    batch: int
    """The last committed batch, after which the rows waited."""

    into: str
    """The place of the rows."""

    written_as: str
    """Their format, in Spark's word: ``delta`` or ``parquet``."""

    attempt: str
    """A name that no other drain has."""

    is_finished: bool = False
    """Whether all rows are there."""


def read_drained(directory: Directory) -> Drained | None:
    """Return the note of a control directory; `None` if its rows were not drained.

    Raises
    ------
    UnknownVersionError
        If a newer release wrote it.
    DamagedError
        If it cannot be read.
    """
    return read_versioned(directory, NAME, "the note of what was drained", FORMAT, _parsed)


def _parsed(fields: dict[str, Any]) -> Drained:
    return Drained(
        whole_number(fields, "batch"), short_text(fields, "into", least=1, most=_LONGEST_PLACE),
        short_text(fields, "written_as", least=1), short_text(fields, "attempt", least=1),
        true_or_false(fields, "is_finished"),
    )  # fmt: skip


def write_drained(directory: Directory, drained: Drained) -> None:
    """Write the note over the one before."""
    directory.write(NAME, versioned(FORMAT, asdict(drained)))


def forget_drained(directory: Directory) -> None:
    """Delete the note of a drain that has written nothing."""
    directory.delete(NAME)


def refuse_drained(directory: Directory) -> None:
    """Refuse to start a query on a checkpoint that was drained.

    Raises
    ------
    DrainedError
        If its waiting rows were written elsewhere, or may have been.
    """
    found = read_drained(directory)
    if found is not None:
        raise DrainedError(found.batch, found.into, directory.shown(NAME), is_finished=found.is_finished)
