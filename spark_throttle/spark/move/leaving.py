"""Rows that leave are read from their files by pyarrow, each file once, and come out in the order in which they leave.

The order is that of the places of the admitted rows: a row's *turn* is its index among them. A file is read when the
first of its rows is due, row group by row group, and what is read waits in memory only for rows of lower turns that lie
in files not yet read. So where files follow one another, one file's rows are in memory at a time, and at most all rows
that are admitted in the batch. Rejected rows have no order, and come out as they are read.

Turns run from 0 without a gap. So a file that is gone, lacks a row or has it twice is an error, and never a row less.

Some files may be read as they lie, although a namespace's rows must leave in their order: the new files each of whose
namespaces sends rows from no other file, and the rows of each in the order in which they lie. One task reads such a
file, for it has one row group, and so a namespace's rows come to the sink as if they had been shuffled and sorted. Rows
of any other file are: a namespace of which rows waited in an older file, for one, spans files.

The batch decides the same rows if it is run again, but maybe from other files. So the files differ that are read as
they lie, and neither the rows that leave nor the order of a namespace's do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import file_system
from spark_throttle.spark.delta.table_files import ROW_GROUP_ROWS
from spark_throttle.spark.move.cutting import FILE, ROW, as_read
from spark_throttle.spark.move.waiting_files import in_columns
from spark_throttle.spark.rows.digest import ROW_BITS, file_numbers
from spark_throttle.spark.rows.gathering import gathered

_BATCH_BYTES: Final = 1 << 20
"""Bytes of rows that come out together, more or less."""


def files_in_order(
    namespaces: Mapping[int, pa.ChunkedArray], leaves: Mapping[int, Int64s], elsewhere: pa.StringArray
) -> frozenset[int]:
    """Return the numbers of the files whose rows leave in their order if each is read as it lies.

    Parameters
    ----------
    namespaces
        The namespaces of all rows of each file, dictionary-encoded.
    leaves
        The positions of the rows that leave of each file, in the order in which they leave.
    elsewhere
        The namespaces of which rows leave from other files, each once.

    Examples
    --------
    >>> named = pa.chunked_array([pa.array(["a", "b", "a"]).dictionary_encode()])
    >>> first, second = np.array([0, 2, 1]), np.array([2, 0])
    >>> (
    ...     sorted(files_in_order({0: named}, {0: first}, pa.array(["c"]))),
    ...     sorted(files_in_order({0: named}, {0: second}, pa.array(["c"]))),
    ... )
    ([0], [])
    """
    sent, lie_in_order = dict[int, pa.StringArray](), list[int]()
    for number, of_rows in namespaces.items():
        at = leaves.get(number)
        if at is None:
            continue
        coded = of_rows.unify_dictionaries().combine_chunks()
        code = coded.indices.fill_null(0).to_numpy()[at]  # a row without a namespace leaves nowhere
        sent[number] = coded.dictionary.take(pa.array(np.flatnonzero(np.bincount(code))))
        if len(of_rows) <= ROW_GROUP_ROWS and _is_ascending(at, code):
            lie_in_order.append(number)
    counted = pc.value_counts(pa.concat_arrays([elsewhere, *sent.values()]))
    shared = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
    return frozenset(number for number in lie_in_order if not pc.any(pc.is_in(sent[number], shared)).as_py())


def _is_ascending(at: Int64s, code: np.ndarray[tuple[int], np.dtype[np.integer]]) -> bool:
    """Return whether the positions of each code ascend."""
    if (at[1:] > at[:-1]).all():
        return True
    order = np.argsort(code, kind="stable")
    at, code = at[order], code[order]
    return bool(((at[1:] > at[:-1]) | (code[1:] != code[:-1])).all())


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file that has rows which leave."""

    root: str
    path: str
    """Below the root."""

    numbers: Mapping[str, int]
    """The numbers of the files that its rows were staged in, by their names."""

    has_places: bool
    """Whether it has the columns of places; else it is itself the one file, and a row's position its own."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """What is wanted of a file: places, ascending, with their indices among all that leave."""

    file: PlacedFile
    place: Int64s
    index: Int64s


def leaving(
    files: Sequence[PlacedFile], admitted: Int64s, rejected: Int64s, schema: pa.Schema
) -> Iterator[tuple[pa.Table, Int64s]]:
    """Yield the rows at places with the columns of a schema, and their indices: of `admitted`, then of `rejected`.

    Admitted rows come in the order of `admitted`, by themselves or behind rejected ones.

    Raises
    ------
    DamagedError
        If a file is gone, or has not each row once.
    """
    places, turns = np.concatenate([admitted, rejected]), len(admitted)
    in_file, held = as_read(schema), _Held()
    wanted = sorted(_wanted(files, places), key=lambda each: int(each.index.min()))
    if sum(len(each.place) for each in wanted) != len(places):
        problem = "rows leave that lie in none of its files"
        raise DamagedError("the decider's answer", problem, RESTORE_CHECKPOINT)
    due = [*(int(each.index.min()) for each in wanted[1:]), turns]
    for each, before in zip(wanted, due, strict=False):
        for read, index in _read(each):
            rows = in_columns(read, schema, in_file)
            is_admitted = index < turns
            if is_admitted.all():
                held.add(rows, index)
                continue
            yield from _pieces(rows.filter(pa.array(~is_admitted)), index[~is_admitted])
            held.add(rows.filter(pa.array(is_admitted)), index[is_admitted])
        yield from held.upto(min(before, turns))


class _Held:
    """The admitted rows that were read and have not come out."""

    def __init__(self) -> None:
        self._parts: list[tuple[pa.Table, Int64s]] = []
        self._next = 0

    def add(self, rows: pa.Table, turn: Int64s) -> None:
        """Add rows, with their turns."""
        if not len(turn):
            return
        if (turn[1:] < turn[:-1]).any():
            order = np.argsort(turn)
            rows, turn = gathered(rows, order), turn[order]
        self._parts.append((rows, turn))

    def upto(self, end: int) -> Iterator[tuple[pa.Table, Int64s]]:
        """Yield the rows of the turns before `end`, in their order."""
        at_once = _at_once(rows for rows, _ in self._parts)
        while self._next < end:
            last = min(self._next + at_once, end)
            taken = [self._taken(part, last) for part in range(len(self._parts))]
            self._parts = [part for part in self._parts if len(part[1])]
            found = [each for each in taken if len(each[1])]
            turn = np.concatenate([turn for _, turn in found])
            rows = pa.concat_tables([rows for rows, _ in found])
            yield (rows if len(found) == 1 else gathered(rows, np.argsort(turn))), np.arange(self._next, last)
            self._next = last

    def _taken(self, part: int, end: int) -> tuple[pa.Table, Int64s]:
        """Take the rows of the turns before `end` out of a part."""
        rows, turn = self._parts[part]
        count = int(np.searchsorted(turn, end))
        self._parts[part] = rows.slice(count), turn[count:]
        return rows.slice(0, count), turn[:count]


def _at_once(tables: Iterable[pa.Table]) -> int:
    """Return how many of the rows of tables come out together."""
    found = [(rows.num_rows, rows.nbytes) for rows in tables]
    return max(1, _BATCH_BYTES * sum(rows for rows, _ in found) // max(1, sum(size_bytes for _, size_bytes in found)))


def _pieces(rows: pa.Table, index: Int64s) -> Iterator[tuple[pa.Table, Int64s]]:
    at_once = _at_once([rows])
    for first in range(0, len(index), at_once):
        yield rows.slice(first, at_once), index[first : first + at_once]


def _wanted(files: Sequence[PlacedFile], places: Int64s) -> Iterator[_Wanted]:
    """Yield what is wanted of each file."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    number = file_numbers(ordered)
    for file in files:
        parts = [slice(*np.searchsorted(number, [each, each + 1])) for each in sorted(file.numbers.values())]
        place = np.concatenate([ordered[part] for part in parts])
        if len(place):
            yield _Wanted(file, place, np.concatenate([order[part] for part in parts]))


