"""The batch that a sink gives to a function on the driver; its reports are written once the function has returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from spark_throttle.control.feedback import reports_of
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory

_RUNNING: Final[dict[str, tuple[int, Sequence[UsageReport]]]] = {}
"""By control directory; a query runs one batch at a time."""


@contextmanager
def running_batch(directory: Directory, batch: int, reports: Sequence[UsageReport]) -> Iterator[None]:
    """Let metered functions that are called meanwhile know the reports of a batch.

    Examples
    --------
    >>> directory = Directory("/nowhere/throttle")
    >>> with running_batch(directory, 7, []):
    ...     reports_of_running(directory, 7)
    []
    """
    _RUNNING[directory.location] = batch, reports
    try:
        yield
    finally:
        _RUNNING.pop(directory.location, None)


def reports_of_running(directory: Directory, batch: int) -> Sequence[UsageReport]:
    """Return the reports of the batch that runs; those of a decided stream have been written already."""
    running, reports = _RUNNING.get(directory.location, (-1, ()))
    if running == batch:
        return reports
    return reports_of(directory, batch)
