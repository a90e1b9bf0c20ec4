"""A decided stream without a JVM: stager, decider and the task behind it, killed and run again anywhere.

Spark's sink is one that takes a batch once, from the attempt that came to its end first, as the file sink does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.definition import Definition
from spark_throttle.record import to_json
from spark_throttle.spark.move.cutting import RowsOfFile
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.decider_batch import VERDICT_TYPE
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.rows.frames import THROTTLE
from spark_throttle.spark.sinks import decided_stream
from spark_throttle.spark.sinks.decided_stream import DecidedRows
from tests.spark.move.worlds import Event, StagedJob

SCHEMA: Final = pa.schema([("ns", pa.string()), ("n", pa.int64()), (THROTTLE, VERDICT_TYPE)])
_DEFINITION: Final = Definition({}, ())

STAGED_ALL, DECIDED, HALF_CUT, CUT, HALF_LEFT, LEFT, COMMITTED = STOPS = (
    "staged", "decided", "half cut", "cut", "half left", "left", "committed",
)  # fmt: skip
"""Where an attempt at a batch may be killed: after each of these."""


class KilledError(Exception):
    """An attempt was killed."""


@dataclass(frozen=True, slots=True)
class _StoppableRows(DecidedRows):
    """Can be killed between copies and after them."""

    stop: str | None = None

    def cut(self, rows: Sequence[RowsOfFile]) -> None:
        copies = list(dict.fromkeys(each.rest for each in rows))
        made = copies[: len(copies) // 2] if self.stop == HALF_CUT else copies
        DecidedRows.cut(self, [each for each in rows if each.rest in made])
        if rows and self.stop in (HALF_CUT, CUT):
            raise KilledError


@dataclass
class DecidedJob(StagedJob):
    """A decided stream, with its control directory below a root."""

    left: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The rows that the sink has, by batch, in their order."""

    def __post_init__(self) -> None:
        self.restart()

    @property
    def place(self) -> StagingPlace:
        return self.waiting

    @property
    def decider(self) -> DigestDecider:
        queue = QueueStorage(str(self.control), self.kept_turns)
        return DigestDecider(queue, self.kept_turns, keeps_order=True, is_explained=True)

    def attempt(self, batch: int, deal: Sequence[Sequence[Event]], stop: str | None = None) -> bool:
        """Run a batch up to a stop; return whether it came to its end."""
        pieces = self.stage(batch, deal)
        return stop != STAGED_ALL and self.task(batch, pieces, stop)

    def task(self, batch: int, pieces: list[pd.DataFrame], stop: str | None = None) -> bool:
        """Run the decider's task on what was staged, up to a stop."""
        frames, self.states[batch + 1] = self.decide(batch, pieces)
        if stop == DECIDED:
            return False
        found = list[dict[str, Any]]()
        try:
            for rows in self.rows(batch, frames.rows, stop):
                found += rows.to_pylist()
                if stop == HALF_LEFT:
                    return False
        except KilledError:
            return False
        if stop == LEFT:
            return False
        self.left.setdefault(batch, found)
        return stop is None

    def rows(self, batch: int, frames: Iterable[dict[str, Any]], stop: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield what the task behind the decider does."""
        upkeep = Upkeep(str(self.control), self.kept_turns)
        take = _StoppableRows(SCHEMA, upkeep, self.waiting, to_json(_DEFINITION).decode(), stop)
        batches = [pa.RecordBatch.from_pylist([each]) for each in frames]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decided_stream, "batch_of_task", lambda: batch)
            yield from take(batches)

    @property
    def committed(self) -> Counter[Event]:
        """The rows that the sink has."""
        return Counter((row["ns"], row["n"]) for rows in self.left.values() for row in rows)
