"""The drain of a stopped query: its waiting rows go to a table or a folder, and its checkpoint is closed.

It is the way off the throttle without waiting until the quotas have let all rows go. A drain that is killed is run
again, and leaves every row once: a Delta table recognizes the attempt by its transaction, and a folder of Parquet
files, which must have been empty, is written anew. From before the first write on, no query starts on the checkpoint
(`checkpoint.drained`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.drained import Drained, forget_drained, read_drained, write_drained
from spark_throttle.checkpoint.unsent import refuse_any_unsent
from spark_throttle.control.clock import Clock
from spark_throttle.errors import ConfigurationError, NotInstalledError, SourceChangedError
from spark_throttle.files.error_lines import one_line
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.offline.source_positions import SourcePosition, positions_after
from spark_throttle.spark.offline.stopped_query import StoppedQuery, stopped_query
from spark_throttle.spark.start.installation import told_in_one_line
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.spark.state_reader import queued_after, waiting_messages

DrainFormat: TypeAlias = Literal["delta", "parquet"]


@dataclass(frozen=True, slots=True)
class DrainedQuery:
    """What a drain has done, and where another query goes on."""

    batch: int
    """The last batch of the query."""

    messages: int
    """The number of rows that waited."""

    into: str
    """Where they are."""

    positions: tuple[SourcePosition, ...]
    """The positions of the query's sources after the batch."""

    def __str__(self) -> str:
        lines = [f"{self.messages} rows that waited after batch {self.batch} are in {self.into}"]
        return "\n".join([*lines, *(f"the source goes on from there with {each}" for each in self.positions)])


def drain(
    spark: SparkSession,
    checkpoint: str,
    into: str,
    *,
    format: DrainFormat = "delta",  # noqa: A002 - as Spark's
    schema: StructType | None = None,
    control_path: str | None = None,
) -> DrainedQuery:
    """Write the waiting rows of a stopped query to a table or a folder, and close its checkpoint.

    The rows have the user's columns and those that `read_queued` adds, then ``queue_position``: by it, the rows of a
    namespace are in the order in which they would have left. A drain that was killed is run again with the same
    arguments; one that has finished does nothing when it is run again. The checkpoint and its control directory must be
    where this process can write.

    Parameters
    ----------
    checkpoint
        The query's ``checkpointLocation``.
    into
        The path of a Delta table, to which the rows are appended, or of an empty folder.
    format
        ``delta``, or ``parquet`` for a folder of files.
    schema
        The stream's schema. By default it is inferred from the waiting rows, as by `read_queued`.
    control_path
        The control path that was given to `Throttle.apply`. By default, it is in the checkpoint.

    Raises
    ------
    ConfigurationError
        If the query runs, has never committed a batch, or has a batch that is not committed; if a destination has not
        taken all that was admitted; if the folder is not empty, or the table is of other columns; or if the rows were
        drained to another place.
    NotInstalledError
        If the rows are to go into a Delta table, and Spark has no Delta.
    SourceChangedError
        If copies of waiting rows are missing.
    """
    if format not in ("delta", "parquet"):
        raise ConfigurationError(f"format is {format!r}; give 'delta' or 'parquet'")
    paths = SparkPaths(spark)
    place, control = paths.query(checkpoint, control_path)
    into = paths.resolve(into).rstrip("/")
    query = stopped_query(place, control, Clock.system())
    refuse_any_unsent(query.directory, Directory(place), query.batch)
    before = _begun(query, into, format)
    messages = waiting_messages(spark, place, query.batch)
    if before is None or not before.is_finished:
        rows = queued_after(spark, place, control, query.batch, schema=schema) if messages else None
        found = 0 if rows is None else rows.count()
        if found != messages:
            problem = f"{messages} rows wait, and {found} of them are in the checkpoint"
            raise SourceChangedError(f"the queue of {checkpoint}", problem, "restore its control directory")
        query.check()
        note = before or Drained(query.batch, into, format, uuid.uuid4().hex)
        if before is None:
            write_drained(query.directory, note)
        if rows is not None:
            _write(rows, note, query, may_reopen=before is None)
        query.check()
        write_drained(query.directory, replace(note, is_finished=True))
    positions = positions_after(place, query.directory, query.batch)
    return DrainedQuery(query.batch, messages, into, tuple(positions))


def _begun(query: StoppedQuery, into: str, kind: DrainFormat) -> Drained | None:
    """Return the note of the drain; `None` if none has begun.

    Raises
    ------
    ConfigurationError
        If the rows went elsewhere, or the folder has files that may not be the drain's.
    """
    found = read_drained(query.directory)
    if found is not None:
        if (found.batch, found.into, found.written_as) != (query.batch, into, kind):
            raise ConfigurationError(
                f"the rows that waited after batch {found.batch} were drained into {found.into} ({found.written_as}), "
                f"and this drain is of batch {query.batch} into {into} ({kind}): give that place; or remove what is "
                f"there of the rows, then the note {query.directory.shown('drained.json')}"
            )
        return found
    if kind == "parquet" and _has_files(into):
        raise ConfigurationError(f"{into} has files: give a folder of its own to the rows that waited")
    return None


def _has_files(location: str) -> bool:
    files, root = file_system(location)
    return bool(files.get_file_info(fs.FileSelector(root, allow_not_found=True)))


def _write(rows: DataFrame, note: Drained, query: StoppedQuery, *, may_reopen: bool) -> None:
    """Write the rows; a table that has them already leaves them out.

    Raises
    ------
    ConfigurationError
        If the table does not take such rows: Spark says so before it writes any, so the checkpoint stays as it was.
    NotInstalledError
        If Spark has no Delta; the checkpoint stays as it was.
    """
    if note.written_as == "parquet":
        rows.write.mode("overwrite").parquet(note.into)
        return
    writer = rows.write.format("delta").mode("append")
    name = f"{query.manifest.query}/drained/{note.attempt}"
    try:
        with told_in_one_line():
            writer.option("txnAppId", name).option("txnVersion", note.batch).save(note.into)
    except (AnalysisException, NotInstalledError) as error:
        if may_reopen:
            forget_drained(query.directory)
        if isinstance(error, NotInstalledError):
            raise
        raise ConfigurationError(
            f"{note.into} does not take the rows that wait, so none was written ({one_line(error)}): give them a table "
            f"of their own"
        ) from None
