"""Makes the archive of classes with which the JVMs of tests start (`tests.sessions.CLASS_ARCHIVE`).

Runs a throttled query into a Delta table by each writer, and leaves all classes that the JVM has loaded by then.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_throttle.spark import Throttle
from tests.sessions import CLASS_ARCHIVE, SHORT_LIVED, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLICIES: Final = {"tenants": {"bad": {"publish": {"messages_per_second": 0, "on_excess": "reject"}}}}
_LONGEST_SECONDS: Final = 300


def run_queries(spark: SparkSession, root: Path) -> None:
    """Run what most tests run."""
    rows = spark.range(100).selectExpr("id", "if(id % 4 = 0, 'bad/n', 'good/n') ns", "id size")
    rows.coalesce(1).write.parquet(str(root / "events"))
    for writer in ("native", "spark"):
        events = spark.readStream.schema(rows.schema).parquet(str(root / "events"))
        throttle = Throttle(_POLICIES, namespace="ns", size="size", order_by=["id"], shards=2)
        stream = throttle.write_stream(events).format("delta").option("throttle.writer", writer)
        stream = stream.option("checkpointLocation", str(root / writer)).usage(str(root / f"{writer}-usage"))
        query = stream.trigger(availableNow=True).start(str(root / f"{writer}-admitted"))
        query.awaitTermination()
        spark.read.format("delta").load(str(root / f"{writer}-admitted")).groupBy("ns").count().collect()


def main() -> int:
    """Make the archive anew."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / CLASS_ARCHIVE.name
        spark = open_session(Path(folder), jvm_options=f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made} -Xlog:cds=off")
        run_queries(spark, Path(folder))
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        # The JVM ends with its standard input, and writes the archive as it ends.
        gateway.proc.stdin.close()
        gateway.proc.wait(_LONGEST_SECONDS)
        CLASS_ARCHIVE.parent.mkdir(exist_ok=True)
        CLASS_ARCHIVE.write_bytes(made.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
