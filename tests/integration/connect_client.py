"""A client of a Spark Connect server whose disk it does not see, run by connect_query.py: what the notebooks do.

Run as ``python -m tests.integration.connect_client DIRECTORY REMOTE``. The directory is the server's; here, an empty
one lies over it. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_throttle.errors import ThrottleError
from spark_throttle.spark import Throttle, drain
from spark_throttle.spark.state_reader import read_queued
from spark_throttle.store import open_store

SCHEMA = "id long, ns string, at timestamp"


def run(root: Path, remote: str) -> dict[str, Any]:
    """Run queries on the server, and return what this process learns of them."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    seen_at_first = sorted(path.name for path in root.iterdir())
    events = spark.readStream.schema(SCHEMA).parquet(str(root / "events"))
    checkpoint = str(root / "unseen" / "checkpoint")
    store = f"delta:{root}/policies"
    throttle = Throttle(store, namespace="ns", order_by=["id"])
    published: list[dict[str, Any]] = []
    spark.streams.addListener(throttle.listener(published.append))

    def start(stream: DataFrame, **changed: Any) -> Any:
        given = {"policies": store, "namespace": "ns", "order_by": ["id"], **changed}
        by = throttle if not changed else Throttle(**given)
        writer = by.write_stream(stream).format("delta").option("checkpointLocation", checkpoint)
        writer = writer.rejected("delta", path=str(root / "unseen" / "rejected")).usage(str(root / "unseen" / "usage"))
        return writer.trigger(availableNow=True).start(str(root / "unseen" / "admitted"))

    def table(name: str) -> DataFrame:
        return spark.read.format("delta").load(str(root / "unseen" / name))

    query = start(events)
    query.awaitTermination()
    status = throttle.status(query)
    why = throttle.explain(query, "shut/n")
    usage = table("usage").where("level = 'job'").collect()
    return {
        "seen_at_first": seen_at_first,
        "admitted": sorted(row["id"] for row in table("admitted").collect()),
        "rejected": sorted(row["id"] for row in table("rejected").collect()),
        "reasons": sorted({row["reason"] for row in table("rejected").select("throttle.reason").collect()}),
        "queued": sorted(row["id"] for row in read_queued(spark, checkpoint).collect()),
        "usage": [sum(row[f"{verdict}_messages"] for row in usage) for verdict in ("admitted", "rejected")],
        "status": [status.store_revision, status.of_level("tenant")["shut"].waiting_messages],
        "explained": [why.rule, why.last_batch is not None and why.last_batch.waiting[0], list(why.notes)],
        "progress": (throttle.progress(query) or {})["throttle"]["waiting_messages"],
        "published": sum(each["numInputRows"] for each in published),
        "refused": {
            "explain": problem_of(lambda: throttle.explain(query, "")),
            "columns": problem_of(lambda: start(events.drop("at"), policies={}).awaitTermination()),
            "drain": problem_of(lambda: drain(spark, checkpoint, str(root / "waiting"))),
            "store": problem_of(lambda: open_store(store)),
        },
        "seen_at_last": sorted(path.name for path in root.iterdir()),
    }


def problem_of(attempt: Callable[[], object]) -> str:
    """Return what an attempt ends with; nothing if it ends well."""
    try:
        attempt()
    except ThrottleError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - Spark's, of a query that has started
        return f"in the query: {error}".partition("JVM stacktrace")[0]
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), sys.argv[2])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the listener's thread would wait for the server
