"""The waiting rows of a query, read from its checkpoint: for audits, and to see what a restart will continue with.

Spark's state reader returns the blocks of the last committed batch. They are opened on the executors, so a long queue
does not pass through the driver. Reading does not disturb a running query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from spark_throttle.core.quota import Int64s
from spark_throttle.core.stored_state import StoredState
from spark_throttle.errors import ConfigurationError
from spark_throttle.record import unpack
from spark_throttle.spark.columns.payload_columns import carried_schema, from_carried
from spark_throttle.spark.decider.queue_folder import FramePlace, QueueStorage, is_place
from spark_throttle.spark.move.cutting import as_read
from spark_throttle.spark.move.held_files import IN_STATE, HeldFiles
from spark_throttle.spark.move.nullability import as_nullable, nullable
from spark_throttle.spark.queued_copies import account_after, copies_of
from spark_throttle.spark.queued_files import staged_copies
from spark_throttle.spark.references.extents import ROW_BITS
from spark_throttle.spark.references.reading import PLACE
from spark_throttle.spark.references.waiting_copies import FILE, ROW
from spark_throttle.spark.rows.frames import aligned, decode
from spark_throttle.spark.start.spark_paths import SparkPaths

_OPERATOR = "applyInPandasWithState"
_BESIDE = (("namespace", StringType()), ("arrival_ms", LongType()), ("release_ms", LongType()))
_POSITION = ("queue_position", LongType())


def read_queued(
    spark: SparkSession, checkpoint: str, *, schema: StructType | None = None, control_path: str | None = None
) -> DataFrame:
    """Return the rows that wait in the state of the last committed batch.

    They have the user's columns, then ``namespace``, ``arrival_ms`` (the batch time at which the row arrived) and
    ``release_ms`` (the batch time until which a Pegasus rule holds the row; 0 if only quotas hold it). If the user has
    a column with one of these names, the added column is called ``throttle_namespace`` and so on. Rows of a namespace
    are in the order in which they will leave. If the query decides on references, the rows have the columns of the
    source, come from its control directory, and have no order.

    Parameters
    ----------
    checkpoint
        The query's ``checkpointLocation``.
    schema
        The stream's schema. By default it is inferred from the waiting rows, which carry Arrow types only: ``char``
        becomes ``string``, a year-month interval becomes a number of months, and an empty queue has none of the user's
        columns.
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
    spark: SparkSession, checkpoint: str, control_path: str, batch: int, *, schema: StructType | None = None
) -> DataFrame:
    """Return the rows that wait after a batch as `read_queued` does, with their position in the queue.

    By the column ``queue_position``, the rows of a namespace are in the order in which they would leave, also those of
    a query that decides on references. This process must see the checkpoint.
    """
    return _queued(spark, checkpoint, control_path, schema, batch)


def waiting_messages(spark: SparkSession, checkpoint: str, batch: int | None = None) -> int | None:
    """Return how many rows wait after a batch, by default the last committed one; no payload is read.

    Returns `None` if the state is gone.
    """
    counts = state_blocks(spark, checkpoint, batch).mapInArrow(_counts, "waiting long").collect()
    return sum(row["waiting"] for row in counts) if counts else None


def waiting_places(spark: SparkSession, batch: int, *, checkpoint: str, control_path: str) -> Int64s:
    """Return the places of the rows that wait after a batch, of a query that decides on references."""
    blocks = state_blocks(spark, checkpoint, batch).select("block")
    unpack = QueueUnpacker(pa.schema([(PLACE, pa.int64())]), (), QueueStorage(control_path))
    found: Int64s = blocks.mapInArrow(unpack, f"{PLACE} long").toArrow().column(PLACE).to_numpy()
    return found


