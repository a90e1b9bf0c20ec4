"""The change of the number of shards of a stopped query's checkpoint.

The executors read the state of every former shard, divide it and its waiting rows, and write those that are too large
for the state to the control directory. What the new shards begin with passes through the driver: the state of each is
at most a few MB, unless the executors cannot write to the control directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_throttle.checkpoint.drained import refuse_drained
from spark_throttle.checkpoint.manifest import refuse_shards
from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import EpochName, logged_epoch
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.partitioning import shard_keys
from spark_throttle.spark.offline.handing_over import FormerShard, Reshard
from spark_throttle.spark.offline.spark_errors import reading_state
from spark_throttle.spark.offline.stopped_query import StoppedQuery, stopped_query
from spark_throttle.spark.pipeline import queue_storage
from spark_throttle.spark.shard.queue_folder import QueueStorage
from spark_throttle.spark.shard.resharded_shard import divided
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.spark.state_reader import state_blocks


def reshard(spark: SparkSession, checkpoint: str, shards: int, *, control_path: str | None = None) -> int:
    """Hand the state of a stopped query over to another number of shards, and return the number that it had.

    The next start of the query gives the new number. Nothing is lost and nothing is admitted twice, no bucket gains a
    token, and every namespace keeps its order. A call that was killed is made again. The checkpoint and its control
    directory must be where this process can write.

    Parameters
    ----------
    checkpoint
        The query's ``checkpointLocation``.
    shards
        The new number of shards.
    control_path
        The control path that was given to `Throttle.apply`. By default, it is in the checkpoint.

    Raises
    ------
    ConfigurationError
        If the query runs, has never committed a batch, has a batch that is not committed, was drained, or has that
        number of shards.
    DamagedError
        If a part of the checkpoint is missing.
    FileUnusableError
        If Spark cannot read a state.
    TakenOverError
        If the query, or another change of the number, has begun meanwhile.
    """
    refuse_shards(shards)
    place, control = SparkPaths(spark).query(checkpoint, control_path)
    query = stopped_query(place, control, Clock.system())
    refuse_drained(query.directory)
    change = Reshard(query.directory, query.manifest, query.batch, _epoch_of(query), shards)
    with query.taken() as taken, reading_state(place):
        refuse_drained(query.directory)
        blocks = state_blocks(spark, place, query.batch)
        keys = shard_keys(spark, change.former_shards)
        found = {row["key"]: FormerShard(*row) for row in blocks.mapInArrow(_known, _KNOWN).collect()}
        former = [found.pop(key) for key in keys if key in found]
        if found or len(former) != len(keys):
            problem = f"its states are of other keys than those of {len(keys)} shards ({len(former)} are there)"
            raise DamagedError(f"the state of {place}", problem)
        storage = queue_storage(spark, control)
        change.hand_over(former, lambda to_ms: _divided(blocks, keys, shards, to_ms, storage), taken.check)
    return change.former_shards


def _epoch_of(query: StoppedQuery) -> EpochName:
    """Return the epoch of the last batch, by its offsets."""
    found = logged_epoch(Directory(query.checkpoint), query.batch)
    if found is None:
        what = f"the offsets of batch {query.batch} in {query.checkpoint}"
        raise DamagedError(what, "they name no epoch", RESTORE_CHECKPOINT)
    return found


_KNOWN = "key int, digest string, advanced_to_ms long"


def _known(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what the states of former shards are known by."""
    for batch in batches:
        keys, blocks = batch.column("key").to_pylist(), batch.column("block").to_pylist()
        known = [FormerShard.of(key, block) for key, block in zip(keys, blocks, strict=True)]
        yield pa.RecordBatch.from_pydict({
            "key": pa.array([each.key for each in known], pa.int32()),
            "digest": pa.array([each.digest for each in known], pa.string()),
            "advanced_to_ms": pa.array([each.advanced_to_ms for each in known], pa.int64()),
        })  # fmt: skip


def _divided(
    blocks: DataFrame, keys: tuple[int, ...], shards: int, to_ms: int, storage: QueueStorage
) -> Mapping[int, Sequence[bytes]]:
    """Return the parts of every former shard, in the order of the new ones."""
    if storage.inline_bytes is not None:  # what a new shard keeps in its state comes from all former ones
        storage = replace(storage, inline_bytes=max(1, storage.inline_bytes // len(keys)))
    rows = blocks.mapInArrow(_Divider(keys, shards, to_ms, storage), "former int, shard int, part binary").collect()
    parts = {(row["former"], row["shard"]): bytes(row["part"]) for row in rows}
    return {former: [parts[former, shard] for shard in range(shards)] for former in range(len(keys))}


@dataclass(frozen=True, slots=True)
class _Divider:
    """A function from states of former shards to their parts; `mapInArrow` runs it once per task."""

    keys: tuple[int, ...]
    shards: int
    to_ms: int
    storage: QueueStorage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the parts of each state."""
        for batch in batches:
            for key, block in zip(batch.column("key").to_pylist(), batch.column("block").to_pylist(), strict=True):
                former = self.keys.index(key)
                parts = divided(block, former, self.shards, self.to_ms, self.storage.folder)
                yield pa.RecordBatch.from_pydict({
                    "former": pa.array([former] * self.shards, pa.int32()),
                    "shard": pa.array(range(self.shards), pa.int32()),
                    "part": pa.array(parts, pa.binary()),
                })  # fmt: skip
