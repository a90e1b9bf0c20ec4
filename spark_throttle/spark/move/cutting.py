"""Cutting takes rows out of files: those that leave go to a new file of the table, those that wait to one of their own.

A file of which all rows leave is not cut. A cut reads a file once and writes each row once. It runs on the executors as
`mapInArrow`, a task for each group of files. An attempt that fails leaves files that nobody names, or a file that its
successor writes over with the same rows. A file must have each row that is asked for, once, or the batch fails.

Out of the files of a stream's source, Spark reads the rows that wait, and they are copied: once, a rest for each file.
Its name and its rows are the same at every attempt at a batch, because a file of a source is: unlike a staged one it
has no zombie's twin. From then on it is a rest like any other.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyarrow import parquet as pq

from spark_throttle.core.quota import Bools
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import file_system
from spark_throttle.spark.delta.table_files import TableFileWriter, WrittenFile, dictionary_columns
from spark_throttle.spark.move.answer import mask_of
from spark_throttle.spark.move.stager import StagingPlace, as_nullable
from spark_throttle.spark.rows.frames import aligned
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

FILE, ROW = "__throttle_file", "__throttle_row"
"""Names of the columns of a copied row's place: the name of the file that it was staged in, and its position there."""

CUT_DDL: Final = "file string"
_ROW_GROUP_ROWS: Final = 1 << 20

RESTS_DDL: Final = "rest string, messages long, positions long"
_GATHERED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RowsOfFile:
    """Rows that are taken out of a file."""

    root: str
    path: str
    """Of the file that has them, below the root."""

    name: str
    """The file that they were staged in."""

    rows: int
    """How many rows were staged in it."""

    admitted_bits: bytes | None = None
    """Those that go to the table; `None` for none."""

    rest_bits: bytes | None = None
    """Those that go to `rest`; `None` for none."""

    rest: str = ""
    """The file of the control directory for those that wait."""

    has_places: bool = False
    """Whether the file has the columns of places; else the position of a row is its own."""

    content: bytes | None = None
    """The bytes of an inline file; `None` of one that lies at its path."""

    def opened(self) -> Any:  # noqa: ANN401 - pyarrow's
        """Return a stream of the file."""
        if self.content is not None:
            return pa.BufferReader(self.content)
        files, root = file_system(self.root)
        return files.open_input_file(f"{root.rstrip('/')}/{self.path}")


@dataclass(frozen=True, slots=True)
class Cut:
    """A function that cuts files; `mapInArrow` runs it with the numbers of the groups as ids."""

    groups: tuple[tuple[RowsOfFile, ...], ...]
    """A rest has its rows from one group alone."""

    table: StagingPlace | None
    """Where rows that leave are written; `None` if nowhere."""

    waiting: StagingPlace

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the description of each file of the table that was written."""
        set_loaded_aside()
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for file in self.cut(self.groups[group]):
                    yield pa.record_batch({"file": pa.array([json.dumps(asdict(file))], pa.string())})

    def cut(self, group: Sequence[RowsOfFile]) -> list[WrittenFile]:
        """Write the rows of a group of files, and return the files of the table."""
        leaving = None if self.table is None else self.table.writer()
        rests: dict[str, RestWriter] = {}
        for file in group:
            if file.rest and file.rest not in rests:
                rests[file.rest] = RestWriter(self.waiting, file.rest)
            cut_rows(file, leaving, rests.get(file.rest))
        for rest in rests.values():
            rest.finish()
        return [] if leaving is None else leaving.finish()


def cut_file(text: str) -> WrittenFile:
    """Return the file in a row that `Cut` yielded."""
    fields: dict[str, Any] = json.loads(text)
    return WrittenFile(**{**fields, "partition_values": ()})


class RestWriter:
    """A writer of waiting rows, with their places, to one file of a name that is known beforehand, or to bytes.

    The file is there when it is whole, and not before: another attempt may have written it already.

    Parameters
    ----------
    is_read
        Whether the rows come from a file, and not from Spark, whose columns may have types of Arrow's own.
    """

    def __init__(self, place: StagingPlace, name: str, *, is_inline: bool = False, is_read: bool = True) -> None:
        self._root, self._name, self._is_inline = place.root, name, is_inline
        self._footer = place.form.footer
        # Files that were staged before the stream got a column, or a wider type, may come together with later ones.
        self._schema = with_place(as_read(place.form.schema) if is_read else place.form.schema)
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table, name: str, row: pa.Array) -> None:
        """Add rows of a file, with their positions in it."""
        names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(rows), np.int32)), pa.array([name]))
        rows = rows.append_column(FILE, names.cast(pa.string())).append_column(ROW, row)
        rows = aligned_table(rows, self._schema)
        if self._writer is None:
            self._stream = pa.BufferOutputStream() if self._is_inline else self._opened()
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression="zstd",
                use_dictionary=[*dictionary_columns(rows), FILE],
                store_decimal_as_integer=True,
                store_schema=False,
                write_page_checksum=True,
            )
        self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)

    def finish(self) -> bytes:
        """Let the file be there, or return its bytes if it is to lie nowhere."""
        if self._writer is None:
            return b""
        self._writer.add_key_value_metadata(self._footer)
        self._writer.close()
        if self._is_inline:
            content: bytes = self._stream.getvalue().to_pybytes()
            return content
        self._stream.close()
        if self._path != self._target:
            self._files.move(self._path, self._target)
        return b""

    def _opened(self) -> Any:  # noqa: ANN401 - pyarrow's
        self._files, folder = file_system(self._root)
        self._target = f"{folder.rstrip('/')}/{self._name}"
        moves = isinstance(self._files, fs.LocalFileSystem)
        # On an object store a file is there when its stream is closed.
        self._path = f"{folder.rstrip('/')}/.{self._name}.{uuid.uuid4().hex}" if moves else self._target
        if moves:
            self._files.create_dir(folder, recursive=True)
        return self._files.open_output_stream(self._path)


def as_read(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a file as pyarrow reads them: a file has no type of Arrow's own, such as durations.

    Examples
    --------
    >>> as_read(pa.schema([("wait", pa.duration("us")), ("n", pa.int32())])).types
    [DataType(int64), DataType(int32)]
    """
    written = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), written, store_schema=False)
    return pq.read_schema(pa.BufferReader(written.getvalue())).remove_metadata()


