"""What may change between two starts while rows wait: the lines of a table, each of which a test makes.

A line is a change of a `Job`. `test_restarts` starts the changed job on a copy of a checkpoint in which rows wait, and
`docs/changing-a-job.md` has the lines as a table: ``python -m tests.integration.restarts`` prints it. Changes that do
not meet each other are made in one start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.errors import ConfigurationError
from tests.integration.streams import SCHEMA, Lake, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

WAITED, CAME = range(6), (6, 7, 8)
"""The numbers of the rows that wait in the checkpoint, and of those that come after the restart."""

BAD: Final = 9
"""The row that is rejected after the restart."""

REJECTS_BAD: Final = {"bad": publish(messages_per_second=0, on_excess="reject")}
SHUT: Final = policies(tenants={"t": publish(messages_per_second=0), **REJECTS_BAD})
OPEN: Final = policies(tenants=REJECTS_BAD)
THREE: Final = policies(namespaces={"t/n": publish(messages_per_second=0.002, burst_seconds=1000)}, tenants=REJECTS_BAD)
"""Three messages of the namespace at once (two, and one into debt), and hours for the rest."""

STORE: Final = "spark.sql.streaming.stateStore"


def columns_of(events: Any) -> Any:
    """Return the stream with the columns that it has when the query first starts."""
    return events.selectExpr("*", "int(id) AS number", "id + (1L << 40) AS large")


@dataclass(frozen=True)
class Job:
    """A query as its user starts it."""

    lake: Lake
    source: Lake
    """Where its events are: a copy of the checkpoint has them from there."""

    events: Any
    """A stream of `spark.readStream`, or one of `read_stream`."""
    policies: Any = field(default_factory=lambda: OPEN)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the throttle."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the session."""

    sink: str = "admitted"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the writer, also those that are calls of it."""

    trigger: Mapping[str, Any] = field(default_factory=lambda: {"availableNow": True})

    def given(self, **arguments: Any) -> Job:
        """Return the job with other arguments of the throttle."""
        return replace(self, arguments={**self.arguments, **arguments})

    def over(self, change: Callable[[DataFrame], Any]) -> Job:
        """Return the job over another stream."""
        return replace(self, events=change(self.events))

    def told(self, **options: Any) -> Job:
        """Return the job with other calls of its writer."""
        return replace(self, options={**self.options, **options})

    def under(self, settings: Mapping[str, str]) -> Job:
        """Return the job in a session with other settings."""
        return replace(self, settings={**self.settings, **settings})

    def start(self) -> StreamingQuery:
        """Start the query."""
        lake = self.lake
        writer = lake.throttle(self.policies, **self.arguments).write_stream(self.events).format("delta")
        writer = writer.option("checkpointLocation", lake.checkpoint).trigger(**self.trigger)
        for call, argument in self.options.items():
            writer = getattr(writer, call)(*argument)
        return writer.start(lake.path(self.sink))

    def start_plain(self) -> StreamingQuery:
        """Start the query without the throttle."""
        writer = self.events.writeStream.format("delta").option("checkpointLocation", self.lake.checkpoint)
        return writer.trigger(availableNow=True).start(self.lake.path(self.sink))


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    change: str
    rows: str
    """What becomes of the rows that wait."""

    made: Callable[[Job], Job]
    together: str = ""
    """The start in which it is made, with others; the changes of one start are checked by a function of its name."""


@dataclass(frozen=True)
class Refusal:
    """A line of the table that is refused, before anything is written."""

    change: str
    way_out: str
    made: Callable[[Job], Job]
    words: str
    """What the sentence has, as a regular expression."""

    error: type[Exception] = ConfigurationError
    is_sparks: bool = False
    """Whether Spark refuses it, in the query that has started."""

    is_plain: bool = False
    """Whether the changed query has no throttle."""


def _with_new_columns(events: DataFrame) -> DataFrame:
    return events.withColumn("x", F.expr("if(id >= 0, 'new', null)"))


def _with_one(events: DataFrame) -> DataFrame:
    return events.withColumn("one", F.lit(1))


def _referred(job: Job) -> Job:
    reader = job.lake.throttle(job.policies).read_stream(job.lake.spark).schema(SCHEMA)
    return replace(job, events=columns_of(reader.parquet(job.source.path("events"))))


def _without_foreign_files(job: Job) -> Job:
    DeltaTable(job.lake.path("admitted")).alter.add_constraint({"positive": "id >= 0"})
    return job


def _from_a_file(job: Job) -> Job:
    path = Path(job.lake.path("policies.yaml"))
    path.write_text("tenants: {bad: {publish: {messages_per_second: 0, on_excess: reject}}}\n")
    return replace(job, policies=path)


LINES: Final = (
    Line("a new column", "leave with null in it", lambda job: job.over(_with_new_columns), "columns"),
    Line(
        "a new column that has no null, as `F.lit(1)`",
        "leave with null in it",
        lambda job: job.over(_with_one),
        "columns",
    ),
    Line(
        "a wider type, `int` to `bigint`",
        "leave in the new type",
        lambda job: job.over(lambda events: events.withColumn("number", F.expr("bigint(number)"))),
        "columns",
    ),
    Line(
        "a narrower type that holds every waiting value",
        "leave in the new type",
        lambda job: job.over(lambda events: events.withColumn("id", F.expr("int(id)"))),
        "columns",
    ),
    Line(
        "another order of the columns",
        "leave in the new order",
        lambda job: job.over(lambda events: events.select(*reversed(events.columns))),
        "columns",
    ),
    Line("another place of the sink", "leave into the new sink", lambda job: replace(job, sink="other"), "columns"),
    Line(
        "`namespace`",
        "keep theirs, and so their quotas",
        lambda job: job.given(namespace="if(id = 6, ns, concat('new/', id))"),
        "expressions",
    ),
    Line("`size`", "keep theirs", lambda job: job.given(size="size * 100"), "expressions"),
    Line(
        "`order_by`",
        "keep their order, ahead of what comes later",
        lambda job: job.given(order_by=["-id"]),
        "expressions",
    ),
    Line(
        "other policies",
        "are held to the new ones at once",
        lambda job: replace(job, policies=THREE, trigger={"processingTime": "0 seconds"}),
        "expressions",
    ),
    Line("the usage table, where there was none", "count when they leave", lambda job: job.told(
        usage=(job.lake.path("usage"),)), "expressions"),
    Line(
        "the place of the policies: a document, a file or a store",
        "are held to the new ones at once",
        _from_a_file,
        "surroundings",
    ),
    Line(
        "the place of the dead letters",
        "go to the new place if they are rejected",
        lambda job: job.told(rejected=("delta", job.lake.path("rejected"))),
        "surroundings",
    ),
    Line(
        "whether the Delta table takes files as they lie",
        "leave once, into the same table",
        _without_foreign_files,
        "surroundings",
    ),
    Line(
        "`throttle.read_stream` in place of `spark.readStream`",
        "leave as before: the checkpoint goes on with staged files",
        _referred,
        "surroundings",
    ),
    Line(
        "`exchange`, with it or without",
        "are held to the shares of the quotas, or to whole ones",
        lambda job: job.given(exchange=job.lake.path("exchange")),
        "surroundings",
    ),
    Line(
        "the trigger, the query's name",
        "do not notice",
        lambda job: replace(job, trigger={"processingTime": "0 seconds"}).told(queryName=("another",)),
        "function",
    ),
    Line(
        "the session's time zone and ANSI mode",
        "keep what was computed when they came",
        lambda job: job.under({"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}),
        "surroundings",
    ),
    Line(
        "the sink's format, `partitionBy`",
        "leave into the new sink",
        lambda job: replace(job, sink="files").told(format=("parquet",), partitionBy=("ns",)),
        "formats",
    ),
    Line(
        "`spark.sql.shuffle.partitions`, `stateStore.providerClass`",
        "do not notice: Spark keeps those of the checkpoint",
        lambda job: job.under({
            "spark.sql.shuffle.partitions": "3",
            f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        }),
        "formats",
    ),
    Line(
        "a `foreachBatch` function in place of a sink, or the reverse",
        "go to the function",
        lambda job: job.over(_with_one).told(foreachBatch=(job.lake.keep,)),
        "function",
    ),
)  # fmt: skip
"""What works."""

REFUSALS: Final = (
    Refusal(
        "a column dropped",
        "keep it, and drop or rename it behind the throttle, until no row waits with it; or "
        "[take out what waits](streams.md#take-out-what-waits)",
        lambda job: job.over(lambda events: events.drop("number")),
        r"^rows that wait in the queue have the columns \['number'\], which the stream no longer has: keep the columns",
    ),
    Refusal(
        "a column renamed",
        "keep it, and drop or rename it behind the throttle, until no row waits with it; or "
        "[take out what waits](streams.md#take-out-what-waits)",
        lambda job: job.over(lambda events: events.withColumnRenamed("number", "count")),
        r"^rows that wait in the queue have the columns \['number'\], .* drop or rename them behind the throttle",
    ),
    Refusal(
        "a narrower type that does not hold a waiting value",
        "keep the old type until no such row waits",
        lambda job: job.over(lambda events: events.withColumn("large", F.expr("int(large % 10)"))),
        r"^column 'large' is int64 in rows that wait in the queue, and int32 in the stream: keep the old type",
    ),
    Refusal(
        "another kind of type, as `bigint` to `timestamp` or `string`",
        "keep the old type until no row waits, or add a column beside it",
        lambda job: job.over(lambda events: events.withColumn("large", F.expr("timestamp_micros(large)"))),
        r"^column 'large' is int64 in rows that wait .* keep the old type .*\(a value of the one is none of the other",
    ),
    Refusal(
        "`direction`",
        "start with a new checkpoint, or [take out what waits](streams.md#take-out-what-waits) first",
        lambda job: job.given(direction="dispatch"),
        "^this checkpoint limits publish, but dispatch was asked for: .* set direction='publish'",
    ),
    Refusal(
        "the format of the state's checkpoints (`checkpointFormatVersion`)",
        "set the former one: Spark converts none",
        lambda job: job.under({f"{STORE}.checkpointFormatVersion": "2"}),
        "is in format 1, which Spark does not convert: set it to 1, or start with a new checkpoint",
    ),
    Refusal(
        "another number of sources in the stream",
        "start with a new checkpoint",
        lambda job: job.over(lambda events: events.union(columns_of(job.source.events()))),
        r"sources in the checkpoint offsets and now there are \[3\] sources",
        is_sparks=True,
    ),
    Refusal(
        "a stateful operator before the throttle, as `dropDuplicates`, where there was none",
        "start with a new checkpoint",
        lambda job: job.over(lambda events: events.dropDuplicates(["id"])),
        "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
        is_sparks=True,
    ),
    Refusal(
        "a query without the throttle, on the checkpoint of a throttled one",
        "[take out what waits](streams.md#take-out-what-waits), and start with a new checkpoint",
        lambda job: job,
        r"sources in the checkpoint offsets and now there are \[1\] sources",
        is_sparks=True,
        is_plain=True,
    ),
)
"""What is refused on the checkpoint of a throttled query."""

BY_A_TOOL: Final = (
    ("the throttle taken off, by [`drain`](streams.md#take-out-what-waits)", "are in a table or a folder"),
)
"""What takes a tool while the query is stopped, and what becomes of the rows that wait."""

REFUSED_AFTERWARDS: Final = (
    (
        "`spark.readStream` in place of `throttle.read_stream`, after [references](streams.md#reading-by-reference)",
        "read it with `throttle.read_stream`, or start with a new checkpoint",
    ),
    (
        "the throttle on the checkpoint of a query without one",
        "start with a new checkpoint, [from the position of that query](streams.md#throttle-an-existing-query)",
    ),
    ("a start after `drain`", "start with a new checkpoint, from the positions that it named"),
)


def table() -> str:
    """Return the lines as a table in Markdown; what becomes of rows is said once for all changes that do it."""
    lines = [*((line.change, line.rows) for line in LINES), *BY_A_TOOL]
    lines += [(line.change, f"refused{' by Spark' * line.is_sparks}: {line.way_out}") for line in REFUSALS]
    lines += [(change, f"refused: {way_out}") for change, way_out in REFUSED_AFTERWARDS]
    changes: dict[str, list[str]] = {}
    for change, rows in lines:
        changes.setdefault(rows, []).append(change)
    table = [f"| {'; '.join(each)} | {rows} |" for rows, each in changes.items()]
    return "\n".join(["| change | rows that wait |", "|---|---|", *table, ""])


if __name__ == "__main__":
    sys.stdout.write(table())
