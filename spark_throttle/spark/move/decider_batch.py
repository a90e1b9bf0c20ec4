"""One batch of the decider with its payloads: bytes in, tables out, without Spark, pandas or a clock.

`core.batch.admission` makes the decisions. This module puts rows in order, and moves their payloads according to
the decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.batch.admission import AdmissionPlan, Arrivals, plan_admission
from spark_throttle.core.batch.decisions import DIMENSIONS, REASONS
from spark_throttle.core.left_rows import AGAIN, RETURNED, Settlement, settle
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import (
    NEVER_MS,
    Bools,
    CompiledPolicy,
    Int64s,
    Level,
    Overflow,
    QueueBounds,
    Verdict,
)
from spark_throttle.core.reservations import LateCosts, SettledCosts
from spark_throttle.core.reservations import settled as settled_by
from spark_throttle.core.state import ControlRow, DeciderState, StoredState
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import ConfigurationError
from spark_throttle.record import pack, unpack
from spark_throttle.spark.move.queue_frames import QueueFolder, QueueFrames, likely_order
from spark_throttle.spark.rows.frames import IDENTITY, NAMESPACE, SIZE, THROTTLE, UNITS, arranged, payload
from spark_throttle.spark.rows.gathering import gathered
from spark_throttle.spark.rows.identities import identity_words
from spark_throttle.spark.rows.partition_names import has_folder

VERDICT_TYPE = pa.struct([
    ("verdict", pa.string()), ("reason", pa.string()), ("level", pa.string()), ("dimension", pa.string()),
    ("scope", pa.string()), ("throttle_time_ms", pa.int64()), ("delayed_ms", pa.int64()),
])  # fmt: skip
"""Type of the ``throttle`` column."""

_MATCHES: Final = MatchMemory()
"""Matches of the batch that this process decided last; a worker is likely to get the next one too."""

_NO_STATE: Final = (
    "the decider has no state and its batch brings no policy: its state was removed from the checkpoint; restore the "
    "checkpoint, or start a new one"
)


@dataclass(frozen=True, slots=True, eq=False)
class BatchOutcome:
    """The result of a batch."""

    state: bytes
    admitted: list[pa.Table]
    rejected: list[pa.Table]
    usage: bytes
    deletable_files: tuple[str, ...]
    """The files of waiting rows that no checkpoint can need after this batch."""

    freed: list[pa.Table] | None
    """The rows that the state does not keep any more, or does not begin to; `None` for those that leave."""

    sent_before: pa.StringArray
    """The namespaces of which rows are admitted that the state held, each once; empty unless order is kept."""


@lru_cache(maxsize=64)
def _policy(block: bytes) -> CompiledPolicy:
    return unpack(CompiledPolicy, block, "the policy in the decider's state")


def run_batch(  # noqa: PLR0913 - all that a batch depends on
    state: bytes | None,
    control: bytes | None,
    arrived: Sequence[pa.Table],
    *,
    now_ms: int,
    is_explained: bool,
    room: QueueBounds | None = None,
    partition_columns: tuple[str, ...] = (),
    folder: QueueFolder | None = None,
    keeps_left: bool = False,
    keeps_order: bool = False,
    costs: LateCosts | None = None,
) -> BatchOutcome:
    """Decide a batch and move its payloads.

    Parameters
    ----------
    state
        The state that the last batch returned; `None` before the first.
    control
        The control row of the batch, if it has one.
    arrived
        The rows that arrived, with all helper columns, in any order.
    is_explained
        Whether admitted rows carry the ``throttle`` column too.
    now_ms
        Spark's time of the batch. Tokens, delays and expiry follow the paying time instead (`token_bucket`).
    room
        Bounds up to which the queue may fill before the batch fails, if the policy's own bounds are smaller.
    partition_columns
        Partition columns of the sink; a row for which they give no folder is rejected.
    folder
        Where the payload of waiting rows lies that is too large for the state; by default, all of it is in the state.
    keeps_left
        Whether rows that leave for a destination may come back (`core.left_rows`).
    keeps_order
        Whether the sink may depend on the order of a namespace's rows.
    costs
        What rows that left before really cost, as a stream told it.
    """
    folder = folder or QueueFolder(None)
    batch_ms = now_ms
    begun = _begun(state, control, batch_ms, costs)
    stored, now_ms, settlement = begun.stored, begun.now_ms, begun.settlement
    policy = _with_room(_policy(stored.policy), room)
    together = arranged(list(arrived)) if arrived else None
    arrivals = _arrivals(together, partition_columns)
    plan = plan_admission(
        stored.state, arrivals, policy, now_ms=now_ms, memory=_MATCHES,
        returned=None if settlement is None else settlement.returned, settled=begun.settled, keeps=keeps_left,
    )  # fmt: skip
    rows = payload(together) if together is not None else None
    kept = _KeptRows.of(stored, settlement, plan, keeps_left=keeps_left)
    decided = _DecidedBatch(plan, stored, kept, folder, arrivals, rows, policy, now_ms)
    admitted = decided.again() + decided.leaving(Verdict.ADMIT, is_explained=is_explained)
    rejected = decided.leaving(Verdict.REJECT, is_explained=True)
    freed = decided.freed() if len(kept.left_at) or len(plan.kept) else None
    joining, left, left_at = _joining(rows, kept, plan)
    after, files = decided.queue.after(kept.stays, joining, folder).moved(stored.files, left.epoch, folder)
    after_batch = StoredState(
        left, stored.policy, after.frames, after.frame_of_row, after.row_in_frame, stored.paying, files,
        left_at if len(left_at) else None,
    )  # fmt: skip
    usage = replace(plan.usage, now_ms=batch_ms, paid_ms=now_ms)
    return BatchOutcome(
        pack(after_batch, is_compressed=True), admitted, rejected, pack_usage(usage), files.deletable, freed,
        decided.sent_before() if keeps_order else pa.array([], pa.string()),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _KeptRows:
    """The rows that the state held before a batch, and which rows it holds after it, by their positions."""

    left_at: Int64s
    """Of all stored rows, those that had left."""

    again_at: Int64s
    """Of these, those that leave once more, in the order in which they do."""

    may_return: bool
    """Whether they may come back after that, too."""

    waits_at: Int64s | None
    """Of all stored rows, those that waited when the batch was decided; `None` if these are all of them."""

    stays: Bools
    """Which stored rows the state holds on to."""

    arrival_waits: Bools
    """Which arrivals wait."""

    arrival_left: Bools
    """Which arrivals have left and may come back."""

    @classmethod
    def of(
        cls, stored: StoredState, settlement: Settlement | None, plan: AdmissionPlan, *, keeps_left: bool
    ) -> _KeptRows:
        left_at, rows, queued = stored.left_positions, len(stored.frame_of_row), len(stored.state.queue)
        verdict = plan.decisions.verdict
        waits, leaves = verdict == Verdict.DELAY, np.zeros(len(verdict), dtype=np.bool_)
        leaves[plan.kept] = True
        if settlement is None or not len(left_at):
            stays = (waits | leaves)[:queued]
            return cls(left_at, left_at, keeps_left, None, stays, waits[queued:], leaves[queued:])
        is_waiting = np.ones(rows, dtype=np.bool_)
        is_waiting[left_at] = settlement.fate == RETURNED
        again_at, waits_at = left_at[settlement.fate == AGAIN], np.flatnonzero(is_waiting)
        stays = np.zeros(rows, dtype=np.bool_)
        stays[again_at] = keeps_left
        stays[waits_at] = (waits | leaves)[:queued]
        return cls(left_at, again_at, keeps_left, waits_at, stays, waits[queued:], leaves[queued:])

    def in_store(self, of_queue: Bools) -> Bools:
        """Return which stored rows are those of the queue that a mask names."""
        if self.waits_at is None:
            return of_queue
        found = np.zeros(len(self.stays), dtype=np.bool_)
        found[self.waits_at] = of_queue
        return found

    def left_after(self, queued_left: Int64s) -> Int64s:
        """Return where the stored rows that may come back stand after the batch, those that are sent again first.

        Parameters
        ----------
        queued_left
            Those that leave in the batch, by their positions in the queue.
        """
        at = queued_left if self.waits_at is None else self.waits_at[queued_left]
        again_at = self.again_at if self.may_return else self.again_at[:0]
        return (np.cumsum(self.stays) - 1)[np.concatenate([again_at, at])]


def _joining(
    rows: pa.Table | None, kept: _KeptRows, plan: AdmissionPlan
) -> tuple[pa.Table | None, DeciderState, Int64s]:
    """Return the arrivals that the state holds from now on, the state with them, and where its `left` stand.

    They join in the order in which they are likely to leave. The core queues them as they arrived. But rows that leave
    together should lie in the same frames.
    """
    state, joins = plan.state, kept.arrival_waits | kept.arrival_left
    at, queued = np.flatnonzero(joins), len(plan.decisions.verdict) - len(joins)
    before = kept.left_after(plan.kept[plan.kept < queued])
    if rows is None or not len(at):
        return None, state, before
    is_left = kept.arrival_left[at]
    waiting = len(at) - int(is_left.sum())
    first = len(state.queue) - waiting
    flow = np.empty(len(at), dtype=np.int64)
    flow[~is_left], flow[is_left] = state.queue.flow[first:], state.left.flow[len(before) :]
    order = likely_order(np.concatenate([state.queue.flow[:first], flow]), first, plan.pace_micro_per_ms)
    of_waiting, position = (np.cumsum(~is_left) - 1)[order], np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    queue = state.queue.with_end_in(of_waiting[~is_left[order]])
    left_at = np.concatenate([before, np.count_nonzero(kept.stays) + position[is_left]])
    if 2 * len(at) < len(joins):  # rows in any order are taken from a copy of all rows, rows in order are not
        rows, at = rows.filter(pa.array(joins)), np.arange(len(at))
    return gathered(rows, at[order]), replace(state, queue=queue), left_at


def _with_room(policy: CompiledPolicy, room: QueueBounds | None) -> CompiledPolicy:
    """Return `policy` with its queue's bounds widened to `room`, if exceeding them fails the batch.

    A batch that failed has left nothing behind and may be decided again. A batch that did not fail is decided in the
    same way with wider bounds.
    """
    bounds = policy.queue
    if room is None or bounds.on_overflow != Overflow.FAIL:
        return policy
    wider = replace(bounds, messages=max(bounds.messages, room.messages), bytes=max(bounds.bytes, room.bytes))
    return replace(policy, queue=wider)


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A batch before its rows are decided."""

    stored: StoredState
    """The state with what the batch's epoch pins, if it brings one."""

    now_ms: int
    """The batch's paying time."""

    settlement: Settlement | None = None
    settled: SettledCosts | None = None


