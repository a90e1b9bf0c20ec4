"""The fence of a control directory: the run that began last owns the directory, and any earlier run ends.

Two queries with one control directory would each take the other's epochs and reports for their own, and a run that was
given up for dead may still be alive. A run writes its mark when it begins, and looks for it before it makes an epoch or
removes a file. It begins with the first epoch that it makes or loads, not before: a run that is refused at its start
leaves the owner of the directory alone. A run ends if another has begun since it was started: what it knows of the
checkpoint is out of date.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_throttle.checkpoint.manifest import MANIFEST
from spark_throttle.control.reports import newest_batch
from spark_throttle.errors import ConfigurationError, TakenOverError
from spark_throttle.files.storage import Directory
from spark_throttle.sharing.member import SEAT

_NAME = "run"
_LASTING: Final = frozenset({_NAME, MANIFEST, SEAT})


class RunFence:
    """The mark of one run in a control directory.

    Parameters
    ----------
    then
        Called once the directory is this run's: from here on, others may see the run. If it raises, the run ends.
    run
        The mark; by default one of its own.
    """

    def __init__(self, directory: Directory, then: Callable[[], None] | None = None, run: str | None = None) -> None:
        self.run = run or uuid.uuid4().hex
        self._directory = directory
        self._then = then
        self._has_begun = False
        self._found = directory.read(_NAME)

    def begin(self) -> None:
        """Take over the directory; calls after the first do nothing.

        Raises
        ------
        TakenOverError
            If another run has begun since this one was started.
        """
        if self._has_begun:
            return
        if self._directory.read(_NAME) != self._found:
            raise TakenOverError(self._directory.location)
        self._directory.write(_NAME, self.run.encode())
        if self._then is not None:
            self._then()
        self._has_begun = True

    def check(self) -> None:
        """Refuse to go on if another run has taken over the directory.

        Raises
        ------
        TakenOverError
            If another run has taken it over.
        """
        found = self._directory.read(_NAME)
        if found is not None and found != self.run.encode():
            raise TakenOverError(self._directory.location)


@dataclass(slots=True)
class RunWatch:
    """What another process of a run looks by whether the directory is still the run's, once it was."""

    run: str
    was_begun: bool = False

    def check(self, directory: Directory) -> None:
        """Refuse to go on if another run has taken over the directory.

        Raises
        ------
        TakenOverError
            If another run has taken it over.
        """
        if owner_of(directory) == self.run:
            self.was_begun = True
        elif self.was_begun:
            raise TakenOverError(directory.location)


def waited_ms(directory: Directory, name: str) -> int | None:
    """Return for how long a file was there when this run took over, by the store's clock, or up to a second less.

    Return `None` where the store has no clock of its own. Some give whole seconds.
    """
    written_ms, begun_ms = directory.written_ms(name), directory.written_ms(_NAME)
    return None if written_ms is None or begun_ms is None else max(0, begun_ms - written_ms - 1_000)


def owner_of(directory: Directory) -> str | None:
    """Return the run that a control directory belongs to; `None` before the first began."""
    found = directory.read(_NAME)
    return None if found is None else found.decode(errors="replace")


def refuse_past(directory: Directory) -> None:
    """Refuse to begin where a query has run: its sinks would skip the new batches as ones that they already have.

    A batch reports after its offset is logged. So a query that asks for the first epoch where a batch has reported is
    not the query that reported. Nor is it that query running its first batch again, for that batch has its epoch.

    Raises
    ------
    ConfigurationError
        If a batch has reported.
    """
    newest = newest_batch(directory)
    if newest >= 0:
        raise ConfigurationError(
            f"the control directory {directory.location} belongs to a query that has run batch {newest}, but the "
            f"checkpoint has no batch: if that query runs, give this one a control directory of its own; if it is this "
            f"query, restore its checkpoint; only to start anew, remove the control directory too"
        )


def forget_past(directory: Directory) -> None:
    """Delete what an earlier query left, but for the files that say whose the directory is."""
    for name in directory.names_below("."):
        if name not in _LASTING:
            directory.delete(name)
