"""A query over Parquet files into Delta tables, in a job that a test kills (`tests.recovery.killed_job`).

All that it reads and writes is in one directory: ``source/``, ``policies.yaml``, ``checkpoint/``, ``admitted/``,
``rejected/``, ``usage/``. It ends when everything has been admitted or rejected, so to run it again after a kill is to
finish it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from spark_throttle.spark import Throttle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = pa.schema([("id", pa.int64()), ("namespace", pa.string()), ("size", pa.int64()), ("note", pa.string())])
MTIME = 1_700_000_000
"""Of the first file: the file source reads in the order of modification times."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run keeps what."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def policies(self) -> Path:
        return self.root / "policies.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def admitted(self) -> Path:
        return self.root / "admitted"

    @property
    def rejected(self) -> Path:
        return self.root / "rejected"

    @property
    def usage(self) -> Path:
        return self.root / "usage"

    @property
    def journal(self) -> Path:
        """A line for every attempt at a batch: its number and a digest of what was decided."""
        return self.root / "journal"


def rows(count: int, *, with_bad_rows: bool) -> Iterator[dict[str, object]]:
    """Yield the rows: 20 namespaces of 3 tenants, unevenly, 1 to 200 bytes; one in 500 unusable if asked for."""
    for number in range(count):
        spread = number * 2_654_435_761 % 2**32
        k = (spread >> 16) * (spread >> 16) * 20 >> 32
        namespace: str | None = f"{('gold', 'silver', 'open')[k % 3]}/{k:02}"
        size = 1 + spread % 200
        if with_bad_rows and number % 500 == 77:
            namespace = None
        if with_bad_rows and number % 500 == 78:
            size = -1
        yield {"id": number, "namespace": namespace, "size": size, "note": f"row {number}"}


def write_source(place: Place, *, count: int, files: int, with_bad_rows: bool = False) -> None:
    """Write the rows in files of equal length, each a second younger than the one before."""
    place.source.mkdir(parents=True)
    table = pa.Table.from_pylist(list(rows(count, with_bad_rows=with_bad_rows)), schema=SCHEMA)
    length = -(-count // files)
    for number in range(files):
        path = place.source / f"{number:04}.parquet"
        pq.write_table(table.slice(number * length, length), path)
        os.utime(path, (MTIME + number, MTIME + number))


def start(spark: SparkSession, place: Place, table: str) -> StreamingQuery:
    """Start the query into a table: ``whole``, which takes staged files as they lie, or ``partitioned``, by Spark."""
    # The tests read the offset log of all batches.
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "10000")
    throttle = Throttle(policies=place.policies, namespace="namespace", size="size", order_by=["id"])
    events = (
        spark.readStream.schema("id long, namespace string, size long, note string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(place.source))
    )
    return (
        throttle.write_stream(events)
        .format("delta")
        .partitionBy(*(("namespace",) if table == "partitioned" else ()))
        .option("checkpointLocation", str(place.checkpoint))
        .rejected("delta", path=str(place.rejected))
        .usage(str(place.usage))
        .trigger(availableNow=True)
        .start(str(place.admitted))
    )
