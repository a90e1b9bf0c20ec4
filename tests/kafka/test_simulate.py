"""`spark-throttle simulate` reads a topic, from its first record to its newest, or says why it cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from spark_throttle.command_line.app import app
from tests.kafka.broker import Broker, Record

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from typer.testing import Result

TENANT = "get_json_object(CAST(value AS STRING), '$.tenant')"


def simulate(folder: Path, *arguments: str) -> Result:
    policy = folder / "policy.yaml"
    policy.write_text("{version: 1, tenants: {acme: {publish: {messages_per_second: 5, burst_seconds: 2}}}}")
    return CliRunner().invoke(app, ["simulate", str(policy), "--namespace", TENANT, "--output", "json", *arguments])


def test_events_of_a_topic_are_replayed_at_the_times_at_which_they_were_written(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("events", partitions=2)
    for partition, (tenant, count) in enumerate({"acme": 60, "blue": 40}.items()):
        value = json.dumps({"tenant": tenant}).encode()
        broker.append("events", partition, [Record(None, value)] * count)
    broker.append("events", 0, [Record(b"k", None), Record(None, b"no JSON")])
    servers = f"kafka.bootstrap.servers={broker.bootstrap}"
    told = simulate(tmp_path, "--events", "kafka:events", "--option", servers, "--size", "octet_length(value)")
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert (found["messages"], found["unusable_messages"]) == (100, 2)
    tenants = {each["scope"]: each["offered_bytes"] for each in found["scopes"] if each["level"] == "tenant"}
    assert tenants == {"acme": 60 * 18, "blue": 40 * 18}
    topic = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", "events")
    written_s = topic.load().selectExpr("unix_seconds(min(timestamp)) AS at").collect()[0]["at"]
    assert found["first_ms"] == 1_000 * written_s


@pytest.mark.usefixtures("spark")
def test_topic_that_cannot_be_read_is_refused_with_what_to_do(broker: Broker, tmp_path: Path) -> None:
    servers = f"kafka.bootstrap.servers={broker.bootstrap}"
    for option, said in (
        (servers, f"there is no topic 'absent' on {broker.bootstrap}; correct the name after kafka:"),
        (
            "kafka.bootstrap.servers=no.such.host.invalid:9092",
            "no.such.host.invalid:9092 did not answer; start Kafka's",
        ),
        ("failOnDataLoss=false", "kafka:absent is on no server; give --option kafka.bootstrap.servers=HOST:9092"),
        ("nothing", "--option is 'nothing'; give KEY=VALUE"),
    ):
        told = simulate(tmp_path, "--events", "kafka:absent", "--option", option)
        assert (told.exit_code, said in told.output) == (3, True), told.output
