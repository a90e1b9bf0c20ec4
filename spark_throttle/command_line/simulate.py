"""`spark-throttle simulate` replays recorded events in event time, and tells what a policy would have done to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from spark_throttle.admin.cli.options import OutputForm
from spark_throttle.admin.cli.output import Form, Output, count, size, some, table_of, time_of, wait
from spark_throttle.command_line.spark_session import Conf, PropertiesFile, spark_session
from spark_throttle.errors import ConfigurationError, ThrottleError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_throttle.what_if.outcome import ScopeChange, ScopeOutcome, WhatIf

_SHOWN: Final = 20
"""The most scopes of a level that a table shows; the other forms have all."""

_LIKE: Final = "The events: a folder of files, a Delta table, the name of a table, or a topic, as kafka:orders."
_TOPIC: Final = "kafka:"
_SERVERS: Final = "kafka.bootstrap.servers"


def simulate(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="The policy: a YAML file, or a policy store.")],
    events: Annotated[str, typer.Option(metavar="PATH|TABLE|kafka:TOPIC", help=_LIKE)],
    namespace: Annotated[str, typer.Option(metavar="EXPRESSION", help="Its namespace, as the throttle is given it.")],
    time: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="When an event was sent: a timestamp. Of a topic by default its `timestamp`."
        ),
    ] = None,
    size_bytes: Annotated[
        str | None, typer.Option("--size", metavar="EXPRESSION", help="Its bytes; by default its length as JSON.")
    ] = None,
    units: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Its units, as what it really cost; without it, none.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Another policy to compare with, such as the one in force.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Replay so much before the newest event, such as 24h.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Sum events in such intervals: the error of the replay.")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option("--propose", metavar="DURATION", help="Tell the smallest quotas whose backlog leaves in so long."),
    ] = None,
    written_as: Annotated[
        str, typer.Option("--format", help="The format of a folder, such as parquet or json.")
    ] = "delta",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=f"An option of Spark's reader, such as {_SERVERS}=HOST:9092 for a topic; repeatable.",
        ),
    ] = None,
    direction: Annotated[Literal["publish", "dispatch"], typer.Option(help="Which quotas.")] = "publish",
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the delays, as a PNG.")] = None,
    properties_file: PropertiesFile = None,
    conf: Conf = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Tell what a policy would have done to recorded events: who is delayed, for how long, who is rejected, and why.

    The replay is in event time, so it does not matter how fast events are read. It decides as a job does.
    """
    options, topic = _options_of(option or ()), events.removeprefix(_TOPIC) if events.startswith(_TOPIC) else None
    if topic is not None and _SERVERS not in options:
        raise ConfigurationError(f"{events} is on no server; give --option {_SERVERS}=HOST:9092, its brokers")
    if topic is None and time is None:
        raise ConfigurationError("nothing says when an event was sent; give --time EXPRESSION, such as a column's name")
    from spark_throttle.spark import Throttle
    from spark_throttle.spark.columns.recorded_traffic import duration_ms
    from spark_throttle.what_if.traffic import INTERVALS_MS

    durations = (("--since", since, 1), ("--interval", interval, INTERVALS_MS[0]), ("--propose", within, 0))
    for name, duration, least_ms in durations:
        if duration is not None:
            duration_ms(name, duration, least_ms)
    throttle = Throttle(policy, namespace=namespace, size=size_bytes, direction=direction, units=units)
    if throttle.policies.kind != "table":  # which Spark reads
        throttle.policies.load()
    with spark_session(events, properties_file, conf or ()) as spark, _reached(events, topic, options):
        read = _read(spark, events, written_as, options) if topic is None else _read_topic(spark, topic, options)
        found = throttle.what_if(
            read, time=time or "timestamp", against=against, since=since, interval=interval, propose_within=within
        )
    if picture is not None:
        from spark_throttle.what_if.picture import draw

        draw(found, picture)
    Output(output).show(found, lambda: _as_tables(found))


def _options_of(given: Sequence[str]) -> dict[str, str]:
    """Return the options of Spark's reader."""
    for each in given:
        if not each.partition("=")[0].strip() or "=" not in each:
            raise ConfigurationError(f"--option is {each!r}; give KEY=VALUE, an option of Spark's reader and its value")
    return {key.strip(): value for key, _, value in (each.partition("=") for each in given)}


def _read(spark: SparkSession, events: str, written_as: str, options: Mapping[str, str]) -> DataFrame:
    """Return the events of a folder or of a table."""
    is_table = "/" not in events and not Path(events).exists()
    read = spark.read.options(**options)
    return read.table(events) if is_table else read.format(written_as).load(events)


