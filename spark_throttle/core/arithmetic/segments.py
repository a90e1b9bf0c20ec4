"""Sums, ranks and prefixes within runs of equal keys: the only index arithmetic of the core.

The core takes rows of a table of two columns by ``take(rows, axis=0)`` or ``compress(is_taken, axis=0)``, and by
`rows_of` where it computes with the columns of many rows. NumPy's ``table[rows]`` returns the same, and takes four to
fifteen times as long, for few rows as for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Bools, Int64s

_HASH_BASE = 0x9E3779B97F4A7C15
"""An odd number without a pattern: two to the 64th over the golden ratio."""

_RADIX_KEYS = 1 << 16
"""The number of keys of 16 bits. NumPy sorts 16-bit integers by radix, in linear time, so wider keys are sorted by 16
bits at a time."""

_BLOCK = 1 << 16
"""The rows that are put in order at a time: as many as the processor's own cache holds, beside their positions."""

_FEW, _SAMPLE, _MOST_RUNS = 256, 1024, 8
"""Keys are combined run by run if there are enough of them, and no more runs in a sample than its eighth."""

_MOST_INT32 = np.iinfo(np.int32).max

_ORDER_BITS = 63
"""The bits that a value and its position may take together."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Rows laid out by key; rows with equal keys keep their order."""

    order: Int64s
    """The position of each laid-out row among the rows as given."""

    starts: Int64s
    """Shape (keys,): the position in the layout at which a key's rows begin."""

    counts: Int64s
    """Shape (keys,): the number of rows with each key."""

    @classmethod
    def by_key(cls, key: Int64s, keys: int) -> Segments:
        """Lay rows out by `key`, which is in ``range(keys)``.

        Examples
        --------
        >>> s = Segments.by_key(np.array([1, 0, 1]), 3)
        >>> s.order.tolist(), s.starts.tolist(), s.counts.tolist(), s.rank.tolist()
        ([1, 0, 2], [0, 1, 3], [1, 2, 0], [0, 0, 1])
        """
        return cls.with_counts(key, np.bincount(key, minlength=keys))

    @classmethod
    def with_counts(cls, key: Int64s, counts: Int64s) -> Segments:
        """Lay rows out by `key`, where the number of rows with each key is already known."""
        return cls(_order_of(key, counts), np.cumsum(counts) - counts, counts)

    @property
    def key(self) -> Int64s:
        """The key of each laid-out row."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def rank(self) -> Int64s:
        """The position of each laid-out row among the rows with its key."""
        return np.arange(len(self.order), dtype=np.int64) - np.repeat(self.starts, self.counts)

    @property
    def position(self) -> Int64s:
        """The position in the layout of each row as given: the inverse of `order`."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(len(self.order))
        return position

    def first_of_each(self, rows: Int64s) -> Bools:
        """Return which laid-out rows are among the first `rows` of their key."""
        lengths = np.stack([rows, self.counts - rows], axis=1).ravel()
        return np.repeat(np.tile([True, False], len(rows)), lengths)

    def kept(self, is_kept: Bools) -> Segments:
        """Return the layout of only those laid-out rows that are kept."""
        before = running_total(is_kept.astype(np.int8))
        starts = before[self.starts]
        return Segments(self.order[is_kept], starts, before[self.starts + self.counts] - starts)

    def sums(self, total: Int64s, rows: Int64s | None = None) -> Int64s:
        """Return the sum of each key's first `rows` values, by default of all, given their `running_total`."""
        rows = self.counts if rows is None else rows
        return total[self.starts + rows] - total[self.starts]

    def fitting(self, total: Int64s, room: Int64s) -> Int64s:
        """Return how many first values of each key sum to at most its `room`: 0 where that is negative.

        Parameters
        ----------
        total
            The `running_total` of the values, none of which is negative.

        Examples
        --------
        >>> s = Segments.by_key(np.array([0, 0, 1]), 2)
        >>> s.fitting(running_total(np.array([3, 4, 5])), np.array([6, 9])).tolist()
        [1, 1]
        """
        last = total[self.starts] + np.clip(room, -1, total[-1])
        found = np.searchsorted(total, last, side="right") - 1 - self.starts
        return np.where(room < 0, 0, np.minimum(found, self.counts))

    def first(self, is_marked: np.ndarray) -> Int64s:
        """Return, for each key, the rank of its first marked row, or its count if none is marked."""
        first = self.counts.copy()
        at = np.flatnonzero(is_marked)
        key = self.key[at]
        leads = np.flatnonzero(np.diff(key, prepend=-1))
        first[key[leads]] = at[leads] - self.starts[key[leads]]
        return first


