"""The manifest that binds a checkpoint: written once, when its query first starts, and checked at every later start."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Annotated, Final

from spark_throttle.checkpoint.drained import refuse_drained
from spark_throttle.checkpoint.offset_log import OffsetLog
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError, DamagedError, ShardCountChangedError
from spark_throttle.files.records import read_note
from spark_throttle.files.storage import Directory
from spark_throttle.record import Count, Name, Within, to_json

_NAME = "manifest.json"
_DIRECTIONS = ("publish", "dispatch")
_INCARNATION = "incarnation"
MOST_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a throttled query."""

    query: Name
    """The query's name in the transactions of its sinks; it lives and dies with the checkpoint.

    A number appended to it (``…-1``) counts how often the checkpoint and the sinks were put back together: the sinks
    remember the batches that were undone under the earlier name.
    """

    shards: Annotated[int, Within(1, MOST_SHARDS)]
    direction: str
    """``publish`` or ``dispatch``."""

    reshardings: tuple[Resharding, ...] = ()
    """The changes of the number of shards, in their order."""

    def __post_init__(self) -> None:
        if self.direction not in _DIRECTIONS:
            raise ValueError(f"direction is none of {', '.join(_DIRECTIONS)}")

    def shards_of(self, batch: int) -> int:
        """Return the number of the shards that ran the newest batch: the former one if none has run since a change."""
        last = self.reshardings[-1] if self.reshardings else None
        return self.shards if last is None or last.batch != batch else last.former_shards


@dataclass(frozen=True, slots=True)
class Resharding:
    """A change of the number of shards."""

    batch: Count
    """The last batch of the former shards."""

    former_shards: Annotated[int, Within(1, MOST_SHARDS)]
    handover: Name
    """The name of what the new shards begin with (`handover`)."""


def refuse_shards(shards: int) -> None:
    """Refuse what is no number of shards.

    Raises
    ------
    ConfigurationError
        If it is none.
    """
    if type(shards) is not int or not 1 <= shards <= MOST_SHARDS:
        raise ConfigurationError(f"shards is {shards!r}; give a number from 1 to {MOST_SHARDS}")


def read_manifest(directory: Directory) -> Manifest | None:
    """Return the manifest, or `None` before the first start."""
    return read_note(directory, _NAME, Manifest, "the manifest")


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
    return DamagedError(f"the control directory {directory.location}", f"its {_NAME} is missing")


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


def reshard(directory: Directory, manifest: Manifest, shards: int, reshardings: tuple[Resharding, ...]) -> Manifest:
    """Write the manifest with another number of shards, and return it."""
    changed = replace(manifest, shards=shards, reshardings=reshardings)
    _write(directory, changed)
    return changed


def bind(directory: Directory, *, shards: int, direction: str, may_begin: bool = True) -> Manifest:
    """Return the manifest, writing it at the first start.

    Parameters
    ----------
    may_begin
        Whether this may be the first start; it may not where an offset already names an epoch.

    Raises
    ------
    DrainedError
        If the waiting rows of the checkpoint were written elsewhere.
    ShardCountChangedError
        If the checkpoint was written with another number of shards.
    ConfigurationError
        If it was written for the other direction.
    DamagedError
        If the manifest is gone and the query has run.
    """
    refuse_drained(directory)
    manifest = read_manifest(directory)
    if manifest is None:
        if not may_begin or directory.names("epochs"):  # under a new name, sinks would take again what they have
            raise _gone(directory)
        manifest = Manifest(uuid.uuid4().hex, shards, direction)
        _write(directory, manifest)
    refuse_unbound(manifest, shards=shards, direction=direction)
    return manifest


def refuse_unbound(manifest: Manifest, *, shards: int, direction: str) -> None:
    """Refuse a query of another number of shards, or of the other direction, than its checkpoint.

    Raises
    ------
    ShardCountChangedError
        If the checkpoint was written with another number of shards.
    ConfigurationError
        If it was written for the other direction.
    """
    if manifest.shards != shards:
        raise ShardCountChangedError(manifest.shards, shards)
    if manifest.direction != direction:
        raise ConfigurationError(
            f"this checkpoint limits {manifest.direction}, but {direction} was asked for: the balances it holds belong "
            f"to other quotas; set direction={manifest.direction!r}, or start a new checkpoint"
        )


def refuse_before_resharding(directory: Directory, manifest: Manifest, log: OffsetLog) -> None:
    """Refuse a checkpoint that was put back to before its number of shards changed, without its control directory.

    Raises
    ------
    CheckpointMismatchError
        If the checkpoint's newest batch is earlier than the last of the former shards.
    """
    last = manifest.reshardings[-1].batch if manifest.reshardings else -1
    if log.committed < last:
        raise CheckpointMismatchError(
            f"the control directory {directory.location}",
            f"is of {manifest.shards} shards since batch {last + 1}, and the checkpoint has committed batches up to "
            f"{log.committed}",
            f"the checkpoint was put back to before its number of shards changed: restore the control directory from "
            f"the same backup, and start with {manifest.reshardings[-1].former_shards} shards",
        )


def _write(directory: Directory, manifest: Manifest) -> None:
    directory.write(_NAME, to_json(manifest))