def _read_topic(spark: SparkSession, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Return what a topic has now, or what the options choose of it."""
    return spark.read.format("kafka").option("subscribe", topic).options(**options).load()


@contextmanager
def _reached(events: str, topic: str | None, options: Mapping[str, str]) -> Iterator[None]:
    """Tell in one line why events cannot be read."""
    from pyspark.errors import AnalysisException

    from spark_throttle.spark.spark_errors import missing_in, spark_line

    try:
        yield
    except ThrottleError:
        raise
    except Exception as error:
        remedy = None if topic is None else _remedy(error, topic, options)
        if remedy is not None:
            raise ConfigurationError(remedy) from error
        missing = missing_in(str(error))
        if missing is None and not isinstance(error, AnalysisException):
            raise
        raise missing or ConfigurationError(
            f"Spark does not read {events} so ({spark_line(error)}); correct --events, --format or the expressions"
        ) from error


def _remedy(error: Exception, topic: str, options: Mapping[str, str]) -> str | None:
    """Return what is wrong with a topic, by what Spark or Kafka's client says of it, and what to do."""
    from pyspark import __version__
    from pyspark.errors import IllegalArgumentException

    from spark_throttle.spark.spark_errors import spark_line

    said, servers = str(error), options[_SERVERS]
    if "ailed to find" in said and "kafka" in said:
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"
        return f"this Spark has no reader of Kafka; give --conf spark.jars.packages={package}"
    if "UnknownTopicOrPartition" in said:
        return f"there is no topic {topic!r} on {servers}; correct the name after {_TOPIC}, or the servers"
    if "TimeoutException" in said or "No resolvable bootstrap" in said:
        return f"{servers} did not answer; start Kafka's brokers, or correct --option {_SERVERS}=HOST:PORT"
    if isinstance(error, IllegalArgumentException):
        return f"Spark does not read {_TOPIC}{topic} so ({spark_line(error)}); correct its name, or --option"
    return None


def _as_tables(found: WhatIf) -> Any:  # noqa: ANN401 - what rich prints
    from rich.console import Group
    from rich.text import Text

    from spark_throttle.what_if.outcome import LEVELS
    from spark_throttle.what_if.proposal import BURST_MS

    seconds = f"{found.interval_ms / 1000:g} s"
    head = f"{count(found.messages)} messages from {time_of(found.first_ms)} to {time_of(found.end_ms)}, "
    head += f"in intervals of {seconds}: delays are right to {seconds}"
    parts: list[Any] = [Text(head, style="bold")]
    if found.unusable_messages:
        parts.append(
            Text(f"{some(found.unusable_messages, 'event')} without a usable namespace, size or time: left out")
        )
    parts += [Text(f"not replayed: {each}", style="bold yellow") for each in found.not_replayed]
    has_other = any(each.against is not None for each in found.scopes)
    for level in LEVELS:
        scopes, word = found.of_level(level), level.replace("_", " ")
        held = [each for each in scopes if each.is_held]
        if held:
            parts += ["", _level_table(word, held[:_SHOWN], has_other=has_other)]
        if len(held) > _SHOWN:
            parts.append(Text(f"and {some(len(held) - _SHOWN, word)} that wait less; --output json has all"))
        if len(held) < len(scopes):
            parts.append(Text(f"{some(len(scopes) - len(held), word)}: nothing waits or is rejected", style="green"))
    if found.proposed:
        columns = [
            (f"the smallest quotas, if burst_seconds is {BURST_MS // 1_000}", False),
            ("", False),
            ("messages_per_second", True),
            ("bytes_per_second", True),
        ]
        has_units = any(each.units_per_second for each in found.proposed)
        columns += [("units_per_second", True)] if has_units else []
        rows = [
            (
                each.level.replace("_", " "),
                each.scope,
                count(each.messages_per_second),
                size(each.bytes_per_second),
                *([count(each.units_per_second)] if has_units else []),
            )
            for each in found.proposed[:_SHOWN]
        ]
        parts += ["", table_of(columns, rows)]
    return Group(*parts)


def _level_table(word: str, scopes: Sequence[ScopeChange], *, has_other: bool) -> Any:  # noqa: ANN401 - what rich prints
    heads = ["offered", "delayed", "half of these up to", "99 % up to", "longest", "still waiting", "rejected"]
    columns = [(word, False), *((head, True) for head in heads), ("held by", False)]
    if has_other:
        columns += [("longest before", True), ("admitted more", True)]
    return table_of(columns, [_cells(each, has_other=has_other) for each in scopes])


def _cells(scope: ScopeChange, *, has_other: bool) -> list[str]:
    found = scope.policy
    cells = [
        scope.scope, count(scope.offered_messages), count(found.delayed_messages), wait(found.delay_p50_ms),
        wait(found.delay_p99_ms), wait(found.delay_longest_ms), _waiting(found), count(found.rejected_messages),
        ", ".join(_by_most(found.held_by, found.rejected_by)),
    ]  # fmt: skip
    if has_other:
        other = scope.against
        cells += ["" if other is None else wait(other.longest_ms or None), count(scope.gained_messages)]
    return cells


def _waiting(found: ScopeOutcome) -> str:
    if not found.waiting_messages:
        return "0"
    return f"{count(found.waiting_messages)} / {wait(found.oldest_waiting_ms)}"


def _by_most(*counts: Any) -> Iterable[str]:  # noqa: ANN401 - mappings of words to numbers
    """Return the words of counts, the most frequent first."""
    pairs = sorted(((number, word) for each in counts for word, number in each.items()), reverse=True)
    return [word.replace("_", " ") for _, word in pairs]
