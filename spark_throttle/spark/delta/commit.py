"""Commits of files to the log of a Delta table, each batch once, by the `deltalake` package, without a JVM.

A commit carries the query's name and the batch's number as the table's transaction (``txn``). A batch that the table
already has is not committed again, and the log lets only one of two processes commit under one name at a time. Spark's
writer follows the same rule with the same names (``txnAppId``, ``txnVersion``), so either writer may continue where the
other stopped. A commit also carries the batch's identity, as ``userMetadata``, so that another batch of the same number
is not mistaken for the one that the table has (`checkpoint.batch_mark`).

To open a table takes about 10 ms, plus one microsecond per file, and on an object store a request for each recent entry
of its log. So the tables of a query stay open between its batches.

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
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import fs

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import ConfigurationError, ForeignFilesError, TableOutOfReachError, ThrottleError
from spark_throttle.files.storage import METADATA_SERVICE, file_system, one_line
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.delta.table_log import identity_of_batch, version_of_batch

if TYPE_CHECKING:
    from deltalake import DeltaTable


_ASKED_AGAIN: Final = re.compile(r"after \d+ retries|AWS Error NETWORK_CONNECTION")
"""What `deltalake` and pyarrow say of a request that was not answered, or refused for the moment, at every attempt."""


def open_table(location: str) -> DeltaTable | None:
    """Return the current state of the table at a location, or `None` if this process finds no table there.

    Raises
    ------
    ForeignFilesError
        If the location cannot be read; `TableOutOfReachError` if its store does not answer.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return table_at(location)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError, pa.ArrowException, ConfigurationError) as error:
        problem = one_line(error)
        if _ASKED_AGAIN.search(problem) and METADATA_SERVICE not in problem:
            raise TableOutOfReachError(location, problem) from error
        raise ForeignFilesError(location, f"its log cannot be read without Spark ({problem})") from error


def table_at(location: str, version: int | None = None) -> DeltaTable:
    """Return the table at a location, in its current state or at a version; delta-rs' own errors say why not."""
    from deltalake import DeltaTable

    return DeltaTable(table_uri(location), version=version)


def table_uri(location: str) -> str:
    """Return a location in the form that the `deltalake` package takes.

    Examples
    --------
    >>> table_uri("file:/lake/orders")
    '/lake/orders'
    """
    files, path = file_system(location)
    return path if isinstance(files, fs.LocalFileSystem) else location


def has_batch(table: DeltaTable, location: str, mark: BatchMark) -> bool:
    """Return whether the table at a location has a batch.

    Raises
    ------
    CheckpointMismatchError
        If it has a different batch of that number, or a later one: the checkpoint was put back, or a copy of it runs.
    """
    newest = table.transaction_version(mark.query)
    if newest is None or newest < mark.batch:
        return False
    identity = None
    if newest == mark.batch:
        identity = identity_of_batch(location, table.version(), mark.query, mark.batch)
    mark.check(f"the Delta table {location}", newest, identity)
    return True


def append_batch(
    table: DeltaTable, location: str, mark: BatchMark, files: list[WrittenFile], *, cleans_log: bool = True
) -> None:
    """Append the files of a batch, unless another process has done so in the meantime.

    Concurrent commits by others are not a conflict; a change of the table's schema or protocol is.

    Parameters
    ----------
    cleans_log
        Whether entries of the log that have expired are removed, if the table wants that: it lists the whole log.

    Raises
    ------
    CheckpointMismatchError
        If another process has committed a different batch of that number, or a later one, in the meantime.
    """
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import (
        AddAction,
        CommitProperties,
        PostCommitHookProperties,
        RemoveAction,
        Transaction,
    )

    now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - when the files were written, for people and tools to read
    actions: list[AddAction | RemoveAction] = [
        AddAction(f.path, f.size_bytes, dict(f.partition_values), now_ms, data_change=True, stats=f.stats)
        for f in files
    ]
    properties = CommitProperties(
        # A table that forgets old transactions would forget one without a time at once.
        app_transactions=[Transaction(mark.query, mark.batch, now_ms)],
        custom_metadata={"userMetadata": mark.to_text()},
    )
    partition_columns = table.metadata().partition_columns
    try:
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_columns,
            commit_properties=properties,
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=None if cleans_log else False),
        )
    except CommitFailedError:
        table.update_incremental()
        if not has_batch(table, location, mark):
            raise


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
