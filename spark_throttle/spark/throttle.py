"""The throttle: what users import.

::

    throttle = Throttle(policies="policies.yaml", namespace="concat(tenant, '/', topic)", size="length(value)")
    throttle.write_stream(events).format("delta").option("checkpointLocation", ckpt).start(path)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_throttle.control.compile import queue_bounds
from spark_throttle.control.definition import FUNCTION, OWN_SINK, Definition
from spark_throttle.control.exchange_options import ExchangeOptions
from spark_throttle.control.model import Direction
from spark_throttle.control.plane import BATCHES_RETAINED
from spark_throttle.control.policy_location import Policies, PolicyLocation
from spark_throttle.control.status import Status, read_status
from spark_throttle.core.quota import QueueBounds
from spark_throttle.errors import ConfigurationError, StoreUnavailableError
from spark_throttle.spark.batch_sink import BatchSink, Target
from spark_throttle.spark.control_source import CONTROL_FORMAT, ThrottleControlSource
from spark_throttle.spark.decided_stream import UnpackDecided
from spark_throttle.spark.destination import Destination, SinkPlan
from spark_throttle.spark.executor_sight import check_executors_see
from spark_throttle.spark.file_outlet import FileOutlet
from spark_throttle.spark.frames import OUTPUT_SCHEMA
from spark_throttle.spark.operator import STATE_SCHEMA, ShardOperator
from spark_throttle.spark.pack_frames import PackFrames
from spark_throttle.spark.partitioning import shard_keys
from spark_throttle.spark.payload_columns import (
    ColumnLike,
    carried_schema,
    check_columns,
    deciding_columns,
    derived_columns,
    from_carried,
    with_helpers,
)
from spark_throttle.spark.shard_batch import THROTTLE, VERDICT_TYPE
from spark_throttle.spark.sink_targets import refuse_changed
from spark_throttle.spark.spark_paths import SparkPaths
from spark_throttle.spark.start_check import Sinks
from spark_throttle.spark.stream_definition import stream_definition
from spark_throttle.spark.volatile import volatile_columns
from spark_throttle.spark.writer import ThrottledStreamWriter

MAX_SHARDS = 4096


class Throttle:
    """Holds every namespace of a stream to its policies.

    `docs/changing-a-job.md` says which of these may change between two starts, and what must not be given.

    Parameters
    ----------
    policies
        What the query follows while it runs: the path of a YAML file, the URI of one on an object store, or a policy
        store (``delta:`` and the path of a Delta table); or a document that stays as it is, as YAML or as a mapping.
        `spark_throttle.control.policy_location` says how a string is understood.
    namespace
        Column or SQL expression of the namespace, ``tenant/name``. A row without one is rejected.
    size
        Column or SQL expression of a row's size in bytes; by default the length of its JSON form, but for columns that
        have another value when a batch is run again.
    order_by
        Columns or SQL expressions by which the rows of a namespace are ordered; by default Kafka's partition and offset
        where the stream has them, else an arbitrary order that is the same at every attempt.
    direction
        Which quotas of a policy this job enforces: ``publish`` (into the lake) or ``dispatch`` (out of it).
    shards
        Parallel parts of the state; fixed for the life of a checkpoint. Set ``spark.sql.shuffle.partitions`` to the
        same.
    exchange
        Where this job meets others with which it shares its tenants' and groups' quotas: a directory, ``delta:`` and a
        table, or a mapping with the keys of ``exchange`` in ``conf/throttle.yaml``. By default it has them for itself.

    Raises
    ------
    PolicyError
        If the policies cannot be applied.
    ConfigurationError
        If an argument is none of what it may be.
    """

    def __init__(
        self,
        policies: Policies,
        namespace: ColumnLike,
        size: ColumnLike | None = None,
        order_by: Sequence[ColumnLike] | None = None,
        direction: Direction = "publish",
        shards: int = 8,
        exchange: str | Mapping[str, Any] | None = None,
    ) -> None:
        if direction not in ("publish", "dispatch"):
            raise ConfigurationError(f"direction is {direction!r}; give 'publish' or 'dispatch'")
        if not 1 <= shards <= MAX_SHARDS:
            raise ConfigurationError(f"shards is {shards}; give a number from 1 to {MAX_SHARDS}")
        self._policies = _located(policies)
        self._namespace = namespace
        self._size = size
        self._order_by = order_by
        self._direction = direction
        self._shards = shards
        self._exchange = None if exchange is None else ExchangeOptions.parse(exchange)
        self._control_paths: dict[str, str] = {}
        self._judged: tuple[DataFrame, frozenset[str]] | None = None

    @property
    def has_shares(self) -> bool:
        """Whether the job shares its quotas with others."""
        return self._exchange is not None

    def write_stream(self, events: DataFrame) -> ThrottledStreamWriter:
        """Return a writer to use in place of ``events.writeStream``."""
        return ThrottledStreamWriter(self, events)

    def apply(self, events: DataFrame, *, control_path: str) -> DataFrame:
        """Return the decided rows of a stream: the user's columns and the ``throttle`` column, rejected rows included.

        For users who keep their own sink. Filter on ``throttle.verdict = 'ADMIT'``; rows that wait are not in the
        stream until they leave.

        Parameters
        ----------
        control_path
            A directory that the driver and the executors can write: it must live and die with the query's checkpoint. A
            path without a scheme is where Spark resolves it to.
        """
        control_path = SparkPaths(events.sparkSession).resolve(control_path)
        check_executors_see(events.sparkSession, control_path)
        definition = self.definition(events, {OWN_SINK: FUNCTION})
        refuse_changed(
            events.sparkSession, control_path, control_path.rstrip("/").rpartition("/")[0] or "/", definition
        )
        frames = self.frames(events, control_path=control_path, is_explained=True)
        schema = StructType([*carried_schema(events.schema), *from_arrow_schema(_VERDICT_SCHEMA)])
        unpack = UnpackDecided(to_arrow_schema(schema, timezone="UTC"), control_path, definition.to_json())
        return from_carried(frames.mapInArrow(unpack, schema), events.schema)

    def status(self, query: StreamingQuery) -> Status:
        """Return the numbers of the last batch of a query that this throttle started."""
        path = self._control_paths.get(str(query.id))
        if path is None:
            raise ConfigurationError(f"query {query.id} was not started by this throttle; ask the one that started it")
        return read_status(path)

    def follow(self, query: StreamingQuery, control_path: str) -> None:
        """Remember where a query keeps its control files, for `status`."""
        self._control_paths[str(query.id)] = control_path

    def frames(
        self,
        events: DataFrame,
        *,
        control_path: str,
        is_explained: bool,
        plan: SinkPlan | None = None,
        partition_columns: tuple[str, ...] = (),
        sinks: Sinks | None = None,
    ) -> DataFrame:
        """Return the decided stream as frames: kind and bytes; with a native sink's plan, most rows are in files.

        Rows that have no folder in a sink that is partitioned by `partition_columns` are rejected. Where the sinks are
        known, they are looked at when the query starts (`start_check`).
        """
        spark = events.sparkSession
        keys = shard_keys(spark, self._shards)
        derived = derived_columns(events.schema, self._namespace, self._size, self._order_by)
        volatile = self._volatile(events)
        helped = with_helpers(events, self._namespace, self._size, self._order_by, derived.helpers, volatile)
        numbered = helped.toDF(*(f"c{number}" for number in range(len(helped.columns))))
        pack = PackFrames(keys, tuple(helped.columns), derived)
        packed = numbered.mapInArrow(pack, "shard int, kind int, frame binary")
        together = packed.unionByName(self._control(spark, keys, control_path, sinks))
        outlet = FileOutlet(plan) if plan is not None else None
        operator = ShardOperator(keys, is_explained, self._room(spark), outlet, partition_columns)
        return together.groupBy("shard").applyInPandasWithState(
            operator, OUTPUT_SCHEMA, STATE_SCHEMA, "append", "NoTimeout"
        )

    def definition(self, events: DataFrame, targets: Mapping[str, str]) -> Definition:
        """Return what a query over a stream decides by, and where its rows go.

        Raises
        ------
        ConfigurationError
            If it is not the same at every attempt at a batch.
        """
        volatile = self._volatile(events)
        return stream_definition(events, self._namespace, self._size, self._order_by, volatile, targets)

    def _volatile(self, events: DataFrame) -> frozenset[str]:
        if self._judged is None or self._judged[0] is not events:
            check_columns(events.schema)
            decides = deciding_columns(events.schema, self._namespace, self._size, self._order_by)
            self._judged = events, volatile_columns(events, decides)
        return self._judged[1]

    def batch_sink(
        self,
        schema: StructType,
        control_path: str,
        admitted: Target | Callable[[DataFrame, int], None],
        rejected: Target,
        usage: Target | Destination | None,
        definition: Definition,
    ) -> BatchSink:
        """Return what writes the batches of a stream of `schema`."""
        verdict = from_arrow_schema(_VERDICT_SCHEMA)
        rows = to_arrow_schema(carried_schema(schema), timezone="UTC")
        refused = to_arrow_schema(StructType([*carried_schema(schema), *verdict]), timezone="UTC")
        return BatchSink(control_path, schema, rows, refused, verdict, admitted, rejected, usage, definition.to_json())

    def _room(self, spark: SparkSession) -> QueueBounds | None:
        """Return the queue's bounds as the policies have them now; `None` where this process does not see them.

        Raises
        ------
        ThrottleError
            If there are no policies that can be applied, as far as this process sees.
        """
        try:
            return queue_bounds(self._policies.queue())
        except (ConfigurationError, StoreUnavailableError):
            if _is_served(spark):
                return None
            raise

    def _control(self, spark: SparkSession, keys: tuple[int, ...], control_path: str, sinks: Sinks | None) -> DataFrame:
        spark.dataSource.register(ThrottleControlSource)
        retained = str(spark.conf.get(_BATCHES_RETAINED, str(BATCHES_RETAINED)))
        options = {
            **self._policies.to_options(),
            "controlPath": control_path, "direction": self._direction, "batchesRetained": retained,
        }  # fmt: skip
        if self._exchange is not None:
            options["exchange"] = self._exchange.to_json()
        if sinks is not None:
            options["sinks"] = sinks.to_json()
        return spark.readStream.format(CONTROL_FORMAT).options(**options, shardKeys=json.dumps(keys)).load()


_BATCHES_RETAINED = "spark.sql.streaming.minBatchesToRetain"
_VERDICT_SCHEMA = pa.schema([(THROTTLE, VERDICT_TYPE)])


def _located(policies: Policies) -> PolicyLocation:
    """Return where the policies are; refuse those that are seen from here, at no cost, and cannot be applied."""
    location = PolicyLocation.parse(policies)
    if location.kind == "document" or (location.kind == "file" and Path(location.place).exists()):
        location.load()
    return location


def _is_served(spark: SparkSession) -> bool:
    """Return whether the session is of Spark Connect, whose server may see files that this process does not."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")
