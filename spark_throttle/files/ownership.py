"""A file that is put in another's place, or beside it, belongs to the same user, and to the same group if it may.

A file that a server reads belongs to the server's user. An administrator who changes it as root must not become its
owner, for the server would be locked out. But whoever owns a folder chooses what stands in it under every name, also
while root looks at it: a link to a file of root's, or a second name of one. So a file is given away by the call that
makes it, and by no other; and root writes into a file that was there only if it has no other name.

A lock is held by processes of one machine on a file: one at a time, and never longer than its holder lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_RACES: Final = 100


def keep_owner(descriptor: int, path: Path) -> None:
    """Give a file, which this process has just made, the owner of another, and its group if this process may.

    A file that is absent has no owner to keep.

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
    if found.st_uid != wanted.st_uid:
        try:
            os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
        except PermissionError as error:
            raise PermissionError(
                error.errno,
                f"{path} belongs to the user {wanted.st_uid} and must stay so, which takes that user or root; run this "
                f"as that user",
            ) from error
    elif found.st_gid != wanted.st_gid:
        # A user need not be in the group of its own file.
        with suppress(PermissionError):
            os.fchown(descriptor, -1, wanted.st_gid)


def keep_owner_as_root(descriptor: int, path: Path) -> None:
    """Do the same if this process is root's; users who share a folder by its group may each own some of its files."""
    if os.geteuid() == 0:
        keep_owner(descriptor, path)


def opened(path: Path, flags: int) -> int:
    """Open a file that is there; a link is not followed, and a pipe keeps nobody waiting.

    Raises
    ------
    OSError
        If it cannot be opened, or is a link.
    """
    try:
        return os.open(path, flags | os.O_NONBLOCK | _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_link(path) from error
        raise


def opened_or_made(path: Path, flags: int, mode: int, *, beside: Path | None) -> tuple[int, bool]:
    """Open a file to write into it; make it where there is none. A link is not followed.

    Parameters
    ----------
    flags
        Those of `os.open`, without the ones that make a file.
    mode
        Permissions of the file if it is made, as far as the process' umask leaves them.
    beside
        The file that it belongs to: if root makes it, it belongs to that one's owner.

    Returns
    -------
    tuple
        The descriptor, and whether the file was made.

    Raises
    ------
    OSError
        If it cannot be opened or is a link, or if this process is root and the file has another name elsewhere.
    """
    for _ in range(_MOST_RACES):
        try:
            descriptor = opened(path, flags)
            is_made = False
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | _FLAGS | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:
                continue
            is_made = True
        try:
            if beside is not None and is_made:
                keep_owner_as_root(descriptor, beside)
            elif beside is not None:
                _check_no_second_name(os.fstat(descriptor), path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, is_made
    raise FileExistsError(errno.EEXIST, f"{path} appears and disappears all the time; find out what does that")


def status_of(path: Path) -> os.stat_result:
    """Return the status of a file that a library will open by its name; refuse a link.

    Raises
    ------
    OSError
        If it is not there, or is a link.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise _is_link(path)
    return found


def check_writable(path: Path) -> None:
    """Refuse to have a library write to a file that is a link or, if this process is root, has another name elsewhere.

    Raises
    ------
    OSError
        If it is, or is not there.
    """
    _check_no_second_name(status_of(path), path)


def _is_link(path: Path) -> OSError:
    remedy = "remove it, or put the file itself in its place"
    return OSError(errno.ELOOP, f"{path} is a link, and symbolic links are not followed here; {remedy}")


def _check_no_second_name(found: os.stat_result, path: Path) -> None:
    """Refuse, as root, a file that stands elsewhere too: it may be anybody's, and of root's own files too."""
    if os.geteuid() == 0 and found.st_nlink > 1:
        raise PermissionError(
            errno.EPERM,
            f"{path} is a second name of a file that stands elsewhere, so root does not write to it; look at who made "
            f"it, and remove it",
        )


def replace_whole(path: Path, content: bytes, *, mode: int | None, like: Path, is_owner_needed: bool) -> None:
    """Put a new file in the place of another, or where there is none; readers see the old content or the new.

    It is written under a name that nobody can guess, is on the disk before it is moved, and is removed if that fails.

    Parameters
    ----------
    mode
        Permissions of the new file, as far as the process' umask leaves them; `None` for those of `like`.
    like
        The file whose owner it gets.
    is_owner_needed
        Whether it must get that owner whoever writes it; otherwise it does if root writes it.

    Raises
    ------
    OSError
        If the file cannot be replaced; it is as it was.
    """
    written = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        kept = stat.S_IMODE(like.stat().st_mode) & 0o777 if mode is None and like.exists() else None
        first = (0o666 if mode is None else mode) if kept is None else kept & 0o600
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, first)
        with os.fdopen(descriptor, "wb") as file:
            (keep_owner if is_owner_needed else keep_owner_as_root)(file.fileno(), like)
            if kept is not None:
                os.fchmod(file.fileno(), kept)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except OSError:
        with suppress(OSError):
            written.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names of the files in a folder that were made, replaced or removed.

    Raises
    ------
    OSError
        If it does not say that it does.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_folder_as_root(path: Path) -> None:
    """Make a folder, as root, for the owner of the one that it is in; one that is there stays as it is.

    If a library made it for root, that owner could not write into it.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    if os.geteuid() != 0 or path.is_symlink() or path.exists():
        return
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    made.mkdir()
    try:
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            keep_owner(descriptor, path.parent)
        finally:
            os.close(descriptor)
        made.rename(path)
    except OSError as error:
        with suppress(OSError):
            made.rmdir()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


@contextmanager
def held(path: Path, *, mode: int = 0o666, beside: Path | None = None) -> Iterator[None]:
    """Hold the lock of a file, which is created where there is none; wait while another holds the lock.

    Nothing is written to the file, and a link in its place is not followed.

    Parameters
    ----------
    mode
        Permissions of the file if it is created, as far as the process' umask leaves them.
    beside
        The file or folder that is locked: if root makes the lock's file, that belongs to the same owner.

    Raises
    ------
    OSError
        If the file cannot be opened, is a link, or has another name elsewhere and this process is root.
    """
    descriptor, _ = opened_or_made(path, os.O_RDWR, mode, beside=beside)
    with os.fdopen(descriptor, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
