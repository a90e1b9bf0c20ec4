"""The payload of a batch whose rows were staged: the decider's answer, and what the driver does by it.

Before a sink is given anything, rows that wait are copied out of files that the batch cuts, and in the same pass rows
that leave these files are written to the table, if there is one that takes files. When all sinks have the batch, what
the *loaded state* calls left over is deleted. That state also says of each copy that was made last how many rows wait
in it, and the sum of their positions. If it is a zombie's, whose files were not copied, they still lie where they were
staged, and are copied before anything else.

Inline files come in frames beside the answer. These are persisted for the batch, and read for each sink.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.core.quota import Int64s
from spark_throttle.core.usage import unpack_usage
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import unpack
from spark_throttle.spark.columns.payload_columns import from_staged
from spark_throttle.spark.decider.decider_batch import THROTTLE
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.move.answer import Answer, FileAnswer, LoadedFile, bits_of, mask_of
from spark_throttle.spark.move.cutting import CUT_DDL, Cut, RowsOfFile, cut_file
from spark_throttle.spark.move.held_files import turn_in
from spark_throttle.spark.move.hint import Hint, short_tenants, write_hint
from spark_throttle.spark.move.stager import STAGED, StagingPlace
from spark_throttle.spark.references.reading import PLACE
from spark_throttle.spark.references.selection import (
    admitted_rows,
    coded_rows,
    file_numbers,
    rows_by_file,
)
from spark_throttle.spark.references.waiting_copies import shuffle_tasks
from spark_throttle.spark.rows.frames import FrameKind, decode
from spark_throttle.spark.sinks.batch_sink import BatchFunction, Target
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.reference_payload import distinct_values
from spark_throttle.spark.sinks.staged.reader import StagedReader, codes_of, places_in

logger = logging.getLogger(__name__)

_CODE: Final = "__throttle_code"
_GROUP_ROWS: Final = 500_000
"""Rows that one task cuts, more or less: it reads the files whole."""

_TASK_BYTES: Final = 4 << 20
"""Bytes of inline files per task; a task with fewer would take longer to start than to read them."""

_NOTHING: Final = np.zeros(0, dtype=np.int64)


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

    keeps_order: bool = False
    is_inline: bool = False
    """Whether files come in frames beside the answer."""

    _copied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What this process has copied in its last batch: by the copy's name, how many rows and the sum of positions."""

    _former: dict[str, bool] = field(default_factory=dict)

    def take(self, frames: DataFrame, batch: int) -> StagedRows:
        """Return the rows of a batch; every partition of the frames is computed, once."""
        usage, answers = list[bytes](), list[Answer]()
        tables: dict[FrameKind, list[pa.Table]] = {FrameKind.ADMITTED: [], FrameKind.REJECTED: []}
        inline_bytes = 0
        # What stays behind is read for each sink, and the decider must not run again for it.
        kept = frames.persist() if self.is_inline else frames
        for row in _collected(kept):
            kind = FrameKind(row["kind"])
            if kind == FrameKind.INLINE:
                inline_bytes += row["bytes"]
                continue
            frame = bytes(row["frame"])
            if kind == FrameKind.USAGE:
                usage.append(frame)
            elif kind == FrameKind.ANSWER:
                answers.append(unpack(Answer, frame, "the decider's answer"))
            else:
                tables[kind].append(decode(frame))
        answer = answers[0] if answers else None
        admitted, rejected = (pa.concat_tables(found) if found else None for found in tables.values())
        spark = frames.sparkSession
        written = list[WrittenFile]()
        if answer is not None:
            self._settle(spark, answer)
            written = self._cut(spark, answer)
            short = short_tenants(unpack_usage(each, f"a usage report of batch {batch}") for each in usage)
            if not self.is_inline:
                write_hint(Directory(self.control_path), Hint(answer.turn + 1, tuple(short)))
        inline = None
        if inline_bytes:
            tasks = max(1, min(self.slots, inline_bytes // _TASK_BYTES))
            inline = kept.where(f"kind = {int(FrameKind.INLINE)}").select("frame").repartition(tasks)
        reader = StagedReader(spark, self.carried, self._table_root, self.waiting, self._former, inline)
        ranked = None if admitted is None else admitted.column(PLACE).to_numpy()
        return StagedRows(self, reader, answer, usage, written, ranked, rejected, kept if self.is_inline else None)

    @property
    def staging(self) -> StagingPlace | None:
        """Where rows that leave are written, if the sink's table takes files."""
        return None if self.table is None else StagingPlace(self.table.location, self.table.form(), in_table=True)

    @property
    def _table_root(self) -> str:
        return "" if self.table is None else self.table.location

    @property
    def _staged_root(self) -> str:
        return f"{self.control_path}/{STAGED}"

    def root_of(self, file: FileAnswer | LoadedFile) -> str:
        """Return the directory below which a file was staged."""
        return self._table_root if file.in_table else self._staged_root

    def _settle(self, spark: SparkSession, answer: Answer) -> None:
        """Copy what the loaded state says was copied, where it was not."""
        lost = [file for file in answer.loaded if not self._is_copied(file)]
        if not lost:
            return
        logger.warning("the state names files whose waiting rows were not copied (%d): they are copied now", len(lost))
        rows = []
        for file in lost:
            every = bits_of(np.arange(file.rows), file.rows)
            rows.append(
                RowsOfFile(self.root_of(file), file.name, file.name, rows=file.rows, rest_bits=every, rest=file.copy)
            )
        self._run(spark, rows)

    def _is_copied(self, file: LoadedFile) -> bool:
        wanted = (file.waiting, file.positions)
        if self._copied.get(file.copy) == wanted:
            return True
        try:
            found = places_in(self._staged_root, file.copy).get(file.name, _NOTHING)
        except DamagedError:
            return False
        return len(found) == file.rows or (len(found), int(found.sum())) == wanted

    def _cut(self, spark: SparkSession, answer: Answer) -> list[WrittenFile]:
        """Cut the files of a batch, and return the new files of the table."""
        rows = []
        self._copied.clear()
        for file in answer.files:
            goes = file.admitted_bits
            if file.is_admitted_whole and not file.in_table:
                goes = bits_of(np.arange(file.rows), file.rows)
            stays = file.rest_bits or file.pack_bits
            if self.table is None:
                goes = None
            if file.is_inline or (goes is None and stays is None):
                continue
            root = self._staged_root if file.copy else self.root_of(file)
            rows.append(
                RowsOfFile(
                    root,
                    file.copy or file.name,
                    file.name,
                    rows=file.rows,
                    admitted_bits=goes,
                    rest_bits=stays,
                    rest=file.rest or file.pack,
                    has_places=bool(file.copy),
                )
            )
            if file.rest_bits is not None:
                at = np.flatnonzero(mask_of(file.rest_bits, file.rows))
                self._copied[file.rest] = len(at), int(at.sum())
        return self._run(spark, rows)

    def _run(self, spark: SparkSession, rows: Sequence[RowsOfFile]) -> list[WrittenFile]:
        if not rows:
            return []
        groups = grouped(rows, self.slots)
        cut = Cut(groups, self.staging, self.waiting)
        found = spark.range(0, len(groups), 1, len(groups)).mapInArrow(cut, CUT_DDL).collect()
        return [cut_file(row["file"]) for row in found]

    def clean(self, answer: Answer) -> None:
        """Delete what the loaded state does not need, and orphans if it is time to look for them."""
        staged, table = Directory(self._staged_root), Directory(self._table_root) if self._table_root else None
        for name, in_table in answer.over:
            place = table if in_table else staged
            if place is not None:
                place.delete(name)
        for name in answer.deletable:
            staged.delete(name)
        if answer.known is None:
            return
        oldest, known = answer.turn - self.kept_turns, set(answer.known)
        for name in Directory(self.control_path).names_below(STAGED):
            of_turn = turn_in(name.removeprefix("."))  # what was killed while it was written begins with a dot
            if name not in known and of_turn is not None and of_turn < oldest:
                staged.delete(name)


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

    ranked: Int64s | None
    """The places of the admitted rows in the order in which they leave; `None` if it does not matter."""

    explained: pa.Table | None
    """The places of the rejected rows, with the ``throttle`` column."""

    kept: DataFrame | None = None
    """The frames, if files came in them."""

    def append(self, target: Target, mark: BatchMark) -> None:
        """Append the admitted rows to a target, once; to nothing, nothing."""
        if self.payload.table is not None:
            self.payload.table.append_staged(mark, self._files, self.written)
        elif target.format != "noop":  # what it would count is in the usage report
            target.write(self.admitted(target), mark)

    def admitted(self, target: Target | BatchFunction) -> DataFrame:  # noqa: ARG002 - the payload knows it
        """Return the admitted rows; in their order within a namespace, if the target may depend on it."""
        found = [file for file in self._files if file.admitted]
        if not found:
            return from_staged(self.reader.nothing(), self.payload.schema)
        if self.ranked is not None:
            return self._in_order(found, self.ranked)
        whole = [file for file in found if file.is_admitted_whole]
        others = [file for file in found if not file.is_admitted_whole]
        parts = []
        if whole:
            parts.append(self.reader.whole(whole))
        if others:
            wanted = {file.number: _admitted_positions(file) for file in others}
            places = np.concatenate([(number << 32) + at for number, at in wanted.items()])
            self.reader.check_copies(others, wanted)
            parts.append(self.reader.admitted(others, admitted_rows(places)))
        return from_staged(reduce(DataFrame.union, parts), self.payload.schema)

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
            self.payload.clean(self.answer)

    def close(self) -> None:
        """Drop the frames."""
        if self.kept is not None:
            self.kept.unpersist()

    def _in_order(self, files: Sequence[FileAnswer], ranked: Int64s) -> DataFrame:
        """Return the admitted rows, those of a namespace in one task and in the order in which they leave."""
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


def _collected(frames: DataFrame) -> list[Row]:
    """Return the frames of a batch, without the content of those that have inline files."""
    frame = f"IF(kind = {int(FrameKind.INLINE)}, NULL, frame) AS frame"
    try:
        return frames.selectExpr("kind", frame, "octet_length(frame) AS bytes").collect()
    except BaseException:
        frames.unpersist()
        raise


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


def _admitted_positions(file: FileAnswer) -> Int64s:
    if file.admitted_bits is None:
        return np.arange(file.rows)
    return np.flatnonzero(mask_of(file.admitted_bits, file.rows))
