"""Named arrays as one block of bytes: the form in which this project stores everything.

A block is a header of 16 bytes and an Arrow IPC stream. The header holds a magic number, the kind of block, its format
version and a CRC-32 of all the other bytes. It is read first, so that a block of a newer version is refused by number,
and a truncated or altered one by its checksum, before any of the content is trusted. The stream holds one row; an array
of n values is one list of n. Integers are stored in as few bytes as they need and come back as int64.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import DamagedError, UnknownVersionError

Field: TypeAlias = "int | str | bytes | Int64s | pa.Array | list[bytes]"

_HEADER = struct.Struct("<4s4sHxx")
_CHECKSUM = struct.Struct("<I")
_BODY_AT = _HEADER.size + _CHECKSUM.size
_MAGIC = b"sthr"
_ON_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""A task has one core: to hand columns to other threads costs more than to read them."""

_OFFSETS = struct.Struct("<qq")
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.int64}
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
"""Types of integers, by their bits. The values are int64, so none takes 64 bits without a sign."""

_ARROW = {kind: pa.from_numpy_dtype(kind) for kind in {*_UNSIGNED.values(), *_SIGNED.values()}}
_LISTED_BELOW = 100
"""Of fewer numbers, Python's list has the least and the largest sooner than two calls of numpy."""


def pack(kind: str, version: int, fields: Mapping[str, Field], *, is_compressed: bool = False) -> bytes:
    """Return `fields` as a block.

    Parameters
    ----------
    kind
        Four ASCII letters.
    fields
        The values, by name: integers, text, bytes, int64 arrays of one or two dimensions, Arrow string arrays, or lists
        of bytes.
    is_compressed
        Whether the arrays are compressed, in Arrow's own format: worth it for a block that is copied often.

    Examples
    --------
    >>> block = pack("test", 1, {"n": 7, "rates": np.array([[1, 2], [3, 70_000]])})
    >>> fields = unpack(block, "test", 1, "the example")
    >>> fields.integer("n"), fields.pairs("rates").tolist()
    (7, [[1, 2], [3, 70000]])
    """
    arrays = [_one_row(value) for value in fields.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(fields))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if is_compressed else None, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    body = sink.getvalue()
    header = _HEADER.pack(_MAGIC, kind.encode("ascii"), version)
    return b"".join((header, _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))), body))


def version_of(block: bytes) -> int:
    """Return the format version of a block that `pack` returned."""
    return int(_HEADER.unpack_from(block)[2])


def unpack(block: bytes | memoryview, kind: str, newest_version: int, what: str) -> BlockFields:
    """Return the fields of a block.

    Parameters
    ----------
    newest_version
        The newest format version that the caller reads.
    what
        The name of the stored object in errors.

    Raises
    ------
    UnknownVersionError
        If the block has a newer version.
    DamagedError
        If the block is not of `kind`, or is truncated or altered.
    """
    if len(block) < _BODY_AT:
        raise DamagedError(what, f"it has {len(block)} bytes, fewer than its header's {_BODY_AT}")
    magic, found_kind, version = _HEADER.unpack_from(block)
    if magic != _MAGIC or found_kind != kind.encode("ascii"):
        raise DamagedError(what, f"it begins with {bytes(block[:8])!r}, not with {_MAGIC + kind.encode('ascii')!r}")
    if version > newest_version:
        raise UnknownVersionError(what, version, newest_version)
    whole = memoryview(block)
    body = whole[_BODY_AT:]
    (crc,) = _CHECKSUM.unpack_from(block, _HEADER.size)
    if zlib.crc32(body, zlib.crc32(whole[: _HEADER.size])) != crc:
        raise DamagedError(what, f"the checksum of its {len(body)} bytes does not match the one in its header")
    return BlockFields(version, pa.ipc.open_stream(pa.py_buffer(body), options=_ON_ONE_THREAD).read_next_batch())


class BlockFields:
    """The fields of a block, by name."""

    def __init__(self, version: int, batch: pa.RecordBatch) -> None:
        self.version = version
        self._batch = batch

    def _value(self, name: str) -> pa.Scalar:
        return self._batch.column(name)[0]

    def has(self, name: str) -> bool:
        """Return whether the block has the field."""
        return name in self._batch.schema.names

    def integer(self, name: str) -> int:
        """Return an integer field."""
        return int(self._value(name).as_py())

    def text(self, name: str) -> str:
        """Return a text field."""
        return str(self._value(name).as_py())

    def raw(self, name: str) -> bytes:
        """Return a bytes field."""
        return bytes(self._value(name).as_buffer())

    def integers(self, name: str) -> Int64s:
        """Return an array field of one dimension."""
        values = self._value(name).values
        return values.to_numpy(zero_copy_only=False).astype(np.int64)

    def pairs(self, name: str) -> Int64s:
        """Return an array field of shape (n, 2)."""
        return self.integers(name).reshape(-1, 2)

    def names(self, name: str) -> pa.StringArray:
        """Return an Arrow string field."""
        return self._value(name).values

    def blobs(self, name: str) -> list[bytes]:
        """Return a field that is a list of bytes."""
        return [bytes(view) for view in self.views(name)]

    def views(self, name: str) -> list[memoryview]:
        """Return a field that is a list of bytes, as parts of the block, which is kept as long as they are."""
        return [memoryview(value.as_buffer()) for value in self._value(name).values]


def _one_row(value: Field) -> pa.Array:
    """Return `value` as an Arrow array of length 1; from buffers, because a state has dozens of fields, most short."""
    if isinstance(value, np.ndarray):
        values = _narrowed(value.reshape(-1))
        data = pa.py_buffer(values)
        return _list_of(pa.Array.from_buffers(_ARROW[values.dtype.type], len(values), [None, data]))
    if isinstance(value, pa.Array):
        return _list_of(value)
    if isinstance(value, list):
        return _list_of(pa.array(value, pa.large_binary()))
    if isinstance(value, bytes):
        return pa.array([value], pa.large_binary())
    return pa.array([value], pa.string() if isinstance(value, str) else pa.int64())


def _list_of(values: pa.Array) -> pa.Array:
    """Return an array of one list."""
    offsets = pa.py_buffer(_OFFSETS.pack(0, len(values)))
    return pa.Array.from_buffers(pa.large_list(values.type), 1, [None, offsets], children=[values])


def _narrowed(values: Int64s) -> np.ndarray:
    """Return `values` in the narrowest type that holds them; of a signed and an unsigned one, the unsigned."""
    if len(values) < _LISTED_BELOW:
        listed = values.tolist()
        low, high = min(listed, default=0), max(listed, default=0)
    else:
        low, high = int(values.min()), int(values.max())
    bits, kinds = (high.bit_length(), _UNSIGNED) if low >= 0 else (1 + max(high, ~low).bit_length(), _SIGNED)
    return np.ascontiguousarray(values, kinds[max(8, 1 << (bits - 1).bit_length())])