def _begun(state: bytes | None, control: bytes | None, batch_ms: int, told: LateCosts | None) -> _Begun:
    """Return the state with which a batch is decided.

    What came back is given back first, and then what rows really cost is charged, under the policy under which they
    were charged.
    """
    stored = unpack(StoredState, state, "the decider's state") if state is not None else None
    row = unpack(ControlRow, control, "the control row") if control is not None else None
    if stored is None:
        if row is None or row.policy is None:
            raise ConfigurationError(_NO_STATE)
        now_ms = row.paying.of_batch(batch_ms, is_new=True, advanced_to_ms=0)
        policy, queue = _policy(row.policy), QueueFrames.empty()
        first = DeciderState.initial(policy, row.share_micro_per_ms, now_ms=now_ms)
        first, settled = settled_by(first, _costs(told, row), policy)
        state_now = under_epoch(first, row, policy, policy, now_ms=now_ms)
        begun = StoredState(state_now, row.policy, queue.frames, queue.frame_of_row, queue.row_in_frame, row.paying)
        return _Begun(begun, now_ms, settled=settled)
    before, paying = _policy(stored.policy), stored.paying if row is None else row.paying
    now_ms = paying.of_batch(batch_ms, is_new=row is not None, advanced_to_ms=stored.state.advanced_to_ms)
    settlement = settle(stored.state, stored.left_positions, None if row is None else row.undelivered, before)
    state_now, settled = settled_by(settlement.state, _costs(told, row), before)
    block = stored.policy if row is None or row.policy is None else row.policy
    if row is not None:
        after = _policy(block)
        state_now = under_epoch(
            state_now, row, before, before if after.revision == before.revision else after, now_ms=now_ms
        )
    return _Begun(replace(stored, state=state_now, policy=block, paying=paying), now_ms, settlement, settled)


