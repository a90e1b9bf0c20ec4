"""Lives of queries that decide on references: crashes, harm, conditions and put-back batches, drawn from a seed.

After every step each offered row is admitted, rejected or waiting, once, and a batch that ran again gave the same rows.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.spark.sinks.payload import StagedPayload, StagedRows
from spark_throttle.spark.state_reader import queued_after, read_queued
from tests.integration.reference_queries import pack_with, stream
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from spark_throttle.spark.move.cutting import RowsOfFile

_BOUNDS: Final[dict[str, list[int]]] = {
    "_MANY_LEFTOVERS": [1, 2, 3, 32],
    "_FEW_MESSAGES": [2, 1000],
}
"""Bounds between rests and packs, each with values of which a life draws one."""

_NAMES: Final = ("a b%25é#?{}.parquet", "{a}[b]*{}.parquet", "n\u00a0{}.parquet", "x{}.parquet")
_NAMESPACES: Final = ("free/a", "shut/a", "shut/b", "slow/a", "slow/b", "bad/a", None)
_ROWS_OF_FILE: Final = 1000
_DROPPED_ROW, _DROPPED_SIZE = 13, 7
_MOST_FILES: Final = 60
_REJECTING: Final = {"bad/a": publish(messages_per_second=0, on_excess="reject")}


class CrashError(Exception):
    """The end of a run that is drawn."""


@dataclass
class Life:
    """One query, its source, and what must become of each row."""

    lake: Lake
    random: Random
    most_files: int
    drops_rows: bool
    offered: set[int] = field(default_factory=set)
    files: int = 0
    told: list[str] = field(default_factory=list)
    """What happened, for whoever reads a failure."""

    def offer(self, *, is_early: bool) -> None:
        """Add a file, which may be older than those that were read."""
        rows = []
        for at in range(self.random.choice([0, 3, 20, 60])):
            row = _ROWS_OF_FILE * self.files + at
            size = self.random.choice([1, _DROPPED_SIZE, 10, None])
            rows.append((row, self.random.choice(_NAMESPACES), size))
            if not (self.drops_rows and (at == _DROPPED_ROW or size == _DROPPED_SIZE)):
                self.offered.add(row)
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        kinds = (pa.int64(), pa.string(), self.random.choice([pa.int64(), pa.int32()]))
        arrays = [pa.array(of, kind) for of, kind in zip(columns, kinds, strict=True)]
        written = self.lake.root / "written"
        pq.write_table(pa.table(arrays, ["id", "ns", "size"]), written, row_group_size=self.random.choice([5, 1000]))
        written_s = 1_700_000_000 + (0 if is_early else 10_000) + self.files
        os.utime(written, (written_s, written_s))
        events = Path(self.lake.path("events"))
        events.mkdir(exist_ok=True)
        written.rename(events / self.random.choice(_NAMES).replace("{}", str(self.files)))
        self.files += 1

    def policies(self) -> Any:
        """Return policies of which some tenants are shut or slow."""
        slow = publish(messages_per_second=self.random.choice([1, 5, 20]), burst_seconds=1)
        tenants = {"shut": publish(messages_per_second=0), "slow": slow}
        kept = {tenant: quotas for tenant, quotas in tenants.items() if self.random.random() < 0.7}
        return policies(tenants=kept, namespaces=_REJECTING)

    def run(self, document: Any, crash: str | None = None) -> bool:
        """Run the query until it ends by itself, or in the crash that was asked for; return whether it crashed."""
        lake, given = self.lake, set[int]()

        def keep(rows: Any, batch: int) -> None:
            found, again = (sorted(map(tuple, rows.collect()), key=str) for _ in range(2))
            assert found == again, f"batch {batch} reads its rows twice"
            assert batch in given or lake.kept.get(batch, found) == found, f"batch {batch} ran again: {self.told}"
            given.add(batch)
            lake.kept[batch] = found

        throttle = lake.throttle(document)
        events = stream(lake, throttle, most_files=self.most_files)
        if self.drops_rows:
            dropped = " OR ".join(f"id = {_ROWS_OF_FILE * at + _DROPPED_ROW}" for at in range(_MOST_FILES))
            events = events.where(f"size <> {_DROPPED_SIZE} OR size IS NULL").where(f"NOT ({dropped})")
            events = events.selectExpr("*", "size + 1 AS more")
        writer = throttle.write_stream(events).option("checkpointLocation", lake.checkpoint)
        writer = writer.trigger(availableNow=True)
        with self._crashing(crash):
            try:
                finish(writer.foreachBatch(keep).start())
            except StreamingQueryException as error:
                if CrashError.__name__ not in str(error):
                    raise
                self.told.append(f"crashed at {crash}")
                return True
        self.told.append("ran")
        return False

    @contextmanager
    def _crashing(self, at: str | None) -> Iterator[None]:
        """Crash at a point, in the first batches that come to it, with a copy left that is not whole."""

        def lose(rows: Sequence[RowsOfFile]) -> None:
            for copy in {each.rest for each in rows if each.rest}:
                (self.lake.control / "staged" / copy).unlink()

        points: dict[str, tuple[type, str, bool, Callable[[Sequence[RowsOfFile]], None] | None]] = {
            "before the rows": (StagedPayload, "take", True, None),
            "after the rows": (StagedPayload, "take", False, None),
            "copied rows": (StagedPayload, "_copy", False, lose),
            "packed rows": (StagedPayload, "_run", False, lose),
            "after the sinks": (StagedRows, "confirm", False, None),
        }
        with pytest.MonkeyPatch.context() as patch:
            if at is not None:
                owner, name, is_before, harm = points[at]
                real, left = getattr(owner, name), [self.random.choice([1, 2, 3])]

                def crashing(of: Any, *args: Any, **named: Any) -> Any:
                    left[0] -= 1
                    if left[0] == 0 and is_before:
                        raise CrashError
                    found = real(of, *args, **named)
                    if left[0] == 0:
                        if harm is not None:
                            harm(args[-1])
                        raise CrashError
                    return found

                patch.setattr(owner, name, crashing)
            yield

    def put_back(self) -> None:
        """Undo up to three batches, after which an older file arrives."""
        last = self.lake.last_batch()
        batch = self.random.randint(max(last - 2, 0), last)
        self.lake.crash_in(batch)
        self.lake.kept = {each: rows for each, rows in self.lake.kept.items() if each <= batch}
        for folder in (self.lake.control / "rejected").glob("batch=*"):
            if int(folder.name.partition("=")[2]) > batch:
                shutil.rmtree(folder)
        self.told.append(f"put back from {last} to {batch}")
        self.offer(is_early=True)
        self.run(self.policies())

    def check(self) -> None:
        """Compare what was offered with what was admitted, what was rejected, and what both audits say waits."""
        spark, checkpoint = self.lake.spark, self.lake.checkpoint
        waits = Counter(row["id"] for row in self._waiting(read_queued(spark, checkpoint)))
        after = queued_after(spark, checkpoint, str(self.lake.control), self.lake.last_batch())
        assert Counter(row["id"] for row in self._waiting(after)) == waits
        left = Counter([row[0] for row in self.lake.admitted] + self.lake.rejected_ids)
        assert left + waits == Counter(self.offered), self.told

    @staticmethod
    def _waiting(found: Any) -> list[Any]:
        """Return rows; an audit of an empty queue has none of the user's columns."""
        return found.collect() if "id" in found.columns else []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 5))
def test_each_row_leaves_once_or_waits_whatever_crashed_and_was_put_back(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    pack_with(monkeypatch, {name: random.choice(values) for name, values in _BOUNDS.items()})
    life = Life(lake, random, random.choice([1, 2]), random.random() < 0.5)
    points = [None, "before the rows", "after the rows", "copied rows", "packed rows", "after the sinks"]
    for _ in range(4):
        for _ in range(random.choice([1, 2, 3])):
            life.offer(is_early=random.random() < 0.5)
        if life.run(life.policies(), random.choice(points)):
            life.run(life.policies())
        if random.random() < 0.5:
            life.put_back()
        life.check()
    life.run(policies(namespaces=_REJECTING))
    life.check()
