"""The note that a checkpoint was drained: its waiting rows lie elsewhere, and no query may admit them again.

It is written before the first row is, so a query that is started while rows are written, or after the writer was
killed, is refused as well. It names the attempt by which a Delta table recognizes the rows when they are written again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from spark_throttle.errors import DrainedError
from spark_throttle.files.records import read_note
from spark_throttle.files.storage import Directory
from spark_throttle.record import Count, Name, Within, to_json

NAME: Final = "drained.json"


@dataclass(frozen=True, slots=True)
class Drained:
    """Where the waiting rows of a checkpoint went."""

    batch: Count
    """The last committed batch, after which the rows waited."""

    into: Annotated[str, Within(1, 10_000)]
    """The place of the rows."""

    written_as: Name
    """Their format, in Spark's word: ``delta`` or ``parquet``."""

    attempt: Name
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
    return read_note(directory, NAME, Drained, "the note of what was drained")


def write_drained(directory: Directory, drained: Drained) -> None:
    """Write the note over the one before."""
    directory.write(NAME, to_json(drained))


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
