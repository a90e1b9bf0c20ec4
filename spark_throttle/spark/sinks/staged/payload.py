"""The payload of a batch whose rows were staged: the decider's answer, and what the driver does by it.

Before a sink is given anything, rows that wait are copied out of files that the batch cuts, and in the same pass rows
that leave these files are written to the table, if there is one that takes files. When all sinks have the batch, what
the *loaded state* calls left over is deleted (`move.upkeep`).

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
from spark_throttle.spark.columns.payload_columns import from_staged
from spark_throttle.spark.decider.decider_batch import THROTTLE
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.move.answer import Answer, FileAnswer, decided_in, mask_of
from spark_throttle.spark.move.cutting import CUT_DDL, Cut, RowsOfFile, cut_file
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.references.extents import ROW_BITS
from spark_throttle.spark.references.reading import PLACE
from spark_throttle.spark.references.selection import (
    admitted_rows,
    coded_rows,
    file_numbers,
    rows_by_file,
)
from spark_throttle.spark.references.waiting_copies import shuffle_tasks
from spark_throttle.spark.sinks.batch_sink import BatchFunction, Target
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.reference_payload import distinct_values
from spark_throttle.spark.sinks.sink_formats import PACED
from spark_throttle.spark.sinks.staged.reader import StagedReader, codes_of

_CODE: Final = "__throttle_code"
_GROUP_ROWS: Final = 500_000
"""Rows that one task cuts, more or less: it reads the files whole."""


@dataclass(frozen=True, slots=True)
class StagedPayload:
    """How the rows of a query's batches are found; its methods run on the driver, once per attempt at a batch."""

    control_path: str
    schema: StructType
    """The user's columns."""

    carried: StructType
    """The same, in the types in which they are staged."""

    namespace: Column
    waiting: StagingPlace
    kept_turns: int
    slots: int
    """How many tasks run at the same time."""

    table: FileTable | None = None
    """The sink's table, if it takes files."""

    _copied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What this process has copied in its last batch: by the copy's name, how many rows and the sum of positions."""

    _former: dict[str, bool] = field(default_factory=dict)

    def take(self, frames: DataFrame, batch: int) -> StagedRows:
        """Return the rows of a batch; every partition of the frames is computed, once."""
        rows = frames.select("kind", "frame").collect()
        decided = decided_in((row["kind"], bytes(row["frame"])) for row in rows)
        answer, spark = decided.answer, frames.sparkSession
        written = list[WrittenFile]()
        if answer is not None:
            self._run(spark, self.upkeep.lost(answer))
            written = self._run(spark, self.upkeep.cuts(answer))
            reports = (unpack_usage(each, f"a usage report of batch {batch}") for each in decided.usage)
            self.upkeep.tell_stagers(answer, reports)
        reader = StagedReader(spark, self.carried, self.upkeep.table_root, self.waiting, self._former, decided.inline)
        admitted, rejected = (
            pa.concat_tables(found) if found else None for found in (decided.admitted, decided.rejected)
        )
        ranked = np.zeros(0, dtype=np.int64) if admitted is None else admitted.column(PLACE).to_numpy()
        return StagedRows(self, reader, answer, decided.usage, written, ranked, rejected)

    @property
    def staging(self) -> StagingPlace | None:
        """Where rows that leave are written, if the sink's table takes files."""
        return None if self.table is None else StagingPlace(self.table.location, self.table.form(), in_table=True)

    @property
    def upkeep(self) -> Upkeep:
        """What the files of the query need."""
        root = "" if self.table is None else self.table.location
        return Upkeep(self.control_path, self.kept_turns, root, self._copied)

    def _run(self, spark: SparkSession, rows: Sequence[RowsOfFile]) -> list[WrittenFile]:
        if not rows:
            return []
        groups = grouped(rows, self.slots)
        cut = Cut(groups, self.staging, self.waiting)
        found = spark.range(0, len(groups), 1, len(groups)).mapInArrow(cut, CUT_DDL).collect()
        return [cut_file(row["file"]) for row in found]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a batch that were staged."""

    payload: StagedPayload
    reader: StagedReader
    answer: Answer | None
    """`None` of a batch that brought nothing to decide."""

    usage: list[bytes]
    """The packed usage reports."""

    written: list[WrittenFile]
    """The new files of the table that have rows of files that were cut."""

    ranked: Int64s
    """The places of the admitted rows of files that do not lie in order, in the order in which they leave."""

    explained: pa.Table | None
    """The places of the rejected rows, with the ``throttle`` column."""

    @property
    def has_admitted(self) -> bool:
        """Whether any row leaves."""
        return any(file.admitted for file in self._files)

    def append(self, target: Target, mark: BatchMark) -> None:
        """Append the admitted rows to a target, once; to nothing, nothing."""
        if self.payload.table is not None:
            self.payload.table.append_staged(mark, self._files, self.written)
        elif target.format != "noop":  # what it would count is in the usage report
            target.write(self.admitted(target), mark)

    def admitted(self, target: Target | BatchFunction) -> DataFrame:
        """Return the admitted rows; in their order within a namespace, if the target may depend on it."""
        lying, ranked = self.as_given(target)
        parts = [from_staged(part, self.payload.schema) for part in self._as_they_lie(lying)]
        if len(ranked):
            parts.append(self._in_order(self._files_of(ranked), ranked))
        return reduce(DataFrame.union, parts or [from_staged(self.reader.nothing(), self.payload.schema)])

    def as_given(self, target: Target | BatchFunction) -> tuple[list[FileAnswer], Int64s]:
        """Return the files that are read as they lie, and the places of all other admitted rows, in their order.

        A target whose calls may wait for answers is given rows in as many tasks as can run.
        """
        lying = [file for file in self._files if file.admitted and file.lies_in_order]
        waits = not isinstance(target, Target) or target.format == PACED
        if waits and len(lying) < self.payload.slots:
            return [], np.concatenate([*map(_admitted_places, lying), self.ranked])
        return lying, self.ranked

    def rejected(self, target: Target) -> DataFrame:  # noqa: ARG002 - the files say how many tasks there are
        """Return the rejected rows, with the ``throttle`` column."""
        assert self.explained is not None  # noqa: S101 - called only if rows were rejected
        places = self.explained.column(PLACE).to_numpy()
        distinct, codes = distinct_values(self.explained.column(THROTTLE).combine_chunks())
        table = pa.table({_CODE: pa.array(np.arange(1, len(distinct) + 1)), THROTTLE: distinct})
        files = self._files_of(places)
        self.reader.check_copies(files, rows_by_file(places))
        coded = self.reader.coded(files, coded_rows(places, codes_of(codes)), _CODE)
        explanations = F.broadcast(coded.sparkSession.createDataFrame(table))
        found = coded.join(explanations, _CODE).drop(_CODE)
        return from_staged(found.select(*self.payload.carried.names, THROTTLE), self.payload.schema)

    def confirm(self) -> None:
        """Delete what no state needs any more: the sinks have the batch."""
        if self.answer is not None:
            self.payload.upkeep.clean(self.answer)

    def close(self) -> None:
        """Do nothing: no row was kept."""

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
        found = from_staged(coded, self.payload.schema)
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


def _admitted_places(file: FileAnswer) -> Int64s:
    """Return the places of a file's admitted rows, ascending."""
    bits = file.admitted_bits
    return (file.number << ROW_BITS) + (
        np.arange(file.rows) if bits is None else np.flatnonzero(mask_of(bits, file.rows))
    )
