"""A stager writes rows to Parquet files as they come, and passes on only their digests.

It runs as `mapInArrow`, once per attempt at a task. A task has two files open: rows of tenants that were short in the
last batch (`Hint`) go to one in the control directory, all others to one in the sink's table, or beside the first where
the sink is no table that takes files. A file is written when `FILE_BYTES` are gathered, and at the end of the task, and
its digest follows. So a digest names only files that are whole.

Rows are told apart by Spark's hash of them, which does not see everything inside maps, variants, arrays and structs.
Such columns are hashed here once more (`row_digests`), because a batch that runs again may deal its rows into other
files, and must decide the same: equal hashes mean equal rows, not neighbouring places.

The hint, which names those tenants, decides nothing. Where it is wrong, or gone, or older than the batch, a file is cut
that need not have been. Where it is gone, no name of a file says when it may be swept, so nobody sweeps these files. A
tenant's name stands for all of its namespaces: the tails of names differ from batch to batch, and a file of the table
is cut by the first row that stays.

Rows are written by a schema in which everything may be null, for pyarrow writes no null of a struct whose fields may
not be null. Spark's variants and shapes are such structs, and so are structs of the user. The bytes of an array do not
depend on what may be null, so rows get such a schema without a copy.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Bools, Dimension
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.record import pack
from spark_throttle.spark.delta.table_files import FILE_BYTES, FileForm, TableFileWriter, write_parquet
from spark_throttle.spark.rows.digest import HelperColumns, InlineFile, StagedFile, digest_frames
from spark_throttle.spark.rows.frames import FRAME_BYTES, HELPER_PREFIX, NAMESPACE, TIE, FrameKind, aligned, frame_batch
from spark_throttle.spark.rows.partition_names import PARTITION_PREFIX
from spark_throttle.spark.rows.row_digests import row_digests
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

_FILE: Final = "staging-hint.json"
_NO_TURN: Final = 10**12 - 1
"""A turn that no job comes to."""

_MOST_TENANTS: Final = 10_000
_AS_BYTES: Final = "surrogateescape"

STAGED: Final = "staged"
"""The folder of staged files in the control directory."""


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which everything may be null, but for the keys of maps.

    Examples
    --------
    >>> inner = pa.field("value", pa.binary(), nullable=False)
    >>> nullable(pa.schema([("v", pa.struct([inner]))])).field("v").type.field("value").nullable
    True
    """
    return pa.schema([_nullable(field) for field in schema])


def as_nullable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with a schema in which everything may be null, without a copy.

    Examples
    --------
    >>> inner = pa.struct([pa.field("value", pa.int64(), nullable=False)])
    >>> rows = pa.RecordBatch.from_arrays([pa.array([{"value": 1}, None], inner)], names=["v"])
    >>> as_nullable(rows).column("v").to_pylist()
    [{'value': 1}, None]
    """
    schema = nullable(rows.schema)
    return rows if rows.schema.equals(schema) else described(rows, schema)


def described(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with a schema of the same types that says otherwise what may be null, without a copy."""
    _, content = rows.__arrow_c_array__()
    return pa.RecordBatch._import_from_c_capsule(schema.__arrow_c_schema__(), content)  # noqa: SLF001 - Arrow's own way


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(part) for part in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    return pa.field(field.name, kind, nullable=True, metadata=field.metadata)


def short_tenants(report: UsageReport) -> list[str]:
    """Return the tenants of which rows waited after a batch, or were rejected in it.

    A name that is no UTF-8 is given as Python gives such a file's: with a surrogate for each byte that is no text.
    """
    stayed = (report.waiting + report.rejected)[:, Dimension.MESSAGES] > 0
    found: set[bytes] = set(_tenants(report.names.filter(pa.array(stayed))).to_pylist())
    return [name.decode(errors=_AS_BYTES) for name in sorted(found)[:_MOST_TENANTS]]


@dataclass(frozen=True, slots=True)
class Hint:
    """What a stager is told."""

    turn: int = _NO_TURN
    """The decider's next turn, more or less: the name of a file says with it when the file may be swept if no state has
    it. A batch that is run again has the number of the turn after it, if it had come so far. A turn too small would let
    a batch sweep what a zombie of its own has just staged, whose state may be the last one."""

    tenants: tuple[str, ...] = ()
    """The tenants of whose rows some will probably stay."""


def write_hint(directory: Directory, hint: Hint) -> None:
    """Write the hint for the next batch."""
    directory.write(_FILE, json.dumps(asdict(hint)).encode())


def read_hint(directory: Directory) -> Hint:
    """Return the hint that was written last; one that says nothing if it is gone, or cannot be read."""
    content = directory.read(_FILE)
    if content is None:
        return Hint()
    try:
        found = json.loads(content)
        return Hint(int(found["turn"]), tuple(map(str, found["tenants"])))
    except (ValueError, KeyError, TypeError):
        return Hint()


def of_tenants(namespaces: pa.Array, tenants: Sequence[str]) -> Bools:
    """Return which namespaces are of one of the tenants.

    Examples
    --------
    >>> of_tenants(pa.array(["a/x", "ab/x", None, "b"]), ["a", "b"]).tolist()
    [True, False, False, True]
    """
    coded = namespaces.dictionary_encode()
    named = pa.array([tenant.encode(errors=_AS_BYTES) for tenant in tenants], pa.binary())
    is_one = pc.is_in(_tenants(coded.dictionary), value_set=named).take(coded.indices)
    found: Bools = is_one.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - pyarrow's
    return found.astype(np.bool_)


def _tenants(namespaces: pa.Array) -> pa.Array:
    """Return the tenants as bytes: a name may be no UTF-8."""
    return pc.list_element(pc.split_pattern(namespaces.cast(pa.string()), "/", max_splits=1), 0).cast(pa.binary())


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """Where files are staged, and in which form."""

    root: str
    form: FileForm
    in_table: bool
    is_inline: bool = False
    """Whether files lie nowhere: their bytes travel with their digests (`waiting_files`)."""

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
        columns = {name: table.column(name) for name in table.column_names if name.startswith(HELPER_PREFIX)}
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
