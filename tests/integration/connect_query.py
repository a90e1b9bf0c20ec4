"""Throttled queries over Spark Connect, run by test_connect.py in a process of its own, which has no JVM.

The session is the client of a server (`connect_server`): it has no `sparkContext` and reaches no JVM object.
Run as ``python -m tests.integration.connect_query DIRECTORY``, or with ``types`` behind it for rows of every type, or
``wide`` for wide rows.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as pads
from deltalake import DeltaTable
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession

from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.codec import parse_document
from spark_throttle.spark import Throttle
from spark_throttle.spark.progress import batch_spans
from spark_throttle.spark.reference_pipeline import way_of
from spark_throttle.spark.state_reader import read_queued
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.integration import every_type, wide_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REFUSED = {"publish": {"messages_per_second": 0, "on_excess": "reject"}}
POLICIES: dict[str, dict[str, Any]] = {
    "resource_groups": {"g": {"publish": {"messages_per_second": 40, "burst_seconds": 1}}},
    "tenants": {
        "slow": {"resource_group": "g"},
        "bad": REFUSED,
        "shut": {"publish": {"messages_per_second": 0}},
    },
}


def run(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Run a query into a Delta table, and another into a function; return what became of the rows."""
    tenants = "array('slow', 'bad', 'shut', 'free')"
    rows = spark.range(100).selectExpr("id", f"concat({tenants}[int(id % 4)], '/n') ns", "timestamp_seconds(id) at")
    rows.coalesce(1).write.parquet(str(root / "events"))
    events = spark.readStream.schema(rows.schema).parquet(str(root / "events"))
    throttle = Throttle(POLICIES, namespace="ns", order_by=["id"])
    published: list[dict[str, Any]] = []
    spark.streams.addListener(throttle.listener(published.append))
    provider, spans = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    spark.streams.addListener(throttle.listener(batch_spans(provider.get_tracer("test"))))

    writer = throttle.write_stream(events).format("delta").option("checkpointLocation", str(root / "checkpoint"))
    writer = writer.rejected("delta", path=str(root / "rejected")).usage(str(root / "usage"))
    query = writer.trigger(availableNow=True).start(str(root / "admitted"))
    query.awaitTermination()
    usage = [row for row in DeltaTable(root / "usage").to_pyarrow_table().to_pylist() if row["level"] == "job"]

    refused = []
    for namespace, stream in (("uuid()", events), ("string(now())", events), ("u", events.selectExpr("uuid() u"))):
        try:
            Throttle(POLICIES, namespace=namespace, size="1").apply(stream, control_path=str(root / "unused"))
        except ConfigurationError as error:
            refused.append(str(error).partition(",")[0])

    kept = str(root / "kept")

    def keep(admitted: DataFrame, batch: int) -> None:
        admitted.write.mode("overwrite").parquet(f"{kept}/batch={batch}")

    called = throttle.write_stream(events).foreachBatch(keep).option("checkpointLocation", str(root / "second"))
    called.trigger(availableNow=True).start().awaitTermination()

    referred = Throttle(POLICIES, namespace="ns", size="id", order_by=["id"])
    again = referred.read_stream(spark).schema(rows.schema).parquet(str(root / "events")).select("id", "ns")
    writer = referred.write_stream(again).format("json")
    writer = writer.option("checkpointLocation", str(root / "third")).trigger(availableNow=True)
    writer.rejected("delta", path=str(root / "referred-rejected")).start(str(root / "referred")).awaitTermination()

    # Rows that wait in the first run leave in the second one.
    spark.sql("CREATE TABLE policies (section STRING, name STRING, body STRING) USING delta")
    entries = [(section, name, json.dumps(body)) for section in POLICIES for name, body in POLICIES[section].items()]
    spark.createDataFrame(entries, "section string, name string, body string").write.insertInto("policies")
    for _ in range(2):
        writer = Throttle("table:policies", namespace="ns", order_by=["id"]).write_stream(events).format("delta")
        writer = writer.option("checkpointLocation", str(root / "fourth"))
        writer = writer.rejected("delta", path=str(root / "staged-rejected")).trigger(availableNow=True)
        writer.start(str(root / "staged")).awaitTermination()
        spark.sql("DELETE FROM policies WHERE name <> 'bad'")

    PolicyService(DeltaStore.create(str(root / "policies")), clock_ms=lambda: 0).apply(
        parse_document(POLICIES), Author("ann")
    )

    def ids(table: str) -> list[int]:
        return sorted(DeltaTable(root / table).to_pyarrow_table().column("id").to_pylist())

    return {
        "session": type(spark).__module__,
        "admitted": ids("admitted"),
        "rejected": ids("rejected"),
        "referred": [
            sorted(pads.dataset(root / "referred", format="json").to_table().column("id").to_pylist()),
            ids("referred-rejected"),
        ],
        "ways": [way_of(str(root / each / "throttle")) for each in ("checkpoint", "third")],
        "staged": [ids("staged"), ids("staged-rejected")],
        "queued": [row["id"] for row in read_queued(spark, str(root / "checkpoint")).orderBy("id").collect()],
        "kept": sorted(pads.dataset(kept, partitioning="hive").to_table(columns=["id"]).column("id").to_pylist()),
        "usage": [sum(row[f"{verdict}_messages"] for row in usage) for verdict in ("admitted", "rejected")],
        "refused": refused,
        "status": throttle.status(query).batch_id == max(row["batch_id"] for row in usage),
        "offered": sum(each["numInputRows"] for each in published if each["id"] == str(query.id)),
        "spans": sum(
            each["spark_throttle.admitted_messages"]
            for each in (json.loads(span.to_json())["attributes"] for span in spans.get_finished_spans())
            if each["spark.id"] == str(query.id)
        ),
        "progress": throttle.progress(query),
        "client": told_by_client(root),
    }


def told_by_client(root: Path) -> dict[str, Any]:
    """Run a client in a process that sees an empty directory in place of `root`, and return what it says."""
    remote = os.environ["SPARK_REMOTE"]
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    covered = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(root)]
    program = [sys.executable, "-m", "tests.integration.connect_client", str(root), remote]
    done = subprocess.run([*own, *covered, *program], stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    place = sys.argv[1]
    session = SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()
    told: dict[str, Any]
    try:
        match sys.argv[2:]:
            case ["types"]:
                told = every_type.run_all(session, place)
            case ["wide"]:
                told = wide_rows.run_all(session, place)
            case _:
                told = run(session, Path(place))
    except BaseException:  # noqa: BLE001 - the process ends, and says why
        traceback.print_exc()
        os._exit(1)  # the listener's thread would wait for the server
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    os._exit(0)
