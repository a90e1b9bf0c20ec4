"""A lock that processes of one machine hold on a file: one at a time, and never longer than its holder lives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_throttle.files.ownership import opened, opened_or_made


@contextmanager
def held(path: Path, *, mode: int = 0o666, is_waiting: bool = True, beside: Path | None = None) -> Iterator[None]:
    """Hold the lock of a file, which is created where there is none; wait while another holds the lock.

    Nothing is written to the file, and a link in its place is not followed.

    Parameters
    ----------
    mode
        Permissions of the file if it is created, as far as the process' umask leaves them.
    is_waiting
        Whether to wait; otherwise a lock that another holds is a `BlockingIOError`.
    beside
        The file or folder that is locked: if root makes the lock's file, that belongs to the same owner.

    Raises
    ------
    OSError
        If the file cannot be opened, is a link, or has another name elsewhere and this process is root.
    """
    descriptor, _ = opened_or_made(path, os.O_RDWR, mode, beside=beside)
    with os.fdopen(descriptor, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def held_to_read(path: Path) -> Iterator[None]:
    """Hold the lock of a file that this process may not write, together with other readers.

    Where there is no file, nobody has held the lock yet, and it cannot be held.

    Raises
    ------
    OSError
        If the file cannot be opened, or is a link.
    """
    try:
        descriptor = opened(path, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    with os.fdopen(descriptor, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
