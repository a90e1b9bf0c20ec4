"""Frames: blocks of bytes in which all that a decider takes and returns passes through Spark unchanged.

The operator's interface is pandas, which damages values: nullable integers become floats, and structs become dicts. So
tables travel as Arrow IPC in a binary column, at most about `FRAME_BYTES` per frame, because the JVM's collector treats
larger ones as humongous objects. Only a single row that is larger makes a larger frame. Frames are compressed: every
byte saved is a byte not copied a dozen times through sockets, the shuffle and the state store.

A stream of frames has the schema `FRAME_SCHEMA`: the decider's key, the kind of the frame, and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.rows.gathering import gathered
from spark_throttle.spark.rows.row_digests import row_digests

FRAME_BYTES = 1 << 20
_CODEC_LEVEL = 1
_ON_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""A task has one core: for a frame of a few rows, to hand its columns to other threads costs more than to read them."""

THROTTLE: Final = "throttle"
"""The column that says what was decided of a row."""

NAMESPACE, SIZE, TIE = "__throttle_namespace", "__throttle_size", "__throttle_tie"
UNITS = "__throttle_units"
"""The helper column of units; absent if the query states none."""

ORDER_PREFIX = "__throttle_order_"
IDENTITY: Final = "__throttle_reservation"
"""By what the row is reserved: `identities`."""

HELPER_PREFIX, _DIGEST = "__throttle_", "__throttle_digest"

FRAME_SCHEMA = pa.schema([("key", pa.int32()), ("kind", pa.int32()), ("frame", pa.binary())])
FRAME_DDL = "key int, kind int, frame binary"
"""`FRAME_SCHEMA` as Spark DDL."""

_DECIDER_KEY: Final = 0
"""The only key: one decider takes all frames of a batch."""

OUTPUT_SCHEMA = "kind int, frame binary"
"""Schema of the operator's output as Spark DDL."""


class FrameKind(IntEnum):
    """The content of a frame."""

    CONTROL = 0
    """Input: a control row (`core.state.ControlRow`)."""

    DIGEST = 1
    """Input: what decides of the rows of a file (`rows.digest`)."""

    INLINE = 2
    """Input and output: a staged file itself (`move.waiting_files`)."""

    ANSWER = 3
    """Output: which rows of which files leave (`move.answer`)."""

    ADMITTED = 4
    """Output: places of admitted rows, in the order in which they leave."""

    REJECTED = 5
    """Output: places of rejected rows, with the ``throttle`` column."""

    USAGE = 6
    """Output: a packed usage report."""

    COSTS = 7
    """Input: what rows that were reserved really cost (`core.reservations.LateCosts`)."""


def encode(table: pa.Table) -> list[bytes]:
    """Return a table as frames of at most about `FRAME_BYTES` before compression; no frame if there are no rows.

    The frames depend on the rows alone, not on the chunks in which the table holds them.
    """
    return [encode_whole(piece) for piece in pieces(table.combine_chunks())]


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the parts of a table, each of which makes one frame."""
    if not table.num_rows:
        return
    if table.num_rows == 1 or table.nbytes <= FRAME_BYTES:
        yield table
        return
    rows = -(-table.num_rows // min(table.num_rows, -(-table.nbytes // FRAME_BYTES)))
    for start in range(0, table.num_rows, rows):
        # Rows differ in size, so a piece may still be too large.
        yield from pieces(table.slice(start, rows))


def encode_whole(table: pa.Table) -> bytes:
    """Return a table as one frame, however large."""
    content: bytes = ipc_stream(table).to_pybytes()
    return content


def ipc_stream(table: pa.Table) -> pa.Buffer:
    """Return a table as one frame in a buffer, without the copy that `bytes` would need."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _CODEC_LEVEL), use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode(frame: bytes) -> pa.Table:
    """Return the rows of a frame, compressed or not."""
    return pa.ipc.open_stream(pa.py_buffer(frame), options=_ON_ONE_THREAD).read_all()


def payload(table: pa.Table) -> pa.Table:
    """Return the user's columns of a table, without the helper columns."""
    names = [name for name in table.column_names if not name.startswith(HELPER_PREFIX)]
    return table.select(names).replace_schema_metadata(None)


