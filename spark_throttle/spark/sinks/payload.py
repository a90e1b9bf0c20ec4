"""The payload of a batch: the decider's answer, and what the driver does by it.

Before a sink is given anything, rows that wait are copied out of files that the batch cuts, and in the same pass rows
that leave these files are written to the table, if there is one that takes files. Out of the files of a source that are
decided on where they lie, Spark copies them. When all sinks have the batch, what the *loaded state* calls left over is
deleted (`move.upkeep`).

Inline files come in frames beside the answer, so their rows pass through the driver: where tasks cannot write,
`persist` is often forbidden too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.core.quota import Int64s
from spark_throttle.core.usage import unpack_usage
from spark_throttle.errors import SourceChangedError
from spark_throttle.spark.columns.payload_columns import to_carried
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.move.answer import Answer, FileAnswer, decided_in, mask_of
from spark_throttle.spark.move.cutting import CUT_DDL, FILE, RESTS_DDL, ROW, Cut, RowsOfFile, SourceRests, cut_file
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.references.second_reading import (
    ReadingSums,
    admitted_rows,
    coded_rows,
    rows_by_file,
    words_of,
)
from spark_throttle.spark.rows.digest import PLACE, ROW_BITS, file_numbers
from spark_throttle.spark.rows.frames import THROTTLE
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.source_reader import Source, SourceReader
from spark_throttle.spark.sinks.staged_reader import IS_SET, StagedReader, codes_of
from spark_throttle.spark.sinks.targets import PACED, BatchFunction, Target

_CODE: Final = "__throttle_code"
_MESSAGES_OF_A_TASK: Final = 100_000
_GROUP_ROWS: Final = 500_000
"""Rows that one task cuts, more or less: it reads the files whole."""


@dataclass(frozen=True, slots=True)
class StagedPayload:
    """How the rows of a query's batches are found; its methods run on the driver, once per attempt at a batch."""

    upkeep: Upkeep
    schema: StructType
    """The user's columns, or those of the source."""

    namespace: Column
    waiting: StagingPlace
    slots: int
    """How many tasks run at the same time."""

    table: FileTable | None = None
    """The sink's table, if it takes files."""

    source: Source | None = None
    """The source whose files are decided on where they lie; `None` if rows are staged."""

    _former: dict[str, bool] = field(default_factory=dict)

    def take(self, frames: DataFrame, batch: int) -> StagedRows:
        """Return the rows of a batch; every partition of the frames is computed, once."""
        rows = frames.select("kind", "frame").collect()
        decided = decided_in((row["kind"], bytes(row["frame"])) for row in rows)
        answer, spark = decided.answer, frames.sparkSession
        source = None if self.source is None else SourceReader(spark, batch, self.source)
        if source is not None:
            source.check(ReadingSums() if answer is None or answer.read is None else answer.read)
        written = list[WrittenFile]()
        if answer is not None:
            # Asked before `cuts`, which forgets what this process copied in its last batch.
            lost = self.upkeep.lost(answer) if source is None else []
            cuts = self.upkeep.cuts(answer)
            if source is None:
                self._run(spark, lost)
                report = unpack_usage(decided.usage, f"the usage report of batch {batch}")
                self.upkeep.tell_stagers(answer, report)
            else:
                self._copy(source, [each for each in cuts if not each.has_places])
                cuts = [each for each in cuts if each.has_places]
            written = self._run(spark, cuts)
        root = self.upkeep.table_root
        reader = StagedReader(spark, self.schema, root, self.waiting, self._former, decided.inline, source)
        admitted, rejected = (
            pa.concat_tables(found) if found else None for found in (decided.admitted, decided.rejected)
        )
        ranked = np.zeros(0, dtype=np.int64) if admitted is None else admitted.column(PLACE).to_numpy()
        return StagedRows(self, reader, answer, decided.usage, written, ranked, rejected)

    @property
    def staging(self) -> StagingPlace | None:
        """Where rows that leave are written, if the sink's table takes files."""
        return None if self.table is None else StagingPlace(self.table.location, self.table.form(), in_table=True)

    def leaving(self, rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
        """Return rows that were decided on as they leave, with the columns `keep` beside them."""
        return rows if self.source is None else self.source.transform_decided(rows, keep)

    def _copy(self, source: SourceReader, rows: Sequence[RowsOfFile]) -> None:
        """Copy the rows that wait out of the source's files.

        Raises
        ------
        SourceChangedError
            If Spark does not find them.
        """
        if not rows:
            return
        words = {each.name: words_of(each.rest_bits or b"") for each in rows}
        found = source.looked_up(words, IS_SET, _CODE).where(_CODE)
        found = found.select(*to_carried(self.schema), FILE, ROW)
        tasks = shuffle_tasks(sum(each.rows for each in rows))
        found = found.coalesce(1) if tasks == 1 else found.repartition(min(tasks, len(rows)), FILE)
        found = found.sortWithinPartitions(FILE, ROW)
        copy = SourceRests(self.waiting, tuple(found.columns), {each.name: each.rest for each in rows})
        numbered = found.toDF(*(f"c{at}" for at in range(len(found.columns))))
        copies = numbered.mapInArrow(copy, RESTS_DDL).collect()
        made = {row["rest"]: (row["messages"], row["positions"]) for row in copies}
        wanted = {each.rest: self.upkeep.copied[each.rest] for each in rows}
        if made != wanted:
            problem = f"rows that wait have the numbers and places {wanted}, and Spark reads {made}"
            raise SourceChangedError("the source", problem, "restore its files")

    def _run(self, spark: SparkSession, rows: Sequence[RowsOfFile]) -> list[WrittenFile]:
        if not rows:
            return []
        groups = grouped(rows, self.slots)
        cut = Cut(groups, self.staging, self.waiting)
        found = spark.range(0, len(groups), 1, len(groups)).mapInArrow(cut, CUT_DDL).collect()
        return [cut_file(row["file"]) for row in found]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a batch."""

    payload: StagedPayload
    reader: StagedReader
    answer: Answer | None
    """`None` of a batch that brought nothing to decide."""

    usage: bytes
    """The packed usage report; empty without an answer."""

    written: list[WrittenFile]
    """The new files of the table that have rows of files that were cut."""

    ranked: Int64s
    """The places of the admitted rows of files that do not lie in order, in the order in which they leave."""

    explained: pa.Table | None
    """The places of the rejected rows, with the ``throttle`` column."""

    @property
    def has_admitted(self) -> bool:
        """Whether any row leaves, those included that are sent again."""
        return any(file.admitted for file in self._files)

    def append(self, target: Target, mark: BatchMark) -> None:
        """Append the admitted rows to a target; called again with the same mark if the batch is run again."""
        if self.payload.table is not None:
            self.payload.table.append_staged(mark, self._files, self.written)
        elif target.format != "noop":  # what it would count is in the usage report
            target.write(self.admitted(target), mark)

    def admitted(self, target: Target | BatchFunction) -> DataFrame:
        """Return the admitted rows; in their order within a namespace, if the target may depend on it."""
        lying, ranked = self.as_given(target)
        parts = [self.payload.leaving(part) for part in self._as_they_lie(lying)]
        if len(ranked):
            parts.append(self._in_order(self._files_of(ranked), ranked))
        return reduce(DataFrame.union, parts or [self.payload.leaving(self.reader.nothing())])

    def as_given(self, target: Target | BatchFunction) -> tuple[list[FileAnswer], Int64s]:
        """Return the files that are read as they lie, and the places of all other admitted rows, in their order.

        A target whose calls may wait for answers is given rows in as many tasks as can run. Files of a source need
        nothing for that: Spark splits them.
        """
        lying = [file for file in self._files if file.admitted and file.lies_in_order]
        waits = self.payload.source is None and (not isinstance(target, Target) or target.format == PACED)
        if waits and len(lying) < self.payload.slots:
            return [], np.concatenate([*map(_admitted_places, lying), self.ranked])
        return lying, self.ranked

    def rejected(self) -> DataFrame:
        """Return the rejected rows, with the ``throttle`` column; called only if there are any."""
        assert self.explained is not None  # noqa: S101 - as above
        places = self.explained.column(PLACE).to_numpy()
        distinct, codes = distinct_values(self.explained.column(THROTTLE).combine_chunks())
        table = pa.table({_CODE: pa.array(np.arange(1, len(distinct) + 1)), THROTTLE: distinct})
        files = self._files_of(places)
        self.reader.check_copies(files, rows_by_file(places))
        coded = self.reader.coded(files, coded_rows(places, codes_of(codes)), _CODE)
        explanations = F.broadcast(coded.sparkSession.createDataFrame(table))
        return self.payload.leaving(coded.join(explanations, _CODE).drop(_CODE), (THROTTLE,))

    def confirm(self) -> None:
        """Refuse the batch if a file of the source became another one; else delete what no state needs any more."""
        if self.reader.source is not None:
            self.reader.source.check_read()
        if self.answer is not None:
            self.payload.upkeep.clean(self.answer)

    def _as_they_lie(self, files: Sequence[FileAnswer]) -> Iterator[DataFrame]:
        """Yield the admitted rows of some files."""
        whole = [file for file in files if file.is_admitted_whole]
        others = [file for file in files if not file.is_admitted_whole]
        if whole:
            yield self.reader.whole(whole)
        if others:
            places = np.concatenate([_admitted_places(file) for file in others])
            self.reader.check_copies(others, rows_by_file(places))
            yield self.reader.admitted(others, admitted_rows(places))

    def _in_order(self, files: Sequence[FileAnswer], ranked: Int64s) -> DataFrame:
        """Return rows of some files, those of a namespace in one task and in the order in which they leave."""
        self.reader.check_copies(files, rows_by_file(ranked))
        coded = self.reader.coded(files, coded_rows(ranked, codes_of(np.arange(len(ranked)))), _CODE)
        found = self.payload.leaving(coded, (_CODE,))
        tasks = max(self.payload.slots, shuffle_tasks(len(ranked)))
        return found.repartition(tasks, self.payload.namespace).sortWithinPartitions(_CODE).drop(_CODE)

    @property
    def _files(self) -> Sequence[FileAnswer]:
        return () if self.answer is None else self.answer.files

    def _files_of(self, places: Int64s) -> list[FileAnswer]:
        numbers = set(file_numbers(places).tolist())
        return [file for file in self._files if file.number in numbers]


def grouped(rows: Sequence[RowsOfFile], slots: int) -> tuple[tuple[RowsOfFile, ...], ...]:
    """Return files in groups, each of which a task cuts: those that go to one file together, all others evenly."""
    units: dict[str, list[RowsOfFile]] = {}
    for at, each in enumerate(rows):
        units.setdefault(each.rest or f"#{at}", []).append(each)
    tasks = max(1, min(slots, len(units), -(-sum(each.rows for each in rows) // _GROUP_ROWS)))
    groups: list[list[RowsOfFile]] = [[] for _ in range(tasks)]
    for unit in sorted(units.values(), key=lambda unit: -sum(each.rows for each in unit)):
        min(groups, key=lambda group: sum(each.rows for each in group)).extend(unit)
    return tuple(map(tuple, groups))


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
    for part_values in values.flatten():
        coded = part_values.dictionary_encode()
        part = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        _, code = np.unique(code * (len(coded.dictionary) + 1) + part, return_inverse=True)
    _, first, found = np.unique(code, return_index=True, return_inverse=True)
    return values.take(pa.array(first)), found.astype(np.int64)


def shuffle_tasks(messages: int) -> int:
    """Return to how many tasks rows are shuffled.

    Without a number Spark takes the session's, for three rows as for millions: it adapts no plan of a query with state.

    Examples
    --------
    >>> shuffle_tasks(3), shuffle_tasks(100_001)
    (1, 2)
    """
    return max(1, -(-messages // _MESSAGES_OF_A_TASK))


def _admitted_places(file: FileAnswer) -> Int64s:
    """Return the places of a file's admitted rows, ascending."""
    bits = file.admitted_bits
    return (file.number << ROW_BITS) + (
        np.arange(file.rows) if bits is None else np.flatnonzero(mask_of(bits, file.rows))
    )
