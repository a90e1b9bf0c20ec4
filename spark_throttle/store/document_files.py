"""The files of a YAML store beside its document, and how each of them is written."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from spark_throttle.errors import DamagedError, StoreUnavailableError
from spark_throttle.files.ownership import opened_or_made, replace_whole


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


def opened_log(log: Path, document: Path) -> BinaryIO:
    """Open the log to write to it; make it where there is none."""
    descriptor, _ = opened_or_made(log, os.O_WRONLY | os.O_APPEND, 0o666, beside=document)
    return os.fdopen(descriptor, "ab")


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