def frame_batch(kind: FrameKind, frame: pa.Buffer | bytes) -> pa.RecordBatch:
    """Return a frame as a row of `FRAME_SCHEMA`, without copying it."""
    content = pa.py_buffer(frame)
    ends = pa.py_buffer(np.array([0, content.size], dtype=np.int32))
    columns = [
        pa.array([_DECIDER_KEY], pa.int32()),
        pa.array([int(kind)], pa.int32()),
        pa.BinaryArray.from_buffers(pa.binary(), 1, [None, ends, content]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def aligned(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of `schema`; columns that were added after the rows were queued are null.

    Raises
    ------
    ConfigurationError
        If a column was removed, or changed its type so that values would be lost.
    """
    if rows.schema.equals(schema):
        return rows
    removed = [name for name in rows.schema.names if name not in schema.names]
    if removed:
        raise ConfigurationError(
            f"rows that wait in the queue have the columns {removed}, which the stream no longer has: keep the columns "
            f"until the queue has drained, and drop or rename them behind the throttle"
        )
    columns = []
    for field in schema:
        found = rows.schema.get_field_index(field.name)
        is_empty = found < 0 or pa.types.is_null(rows.schema.types[found])
        column = pa.nulls(rows.num_rows, field.type) if is_empty else rows.column(found)
        columns.append(column if column.type.equals(field.type) else _cast(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if not _are_alike(column.type, field.type):
        raise _changed(column, field, "a value of the one is none of the other")
    try:
        found = column.cast(field.type)
        back = found.cast(column.type)
    except (pa.ArrowException, NotImplementedError) as error:
        raise _changed(column, field, str(error)) from error
    # A cast drops a struct's field, or the time of day of a timestamp, silently. Digests compare NaN by its bytes.
    if not back.equals(column) and (row_digests(pa.table({"": back})) != row_digests(pa.table({"": column}))).any():
        raise _changed(column, field, "some values would change")
    return found


_ALIKE: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
    lambda kind: kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    pa.types.is_boolean,
    pa.types.is_date,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    pa.types.is_time,
    pa.types.is_duration,
)
"""Types between which a value means the same. A number is no time: Arrow would take it for a count of microseconds."""


def _are_alike(before: pa.DataType, after: pa.DataType) -> bool:
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        names = {part.name for part in after}
        return all(_are_alike(part.type, after.field(part.name).type) for part in before if part.name in names)
    if pa.types.is_map(before) and pa.types.is_map(after):
        return _are_alike(before.key_type, after.key_type) and _are_alike(before.item_type, after.item_type)
    if _is_list(before) and _is_list(after):
        return _are_alike(before.value_type, after.value_type)
    return any(is_kind(before) and is_kind(after) for is_kind in _ALIKE)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _changed(column: pa.Array, field: pa.Field, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {field.name!r} is {column.type} in rows that wait in the queue, and {field.type} in the stream: "
        f"keep the old type until the queue has drained ({problem})"
    )


def arranged(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of a batch in the order in which they are decided: by the order columns, then by their hashes.

    The shuffle delivers rows in a different order at every attempt. This order depends only on the set of rows. Rows
    that have the same hash are told apart by a digest of what travels of them (`row_digests`), their places included,
    which may be others at another attempt. As such rows are equal, their order does not matter.

    Tables whose rows follow one another are concatenated without a copy. This is the case if every task reads its rows
    in order, from a Kafka partition or from a file.

    Examples
    --------
    >>> tables = [pa.table({TIE: [7, 9]}), pa.table({TIE: [1, 5]})]
    >>> arranged(tables).column(TIE).to_pylist()
    [1, 5, 7, 9]
    """
    heads = pa.concat_tables([table.slice(0, 1) for table in tables])
    together = pa.concat_tables([tables[at] for at in in_order(heads)])
    if _is_in_order(together):
        return together
    return gathered(together.combine_chunks(), in_order(together))


def in_order(table: pa.Table) -> Int64s:
    """Return the positions of the rows in the order in which they are decided."""
    keys, tie = _order_columns(table), table.column(TIE).to_numpy()
    order = np.argsort(tie, kind="stable") if len(keys) == 1 else _sorted(table, keys)
    is_same = tie[order[1:]] == tie[order[:-1]]
    if not is_same.any():
        return order
    # Rows with the same hash are adjacent if they have the same place in the order.
    places = np.flatnonzero(np.append(False, is_same) | np.append(is_same, False))
    tied = gathered(table, order[places])
    digested = tied.select(keys).append_column(_DIGEST, pa.array(row_digests(tied)))
    order[places] = order[places[_sorted(digested, [*keys, _DIGEST])]]
    return order


def _sorted(table: pa.Table, keys: list[str]) -> Int64s:
    found = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys])
    return found.to_numpy().astype(np.int64)


def _order_columns(table: pa.Table) -> list[str]:
    return [*sorted(name for name in table.column_names if name.startswith(ORDER_PREFIX)), TIE]


def _is_in_order(table: pa.Table) -> bool:
    """Return whether every row is known to come before the next; it is not if values are null or equal."""
    is_before = None
    for name in reversed(_order_columns(table)):
        column = table.column(name)
        row, following = column.slice(0, table.num_rows - 1), column.slice(1)
        is_less = pc.less(row, following)
        if is_before is None:
            is_before = is_less
        else:
            is_before = pc.or_kleene(is_less, pc.and_kleene(pc.equal(row, following), is_before))
    return pc.all(is_before, skip_nulls=False).as_py() is True
