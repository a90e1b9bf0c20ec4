"""The topics of the crash program's job, if its source is Kafka: of a real broker, which outlives every kill.

The rows of each file that is offered become records, once. A record has the namespace for its key, so that a partition
has all of a namespace's rows in their order; its value is JSON, with the other texts in base64, for they may be no
UTF-8. At the end the records are read back from the broker: they are what was offered. If the sink is Kafka too, rows
that leave become such records of a second topic, and what it has is what was admitted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.crash.workload import ROWS_A_FILE, add_files, texts
from tests.kafka.broker import STOP_SECONDS, Broker, Record
from tests.sessions import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA: Final = "kafka"
TOPIC: Final = "offered"
ADMITTED: Final = "admitted"
"""The topic of a job that writes to Kafka."""

PARTITIONS: Final = 3
BROKER: Final = "broker.port"
"""The file of a run's directory that tells where the broker listens."""

RECORDS: Final = "topic.parquet"
"""The file that has all records of the topic, as rows, with partition and offset."""

ADMITTED_RECORDS: Final = "admitted.parquet"
"""The same of the topic that the job writes."""

_FIELDS: Final = "id long, size long, note string, part string"


class Topic:
    """The broker in a process of its own, and what was offered to it.

    Parameters
    ----------
    is_sink
        Whether the job writes to a topic too.
    """

    def __init__(self, root: Path, *, is_sink: bool = False) -> None:
        self._root = root
        self._is_sink = is_sink
        data = root / "broker"
        data.mkdir()
        # It ends when its input does, so it does not outlive this process, however this one ends.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.broker", str(data)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert self._process.stdout is not None
            address = self._process.stdout.readline().decode().strip()
            assert address, f"the broker did not start: see standard error and {data / 'broker.log'}"
            self._broker = Broker(int(address.rpartition(":")[2]))
            for topic in (TOPIC, ADMITTED) if is_sink else (TOPIC,):
                self._broker.create_topic(topic, partitions=PARTITIONS)
        except BaseException:
            self.stop()
            raise
        self._files = 0
        (root / BROKER).write_text(str(self._broker.port))

    def add_files(self, upto: int) -> None:
        """Offer files until there are `upto`, and the records of those that are new."""
        add_files(self._root, upto)
        for number in range(self._files, upto):
            table = pq.read_table(self._root / "source" / f"{number:05}.parquet")
            for partition, records in enumerate(records_of(table)):
                self._broker.append(TOPIC, partition, records)
            self._files += 1

    def keep(self) -> None:
        """Write what the broker has."""
        pq.write_table(whole(self._rows(TOPIC), self._files), self._root / RECORDS)
        if self._is_sink:
            pq.write_table(self._rows(ADMITTED), self._root / ADMITTED_RECORDS)

    def _rows(self, topic: str) -> pa.Table:
        return rows_of(list(self._broker.records(topic, partition)) for partition in range(PARTITIONS))

    def stop(self) -> None:
        """Stop the broker."""
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()
            try:
                self._process.wait(2 * STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()


def read_topic(spark: SparkSession, root: Path) -> DataFrame:
    """Return the stream of rows, of which a batch has as many at most as a file has."""
    broker = Broker(int((root / BROKER).read_text()))
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_A_FILE)
        .load()
        .selectExpr("CAST(key AS STRING) AS namespace", f"from_json(CAST(value AS STRING), '{_FIELDS}') AS row")
        .selectExpr(
            "row.id",
            "namespace",
            "row.size",
            "CAST(unbase64(row.note) AS STRING) AS note",
            "CAST(unbase64(row.part) AS STRING) AS part",
        )
    )


def write_topic(writer: Any, root: Path) -> Any:
    """Return the writer with the topic of admitted rows for its sink."""
    broker = Broker(int((root / BROKER).read_text()))
    return writer.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", ADMITTED)


def with_records(events: DataFrame) -> DataFrame:
    """Return rows with the key and the value of the record that each becomes."""
    value = (
        "to_json(struct(id, size, base64(CAST(note AS BINARY)) AS note, base64(CAST(part AS BINARY)) AS part),"
        " map('ignoreNullFields', 'false'))"
    )
    return events.selectExpr("*", "CAST(namespace AS BINARY) AS key", f"{value} AS value")


def records_of(table: pa.Table) -> list[list[Record]]:
    """Return the records of rows by partition, in the order of the rows."""
    found: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    names, notes, parts = (_in_bytes(table.column(name)) for name in ("namespace", "note", "part"))
    ids, sizes = (table.column(name).to_pylist() for name in ("id", "size"))
    for id_, name, size, note, part in zip(ids, names, sizes, notes, parts, strict=True):
        value = {"id": id_, "size": size, "note": b64encode(note).decode(), "part": b64encode(part).decode()}
        found[zlib.crc32(name or b"") % PARTITIONS].append(Record(name, json.dumps(value).encode()))
    return found


def rows_of(records: Iterable[list[Record]]) -> pa.Table:
    """Return the rows that records of the partitions stand for, with partition and offset."""
    found: list[dict[str, Any]] = []
    for partition, of_partition in enumerate(records):
        for offset, record in enumerate(of_partition):
            row = json.loads(record.value or b"")
            row |= {"namespace": record.key, "note": b64decode(row["note"]), "part": b64decode(row["part"])}
            found.append(row | {"partition": partition, "offset": offset})
    whole = {name: pa.array([row[name] for row in found], pa.int64()) for name in ("id", "size", "partition", "offset")}
    return pa.table(whole | {name: texts([row[name] for row in found]) for name in ("namespace", "note", "part")})


def whole(kept: pa.Table, files: int) -> pa.Table:
    """Return the rows that the topic kept: those of the files, each once, or the account would rest on less."""
    ids, offered = kept["id"].to_pylist(), files * ROWS_A_FILE
    assert sorted(ids) == list(range(offered)), (
        f"the topic holds {len(ids)} records of {len(set(ids))} rows, and {offered} were offered: "
        "the broker lost or doubled some, and no account can be taken"
    )
    return kept


def _in_bytes(column: pa.ChunkedArray) -> list[Any]:
    return [value for chunk in column.chunks for value in chunk.view(pa.binary()).to_pylist()]
