"""Calls that a destination did not take in the time of their batch: in a file, from which the next batch sends them.

The file of a batch holds every call that is unsent once the batch is over, those of earlier batches included. It is
written before the batch is committed. So a batch that is run again finds the same calls in the file of the batch before
it, and writes its own anew; and a checkpoint that is put back finds the calls that were unsent then. Its name has the
batch's number and its time by Spark's log: batches of undone histories have files of their own.

Law: while a batch that Spark has logged has such a file, the query sends by the same target, or does not start.

Calls that are given up go to the dead letters instead, and a table of dead letters takes a batch once, whatever a later
attempt at it gives up. So the first attempt that comes so far notes which calls those are, none included, before the
dead letters are written. Later attempts give up the same calls, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.checkpoint.offered import OFFERED_FOLDER
from spark_throttle.checkpoint.offset_log import OffsetLog, batch_time_ms
from spark_throttle.errors import ConfigurationError, UnsentCallsError
from spark_throttle.files.records import read_block
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack

_FOLDER: Final = "unsent"
_GIVEN_UP: Final = "given_up"
_PRUNED_EVERY: Final = 50


@dataclass(frozen=True, slots=True)
class Held:
    """In whose name the calls of a namespace are refused, where it is not their destination's."""

    scope: str
    until_ms: int = 0
    """The wall-clock time before which the scope asks not to be called; 0 if it does not ask."""


@dataclass(frozen=True, slots=True)
class UnsentCalls:
    """What is unsent after a batch."""

    target: str
    """What sends them, as text."""

    messages: int
    tables: list[bytes]
    """The calls, as `spark.paced.unsent_calls` writes them."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """By namespace."""


@dataclass(frozen=True, slots=True)
class GivenUpCalls:
    """What a batch gives up."""

    keys: tuple[str, ...]
    """Those of the calls, ascending."""


def write_unsent(control: Directory, batch: int, batch_ms: int, calls: UnsentCalls) -> None:
    """Write what is unsent after a batch; if nothing is, remove what an earlier attempt at it left."""
    if calls.tables:
        control.write(_name(batch, batch_ms), pack(calls))
    else:
        control.delete(_name(batch, batch_ms))


def read_unsent(control: Directory, batch: int, batch_ms: int | None) -> UnsentCalls | None:
    """Return what is unsent after a batch, whose time is `None` if there was none; `None` if nothing is."""
    return None if batch_ms is None else read_block(control, _name(batch, batch_ms), UnsentCalls)


def note_given_up(control: Directory, batch: int, batch_ms: int, keys: Iterable[str]) -> None:
    """Note the keys of the calls that a batch gives up."""
    control.write(_name(batch, batch_ms, _GIVEN_UP), pack(GivenUpCalls(tuple(sorted(keys)))))


def noted_given_up(control: Directory, batch: int, batch_ms: int) -> frozenset[str] | None:
    """Return the keys of the calls that an earlier attempt at a batch gave up; `None` if none came so far."""
    found = read_block(control, _name(batch, batch_ms, _GIVEN_UP), GivenUpCalls)
    return None if found is None else frozenset(found.keys)


def forget_unsent(control: Directory, *, batch: int, batches_kept: int) -> None:
    """Delete, now and then, the files of batches to which no checkpoint is put back any more."""
    if batch % _PRUNED_EVERY:
        return
    for folder in (_FOLDER, _GIVEN_UP, OFFERED_FOLDER):
        for name in control.names(folder):
            number = name.partition("-")[0]
            if number.isdecimal() and int(number) < batch - batches_kept:
                control.delete(f"{folder}/{name}")


def refuse_any_unsent(control: Directory, checkpoint: Directory, batch: int) -> None:
    """Refuse to close a checkpoint while admitted messages that a destination did not take are kept in it.

    Raises
    ------
    ConfigurationError
        If messages are unsent after the batch.
    """
    batch_ms = batch_time_ms(checkpoint, batch)
    found = read_unsent(control, batch, batch_ms)
    if found is not None and batch_ms is not None:
        raise ConfigurationError(
            f"{found.messages} messages that {found.target} did not take until batch {batch} are still to be sent, and "
            f"they are no rows that wait: start the query until it has sent them or given them up, stop it, then try "
            f"again. They are in {control.shown(_name(batch, batch_ms))}"
        )


def refuse_other_target(control: Directory, checkpoint: Directory, log: OffsetLog, target: str | None) -> None:
    """Refuse a query that does not send what is unsent, or sends it elsewhere.

    Parameters
    ----------
    target
        What sends the rows, as text; `None` if they are not sent by calls.

    Raises
    ------
    UnsentCallsError
        If calls are unsent and another target was to send them.
    """
    for batch in sorted({log.committed, log.logged}):
        batch_ms = batch_time_ms(checkpoint, batch)
        found = read_unsent(control, batch, batch_ms)
        if found is not None and batch_ms is not None and found.target != target:
            raise UnsentCallsError(found.messages, batch, found.target, target, control.shown(_name(batch, batch_ms)))


def _name(batch: int, batch_ms: int, folder: str = _FOLDER) -> str:
    return f"{folder}/{batch:012d}-{batch_ms}"
