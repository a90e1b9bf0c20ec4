"""A stager writes rows to Parquet files as they come, and passes on only their digests.

It runs as `mapInArrow`, once per attempt at a task. A task has two files open: rows of tenants that were short in the
last batch (`hint`) go to one in the control directory, all others to one in the sink's table, or beside the first where
the sink is no table that takes files. A file is written when `FILE_BYTES` are gathered, and at the end of the task, and
its digest follows. So a digest names only files that are whole.

Rows are told apart by Spark's hash of them, which does not see everything inside maps, variants, arrays and structs.
Such columns are hashed here once more (`row_digests`), because a batch that runs again may deal its rows into other
files, and must decide the same: equal hashes mean equal rows, not neighbouring places.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.files.storage import Directory, file_system
from spark_throttle.record import pack
from spark_throttle.spark.delta.table_files import FILE_BYTES, FileForm, TableFileWriter, write_parquet
from spark_throttle.spark.move.hint import Hint, of_tenants, read_hint
from spark_throttle.spark.move.nullability import as_nullable
from spark_throttle.spark.rows.digest import InlineFile, StagedFile, digest_frames
from spark_throttle.spark.rows.frames import FRAME_BYTES, NAMESPACE, TIE, FrameKind, aligned, frame_batch
from spark_throttle.spark.rows.helper_columns import HelperColumns
from spark_throttle.spark.rows.partition_names import PARTITION_PREFIX
from spark_throttle.spark.rows.row_digests import row_digests
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

STAGED: Final = "staged"
"""The folder of staged files in the control directory."""

_HELPER_PREFIX: Final = "__throttle_"


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where files are staged, and in which form."""

    root: str
    form: FileForm
    in_table: bool
    is_inline: bool = False
    """Whether files lie nowhere: their bytes travel with their digests (`inline_files`)."""

    @property
    def file_bytes(self) -> int:
        """About how many bytes of rows make a file."""
        return FRAME_BYTES if self.is_inline else FILE_BYTES

    def stage(self, rows: pa.Table, helpers: pa.Table, turn: int) -> Iterator[pa.RecordBatch]:
        """Write rows to a file, and yield the frames of its digest; before them, that of its bytes if it is inline."""
        if not self.is_inline:
            written = self.writer(turn).write(rows)
            file = StagedFile(written.path, self.in_table, rows.num_rows, written.size_bytes, written.stats)
        else:
            sink = pa.BufferOutputStream()
            stats = write_parquet(sink, rows, self.form)
            content = sink.getvalue()
            name = f"{turn:012d}-{uuid.uuid4()}.parquet"
            file = StagedFile(
                name, in_table=False, rows=rows.num_rows, size_bytes=content.size, stats=stats, is_inline=True
            )
            yield frame_batch(FrameKind.INLINE, pack(InlineFile(name, content.to_pybytes())))
        yield from digest_frames(file, helpers)

    def writer(self, turn: int = 0) -> TableFileWriter:
        """Return a writer of files, whose names say a turn if they lie in the control directory."""
        files, root = file_system(self.root)
        return TableFileWriter(files, root, self.form, "part-" if self.in_table else f"{turn:012d}-")


@dataclass(frozen=True, slots=True)
class Stager:
    """A function from rows to digests of the files in which it writes them; `mapInArrow` runs it once per task."""

    names: tuple[str, ...]
    """Names of the columns in order: PySpark's `mapInArrow` rejects names with a backtick."""

    derived: HelperColumns
    place: StagingPlace
    """Where rows lie that will probably leave."""

    waiting_place: StagingPlace
    """Where rows lie that will probably wait."""

    control_path: str
    half_hashed: tuple[str, ...] = ()
    """The columns of which Spark's hash does not see everything."""

    partition_columns: tuple[str, ...] = ()
    """Partition columns of the sink: of their values the decider must know whether they have a folder."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the digests of the files."""
        set_loaded_aside()
        # What the executors do not see says nothing, and a hint moves rows between files that lie somewhere.
        hint = Hint() if self.place.is_inline else read_hint(Directory(self.control_path))
        rest = _OpenFile(self.place, hint.turn)
        hot = _OpenFile(self.waiting_place, hint.turn)
        for rows in batches:
            if not rows.num_rows:
                continue
            payload, helpers = self._split(rows)
            is_hot = of_tenants(helpers.column(NAMESPACE).combine_chunks(), hint.tenants) if hint.tenants else None
            if is_hot is None or not is_hot.any():
                yield from rest.add(payload, helpers)
            elif is_hot.all():
                yield from hot.add(payload, helpers)
            else:
                for file, mask in ((rest, ~is_hot), (hot, is_hot)):
                    yield from file.add(payload.filter(pa.array(mask)), helpers.filter(pa.array(mask)))
        yield from rest.write()
        yield from hot.write()

    def _split(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Table]:
        """Return the user's columns, and the helper columns."""
        table = self.derived.restore(pa.Table.from_batches([rows]).rename_columns(list(self.names)))
        columns = {name: table.column(name) for name in table.column_names if name.startswith(_HELPER_PREFIX)}
        columns[NAMESPACE] = columns[NAMESPACE].cast(pa.string())  # it may have 64-bit offsets, or be binary
        if self.half_hashed:
            seen = table.column(TIE).to_numpy().view(np.uint64) ^ row_digests(table.select(list(self.half_hashed)))
            columns[TIE] = pa.array(seen.view(np.int64))
        columns |= {f"{PARTITION_PREFIX}{name}": table.column(name) for name in self.partition_columns}
        (payload,) = table.select(self.place.form.schema.names).combine_chunks().to_batches()
        return payload.replace_schema_metadata(None), pa.table(columns)


class _OpenFile:
    """The rows of a file that is not yet written."""

    def __init__(self, place: StagingPlace, turn: int) -> None:
        self._place, self._turn = place, turn
        self._rows: list[pa.RecordBatch] = []
        self._helpers: list[pa.Table] = []
        self._gathered_bytes = 0

    def add(self, rows: pa.RecordBatch, helpers: pa.Table) -> Iterator[pa.RecordBatch]:
        """Add rows; yield the digest of the file if it is full, and so was written."""
        schema = self._place.form.schema
        self._rows.append(rows if rows.schema.equals(schema) else aligned(as_nullable(rows), schema))
        self._helpers.append(helpers)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= self._place.file_bytes:
            yield from self.write()

    def write(self) -> Iterator[pa.RecordBatch]:
        """Write the rows, if there are any, and yield the digest of their file."""
        if not self._rows:
            return
        table = pa.Table.from_batches(self._rows, self._place.form.schema)
        helpers = pa.concat_tables(self._helpers)
        self._rows, self._helpers, self._gathered_bytes = [], [], 0
        yield from self._place.stage(table, helpers, self._turn)