def misfit(spark: SparkSession, checkpoint: str, control_path: str, schema: StructType) -> str | None:
    """Return why a row that waits after the last committed batch could not leave with `schema`; `None` if all could.

    The payload of all waiting rows is read, on the executors.
    """
    if held_files(spark, checkpoint) is None:
        rows = state_blocks(spark, checkpoint)
        fit = _Fit(QueueUnpacker(to_arrow_schema(schema, timezone="UTC"), (), QueueStorage(control_path)))
    else:
        queued = _queued(spark, checkpoint, control_path, None, None)
        names = tuple(queued.columns[: -len(_BESIDE)])
        rows = queued.toDF(*(f"c{at}" for at in range(len(queued.columns)))).select(
            *(f"c{at}" for at, _ in enumerate(names))
        )
        fit = _Fit(_StagedRows(names, as_read(nullable(to_arrow_schema(schema, timezone="UTC")))))
    found = rows.mapInArrow(fit, "problem string").limit(1).collect()
    return found[0]["problem"] if found else None


@dataclass(frozen=True, slots=True)
class _Fit:
    """A function from blocks of state, or staged rows, to why a row of each batch of them cannot leave.

    `mapInArrow` runs it once per task.
    """

    unpack: QueueUnpacker | _StagedRows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the first problem of each batch that has any."""
        for batch in batches:
            problem = self._problem(batch)
            if problem is not None:
                yield pa.RecordBatch.from_pydict({"problem": pa.array([problem], pa.string())})

    def _problem(self, batch: pa.RecordBatch) -> str | None:
        try:
            for _ in self.unpack([batch]):
                pass
        except ConfigurationError as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class _StagedRows:
    """A function from rows that wait in files to the same rows with other columns."""

    names: tuple[str, ...]
    """Names of the columns in order: PySpark's `mapInArrow` rejects names with a backtick."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch in batches:
            yield aligned(as_nullable(batch).rename_columns(list(self.names)), self.schema)


def _counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        counts = [len(_opened(block.as_py()).state.queue) for block in batch.column("block")]
        yield pa.RecordBatch.from_pydict({"waiting": pa.array(counts, pa.int64())})


def _queued(
    spark: SparkSession, checkpoint: str, control_path: str, schema: StructType | None, batch: int | None
) -> DataFrame:
    """Return the waiting rows; with their positions if `batch` says after which batch they wait."""
    added = _BESIDE if batch is None else (*_BESIDE, _POSITION)
    if batch is None:  # the query may go on: its states and its account are read of the same batch
        batch = int(_operator(spark, checkpoint)["maxBatchId"])
    blocks = state_blocks(spark, checkpoint, batch).select("block")
    storage = QueueStorage(control_path)
    newest = _newest_schema(blocks, storage)
    held = held_files(spark, checkpoint, batch)
    if held is not None:
        return _copied(
            blocks,
            storage,
            added,
            staged_copies(spark, control_path, held, _state(spark, checkpoint, batch).select("inline"), schema),
        )
    if newest.names == [PLACE]:
        account = account_after(spark, control_path, batch)
        return _copied(blocks, storage, added, copies_of(spark, control_path, account, schema))
    rows = carried_schema(schema) if schema is not None else newest
    taken = {name.lower() for name in rows.names}
    beside = StructType([StructField(f"throttle_{n}" if n in taken else n, kind) for n, kind in added])
    unpack = QueueUnpacker(to_arrow_schema(rows, timezone="UTC"), tuple(beside.names), storage)
    found = blocks.mapInArrow(unpack, StructType([*rows, *beside]))
    return found if schema is None else from_carried(found, schema)


def _copied(
    blocks: DataFrame, storage: QueueStorage, added: Sequence[tuple[str, DataType]], copies: DataFrame
) -> DataFrame:
    """Return the waiting rows of a query that decides on references, from their copies."""
    places = StructType([StructField(PLACE, LongType()), *(StructField(name, kind) for name, kind in added)])
    unpack = QueueUnpacker(pa.schema([(PLACE, pa.int64())]), tuple(places.names[1:]), storage)
    waiting = blocks.mapInArrow(unpack, places)
    waiting = waiting.withColumn(FILE, F.shiftright(PLACE, ROW_BITS)).withColumn(
        ROW, F.col(PLACE).bitwiseAND(F.lit((1 << ROW_BITS) - 1))
    )
    taken = {name.lower() for name in copies.columns}
    for name in places.names[1:]:
        waiting = waiting.withColumnRenamed(name, f"throttle_{name}") if name in taken else waiting
    return copies.join(waiting.drop(PLACE), [FILE, ROW]).drop(FILE, ROW)


