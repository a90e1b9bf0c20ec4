"""The payload of a batch that was decided on references: its rows, read by Spark when they leave, once.

The operator's frames name the rows by their places. Before a sink is given anything, four things happen:

- The two readings are compared. Each file must be what its extent says of it, and Spark computes the same sums of all
  rows of the batch's files, by its own evaluation of the user's expressions, as the first reading had
  (`references.reading_sums`). So a row that waits is compared when it arrives.
- Rows that join the queue are copied to the control directory (`references.waiting_rows`): their files as they are, or
  by Spark; then the places in the copies are summed. When such a row leaves, its place must be in the copies, once
  (`references.waiting_copies`).
- If leftovers of earlier copies are many, those of their rows that wait are copied to one folder.
- The account of waiting rows is written.

When all sinks have taken the batch, the files are compared with their extents once more.

Rows have no order within a batch, as in any table. Only a sink that is no table and no file, such as a topic, is given
the rows of each namespace in the order in which they were admitted, which takes a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.core.quota import Int64s
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.decider.decider_batch import THROTTLE
from spark_throttle.spark.references.reading import PLACE
from spark_throttle.spark.references.reading_sums import ReadingSums, text_of_sums
from spark_throttle.spark.references.selection import distinct_files, file_numbers, positions, split_by_file
from spark_throttle.spark.references.waiting_copies import FILE, PART, ROW, shuffle_tasks
from spark_throttle.spark.references.waiting_rows import (
    CopyKind,
    WaitingAccount,
    WaitingFolder,
    WaitingRows,
    is_in_ranges,
    is_kept_whole,
)
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, FrameKind, decode
from spark_throttle.spark.sinks.batch_sink import BatchFunction, Target
from spark_throttle.spark.sinks.payload_reader import PayloadReader, PayloadSource

WaitingPlaces = Callable[[SparkSession, int], Int64s]
"""Returns the places of the rows that wait after a batch; called rarely, for it opens the state."""

Transform = Callable[[DataFrame, Sequence[str]], DataFrame]
"""The user's row-wise expressions; the columns that are named beside the rows are kept."""

_CODE: Final = "__throttle_code"
_KINDS: Final = (FrameKind.ADMITTED, FrameKind.REJECTED, FrameKind.WAITING, FrameKind.FREED)
_OF_CONDITION: Final = "that meet the stream's condition"
_REMEDY: Final = (
    "restore its files; or, if an expression makes several rows of one or depends on other rows, "
    "read the stream with spark.readStream on a new checkpoint"
)


