"""The throttle: what users import.

::

    throttle = Throttle(policies="policies.yaml", namespace="concat(tenant, '/', topic)", size="octet_length(value)")
    throttle.write_stream(events).format("delta").option("checkpointLocation", ckpt).start(path)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_throttle.checkpoint.definition import FUNCTION, OWN_SINK
from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.options import ExchangeOptions
from spark_throttle.spark.columns.payload_columns import ColumnLike
from spark_throttle.spark.pipeline import Pipeline, ThrottleSettings
from spark_throttle.spark.sinks.sink_targets import refuse_changed
from spark_throttle.spark.start.executor_sight import check_executors_see
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.spark.writer import ThrottledStreamWriter
from spark_throttle.status.status import Status, read_status
from spark_throttle.store.policy_location import Policies, PolicyLocation

MAX_SHARDS = 4096


class Throttle:
    """Holds every namespace of a stream to its policies.

    `docs/changing-a-job.md` says which of these may change between two starts, and what must not be given.

    Parameters
    ----------
    policies
        What the query follows while it runs: the path of a YAML file, the URI of one on an object store, or a policy
        store (``delta:`` and the path of a Delta table); or a document that stays as it is, as YAML or as a mapping.
        `spark_throttle.store.policy_location` says how a string is understood.
    namespace
        Column or SQL expression of the namespace, ``tenant/name``. A row without one is rejected.
    size
        Column or SQL expression of a row's size in bytes; by default the length of its JSON form, but for columns that
        have another value when a batch is run again.
    order_by
        Columns or SQL expressions by which the rows of a namespace are ordered; by default Kafka's partition and offset
        where the stream has them and the topic, else an arbitrary order that is the same at every attempt.
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
        shared = None if exchange is None else ExchangeOptions.parse(exchange)
        self._settings = ThrottleSettings(_located(policies), namespace, size, order_by, direction, shards, shared)
        self._control_paths: dict[str, str] = {}

    @property
    def policies(self) -> PolicyLocation:
        """Where the policies are, as the argument was understood."""
        return self._settings.policies

    def write_stream(self, events: DataFrame) -> ThrottledStreamWriter:
        """Return a writer to use in place of ``events.writeStream``."""
        return ThrottledStreamWriter(Pipeline(self._settings, events), self._follow)

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
        spark, pipeline = events.sparkSession, Pipeline(self._settings, events)
        control_path = SparkPaths(spark).resolve(control_path)
        check_executors_see(spark, control_path)
        definition = pipeline.definition({OWN_SINK: FUNCTION})
        refuse_changed(spark, control_path, control_path.rstrip("/").rpartition("/")[0] or "/", definition)
        return pipeline.decided(control_path, definition)

    def status(self, query: StreamingQuery) -> Status:
        """Return the numbers of the last batch of a query that this throttle started."""
        path = self._control_paths.get(str(query.id))
        if path is None:
            raise ConfigurationError(f"query {query.id} was not started by this throttle; ask the one that started it")
        return read_status(path)

    def _follow(self, query: StreamingQuery, control_path: str) -> None:
        """Remember where a query keeps its control files, for `status`."""
        self._control_paths[str(query.id)] = control_path


def _located(policies: Policies) -> PolicyLocation:
    """Return where the policies are; refuse those that are seen from here, at no cost, and cannot be applied."""
    location = PolicyLocation.parse(policies)
    if location.kind == "document" or (location.kind == "file" and Path(location.place).exists()):
        location.load()
    return location