_ENCODED = re.compile(r"[\s%\[\]{}?#^`\"<>|\\]")
"""What Spark's state reader writes otherwise in a path, and then does not find (tried on 4.2.0)."""


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


def held_files(spark: SparkSession, checkpoint: str, batch: int | None = None) -> HeldFiles | None:
    """Return the files of the rows that wait after a batch; `None` if the query does not stage its rows."""
    state = _state(spark, checkpoint, batch)
    if "files" not in state.columns:
        return None
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
    if not found:
        raise ConfigurationError(
            f"{checkpoint!r} is not the checkpoint of a throttled query that has run a batch: give the "
            f"checkpointLocation that the query was started with, or restore its folder state"
        )
    return found[0]


def _newest_schema(blocks: DataFrame, storage: QueueStorage) -> StructType:
    """Return the widest schema of the waiting rows: columns may be added and widened while rows wait, not removed."""
    found = blocks.mapInArrow(_SchemaReader(storage), "schema binary").collect()
    schemas = [pa.ipc.read_schema(pa.py_buffer(row["schema"])) for row in found]
    widest_first = sorted(schemas, key=len, reverse=True)
    try:
        return from_arrow_schema(pa.unify_schemas(widest_first or [pa.schema([])], promote_options="permissive"))
    except pa.ArrowException:  # rows of one of the types fit in the other: a start has made sure of it
        return from_arrow_schema(widest_first[0])


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    """A function from blocks of state to the schemas of the rows that wait; `mapInArrow` runs it once per task."""

    storage: QueueStorage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the distinct schemas of the waiting rows in each batch of blocks."""
        for batch in batches:
            frames = [frame for block in batch.column("block") for frame in _opened(block.as_py()).frames]
            of_schema = {place.schema: frame for frame in frames if (place := FramePlace.of(frame)) is not None}
            wanted = [*of_schema.values(), *(frame for frame in frames if not is_place(frame))]
            opened = self.storage.folder().open(wanted)
            found = {pa.ipc.open_stream(pa.py_buffer(frame)).schema.serialize().to_pybytes() for frame in opened}
            yield pa.RecordBatch.from_pydict({"schema": pa.array(sorted(found), pa.binary())})


@dataclass(frozen=True, slots=True)
class QueueUnpacker:
    """A function from blocks of state to the rows that wait in them; `mapInArrow` runs it once per task."""

    schema: pa.Schema
    """Schema of the user's rows in the form in which they travel."""

    names_beside: tuple[str, ...]
    """Names of the added columns, which follow the user's."""

    storage: QueueStorage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the waiting rows, one record batch per frame."""
        for batch in batches:
            for block in batch.column("block"):
                yield from self._rows(_opened(block.as_py()))

    def _rows(self, stored: StoredState) -> Iterator[pa.RecordBatch]:
        queue, start = stored.state.queue, 0
        rows_of_frame = np.bincount(stored.frame_of_row, minlength=len(stored.frames)).tolist()
        for frame, count in zip(stored.frames, rows_of_frame, strict=True):
            end = start + count
            (opened,) = self.storage.folder().open([frame])
            rows = decode(opened).take(pa.array(stored.row_in_frame[start:end])).combine_chunks()
            (whole,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
            names = stored.state.flows.names.take(pa.array(queue.flow[start:end]))
            position = pa.array(np.arange(start, end))
            beside = [names, pa.array(queue.arrival_ms[start:end]), pa.array(queue.release_ms[start:end]), position]
            columns = [*aligned(whole, self.schema).columns, *beside[: len(self.names_beside)]]
            yield pa.RecordBatch.from_arrays(columns, names=[*self.schema.names, *self.names_beside])
            start = end


def _opened(block: bytes) -> StoredState:
    return unpack(StoredState, block, "the decider's state")
