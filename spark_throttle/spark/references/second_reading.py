"""The second reading of a batch, by Spark, keeps the rows of a selection, and must see the sums that the first one saw.

Spark reads a file and knows each row's position in it. A selection holds, for each file, an array that Spark indexes
with that position: 64 bits a word for the rows that are admitted, a code a row for those that are rejected. An array
ends with the last row that is wanted. So the lookup of a row costs an index, whatever the order of the rows is.

The decider takes the sums of the digests of the first reading, Spark computes them of all files of the batch. They are
sums, so no order and no division into tasks matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Int64s
from spark_throttle.spark.rows.digest import file_numbers, positions
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE

_WORD_BITS: Final = 64
_MOST_COUNTED: Final = 1 << 20
"""Widest range of numbers in which counting is faster than sorting."""

_STORE: Final = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(//[^/]*)?")

_HALF_BITS: Final = 32
_HALF: Final = (1 << _HALF_BITS) - 1


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of one file, by their position in it."""

    number: int
    """The number of the file in its stream."""

    values: npt.NDArray[np.integer[Any]]


def admitted_rows(places: Int64s) -> list[FileRows]:
    """Return the words of each file that has one of the places, with a bit for each row that is admitted.

    Examples
    --------
    >>> [(rows.number, rows.values.tolist()) for rows in admitted_rows(np.array([2 << 32, (2 << 32) + 65]))]
    [(2, [1, 2])]
    """
    found = []
    for number, row, _ in _by_file(places):
        bits = np.zeros(-(-(int(row.max()) + 1) // _WORD_BITS) * _WORD_BITS, dtype=np.uint8)
        bits[row] = 1
        found.append(FileRows(number, np.packbits(bits, bitorder="little").view(np.int64)))
    return found


def words_of(bits: bytes) -> Int64s:
    """Return the words of rows whose bits are set, the least first, as `admitted_rows` has them.

    Examples
    --------
    >>> words_of(bytes([1, 0, 0, 0, 0, 0, 0, 0, 2])).tolist()
    [1, 2]
    """
    words = -(-len(bits) * 8 // _WORD_BITS)
    return np.frombuffer(bits.ljust(words * _WORD_BITS // 8, b"\0"), dtype="<i8").astype(np.int64)


def coded_rows(places: Int64s, codes: npt.NDArray[np.integer[Any]]) -> list[FileRows]:
    """Return the codes of each file that has one of the places: 0 where a row is not among them, else its code plus 1.

    They have the type of `codes`.

    Examples
    --------
    >>> [(rows.number, rows.values.tolist()) for rows in coded_rows(np.array([3, 1]), np.array([0, 7]))]
    [(0, [0, 8, 0, 1])]
    """
    found = []
    for number, row, at in _by_file(places):
        values = np.zeros(int(row.max()) + 1, dtype=codes.dtype)
        values[row] = codes[at] + 1
        found.append(FileRows(number, values))
    return found


def rows_by_file(places: Int64s) -> dict[int, Int64s]:
    """Return the positions of places by the number of their file, in their order.

    Examples
    --------
    >>> {number: rows.tolist() for number, rows in rows_by_file(np.array([2 << 32, 7, (2 << 32) + 1])).items()}
    {0: [7], 2: [0, 1]}
    """
    if not len(places):
        return {}
    file = file_numbers(places)
    if (file[1:] < file[:-1]).any():
        _, key = _distinct(file)
        # NumPy sorts 16 bits in linear time.
        order = np.argsort(key.astype(np.uint16) if int(key.max()) < 1 << 16 else key, kind="stable")
        places, file = places[order], file[order]
    ends = np.flatnonzero(np.diff(file)) + 1
    numbers = file[np.concatenate([[0], ends])].tolist()
    return dict(zip(numbers, np.split(positions(places), ends), strict=True))


def _by_file(places: Int64s) -> list[tuple[int, Int64s, Int64s]]:
    """Return each file's number, the positions of its rows in the file, and their positions among the places."""
    file, row = file_numbers(places), positions(places)
    numbers, key = _distinct(file)
    if len(numbers) == 1:
        return [(int(numbers[0]), row, np.arange(len(row)))]
    layout = Segments.by_key(key, len(numbers))
    row = row[layout.order]
    bounds = zip(numbers.tolist(), layout.starts.tolist(), layout.counts.tolist(), strict=True)
    return [(number, row[at : at + count], layout.order[at : at + count]) for number, at, count in bounds]


def _distinct(file: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct numbers of files, ascending, and the position among them of each row's file."""
    first = int(file.min())
    if int(file.max()) - first >= _MOST_COUNTED:
        numbers, key = np.unique(file, return_inverse=True)
        return numbers, key
    numbers = np.flatnonzero(np.bincount(file - first)) + first
    key = np.zeros(int(numbers[-1]) - first + 1, dtype=np.int64)
    key[numbers - first] = np.arange(len(numbers))
    return numbers, key[file - first]


def as_table(rows: Sequence[FileRows], paths: Sequence[str]) -> pa.Table:
    """Return the rows of files as a table of the files' paths, their numbers, and the values of their rows."""
    counts = np.array([0, *(len(each.values) for each in rows)], dtype=np.int32)
    content = np.concatenate([each.values for each in rows]) if rows else np.zeros(0, dtype=np.int64)
    lists = pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), pa.array(content))
    numbers = pa.array([each.number for each in rows], pa.int64())
    return pa.table({"path": pa.array(paths, pa.string()), "number": numbers, "values": lists})


def path_in_store(name: str) -> str:
    """Return the path of a file without its scheme and its store, from its location or from what Spark calls it.

    Spark writes a path as a URI does, in ``_metadata.file_path`` and in `inputFiles`.

    Examples
    --------
    >>> from urllib.parse import unquote
    >>> path_in_store("s3a://lake/a b%.parquet"), path_in_store(unquote("file:///a%20b%25.parquet"))
    ('/a b%.parquet', '/a b%.parquet')
    """
    return "/" + _STORE.sub("", name).lstrip("/")


@dataclass(frozen=True, slots=True)
class ReadingSums:
    """Sums over the rows of a batch."""

    messages: int = 0
    positions: int = 0
    """Of the rows in their files."""

    named_messages: int = 0
    """The rows with a namespace."""

    name_bytes: int = 0
    sized_messages: int = 0
    """The rows with a size."""

    low_size: int = 0
    """Of the lower 32 bits of their sizes: the sum of whole sizes may be too large for Spark."""

    high_size: int = 0
    """Of the upper 32 bits, with their sign."""

    @classmethod
    def of_rows(cls, rows: pa.Table) -> ReadingSums:
        """Return the sums over rows that arrived, given by their helper columns.

        Examples
        --------
        >>> rows = pa.table({TIE: [7, (1 << 32) + 2], NAMESPACE: ["a/b", None], SIZE: [10, -1]})
        >>> ReadingSums.of_rows(rows)  # doctest: +ELLIPSIS
        ReadingSums(messages=2, positions=9, named_messages=1, name_bytes=3, sized_messages=2, low_size=4294967305, ...
        """
        name, size = rows.column(NAMESPACE), rows.column(SIZE)
        name = name.cast(pa.string()) if pa.types.is_dictionary(name.type) else name
        sizes = size.drop_null().to_numpy()
        return cls(
            rows.num_rows,
            int(positions(rows.column(TIE).to_numpy()).sum()),
            rows.num_rows - name.null_count,
            int(pc.sum(pc.binary_length(name).cast(pa.int64())).as_py() or 0),
            len(sizes),
            int((sizes & _HALF).sum()),
            int((sizes >> _HALF_BITS).sum()),
        )

    def __add__(self, other: ReadingSums) -> ReadingSums:
        """Return the sums over the rows of both."""
        return ReadingSums(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def total(cls, parts: Iterable[ReadingSums]) -> ReadingSums:
        """Return the sums over the rows of all parts."""
        return sum(parts, cls())

    def comparable(self, *, has_positions: bool, has_sizes: bool) -> ReadingSums:
        """Return the sums of which Spark computes the same; the others are 0."""
        return ReadingSums(
            self.messages,
            self.positions if has_positions else 0,
            self.named_messages,
            self.name_bytes,
            *((self.sized_messages, self.low_size, self.high_size) if has_sizes else (0, 0, 0)),
        )


def text_of_sums(position: str | None, namespace: str, size: str | None) -> str:
    """Return the expression with which Spark computes the sums over columns, as an array of the fields' values.

    Examples
    --------
    >>> text_of_sums(None, "n", None)
    'array(count(1), 0L, count(n), sum(octet_length(n)), 0L, 0L, 0L)'
    """
    of_size = ["0L"] * 3
    if size is not None:
        of_size = [f"count({size})", f"sum({size} & {_HALF}L)", f"sum(shiftright({size}, {_HALF_BITS}))"]
    of_position = "0L" if position is None else f"sum({position})"
    found = ["count(1)", of_position, f"count({namespace})", f"sum(octet_length({namespace}))", *of_size]
    assert len(found) == len(fields(ReadingSums))  # noqa: S101 - one for each
    return f"array({', '.join(found)})"
