"""A digest is what decides of the rows of one file: their namespaces, sizes, order and ties, in a few bytes.

A frame of a digest is an Arrow IPC stream of the helper columns of rows. Its schema's metadata names the file, and the
position of the first row if they are consecutive, so no place travels. The namespaces are dictionary-encoded, each
frame for itself. A staged file counts only once the decider has taken a digest that names it: what a failed attempt at
a task has written, no digest names.

A row's *place* is one integer: the number that the decider gives the file, times 2^32, plus the position of the row in
the file. Of a file of the stream's source, a row's tie has its position too, for rows that the stream drops have none.

For the JVM, sending a value to the task that makes digests costs far more than computing it there from Arrow columns.
So helper columns that follow from the user's columns are not sent: a copy of a user's column, and a size that is the
length of one. Lengths equal Spark's, except for text that is not valid UTF-8: there Arrow counts the bytes that begin a
character, while Spark skips as many bytes as the first byte announces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import DamagedError
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE, FrameKind, decode, frame_batch, ipc_stream

PLACE: Final = "place"
"""The column of a row's place: all of its payload that the decider keeps."""

ROW_BITS: Final = 32
"""Bits of a place that hold the position of a row in its file."""

FRAME_ROWS: Final = 1 << 17
"""Most rows of a frame."""

RUN_AGAIN: Final = "run the batch again"
"""The remedy for a damaged digest: nothing keeps it."""

_IN_FILE: Final = (1 << ROW_BITS) - 1
_FILE, _FIRST = b"throttle.file", b"throttle.first"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of rows, as the task that wrote it, or found it, describes it."""

    name: str
    """Its path below its root. No other attempt at a task, nor any other query, has a file of this name."""

    in_table: bool
    """Whether its root is the sink's table; else it is the folder of staged files in the control directory, if it is
    not inline."""

    rows: int
    size_bytes: int
    stats: str
    """Statistics of its columns, in the form of a Delta log."""

    is_inline: bool = False
    """Whether it lies nowhere: its bytes travel with its digest (`waiting_files`)."""

    is_source: bool = False
    """Whether it is a file of the stream's source: its digest lacks the rows that the stream drops."""

    @property
    def is_outside(self) -> bool:
        """Whether it lies outside of the control directory, where no row may wait in it."""
        return self.in_table or self.is_source


@dataclass(frozen=True, slots=True, eq=False)
class InlineFile:
    """A file that travels with its digest, as a record."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """What decides of rows of a file, which are consecutive if it was staged."""

    file: StagedFile
    first_row: int
    """The position of the first of them in a file that was staged."""

    rows: pa.Table
    """Their helper columns."""

    def placed(self, number: int) -> pa.Table:
        """Return the rows with their places, in a file of a number.

        Examples
        --------
        >>> file = StagedFile("a.parquet", True, 3, 99, "{}")
        >>> Digest(file, 1, pa.table({"n": [5, 6]})).placed(2).column("place").to_pylist() == [
        ...     (2 << 32) + 1,
        ...     (2 << 32) + 2,
        ... ]
        True
        """
        return self.rows.append_column(PLACE, pa.array((number << ROW_BITS) + self.positions))

    @property
    def positions(self) -> Int64s:
        """The positions of the rows in the file."""
        if self.file.is_source:
            return positions(self.rows.column(TIE).to_numpy())
        return np.arange(self.first_row, self.first_row + self.rows.num_rows)


def digest_frames(file: StagedFile, helpers: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the digest of rows of a file as rows of `frames.FRAME_SCHEMA`; of one that was staged, of all its rows."""
    told = json.dumps(asdict(file)).encode()
    at = helpers.column_names.index(NAMESPACE)
    for first in range(0, helpers.num_rows, FRAME_ROWS):
        part = helpers.slice(first, FRAME_ROWS).combine_chunks()
        part = part.set_column(at, NAMESPACE, part.column(NAMESPACE).dictionary_encode())
        part = part.replace_schema_metadata({_FILE: told, _FIRST: str(first).encode()})
        yield frame_batch(FrameKind.DIGEST, ipc_stream(part))


def digest_of(frame: bytes) -> Digest:
    """Return the digest in a frame that `digest_frames` yielded.

    Raises
    ------
    DamagedError
        If the frame is truncated or altered, or holds something else.
    """
    try:
        rows = decode(frame)
        metadata = rows.schema.metadata
        file = StagedFile(**json.loads(metadata[_FILE]))
        return Digest(file, int(metadata[_FIRST]), rows.replace_schema_metadata(None))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise DamagedError("the digest of a staged file", f"it cannot be read ({error})", RUN_AGAIN) from error


def file_numbers(places: Int64s) -> Int64s:
    """Return the number of the file of each place."""
    return places >> ROW_BITS


def positions(places: Int64s) -> Int64s:
    """Return the position of each place in its file."""
    return places & _IN_FILE


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
