"""A control directory is one run's: whoever began last has it, and whoever had it before ends.

Two queries with one control directory would each take the other's epochs and reports for their own, and a run that was
given up for dead may still be alive. A run writes its mark when it begins, and looks for it before every epoch.
"""

from __future__ import annotations

import uuid

from spark_throttle.control.storage import Directory
from spark_throttle.errors import TakenOverError

_NAME = "run"


class RunFence:
    """The mark of one run in a control directory."""

    def __init__(self, directory: Directory) -> None:
        self.run = uuid.uuid4().hex
        self._directory = directory

    def begin(self) -> None:
        """Take the directory over."""
        self._directory.write(_NAME, self.run.encode())

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
