"""The waiting rows of a query, read from its checkpoint: for audits, and to see what a restart will continue with.

Spark's state reader returns the blocks of the last committed batch. They are opened on the executors, so a long queue
does not pass through the driver. Reading does not disturb a running query.

The state names the files of the rows (`move.held_files`) and their numbers. A file that lies as it was staged has a
row's position as Spark tells it; a rest or a pack has the places as columns. All have rows that do not wait any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from spark_throttle.core.left_rows import TAKEN, fates
from spark_throttle.core.quota import Int64s
from spark_throttle.core.state import StoredState
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.errors import ConfigurationError
from spark_throttle.record import unpack
from spark_throttle.spark.columns.payload_columns import from_staged, staged_schema
from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.move.cutting import FILE, ROW, as_read
from spark_throttle.spark.move.held_files import IN_STATE, HeldFiles
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.move.stager import STAGED, StagingPlace, as_nullable, nullable
from spark_throttle.spark.move.waiting_files import StoredInlineRows, inline_files_of
from spark_throttle.spark.rows.digest import PLACE, ROW_BITS
from spark_throttle.spark.rows.frames import aligned, decode
from spark_throttle.spark.spark_version import from_arrow, to_arrow
from spark_throttle.spark.start.spark_paths import SparkPaths

_OPERATOR = "applyInPandasWithState"
_BESIDE = (("namespace", StringType()), ("arrival_ms", LongType()), ("release_ms", LongType()))
_POSITION = ("queue_position", LongType())

_NUMBER, _NAME = "__throttle_number", "__throttle_name"
_PLACE: Final = StructType().add(FILE, "long").add(ROW, "long")
_joined = partial(DataFrame.unionByName, allowMissingColumns=True)

_ENCODED = re.compile(r"[\s%\[\]{}?#^`\"<>|\\]")
"""What Spark's state reader writes otherwise in a path, and then does not find (tried on 4.2.0)."""


def read_queued(
    spark: SparkSession, checkpoint: str, *, schema: StructType | None = None, control_path: str | None = None
) -> DataFrame:
    """Return the rows that wait in the state of the last committed batch.

    They have the user's columns, then ``namespace``, ``arrival_ms`` (the batch time at which the row arrived) and
    ``release_ms`` (the batch time until which a Pegasus rule holds the row; 0 if only quotas hold it). If the user has
    a column with one of these names, the added column is called ``throttle_namespace`` and so on. Rows come from the
    files in which they wait, and have no order. If the query decides on references, they have the columns of the
    source. What a destination did not take in the last batch is among them once the next one is committed.

    Parameters
    ----------
    checkpoint
        The query's ``checkpointLocation``.
    schema
        The stream's schema. By default it is that of the files, which have Arrow's types only: ``char`` becomes
        ``string``, a year-month interval becomes a number of months, and an empty queue has none of the user's columns.
    control_path
        The control path that was given to `Throttle.apply`. By default, it is in the checkpoint.

    Raises
    ------
    ConfigurationError
        If the checkpoint does not belong to a throttled query that has committed a batch.
    """
    _, control = SparkPaths(spark).query(checkpoint, control_path)
    return _queued(spark, checkpoint, control, schema, None)


def queued_after(
    spark: SparkSession,
    checkpoint: str,
    control_path: str,
    batch: int,
    undelivered: Undelivered | None = None,
    *,
    schema: StructType | None = None,
) -> DataFrame:
    """Return the rows that wait after a batch as `read_queued` does, with their position in the queue.

    By the column ``queue_position``, the rows of a namespace are in the order in which they would leave. This process
    must see the checkpoint.

    Parameters
    ----------
    undelivered
        What the batch did not deliver: it waits too.
    """
    return _queued(spark, checkpoint, control_path, schema, batch, undelivered)


def waiting_messages(
    spark: SparkSession, checkpoint: str, batch: int | None = None, undelivered: Undelivered | None = None
) -> int | None:
    """Return how many rows wait after a batch, by default the last committed one; no payload is read.

    Returns `None` if the state is gone.
    """

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            counts = [len(_positions(_opened(block.as_py()), undelivered)) for block in each.column("block")]
            yield pa.RecordBatch.from_pydict({"waiting": pa.array(counts, pa.int64())})

    counts = state_blocks(spark, checkpoint, batch).mapInArrow(counted, "waiting long").collect()
    return sum(row["waiting"] for row in counts) if counts else None


def misfit(spark: SparkSession, checkpoint: str, control_path: str, schema: StructType) -> str | None:
    """Return why a row that waits after the last committed batch could not leave with `schema`; `None` if all could.

    The payload of all waiting rows is read, on the executors.
    """
    queued = _queued(spark, checkpoint, control_path, None, None)
    names = tuple(queued.columns[: -len(_BESIDE)])
    numbered = queued.toDF(*(f"c{at}" for at in range(len(queued.columns))))
    rows = numbered.select(*(f"c{at}" for at, _ in enumerate(names)))
    fit = _Fit(names, as_read(nullable(to_arrow(schema))))
    found = rows.mapInArrow(fit, "problem string").limit(1).collect()
    return found[0]["problem"] if found else None


