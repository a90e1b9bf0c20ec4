"""A whole job without Spark: the control plane, the shards that it plans for, and the log of offsets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.feedback import write_reports
from spark_throttle.control.plane import ControlPlane
from spark_throttle.core.codec import pack_grant, unpack_shard
from spark_throttle.core.names.sharding import slice_of
from spark_throttle.core.policy_codec import pack_policy
from spark_throttle.files.storage import Directory
from spark_throttle.spark.rows.frames import encode
from spark_throttle.spark.shard.shard_batch import ShardOutcome, run_batch
from tests.control.queries import START_MS, FakePolicies, snapshot
from tests.spark.shard.shards import with_helpers

Rows = Sequence[tuple[str, int]]
"""Namespace and size of each."""


@dataclass
class WholeJob:
    path: Path
    document: dict[str, object]
    shards: int = 1
    now_ms: int = START_MS
    """What time it really is."""

    shift_ms: int = 0
    """How far the wall clock is ahead of true time."""

    machine: str = "one"
    name: EpochName = NO_EPOCH
    batches: int = 0
    states: dict[int, bytes] = field(default_factory=dict)
    admitted: list[tuple[int, str]] = field(default_factory=list)
    """When it really was, and of which namespace, a row left."""

    rejected: int = 0
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
        self.plane = ControlPlane(self.directory, self.policies, "publish", self.shards, clock)

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
        outcomes = self.decide(end, rows)
        self.name, self.batches = end, self.batches + 1
        write_reports(self.directory, self.batches - 1, [outcome.usage for outcome in outcomes.values()])
        for shard, outcome in outcomes.items():
            self.states[shard] = outcome.state
            for table in outcome.admitted:
                self.admitted += [(self.now_ms, name) for name in table.column("ns").to_pylist()]
            self.rejected += sum(table.num_rows for table in outcome.rejected)
        return len(self.admitted) + self.rejected - before

    def decide(self, end: EpochName, rows: Rows) -> dict[int, ShardOutcome]:
        """Run the batch between the last epoch and `end` in all shards that it reaches."""
        here: dict[int, list[tuple[str, int]]] = {}
        for row in rows:
            here.setdefault(zlib.crc32(row[0].encode()) % self.shards, []).append(row)
        reached = range(self.shards) if end != self.name else sorted(here)
        return {
            shard: run_batch(
                self.states.get(shard), self.grant(end, shard), frames(here.get(shard, [])), shard=shard,
                shards=self.shards, now_ms=self.wall_ms(), is_explained=False,
            )
            for shard in reached
        }  # fmt: skip

    def grant(self, end: EpochName, shard: int) -> bytes | None:
        """Return the control row that `end` brings a shard."""
        if end == self.name:
            return None
        policy = self.plane.epochs.policy_for(self.name, end)
        part = None if policy is None else pack_policy(slice_of(policy, shard, self.shards))
        return pack_grant(self.plane.epochs.load(end).grant(shard, part))

    @property
    def waiting(self) -> int:
        return sum(len(unpack_shard(state, "it").state.queue) for state in self.states.values())


def frames(rows: Rows) -> list[bytes]:
    if not rows:
        return []
    names = [name for name, _ in rows]
    table = pa.table({"id": list(range(len(rows))), "ns": pa.array(names, pa.string())})
    return encode(with_helpers(table, names, [size for _, size in rows]))
