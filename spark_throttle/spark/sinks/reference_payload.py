"""The payload of a batch that was decided on references: its rows, read by Spark when they leave, once.

The operator's frames name the rows by their places. Before a sink is given anything, three things happen:

- The two readings are compared. Each file must be what its extent says of it, and Spark counts the admitted rows by its
  own evaluation of the user's expressions: their number, and the sums of their positions, of the lengths of their
  namespaces and, where the size is a column, of their sizes. A file of which nothing stays is read as it is: its number
  of rows says that all positions are there. Of the rejected rows Spark counts the number and the positions, and whether
  those without a namespace or a size have none. If the stream drops rows by a condition, Spark counts the rows that it
  keeps of the batch's files. All must be what was decided.
- Rows that join the queue are copied to the control directory (`references.waiting_rows`), and the copies are counted.
- If leftovers of earlier copies are many, those of their rows that wait are copied to one folder, and counted too.
- The account of waiting rows is written.

When all sinks have taken the batch, the files are compared with their extents once more.

Rows have no order within a batch, as in any table. Only a sink that is no table and no file, such as a topic, is given
the rows of each namespace in the order in which they were admitted, which takes a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.core.codec import unpack_usage
from spark_throttle.core.quota import Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.reading import PLACE
from spark_throttle.spark.references.selection import (
    FileRows,
    admitted_rows,
    coded_rows,
    distinct_files,
    file_numbers,
    positions,
    split_by_file,
)
from spark_throttle.spark.references.waiting_rows import FOLDER, WaitingAccount, WaitingRows, is_in_ranges
from spark_throttle.spark.rows.frames import FrameKind, decode
from spark_throttle.spark.shard.shard_batch import THROTTLE
from spark_throttle.spark.sinks.batch_sink import BatchFunction, Target
from spark_throttle.spark.sinks.payload_reader import FILE, ROW, PayloadReader, PayloadSource

WaitingPlaces = Callable[[SparkSession, int], Int64s]
"""Returns the places of the rows that wait after a batch; called rarely, for it opens the state of all shards."""

Transform = Callable[[DataFrame, Sequence[str]], DataFrame]
"""The user's row-wise expressions; the columns that are named beside the rows are kept."""

_CODE: Final = "__throttle_code"
_KINDS: Final = (FrameKind.ADMITTED, FrameKind.REJECTED, FrameKind.WAITING)
_OF_CONDITION: Final = "that meet the stream's condition"
_NO_NAMESPACE, _NO_SIZE = "namespace_missing", "size_missing"
_REMEDY: Final = (
    "restore its files; or, if an expression makes several rows of one or depends on other rows, set "
    "option('throttle.source', 'frames') on a new checkpoint"
)


