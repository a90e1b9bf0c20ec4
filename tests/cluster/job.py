"""The job of the cluster bench: Parquet files through a throttle into Delta tables on an object store.

Run as ``python -m tests.cluster.job DIRECTORY --master spark://…``. Checkpoint, control directory, tables, policies and
exchange are on the store; the files that it reads, and the marks of the bench, are in `DIRECTORY`.
It ends when everything that was there at its start has been admitted or rejected.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from spark_throttle.spark import Throttle
from tests.cluster.store import BUCKET
from tests.crash import points
from tests.crash.job import SCHEMA
from tests.crash.jvm import OF_QUERIES
from tests.sessions import ROOT, SHORT_LIVED, jars, pin_interpreter, session_settings, with_class_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

LAKE: Final = f"s3a://{BUCKET}"
EXCHANGE: Final = {"path": f"{LAKE}/exchange", "interval": 1, "lease": 30}
"""Where jobs meet; a visit to a slow store takes a second, and may take a tenth of a lease."""

PARTITIONS: Final = 3
"""Of shuffles: one for each worker."""

CLASS_ARCHIVE: Final = ROOT / "build" / "cluster-classes.jsa"
"""Classes of Spark, Delta and S3A, for the driver and the executors; `tests.cluster.class_archive` makes it."""

CHECKPOINTS_ON_S3: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
"""Spark's way to write a checkpoint without a rename, which S3 has not; it is in the module `spark-hadoop-cloud`."""


def start(spark: SparkSession, root: Path, *, is_shared: bool) -> StreamingQuery:
    """Start the query."""
    throttle = Throttle(
        policies=f"{LAKE}/policies.yaml", namespace="namespace", size="size", order_by=["id"],
        exchange=EXCHANGE if is_shared else None,
    )  # fmt: skip
    return (
        throttle.write_stream(_events(spark, root))
        .format("delta")
        .option("checkpointLocation", f"{LAKE}/checkpoint")
        .rejected("delta", path=f"{LAKE}/rejected")
        .usage(f"{LAKE}/usage")
        .trigger(availableNow=True)
        .start(f"{LAKE}/admitted")
    )


def start_unthrottled(spark: SparkSession, root: Path) -> StreamingQuery:
    """Start the same query without a throttle, with a shuffle."""
    return (
        _events(spark, root)
        .repartition(PARTITIONS, "namespace")
        .writeStream.format("delta")
        .option("checkpointLocation", f"{LAKE}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{LAKE}/admitted")
    )


def _events(spark: SparkSession, root: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"file:{root}/source")


def of_cluster() -> dict[str, str]:
    """Return what any job on the cluster needs: jars that are on every machine, small executors, S3's checkpoints."""
    path = ":".join(str(jar) for use in ("delta", "s3a") for jar in jars(use))
    return {
        "spark.driver.extraClassPath": path,
        "spark.executor.extraClassPath": path,
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS_ON_S3,
    }


def open_session(root: Path, master: str, *, jvm_options: str = SHORT_LIVED) -> SparkSession:
    """Return a session of the cluster: one core and one GiB an executor."""
    scratch = root / f"spark-{os.getpid()}"
    settings = session_settings(scratch, jvm_options=jvm_options, class_archive=CLASS_ARCHIVE)
    settings |= OF_QUERIES | of_cluster()
    settings |= {
        "spark.master": master,
        "spark.driver.memory": "1g",
        "spark.executor.extraJavaOptions": with_class_archive(jvm_options, CLASS_ARCHIVE),
        "spark.task.maxFailures": "8",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        **json.loads((root / "store.json").read_text()),
    }
    pin_interpreter()
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    """Run until all is drained."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--master", required=True)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without the points, which have it write more files")
    parser.add_argument("--unthrottled", action="store_true")
    asked = parser.parse_args()
    if not asked.plain:
        points.install(asked.root, f"{LAKE}/admitted", f"{LAKE}/rejected")
    spark = open_session(asked.root, asked.master)
    query = (
        start_unthrottled(spark, asked.root) if asked.unthrottled else start(spark, asked.root, is_shared=asked.shared)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
