"""Makes what the JVMs of tests start with: local files of their own, and an archive of classes (`tests.sessions`).

For the archive, runs a throttled query into each kind of Delta table, and leaves all classes that the JVM has
loaded by then.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from spark_throttle.spark import Throttle
from tests.sessions import CLASS_ARCHIVE, LOCAL_FILES, SHORT_LIVED, files_without_processes, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLICIES: Final = {"tenants": {"bad": {"publish": {"messages_per_second": 0, "on_excess": "reject"}}}}
_LONGEST_SECONDS: Final = 300
_SOURCE: Final = Path(__file__).with_name("LocalFiles.java")
_COMPILER: Final = ("java", "-m", "jdk.compiler/com.sun.tools.javac.Main")


def make_local_files(folder: Path) -> None:
    """Compile the local files of tests, if this Java has a compiler."""
    LOCAL_FILES.unlink(missing_ok=True)
    modules = subprocess.run(["java", "--list-modules"], check=True, capture_output=True, text=True).stdout
    if "jdk.compiler" not in modules:
        return
    classes = folder / "classes"
    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    subprocess.run([*_COMPILER, "-d", classes, "-cp", hadoop, "--release", "17", _SOURCE], check=True)
    made = folder / LOCAL_FILES.name
    with zipfile.ZipFile(made, "w") as jar:
        for path in sorted(classes.rglob("*.class")):
            jar.write(path, path.relative_to(classes))
    LOCAL_FILES.write_bytes(made.read_bytes())


def run_queries(spark: SparkSession, root: Path) -> None:
    """Run what most tests run."""
    rows = spark.range(100).selectExpr("id", "if(id % 4 = 0, 'bad/n', 'good/n') ns", "id size")
    rows.coalesce(1).write.parquet(str(root / "events"))
    for kind, partition in (("whole", []), ("partitioned", ["ns"])):
        events = spark.readStream.schema(rows.schema).parquet(str(root / "events"))
        throttle = Throttle(_POLICIES, namespace="ns", size="size", order_by=["id"])
        stream = throttle.write_stream(events).format("delta").partitionBy(*partition)
        stream = stream.option("checkpointLocation", str(root / kind)).usage(str(root / f"{kind}-usage"))
        query = stream.trigger(availableNow=True).start(str(root / f"{kind}-admitted"))
        query.awaitTermination()
        spark.read.format("delta").load(str(root / f"{kind}-admitted")).groupBy("ns").count().collect()


def archiving_to(archive: Path) -> str:
    """Return the options of a JVM that leaves the classes that it has loaded in an archive when it ends."""
    return f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off"


def end_session(spark: SparkSession) -> None:
    """Stop a session, and wait until its JVM has ended, and with that has written its archive."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its standard input
    gateway.proc.wait(_LONGEST_SECONDS)


def main() -> int:
    """Make both anew."""
    CLASS_ARCHIVE.unlink(missing_ok=True)
    CLASS_ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_local_files(Path(folder))
        made = Path(folder) / CLASS_ARCHIVE.name
        spark = open_session(Path(folder), jvm_options=archiving_to(made), settings=files_without_processes())
        run_queries(spark, Path(folder))
        end_session(spark)
        CLASS_ARCHIVE.write_bytes(made.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
