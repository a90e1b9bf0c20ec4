"""A lock that processes of one machine hold on a file: one at a time, and never longer than its holder lives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_throttle.files.ownership import keep_owner_as_root


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
        The file that is locked: if root takes the lock, it belongs to the file's owner from then on.

    Raises
    ------
    OSError
        If the file cannot be opened, or is a link.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "rb") as file:
        if beside is not None:
            keep_owner_as_root(file.fileno(), beside)
        fcntl.flock(file, fcntl.LOCK_EX if is_waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