@dataclass(frozen=True, slots=True)
class ReferencePayload:
    """How the payload of a query's batches is read.

    Its methods run on the driver, once per attempt at a batch.
    """

    source: PayloadSource
    transform: Transform
    namespace: Column
    size: Column | None
    """The size, if it is a column: to compute it from a payload, the check would read every row as a whole."""

    order: tuple[Column, ...]
    waiting_after: WaitingPlaces
    batches_retained: int
    drops_rows: bool = False
    """Whether the stream drops rows by a condition."""

    keeps_order: bool = False
    """Whether the sink is given the rows of a namespace in order, for which each must have its place."""

    def take(self, frames: DataFrame, batch: int) -> ReferenceRows:
        """Return the rows of a batch; every partition of the frames is computed, once.

        Raises
        ------
        SourceChangedError
            If Spark does not see the rows that were decided.
        """
        tables: dict[FrameKind, list[pa.Table]] = {kind: [] for kind in _KINDS}
        usage = []
        for row in frames.select("kind", "frame").collect():
            kind = FrameKind(row["kind"])
            if kind == FrameKind.USAGE:
                usage.append(bytes(row["frame"]))
            else:
                tables[kind].append(decode(bytes(row["frame"])))
        admitted, rejected, joined = (pa.concat_tables(found) if found else None for found in tables.values())
        waiting = WaitingRows(Directory(self.source.control_path), self.batches_retained)
        before = waiting.before(batch)
        reader = PayloadReader(frames.sparkSession, batch, self.source, before)
        places = _places(admitted)
        stays = {*distinct_files(_places(rejected)), *distinct_files(_places(joined))}

        def is_whole(file: int) -> bool:
            return not self.keeps_order and file not in stays and before.folder_of(file) is None

        whole, others = split_by_file(places, is_whole)
        rows = ReferenceRows(self, reader, usage, places, whole, others, _files(others), rejected)
        reports = [unpack_usage(block, f"a usage report of batch {batch}") for block in usage]
        if self.drops_rows:
            self._check_kept(reader, reports, rows)
        rows.check(reports)
        self._copy(reader, _places(joined), f"{FOLDER}/batch={batch}")
        left = np.concatenate([rows.admitted_places, _places(rejected)])
        account = before.after(batch, file_numbers(left), file_numbers(_places(joined)))
        waiting.settle(self._with_leftovers_joined(frames.sparkSession, reader, account, left))
        return rows

    def _with_leftovers_joined(
        self, spark: SparkSession, reader: PayloadReader, account: WaitingAccount, left: Int64s
    ) -> WaitingAccount:
        """Return the account of a batch after it has copied what waits in leftovers, if they are many."""
        leftovers = account.leftovers()
        if not leftovers:
            return account
        waits = self.waiting_after(spark, account.batch - 1)
        places = np.sort(np.setdiff1d(waits[is_in_ranges(leftovers, file_numbers(waits))], left, assume_unique=True))
        after = account.with_joined(leftovers)
        decided, counted = len(places), after.folders[-1].waiting_messages
        if decided != counted:
            raise DamagedError(
                f"the account of waiting rows of batch {account.batch - 1}",
                f"{counted} rows of it wait, and in the state {decided} of them do",
                RESTORE_CHECKPOINT,
            )
        self._copy(reader, places, after.folders[-1].name)
        return after

    def _check_kept(self, reader: PayloadReader, reports: Sequence[UsageReport], rows: ReferenceRows) -> None:
        """Refuse a batch if Spark keeps another number of the rows of its files than were decided on.

        Those of whole files are counted among the admitted rows.
        """
        arrived = sum(int(report.offered[:, 0].sum()) + report.invalid_messages for report in reports)
        in_whole = len(rows.admitted_places) - len(rows.looked_up_places)
        found = reader.arrived(besides=rows.whole_files)
        seen = (0,) if found is None else _sums(self.transform(found, ()), [F.lit(1)])
        self.compare((arrived - in_whole,), seen, f"rows {_OF_CONDITION}")

    def _copy(self, reader: PayloadReader, places: Int64s, folder: str) -> None:
        """Copy waiting rows to a folder; an earlier attempt at the batch copied the same rows."""
        if not len(places):
            return
        reader.admitted(admitted_rows(places)).write.mode("overwrite").parquet(f"{self.source.control_path}/{folder}")
        seen = _sums(reader.copies(folder), [F.lit(1), F.col(FILE), F.col(ROW)])
        self.compare(_of_places(places), seen, "files and positions of waiting rows")

    def compare(self, decided: tuple[int, ...], seen: tuple[int, ...], of: str) -> None:
        """Refuse a batch if Spark sees other rows than those that were decided."""
        if seen != decided:
            raise SourceChangedError(
                f"the source {self.source.root}",
                f"a batch was decided for rows whose number and sums (of {of}) are {decided}, and Spark reads rows "
                f"with {seen}",
                _REMEDY,
            )


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """The rows of a batch that was decided on references."""

    payload: ReferencePayload
    reader: PayloadReader
    usage: list[bytes]
    """The packed usage reports."""

    admitted_places: Int64s
    whole_files: Sequence[int]
    """The numbers of the files that the batch brings and of which nothing stays."""

    looked_up_places: Int64s
    """The places of the admitted rows of other files."""

    looked_up_files: Sequence[FileRows]
    """The same by file: here both the check and the sink look rows up."""

    explained: pa.Table | None
    """The places of the rejected rows, with the ``throttle`` column."""

    def admitted(self, target: Target | BatchFunction) -> DataFrame:  # noqa: ARG002 - the payload knows it
        """Return the admitted rows, in their order if the target may depend on it."""
        payload = self.payload
        if not len(self.admitted_places):
            return payload.transform(self.reader.nothing(), ())
        if not payload.keeps_order:
            return payload.transform(self._selected().drop(FILE, ROW), ())
        rows = payload.transform(self._selected(), (FILE, ROW)).repartition(payload.namespace)
        order = [column.asc_nulls_last() for column in payload.order]
        return rows.sortWithinPartitions(*order, FILE, ROW).drop(FILE, ROW)

    def rejected(self, target: Target) -> DataFrame:  # noqa: ARG002 - the files say how many tasks there are
        """Return the rejected rows, with the ``throttle`` column."""
        assert self.explained is not None  # noqa: S101 - called only if rows were rejected
        distinct, codes = distinct_values(self.explained.column(THROTTLE).combine_chunks())
        table = pa.table({_CODE: pa.array(np.arange(1, len(distinct) + 1)), THROTTLE: distinct})
        coded = self.reader.coded(coded_rows(_places(self.explained), codes), _CODE)
        explanations = F.broadcast(coded.sparkSession.createDataFrame(table))
        found = coded.join(explanations, _CODE).select(*self.reader.columns, THROTTLE)
        return self.payload.transform(found, (THROTTLE,))

    def confirm(self) -> None:
        """Refuse the batch if a file became another one while a sink read it."""
        self.reader.check_read()

    def close(self) -> None:
        """Do nothing: no row was kept."""

    def check(self, reports: Sequence[UsageReport]) -> None:
        """Refuse the batch if Spark does not see the rows that were admitted, or those that were rejected."""
        if len(self.admitted_places):
            self._check_admitted(reports)
        if self.explained is not None:
            self._check_rejected(_places(self.explained), self.explained.column(THROTTLE).combine_chunks())

    def _check_admitted(self, reports: Sequence[UsageReport]) -> None:
        payload, others = self.payload, self.looked_up_places
        rows = payload.transform(self._selected(), (FILE, ROW))
        name_bytes, size_bytes = _admitted_sums(reports)
        counted = [F.lit(1), F.col(FILE), F.col(ROW), F.octet_length(payload.namespace)]
        placed = self.admitted_places if payload.drops_rows else others
        files_and_rows = int(file_numbers(others).sum()), int(positions(placed).sum())
        decided = [len(self.admitted_places), *files_and_rows, name_bytes]
        if payload.size is not None:
            counted.append(payload.size.cast("bigint"))
            decided.append(size_bytes)
        of = "files, positions, lengths of namespaces and sizes"
        of += f" of rows {_OF_CONDITION}" if payload.drops_rows else ""
        payload.compare(tuple(decided), _sums(rows, counted), of)

    def _selected(self) -> DataFrame:
        """Return the admitted rows in any order; those of whole files may have zeros in place of their places."""
        parts = []
        if self.whole_files:
            parts.append(self.reader.whole(self.whole_files, has_rows=self.payload.drops_rows))
        if self.looked_up_files:
            parts.append(self.reader.admitted(self.looked_up_files))
        return reduce(DataFrame.unionByName, parts)

    def _check_rejected(self, places: Int64s, throttle: pa.StructArray) -> None:
        payload, reason = self.payload, throttle.field("reason")
        codes = _equal(reason, _NO_NAMESPACE) + 2 * _equal(reason, _NO_SIZE)
        rows = payload.transform(self.reader.coded(coded_rows(places, codes), _CODE), (FILE, ROW, _CODE))
        letters = F.when(F.col(_CODE) == 2, F.octet_length(payload.namespace))
        has_size = F.lit(0) if payload.size is None else F.when((F.col(_CODE) == 3) & payload.size.isNotNull(), 1)
        seen = _sums(rows, [F.lit(1), F.col(FILE), F.col(ROW), letters, has_size])
        payload.compare((*_of_places(places), 0, 0), seen, "files, positions, missing namespaces and missing sizes")


