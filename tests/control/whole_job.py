"""A whole job without Spark: the control plane, the decider that it plans for, and the log of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import write_report
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core.state import StoredState
from spark_throttle.core.usage import UsageReport, unpack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack, unpack
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from tests.control.queries import START_MS, FakePolicies, snapshot
from tests.spark.move.played import with_helpers

Rows = Sequence[tuple[str, int]]
"""Namespace and size of each."""


@dataclass
class WholeJob:
    path: Path
    document: dict[str, object]
    now_ms: int = START_MS
    """What time it really is."""

    shift_ms: int = 0
    """How far the wall clock is ahead of true time."""

    machine: str = "one"
    name: EpochName = NO_EPOCH
    batches: int = 0
    state: bytes | None = None
    admitted: list[tuple[int, str]] = field(default_factory=list)
    """When it really was, and of which namespace, a row left."""

    rejected: int = 0
    reports: list[UsageReport] = field(default_factory=list)
    """The report of every batch."""

    fence: RunFence | None = None
    plane: ControlPlane = field(init=False)

    def __post_init__(self) -> None:
        self.policies = FakePolicies(snapshot(self.document))
        self.restart()

    @property
    def directory(self) -> Directory:
        return Directory(str(self.path))

    def restart(self) -> None:
        since_ms = START_MS - 1000 * len(self.machine) ** 4
        clock = Clock(self.wall_ms, lambda: self.now_ms - since_ms, self.machine)
        self.plane = ControlPlane(self.directory, self.policies, "publish", clock, fence=self.fence)

    def wall_ms(self) -> int:
        return self.now_ms + self.shift_ms

    def trigger(self, rows: Rows = (), *, after_ms: int = 1_000, lasts_ms: int = 0) -> int | None:
        """Return how many rows left in the batch that was planned, `None` if none was."""
        self.now_ms += after_ms
        end = self.plane.next_epoch(self.name)
        if end == self.name and not rows:
            return None
        self.now_ms += lasts_ms
        before = len(self.admitted) + self.rejected
        outcome = self.decide(end, rows)
        self.name, self.batches, self.state = end, self.batches + 1, outcome.state
        write_report(self.directory, self.batches - 1, outcome.usage)
        self.reports.append(unpack_usage(outcome.usage, "it"))
        for table in outcome.admitted:
            self.admitted += [(self.now_ms, name) for name in table.column("ns").to_pylist()]
        self.rejected += sum(table.num_rows for table in outcome.rejected)
        return len(self.admitted) + self.rejected - before

    def decide(self, end: EpochName, rows: Rows) -> BatchOutcome:
        """Run the batch between the last epoch and `end`."""
        return run_batch(
            self.state, self.control_row(end), tables(rows), now_ms=self.wall_ms(), is_explained=False
        )  # fmt: skip

    def control_row(self, end: EpochName) -> bytes | None:
        """Return the row that `end` brings the decider."""
        if end == self.name:
            return None
        epochs = self.plane.epochs
        policy, epoch = epochs.policy_for(self.name, end), epochs.load(end)
        packed = None if policy is None else pack(policy)
        return pack(epoch.control_row(packed, epochs.policy(epoch)))

    @property
    def stored(self) -> StoredState:
        """What the last batch left in Spark's state store."""
        assert self.state is not None
        return unpack(StoredState, self.state, "it")

    @property
    def waiting(self) -> int:
        return len(self.stored.state.queue)


def tables(rows: Rows) -> list[pa.Table]:
    if not rows:
        return []
    names = [name for name, _ in rows]
    table = pa.table({"id": list(range(len(rows))), "ns": pa.array(names, pa.string())})
    return [with_helpers(table, names, [size for _, size in rows])]