def _read(wanted: _Wanted) -> Iterator[tuple[pa.Table, Int64s]]:
    """Yield the wanted rows of a file by row groups, and their indices."""
    files, root = file_system(wanted.file.root)
    what = f"the file {wanted.file.path} of {wanted.file.root}, which has rows that leave,"
    found = np.zeros(len(wanted.place), dtype=np.int64)
    first = 0
    try:
        with files.open_input_file(f"{root.rstrip('/')}/{wanted.file.path}") as stream:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group, use_threads=False)
                place = _places_of(rows, wanted.file, first)
                first += rows.num_rows
                at = np.minimum(np.searchsorted(wanted.place, place), len(wanted.place) - 1)
                is_wanted = wanted.place[at] == place
                found += np.bincount(at[is_wanted], minlength=len(found))
                if not is_wanted.any():
                    continue
                if wanted.file.has_places:
                    rows = rows.drop_columns([FILE, ROW])
                yield (rows if is_wanted.all() else rows.filter(pa.array(is_wanted))), wanted.index[at[is_wanted]]
    except (pa.ArrowException, OSError, KeyError) as error:  # a column is missing
        raise DamagedError(what, f"it cannot be read ({error})", RESTORE_CHECKPOINT) from error
    if (found != 1).any():
        problem = f"of {len(found)} rows of it that leave, it has {np.count_nonzero(found)} ({found.sum()} copies)"
        raise DamagedError(what, problem, RESTORE_CHECKPOINT)


def _places_of(rows: pa.Table, file: PlacedFile, first: int) -> Int64s:
    """Return the places of rows of a file from a position on; -1 for those of a file that is not asked for."""
    if not file.has_places:
        (number,) = file.numbers.values()
        start = (number << ROW_BITS) + first
        return np.arange(start, start + rows.num_rows)
    coded = rows.column(FILE).combine_chunks().dictionary_encode()
    numbers = np.array([file.numbers.get(name, -1) for name in coded.dictionary.to_pylist()], dtype=np.int64)
    number = numbers[coded.indices.to_numpy()]
    return np.where(number < 0, -1, (number << ROW_BITS) + rows.column(ROW).to_numpy())
