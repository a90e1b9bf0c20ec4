"""Whether a Delta table accepted the batch that was given to Spark's writer.

Spark's writer silently skips a batch whose number the table already has. After a write the table must have this batch,
by its identity: written now, or by an earlier attempt. The table's log is read without Spark if possible; otherwise
Spark is asked for the table's history. The batch is usually in the entry of the log after the one that this process
saw last, and that is read first: two requests to an object store, where opening the table takes one for every entry
since its checkpoint.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from spark_throttle.checkpoint.batch_mark import BatchMark, parse_mark
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError
from spark_throttle.spark.delta.commit import has_batch, open_table
from spark_throttle.spark.delta.table_log import version_of_batch

_COMMITS_ASKED_FOR = 100
"""Number of commits that are searched; others may have committed since the write."""

_MOST_TABLES: Final = 64

_SEEN: Final[dict[tuple[str, str], int]] = {}
"""By location and query, a version of the table that is not older than the query's newest batch there."""


def check_taken(spark: SparkSession, path: str | None, table: str | None, mark: BatchMark) -> None:
    """Refuse to go on if a table has a different batch of this number, or a later one.

    Raises
    ------
    CheckpointMismatchError
        If the table has such a batch.
    """
    name = f"delta.`{path}`" if table is None else table
    location = path if path is not None else str(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])
    key = location, mark.query
    try:
        seen_version = _SEEN.pop(key, None)
        version = None if seen_version is None else version_of_batch(location, seen_version, mark)
        if version is not None:
            _see(key, version)
            return
        found = open_table(location)
        if found is not None and found.transaction_version(mark.query) is not None:
            has_batch(found, location, mark)
            _see(key, found.version())
            return
    except CheckpointMismatchError:
        raise
    except (ImportError, OSError, ConfigurationError):  # this process cannot reach the table, but Spark can
        pass
    for row in spark.sql(f"DESCRIBE HISTORY {name} LIMIT {_COMMITS_ASKED_FOR}").collect():
        seen = parse_mark(row["userMetadata"])
        if seen is not None and seen.query == mark.query:
            mark.check(f"the Delta table {location}", seen.batch, seen.identity)
            return


def _see(key: tuple[str, str], version: int) -> None:
    while len(_SEEN) >= _MOST_TABLES:
        _SEEN.pop(next(iter(_SEEN)), None)
    _SEEN[key] = version
