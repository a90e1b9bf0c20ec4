"""Frames of rows on their way to the decider, and the helper columns that the JVM need not send with them.

For the JVM, sending a value costs far more than computing it from Arrow columns. So helper columns that follow from the
user's columns are not sent: a copy of a user's column, and a size that is the length of one. `HelperColumns` lists them
and travels in the frames for the operator to read.

Lengths equal Spark's, except for text that is not valid UTF-8: there Arrow counts the bytes that begin a character,
while Spark skips as many bytes as the first byte announces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.spark.rows.frames import SIZE, FrameKind, decode, frame_batch, ipc_stream, pieces
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

_GATHERED_BYTES = 16 << 20
_GATHERED_ROWS = 1 << 17
_DERIVED = b"throttle.derived"


@dataclass(frozen=True, slots=True)
class HelperColumns:
    """The helper columns that are not sent, and how to restore them."""

    same: Mapping[str, str] = field(default_factory=dict)
    """Names of the user's columns that helper columns copy, by the helper's name."""

    characters_of: str | None = None
    """Column whose length is the size: in characters, or in bytes for a binary column."""

    bytes_of: str | None = None
    """Column whose length in bytes is the size."""

    @property
    def helpers(self) -> frozenset[str]:
        """Names of the helper columns that are not sent."""
        is_measured = self.characters_of is not None or self.bytes_of is not None
        return frozenset(self.same) | ({SIZE} if is_measured else set())

    def mark(self, table: pa.Table) -> pa.Table:
        """Return rows whose metadata names the helper columns that are not sent."""
        fields = {"same": dict(self.same), "characters_of": self.characters_of, "bytes_of": self.bytes_of}
        return table.replace_schema_metadata({_DERIVED: json.dumps(fields)} if self.helpers else None)

    @classmethod
    def of(cls, table: pa.Table) -> HelperColumns:
        """Return the helper columns that the metadata of rows names."""
        return cls(**json.loads((table.schema.metadata or {}).get(_DERIVED, b"{}")))

    def restore(self, table: pa.Table) -> pa.Table:
        """Return rows with all helper columns."""
        for helper, name in self.same.items():
            table = table.append_column(helper, table.column(name))
        if self.characters_of is not None:
            table = table.append_column(SIZE, _length(table.column(self.characters_of), in_bytes=False))
        if self.bytes_of is not None:
            table = table.append_column(SIZE, _length(table.column(self.bytes_of), in_bytes=True))
        return table


def _length(column: pa.ChunkedArray, *, in_bytes: bool) -> pa.ChunkedArray:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    found = pc.utf8_length(column) if is_text and not in_bytes else pc.binary_length(column)
    return found.cast(pa.int64())


def arrivals_of(frame: bytes) -> pa.Table:
    """Return the rows of a frame from `FramePacker`, with all helper columns restored."""
    table = decode(frame)
    return HelperColumns.of(table).restore(table)


@dataclass(frozen=True, slots=True)
class FramePacker:
    """A function from rows to frames; `mapInArrow` runs it on the executors, once per task.

    It guarantees neither an order nor a number of frames: the operator sorts.
    """

    derived: HelperColumns = field(default_factory=HelperColumns)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the frames of `batches`."""
        set_loaded_aside()
        gathered: list[pa.RecordBatch] = []
        gathered_bytes = gathered_rows = 0
        for batch in batches:
            gathered.append(batch)
            gathered_bytes += batch.nbytes
            gathered_rows += batch.num_rows
            if gathered_bytes >= _GATHERED_BYTES or gathered_rows >= _GATHERED_ROWS:
                yield from self._frames(gathered)
                gathered, gathered_bytes, gathered_rows = [], 0, 0
        yield from self._frames(gathered)

    def _frames(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = [batch for batch in batches if batch.num_rows]
        if not batches:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        for piece in pieces(self.derived.mark(table)):
            yield frame_batch(FrameKind.ROWS, ipc_stream(piece))
