"""The checks before and after a batch reaches its sinks: rows that they already have must be of the same batch.

The first runs on the driver, where the sinks are written, once per attempt at a batch. A Delta table is asked for the
batch by the query's name, and dead letters are looked for in the batch's folder. What a function has done with a batch,
or what a user's own sink has of it, cannot be known. Other sinks promise only that no row is lost, and a batch that is
decided again loses none there.

The second follows a write: Spark's writer silently skips a batch whose number the table already has. After it the table
must have this batch, by its identity: written now, or by an earlier attempt. The table's log is read without Spark if
possible; otherwise Spark is asked for the table's history. The batch is usually in the entry of the log after the one
that this process saw last, and that is read first: two requests to an object store, where opening the table takes one
for every entry since its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from spark_throttle.checkpoint.batch_mark import BatchMark, parse_mark
from spark_throttle.checkpoint.definition import FUNCTION, OWN_SINK, Definition, begin, decided_digest
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError, ForeignFilesError
from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json
from spark_throttle.spark.delta.table_log import has_batch, open_table, version_of_batch
from spark_throttle.spark.sinks.transactional import MARKED
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.spark.start.start_check import BATCH_FOLDER

SINK, DEAD_LETTERS, USAGE = "the sink", "the dead letters", "the usage table"
"""Kinds of rows; the keys of `Definition.targets`."""

TABLE, NAMED_TABLE, FOLDERS = "Delta ", "Delta table ", "folders in "
"""Prefixes of a target's text. A target with another prefix is a sink that cannot be asked for a batch."""

APP_SUFFIX: Final = {SINK: "", DEAD_LETTERS: "/rejected", USAGE: "/usage", OWN_SINK: ""}
"""Suffix of the query's name in the transactions of each kind of rows."""

_COMMITS_ASKED_FOR = 100
"""Number of commits that are searched; others may have committed since the write."""

_MOST_TABLES: Final = 64

_SEEN: Final[dict[tuple[str, str], int]] = {}
"""By location and query, a version of the table that is not older than the query's newest batch there."""


def begin_batch(
    directory: Directory,
    query: str,
    batch: int,
    definition: str,
    report: UsageReport | None,
) -> bool:
    """Record that a batch is about to reach its sinks; called once per attempt, before the first sink is written.

    Returns whether an earlier attempt may have come so far.

    Raises
    ------
    DefinitionChangedError
        If a sink has the batch as decided by another definition.
    """
    return begin(
        directory,
        batch,
        of_json(Definition, definition, "the definition"),
        lambda kind, target: has_rows(query + APP_SUFFIX[kind], batch, target),
        decided_digest(report),
    )


def has_rows(app: str, batch: int, target: str, locate: Callable[[str], str | None] = lambda _: None) -> bool:
    """Return whether a target has a batch; `True` for one that cannot be asked here, such as a function.

    Parameters
    ----------
    app
        Name of the query in the target's transactions.
    locate
        Function that returns the location of a Delta table by its name, or `None` if it cannot be determined.
    """
    if target.startswith(FOLDERS):
        files = Directory(target.removeprefix(FOLDERS)).names(f"{BATCH_FOLDER}{batch}")
        return any(file.startswith("part-") for file in files)
    if not target.startswith(TABLE):
        return target == FUNCTION or target.partition(" ")[0] in MARKED
    is_named = target.startswith(NAMED_TABLE)
    location = locate(target.removeprefix(NAMED_TABLE)) if is_named else target.removeprefix(TABLE)
    if location is None:
        return True
    try:
        table = open_table(location)
    except (ImportError, ForeignFilesError):
        return True
    newest = table.transaction_version(app) if table is not None else None
    return newest is not None and newest >= batch


def check_taken(spark: SparkSession, path: str | None, table: str | None, mark: BatchMark) -> None:
    """Refuse to go on if a table has a different batch of this number, or a later one.

    Raises
    ------
    CheckpointMismatchError
        If the table has such a batch.
    """
    name = f"delta.`{path}`" if table is None else table
    location = path if path is not None else SparkPaths(spark).of_table(name)
    key = location, mark.query
    try:
        seen_version = _SEEN.pop(key, None)
        version = None if seen_version is None else version_of_batch(location, seen_version, mark)
        if version is not None:
            _see(key, version)
            return
        found = open_table(location)
        if found is not None and has_batch(found, location, mark):
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
