"""The file outlet: writes the rows that leave to files where they are decided, so they skip Spark.

With the native writer, the operator has the rows as Arrow tables, from which pyarrow writes Parquet. Only a description
of the files travels to the sink, for the driver. The rows return neither to the JVM nor, from there, to a second Python
worker. A task that runs again writes other files, and only the files that its last attempt names are committed, as with
files that the sink writes.

If there are too few rows for a file, they travel as frames, and the sink writes the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from spark_throttle.spark.delta.table_files import TableFileWriter, WrittenFile
from spark_throttle.spark.rows.frames import FrameKind, aligned
from spark_throttle.spark.sinks.destination import SinkPlan, file_writer

OWN_FILE_BYTES: Final = 4 << 20
"""Least bytes of rows for which the operator writes a file of its own."""


@dataclass(frozen=True, slots=True)
class FileOutlet:
    """A writer of rows on the executor that decided them."""

    plan: SinkPlan
    own_file_bytes: int = OWN_FILE_BYTES

    def __call__(self, kind: FrameKind, tables: list[pa.Table]) -> bytes | None:
        """Write admitted or rejected rows, and return a frame that names the files; `None` if the rows are too few.

        Raises
        ------
        ConfigurationError
            If rows were queued with columns that the stream no longer has, or has with other types.
        """
        if sum(table.nbytes for table in tables) < self.own_file_bytes:
            return None
        writer = self.file_writer(kind)
        for table in tables:
            for rows in table.to_batches():
                writer.add(aligned(rows, writer.schema))
        return pack_files(kind, writer.finish())

    def file_writer(self, kind: FrameKind) -> TableFileWriter:
        """Return the file writer for rows of a kind."""
        return file_writer(self.plan.admitted if kind == FrameKind.ADMITTED else self.plan.rejected)


def pack_files(kind: FrameKind, files: list[WrittenFile]) -> bytes:
    """Return a frame of the kind `FrameKind.FILES` that names files and the kind of rows that they hold."""
    return json.dumps({"rows": kind.name, "files": [asdict(file) for file in files]}).encode()


def unpack_files(frame: bytes) -> tuple[FrameKind, list[WrittenFile]]:
    """Return the kind of rows and the files that `pack_files` packed.

    Examples
    --------
    >>> file = WrittenFile("day=mon/part-0.parquet", 99, (("day", "mon"),), "{}")
    >>> unpack_files(pack_files(FrameKind.ADMITTED, [file])) == (FrameKind.ADMITTED, [file])
    True
    """
    fields = json.loads(frame)
    return FrameKind[fields["rows"]], [_file(**file) for file in fields["files"]]


def _file(path: str, size_bytes: int, partition_values: list[tuple[str, str | None]], stats: str) -> WrittenFile:
    return WrittenFile(path, size_bytes, tuple((column, value) for column, value in partition_values), stats)
