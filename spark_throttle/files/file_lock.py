"""A lock that processes of one machine hold on a file: one at a time, and never longer than its holder lives."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created where there is none; wait while another holds the lock.

    Raises
    ------
    OSError
        If the file cannot be opened.
    """
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
