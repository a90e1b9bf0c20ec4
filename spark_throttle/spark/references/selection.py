"""Which rows of which files leave in a batch, in the form in which Spark looks them up while it reads the files.

Spark reads a file and knows each row's position in it. A selection holds, for each file, an array that Spark indexes
with that position: 64 bits a word for the rows that are admitted, a code a row for those that are rejected. An array
ends with the last row that is wanted. So the lookup of a row costs an index, whatever the order of the rows is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Int64s
from spark_throttle.spark.references.extents import ROW_BITS

_WORD_BITS: Final = 64
_KEPT: Final = "/_-!.~'()*,;:$&+=@"
"""Characters beside letters and digits that Java leaves as they are in the path of a URI."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of one file, by their position in it."""

    number: int
    """The number of the file in its stream."""

    values: Int64s


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


def coded_rows(places: Int64s, codes: Int64s) -> list[FileRows]:
    """Return the codes of each file that has one of the places: 0 where a row is not among them, else its code plus 1.

    Examples
    --------
    >>> [(rows.number, rows.values.tolist()) for rows in coded_rows(np.array([3, 1]), np.array([0, 7]))]
    [(0, [0, 8, 0, 1])]
    """
    found = []
    for number, row, at in _by_file(places):
        values = np.zeros(int(row.max()) + 1, dtype=np.int64)
        values[row] = codes[at] + 1
        found.append(FileRows(number, values))
    return found


def _by_file(places: Int64s) -> list[tuple[int, Int64s, Int64s]]:
    """Return each file's number, the positions of its rows in the file, and their positions among the places."""
    order = np.argsort(places >> ROW_BITS, kind="stable")
    file = (places >> ROW_BITS)[order]
    row = (places & ((1 << ROW_BITS) - 1))[order]
    starts = np.flatnonzero(np.diff(file, prepend=-1))
    ends = [*starts[1:].tolist(), len(file)]
    return [(int(file[a]), row[a:b], order[a:b]) for a, b in zip(starts.tolist(), ends, strict=True)]


def as_table(rows: Sequence[FileRows], paths: Sequence[str]) -> pa.Table:
    """Return the rows of files as a table of the files' paths, their numbers, and the values of their rows."""
    counts = np.array([0, *(len(each.values) for each in rows)], dtype=np.int32)
    content = np.concatenate([np.zeros(0, dtype=np.int64), *(each.values for each in rows)])
    lists = pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), pa.array(content))
    numbers = pa.array([each.number for each in rows], pa.int64())
    return pa.table({"path": pa.array(paths, pa.string()), "number": numbers, "values": lists})


def spark_path(location: str) -> str:
    """Return a file's location as Spark writes it in ``_metadata.file_path``.

    Examples
    --------
    >>> spark_path("/lake/day=1/a b%.parquet"), spark_path("s3a://lake/é#1.parquet")
    ('file:/lake/day=1/a%20b%25.parquet', 's3a://lake/é%231.parquet')
    """
    scheme, mark, path = location.partition("://")
    if not mark:
        scheme, path = "file", "/" + location.removeprefix("file:").lstrip("/")
    start = f"{scheme}://" if mark and scheme != "file" else "file:"
    path = path if start != "file:" else "/" + path.lstrip("/")
    return start + "".join(character if ord(character) > 127 else quote(character, safe=_KEPT) for character in path)
