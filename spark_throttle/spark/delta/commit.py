"""Files into the log of a Delta table, once: by the `deltalake` package, in whatever process, without a JVM.

A commit carries the query's name and the batch's number as the table's transaction (``txn``). A batch that the table
has is not committed again, and the log lets only one of two processes commit under one name at a time: the same rule,
and the same names, as ``txnAppId`` and ``txnVersion`` of Spark's writer, so that either may go on where the other
stopped. Beside them stands the batch's identity, as ``userMetadata``: another batch of the same number is not taken for
the one that the table has (`checkpoint.batch_mark`).

The table's log is read anew for every commit: some 10 ms, and a microsecond a file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import ConfigurationError, NativeWriterError
from spark_throttle.files.storage import file_system
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.delta.table_log import identity_of_batch

if TYPE_CHECKING:
    from deltalake import DeltaTable


def open_table(location: str) -> DeltaTable | None:
    """Return the table at a location as it is now, or `None` where this process finds none.

    Raises
    ------
    NativeWriterError
        If the location cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(table_uri(location))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError, pa.ArrowException, ConfigurationError) as error:
        raise NativeWriterError(location, f"its log cannot be read without Spark ({error})") from error


def table_uri(location: str) -> str:
    """Return a location as the `deltalake` package writes it.

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
        If it has another batch of that number, or a later one: the query went on, and its checkpoint was put back.
    """
    newest = table.transaction_version(mark.query)
    if newest is None or newest < mark.batch:
        return False
    identity = None
    if newest == mark.batch:
        identity = identity_of_batch(location, table.version(), mark.query, mark.batch)
    mark.check(f"the Delta table {location}", newest, identity)
    return True


def append_batch(table: DeltaTable, location: str, mark: BatchMark, files: list[WrittenFile]) -> None:
    """Append the files of a batch, unless another process has done so meanwhile.

    Commits of others in between are no conflict; a change of the table's schema or protocol is one.

    Raises
    ------
    CheckpointMismatchError
        If another process has committed another batch of the query meanwhile.
    """
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

    now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - when the files were written, for people and tools to read
    actions: list[AddAction | RemoveAction] = [
        AddAction(f.path, f.size_bytes, dict(f.partition_values), now_ms, data_change=True, stats=f.stats)
        for f in files
    ]
    properties = CommitProperties(
        # Without a time, a table that forgets old transactions would forget this one at once.
        app_transactions=[Transaction(mark.query, mark.batch, now_ms)],
        custom_metadata={"userMetadata": mark.to_text()},
    )
    partition_columns = table.metadata().partition_columns
    try:
        table.create_write_transaction(
            actions, "append", table.schema(), partition_columns, commit_properties=properties
        )
    except CommitFailedError:
        table.update_incremental()
        if not has_batch(table, location, mark):
            raise
