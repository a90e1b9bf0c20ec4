"""A staged job without a JVM: stager, decider, cutting and the commit to a Delta table, killed and run again anywhere.

What Spark does is played by hand: tasks that get rows however they are dealt, a store of states by version in which the
last writer wins, and a driver. All else is the product's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.usage import unpack_usage
from spark_throttle.record import unpack
from spark_throttle.spark.delta.table_files import FileForm, IndexedColumns
from spark_throttle.spark.move.answer import Answer, mask_of
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.move.held_files import IN_STATE, HeldFiles
from spark_throttle.spark.move.leaving import leaving
from spark_throttle.spark.move.queue_frames import QueueStorage
from spark_throttle.spark.move.stager import STAGED, Stager, StagingPlace
from spark_throttle.spark.move.upkeep import Upkeep
from spark_throttle.spark.rows.digest import ROW_BITS, HelperColumns
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE, TIE, FrameKind
from spark_throttle.spark.rows.row_digests import row_digests
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.payload import StagedPayload, StagedRows
from spark_throttle.spark.sinks.targets import Target
from tests.spark.move.played import START_MS, State, control_block, group_state, state_in

Event = tuple[str, int]
"""A namespace and a number; several rows may be the same in both."""

SCHEMA: Final = StructType([StructField("ns", StringType()), StructField("n", LongType())])
STAGED_ALL, DECIDED, COPIED, COMMITTED, CLEANED = STOPS = ("staged", "decided", "copied", "committed", "cleaned")
"""Where an attempt at a batch may be killed: after each of these."""


class _Spark:
    """Runs the tasks of a driver's job one after the other."""

    def range(self, first: int, end: int, *_: int) -> _Spark:
        self._ids = pa.RecordBatch.from_pydict({"id": list(range(first, end))})
        return self

    def mapInArrow(self, function: Callable[..., Iterator[pa.RecordBatch]], _: str) -> _Spark:  # noqa: N802 - Spark's
        self._function = function
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [row for batch in self._function([self._ids]) for row in batch.to_pylist()]


@dataclass
class _Frames:
    """What the decider returned, as the driver gets it."""

    rows: list[dict[str, Any]]
    sparkSession: _Spark = field(default_factory=_Spark)  # noqa: N815 - Spark's

    def select(self, *_: str) -> _Frames:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self.rows


