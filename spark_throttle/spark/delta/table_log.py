"""The log of a Delta table takes each batch of a query once, and says which it has: by `deltalake`, without a JVM.

A commit carries the query's name and the batch's number as the table's transaction (``txn``). A batch that the table
already has is not committed again, and the log lets only one of two processes commit under one name at a time. Spark's
writer follows the same rule with the same names (``txnAppId``, ``txnVersion``), so either writer may continue where the
other stopped. A commit also carries the batch's identity, as ``userMetadata``, so that another batch of the same number
is not mistaken for the one that the table has (`checkpoint.batch_mark`).

A table's snapshot records a query's newest batch, even after a ``RESTORE`` has removed the batch's rows, and forgets it
after ``delta.setTransactionRetentionDuration``. The log, read commit by commit, newest first, records more, as far back
as it is kept (``delta.logRetentionDuration``, 30 days by default).

To open a table takes about 10 ms, plus one microsecond per file, and on an object store two requests for every entry of
its log since the last checkpoint (``delta.checkpointInterval``, 100 by default); a third asks for the query's newest
batch. So the tables of a query stay open between its batches. Of a table to which this process has committed a batch of
the query, that commit is all that is new. So the table is brought up to it, and the next batch is committed on top:

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

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import fs

from spark_throttle.checkpoint.batch_mark import BatchMark, parse_mark
from spark_throttle.errors import ConfigurationError, ForeignFilesError, TableOutOfReachError, ThrottleError
from spark_throttle.files.storage import METADATA_SERVICE, Directory, file_system, one_line
from spark_throttle.spark.delta.table_files import WrittenFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

logger = logging.getLogger(__name__)

_WANTED: Final = (b'"txn"', b'"commitInfo"')
_NEXT_FEW: Final = 8
_SLACK_MS: Final = 3_600_000
"""Largest difference between the clocks of the processes that commit."""

_ASKED_AGAIN: Final = re.compile(r"after \d+ retries|AWS Error NETWORK_CONNECTION")
"""What `deltalake` and pyarrow say of a request that was not answered, or refused for the moment, at every attempt."""

_MOST_TABLES: Final = 16
_MOST_COMMITS: Final = 100


@dataclass(frozen=True, slots=True)
class Commit:
    """The facts about one version of a table that concern batches."""

    version: int
    transactions: Mapping[str, int]
    """The newest batch of each query, by the query's name."""

    text: str | None
    """The ``userMetadata`` of the commit."""

    is_restore: bool
    restored_version: int | None
    """Version to which a restore went back; `None` if the restore names a time, or the commit is not a restore."""

    time_ms: int | None


@dataclass(frozen=True, slots=True)
class LaterBatches:
    """A query's batches later than a given batch, according to a table's log."""

    newest: int | None = None
    """The newest later batch whose rows are in the table; `None` if there is none."""

    was_restored: bool = False
    """Whether a restore removed rows of later batches."""

    first_version: int | None = None
    """The oldest version that added a later batch."""

    is_known: bool = True
    """Whether the log goes back far enough to answer."""

    is_short: bool = False
    """Whether a restore removed rows of the given batch itself, or of an earlier one."""


def read_commits(location: str, newest_version: int) -> Iterator[Commit]:
    """Yield the commits of a table, newest first, as far back as its log is kept."""
    log = Directory(f"{location.rstrip('/')}/_delta_log")
    for version in range(newest_version, -1, -1):
        content = log.read(f"{version:020}.json")
        if content is None:
            return
        yield _commit(version, content)


def identity_of_batch(location: str, newest_version: int, query: str, batch: int) -> str | None:
    """Return the identity in a table's commit of a batch; `None` if the commit has none or is not found."""
    for commit in read_commits(location, newest_version):
        if commit.transactions.get(query) == batch:
            mark = parse_mark(commit.text)
            return mark.identity if mark is not None and (mark.query, mark.batch) == (query, batch) else None
    return None


def version_of_batch(location: str, after_version: int, mark: BatchMark) -> int | None:
    """Return the version, one of the next few after a version, that is the commit of a batch.

    Returns `None` if none is. Then the query has committed another batch, many others have committed, or the log no
    longer goes on from that version.
    """
    for version in range(after_version + 1, after_version + 1 + _NEXT_FEW):
        commit = next(read_commits(location, version), None)
        if commit is None or mark.query in commit.transactions:
            return version if commit is not None and parse_mark(commit.text) == mark else None
    return None


def batches_beyond(
    location: str, newest_version: int, query: str, batch: int, *, since_ms: int | None = None
) -> LaterBatches:
    """Return what a table's log records about the query's batches later than `batch`.

    Parameters
    ----------
    since_ms
        A time before which no such batch was committed; the search stops there.
    """
    visible, oldest = newest_version, newest_version + 1
    newest, first, was_restored, is_restored_to_a_time = None, None, False, False
    for commit in read_commits(location, newest_version):
        oldest = commit.version
        found = commit.transactions.get(query)
        is_visible = commit.version <= visible
        if found is not None and found <= batch:
            return LaterBatches(newest, was_restored, first, not is_restored_to_a_time, is_short=not is_visible)
        if found is not None:
            first = commit.version
            if is_restored_to_a_time:
                return LaterBatches(newest, was_restored, first, is_known=False)
            if is_visible and newest is None:
                newest = found
            was_restored |= not is_visible
        if commit.is_restore and is_visible:
            is_restored_to_a_time |= commit.restored_version is None
            visible = visible if commit.restored_version is None else commit.restored_version
        if since_ms is not None and commit.time_ms is not None and commit.time_ms < since_ms - _SLACK_MS:
            return LaterBatches(newest, was_restored, first)
    return LaterBatches(newest, was_restored, first, is_known=oldest == 0)


def _commit(version: int, content: bytes) -> Commit:
    transactions: dict[str, int] = {}
    info: dict[str, Any] = {}
    for line in content.splitlines():
        if any(word in line for word in _WANTED):
            action = json.loads(line)
            if "txn" in action:
                transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
            info = action.get("commitInfo") or info
    is_restore = info.get("operation") == "RESTORE"
    restored = (info.get("operationParameters") or {}).get("version") if is_restore else None
    time_ms = info.get("timestamp")
    return Commit(
        version,
        transactions,
        info.get("userMetadata"),
        is_restore,
        None if restored is None else int(restored),
        None if time_ms is None else int(time_ms),
    )


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
