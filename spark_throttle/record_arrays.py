"""The arrays of a stored record: bytes behind its JSON, each in the narrowest type that holds it.

An array whose numbers are all equal is one number. `record` says how the JSON names them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

PADDING: Final = [bytes(count) for count in range(8)]

_UNSIGNED: Final = {8: "<u1", 16: "<u2", 32: "<u4", 64: "<u8"}
_SIGNED: Final = {8: "<i1", 16: "<i2", 32: "<i4", 64: "<i8"}
_TYPES: Final = {kind: np.dtype(kind) for kind in ("|b1", "|u1", "|i1", *_UNSIGNED.values(), *_SIGNED.values())}
ALL_EQUAL: Final = "="
_FEW: Final = 32
"""Fewer numbers are stored in the type of their array: to look for a narrower one costs more than it saves."""


class ArrayBytes:
    """The bytes of a block's arrays, as parts that are joined once."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.size = 0

    def add(self, data: bytes | memoryview | np.ndarray | pa.Buffer, size: int) -> int:
        """Add bytes, and return their place."""
        at = self.size
        self.parts.append(data)
        self.size += size
        if size % 8:
            self.parts.append(PADDING[-size % 8])
            self.size += -size % 8
        return at


def part_of(source: memoryview, at: int, size: int) -> memoryview:
    """Return bytes of a block, all of which must be there."""
    found = source[at : at + size]
    if len(found) != size:
        raise ValueError(f"it names the bytes from {at} to {at + size} of {len(source)}")
    return found


def stored_array(values: np.ndarray, out: ArrayBytes) -> list[Any]:
    """Return the type of an array, the place of its bytes, and its shape."""
    if not values.flags.c_contiguous:
        values = np.ascontiguousarray(values)
    if values.size >= _FEW:
        low, high = int(values.min()), int(values.max())
        if low == high:
            return [ALL_EQUAL, low, *values.shape]
        bits, kinds = (high.bit_length(), _UNSIGNED) if low >= 0 else (1 + max(high, ~low).bit_length(), _SIGNED)
        width = max(8, 1 << (bits - 1).bit_length())
        if width < 8 * values.itemsize:
            values = values.astype(kinds[width])
    return [values.dtype.str, out.add(values, values.nbytes), *values.shape]


def read_array(tree: list[Any], source: memoryview, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the array that `stored_array` described: a part of the block if its type is the field's."""
    name, at, *shape = tree
    if name == ALL_EQUAL:
        return np.full(shape, at, dtype)
    if min(at, *shape) < 0:
        raise ValueError(f"it names an array of the shape {shape} at {at}")
    values = np.ndarray(shape, _TYPES[name], source, at)  # which refuses bytes beyond the end
    return values if values.dtype == dtype else values.astype(dtype)
