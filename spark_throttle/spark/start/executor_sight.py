"""Whether executors see the local disk that a query keeps its files on.

The native writer and `Throttle.apply` write from the executors. Where those are other machines, a path of the local
disk is another place on each: rows would be committed whose files, or dead letters, lie where nobody looks. Stores with
a name of their own are the same for all, or fail aloud.
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
    """Runs on executors: says which of some paths are not there."""

    paths: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            missing = [path for path in self.paths if not Path(path).exists()]
            yield pa.record_batch({"host": [platform.node()] * len(missing), "path": pa.array(missing, pa.string())})


def check_executors_see(spark: SparkSession, control_path: str, tables: Sequence[str] = ()) -> None:
    """Refuse a control directory, or tables, on a local disk that executors do not share.

    It is one small job, with as many tasks as a batch has, and none where the session lives on one machine.

    Raises
    ------
    ConfigurationError
        If an executor does not find what is there.
    """
    master = str(spark.conf.get("spark.master", "") or "")
    if is_remote() or (master.startswith(_ONE_MACHINE) and not master.startswith("local-cluster")):
        return
    missing = look(spark, control_path, tables)
    if missing:
        host, path = missing[0]
        raise ConfigurationError(
            f"the executors on {host} do not see {path}, which is on the driver's disk: they write there too; put "
            f"the checkpoint and the tables on storage that all machines reach under one name"
        )


def look(spark: SparkSession, control_path: str, tables: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what executors do not see: the host and the path."""
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
