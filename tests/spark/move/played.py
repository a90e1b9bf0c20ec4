"""One decider without Spark: rows as they arrive in frames, control rows, batch after batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import BinaryType, IntegerType, Row, StructField, StructType

from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.quota import MICRO, CompiledPolicy
from spark_throttle.core.state import ControlRow, StoredState
from spark_throttle.record import pack, unpack
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from spark_throttle.spark.move.queue_frames import QueueFolder
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE, TIE

START_MS = 1_760_000_000_000
PLENTY = 10**6


def with_helpers(
    rows: pa.Table, namespaces: Sequence[str | None], sizes: Sequence[int | None], *, ordered: bool = True
) -> pa.Table:
    """Return rows with the columns that decisions need; ordered by their place, or by a hash of their first column."""
    ties = [zlib.crc32(repr(value).encode()) for value in rows.column(0).to_pylist()]
    helped = rows.append_column(NAMESPACE, pa.array(namespaces, pa.string()))
    helped = helped.append_column(SIZE, pa.array(sizes, pa.int64())).append_column(TIE, pa.array(ties, pa.int64()))
    if ordered:
        helped = helped.append_column(f"{ORDER_PREFIX}000", pa.array(np.arange(rows.num_rows)))
    return helped


def control_block(policy: CompiledPolicy | None, *, epoch: int = 1, now_ms: int = START_MS) -> bytes:
    """Return a control row of an epoch that was made at `now_ms`."""
    packed = None if policy is None else pack(policy)
    return pack(ControlRow(epoch, packed, PayingTime(now_ms, now_ms)))


def with_tokens(
    state: bytes | None, policy: CompiledPolicy, tokens: Sequence[tuple[float, float]], now_ms: int
) -> bytes:
    """Return a state whose shared scopes hold at most so many messages and bytes."""
    if state is None:
        state = run_batch(None, control_block(policy, now_ms=now_ms), [], now_ms=now_ms, is_explained=False).state
    stored = unpack(StoredState, state, "the state")
    shared = stored.state.shared.refilled(policy, now_ms=now_ms)
    most_micro = np.array([[round(n * MICRO) for n in (*pair, 0, 0)] for pair in tokens], dtype=np.int64)
    cut = replace(shared, balance_micro=np.minimum(shared.balance_micro, most_micro))
    return pack(replace(stored, state=replace(stored.state, shared=cut)), is_compressed=True)


State = tuple[int, bytes, bytes, bytes | None]
"""What Spark keeps between two batches: the format, the kernel's state, the files, and those that it holds itself."""


def group_state(state: State | None, now_ms: int) -> GroupState:
    """Return what Spark hands the operator: its own class, made without a JVM."""
    names = ("block", "files", "inline")
    schema = StructType([StructField("version", IntegerType()), *(StructField(name, BinaryType()) for name in names)])
    value = Row(**dict(zip(("version", *names), state, strict=True))) if state is not None else Row()
    return GroupState(
        value, now_ms, GroupState.NO_TIMESTAMP, "NoTimeout", False, False, state is not None, False, False,
        GroupState.NO_TIMESTAMP, b"", schema,
    )  # fmt: skip


def state_in(group: GroupState) -> State:
    """Return what Spark keeps of a state that an operator has updated."""
    version, block, files, inline = group.get
    return int(version), bytes(block), bytes(files), None if inline is None else bytes(inline)


@dataclass
class PlayedDecider:
    """A decider that is played by hand through `run_batch`."""

    policy: CompiledPolicy
    now_ms: int = START_MS
    state: bytes | None = None
    folder: QueueFolder | None = None
    epoch: int | None = None
    """Number of the epoch that each batch brings; `None` if only the first batch, and those with tokens, bring one."""

    outcome: BatchOutcome = field(init=False)

    def batch(
        self,
        rows: pa.Table | None = None,
        *,
        after_ms: int = 1_000,
        tokens: Sequence[tuple[float, float]] | None = None,
        is_explained: bool = False,
    ) -> BatchOutcome:
        """Run a batch; the first brings the policy."""
        self.now_ms += after_ms
        row = None
        if tokens is not None:
            self.state = with_tokens(self.state, self.policy, tokens, self.now_ms)
        if tokens is not None or self.state is None or self.epoch is not None:
            policy = self.policy if self.state is None else None
            row = control_block(policy, epoch=self.epoch or 1, now_ms=self.now_ms)
        arrived = [] if rows is None or not rows.num_rows else [rows]
        self.outcome = run_batch(
            self.state, row, arrived, now_ms=self.now_ms, is_explained=is_explained, folder=self.folder
        )
        if self.folder is not None:
            self.folder.delete(self.outcome.deletable_files)
        self.state = self.outcome.state
        return self.outcome

    @property
    def stored(self) -> StoredState:
        """What the last batch left in Spark's state store."""
        assert self.state is not None
        return unpack(StoredState, self.state, "the state")


def column(tables: Sequence[pa.Table], name: str) -> list[object]:
    """Return a column of all tables."""
    return [value for table in tables for value in table.column(name).to_pylist()]
