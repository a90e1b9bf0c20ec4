"""Recorded events are summed on Spark, and what a policy would have done to them is told by Python and by a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from spark_throttle.command_line import simulate
from spark_throttle.command_line.app import app
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark import Throttle

POLICY = {"version": 1, "tenants": {"acme": {"publish": {"messages_per_second": 2, "burst_seconds": 10}}}}
OTHER = "{version: 1, tenants: {acme: {publish: {messages_per_second: 0.5, burst_seconds: 10}}}}"


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    """200 seconds of one message a second; of three more, one has no name, one no time, and one no size."""
    good = "id", "'acme/a' AS namespace", "timestamp_seconds(1700000000 + id) AS ts", "id % 3 AS size"
    bad = spark.sql(
        "SELECT 1L id, CAST(NULL AS STRING) namespace, timestamp_seconds(1700000000) ts, 1L size UNION ALL "
        "SELECT 2L, 'acme/a', CAST(NULL AS TIMESTAMP), 1L UNION ALL "
        "SELECT 3L, 'acme/a', timestamp_seconds(1700000000), CAST(NULL AS BIGINT)"
    )
    return spark.range(200).selectExpr(*good).union(bad).cache()


def test_a_quota_that_nobody_exceeds_delays_nobody_however_fast_the_events_are_read(events: DataFrame) -> None:
    found = Throttle(POLICY, namespace="namespace", size="size").what_if(events, time="ts", against=OTHER)
    assert (found.messages, found.unusable_messages, found.interval_ms) == (200, 3, 1_000)
    assert found.first_ms == 1_700_000_000_000
    assert found.end_ms == 1_700_000_200_000
    (acme,) = found.of_level("tenant")
    assert (acme.offered_messages, acme.offered_bytes) == (200, 199)
    assert (acme.policy.delayed_messages, acme.policy.waiting_messages) == (0, 0)
    assert acme.against is not None
    assert acme.gained_messages == acme.against.waiting_messages > 60


def test_only_what_lies_before_the_newest_event_for_so_long_is_taken(events: DataFrame) -> None:
    throttle = Throttle(POLICY, namespace="namespace", size="size")
    found = throttle.what_if(events, time="ts", since="1min", interval="1s", propose_within=0)
    assert (found.messages, found.interval_ms, found.end_ms - found.first_ms) == (60, 1_000, 60_000)
    assert [(each.scope, each.messages_per_second) for each in found.proposed] == [("acme", 1)]


def test_a_row_may_stand_for_many_messages_as_in_a_usage_table(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT timestamp_seconds(5) at, 'acme/a' scope, 30L n, 100L b "
        "UNION ALL SELECT timestamp_seconds(6), 'acme/b', 0L, 0L"
    )
    found = Throttle(POLICY, namespace="scope", size="b").what_if(rows, time="at", messages="n", interval="1s")
    (acme,) = found.of_level("tenant")
    assert (acme.offered_messages, acme.offered_bytes, acme.policy.admitted_messages) == (30, 100, 21)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"time": "id"}, "time is bigint, and no timestamp"),
        ({"time": "ts", "since": "1 day"}, "since: '1 day'"),
        ({"time": "ts", "interval": 0}, "interval: 0 is less than 1000 ms"),
    ],
)
def test_what_cannot_be_replayed_is_refused(events: DataFrame, arguments: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Throttle(POLICY, namespace="namespace", size="size").what_if(events, **arguments)


def test_a_command_says_it_in_tables_in_json_and_in_a_picture(
    events: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.write.parquet(f"{tmp_path}/events")
    policies = tmp_path / "new.yaml", tmp_path / "old.yaml"
    for path, text in zip(policies, (OTHER, json.dumps(POLICY)), strict=True):
        path.write_text(text)
    monkeypatch.setattr(simulate, "_SHOWN", 1)
    arguments = ["simulate", str(policies[0]), "--events", f"{tmp_path}/events", "--format", "parquet", "--time", "ts"]
    arguments += ["--namespace", "namespace", "--size", "size", "--against", str(policies[1]), "--propose", "10s"]
    told = CliRunner().invoke(app, [*arguments, "--picture", str(tmp_path / "delays.png")])
    assert told.exit_code == 0, told.output
    assert "200 messages from 2023-11-14 22:13:20 to 2023-11-14 22:16:40" in told.output
    assert "tenant messages" in told.output
    assert "the smallest quotas, if burst_seconds is 10" in told.output
    assert (tmp_path / "delays.png").read_bytes()[:4] == b"\x89PNG"
    found = json.loads(CliRunner().invoke(app, [*arguments, "--output", "json"]).output)
    assert [each["scope"] for each in found["scopes"]] == ["job", "acme"]
    assert found["scopes"][1]["policy"]["delay_longest_ms"] > 60_000
    assert found["proposed"][0]["messages_per_second"] == 1


@pytest.mark.usefixtures("spark")
def test_a_topic_and_events_without_a_time_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(OTHER)
    arguments = ["simulate", str(tmp_path / "policy.yaml"), "--namespace", "key", "--events"]
    topic = CliRunner().invoke(app, [*arguments, "kafka:orders", "--option", "kafka.bootstrap.servers=localhost:1"])
    assert (topic.exit_code, "give --conf spark.jars.packages=org.apache.spark:spark-sql-kafka" in topic.output) == (
        3,
        True,
    )
    table = CliRunner().invoke(app, [*arguments, "orders"])
    assert (table.exit_code, "give --time EXPRESSION" in table.output) == (3, True)


@pytest.mark.parametrize(
    ("place", "time", "said"),
    [("absent", "ts", "PATH_NOT_FOUND"), ("events", "sent_at", "`sent_at`"), ("events", "cast(", "PARSE_SYNTAX_ERROR")],
)
def test_events_that_spark_cannot_read_are_refused_in_one_line(
    events: DataFrame, tmp_path: Path, place: str, time: str, said: str
) -> None:
    (tmp_path / "policy.yaml").write_text(OTHER)
    events.limit(1).write.parquet(f"{tmp_path}/events")
    arguments = ["simulate", str(tmp_path / "policy.yaml"), "--events", f"{tmp_path}/{place}", "--format", "parquet"]
    told = CliRunner().invoke(app, [*arguments, "--namespace", "namespace", "--time", time])
    assert (told.exit_code, told.stderr.count("\n"), said in told.stderr) == (3, 1, True), told.stderr