@dataclass(frozen=True, slots=True)
class ReferencePayload:
    """How the payload of a query's batches is read.

    Its methods run on the driver, once per attempt at a batch.
    """

    source: PayloadSource
    transform: Transform
    """Applied to all rows of files; it drops those that do not meet a condition."""

    transform_decided: Transform
    """The same without the conditions, for rows that were decided on."""

    namespace: Column
    size: Column | None
    """The size, if it is a column: to compute it from a payload, the check would read every row as a whole."""

    order: tuple[Column, ...]
    waiting_after: WaitingPlaces | None
    """`None` if Spark cannot read the states; then leftovers are not joined."""

    batches_retained: int
    drops_rows: bool = False
    """Whether the stream drops rows by a condition."""

    fewest_tasks: int | None = None
    """In how many tasks, at least, the sink is given the rows of a namespace in order, for which each row must have its
    place; `None` if they come in any order."""

    def take(self, frames: DataFrame, batch: int) -> ReferenceRows:
        """Return the rows of a batch; every partition of the frames is computed, once.

        Raises
        ------
        SourceChangedError
            If Spark does not see the rows that were decided.
        DamagedError
            If a row that waited has no copy.
        """
        tables: dict[FrameKind, list[pa.Table]] = {kind: [] for kind in _KINDS}
        usage, arrived = [], []
        for row in frames.select("kind", "frame").collect():
            kind = FrameKind(row["kind"])
            if kind == FrameKind.USAGE:
                usage.append(bytes(row["frame"]))
            elif kind == FrameKind.ARRIVED:
                arrived.append(ReadingSums.unpack(bytes(row["frame"])))
            else:
                tables[kind].append(decode(bytes(row["frame"])))
        freed = tables.pop(FrameKind.FREED)
        admitted, rejected, joined = (pa.concat_tables(found) if found else None for found in tables.values())
        waiting = WaitingRows(Directory(self.source.control_path), self.batches_retained)
        before = waiting.before(batch)
        reader = PayloadReader(frames.sparkSession, batch, self.source, before)
        places = _places(admitted)
        left = np.concatenate([places, _places(rejected)])
        reader.check_sources(distinct_files(left))
        self._check(reader, ReadingSums.total(arrived))
        stays = {*distinct_files(_places(rejected)), *distinct_files(_places(joined))}

        def is_whole(file: int) -> bool:
            return self.fewest_tasks is None and file not in stays and before.folder_of(file) is None

        whole, others = split_by_file(places, is_whole)
        kept_messages = self._kept_messages(reader, left, _places(joined))
        gone = np.concatenate([_places(each) for each in freed if each.num_rows] or [left[:0]]) if freed else left
        account = before.after(batch, file_numbers(gone), file_numbers(_places(joined)), kept_messages=kept_messages)
        if joined is not None:
            self._copy(reader, account.folders[-1], [_places(table) for table in tables[FrameKind.WAITING]])
        account = self._with_leftovers_joined(frames.sparkSession, reader, account, gone)
        waiting.settle(replace(account, schema=self.source.schema.json()))
        return ReferenceRows(self, reader, usage, places, whole, others, rejected)

    def _check(self, reader: PayloadReader, arrived: ReadingSums) -> None:
        """Refuse a batch if Spark does not see the rows that were decided on."""
        found = reader.arrived(has_rows=self.drops_rows)
        seen = ReadingSums()
        if found is not None:
            keep = (ROW,) if self.drops_rows else ()
            rows = self.transform(found, keep)
            columns = [self.namespace.alias(NAMESPACE)]
            if self.size is not None:
                columns.append(self.size.cast("bigint").alias(SIZE))
            size, position = None if self.size is None else SIZE, ROW if self.drops_rows else None
            (sums,) = rows.select(*columns, *keep).selectExpr(text_of_sums(position, NAMESPACE, size)).collect()
            seen = ReadingSums(*(value or 0 for value in sums[0]))
        decided = arrived.comparable(has_positions=self.drops_rows, has_sizes=self.size is not None)
        self._compare(astuple(decided), astuple(seen), _OF_CONDITION if self.drops_rows else "")

    def _kept_messages(self, reader: PayloadReader, left: Int64s, joined: Int64s) -> int:
        """Return the rows of the files in which rows join the queue; 0 if these are not kept whole."""
        numbers = distinct_files(joined)
        messages = len(joined) + int(np.isin(file_numbers(left), numbers).sum())
        files = reader.arrived_files(numbers)
        is_kept = is_kept_whole(len(joined), None if self.drops_rows else messages, files)
        return messages if is_kept else 0

    def _copy(self, reader: PayloadReader, folder: WaitingFolder, joined: Sequence[Int64s]) -> None:
        """Copy rows that join the queue; an earlier attempt at the batch copied the same rows.

        Parameters
        ----------
        joined
            The places of each table, in the order in which they are likely to leave.
        """
        places = np.concatenate(joined)
        reader.copies.clear(folder)
        if folder.kind == CopyKind.FILES:
            reader.keep(distinct_files(places), folder.name)
        elif folder.parts:
            part = np.concatenate([np.arange(len(each)) * folder.parts // len(each) for each in joined])
            rows, parts = reader.parted(places, part.astype(np.int8), PART)
            self._compare_places(places, reader.copies.write(rows, folder.name, parts))
        else:
            self._compare_places(places, reader.copies.write(reader.admitted(places), folder.name))

    def _with_leftovers_joined(
        self, spark: SparkSession, reader: PayloadReader, account: WaitingAccount, left: Int64s
    ) -> WaitingAccount:
        """Return the account of a batch after it has copied what waits in leftovers, if they are many."""
        leftovers = account.leftovers()
        if not leftovers or self.waiting_after is None:
            return account
        waits = self.waiting_after(spark, account.batch - 1)
        places = np.sort(np.setdiff1d(waits[is_in_ranges(leftovers, file_numbers(waits))], left, assume_unique=True))
        after = account.with_joined(leftovers)
        new = after.folders[-1]
        if len(places) != new.waiting_messages:
            raise DamagedError(
                f"the account of waiting rows of batch {account.batch - 1}",
                f"{new.waiting_messages} rows of it wait, and in the state {len(places)} of them do",
                RESTORE_CHECKPOINT,
            )
        self._compare_places(places, reader.copies.write(reader.admitted(places), new.name))
        return after

    def _compare_places(self, places: Int64s, seen: tuple[int, int, int]) -> None:
        decided = len(places), int(file_numbers(places).sum()), int(positions(places).sum())
        self._compare(decided, seen, "that wait, and of their places")

    def _compare(self, decided: tuple[int, ...], seen: tuple[int, ...], of: str) -> None:
        """Refuse a batch if Spark sees other rows than those that were decided."""
        if seen != decided:
            raise SourceChangedError(
                f"the source {self.source.root}",
                f"a batch was decided for {f'rows {of}'.strip()} whose number and sums are {decided}, and Spark reads "
                f"rows with {seen}",
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

    explained: pa.Table | None
    """The places of the rejected rows, with the ``throttle`` column."""

    @property
    def has_admitted(self) -> bool:
        """Whether any row leaves."""
        return bool(len(self.admitted_places))

    def append(self, target: Target, mark: BatchMark) -> None:
        """Append the admitted rows to a target."""
        target.write(self.admitted(target), mark)

    def admitted(self, target: Target | BatchFunction) -> DataFrame:  # noqa: ARG002 - the payload knows it
        """Return the admitted rows, in their order if the target may depend on it."""
        payload = self.payload
        if not len(self.admitted_places):
            return payload.transform(self.reader.nothing(), ())
        if payload.fewest_tasks is None:
            return self._selected(())
        tasks = max(payload.fewest_tasks, shuffle_tasks(len(self.admitted_places)))
        rows = self._selected((FILE, ROW)).repartition(tasks, payload.namespace)
        order = [column.asc_nulls_last() for column in payload.order]
        return rows.sortWithinPartitions(*order, FILE, ROW).drop(FILE, ROW)

    def rejected(self, target: Target) -> DataFrame:  # noqa: ARG002 - the files say how many tasks there are
        """Return the rejected rows, with the ``throttle`` column."""
        assert self.explained is not None  # noqa: S101 - called only if rows were rejected
        distinct, codes = distinct_values(self.explained.column(THROTTLE).combine_chunks())
        table = pa.table({_CODE: pa.array(np.arange(1, len(distinct) + 1)), THROTTLE: distinct})
        coded = self.reader.coded(_places(self.explained), codes, _CODE)
        explanations = F.broadcast(coded.sparkSession.createDataFrame(table))
        found = coded.join(explanations, _CODE).drop(_CODE, FILE, ROW)
        return self.payload.transform_decided(found, (THROTTLE,))

    def confirm(self) -> None:
        """Refuse the batch if a file became another one while a sink read it."""
        self.reader.check_read()

    def close(self) -> None:
        """Do nothing: no row was kept."""

    def _selected(self, keep: Sequence[str]) -> DataFrame:
        """Return the admitted rows, with the columns `keep` of their places; those of whole files may have zeros."""
        parts = []
        if self.whole_files:
            rows = self.reader.whole(self.whole_files)
            parts.append(self.payload.transform(rows if keep else rows.drop(FILE, ROW), keep))
        if len(self.looked_up_places):
            rows = self.reader.admitted(self.looked_up_places)
            parts.append(self.payload.transform_decided(rows if keep else rows.drop(FILE, ROW), keep))
        return reduce(DataFrame.union, parts)


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
