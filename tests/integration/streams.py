"""A small lake for one test: files in, a throttled query over them, tables out.

Events are offered as whole Parquet files, one a batch, so that a test says which rows come together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_throttle.spark import Throttle, ThrottledStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Event = tuple[int, str | None, int | None]

SCHEMA = "id long, ns string, size long"
_FILE_SCHEMA = pa.schema([("id", pa.int64()), ("ns", pa.string()), ("size", pa.int64())])
_FIRST_FILE_SECONDS = 1_700_000_000
_LONGEST_SECONDS = 120


@dataclass
class Lake:
    """Directories of one test."""

    spark: SparkSession
    root: Path
    kept: dict[int, list[Event]] = field(default_factory=dict)
    _offered: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    def path(self, name: str) -> str:
        return str(self.root / name)

    @property
    def checkpoint(self) -> str:
        return self.path("checkpoint")

    @property
    def control(self) -> Path:
        return self.root / "checkpoint" / "throttle"

    def offer(self, events: Iterable[Event]) -> None:
        """Add a file of events, which one batch will take whole."""
        columns = zip(*events, strict=True)
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, _FILE_SCHEMA, strict=True)], schema=_FILE_SCHEMA)
        number, folder = next(self._offered), self.root / "events"
        folder.mkdir(exist_ok=True)
        written = self.root / f"{number}.tmp"
        pq.write_table(table, written)
        # The file source takes files in the order of their times, whose clock is coarse.
        os.utime(written, (_FIRST_FILE_SECONDS + number,) * 2)
        written.rename(folder / f"{number:06d}.parquet")

    def events(self) -> DataFrame:
        """Return the stream of the offered events, a file a batch."""
        (self.root / "events").mkdir(exist_ok=True)
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(self.path("events"))

    def throttle(self, policies: Any, **settings: Any) -> Throttle:
        """Return a throttle for `events`."""
        return Throttle(policies, **{"namespace": "ns", "size": "size", "order_by": ["id"], **settings})

    def writer(self, throttle: Throttle) -> ThrottledStreamWriter:
        """Return a writer of the events that ends when all is drained."""
        writer = throttle.write_stream(self.events()).option("checkpointLocation", self.checkpoint)
        return writer.trigger(availableNow=True)

    def run(self, policies: Any, *, has_usage: bool = False, **settings: Any) -> StreamingQuery:
        """Run a query until it ends by itself, into `admitted`, `rejected` and, if asked, the table `usage`.

        Rows are kept by the number of their batch, so that a batch that is run again is kept once.
        """
        writer = self.writer(self.throttle(policies, **settings)).foreachBatch(self.keep)
        return finish((writer.usage(self.path("usage")) if has_usage else writer).start())

    def keep(self, rows: DataFrame, batch: int) -> None:
        """Take a batch: the function that a query is given."""
        self.kept[batch] = [tuple(row) for row in rows.collect()]

    @property
    def admitted(self) -> list[Event]:
        """What was kept, in the order in which it left."""
        return [row for _, rows in sorted(self.kept.items()) for row in rows]

    @property
    def rejected(self) -> list[dict[str, Any]]:
        """The dead letters, with their batch."""
        folder = self.control / "rejected"
        if not folder.exists():
            return []
        return pads.dataset(folder, partitioning="hive").to_table().to_pylist()

    @property
    def admitted_ids(self) -> list[int]:
        return sorted(row[0] for row in self.admitted)

    @property
    def rejected_ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rejected)

    @property
    def reasons(self) -> set[str]:
        """Why rows were rejected."""
        return {row["throttle"]["reason"] for row in self.rejected}

    def usage(self, level: str, scope: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of the usage table of a level, by batch."""
        rows = DeltaTable(self.path("usage")).to_pyarrow_table().sort_by("batch_id").to_pylist()
        return [row for row in rows if row["level"] == level and scope in (None, row["scope"])]

    def crash_in(self, batch: int) -> None:
        """Leave the checkpoint as a crash does when a batch has reached its sinks and not Spark's commit log."""
        for log, first_gone in (("commits", batch), ("offsets", batch + 1)):
            for path in (self.root / "checkpoint" / log).iterdir():
                if int(path.name.strip(".cr")) >= first_gone:
                    path.unlink()
        for path in (self.control / "batches").iterdir():
            if int(path.name.partition(".")[0]) > batch:
                path.unlink()

    def last_batch(self) -> int:
        """Return the number of the last batch that was planned."""
        return max(int(path.name) for path in (self.root / "checkpoint" / "offsets").iterdir() if path.name.isdigit())


def finish(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query has ended by itself."""
    try:
        assert query.awaitTermination(_LONGEST_SECONDS), f"still running after {_LONGEST_SECONDS} s: {query.status}"
    finally:
        query.stop()
    return query


def policies(**sections: Any) -> dict[str, Any]:
    """Return a policy document."""
    return sections


def publish(**quota: Any) -> dict[str, Any]:
    """Return the policy of a scope that limits what is published."""
    return {"publish": quota}
