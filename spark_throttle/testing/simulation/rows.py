"""The rows of a simulated job come from tables, and go to a table with transactions or to a sink that only appends."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.state import StoredState
from spark_throttle.record import unpack
from spark_throttle.spark.move.queue_frames import QueueFolder
from spark_throttle.spark.rows.frames import IDENTITY, NAMESPACE, ORDER_PREFIX, SIZE, TIE, UNITS, decode
from spark_throttle.spark.rows.identities import identity_of, identity_words

Name: TypeAlias = str | bytes | None
"""A namespace as a stream may hold it: text, bytes that are not valid UTF-8, or null."""

OfferedRow: TypeAlias = (
    tuple[Name, int | None] | tuple[Name, int | None, int | None] | tuple[Name, int | None, int | None, str | None]
)
"""Namespace, size in bytes and, perhaps, units, and the identity by which its cost is told."""

_ID: Final = "id"
_HASH_FACTOR: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Row:
    """A row that was offered."""

    id: int
    """Position in the source, by which rows are ordered."""

    namespace: Name
    size_bytes: int | None
    units: int | None = 0
    identity: str | None = None
    """By what it is reserved; `None` if its units are its cost."""


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A dead letter."""

    row: Row
    reason: str
    level: str | None
    scope: str | None
    dimension: str | None
    throttle_time_ms: int | None


Cost: TypeAlias = tuple[str, int]
"""What a row really cost, by its identity."""


def late_costs(costs: Iterable[Cost]) -> LateCosts:
    """Return costs as the decider takes them."""
    told = list(costs)
    identities = pa.array([identity_of(identity) for identity, _ in told], pa.binary())
    return LateCosts(identity_words(identities), np.array([units for _, units in told], dtype=np.int64))


def _bytes(namespace: Name) -> bytes | None:
    return namespace.encode() if isinstance(namespace, str) else namespace


def tables_of(rows: Sequence[Row], attempt: random.Random) -> list[pa.Table]:
    """Return tables of rows; there are none without rows."""
    shuffled = list(rows)
    attempt.shuffle(shuffled)
    tables: list[pa.Table] = []
    while shuffled:
        count = attempt.randint(1, len(shuffled))
        task, shuffled = shuffled[:count], shuffled[count:]
        tables.append(_arrow(task))
    return tables


def _arrow(rows: Sequence[Row]) -> pa.Table:
    ids = pa.array([row.id for row in rows], pa.int64())
    # Not `cast`, which would refuse invalid UTF-8: Spark sends text unchanged.
    names = pa.array([_bytes(row.namespace) for row in rows], pa.binary()).view(pa.string())
    ties = [(row.id * _HASH_FACTOR) % 2**64 - 2**63 for row in rows]
    identities = [None if row.identity is None else identity_of(row.identity) for row in rows]
    return pa.table({
        _ID: ids, NAMESPACE: names, SIZE: pa.array([row.size_bytes for row in rows], pa.int64()),
        UNITS: pa.array([row.units for row in rows], pa.int64()), IDENTITY: pa.array(identities, pa.binary()),
        TIE: pa.array(ties, pa.int64()), f"{ORDER_PREFIX}000": ids,
    })  # fmt: skip


def ids_of(tables: Iterable[pa.Table]) -> list[int]:
    """Return the numbers of the rows that left, in their order."""
    return [number for table in tables for number in table.column(_ID).to_pylist()]


def dead_letters(tables: Iterable[pa.Table], source: Sequence[Row]) -> list[RejectedRow]:
    """Return the rejected rows with their reasons."""
    out = []
    for table in tables:
        # A scope may be a namespace that is not valid UTF-8, which no Python string can hold.
        verdict = table.column("throttle").combine_chunks()
        scope = [_text(name) for name in verdict.field("scope").view(pa.binary()).to_pylist()]
        fields = [verdict.field(name).to_pylist() for name in ("reason", "level", "dimension", "throttle_time_ms")]
        for number, where, (reason, level, dimension, wait_ms) in zip(
            table.column(_ID).to_pylist(), scope, zip(*fields, strict=True), strict=True
        ):
            out.append(RejectedRow(source[number], reason, level, where, dimension, wait_ms))
    return out


def _text(name: bytes | None) -> str | None:
    return None if name is None else name.decode(errors="backslashreplace")


def waiting_ids(state: bytes, folder: QueueFolder) -> list[int]:
    """Return the numbers of the waiting rows of a state, in the order of its queue."""
    stored = unpack(StoredState, state, "a simulated state")
    ids = [decode(frame).column(_ID).to_pylist() for frame in folder.open(stored.frames)]
    assert len(stored.state.queue) == len(stored.frame_of_row), "every waiting row has a payload"
    return [ids[f][r] for f, r in zip(stored.frame_of_row.tolist(), stored.row_in_frame.tolist(), strict=True)]


RowT = TypeVar("RowT")


@dataclass(slots=True)
class TransactionalTable(Generic[RowT]):
    """A table that skips a batch whose mark it has, and refuses another batch of the same number, as Delta sinks do.

    Examples
    --------
    >>> table = TransactionalTable[str]()
    >>> table.append(BatchMark("query", 0, "5eed"), ["a"])
    True
    >>> table.append(BatchMark("query", 0, "5eed"), ["a"])
    False
    >>> table.rows
    ['a']
    """

    rows: list[RowT] = field(default_factory=list)
    newest: dict[str, BatchMark] = field(default_factory=dict)
    """Mark of the newest batch, by query."""

    def append(self, mark: BatchMark, rows: list[RowT]) -> bool:
        """Append a batch that the table does not have, and return whether it was appended.

        Raises
        ------
        CheckpointMismatchError
            If the table has another batch of that number, or a later one.
        """
        newest = self.newest.get(mark.query)
        if newest is not None and newest.batch >= mark.batch:
            mark.check("the simulated table", newest.batch, newest.identity)
            return False
        self.rows += rows
        self.newest[mark.query] = mark
        return True

    def copy(self) -> TransactionalTable[RowT]:
        """Return a table with the same rows and transactions."""
        return TransactionalTable(list(self.rows), dict(self.newest))

    def check_start(self, query: str, logged: int) -> None:
        """Check the table against a checkpoint whose newest batch is `logged`, as `spark.start.start_check` does.

        Raises
        ------
        CheckpointMismatchError
            If the table has a later batch.
        """
        newest = self.newest.get(query)
        if logged >= 0 and newest is not None and newest.batch > logged:
            BatchMark(query, logged, "").check("the simulated table", newest.batch, None)


@dataclass(slots=True)
class PlainSink(Generic[RowT]):
    """A sink that appends everything it is given: at least once."""

    rows: list[RowT] = field(default_factory=list)

    def append(self, rows: list[RowT]) -> None:
        """Append rows."""
        self.rows += rows
