"""The decided rows of `Throttle.apply`, for users who keep their own sink: read from their files where they leave.

It runs in the decider's own task, behind it, and what the driver does for a sink of `foreachBatch` is done here, in the
order of `move.upkeep`: copies of rows that wait, the rows that leave, and at the end the hint, the usage report, and
the deletion of what the loaded state does not need. Before the first row passes, the batch is recorded as begun, with
the definition that decided it.

**No row is lost or doubled**, wherever an attempt ends, or however long one goes on that Spark has given up:

- Spark's sink takes the rows of one attempt at the task. Every attempt decides the same rows of the same files, and
  begins with the same copies. Files that are staged anew have the same rows, of which the same leave (`move.decider`).
- Spark may commit the state of another attempt, of the same task or of a zombie, at any time from when the decider has
  returned its last frame. That state names copies which maybe nobody has made. Then their rows lie where they were
  staged, in files that this batch deletes for no state: the next batch finds in the state that *it* loaded which
  copies there must be, and makes those that are missing before it deletes these files.
- An attempt deletes nothing that its own batch needs when it is run again, nor a batch to which a checkpoint may be
  put back: only what the state that it loaded, which is that of a batch that Spark has committed, calls left over. A
  row that it deletes so has left in a batch that is committed, or lies in a copy.
- Reports, the hint and copies are whole files, the same at every attempt at a batch. A report counts only once the
  batch is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.definition import Definition, begin
from spark_throttle.control.reports import write_report
from spark_throttle.core.usage import unpack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json
from spark_throttle.spark.metering.charging import batch_of_task
from spark_throttle.spark.move.answer import Answer, Decided, decided_in
from spark_throttle.spark.move.cutting import Cut, RowsOfFile
from spark_throttle.spark.move.leaving import leaving
from spark_throttle.spark.move.stager import StagingPlace, described
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.rows.digest import PLACE
from spark_throttle.spark.rows.frames import THROTTLE
from spark_throttle.spark.rows.worker_heap import set_loaded_aside


@dataclass(frozen=True, slots=True)
class DecidedRows:
    """A function from a batch's frames to the rows that leave; `mapInArrow` runs it once per attempt at the batch."""

    schema: pa.Schema
    """The columns of the rows: the user's as they were staged, and the ``throttle`` column."""

    upkeep: Upkeep
    waiting: StagingPlace
    definition: str
    """The query's definition, as JSON."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the admitted rows, those of a namespace in the order in which they leave, and the rejected rows."""
        set_loaded_aside()
        frames = (
            zip(each.column("kind").to_pylist(), each.column("frame").to_pylist(), strict=True) for each in batches
        )
        decided = decided_in(frame for each in frames for frame in each)
        answer = decided.answer
        if answer is None:  # the decider runs in one task, and in none if nothing came
            return
        batch, directory = batch_of_task(), Directory(self.upkeep.control_path)
        begin(directory, batch, of_json(Definition, self.definition, "the definition"), _is_unknown)
        self.cut(self.upkeep.lost(answer))
        self.cut(self.upkeep.cuts(answer))
        yield from self._rows(answer, decided)
        self.upkeep.tell_stagers(answer, unpack_usage(decided.usage, f"the usage report of batch {batch}"))
        write_report(directory, batch, decided.usage)
        self.upkeep.clean(answer)

    def cut(self, rows: Sequence[RowsOfFile]) -> None:
        """Copy rows that wait."""
        Cut((), None, self.waiting).cut(rows)

    def _rows(self, answer: Answer, decided: Decided) -> Iterator[pa.RecordBatch]:
        found = [*decided.admitted, *decided.rejected]
        if not found:
            return
        places = pa.concat_tables(found)
        explained = places.column(THROTTLE).combine_chunks()
        admitted, rejected = np.split(
            places.column(PLACE).to_numpy(), [sum(table.num_rows for table in decided.admitted)]
        )
        for rows, index in leaving(self.upkeep.placed(answer.files), admitted, rejected, self.waiting.form.schema):
            whole = rows.append_column(THROTTLE, explained.take(pa.array(index))).combine_chunks()
            for batch in whole.to_batches():
                yield described(batch, self.schema)


def _is_unknown(*_: str) -> bool:
    """Return that a sink of the user's own may have a batch that has begun."""
    return True