def with_place(schema: pa.Schema) -> pa.Schema:
    """Return the columns of copied rows."""
    return pa.schema([*schema, (FILE, pa.string()), (ROW, pa.int64())])


def aligned_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema."""
    return (
        rows
        if rows.schema.equals(schema)
        else pa.Table.from_batches([aligned(batch, schema) for batch in rows.to_batches()], schema)
    )


def cut_rows(file: RowsOfFile, leaving: TableFileWriter | None, rest: RestWriter | None) -> None:
    """Write the wanted rows of a file.

    Raises
    ------
    DamagedError
        If the file is gone, or lacks one of them.
    """
    what = f"the file {file.path or file.name} of {file.root or 'the state'}, which has rows that were staged,"
    found = 0
    masks = [None if bits is None else mask_of(bits, file.rows) for bits in (file.admitted_bits, file.rest_bits)]
    wanted = sum(int(mask.sum()) for mask in masks if mask is not None)
    try:
        with file.opened() as stream:
            for rows, position in _pieces(stream, file):
                for mask, writer in zip(masks, (leaving, rest), strict=True):
                    if mask is None or writer is None:
                        continue
                    is_mine = _taken(mask, position)
                    taken = rows if is_mine.all() else rows.filter(pa.array(is_mine))
                    if not taken.num_rows:
                        continue
                    found += taken.num_rows
                    if isinstance(writer, RestWriter):
                        writer.add(taken, file.name, pa.array(position[is_mine]))
                    else:
                        for batch in taken.to_batches():
                            writer.add(aligned(batch, writer.schema))
    except (pa.ArrowException, OSError, KeyError) as error:  # a column is missing
        raise DamagedError(what, f"it cannot be read ({error})", RESTORE_CHECKPOINT) from error
    if found != wanted:
        raise DamagedError(what, f"{wanted} rows of it are asked for, and it has {found} of them", RESTORE_CHECKPOINT)


def _pieces(stream: Any, file: RowsOfFile) -> Iterator[tuple[pa.Table, np.ndarray[Any, Any]]]:  # noqa: ANN401 - pyarrow's
    """Yield the user's columns of a file's rows, and the rows' positions in the file in which they were staged."""
    first = 0
    parquet = pq.ParquetFile(stream, page_checksum_verification=True)
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, use_threads=False)
        position = np.arange(first, first + rows.num_rows)
        first += rows.num_rows
        if file.has_places:
            is_mine = pc.equal(rows.column(FILE), file.name)
            rows = rows.filter(is_mine)
            position = rows.column(ROW).to_numpy()
            rows = rows.drop_columns([FILE, ROW])
        yield rows, position


def _taken(mask: Bools, position: np.ndarray[Any, Any]) -> Bools:
    is_there = position < len(mask)
    found: Bools = is_there & mask[np.where(is_there, position, 0)] if len(mask) else np.zeros(len(position), bool)
    return found


@dataclass(frozen=True, slots=True)
class SourceRests:
    """A function from rows of files to their rests; `mapInArrow` runs it on rows in the order of their files.

    All rows of a file are in one task.
    """

    place: StagingPlace
    names: tuple[str, ...]
    """Names of the columns in order: PySpark's `mapInArrow` rejects names with a backtick."""

    rests: Mapping[str, str]
    """The name of the rest of each file."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the name of each rest, the number of its rows, and the sum of their positions."""
        set_loaded_aside()
        schema, open_rest = with_place(self.place.form.schema), None
        for batch in batches:
            rows = as_nullable(batch).rename_columns(list(self.names)).select(schema.names)
            for file, part in _by_file(aligned(rows, schema)):
                if open_rest is None or open_rest.file != file:
                    if open_rest is not None:
                        yield open_rest.finish()
                    open_rest = _OpenRest(self.place, file, self.rests[file])
                open_rest.add(part)
        if open_rest is not None:
            yield open_rest.finish()


class _OpenRest:
    """A rest that is not yet whole."""

    def __init__(self, place: StagingPlace, file: str, rest: str) -> None:
        self.file, self._rest = file, rest
        self._writer = RestWriter(place, rest, is_read=False)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = self._messages = self._positions = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._messages += rows.num_rows
        self._positions += pc.sum(rows.column(ROW)).as_py() or 0
        self._gathered.append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._write()

    def finish(self) -> pa.RecordBatch:
        if self._gathered:
            self._write()
        self._writer.finish()
        return pa.RecordBatch.from_pydict(
            {"rest": [self._rest], "messages": [self._messages], "positions": [self._positions]}
        )

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._gathered).combine_chunks()
        position = rows.column(ROW)
        self._writer.add(rows.drop_columns([FILE, ROW]), self.file, position)
        self._gathered, self._gathered_bytes = [], 0


def _by_file(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each file, which follow one another."""
    if not rows.num_rows:
        return
    coded = rows.column(FILE).dictionary_encode()
    code = coded.indices.to_numpy()
    ends = [0, *(np.flatnonzero(np.diff(code)) + 1).tolist(), rows.num_rows]
    for first, end in pairwise(ends):
        yield coded.dictionary[int(code[first])].as_py(), rows.slice(first, end - first)
