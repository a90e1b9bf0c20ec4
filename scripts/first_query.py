"""A throttled query from an installed package, without this repository: `make wheel-test` runs it.

It prints where the package came from, what became of 40 rows, and what the command says that drains their checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import spark_throttle
from spark_throttle.spark import Throttle


def main() -> int:
    """Run the query, and return its exit status."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spark.range(40).selectExpr("id", "concat('acme/', id % 3) AS namespace").write.parquet(str(root / "events"))
        events = spark.readStream.schema("id long, namespace string").parquet(str(root / "events"))
        throttle = Throttle({"defaults": {"publish": {"messages_per_second": 1_000}}}, "namespace", "1")
        writer = throttle.write_stream(events).format("parquet").option("checkpointLocation", str(root / "checkpoint"))
        writer.trigger(availableNow=True).start(str(root / "admitted")).awaitTermination()
        admitted = spark.read.parquet(str(root / "admitted")).count()
        spark.stop()
        command = [str(Path(sys.executable).with_name("spark-throttle")), "drain", "--checkpoint"]
        command += [str(root / "checkpoint"), "--into", str(root / "waiting"), "--format", "parquet"]
        command += ["--conf", "spark.master=local[1]"]
        drained = subprocess.run(command, check=False).returncode
    print(f"{spark_throttle.__file__}: {admitted} of 40 rows were admitted")
    return drained or (0 if admitted == 40 else 1)


if __name__ == "__main__":
    sys.exit(main())
