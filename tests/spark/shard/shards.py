"""One shard without Spark: rows as they arrive in frames, control rows, batch after batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import BinaryType, IntegerType, Row, StructField, StructType

from spark_throttle.core.codec import ShardGrant, StoredShard, pack_grant, unpack_shard
from spark_throttle.core.policy_codec import pack_policy
from spark_throttle.core.quota import MICRO, CompiledPolicy
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE, TIE, encode
from spark_throttle.spark.shard.queue_folder import QueueFolder
from spark_throttle.spark.shard.shard_batch import ShardOutcome, run_batch

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


def grant_block(policy: CompiledPolicy | None, tokens: Sequence[tuple[float, float]], *, epoch: int = 1) -> bytes:
    """Return a control row that lends whole tokens of every shared scope, and no headroom."""
    balance = np.array([[round(n * MICRO) for n in pair] for pair in tokens], dtype=np.int64)
    part = None if policy is None else pack_policy(policy)
    return pack_grant(ShardGrant(epoch, part, balance, np.zeros_like(balance)))


def group_state(state: tuple[int, bytes] | None, now_ms: int) -> GroupState:
    """Return what Spark hands the operator: its own class, made without a JVM."""
    schema = StructType([StructField("version", IntegerType()), StructField("block", BinaryType())])
    value = Row(version=state[0], block=state[1]) if state is not None else Row()
    return GroupState(
        value, now_ms, GroupState.NO_TIMESTAMP, "NoTimeout", False, False, state is not None, False, False,
        GroupState.NO_TIMESTAMP, b"", schema,
    )  # fmt: skip


@dataclass
class Shard:
    """A shard that is played by hand through `run_batch`."""

    policy: CompiledPolicy
    now_ms: int = START_MS
    state: bytes | None = None
    folder: QueueFolder | None = None
    epoch: int | None = None
    """Number of the epoch that each batch brings; `None` if only the first batch, and those with tokens, bring one."""

    outcome: ShardOutcome = field(init=False)

    def batch(
        self,
        rows: pa.Table | None = None,
        *,
        after_ms: int = 1_000,
        tokens: Sequence[tuple[float, float]] | None = None,
        is_explained: bool = False,
    ) -> ShardOutcome:
        """Run a batch; the first brings the policy and plenty of every shared scope."""
        self.now_ms += after_ms
        grant = None
        if tokens is not None or self.state is None or self.epoch is not None:
            lent = tokens if tokens is not None else [(PLENTY, PLENTY)] * len(self.policy.shared)
            grant = grant_block(self.policy if self.state is None else None, lent, epoch=self.epoch or 1)
        frames = encode(rows) if rows is not None else []
        self.outcome = run_batch(
            self.state, grant, frames, shard=0, shards=1, now_ms=self.now_ms, is_explained=is_explained,
            folder=self.folder,
        )  # fmt: skip
        if self.folder is not None:
            self.folder.delete(self.outcome.deletable_files)
        self.state = self.outcome.state
        return self.outcome

    @property
    def stored(self) -> StoredShard:
        """What the last batch left in Spark's state store."""
        assert self.state is not None
        return unpack_shard(self.state, "the state")


def column(tables: Sequence[pa.Table], name: str) -> list[object]:
    """Return a column of all tables."""
    return [value for table in tables for value in table.column(name).to_pylist()]
