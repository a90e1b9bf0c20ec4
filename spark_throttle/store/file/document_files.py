"""The files of a YAML store beside its document, and how each of them is written."""

from __future__ import annotations

import errno
import hashlib
import stat
from pathlib import Path

from spark_throttle.errors import DamagedError, StoreUnavailableError
from spark_throttle.files.ownership import replace_whole
from spark_throttle.remedies import Remedy


def check_document(path: Path) -> None:
    """Refuse a log without its document: a new document would be a change that removes every policy."""
    for what, suffix in (("log", ".log"), ("pending commit", ".pending")):
        left = beside(path, suffix)
        try:
            found = left.lstat()
        except FileNotFoundError:
            continue
        is_new = suffix == ".log" and stat.S_ISREG(found.st_mode) and not found.st_size
        if not is_new and not path.exists():
            raise DamagedError(
                f"the policy store file:{path}",
                f"its document is not there, and its {what} {left} is",
                f"restore the document from a backup, or, to begin a new store, move the {what} away first",
            )


def lack_of_log(log: Path) -> tuple[str, str] | None:
    """Return what is wrong with the place of a log, and how it may begin anew; `None` if a log is there."""
    try:
        mode = log.lstat().st_mode
    except FileNotFoundError:
        problem = f"its log {log} is not there, and with it the history and who wrote which entry"
        return problem, "make an empty file of that name"
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):  # `opened` says what to do about a link
        return None
    return f"its log {log} is a folder or no file at all", "put an empty file in its place"


def absence_of(path: Path) -> StoreUnavailableError:
    """Return the error for a document that is not there; a log without its document is another."""
    check_document(path)
    return StoreUnavailableError(f"file:{path}", "there is no such file", Remedy.MAKE_STORE)


def signature_of(path: Path) -> tuple[int, ...]:
    """Return values that change when a file does: a commit grows the log, an edit gives the document a new time."""
    log, pending, lock = (beside(path, suffix) for suffix in (".log", ".pending", ".lock"))
    try:
        found = path.stat()
        found_log = log.stat() if log.exists() else None
        others = int(pending.exists()), int(lock.exists())
    except FileNotFoundError as error:
        raise absence_of(path) from error
    except OSError as error:
        raise StoreUnavailableError(f"file:{path}", f"cannot read it: {reason_of(error)}") from error
    if stat.S_ISFIFO(found.st_mode):
        raise StoreUnavailableError(f"file:{path}", f"{path} is a pipe; give a file, which can be read again")
    of_log = () if found_log is None else (found_log.st_mtime_ns, found_log.st_size, found_log.st_ino)
    return found.st_mtime_ns, found.st_size, found.st_ino, *others, *of_log


def check_no_link(path: Path) -> None:
    """Refuse to change a document by a link to it.

    The link would be replaced by a file, and who reads the document by its own name would never see the change.

    Raises
    ------
    StoreUnavailableError
        If it is a link.
    """
    if path.is_symlink():
        raise StoreUnavailableError(
            f"file:{path}",
            f"{path} is a link, and a change would put a file in its place; give the document by its own name, "
            f"file:{path.resolve()}",
        )


def beside(path: Path, suffix: str) -> Path:
    """Return the path of a file of the store, which has the document's name and a suffix."""
    return path.with_name(path.name + suffix)


def reason_of(error: OSError) -> str:
    """Return what the system says of a file, with its name."""
    said = error.strerror or str(error)
    name = error.filename
    said = said if name is None or str(name) in said else f"{name}: {said}"
    return f"{said}; run this as the owner of the folder" if error.errno == errno.EACCES else said


def digest_of(content: bytes) -> str:
    """Return what tells a document from every other."""
    return hashlib.sha256(content).hexdigest()


def replace_document(path: Path, content: bytes, *, like: Path) -> None:
    """Write a complete file, then move it into place; it has the mode of another, and its owner, if root writes it."""
    replace_whole(path, content, mode=None, like=like, is_owner_needed=False)