@dataclass
class StagedJob:
    """A staged job, with its table and its control directory below a root."""

    root: Path
    policy: CompiledPolicy
    kept_turns: int = 100
    states: dict[int, State] = field(default_factory=dict)
    """By the batch that loads it."""

    arrivals: dict[int, list[Event]] = field(default_factory=dict)
    is_ordered: bool = False
    """Whether rows are decided in the order of their numbers."""

    waiting: StagingPlace = field(init=False)
    _payload: StagedPayload = field(init=False)

    def __post_init__(self) -> None:
        empty = pa.table({"ns": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
        write_deltalake(str(self.table), empty)
        self.restart()

    @property
    def table(self) -> Path:
        return self.root / "out"

    @property
    def control(self) -> Path:
        return self.root / "control"

    def restart(self) -> None:
        """Forget what the driver knows."""
        form = FileForm(pa.schema([("ns", pa.string()), ("n", pa.int64())]), {}, (), "zstd", IndexedColumns(first=0))
        self.waiting = StagingPlace(f"{self.control}/{STAGED}", form, in_table=False)
        self._table = FileTable(str(self.table), SCHEMA.json())
        self._payload = StagedPayload(
            Upkeep(str(self.control), self.kept_turns, str(self.table)),
            SCHEMA,
            None,  # type: ignore[arg-type]  # by namespace only sinks are sorted that are none here
            self.waiting,
            2,
            self._table,
        )

    @property
    def place(self) -> StagingPlace:
        """Where rows are staged that will probably leave."""
        return StagingPlace(str(self.table), self._table.form(), in_table=True)

    @property
    def decider(self) -> DigestDecider:
        """What decides."""
        return DigestDecider(QueueStorage(str(self.control), self.kept_turns), self.kept_turns)

    def stage(self, batch: int, deal: Sequence[Sequence[Event]]) -> list[pd.DataFrame]:
        """Run a stager for each task's rows, and return what reaches the decider, with the control row."""
        derived = HelperColumns({NAMESPACE: "ns"} | ({f"{ORDER_PREFIX}000": "n"} if self.is_ordered else {}))
        stage = Stager(("ns", "n", SIZE, TIE), derived, self.place, self.waiting, str(self.control))
        pieces = [pd.DataFrame({"kind": [int(FrameKind.CONTROL)], "frame": [self._control_row(batch)]})]
        for events in deal:
            rows = pa.table({"ns": [ns for ns, _ in events], "n": pa.array([n for _, n in events], pa.int64())})
            ties = pa.array(row_digests(rows).view("int64"))
            rows = rows.append_column(SIZE, pa.array([1] * len(events), pa.int64())).append_column(TIE, ties)
            numbered = rows.rename_columns([f"c{at}" for at in range(4)]).to_batches(max_chunksize=5)
            pieces += [found.select(["kind", "frame"]).to_pandas() for found in stage(numbered)]
        return pieces

    def decide(self, batch: int, pieces: list[pd.DataFrame]) -> tuple[_Frames, State]:
        """Decide a batch on the state that it loads, and return what the driver gets, and the state."""
        state = group_state(self.states.get(batch), START_MS + batch * 1_000)
        frames = list(self.decider((0,), iter(pieces), state))
        out = [{"kind": kind, "frame": each} for f in frames for kind, each in zip(f["kind"], f["frame"], strict=True)]
        return _Frames(out), state_in(state)

    def attempt(self, batch: int, deal: Sequence[Sequence[Event]], stop: str | None = None) -> bool:
        """Run a batch up to a stop; return whether it came to its end."""
        pieces = self.stage(batch, deal)
        return stop != STAGED_ALL and self.finish(batch, pieces, stop)

    def finish(self, batch: int, pieces: list[pd.DataFrame], stop: str | None = None) -> bool:
        """Do what follows on staging, up to a stop; return whether the batch came to its end."""
        frames, self.states[batch + 1] = self.decide(batch, pieces)
        if stop == DECIDED:
            return False
        rows = self._payload.take(frames, batch)  # type: ignore[arg-type]
        if stop == COPIED:
            return False
        rows.append(Target("delta"), BatchMark("query", batch, self.identity(rows)))
        if stop == COMMITTED:
            return False
        rows.confirm()
        return stop is None

    def zombie(self, batch: int, deal: Sequence[Sequence[Event]]) -> None:
        """Let an attempt that nobody waits for commit its state last."""
        _, self.states[batch + 1] = self.decide(batch, self.stage(batch, deal))

    @staticmethod
    def identity(rows: StagedRows) -> str:
        """Return what tells the batch from another one of its number: the same at every attempt."""
        report = unpack_usage(rows.usage, "a report")
        return str((report.epoch, report.admitted.sum(), report.rejected.sum()))

    @property
    def committed(self) -> Counter[Event]:
        """The rows of the table."""
        found = DeltaTable(self.table).to_pyarrow_table()
        return Counter(zip(found.column("ns").to_pylist(), found.column("n").to_pylist(), strict=True))

    def held(self, batch: int) -> HeldFiles:
        """Return the files that the state names that a batch loads."""
        return unpack(HeldFiles, self.states[batch][2], IN_STATE)

    def staged_files(self) -> set[str]:
        """Return the names of the files in the control directory."""
        return {path.name for path in (self.control / STAGED).glob("*")}

    def _control_row(self, batch: int) -> bytes:
        now_ms = START_MS + batch * 1_000
        return control_block(self.policy if batch == 0 else None, epoch=batch + 1, now_ms=now_ms)


def places_of_tasks(answer: Answer, ranked: Int64s) -> list[Int64s]:
    """Return the places of the admitted rows of tasks that read a file each, and of one that sorts the others.

    Tasks get their rows as `StagedRows.admitted` says; the last stands for all tasks of the shuffle.
    """
    found = list[Int64s]()
    for file in answer.files:
        if file.admitted and file.lies_in_order:
            bits = file.admitted_bits
            at = np.arange(file.rows) if bits is None else np.flatnonzero(mask_of(bits, file.rows))
            found.append((file.number << ROW_BITS) + at)
    return [*found, ranked]


def sent(payload: StagedPayload, rows: StagedRows) -> list[list[Event]]:
    """Return the admitted rows of a batch as tasks send them."""
    if rows.answer is None:
        return []
    files, nothing = payload.upkeep.placed(rows.answer.files), np.zeros(0, dtype=np.int64)
    schema = pa.schema([("ns", pa.string()), ("n", pa.int64())])
    return [
        [(row["ns"], row["n"]) for table, _ in leaving(files, places, nothing, schema) for row in table.to_pylist()]
        for places in places_of_tasks(rows.answer, rows.ranked)
        if len(places)
    ]


def dealt(events: Sequence[Event], tasks: int, dice: random.Random) -> list[list[Event]]:
    """Return rows dealt to tasks anyhow."""
    deal: list[list[Event]] = [[] for _ in range(tasks)]
    for event in events:
        dice.choice(deal).append(event)
    return [rows for rows in deal if rows]
