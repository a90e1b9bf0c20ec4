"""The batch that a sink gives to a function on the driver; its report is written once the function has returned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_throttle.control.feedback import report_of
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory

_RUNNING: Final[dict[str, tuple[int, UsageReport | None]]] = {}
"""By control directory; a query runs one batch at a time."""


@contextmanager
def running_batch(directory: Directory, batch: int, report: UsageReport | None) -> Iterator[None]:
    """Let metered functions that are called meanwhile know the report of a batch.

    Examples
    --------
    >>> directory = Directory("/nowhere/throttle")
    >>> with running_batch(directory, 7, None):
    ...     report_of_running(directory, 7) is None
    True
    """
    _RUNNING[directory.location] = batch, report
    try:
        yield
    finally:
        _RUNNING.pop(directory.location, None)


def report_of_running(directory: Directory, batch: int) -> UsageReport | None:
    """Return the report of the batch that runs; that of a decided stream has been written already."""
    running, report = _RUNNING.get(directory.location, (-1, None))
    return report if running == batch else report_of(directory, batch)
