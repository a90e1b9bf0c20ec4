"""The files of waiting rows that Spark does not read: those of former columns, and inline ones, which lie in the state.

Spark reads a file of a wider type, but none of a narrower one, whatever its values are. A start has made sure that the
rows that wait lose nothing (`state_reader.misfit`), so pyarrow reads them, and they leave with their values in the new
types. What columns a file was written with is in its footer, as a digest.

An *inline* file is the same Parquet file, of about `frames.FRAME_BYTES` of rows. Where tasks cannot write storage, its
bytes travel with its digest. It passes through the decider unopened: in a frame behind the stager, and in one behind
the decider if rows of it leave. The decider keeps those of which rows wait, and does itself what executors do to files
in the control directory: it cuts a rest out of a file that it would keep for a few rows, and packs what is left of
many. So a queue costs the state its bytes, in every batch: it must be short. When the executors can write again, the
decider writes what it holds to the control directory, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import parquet as pq
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.definition import digest
from spark_throttle.core.quota import Int64s
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.record import pack, unpack
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.move.cutting import (
    FILE,
    ROW,
    RestWriter,
    RowsOfFile,
    aligned_table,
    as_read,
    cut_rows,
    with_place,
)
from spark_throttle.spark.move.stager import STAGED, StagingPlace
from spark_throttle.spark.rows.digest import InlineFile
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

_COLUMNS: Final = "spark_throttle.columns"

_CHECKED: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
_WHAT: Final = "a file of rows in the decider's state"


def columns_in_footer(schema: StructType) -> dict[str, str]:
    """Return what the footer of a file says of its columns."""
    return {_COLUMNS: digest(schema.json())}


def _named(name: str) -> str:
    return f"the file of waiting rows {name}"


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say of a file that cannot be read that it is damaged."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(_named(name), f"it cannot be read ({error})", RESTORE_CHECKPOINT) from error


def is_former(place: StagingPlace, name: str, rows: int | None) -> bool:
    """Return whether a file was written with other columns than the place's.

    Parameters
    ----------
    rows
        How many rows it must have: Spark reads a file to its end, wherever that is. `None` of a copy, of which each
        row is looked for (`places_in`).

    Raises
    ------
    DamagedError
        If it is gone, cannot be read, or has another number of rows.
    """
    files, root = file_system(place.root)
    with _told(name):
        found = pq.read_metadata(f"{root.rstrip('/')}/{name}", filesystem=files)
    if rows is not None and found.num_rows != rows:
        problem = f"it has {found.num_rows} rows, and had {rows}"
        raise DamagedError(_named(name), problem, RESTORE_CHECKPOINT)
    footer = found.metadata or {}
    return bool(footer.get(_COLUMNS.encode()) != place.form.footer.get(_COLUMNS, "").encode())


@dataclass(frozen=True, slots=True)
class FormerFiles:
    """A function that reads files, with the rows' places; `mapInArrow` runs it with the numbers of the files as ids."""

    place: StagingPlace
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of the place."""
        set_loaded_aside()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._rows(self.names[number])

    def _rows(self, name: str) -> Iterator[pa.RecordBatch]:
        files, root = file_system(self.place.root)
        with _told(name):
            opened = files.open_input_file(f"{root.rstrip('/')}/{name}")
        with opened as stream:
            yield from rows_with_places(stream, name, self.place)


def rows_with_places(stream: Any, name: str, place: StagingPlace) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow's
    """Yield the rows of an open file with the columns of a place, and the place in which each was staged.

    Raises
    ------
    DamagedError
        If it cannot be read.
    """
    schema, first = with_place(place.form.schema), 0
    in_file = as_read(schema)
    for group in _row_groups(stream, name):
        rows = group
        if FILE not in rows.column_names:
            rows = rows.append_column(FILE, pa.repeat(name, len(rows)))
            rows = rows.append_column(ROW, pa.array(range(first, first + len(rows)), pa.int64()))
        first += len(rows)
        yield from in_columns(rows, schema, in_file).to_batches()


def _row_groups(stream: Any, name: str) -> Iterator[pa.Table]:  # noqa: ANN401 - pyarrow's
    with _told(name):
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
    for group in range(parquet.num_row_groups):
        with _told(name):
            rows = parquet.read_row_group(group, use_threads=False)
        yield rows


def in_columns(rows: pa.Table, schema: pa.Schema, in_file: pa.Schema) -> pa.Table:
    """Return rows of a file, of whatever columns it was written with, with the columns of a schema.

    Parameters
    ----------
    in_file
        The same columns as pyarrow reads them (`cutting.as_read`).
    """
    return aligned_table(rows, in_file).cast(schema)


def places_in(root: str, name: str) -> dict[str, Int64s]:
    """Return the positions of the rows of a copy, by the file in which they were staged.

    Raises
    ------
    DamagedError
        If it is gone, or cannot be read.
    """
    files, path = file_system(root)
    with _told(name):
        found = ds.dataset([f"{path.rstrip('/')}/{name}"], filesystem=files, format=_CHECKED)
        table = found.to_table(columns=[FILE, ROW], use_threads=False)
    coded = table.column(FILE).combine_chunks().dictionary_encode()
    code, row = coded.indices.to_numpy(), table.column(ROW).to_numpy()
    return {each: row[code == at] for at, each in enumerate(coded.dictionary.to_pylist())}


@dataclass(frozen=True, slots=True, eq=False)
class InlineFiles:
    """The inline files of which rows wait, as the decider's state holds them."""

    names: tuple[str, ...] = ()
    contents: tuple[bytes, ...] = ()

    def with_arrived(self, arrived: Iterable[InlineFile]) -> InlineFiles:
        """Return these files, and those that arrive."""
        found = sorted(arrived, key=lambda file: file.name)
        return InlineFiles(
            (*self.names, *(file.name for file in found)), (*self.contents, *(file.content for file in found))
        )

    def content(self, name: str) -> bytes:
        """Return the bytes of a file; one that is not here is an error, as in `only`."""
        if name not in self.names:
            raise DamagedError(_WHAT, f"the file {name} is not there", RESTORE_CHECKPOINT)
        return self.contents[self.names.index(name)]

    def cut(self, files: Sequence[FileAnswer], place: StagingPlace) -> InlineFiles:
        """Return these files, and the rests and packs that a batch makes of them."""
        rests: dict[str, RestWriter] = {}
        for file in files:
            name, bits = file.rest or file.pack, file.rest_bits or file.pack_bits
            if not file.is_inline or bits is None:
                continue
            rest = rests.setdefault(name, RestWriter(place, name, is_inline=True))
            content = self.content(file.copy or file.name)
            rows = RowsOfFile("", "", file.name, file.rows, None, bits, name, bool(file.copy), content)
            cut_rows(rows, None, rest)
        return self.with_arrived(InlineFile(name, rest.finish()) for name, rest in rests.items())

    def only(self, names: Iterable[str]) -> InlineFiles:
        """Return the files of some names.

        Raises
        ------
        DamagedError
            If one is not here.
        """
        wanted = tuple(sorted(set(names)))
        return InlineFiles(wanted, tuple(map(self.content, wanted)))

    def rows(self, place: StagingPlace) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files with the columns of a place, and the rows' places."""
        for name, content in zip(self.names, self.contents, strict=True):
            yield from rows_with_places(pa.BufferReader(content), name, place)

    def schema(self) -> pa.Schema:
        """Return the columns of the rows, the widest type of each, without the places."""
        found = (pq.read_schema(pa.BufferReader(content)).remove_metadata() for content in self.contents)
        together = pa.unify_schemas(list(found), promote_options="permissive")
        return pa.schema([field for field in together if field.name not in (FILE, ROW)])

    def frames(self) -> Iterator[bytes]:
        """Yield a frame of each file."""
        for name, content in zip(self.names, self.contents, strict=True):
            yield pack(InlineFile(name, content))

    def write(self, control_path: str) -> None:
        """Write the files to the control directory; an earlier attempt at the batch may have written the same."""
        for name, content in zip(self.names, self.contents, strict=True):
            Directory(control_path).write(f"{STAGED}/{name}", content)


def inline_files_of(stored: bytes | None) -> InlineFiles:
    """Return the files that a state holds; `None` is stored for none."""
    return InlineFiles() if stored is None else unpack(InlineFiles, bytes(stored), _WHAT)


def inline_file_of(frame: bytes) -> InlineFile:
    """Return the file in a frame."""
    return unpack(InlineFile, frame, "a staged file that travels with its digest")


@dataclass(frozen=True, slots=True)
class InlineRows:
    """A function from frames of inline files to their rows, with the rows' places; `mapInArrow` runs it once per task.

    Examples
    --------
    >>> list(InlineRows(StagingPlace("", None, in_table=False))([]))
    []
    """

    place: StagingPlace
    """Whose columns the rows get."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        set_loaded_aside()
        for batch in batches:
            for frame in batch.column("frame"):
                file = inline_file_of(frame.as_py())
                yield from InlineFiles((file.name,), (file.content,)).rows(self.place)


@dataclass(frozen=True, slots=True)
class StoredInlineRows:
    """A function from what states hold of inline files to their rows, with the rows' places, for `mapInArrow`."""

    place: StagingPlace

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for batch in batches:
            for stored in batch.column("inline"):
                yield from inline_files_of(stored.as_py()).rows(self.place)
