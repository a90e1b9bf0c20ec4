"""Whether executors see the local disk on which a query keeps its files.

The native writer and `Throttle.apply` write from the executors. If these are other machines, a path on the local disk
is a different place on each of them, so data files and dead letters of committed rows would lie where no reader looks.
A store with a name of its own is the same for all machines, or fails with an error.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.start.spark_paths import local_path

_ONE_MACHINE = "local"
_PARTITIONS_CONF = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class _Look:
    """A function for executors that returns which of the given paths they do not find."""

    paths: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            missing = [path for path in self.paths if not Path(path).exists()]
            yield pa.record_batch({"host": [platform.node()] * len(missing), "path": pa.array(missing, pa.string())})


def check_executors_see(spark: SparkSession, control_path: str, tables: Sequence[str] = ()) -> None:
    """Refuse a control directory, or tables, on a local disk that executors do not share.

    Runs one small Spark job with as many tasks as a batch has, or none if the session runs on one machine or is remote.

    Raises
    ------
    ConfigurationError
        If an executor does not find the control directory or a table.
    """
    master = str(spark.conf.get("spark.master", "") or "")
    if is_remote() or (master.startswith(_ONE_MACHINE) and not master.startswith("local-cluster")):
        return
    missing = look(spark, control_path, tables)
    if missing:
        host, path = missing[0]
        raise ConfigurationError(
            f"the executors on {host} do not see {path}, which is on the driver's disk and which they must reach: put "
            f"the checkpoint and the tables on storage that all machines reach under the same path"
        )


def look(spark: SparkSession, control_path: str, tables: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the host and the path of each file that executors do not see."""
    paths = [f"{local_path(table).rstrip('/')}/_delta_log" for table in tables]
    probe = f".probe-{uuid.uuid4().hex}"
    directory = Directory(control_path)
    directory.write(probe, b"")
    try:
        local = tuple(path for path in (local_path(f"{control_path}/{probe}"), *paths) if path.startswith("/"))
        if not local:
            return []
        tasks = int(str(spark.conf.get(_PARTITIONS_CONF, "1")))
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(_Look(local), "host string, path string").collect()
        return sorted({(row["host"], row["path"]) for row in rows})
    finally:
        directory.delete(probe)
