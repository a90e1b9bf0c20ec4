"""Whom a file belongs to that is put in another's place, or beside it: the same user and group.

A file that a server reads belongs to the server's user. An administrator who changes it as root must not become its
owner, for the server would be locked out.
"""

from __future__ import annotations

import os
from pathlib import Path


def keep_owner(descriptor: int, path: Path) -> None:
    """Give a file, which is not read by anybody yet, the owner and the group of another; one that is absent has none.

    Raises
    ------
    PermissionError
        If only root may do that. Its message says what to do.
    """
    try:
        wanted = path.stat()
    except FileNotFoundError:
        return
    found = os.fstat(descriptor)
    if (found.st_uid, found.st_gid) == (wanted.st_uid, wanted.st_gid):
        return
    try:
        os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
    except PermissionError as error:
        whose = f"the user {wanted.st_uid} and the group {wanted.st_gid}"
        raise PermissionError(
            error.errno, f"{path} belongs to {whose}, which only they or root can keep; run this as that user"
        ) from error


def keep_owner_as_root(descriptor: int, path: Path) -> None:
    """Do the same if this process is root's; users who share a folder by its group may each own some of its files."""
    if os.geteuid() == 0:
        keep_owner(descriptor, path)