def _costs(told: LateCosts | None, row: ControlRow | None) -> LateCosts:
    """Return what a stream and functions have told of what rows cost."""
    return LateCosts.sum_of([each for each in (told, None if row is None else row.costs) if each is not None])


def _arrivals(arrived: pa.Table | None, partition_columns: tuple[str, ...]) -> Arrivals:
    if arrived is None:
        return Arrivals(pa.array([], pa.string()), pa.array([], pa.int64()))
    return Arrivals(
        _names(arrived.column(NAMESPACE)), _one_chunk(arrived.column(SIZE)), has_folder(arrived, partition_columns),
        _one_chunk(arrived.column(UNITS)) if UNITS in arrived.column_names else None,
        identity_words(_one_chunk(arrived.column(IDENTITY))) if IDENTITY in arrived.column_names else None,
    )  # fmt: skip


def _names(column: pa.ChunkedArray) -> pa.StringArray | pa.DictionaryArray:
    """Return namespaces, encoded if they came so: then each name is hashed once a frame, and not once a row."""
    if pa.types.is_dictionary(column.type):
        return _one_chunk(column.unify_dictionaries())
    return _one_chunk(column).cast(pa.string())  # they may have 64-bit offsets


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


@dataclass(frozen=True, slots=True, eq=False)
class _DecidedBatch:
    """A batch with its decisions."""

    plan: AdmissionPlan
    stored: StoredState
    kept: _KeptRows
    folder: QueueFolder
    arrivals: Arrivals
    rows: pa.Table | None
    """Payloads of the arrivals, in their order."""

    policy: CompiledPolicy
    now_ms: int

    @property
    def before(self) -> DeciderState:
        """The state with which the batch was decided."""
        return self.stored.state

    @property
    def queue(self) -> QueueFrames:
        """The frames of all rows that the state held."""
        return QueueFrames(self.stored.frames, self.stored.frame_of_row, self.stored.row_in_frame)

    def again(self) -> list[pa.Table]:
        """Return the payloads that leave once more."""
        at = self.kept.again_at
        if not len(at):
            return []
        wanted = np.zeros(len(self.kept.stays), dtype=np.bool_)
        wanted[at] = True
        found = pa.concat_tables(self.queue.rows(wanted, self.folder))
        return [found.take(pa.array(np.searchsorted(np.sort(at), at)))]

    def sent_before(self) -> pa.StringArray:
        """Return the namespaces of which stored rows leave, each once."""
        leaves = self.plan.decisions.verdict[: len(self.before.queue)] == Verdict.ADMIT
        flow = np.concatenate([self.before.left.flow, self.before.queue.flow[leaves]])  # the left ones leave once more
        return self.before.flows.names.take(pa.array(np.flatnonzero(np.bincount(flow))))

    def freed(self) -> list[pa.Table]:
        """Return the payloads that the state does not hold after the batch."""
        tables, joins = self.queue.rows(~self.kept.stays, self.folder), self.kept.arrival_waits | self.kept.arrival_left
        return tables if self.rows is None else [*tables, self.rows.filter(pa.array(~joins))]

    def leaving(self, verdict: Verdict, *, is_explained: bool) -> list[pa.Table]:
        """Return the payloads with `verdict`: first those from the queue, then those that arrived."""
        leaves = self.plan.decisions.verdict == verdict
        queued = len(self.before.queue)
        tables = self.queue.rows(self.kept.in_store(leaves[:queued]), self.folder)
        if self.rows is not None and leaves[queued:].any():
            tables.append(self.rows if leaves[queued:].all() else self.rows.filter(pa.array(leaves[queued:])))
        if not is_explained or not tables:
            return tables
        explained = self._explained(np.flatnonzero(leaves))
        out, start = [], 0
        for table in tables:
            out.append(table.append_column(THROTTLE, explained.slice(start, table.num_rows)))
            start += table.num_rows
        return out

    def _explained(self, at: Int64s) -> pa.StructArray:
        """Return the ``throttle`` column of the rows at `at`."""
        d, before, policy = self.plan.decisions.take(at), self.before, self.policy
        queued = len(before.queue)
        namespaces = pa.concat_arrays([
            before.flows.names.take(pa.array(before.queue.flow[at[at < queued]])),
            self.arrivals.namespaces.take(pa.array(at[at >= queued] - queued)).cast(pa.string()),
        ])  # fmt: skip
        shared_names = pa.concat_arrays([pa.array(["job"]), policy.tenant_names, policy.group_names])
        scope, reason, wait_ms = d.scope, d.reason, d.throttle_time_ms
        shared = shared_names.take(pa.array(scope, mask=scope < 0))
        is_own = pa.array(d.level == Level.NAMESPACE)
        just_arrived = np.full(len(self.arrivals), self.now_ms, dtype=np.int64)
        arrival_ms = np.concatenate([before.queue.arrival_ms, just_arrived])
        columns = [
            _words([v.name for v in Verdict], d.verdict),
            _words(REASONS, np.where(reason > 0, reason, -1)),
            _words([level.name.lower() for level in Level], d.level),
            _words(DIMENSIONS, d.dimension),
            pc.if_else(is_own, shown(namespaces), shared),
            pa.array(wait_ms, mask=wait_ms >= NEVER_MS),
            pa.array(np.maximum(self.now_ms - arrival_ms[at], 0)),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(VERDICT_TYPE))


def _words(words: Sequence[str], index: npt.NDArray[np.integer[Any]]) -> pa.Array:
    """Return the word of every index; null for a negative one."""
    return pa.array(words, pa.string()).take(pa.array(index, mask=index < 0))
