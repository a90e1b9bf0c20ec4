"""A Delta table that is not all that was committed to it: what delta-rs says of its files, and a missing revision.

delta-rs takes a commit for whole that was cut off after a line, and a table for whole whose middle is gone. But every
commit adds the rows of one revision, and says their numbers in the statistics of its files. So one look at the list of
files, which delta-rs holds in memory, finds a revision that has no rows, and rows that no commit has.

It cannot be noticed that the newest commits were removed whole: what is left is a whole table of an older revision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from spark_throttle.errors import DamagedError, StoreUnavailableError, ThrottleError
from spark_throttle.remedies import Remedy

_RESTORE: Final = "restore it from a backup of the store"
_FORMS: Final = ("form=change", "form=snapshot")
"""Folders of the files that hold a store's rows."""

_SAID: Final = re.compile(
    r"Json error|Expected contiguous commit files|No table metadata|protocol found in delta log|Invalid Checkpoint|"
    r"[Pp]arquet (argument )?error|Parquet (file size|magic)|magic bytes|deserialize thrift|[Cc]orrupt|"
    r"Unexpected end of stream|non.?UTF-?8|^revision \d+ of \d+ is missing"
)
"""What delta-rs and Arrow say of a file that they have read and cannot understand, and `rows` of a hole."""

_UNREACHED: Final = re.compile(r"Generic (?!delta)\w+ error|error sending request|timed out|Connection")
"""What they say of an object store that they did not reach."""


def damaged(location: str, problem: str, remedy: str = _RESTORE) -> DamagedError:
    """Return the error of a store that says `problem`."""
    return DamagedError(f"the policy store {location}", problem, remedy)


def error_of(location: str, said: str) -> ThrottleError:
    """Return what an error of delta-rs or Arrow means: the contents of a file, or that it was not reached."""
    is_damage = _SAID.search(said) is not None and _UNREACHED.search(said) is None
    return damaged(location, said) if is_damage else StoreUnavailableError(location, said)


def absence(location: str, remains: list[str]) -> ThrottleError:
    """Return the error of a store whose log has no commit: there is none, or its log is lost.

    Parameters
    ----------
    remains
        The files that only a store leaves (`remains_of`).
    """
    if not remains:
        return StoreUnavailableError(location, "there is no policy store", Remedy.MAKE_STORE)
    return damaged(
        location,
        f"its log has no commit, though {remains[0]} is there",
        "restore _delta_log from a backup of the store, or, if its policies and their history may be lost, move the "
        "folder of the store away",
    )


def remains_of(location: str, folder: Path | None, options: Mapping[str, str] | None) -> list[str]:
    """Return the files of rows in the place of a table, by path.

    Parameters
    ----------
    folder
        The table's folder, if it is on a disk.

    Raises
    ------
    DeltaError, OSError, pyarrow.ArrowException
        If the place cannot be listed.
    """
    files = (
        fs.PyFileSystem(DeltaStorageHandler(location, dict(options or {})))
        if folder is None
        else fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    )
    found = list[str]()
    for form in _FORMS:
        with suppress(TableNotFoundError):
            found += [info.path for info in files.get_file_info(fs.FileSelector(form, allow_not_found=True))]
    return sorted(path for path in found if path.endswith(".parquet"))


def check_no_revision_is_missing(location: str, table: DeltaTable, newest: int, *, after: int | None = None) -> None:
    """Refuse a table that lacks the rows of a revision since its newest snapshot, or the end of a commit.

    Parameters
    ----------
    newest
        Its newest revision, by its log.
    after
        The revision after which none may be missing, if not the newest snapshot's.

    Raises
    ------
    DamagedError
        If it does.
    """
    changes, snapshot = _revisions_in(table)
    if changes is None:
        return  # another program has rewritten the files without statistics; the readers of rows look for themselves
    highest = max((last for _, last in changes), default=newest)
    if highest > newest:
        raise damaged(location, f"it has rows of revision {highest}, and its log ends with {newest}")
    expected = (snapshot if after is None else after) + 1
    for first, last in sorted(changes):
        if first > expected:
            break
        expected = max(expected, last + 1)
    if expected <= newest:
        raise damaged(location, f"revision {expected} of {newest} is missing")


def _revisions_in(table: DeltaTable) -> tuple[list[tuple[int, int]] | None, int]:
    """Return the first and the last revision of every file of changes, and the newest snapshot's, by the log."""
    adds = pa.table(table.get_add_actions(flatten=True))
    if not {"min.revision", "max.revision"} <= set(adds.column_names):
        return None, 0
    columns = (adds[name].to_pylist() for name in ("partition.form", "min.revision", "max.revision"))
    rows = list(zip(*columns, strict=True))
    changes = [(first, last) for form, first, last in rows if form == "change"]
    newest_snapshot = max((first for form, first, _ in rows if form == "snapshot" and first is not None), default=0)
    return None if any(None in each for each in changes) else changes, newest_snapshot