@dataclass(frozen=True, slots=True)
class _Fit:
    """A function from rows to why a row of each batch of them cannot leave; `mapInArrow` runs it once per task."""

    names: tuple[str, ...]
    """Names of the columns in order: PySpark's `mapInArrow` rejects names with a backtick."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the first problem of each batch that has any."""
        for batch in batches:
            try:
                aligned(as_nullable(batch).rename_columns(list(self.names)), self.schema)
            except ConfigurationError as error:
                yield pa.RecordBatch.from_pydict({"problem": pa.array([str(error)], pa.string())})


def _queued(
    spark: SparkSession,
    checkpoint: str,
    control_path: str,
    schema: StructType | None,
    batch: int | None,
    undelivered: Undelivered | None = None,
) -> DataFrame:
    """Return the waiting rows; with their positions if `batch` says after which batch they wait."""
    added = _BESIDE if batch is None else (*_BESIDE, _POSITION)
    if batch is None:  # the query may go on: all of its state is read of the same batch
        batch = int(_operator(spark, checkpoint)["maxBatchId"])
    state = _state(spark, checkpoint, batch)
    copies = staged_copies(spark, control_path, _held_in(state), state.select("inline"), schema)
    return _copied(state.select("block"), QueueStorage(control_path), added, copies, undelivered)


def _copied(
    blocks: DataFrame,
    storage: QueueStorage,
    added: Sequence[tuple[str, DataType]],
    copies: DataFrame,
    undelivered: Undelivered | None,
) -> DataFrame:
    """Return the waiting rows, from their copies."""
    places = StructType([StructField(PLACE, LongType()), *(StructField(name, kind) for name, kind in added)])
    unpack = QueueUnpacker(tuple(places.names[1:]), storage, undelivered)
    waiting = blocks.mapInArrow(unpack, places)
    waiting = waiting.withColumn(FILE, F.shiftright(PLACE, ROW_BITS)).withColumn(
        ROW, F.col(PLACE).bitwiseAND(F.lit((1 << ROW_BITS) - 1))
    )
    taken = {name.lower() for name in copies.columns}
    for name in places.names[1:]:
        waiting = waiting.withColumnRenamed(name, f"throttle_{name}") if name in taken else waiting
    return copies.join(waiting.drop(PLACE), [FILE, ROW]).drop(FILE, ROW)


def is_readable(checkpoint: str) -> bool:
    """Return whether Spark can read the states of a checkpoint by its path.

    Examples
    --------
    >>> is_readable("s3a://lake/checkpoints/orders"), is_readable("/lake/my orders")
    (True, False)
    """
    return _ENCODED.search(checkpoint) is None


def state_blocks(spark: SparkSession, checkpoint: str, batch: int | None = None) -> DataFrame:
    """Return the state after a batch, by default the last committed one, as the one row of a column ``block``.

    Raises
    ------
    ConfigurationError
        If the checkpoint does not belong to a throttled query that has committed a batch, or Spark cannot read it.
    """
    return _state(spark, checkpoint, batch).select("block")


def _state(spark: SparkSession, checkpoint: str, batch: int | None) -> DataFrame:
    operator = _operator(spark, checkpoint)
    # A state store looks for an endpoint that exists only after the session's streams have been accessed once.
    _ = spark.streams.active
    reader = spark.read.format("statestore").option("operatorId", operator["operatorId"])
    if batch is not None:
        reader = reader.option("batchId", batch)
    return reader.load(checkpoint).select("value.groupState.*")


def _held_in(state: DataFrame) -> HeldFiles:
    """Return the files of waiting rows that a state names."""
    found = state.select("files").collect()
    return unpack(HeldFiles, bytes(found[0]["files"]), IN_STATE) if found else HeldFiles()


