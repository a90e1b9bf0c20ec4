"""Digests of rows: 64 bits per row, which two rows share only if everything that travels of them is equal.

Spark's own hashes do not tell all rows apart: they ignore nulls and the bounds of arrays, treat -0.0 as 0.0, hash
collated text by its collation key, and refuse maps and variants. So a digest covers the content of a frame at every
depth: the bytes of every value, the length of every array and map, and the position of every null. It does not depend
on how Arrow stores the rows: not on chunks, on offsets and their width, or on the bytes below a null. The entries of a
map count in the order in which they travel.

Two different rows have the same digest with a probability of 2^-64. A digest is no defence against rows crafted to
collide. Everything is vectorised, one column at a time; text is read in words of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Int64s

Words: TypeAlias = npt.NDArray[np.uint64]

VERSION: Final = 1
"""Version of the digests; another version orders rows with equal hashes differently."""

_PIECE_BYTES: Final = 8 << 20
_WORD: Final = 8
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL: Final = np.uint64(0x5851F42D4C957F2D)
_TEXTS: Final = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
_KEPT_BITS: Final = np.array([(1 << 8 * held) - 1 for held in range(_WORD)], dtype=np.uint64)
"""Mask of the bits to keep in the last word of a text, by the number of the text's bytes in that word."""


def row_digests(table: pa.Table) -> Words:
    """Return a digest of every row.

    Examples
    --------
    >>> first = pa.table({"a": [[1], [1, None]], "b": [["x"], None]})
    >>> second = pa.table({"a": [[1, None], [1]], "b": [None, ["x"]]})
    >>> bool((row_digests(first) == row_digests(second)[::-1]).all())
    True
    """
    none = np.zeros(0, dtype=np.uint64)
    columns = (np.concatenate([none, *map(_digests, column.chunks)]) for column in table.columns)
    return _together(table.num_rows, columns)


def _mixed(words: Words) -> Words:
    """Return `words` mixed one to one, so that every bit of a result depends on all bits of its input."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def _together(rows: int, columns: Iterable[Words]) -> Words:
    found = np.zeros(rows, dtype=np.uint64)
    for column in columns:
        found = _mixed(found + column)
    return found


def _digests(values: pa.Array) -> Words:
    """Return a digest of every value."""
    if not len(values):
        return np.zeros(0, dtype=np.uint64)  # some writers of Arrow give no offsets, not even the first, for no value
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL)
    if pa.types.is_struct(kind):
        found = _together(len(values), map(_digests, values.flatten()))
    elif pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
        found = _lists(values.offsets, entries)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = _lists(values.offsets, values.values)
    elif any(is_text(kind) for is_text in _TEXTS):
        found = _texts(values)
    else:
        found = _together(len(values), _words(values))
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), found, _NULL) if values.null_count else found


def _words(values: pa.Array) -> list[Words]:
    """Return the bytes of fixed-width values as words, one array for each word position of a value."""
    if pa.types.is_boolean(values.type):
        return [values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)]  # noqa: FBT003 - pyarrow's
    width, content = values.type.byte_width, values.buffers()[1]
    if content is None or not len(values):
        return [np.zeros(len(values), dtype=np.uint64)]
    raw = np.frombuffer(content, np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    padded = np.zeros((len(values), -(-width // _WORD) * _WORD), dtype=np.uint8)
    padded[:, :width] = raw.reshape(-1, width)
    return list(padded.view(np.uint64).T)


def _lists(offsets: pa.Array, items: pa.Array) -> Words:
    """Return a digest of every list, from its length and its items in order."""
    ends = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.diff(ends)
    return _sequences(_digests(items.slice(ends[0], ends[-1] - ends[0])), counts, counts)


def _sequences(items: Words, counts: Int64s, lengths: Int64s) -> Words:
    """Return a digest of every sequence, from its length and its items; `counts` has each one's number of items."""
    ends = np.cumsum(counts)
    place = np.arange(len(items)) - np.repeat(ends - counts, counts)
    mixed = _mixed(items + _mixed(place.astype(np.uint64)))
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return _mixed(sums[ends] - sums[ends - counts] + _mixed(lengths.astype(np.uint64)))


def _texts(values: pa.Array) -> Words:
    """Return a digest of every text or binary value, from its length and its bytes."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(values) > 1 and int(lengths.sum()) > _PIECE_BYTES:
        half = len(values) // 2
        return np.concatenate([_texts(values.slice(0, half)), _texts(values.slice(half))])
    is_wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offsets, content = values.buffers()
    if content is None or offsets is None:
        return _sequences(np.zeros(0, dtype=np.uint64), np.zeros_like(lengths), lengths)
    ends = np.frombuffer(offsets, np.int64 if is_wide else np.int32)[values.offset :][: len(values) + 1]
    starts = ends[:-1].astype(np.int64) - int(ends[0])
    raw = np.frombuffer(content, np.uint8)[int(ends[0]) : int(ends[-1])]
    padded = np.concatenate([raw, np.zeros(_WORD, dtype=np.uint8)])
    counts = -(-lengths // _WORD)
    last = np.cumsum(counts)
    at = np.repeat(starts - (last - counts) * _WORD, counts) + np.arange(int(counts.sum())) * _WORD
    words = np.ndarray((len(raw) + 1,), np.uint64, padded, strides=(1,))[at]
    is_part = lengths % _WORD > 0
    words[last[is_part] - 1] &= _KEPT_BITS[lengths[is_part] % _WORD]
    return _sequences(words, counts, lengths)
