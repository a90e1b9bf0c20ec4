"""The drop-in writer: `throttle.write_stream(events)` replaces `events.writeStream`."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_throttle.control.epochs import Epochs
from spark_throttle.control.run_fence import RunWatch
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.record import to_json
from spark_throttle.spark.columns.late_costs import CostStream
from spark_throttle.spark.columns.payload_columns import ColumnLike
from spark_throttle.spark.control_look import ControlLook
from spark_throttle.spark.function_sink import FunctionSink
from spark_throttle.spark.paced.paced_options import (
    check_send,
    check_travels,
    http_sender,
    interval_ms,
    patience,
    send_options,
    words_of,
)
from spark_throttle.spark.paced.paced_sink import PacedSink, SendOptions
from spark_throttle.spark.paced.sending import OpenedPerTask, Send
from spark_throttle.spark.pipeline import Pipeline, batches_retained
from spark_throttle.spark.reference_pipeline import REFERENCES, STAGED, AnyPipeline, PipelineChoice, choose_pipeline
from spark_throttle.spark.restart import refuse_foreign, refuse_restart
from spark_throttle.spark.sinks.batch_sink import BatchSink
from spark_throttle.spark.sinks.tables import (
    refuse_lacking_letters,
    sink_partition_columns,
    table_of_files,
    usage_table,
)
from spark_throttle.spark.sinks.targets import (
    DELTA,
    PACED,
    Target,
    Targets,
    format_of,
    refuse_branches,
    refuse_dead_letters,
    refuse_shared_places,
    sink_options,
    sinks_of,
    targets_of,
)
from spark_throttle.spark.sinks.transactional import TRANSACTIONAL, TransactionalOutlet, TransactionalSink
from spark_throttle.spark.spark_errors import (
    BatchFunction,
    ReadableErrors,
    missing_in,
    refused_by_spark,
    told_in_one_line,
)
from spark_throttle.spark.spark_version import warn_of_rows_left
from spark_throttle.spark.start.executors import (
    check_executors_see,
    check_installation,
    control_problem,
    task_slots,
)
from spark_throttle.spark.start.policy_table import TableReading, read_table
from spark_throttle.spark.start.spark_paths import SparkPaths, checkpoint_place
from spark_throttle.spark.start.state_settings import one_state_partition, refuse_state_store
from spark_throttle.spark.start.triggers import check_trigger

logger = logging.getLogger(__name__)

_CHECKPOINT = "checkpointLocation"
_PATIENCE_OPTION = "throttle.patience_seconds"
_TAKES_FILES: Final = "the sink is a Delta table, which takes staged files as they lie"
_GIVES_BACK: Final = "the sink is paced, and is given a row again as it was when it came"
_ARGUMENTS: Final = {
    PACED: "give paced(…) its arguments, which are concurrency, rows_per_call, in_order and patience_seconds, and "
    "HttpSender(…) its own",
    TRANSACTIONAL: "give it to the sink itself",
}


class ThrottledStreamWriter:
    """A writer like `pyspark.sql.streaming.DataStreamWriter` whose rows reach the sink as their quotas allow.

    Rows lie in files from the first task on, and one decider decides on a few bytes of each. Delta tables are written
    exactly once; one that takes files which Spark did not write (`sinks.tables`) gets those that leave whole as they
    lie. All other rows are read once, by Spark, and written by its batch writers: to other formats at least once, for a
    batch that was written but not committed before a crash is written again. A stream of `Throttle.read_stream` is
    decided on by references, if nothing stands against it (`reference_pipeline`). The log says which way a query takes.

    Parameters
    ----------
    pipeline
        The query to start.
    begins
        Function that is called once, before the query starts, with its control path.
    started
        Function that is called once, after the query has started, with the query and a look at its control directory.
    """

    def __init__(
        self,
        pipeline: AnyPipeline,
        begins: Callable[[str], None],
        started: Callable[[StreamingQuery, ControlLook], None],
    ) -> None:
        self._pipeline = pipeline
        self._begins = begins
        self._events = pipeline.events
        self._started = started
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._partition_columns: tuple[str, ...] = ()
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._function: Callable[[DataFrame, int], None] | None = None
        self._paced: tuple[Send | OpenedPerTask, SendOptions] | None = None
        self._transactional: TransactionalSink | None = None
        self._rejected: Target | None = None
        self._usage: Target | None = None
        self._costs: CostStream | None = None

    def format(self, source: str) -> ThrottledStreamWriter:
        """Set the sink's format: any format to which Spark can write a batch."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> ThrottledStreamWriter:  # noqa: ANN401 - as Spark's
        """Set an option of the sink; those that begin with ``throttle.``, and the checkpoint's, are of the query."""
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> ThrottledStreamWriter:  # noqa: ANN401 - as Spark's
        """Set several options, as `option` does."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *columns: str | list[str]) -> ThrottledStreamWriter:  # noqa: N802 - Spark's name
        """Set the columns by which the sink's files are partitioned."""
        first = columns[0] if columns else ()
        self._partition_columns = tuple(first if isinstance(first, list) else columns)  # type: ignore[arg-type]
        return self

    def queryName(self, query_name: str) -> ThrottledStreamWriter:  # noqa: N802 - Spark's name
        """Set the query's name."""
        self._name = query_name
        return self

    def trigger(self, **trigger: Any) -> ThrottledStreamWriter:  # noqa: ANN401 - as Spark's
        """Set when batches run: ``processingTime="1 second"`` or ``availableNow=True``.

        With ``availableNow`` the query ends when all rows that were available have been admitted or rejected. It waits
        for rows that wait for tokens, except for those that a quota of 0 holds, which stay queued.
        """
        check_trigger(trigger)
        self._trigger = trigger
        return self

    def outputMode(self, output_mode: str) -> ThrottledStreamWriter:  # noqa: N802 - Spark's name
        """Accept ``append``, the only output mode that writes a row once."""
        if output_mode.lower() != "append":
            raise ConfigurationError(f"outputMode {output_mode!r} cannot be throttled: a row leaves once; use append")
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> ThrottledStreamWriter:  # noqa: N802 - Spark's name
        """Pass each batch of admitted rows to a function, with the batch's number.

        The function is called on the driver once per batch, and again with the same rows and number if the batch was
        not committed before a crash. To be exactly once, it must write idempotently by that number.

        It may raise `Backpressure` if it has taken no row of the call: then it is called again, without the rows for
        the destinations of the policy that it names, or for all of them if it names none. Where there are none, it is
        called again with the same rows until it takes them, for at most ``option("throttle.patience_seconds", …)``,
        by default 60.
        """
        self._function = func
        return self

    def paced(
        self,
        send: Send | OpenedPerTask,
        *,
        concurrency: int = 16,
        rows_per_call: int = 100,
        in_order: bool = True,
        patience_seconds: float = 60,
    ) -> ThrottledStreamWriter:
        """Send each batch of admitted rows through a function, evenly over the time until the next batch.

        Parameters
        ----------
        send
            Function that takes a list of rows of one namespace, as dictionaries, and an `IdempotencyKey`; it may be a
            coroutine function, or an `HttpSender`. It is called on the executors, and again with the same rows and the
            same key if the batch is run again, or if it raised `Backpressure`. Anything else that it raises ends the
            query.
        concurrency
            The number of calls in flight in each task.
        rows_per_call
            The largest number of rows of a call; a low rate takes fewer. Another number makes other keys.
        in_order
            Whether a call of a namespace begins only after the one before it ended.
        patience_seconds
            How long a destination may refuse every call, or ask to wait, before the query ends.

        Raises
        ------
        ConfigurationError
            If `send` cannot be called with rows and a key, or a number is none or too small.
        """
        check_send(send)
        how = send_options(concurrency, rows_per_call, in_order=in_order, patience_seconds=patience_seconds)
        self._paced = (send, how)
        return self

    def transactional(self, sink: TransactionalSink) -> ThrottledStreamWriter:
        """Commit each batch of admitted rows, once, to a sink that remembers the newest batch of each query."""
        self._transactional = sink
        return self

    def rejected(self, format: str, path: str | None = None, **options: Any) -> ThrottledStreamWriter:  # noqa: A002, ANN401 - as Spark's
        """Send rejected rows, with the ``throttle`` column, to a sink of their own.

        Without this call they go to Parquet files in the control directory of the checkpoint, one folder per batch.

        Raises
        ------
        ConfigurationError
            If the format holds no structs.
        """
        refuse_dead_letters(format)
        table = options.pop("table", None)
        words = {key: str(value) for key, value in options.items()}
        self._rejected = Target(format, words, path=path or words.pop("path", None), table=table)
        return self

    def settled_by(self, costs: DataFrame, identity: ColumnLike, units: ColumnLike) -> ThrottledStreamWriter:
        """Settle rows that were reserved by what a second stream says that they really cost.

        Each cost counts once, in the first batch that brings it, and also after a crash: Spark logs the offsets of both
        streams together. A cost of which no reservation is open changes nothing, and is counted.

        Parameters
        ----------
        costs
            A streaming DataFrame. Its rows must come after those that they are of have left.
        identity
            Column or SQL expression of what the throttle's `reservation` was.
        units
            Column or SQL expression of the cost, a whole number of units.

        Raises
        ------
        ConfigurationError
            If the throttle has no `reservation`.
        """
        self._costs = CostStream.of(self._pipeline.settings.rows, costs, identity, units)
        return self

    def usage(self, path: str) -> ThrottledStreamWriter:
        """Keep a Delta table of usage, with one row per scope and batch (`usage_table.USAGE_SCHEMA`)."""
        self._usage = Target(DELTA, path=path)
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - as Spark's
        outputMode: str | None = None,  # noqa: N803 - as Spark's
        partitionBy: str | list[str] | None = None,  # noqa: N803 - as Spark's
        queryName: str | None = None,  # noqa: N803 - as Spark's
        **options: Any,  # noqa: ANN401 - as Spark's
    ) -> StreamingQuery:
        """Start the query, which writes to `path` if the format takes one."""
        self._set(format, outputMode, partitionBy, queryName, options)
        return self._start(path or self._sink_options().pop("path", None), None)

    def toTable(  # noqa: N802 - Spark's name
        self,
        tableName: str,  # noqa: N803 - as Spark's
        format: str | None = None,  # noqa: A002 - as Spark's
        outputMode: str | None = None,  # noqa: N803 - as Spark's
        partitionBy: str | list[str] | None = None,  # noqa: N803 - as Spark's
        queryName: str | None = None,  # noqa: N803 - as Spark's
        **options: Any,  # noqa: ANN401 - as Spark's
    ) -> StreamingQuery:
        """Start the query, which writes to a table of the catalog; a missing table is created."""
        self._set(format or self._format or DELTA, outputMode, partitionBy, queryName, options)
        return self._start(None, tableName)

    def _set(
        self,
        source: str | None,
        output_mode: str | None,
        partition_by: str | list[str] | None,
        query_name: str | None,
        options: dict[str, Any],
    ) -> None:
        if source is not None:
            self.format(source)
        if output_mode is not None:
            self.outputMode(output_mode)
        if partition_by is not None:
            self.partitionBy(*([partition_by] if isinstance(partition_by, str) else partition_by))
        if query_name is not None:
            self.queryName(query_name)
        self.options(**options)

    def _sink_options(self) -> dict[str, str]:
        return sink_options(self._options, _CHECKPOINT, (_PATIENCE_OPTION,))

    def _start(self, path: str | None, table: str | None) -> StreamingQuery:
        if self._paced is not None:
            self._refuse_beside("paced(send)", PACED, path or table)
        if self._transactional is not None:
            self._refuse_beside("transactional(sink)", TRANSACTIONAL, path or table)
        if self._function is None and self._asked(_PATIENCE_OPTION) is not None:
            raise ConfigurationError(
                f"the option {_PATIENCE_OPTION!r} is for a function of foreachBatch; paced(…) and throttle_paced take "
                "patience_seconds, and other sinks refuse no rows"
            )
        sink = format_of(self._format)
        if sink.refused:
            raise ConfigurationError(sink.refused)
        if sink.has_path and self._function is None and path is None and table is None:
            raise ConfigurationError(f"the sink {sink.name!r} has no place: give start a path, or use toTable")
        check_installation(self._events.sparkSession)
        if "availableNow" in self._trigger:
            warn_of_rows_left(self._events.sparkSession.version)
        with told_in_one_line():
            return self._start_installed(path, table)

    def _start_installed(self, path: str | None, table: str | None) -> StreamingQuery:
        settings = self._pipeline.settings
        policies = read_table(self._events.sparkSession, settings.policies)
        self._pipeline = replace(self._pipeline, settings=replace(settings, policies=policies, run=uuid.uuid4().hex))
        paths = SparkPaths(self._events.sparkSession)
        checkpoint, control_path = paths.query(self._checkpoint())
        refuse_foreign(checkpoint, control_path)
        refuse_state_store(self._events.sparkSession.conf.get, checkpoint)
        options = self._sink_options()
        options.pop("path", None)
        target = Target(self._format, options, self._partition_columns, path, table).resolved(paths)
        admitted = self._function if self._function is not None else target
        rejected = (self._rejected or Target("parquet", path=f"{control_path}/rejected")).resolved(paths)
        usage = None if self._usage is None else self._usage.resolved(paths)
        targets = Targets(admitted, rejected, usage, self._pipeline.settings.exchange is not None)
        refuse_shared_places(admitted, rejected, usage)
        refuse_branches(admitted, rejected)
        places = targets_of(admitted, rejected, usage)
        spark, schema = self._events.sparkSession, self._events.schema
        unwritable = control_problem(spark, control_path, is_seen=False)
        choice = self._chosen(targets, control_path, unwritable)
        definition = choice.pipeline.definition(places, self._partition_columns)
        refuse_restart(
            spark, checkpoint, control_path, definition, choice.pipeline.waiting_schema,
            direction=choice.pipeline.settings.direction,
        )  # fmt: skip
        pipeline, writing = self._placed(choice.pipeline, targets, control_path, unwritable)
        refuse_lacking_letters(spark, rejected, schema)
        partition_columns = sink_partition_columns(spark, admitted, schema)
        usage_sink = usage_table(spark, targets)
        sinks = sinks_of(spark, checkpoint, targets, usage_sink)
        outlet = self._outlet(pipeline, target, options, control_path)
        keeps_left = isinstance(outlet, PacedSink | FunctionSink)
        frames = pipeline.frames(
            control_path=control_path, partition_columns=partition_columns, sinks=sinks, keeps_left=keeps_left
        )
        payload, words = pipeline.payload(control_path), to_json(definition).decode()
        watch = RunWatch(self._pipeline.settings.run)
        sink: BatchFunction = BatchSink(control_path, payload, admitted, rejected, usage_sink, words, watch, outlet)
        if policies.rows is not None:
            sink = TableReading(sink, control_path, policies.place, policies.rows.run)
        writer: DataStreamWriter = frames.writeStream.foreachBatch(ReadableErrors(sink))
        writer = writer.option(_CHECKPOINT, checkpoint)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        self._log_choices(choice, writing, target, control_path)
        self._begins(control_path)
        try:
            with one_state_partition(spark, checkpoint):
                query = writer.start()
        except AnalysisException as error:
            raise (missing_in(str(error)) or refused_by_spark(error)) from None
        self._started(query, ControlLook.of(spark, control_path))
        return query

    def _refuse_beside(self, sink: str, format_: str, place: str | None) -> None:
        """Refuse a second sink beside one of ours, of which one would get no rows, and options that no sink would get.

        The format of the sink is set.
        """
        others = {
            f"format({self._format!r})": self._format not in (None, format_),
            "foreachBatch": self._function is not None,
            f"the place {place!r}": place is not None,
        }
        for other, is_given in others.items():
            if is_given:
                raise ConfigurationError(f"{sink} is the query's sink, and so is {other}; leave out one of them")
        for name in self._sink_options():
            if name != "path":
                raise ConfigurationError(f"{sink} has no use for the option {name!r}; {_ARGUMENTS[format_]}")
        self.format(format_)

    def _log_choices(self, choice: PipelineChoice, writing: str, target: Target, control_path: str) -> None:
        promise = "the function's own" if self._function is not None else target.promise
        way = STAGED if isinstance(choice.pipeline, Pipeline) else REFERENCES
        query = f"throttled query {self._name or 'without a name'}"
        logger.info("%s: decides on %s (%s)", query, way, choice.why)
        logger.info("%s: %s", query, writing)
        logger.info("%s: sink promise %s, control path %s", query, promise, control_path)

    def _outlet(
        self, pipeline: AnyPipeline, target: Target, options: dict[str, str], control_path: str
    ) -> PacedSink | FunctionSink | TransactionalOutlet | None:
        """Return what takes the admitted rows, if Spark's writers do not."""
        if self._transactional is not None:
            return TransactionalOutlet(self._transactional, f"the sink {type(self._transactional).__qualname__}")
        if self._function is None and target.format != PACED:
            return None
        spark = self._events.sparkSession
        namespace, size, units = pipeline.measured()
        epochs = Epochs(Directory(control_path), batches_retained=batches_retained(spark))
        if self._function is not None:
            patience_seconds = patience(self._asked(_PATIENCE_OPTION))
            return FunctionSink(self._function, words_of(self._function), namespace, epochs, patience_seconds)
        send, how = http_sender(options) if self._paced is None else self._paced
        check_travels(send)
        return PacedSink(
            send, how, namespace, size, units, interval_ms(spark, self._trigger), task_slots(spark), epochs,
        )  # fmt: skip

    def _asked(self, option: str) -> str | None:
        return {key.lower(): value for key, value in self._options.items()}.get(option)

    def _chosen(self, targets: Targets, control_path: str, unwritable: str | None) -> PipelineChoice:
        columns: tuple[str, ...] = ()
        if not isinstance(self._pipeline, Pipeline):
            columns = sink_partition_columns(self._events.sparkSession, targets.admitted, self._events.schema)
        admitted, against = targets.admitted, None
        if isinstance(admitted, Target) and admitted.is_delta:
            against = _TAKES_FILES
        elif isinstance(admitted, Target) and admitted.format == PACED:
            against = _GIVES_BACK
        elif unwritable is not None:
            against = f"the executors cannot write to the control directory, {unwritable}"
        choice = choose_pipeline(self._pipeline, control_path, columns, against)
        if self._costs is None or not isinstance(choice.pipeline, Pipeline):  # no row is reserved on references
            return choice
        return replace(choice, pipeline=replace(choice.pipeline, costs=self._costs))

    def _placed(
        self, pipeline: AnyPipeline, targets: Targets, control_path: str, unwritable: str | None
    ) -> tuple[AnyPipeline, str]:
        """Return the pipeline with the place in which it stages its rows, and how they come to the sink."""
        spark = self._events.sparkSession
        keeps_order = not (isinstance(targets.admitted, Target) and targets.admitted.is_paid_by_bytes)
        if not isinstance(pipeline, Pipeline):
            keeps_order = keeps_order and isinstance(targets.admitted, Target)
            return replace(pipeline, keeps_order=keeps_order), "rows go from their source to Spark's writer"
        pipeline = replace(pipeline, keeps_order=keeps_order)
        if unwritable is not None:
            logger.warning(
                "rows travel with their digests, and a long queue needs much memory: the executors cannot write to %s "
                "(%s); give their processes the access that pyarrow needs, as by environment variables",
                control_path,
                unwritable,
            )
            return replace(pipeline, is_inline=True), "rows go through the decider to Spark's writer"
        table, why = table_of_files(spark, targets.admitted, self._events.schema)
        if table is not None:
            check_executors_see(spark, control_path, (table.location,))
            problem = control_problem(spark, table.location, is_seen=True)
            if problem is not None:
                table, why = None, f"the executors cannot write to the table {problem}"
        way = "Spark's writer" if table is None else "the table"
        return replace(pipeline, table=table), f"rows go from staged files to {way} ({why})"

    def _checkpoint(self) -> str:
        is_needed = self._function is not None or format_of(self._format).needs_checkpoint
        asked = self._asked(_CHECKPOINT.lower())
        return checkpoint_place(self._events.sparkSession, asked, self._name, is_needed=is_needed)
