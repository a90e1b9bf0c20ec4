"""The drain of a stopped query: its waiting rows go to a table or a folder, and its checkpoint is closed.

It is the way off the throttle without waiting until the quotas have let all rows go. A drain that is killed is run
again, and leaves every row once: a Delta table recognizes the attempt by its transaction, and a folder of Parquet
files, which must have been empty, is written anew. From before the first write on, no query starts on the checkpoint
(`checkpoint.manifest`).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.delivery import read_delivery
from spark_throttle.checkpoint.manifest import Drained, forget_drained, read_drained, write_drained
from spark_throttle.checkpoint.offset_log import batch_time_ms
from spark_throttle.control.clock import Clock
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.errors import (
    ConfigurationError,
    DamagedError,
    NotInstalledError,
    SourceChangedError,
    TakenOverError,
    ThrottleError,
)
from spark_throttle.files.storage import Directory, file_system, one_line
from spark_throttle.spark.spark_errors import known_error, reading_state, spark_line
from spark_throttle.spark.start.spark_paths import SparkPaths, local_path
from spark_throttle.spark.state_reader import queued_after, waiting_messages
from spark_throttle.spark.stopped_query import SourcePosition, StoppedQuery, positions_after, stopped_query

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
        done = f"{self.messages} rows that waited after batch {self.batch} are in {self.into}"
        none = f"no row waited after batch {self.batch}, so none was written, and the checkpoint is as it was"
        lines = [done if self.messages else none]
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
    namespace are in the order in which they would have left. What a destination did not take in the last batch is among
    them, also where nobody knows whether it did. A drain that was killed is run again with the same arguments; one that
    has finished does nothing when it is run again. Where no row waits, nothing is closed. The checkpoint and its
    control directory must be where this process can write.

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
        If the query runs, has never committed a batch, or has a batch that is not committed; if the folder is not
        empty, or the table is of other columns; or if the rows were drained to another place.
    NotInstalledError
        If the rows are to go into a Delta table, and Spark has no Delta.
    DamagedError
        If the state, or a file of waiting rows, is missing.
    FileUnusableError
        If Spark cannot read a state.
    SourceChangedError
        If copies of waiting rows are missing.
    TakenOverError
        If the query, or another drain, has begun meanwhile.
    """
    if not into.strip():
        raise ConfigurationError(f"the rows that wait have no place to go ({into!r}): give a table or a folder")
    if format not in ("delta", "parquet"):
        raise ConfigurationError(f"format is {format!r}; give 'delta' or 'parquet'")
    paths = SparkPaths(spark)
    place, control = paths.query(checkpoint, control_path)
    into = paths.resolve(into).rstrip("/") or "/"
    query = stopped_query(place, control, Clock.system())
    undelivered = _undelivered(query)
    before = _begun(query, into, format)
    with reading_state(place):
        messages = _waiting(spark, query, undelivered)
        is_left = bool(messages) and (before is None or not before.is_finished)
        rows = queued_after(spark, place, control, query.batch, undelivered, schema=schema) if is_left else None
        found = messages if rows is None else rows.count()
    if found != messages:
        problem = f"{messages} rows wait, and {found} of them are in the checkpoint"
        raise SourceChangedError(f"the queue of {checkpoint}", problem, "restore its control directory")
    if rows is not None:
        with query.taken() as taken:
            _hand_out(rows, taken, before, Drained(query.batch, into, format, uuid.uuid4().hex))
    positions = positions_after(place, query.directory, query.batch)
    return DrainedQuery(query.batch, messages, into, tuple(positions))


def _undelivered(query: StoppedQuery) -> Undelivered | None:
    """Return what the last batch did not deliver: it waits too."""
    batch_ms = batch_time_ms(Directory(query.checkpoint), query.batch)
    found = None if batch_ms is None else read_delivery(query.directory, query.batch, batch_ms)
    return None if found is None else found.undelivered


def _waiting(spark: SparkSession, query: StoppedQuery, undelivered: Undelivered | None) -> int:
    """Return how many rows wait.

    Raises
    ------
    DamagedError
        If the state is gone, with its rows.
    """
    waiting = waiting_messages(spark, query.checkpoint, query.batch, undelivered)
    if waiting is None:
        raise DamagedError(f"the state of {query.checkpoint}", "it is gone")
    return waiting


