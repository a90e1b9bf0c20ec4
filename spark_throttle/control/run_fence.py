"""A control directory is one run's: whoever began last has it, and whoever had it before ends.

Two queries with one control directory would each take the other's epochs and reports for their own, and a run that was
given up for dead may still be alive. A run writes its mark when it begins, and looks for it before it makes an epoch or
removes a file. It begins with the first epoch that it makes or loads, not before: one that is refused at its start
leaves the run that has the directory alone. If another run has begun since a run was started, the latter ends: what it
knows of the checkpoint is out of date.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from spark_throttle.control.feedback import newest_batch
from spark_throttle.errors import ConfigurationError, TakenOverError
from spark_throttle.files.storage import Directory

_NAME = "run"


class RunFence:
    """The mark of one run in a control directory.

    Parameters
    ----------
    then
        Called when the directory is this run's: what others see of the run begins there.
    """

    def __init__(self, directory: Directory, then: Callable[[], None] | None = None) -> None:
        self.run = uuid.uuid4().hex
        self._directory = directory
        self._then = then
        self._has_begun = False
        self._found = directory.read(_NAME)

    def begin(self) -> None:
        """Take the directory over; only the first call does.

        Raises
        ------
        TakenOverError
            If another run has begun since this one was started.
        """
        if self._has_begun:
            return
        if self._directory.read(_NAME) != self._found:
            raise TakenOverError(self._directory.location)
        self._has_begun = True
        self._directory.write(_NAME, self.run.encode())
        if self._then is not None:
            self._then()

    def check(self) -> None:
        """Refuse to go on if another run has taken the directory over.

        Raises
        ------
        TakenOverError
            If one has.
        """
        found = self._directory.read(_NAME)
        if found is not None and found != self.run.encode():
            raise TakenOverError(self._directory.location)


def refuse_past(directory: Directory) -> None:
    """Refuse to begin where a query has been: its sinks would skip the new batches as ones that they have.

    A batch reports after its offset was logged. So whoever asks for the first epoch where a batch has reported is
    not the query that reported: not even one whose first batch is run again, for that has its epoch.

    Raises
    ------
    ConfigurationError
        If a batch has reported.
    """
    newest = newest_batch(directory)
    if newest >= 0:
        raise ConfigurationError(
            f"the control directory {directory.location} is of a query that has run batch {newest}, and the "
            f"checkpoint has none: restore the checkpoint, or remove the control directory too to begin anew; "
            f"if it is another query's, give this one a directory of its own"
        )