def _order_of(key: Int64s, counts: Int64s) -> Int64s:
    """Return the positions of rows in the order of their keys, given the number of rows with each key."""
    rows, keys = len(key), len(counts)
    if _ascends(key[:_SAMPLE]) and _ascends(key):
        return np.arange(rows)
    low = key.astype(np.uint16)
    if keys > _RADIX_KEYS:
        high = key >> 16
        if keys <= _RADIX_KEYS << 16:
            high = high.astype(np.uint16)
        order = np.argsort(low, kind="stable")
        return order[np.argsort(high[order], kind="stable")]
    if rows <= _BLOCK:
        return np.argsort(low, kind="stable")
    order, place_of_next = np.empty(rows, dtype=np.int64), np.cumsum(counts) - counts
    for start in range(0, rows, _BLOCK):
        block = low[start : start + _BLOCK]
        in_block = np.argsort(block, kind="stable")
        number = np.bincount(block, minlength=keys)
        place = np.repeat(place_of_next - np.cumsum(number) + number, number)
        place += np.arange(len(block))
        in_block += start
        order[place] = in_block
        place_of_next += number
    return order


def _ascends(key: Int64s) -> bool:
    return bool((key[1:] >= key[:-1]).all())


def running_total(values: Int64s) -> Int64s:
    """Return the sum of the values before each position, followed by the sum of all values.

    Examples
    --------
    >>> running_total(np.array([3, 4])).tolist()
    [0, 3, 7]
    """
    total = np.empty(len(values) + 1, dtype=np.int64)
    total[0] = 0
    values.cumsum(out=total[1:])
    return total


def total_in_order(values: Int64s, order: Int64s) -> Int64s:
    """Return the `running_total` of the values in an order.

    Values of less than 32 bits are read in any order from half the memory, in a third of the time.

    Examples
    --------
    >>> total_in_order(np.array([3, 4, 5]), np.array([2, 0, 1])).tolist()
    [0, 5, 8, 12]
    """
    total = np.zeros(len(order) + 1, dtype=np.int64)
    is_narrow = len(values) and int(values.max()) <= _MOST_INT32
    total[1:] = (values.astype(np.int32) if is_narrow else values).take(order)
    np.cumsum(total[1:], out=total[1:])
    return total


def by_row(combine: np.ufunc, table: np.ndarray) -> np.ndarray:
    """Return `combine` over the columns of every row; NumPy's own reduction is slow on tables of two or three columns.

    Examples
    --------
    >>> by_row(np.maximum, np.array([[1, 5], [4, 2]])).tolist()
    [5, 4]
    """
    out = table[:, 0]
    for column in table.T[1:]:
        out = combine(out, column)
    return out


def in_order(values: Int64s) -> Int64s:
    """Return the positions of the values in ascending order; of equal values, the first is first.

    NumPy sorts numbers many times as fast as it sorts their positions. So a position is made a number's last bits.

    Examples
    --------
    >>> in_order(np.array([7, -1, 7, 0])).tolist()
    [1, 3, 0, 2]
    """
    if len(values) < _FEW:
        return np.argsort(values, kind="stable")
    bits, least = (len(values) - 1).bit_length(), int(values.min())
    if (int(values.max()) - least).bit_length() + bits > _ORDER_BITS:
        return np.argsort(values, kind="stable")
    place = np.arange(len(values))
    place |= values - least << bits
    place.sort()
    place &= (1 << bits) - 1
    return place


