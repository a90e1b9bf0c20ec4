"""Files that only their owner may read, such as those of secrets: read with care, replaced as a whole, never half.

A link is followed for reading, as a mounted secret is one, and never for writing: whoever may place a link beside a
file could otherwise choose what is overwritten.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from spark_throttle.errors import FileUnusableError
from spark_throttle.files import ownership
from spark_throttle.files.ownership import replace_whole

OWNER_ONLY: Final = 0o600
_EXTRA: Final = 0o7177
"""The permissions that a private file must not have."""


def read_private(path: Path) -> bytes | None:
    """Return the content of a file; `None` where there is none.

    Raises
    ------
    FileUnusableError
        If others than its owner may read or write it, if it is not a plain file, or if it cannot be read.
    """
    try:
        # A pipe without a writer would keep its reader waiting.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            check_private(path, os.fstat(file.fileno()))
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(path, "it cannot be read", error) from error


def check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a file that others than its owner may read or write, or that is not a plain file.

    Raises
    ------
    FileUnusableError
        If it is so.
    """
    if not stat.S_ISREG(status.st_mode):
        raise FileUnusableError(str(path), "it is not a plain file; name another one, or remove it")
    mode = stat.S_IMODE(status.st_mode)
    if mode & _EXTRA:
        raise FileUnusableError(
            str(path),
            f"its mode is {mode:04o}, wider than {OWNER_ONLY:04o}, so others than its owner get at it; run "
            f"chmod 600 {path}",
        )


def replace_private(path: Path, content: bytes) -> None:
    """Replace a file as a whole, on the disk when this returns; readers see the old content or the new.

    Its owner stays the same, and its group if this process may give it that one.

    Raises
    ------
    FileUnusableError
        If it is a link, its owner cannot be kept, or the disk does not take the content; the file is then as it was.
    """
    check_no_link(path)
    try:
        replace_whole(path, content, mode=OWNER_ONLY, like=path, is_owner_needed=True)
    except OSError as error:
        raise unusable(path, "nothing was changed, for it cannot be written", error) from error
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Have the disk keep the name of a file that was made or replaced.

    Raises
    ------
    FileUnusableError
        If it does not say that it does.
    """
    try:
        ownership.sync_folder(path.parent)
    except OSError as error:
        raise unusable(path, "it was written, and the disk does not say that it keeps it", error) from error


def check_no_link(path: Path) -> None:
    """Refuse to write through a link.

    Raises
    ------
    FileUnusableError
        If the path is one.
    """
    if path.is_symlink():
        raise FileUnusableError(
            str(path), f"it is a link, which is not followed for writing; name {path.resolve()}, where it leads, itself"
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside a private file, ``<path>.lock``; wait while another process holds it.

    Raises
    ------
    FileUnusableError
        If there can be no lock.
    """
    lock = path.with_name(path.name + ".lock")
    check_no_link(lock)
    with ExitStack() as stack:
        try:
            stack.enter_context(ownership.held(lock, mode=OWNER_ONLY, beside=path))
        except OSError as error:
            raise unusable(lock, "it cannot be locked", error) from error
        yield


def unusable(path: Path, problem: str, error: OSError) -> FileUnusableError:
    """Return the error that names the file, what could not be done, and what the system said."""
    return FileUnusableError(str(path), f"{problem}: {error.strerror}")
