"""The manifest that binds a checkpoint: written once, when its query first starts, and checked at every later start.

Beside it may lie the note that the checkpoint was drained: its waiting rows lie elsewhere, and no query may admit them
again. The note is written before the first row is, so a query that is started while rows are written, or after the
writer was killed, is refused as well. It names the attempt by which a Delta table recognizes the rows when they are
written again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Annotated, Final

from spark_throttle.errors import ConfigurationError, DamagedError, DrainedError
from spark_throttle.files.storage import Directory, read_note
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
    """Return the note of a control directory; `None` if its rows were not drained."""
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


MANIFEST: Final = "manifest.json"
_DIRECTIONS = ("publish", "dispatch")
_INCARNATION = "incarnation"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a throttled query."""

    query: Name
    """The query's name in the transactions of its sinks; it lives and dies with the checkpoint.

    A number appended to it (``…-1``) counts how often the checkpoint and the sinks were put back together: the sinks
    remember the batches that were undone under the earlier name.
    """

    direction: str
    """``publish`` or ``dispatch``."""

    def __post_init__(self) -> None:
        if self.direction not in _DIRECTIONS:
            raise ValueError(f"direction is none of {', '.join(_DIRECTIONS)}")

    @property
    def job(self) -> str:
        """The query's name without that number: what its rows in a usage table say, however often it was put back."""
        return self.query.partition("-")[0]


def read_manifest(directory: Directory) -> Manifest | None:
    """Return the manifest, or `None` before the first start."""
    return read_note(directory, MANIFEST, Manifest, "the manifest")


def bound_manifest(directory: Directory) -> Manifest:
    """Return the manifest of a query that has started.

    Raises
    ------
    DamagedError
        If the manifest is gone.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise _gone(directory)
    return manifest


def _gone(directory: Directory) -> DamagedError:
    return DamagedError(f"the control directory {directory.location}", f"its {MANIFEST} is missing")


def next_incarnation(directory: Directory) -> int:
    """Return a number larger than at any earlier start of the query, by which other jobs distinguish its runs."""
    content = directory.read(_INCARNATION)
    try:
        incarnation = 1 + int(content or b"0")
    except ValueError as error:
        raise DamagedError(f"the count of starts {directory.shown(_INCARNATION)}", repr(error)) from error
    directory.write(_INCARNATION, str(incarnation).encode())
    return incarnation


def next_line(query: str) -> str:
    """Return the name of a query after its checkpoint and its sinks were put back.

    Examples
    --------
    >>> next_line("5eed"), next_line("5eed-1")
    ('5eed-1', '5eed-2')
    """
    name, _, number = query.partition("-")
    return f"{name}-{int(number or 0) + 1}"


def rename(directory: Directory, manifest: Manifest, query: str) -> Manifest:
    """Write the manifest with another name for the query, and return it."""
    renamed = replace(manifest, query=query)
    _write(directory, renamed)
    return renamed


def bind(directory: Directory, *, direction: str, may_begin: bool = True) -> Manifest:
    """Return the manifest, writing it at the first start.

    Parameters
    ----------
    may_begin
        Whether this may be the first start; it may not where an offset already names an epoch.

    Raises
    ------
    DrainedError
        If the waiting rows of the checkpoint were written elsewhere.
    ConfigurationError
        If the checkpoint was written for the other direction.
    DamagedError
        If the manifest is gone and the query has run.
    """
    refuse_drained(directory)
    manifest = read_manifest(directory)
    if manifest is None:
        if not may_begin or directory.names("epochs"):  # under a new name, sinks would take again what they have
            raise _gone(directory)
        manifest = Manifest(uuid.uuid4().hex, direction)
        _write(directory, manifest)
    refuse_unbound(manifest, direction=direction)
    return manifest


def refuse_unbound(manifest: Manifest, *, direction: str) -> None:
    """Refuse a query of the other direction than its checkpoint.

    Raises
    ------
    ConfigurationError
        If the checkpoint was written for the other direction.
    """
    if manifest.direction != direction:
        raise ConfigurationError(
            f"this checkpoint limits {manifest.direction}, but {direction} was asked for: the balances it holds belong "
            f"to other quotas; set direction={manifest.direction!r}, or start a new checkpoint"
        )


def _write(directory: Directory, manifest: Manifest) -> None:
    directory.write(MANIFEST, to_json(manifest))
