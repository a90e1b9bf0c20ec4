"""The highest revision that was ever committed to a Delta store, in a small file beside the commits.

A table whose newest commits were removed is a whole table: nothing in its log says that there was more. So the author
of a commit notes its revision here, after the commit. An author who dies in between leaves a lower number, which says
less and is not wrong. Delta, Spark and `VACUUM` leave files of the log alone whose names are none of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_throttle.record import Count, of_json, to_json
from spark_throttle.store.delta.table_files import LOG, TableFiles

MARK: Final = f"{LOG}/_newest_revision"
"""Path of the file in the table's folder."""


@dataclass(frozen=True, slots=True)
class NewestRevision:
    """What the file holds."""

    revision: Count


def read_mark(files: TableFiles) -> int:
    """Return the highest revision that is known to have been committed; 0 if nobody noted any.

    Raises
    ------
    DamagedError
        If the file does not say it.
    """
    content = files.read(MARK)
    if content is None:
        return 0
    what = f"the file {files.shown(MARK)}, which names the newest revision,"
    remedy = "restore it from a backup of the store, or remove it if no commit is missing: the next change writes it"
    return of_json(NewestRevision, content, what, remedy=remedy).revision


def write_mark(files: TableFiles, revision: int) -> None:
    """Note the revision of a commit that was made."""
    files.write(MARK, to_json(NewestRevision(revision)))