def distinct_values(values: pa.StructArray) -> tuple[pa.StructArray, Int64s]:
    """Return the distinct values of a column of structs, and the position among them of each row's value.

    Examples
    --------
    >>> rows = pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": 1, "b": "x"}])
    >>> distinct, codes = distinct_values(rows)
    >>> distinct.to_pylist(), codes.tolist()
    ([{'a': None, 'b': 'x'}, {'a': 1, 'b': 'x'}], [1, 0, 1])
    """
    code = np.zeros(len(values), dtype=np.int64)
    for field in values.flatten():
        coded = field.dictionary_encode()
        part = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        _, code = np.unique(code * (len(coded.dictionary) + 1) + part, return_inverse=True)
    _, first, found = np.unique(code, return_index=True, return_inverse=True)
    return values.take(pa.array(first)), found.astype(np.int64)


def _places(table: pa.Table | None) -> Int64s:
    if table is None:
        return np.zeros(0, dtype=np.int64)
    found: Int64s = table.column(PLACE).to_numpy()
    return found


def _files(places: Int64s) -> list[FileRows]:
    return admitted_rows(places) if len(places) else []


def _sums(rows: DataFrame, columns: Sequence[Column]) -> tuple[int, ...]:
    found = rows.select(*(F.sum(column).alias(f"s{at}") for at, column in enumerate(columns))).collect()[0]
    return tuple(int(value or 0) for value in found)


def _of_places(places: Int64s) -> tuple[int, ...]:
    return len(places), int(file_numbers(places).sum()), int(positions(places).sum())


def _equal(texts: pa.Array, text: str) -> Int64s:
    found = pc.fill_null(pc.equal(texts, pa.scalar(text)), pa.scalar(value=False))
    equal: Int64s = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return equal


def _admitted_sums(reports: Sequence[UsageReport]) -> tuple[int, int]:
    """Return the bytes of the namespaces of the admitted rows, and the bytes of the rows."""
    size_bytes = name_bytes = 0
    for report in reports:
        size_bytes += int(report.admitted[:, 1].sum())
        lengths = pc.binary_length(report.names).to_numpy(zero_copy_only=False).astype(np.int64)
        name_bytes += int((lengths * report.admitted[:, 0]).sum())
    return name_bytes, size_bytes
