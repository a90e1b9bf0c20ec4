"""Rows as frames: how payloads pass through Python unharmed.

pandas damages rows (nullable integers become floats, far timestamps fail, structs become dicts), and the
operator speaks pandas. So rows travel as Arrow IPC in a binary column, at most about `FRAME_BYTES` a frame, for larger
ones become humongous objects for the JVM's collector; only a row that is larger by itself makes a larger frame.
`PackFrames` and `UnpackFrames` are what `mapInArrow` runs before and behind the operator.

A stream of frames has the schema `FRAME_SCHEMA`: the shard's key, the kind of the frame, and its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Int64s
from spark_throttle.core.segments import Segments
from spark_throttle.errors import ConfigurationError

FRAME_BYTES = 1 << 20
_GATHERED_BYTES = 16 << 20
_GATHERED_ROWS = 1 << 17

SHARD, NAMESPACE, SIZE, TIE = "__throttle_shard", "__throttle_namespace", "__throttle_size", "__throttle_tie"
ORDER_PREFIX = "__throttle_order_"
_HELPER_PREFIX = "__throttle_"

FRAME_SCHEMA = pa.schema([("shard", pa.int32()), ("kind", pa.int32()), ("frame", pa.binary())])
OUTPUT_SCHEMA = "kind int, frame binary"
"""Of what the operator returns, in Spark's words."""


class FrameKind(IntEnum):
    """What a frame holds."""

    GRANT = 0
    """Into the operator: a control row (`core.codec.ShardGrant`)."""

    ROWS = 1
    """Into the operator: rows of the user with the helper columns."""

    ADMITTED = 2
    """Out of the operator: rows of the user."""

    REJECTED = 3
    """Out of the operator: rows of the user with the ``throttle`` column."""

    USAGE = 4
    """Out of the operator: a packed usage report."""

    FILES = 5
    """Out of the operator: names of files that hold rows (`file_outlet`)."""


def encode(table: pa.Table) -> list[bytes]:
    """Return a table as frames of at most about `FRAME_BYTES`; none for no rows."""
    if not table.num_rows:
        return []
    if table.num_rows == 1 or table.nbytes <= FRAME_BYTES:
        return [encode_whole(table)]
    rows = -(-table.num_rows // min(table.num_rows, -(-table.nbytes // FRAME_BYTES)))
    pieces = (table.slice(start, rows) for start in range(0, table.num_rows, rows))
    # Rows differ in size, so that a piece may still be too large.
    return [frame for piece in pieces for frame in encode(piece)]


def encode_whole(table: pa.Table) -> bytes:
    """Return a table as one frame, however large."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode(frame: bytes) -> pa.Table:
    """Return the rows of a frame, without copying them."""
    return pa.ipc.open_stream(pa.py_buffer(frame)).read_all()


def payload(table: pa.Table) -> pa.Table:
    """Return the user's columns."""
    return table.select([name for name in table.column_names if not name.startswith(_HELPER_PREFIX)])


@dataclass(frozen=True, slots=True)
class PackFrames:
    """Rows to frames, one or more a shard; runs in `mapInArrow` on the executors, once a task.

    What is promised is the rows of every shard, not their order nor how many frames they make: the operator
    sorts.
    """

    shard_keys: tuple[int, ...]
    """Grouping key of every shard (`partitioning.shard_keys`)."""

    names: tuple[str, ...] | None = None
    """Of the columns, in order; by default, as they come. PySpark's `mapInArrow` takes no name with a backtick."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the frames of `batches`."""
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
        if self.names is not None:
            table = table.rename_columns(list(self.names))
        shard = table.column(SHARD).to_numpy().astype(np.int64)
        layout = Segments.by_key(shard, len(self.shard_keys))
        table = table.drop_columns([SHARD]).take(pa.array(layout.order))
        for at in np.flatnonzero(layout.counts):
            frames = encode(table.slice(layout.starts[at], layout.counts[at]))
            yield frame_batch(self.shard_keys[at], FrameKind.ROWS, frames)


def frame_batch(shard_key: int, kind: FrameKind, frames: list[bytes]) -> pa.RecordBatch:
    """Return frames of one shard as rows of `FRAME_SCHEMA`."""
    keys = pa.array([shard_key] * len(frames), pa.int32())
    kinds = pa.array([int(kind)] * len(frames), pa.int32())
    return pa.RecordBatch.from_arrays([keys, kinds, pa.array(frames, pa.binary())], schema=FRAME_SCHEMA)


@dataclass(frozen=True, slots=True)
class UnpackFrames:
    """Frames to rows; runs in `mapInArrow` on the executors, once a task."""

    schema: pa.Schema
    """Of the rows, as Spark expects them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all frames."""
        for batch in batches:
            for frame in batch.column("frame"):
                yield from self.rows(frame.as_buffer())

    def rows(self, frame: pa.Buffer | bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one frame."""
        for rows in pa.ipc.open_stream(frame):
            yield aligned(rows, self.schema)


def aligned(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in the columns of `schema`; if they were queued under another one, new columns are null.

    Raises
    ------
    ConfigurationError
        If a column was removed or changed its type: its values would be lost.
    """
    if rows.schema.equals(schema):
        return rows
    removed = [name for name in rows.schema.names if name not in schema.names]
    if removed:
        raise ConfigurationError(
            f"rows that wait in the queue have the columns {removed}, which the stream no longer has: keep them until "
            f"the queue has drained, or select them away behind the throttle"
        )
    columns = []
    for field in schema:
        found = rows.schema.get_field_index(field.name)
        column = pa.nulls(rows.num_rows, field.type) if found < 0 else rows.column(found)
        columns.append(column if column.type.equals(field.type) else _cast(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        found = column.cast(field.type)
        back = found.cast(column.type)
    except (pa.ArrowException, NotImplementedError) as error:
        raise _changed(column, field, str(error)) from error
    # A cast drops a field of a struct, or the time of a date, without a word; NaN is equal only as text.
    if not back.equals(column) and repr(back.to_pylist()) != repr(column.to_pylist()):
        raise _changed(column, field, "some values would change")
    return found


def _changed(column: pa.Array, field: pa.Field, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {field.name!r} of rows that wait in the queue is {column.type} and the stream now has "
        f"{field.type}: keep the old type until the queue has drained ({problem})"
    )


def in_order(table: pa.Table) -> Int64s:
    """Return the order in which the rows of a shard are decided: by the order columns, then by the row's hash.

    The shuffle delivers rows in another order at every attempt; this order is a function of the rows as a set.
    """
    keys = [name for name in table.column_names if name.startswith(ORDER_PREFIX)]
    if not keys:
        return np.argsort(table.column(TIE).to_numpy(), kind="stable")
    found = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in [*keys, TIE]])
    return found.to_numpy().astype(np.int64)