def _operator(spark: SparkSession, checkpoint: str) -> Row:
    """Return what Spark says of the throttle's states."""
    if not is_readable(checkpoint):
        raise ConfigurationError(
            f"Spark's state reader finds no checkpoint whose path has a space or one of %[]{{}}?#^`\"<>|\\, as "
            f"{checkpoint!r} has: while its query is stopped, move it to a path without"
        )
    found = spark.read.format("state-metadata").load(checkpoint).where(F.col("operatorName") == _OPERATOR).collect()
    if not found or found[0]["maxBatchId"] < 0:
        raise ConfigurationError(
            f"{checkpoint!r} is not the checkpoint of a throttled query that has committed a batch: give the "
            f"checkpointLocation that the query was started with, wait for its first batch, or restore its folder state"
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class QueueUnpacker:
    """A function from blocks of state to the places of rows that wait; `mapInArrow` runs it once per task."""

    names_beside: tuple[str, ...]
    """Names of the added columns, which follow the place."""

    storage: QueueStorage
    undelivered: Undelivered | None = None
    """What was not delivered of the rows that left in the batch: it waits too."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the places, one record batch per frame."""
        for batch in batches:
            for block in batch.column("block"):
                yield from self._rows(_opened(block.as_py()))

    def _rows(self, stored: StoredState) -> Iterator[pa.RecordBatch]:
        state, left_at, start = stored.state, stored.left_positions, 0
        rows, waits = state.queue.with_rows(left_at, state.left), np.zeros(len(stored.frame_of_row), dtype=np.bool_)
        waits[_positions(stored, self.undelivered)] = True
        rows_of_frame = np.bincount(stored.frame_of_row, minlength=len(stored.frames)).tolist()
        for frame, count in zip(stored.frames, rows_of_frame, strict=True):
            at = start + np.flatnonzero(waits[start : start + count])
            start += count
            if not len(at):
                continue
            (opened,) = self.storage.folder().open([frame])
            places = decode(opened).column(PLACE).combine_chunks().take(pa.array(stored.row_in_frame[at]))
            names = state.flows.names.take(pa.array(rows.flow[at]))
            beside = [names, pa.array(rows.arrival_ms[at]), pa.array(rows.release_ms[at]), pa.array(at)]
            columns = [places, *beside[: len(self.names_beside)]]
            yield pa.RecordBatch.from_arrays(columns, names=[PLACE, *self.names_beside])


def _positions(stored: StoredState, undelivered: Undelivered | None) -> Int64s:
    """Return the positions, among all rows of a state, of those that wait, with what was not delivered."""
    waits = np.ones(len(stored.frame_of_row), dtype=np.bool_)
    waits[stored.left_positions] = False
    if undelivered is not None:
        waits[stored.left_positions] = fates(stored.state, undelivered) != TAKEN
    return np.flatnonzero(waits)


def _opened(block: bytes) -> StoredState:
    return unpack(StoredState, block, "the decider's state")


def staged_copies(
    spark: SparkSession, control_path: str, held: HeldFiles, inline: DataFrame, schema: StructType | None
) -> DataFrame:
    """Return the rows of the files of which rows wait, with the number of their file and their position in it.

    Parameters
    ----------
    inline
        What the state has in its column of that name.
    schema
        The user's columns; by default those of the files.
    """
    reader, root = spark.read.option("mergeSchema", "true"), f"{control_path}/{STAGED}"
    lies = [not is_inline for is_inline in held.inline.tolist()]
    as_staged = [
        f"{root}/{name}" for name, copy, is_mine in zip(held.name, held.copy, lies, strict=True) if is_mine and not copy
    ]
    copies = sorted({f"{root}/{copy}" for copy, is_mine in zip(held.copy, lies, strict=True) if is_mine and copy})
    columns = None if schema is None else staged_schema(schema)
    numbers = pa.table({_NAME: list(held.name), _NUMBER: held.number.astype(np.int64)})
    found = []
    if held.in_state():
        found.append(_of_state(inline, columns).withColumnRenamed(FILE, _NAME))
    if as_staged:
        rows = (reader if columns is None else reader.schema(columns)).parquet(*as_staged)
        place = f"_metadata.file_name AS {_NAME}", f"_metadata.row_index AS {ROW}"
        found.append(rows.selectExpr("*", *place))
    if copies:
        with_names = None if columns is None else StructType([*columns, *_place_of_copy()])
        rows = (reader if with_names is None else reader.schema(with_names)).parquet(*copies)
        found.append(rows.withColumnRenamed(FILE, _NAME))
    if not found:
        return spark.createDataFrame([], StructType([*(columns or ()), *_PLACE]))
    rows = reduce(_joined, found).join(F.broadcast(spark.createDataFrame(numbers)), _NAME).drop(_NAME)
    rows = rows.withColumnRenamed(_NUMBER, FILE)
    return rows if schema is None else from_staged(rows, schema)


def _of_state(inline: DataFrame, columns: StructType | None) -> DataFrame:
    """Return the rows of the files that the state holds, with their places."""
    if columns is None:
        (stored,) = inline.collect()
        columns = from_arrow(inline_files_of(stored["inline"]).schema())
    form = FileForm(nullable(to_arrow(columns)))
    read = StoredInlineRows(StagingPlace("", form, in_table=False))
    return inline.mapInArrow(read, StructType([*columns, *_place_of_copy()]))


def _place_of_copy() -> StructType:
    return StructType().add(FILE, "string").add(ROW, "long")
