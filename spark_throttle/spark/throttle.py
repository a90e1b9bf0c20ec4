"""The throttle, the class that users import.

::

    throttle = Throttle(policies="policies.yaml", namespace="concat(tenant, '/', topic)", size="octet_length(value)")
    throttle.write_stream(events).format("delta").option("checkpointLocation", ckpt).start(path)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from spark_throttle.checkpoint.definition import FUNCTION, OWN_SINK
from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.compile import compile_from
from spark_throttle.policy.model import Direction
from spark_throttle.policy.source import refuse_units
from spark_throttle.sharing.settings import ExchangeOptions
from spark_throttle.spark.columns.late_costs import CostStream
from spark_throttle.spark.columns.payload_columns import ColumnLike, RowExpressions, as_column, row_columns
from spark_throttle.spark.columns.recorded_traffic import Duration, duration_ms, summed
from spark_throttle.spark.control_look import ControlLook
from spark_throttle.spark.declared_flow import aside, is_in_pipeline
from spark_throttle.spark.metering.meter import ClockName
from spark_throttle.spark.metering.metered import Metered, MeteredQuery
from spark_throttle.spark.paced.stream_sink import ThrottlePacedSink
from spark_throttle.spark.pipeline import Pipeline, ThrottleSettings
from spark_throttle.spark.progress import Publish, ThrottleProgressListener, log_progress, read_progress
from spark_throttle.spark.reference_pipeline import ReferencePipeline
from spark_throttle.spark.reference_stream import ReferenceStream, ThrottledStreamReader
from spark_throttle.spark.restart import refuse_foreign, refuse_restart
from spark_throttle.spark.spark_errors import told_in_one_line
from spark_throttle.spark.spark_version import ends_when_drained
from spark_throttle.spark.start.executors import check_installation, refuse_unwritable
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.spark.writer import ThrottledStreamWriter
from spark_throttle.status.explanation import Explanation
from spark_throttle.status.status import Status
from spark_throttle.store.policy_location import Policies, PolicyLocation, load_policies
from spark_throttle.what_if.outcome import WhatIf, what_if
from spark_throttle.what_if.traffic import INTERVALS_MS


class Throttle:
    """A throttle that holds every namespace of a stream to its policies.

    `docs/changing-a-job.md` lists the arguments that may change between two starts, and the expressions that are
    refused.

    Parameters
    ----------
    policies
        The policies. The query follows changes to them while it runs if they are given as the path of a YAML file, the
        URI of such a file on an object store, a policy store (``delta:`` and the path of a Delta table), or a table of
        the session's catalog (``table:`` and its name). A document, given as YAML text or as a mapping, does not
        change. `spark_throttle.store.policy_location` defines how a string is interpreted.
    namespace
        Column or SQL expression of the namespace, ``tenant/name``. A row without one is rejected.
    size
        Column or SQL expression of the row's size in bytes. The default is the length of the row as JSON, without the
        columns that have another value when a batch is run again.
    units
        Column or SQL expression of the row's units: a whole number of what the policy's ``units_per_second`` counts,
        such as the tokens of a model. By default rows cost none, and policies that limit units are refused; with
        ``units="0"`` they are not.
    reservation
        Column or SQL expression that identifies what a row really costs, which is told later: text, a binary or a whole
        number. The row is charged its `units` as an estimate when it leaves, and the difference once its cost is known
        (`ThrottledStreamWriter.settled_by`, `Meter.settle`). Rows where it is null are charged their `units` for good.
    order_by
        Columns or SQL expressions that order the rows of a namespace. The default is Kafka's partition and offset if
        the stream has them and the topic, and otherwise an arbitrary order that is the same at every attempt.
    direction
        The quotas of a policy that this job enforces: ``publish`` (into the lake) or ``dispatch`` (out of it).
    exchange
        Place where this job meets the jobs with which it shares the quotas of its tenants and groups: a directory,
        ``delta:`` and a table, or a mapping with the keys of ``exchange`` in ``conf/throttle.yaml``. By default the
        job shares no quota.

    Raises
    ------
    PolicyError
        If the policies cannot be applied.
    ConfigurationError
        If an argument has a value or form that is not allowed.
    """

    def __init__(  # noqa: PLR0913 - what decides of a row, and by which policies
        self,
        policies: Policies,
        namespace: ColumnLike,
        size: ColumnLike | None = None,
        order_by: Sequence[ColumnLike] | None = None,
        direction: Direction = "publish",
        exchange: str | Mapping[str, Any] | None = None,
        units: ColumnLike | None = None,
        *,
        reservation: ColumnLike | None = None,
    ) -> None:
        if direction not in ("publish", "dispatch"):
            raise ConfigurationError(f"direction is {direction!r}; give 'publish' or 'dispatch'")
        if isinstance(order_by, str):
            raise ConfigurationError(f"order_by is {order_by!r}; give a list of columns: [{order_by!r}]")
        if reservation is not None and units is None:
            raise ConfigurationError("reservation is given without units, which are the estimate: give units too")
        shared = None if exchange is None else ExchangeOptions.parse(exchange)
        located = _located(policies, direction, states_units=units is not None)
        rows = RowExpressions(namespace, size, order_by, units, reservation)
        self._settings = ThrottleSettings(located, rows, direction, shared)
        self._looks: dict[str, ControlLook] = {}
        self._metered = MeteredQuery()

    @property
    def policies(self) -> PolicyLocation:
        """Location of the policies, as interpreted from the argument."""
        return self._settings.policies

    def read_stream(self, spark: SparkSession) -> ThrottledStreamReader:
        """Return a reader to use in place of ``spark.readStream``, for a source whose rows can be read again.

        A query over its stream can decide on references: it reads the columns that decide, and Spark reads the rest of
        each row once, when it leaves. Rows that wait are copied, so a file must stay, unchanged, only until its
        batch is committed.
        """
        return ThrottledStreamReader(spark)

    def write_stream(self, events: DataFrame | ReferenceStream) -> ThrottledStreamWriter:
        """Return a writer to use in place of ``events.writeStream``."""
        if isinstance(events, ReferenceStream):
            return ThrottledStreamWriter(ReferencePipeline(self._settings, events), self._metered.begin, self._follow)
        if not events.isStreaming:
            raise ConfigurationError("events is not a streaming DataFrame; read it with spark.readStream")
        return ThrottledStreamWriter(Pipeline(self._settings, events), self._metered.begin, self._follow)

    def apply(
        self,
        events: DataFrame,
        *,
        control_path: str,
        settled_by: tuple[DataFrame, ColumnLike, ColumnLike] | None = None,
    ) -> DataFrame:
        """Return the decided rows of a stream: the user's columns and the ``throttle`` column, rejected rows included.

        Use it to keep a sink of your own. Filter on ``throttle.verdict = 'ADMIT'``; waiting rows are not in the stream
        until they leave.

        The session then has the sink ``throttle_paced`` for them (`docs/sending.md`).

        Parameters
        ----------
        control_path
            A directory to which the driver and the executors can write. Back it up, restore and delete it together with
            the query's checkpoint. A path without a scheme is resolved by Spark. A full refresh of a pipeline empties
            it.
        settled_by
            A stream of costs with its expressions, as `ThrottledStreamWriter.settled_by` takes them.
        """
        costs = None if settled_by is None else CostStream.of(self._settings.rows, *settled_by)
        if isinstance(events, ReferenceStream):
            raise ConfigurationError("apply takes a stream of spark.readStream; give this one to write_stream")
        if is_in_pipeline():
            return aside(lambda: self._applied(events, control_path, costs, is_declared=True))
        return self._applied(events, control_path, costs, is_declared=False)

    def _applied(
        self, events: DataFrame, control_path: str, costs: CostStream | None = None, *, is_declared: bool
    ) -> DataFrame:
        spark, pipeline = events.sparkSession, Pipeline(self._settings, events, keeps_order=True, costs=costs)
        if self._settings.policies.kind == "table":
            raise ConfigurationError(
                f"the policy table {self._settings.policies.place} is read beside each batch, which apply does not "
                f"see: use write_stream, or policies in a store or a file"
            )
        check_installation(spark)
        if is_declared and not ends_when_drained(spark.version):
            raise ConfigurationError(
                f"a pipeline cannot be throttled on Spark {spark.version}, which tells no source from which batch "
                f"a flow goes on: use Spark 4.2 or newer, or a query with write_stream"
            )
        control_path = SparkPaths(spark).resolve(control_path)
        checkpoint = control_path.rstrip("/").rpartition("/")[0] or "/"
        refuse_foreign(checkpoint, control_path)
        refuse_unwritable(spark, control_path)
        self._metered.begin(control_path)
        definition = pipeline.definition({OWN_SINK: FUNCTION})
        refuse_restart(
            spark, checkpoint, control_path, definition, pipeline.waiting_schema,
            direction=self._settings.direction,
        )  # fmt: skip
        spark.dataSource.register(ThrottlePacedSink)
        with told_in_one_line():
            return pipeline.decided(control_path, definition, may_begin_anew=is_declared)

    def metered(
        self, function: Callable[..., Any], *, clock: ClockName = "cpu", namespace: str | int | None = None
    ) -> Callable[..., Any]:
        """Return a function that charges the time it uses to the namespaces of its rows (`docs/policies.md`).

        Give it to Spark in place of `function`, for work on rows that the throttle admitted: in `foreachBatch` of
        `write_stream`, on the batch that it is given, or on the rows of `apply`. This throttle then serves one query.

        Parameters
        ----------
        function
            A function for `foreachBatch`, `foreachPartition`, `mapInPandas` or `mapInArrow`, or a pandas or Arrow UDF
            with type hints: an iterator UDF, or one from series or arrays to a series or array. If it has a parameter
            `meter`, it is given a `Meter`, to which it may say itself what it used for whom, and what rows really cost.
        clock
            ``cpu`` for the CPU time of the thread that calls the function, ``wall`` for the time that passes, as where
            the function waits for work that is done elsewhere.
        namespace
            The column of the rows, or the position of the argument of a UDF, that holds the namespace. The default is
            the throttle's `namespace` if it is the name of a column. A function for `foreachBatch` needs none.

        Raises
        ------
        ConfigurationError
            If `clock` is no clock, `namespace` no column and no position, or the throttle has several queries.
        """
        own = self._settings.rows.namespace
        if namespace is None and isinstance(own, str) and own.isidentifier():
            namespace = own
        return Metered(function, clock, namespace, self._metered)

    def status(self, query: StreamingQuery) -> Status:
        """Return the numbers of the last batch of a query that this throttle started."""
        return self._look(query).status()

    def explain(self, query: StreamingQuery, namespace: str) -> Explanation:
        """Return why a namespace, or a tenant, is held as it is in a query that this throttle started.

        Raises
        ------
        ThrottleError
            If no batch was planned yet, or the text is no name.
        """
        return self._look(query).explanation(namespace)

    def what_if(
        self,
        events: DataFrame,
        *,
        time: ColumnLike,
        messages: ColumnLike | None = None,
        against: Policies | None = None,
        since: Duration | None = None,
        interval: Duration | None = None,
        propose_within: Duration | None = None,
    ) -> WhatIf:
        """Return what this throttle's policies would have done to recorded events, in event time.

        Parameters
        ----------
        events
            What was recorded, read with ``spark.read``: files, a table, or a topic. Its units are charged when an event
            arrives, and not corrected: let `units` be what it really cost.
        time
            Column or SQL expression of the time at which an event was sent, a timestamp.
        messages
            Column or SQL expression of how many messages a row of `events` stands for, with their bytes in `size` and
            their units in `units`: as in a usage table. By default one.
        against
            Other policies to compare with, such as those in force.
        since
            How much time before the newest event is replayed: ``"24h"``, or a number of seconds; by default all.
        interval
            Events are summed in such intervals, which is also the error of the replay. By default the shortest of 1, 2,
            5, 10, 20 and 60 s that makes at most 5,000 of them.
        propose_within
            If given, the answer also has the smallest quotas whose backlog would never have taken longer to leave.

        Raises
        ------
        ConfigurationError
            If an argument is not allowed, or there is no event.
        PolicyError
            If the policies cannot be applied.
        """
        document, other = self.policies.load(), None if against is None else load_policies(against)
        since_ms = None if since is None else duration_ms("since", since)
        interval_ms = None if interval is None else duration_ms("interval", interval, INTERVALS_MS[0])
        within_ms = None if propose_within is None else duration_ms("propose_within", propose_within, 0)
        rows = self._settings.rows
        size = row_columns(events.schema, rows.size, ())[0]
        traffic = summed(
            events, time=as_column(time), namespace=as_column(rows.namespace), size=size,
            messages=as_column("1" if messages is None else messages), since_ms=since_ms, interval_ms=interval_ms,
            units=None if rows.units is None else as_column(rows.units),
        )  # fmt: skip
        direction, first_ms, end_ms = self._settings.direction, traffic.first_ms, traffic.end_ms
        return what_if(
            traffic, compile_from(document, direction, first_ms, end_ms),
            None if other is None else compile_from(other, direction, first_ms, end_ms), propose_within_ms=within_ms,
        )  # fmt: skip

    def progress(self, query: StreamingQuery) -> dict[str, Any] | None:
        """Return the newest progress of a query that this throttle started, in Spark's form, with the user's rows.

        ``numInputRows`` counts what arrived and ``sink.numOutputRows`` what was admitted, and ``throttle`` has all
        counts of the batch. `None` before the first batch.
        """
        look, newest = self._look(query), query.lastProgress
        return None if newest is None else read_progress(newest.json, look)

    def listener(self, publish: Publish = log_progress) -> StreamingQueryListener:
        """Return a listener, for ``spark.streams.addListener``, that publishes the progress of its queries.

        Parameters
        ----------
        publish
            Function that is called with each progress, as `progress` returns it. By default it is logged as JSON.
        """
        return ThrottleProgressListener(self._looks, publish)

    def _look(self, query: StreamingQuery) -> ControlLook:
        look = self._looks.get(str(query.id))
        if look is None:
            raise ConfigurationError(f"query {query.id} was not started by this throttle; ask the one that started it")
        return look

    def _follow(self, query: StreamingQuery, look: ControlLook) -> None:
        """Remember where the query's numbers are."""
        self._looks[str(query.id)] = look


def _located(policies: Policies, direction: Direction, *, states_units: bool) -> PolicyLocation:
    """Return the location of the policies; a document, or a file that this process sees, is validated at once."""
    location = PolicyLocation.parse(policies)
    if location.kind == "document" or (location.kind == "file" and Path(location.place).exists()):
        document = location.load()
        if not states_units:
            refuse_units(document, direction)
    return location
