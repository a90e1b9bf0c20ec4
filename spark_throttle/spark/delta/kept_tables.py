"""Delta tables that stay open from batch to batch in the process that commits to them, so that few requests suffice.

To open a table on an object store takes two requests for every entry of its log since the last checkpoint
(``delta.checkpointInterval``, 100 by default), and a third asks for the query's newest batch. But of a table to which
this process has committed a batch of the query, that commit is all that is new. So the table is brought up to it, and
the next batch is committed on top:

- The commit is looked for in the next few entries of the log. If it is not there, the table was removed, made again,
  restored from a copy, its log was cleaned up, or many others have committed. Then the table is opened anew.
- What others have committed since then is found by the next commit itself. It is refused if the schema, the properties
  or the protocol were changed, or if a batch of the query was committed. Then too the table is opened anew, and asked
  and checked as it is now, before the files are appended once more. So it is after any other failure, as of credentials
  that have expired, or of a connection that broke, so that nobody knows whether a commit was made. A commit to a table
  that was just opened is tried again too, once.

Only a commit to a table that was just opened removes what has expired in its log, because that lists the whole log.

What is kept for a table is what `deltalake` holds of it, which is in proportion to its files. A process keeps few
tables, and none for more than `_MOST_COMMITS` commits, by which time the log has had a checkpoint. Spark ends a process
that had nothing to do for a minute, and with it what is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import ConfigurationError, ThrottleError
from spark_throttle.files.error_lines import one_line
from spark_throttle.spark.delta.commit import append_batch, has_batch, open_table
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.delta.table_log import version_of_batch

if TYPE_CHECKING:
    from deltalake import DeltaTable

logger = logging.getLogger(__name__)

_MOST_TABLES: Final = 16
_MOST_COMMITS: Final = 100


@dataclass(frozen=True, slots=True)
class _Kept:
    """An open table as it was before this process committed a batch to it."""

    table: DeltaTable
    mark: BatchMark
    commits: int = 1
    """How many commits this process has made since it opened the table."""

    def is_brought_up(self, location: str, mark: BatchMark) -> bool:
        """Bring the table up to that commit, and return whether a batch may be committed on top of it."""
        if mark.batch <= self.mark.batch or self.commits >= _MOST_COMMITS:
            return False
        version = version_of_batch(location, self.table.version(), self.mark)
        if version is None:
            return False
        self.table.load_as_version(version)
        return True


_KEPT: Final[dict[tuple[str, str], _Kept]] = {}
"""By location and query; a table that is in use is not in it, so that two threads never use the same."""


def append_to_table(
    location: str, mark: BatchMark, check: Callable[[DeltaTable], None], written: Callable[[], list[WrittenFile]]
) -> None:
    """Append the files that `written` returns to the table at a location, unless the table already has the batch.

    Parameters
    ----------
    check
        Raises if the rows cannot be appended to the table as it is.
    written
        Called once at most.

    Raises
    ------
    CheckpointMismatchError
        If the table has a different batch of that number, or a later one.
    ConfigurationError
        If there is no table.
    """
    from deltalake.exceptions import DeltaError

    files = cache(written)
    kept = _KEPT.pop((location, mark.query), None)
    if kept is not None:
        try:
            if kept.is_brought_up(location, mark):
                check(kept.table)
                append_batch(kept.table, location, mark, files(), cleans_log=False)
                _keep(location, replace(kept, mark=mark, commits=kept.commits + 1))
                return
        except (ThrottleError, DeltaError, OSError, ValueError, pa.ArrowException) as error:
            logger.info("the Delta table %s is opened anew: %s", location, one_line(error))
    try:
        _append_anew(location, mark, check, files)
    except (DeltaError, OSError, pa.ArrowException) as error:  # `deltalake` does not ask a store twice for a commit
        logger.info("the Delta table %s is opened once more: %s", location, one_line(error))
        _append_anew(location, mark, check, files)


def _append_anew(
    location: str, mark: BatchMark, check: Callable[[DeltaTable], None], files: Callable[[], list[WrittenFile]]
) -> None:
    table = open_table(location)
    if table is None:
        raise ConfigurationError(
            f"the Delta table {location} is gone: restore it, or restart the query, which creates it"
        )
    if has_batch(table, location, mark):
        return
    check(table)
    append_batch(table, location, mark, files())
    _keep(location, _Kept(table, mark))


def _keep(location: str, kept: _Kept) -> None:
    while len(_KEPT) >= _MOST_TABLES:
        _KEPT.pop(next(iter(_KEPT)), None)
    _KEPT[location, kept.mark.query] = kept
