"""Commits of files to the log of a Delta table, each batch once, by the `deltalake` package, without a JVM.

A commit carries the query's name and the batch's number as the table's transaction (``txn``). A batch that the table
already has is not committed again, and the log lets only one of two processes commit under one name at a time. Spark's
writer follows the same rule with the same names (``txnAppId``, ``txnVersion``), so either writer may continue where the
other stopped. A commit also carries the batch's identity, as ``userMetadata``, so that another batch of the same number
is not mistaken for the one that the table has (`checkpoint.batch_mark`).

To open a table takes about 10 ms, plus one microsecond per file, and on an object store a request for each recent entry
of its log. So the tables of a query stay open between its batches (`kept_tables`).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import fs

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import ConfigurationError, ForeignFilesError, TableOutOfReachError
from spark_throttle.files.error_lines import METADATA_SERVICE, one_line
from spark_throttle.files.storage import file_system
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.delta.table_log import identity_of_batch

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