def _hand_out(rows: DataFrame, query: StoppedQuery, before: Drained | None, note: Drained) -> None:
    """Write the note of the drain, then the rows, then that they are there.

    Raises
    ------
    TakenOverError
        If another drain or the query has begun: nothing was written.
    """
    if read_drained(query.directory) != before:
        raise TakenOverError(query.directory.location)
    if before is None:
        write_drained(query.directory, note)
        try:
            query.check()  # a query that began before the note was there does not know of it
        except TakenOverError:
            if read_drained(query.directory) == note:
                forget_drained(query.directory)
            raise
    _write(rows, before or note, query, may_reopen=before is None)
    query.check()
    write_drained(query.directory, replace(before or note, is_finished=True))


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
    around = local_path(query.checkpoint).rstrip("/")
    if f"{local_path(into)}/".startswith(f"{around}/"):
        raise ConfigurationError(
            f"{into} is in the checkpoint {around}, with which the rows would be deleted: give a place elsewhere"
        )
    if _is_file(into):
        raise ConfigurationError(f"{into} is a file: give the rows that waited a table, or a folder of its own")
    if kind == "parquet" and _has_files(into):
        raise ConfigurationError(f"{into} has files: give a folder of its own to the rows that waited")
    if kind == "delta" and _is_known(into, has_files=True) and _is_known(f"{into}/_delta_log", has_files=False):
        raise ConfigurationError(
            f"{into} has files and is no Delta table: give the rows that waited a table, or a folder of its own"
        )
    return None


def _has_files(location: str) -> bool:
    try:
        files, root = file_system(location)
        return bool(files.get_file_info(fs.FileSelector(root, allow_not_found=True)))
    except OSError as error:
        raise ConfigurationError(
            f"{location} cannot be looked into ({one_line(error)}): give the rows that waited a folder of their own, "
            f"or mend that"
        ) from None


def _is_file(location: str) -> bool:
    try:
        files, root = file_system(location)
        return bool(files.get_file_info(root).type == fs.FileType.File)
    except (OSError, ThrottleError):
        return False


def _is_known(location: str, *, has_files: bool) -> bool:
    """Return whether a place is known to have files, or to have none: Spark may reach what this process does not."""
    try:
        return _has_files(location) == has_files
    except ThrottleError:
        return False


def _write(rows: DataFrame, note: Drained, query: StoppedQuery, *, may_reopen: bool) -> None:
    """Write the rows; a table that has them already leaves them out.

    Where Spark refuses them before it writes any, or nothing is at their place, the checkpoint stays as it was.

    Raises
    ------
    ConfigurationError
        If the place does not take such rows, or cannot be written.
    NotInstalledError
        If Spark has no Delta.
    """
    name = f"{query.manifest.query}/drained/{note.attempt}"
    try:
        if note.written_as == "parquet":
            rows.write.mode("overwrite").parquet(note.into)
        else:
            writer = rows.write.format("delta").mode("append")
            writer.option("txnAppId", name).option("txnVersion", note.batch).save(note.into)
    except Exception as error:  # noqa: BLE001 - PySpark's, or any of the JVM's
        known = known_error(error)
        is_refused = isinstance(error, AnalysisException) or isinstance(known, NotInstalledError)
        is_open = may_reopen and (is_refused or _is_known(note.into, has_files=False))
        if is_open:
            forget_drained(query.directory)
        if known is not None:
            raise known from None
        if is_refused:
            raise ConfigurationError(
                f"{note.into} does not take the rows that wait, so none was written ({spark_line(error)}): "
                f"{_OTHER_TABLE if note.written_as == 'delta' else _OTHER_FORMAT}"
            ) from None
        remedy = (
            "nothing was; give another place, or mend that"
            if is_open
            else f"mend that and run the same again; to give another place, remove what is there of the rows, then the "
            f"note {query.directory.shown('drained.json')}"
        )
        raise ConfigurationError(
            f"the rows that wait could not be written to {note.into} ({spark_line(error)}): {remedy}"
        ) from None


_OTHER_TABLE: Final = (
    "give them a table of their own, for odd names of columns one with column mapping (the setting "
    "spark.databricks.delta.properties.defaults.columnMapping.mode=name), or a folder, in the format parquet"
)
_OTHER_FORMAT: Final = "give them a Delta table, in the format delta, or call drain in Python with another schema"