def ranges(first: Int64s, count: Int64s) -> Int64s:
    """Return the runs of `count` consecutive integers that begin at each `first`, one run after the other.

    Examples
    --------
    >>> ranges(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    before = running_total(count)
    return np.repeat(first - before[:-1], count) + np.arange(before[-1])


def sums(key: Int64s, values: Int64s, keys: int) -> Int64s:
    """Return the sum of `values` for each key, exact in int64; `values` has one column or several."""
    return _combined(np.add, key, values, np.zeros((keys, *values.shape[1:]), dtype=np.int64))


def largest(key: Int64s, values: np.ndarray, keys: int, *, least: int) -> Int64s:
    """Return the largest of the `values` of each key, shape (keys, columns); `least` where all are less.

    Examples
    --------
    >>> largest(np.array([1, 1]), np.array([[3, 4], [5, -1]]), 2, least=0).tolist()
    [[0, 0], [5, 4]]
    """
    return _combined(np.maximum, key, values, np.full((keys, *values.shape[1:]), least, dtype=np.int64))


def numbers(key: Int64s, keys: int) -> Int64s:
    """Return the number of times that each key occurs."""
    runs = _runs(key)
    if runs is None:
        return np.bincount(key, minlength=keys)
    return sums(key.take(runs), np.diff(runs, append=len(key)), keys)


def _combined(combine: np.ufunc, key: Int64s, values: np.ndarray, out: Int64s) -> Int64s:
    """Combine the values of each key with what `out` has of it, column by column.

    NumPy combines rows of two numbers ten times slower than single ones, and runs of equal keys, which most tables of
    flows have, in a third of the time of single values.
    """
    runs = _runs(key)
    for to, column in zip(*((each.T if each.ndim > 1 else (each,)) for each in (out, values)), strict=True):
        if runs is None:
            combine.at(to, key, column)
        else:
            combine.at(to, key.take(runs), combine.reduceat(column, runs))
    return out


def _runs(key: Int64s) -> Int64s | None:
    """Return where runs of equal keys begin; `None` if there are too many, or too few keys to look for any."""
    sample = key[:_SAMPLE]
    if len(key) < _FEW or np.count_nonzero(sample[1:] != sample[:-1]) > _SAMPLE // _MOST_RUNS:
        return None
    return np.append(0, np.flatnonzero(key[1:] != key[:-1]) + 1)


def rows_of(table: np.ndarray, rows: Int64s) -> np.ndarray:
    """Return rows of a table of a few columns, with each column in one piece; -1 takes the last row.

    NumPy computes with a column in one piece, and with one value for each row, two or three times as fast.

    Examples
    --------
    >>> rows_of(np.array([[1, 2], [3, 4]]), np.array([1, 0, 0])).tolist()
    [[3, 4], [1, 2], [1, 2]]
    """
    out = np.empty((table.shape[1], len(rows)), dtype=table.dtype)
    for to, column in zip(out, table.T, strict=True):
        np.take(column, rows, out=to, mode="wrap")  # in its default mode, `take` fills a copy of `out`
    return out.T


def replaced(table: np.ndarray, rows: Int64s, values: np.ndarray) -> np.ndarray:
    """Return a table with other values in some of its rows; its columns lie in memory as before.

    Examples
    --------
    >>> replaced(np.array([[1, 2], [3, 4]]), np.array([1]), np.array([[5, 6]])).tolist()
    [[1, 2], [5, 6]]
    """
    out = table.copy("K")
    for to, column in zip(out.T, values.T, strict=True):
        to[rows] = column
    return out


def begins_run(key: Int64s) -> Bools:
    """Return which keys differ from the one before.

    Examples
    --------
    >>> begins_run(np.array([3, 3, 1])).tolist()
    [True, False, True]
    """
    begins = np.ones(len(key), dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=begins[1:])
    return begins


def alike(values: np.ndarray) -> np.ndarray:
    """Return the values, as a view of one number if all are equal; NumPy divides by it several times as fast."""
    return np.broadcast_to(values[0], values.shape) if len(values) and (values == values[0]).all() else values


def taken(values: np.ndarray, at: Int64s) -> np.ndarray:
    """Return the values at positions that ascend; those of a view of one number, or all values, are not copied."""
    if values.strides == (0,) and len(values):
        return np.broadcast_to(values[0], at.shape)
    return values if len(at) == len(values) else values[at]


def once(key: Int64s) -> Int64s:
    """Return the key of all rows once if it is one, so that what depends on it is computed once."""
    return key[:1] if len(key) and key[0] == key[-1] and (key == key[0]).all() else key


def beside(*columns: np.ndarray) -> np.ndarray:
    """Return a table of columns, each in one piece.

    Examples
    --------
    >>> beside(np.array([1, 2]), np.array([3, 4])).tolist()
    [[1, 3], [2, 4]]
    """
    return np.stack(columns).T


def below(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return tables of the same columns as one, the first on top, with each column in one piece.

    Examples
    --------
    >>> below([np.array([[1, 2]]), np.array([[3, 4], [5, 6]])]).tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    out = np.empty((tables[0].shape[1], sum(map(len, tables))), dtype=tables[0].dtype)
    return np.concatenate([table.T for table in tables], axis=1, out=out).T


def name_hash(names: pa.StringArray, salt: int = 0) -> Int64s:
    """Return a hash of every name, the same in every process and never negative; with another salt, another one.

    The hash is a polynomial over the name's bytes modulo 2**64, with the salt, mixed by the 64-bit finaliser of
    MurmurHash3.

    Examples
    --------
    >>> name_hash(pa.array(["a", "b", "a"])).tolist()
    [2714811491967746737, 4609608581513853055, 2714811491967746737]
    """
    if not len(names):
        return np.zeros(0, dtype=np.int64)
    whole = pa.concat_arrays([names])  # a slice shares its parent's buffers
    offsets = np.frombuffer(whole.buffers()[1], dtype=np.int32)[whole.offset : whole.offset + len(whole) + 1]
    text = np.frombuffer(whole.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    length = np.diff(offsets)
    powers = np.multiply.accumulate(np.full(int(length.max(initial=0)) + 1, _HASH_BASE, dtype=np.uint64))
    place = np.arange(len(text)) - np.repeat(starts, length)
    running = np.zeros(len(text) + 1, dtype=np.uint64)
    np.cumsum(text * powers[place], out=running[1:])
    mixed = running[starts + length] - running[starts] + np.uint64(salt * _HASH_BASE % 2**64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    return (mixed >> np.uint64(1)).astype(np.int64)
