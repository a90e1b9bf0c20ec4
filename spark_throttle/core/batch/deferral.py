"""Which rows wait for their verdict, although the scope that stopped them rejects what exceeds its quota.

A shard has a part of a scope's tokens, so a row that finds none need not exceed the quota:

- Other shards may have tokens left. They were lent before anybody knew where the rows of this batch would arrive. The
  next grant lends them to the shard in which the row waits.
- The job may have no share yet of a quota that jobs share. Once it has one, the rows that waited for it take its first
  tokens, and the rows that arrive behind them miss these tokens.

Such a row is neither admitted nor rejected: it waits, and the next batch decides it anew. The rows that may wait take
at most the tokens that the shard has left, and those that the epoch pins for this purpose (`state.Deferral`). As in a
bucket, the last of them may be larger than what is left. Flows take this room in turns, a row each, so that no flow
takes all of it; of one flow, the first rows wait and the others are rejected, which keeps their order. These rows take
only the room in the queue that no others need, and are cut to it as a queue is (`queue_bounds`). A row that is larger
than this room takes nothing from those that fit.

A row that a delaying scope has once held back has its verdict: it waits until it can leave, whatever stops it later. So
does a row that has waited and is then stopped by a limit of its own namespace. A row that is too old is not rejected
before it was decided once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import Segments, by_row, running_total, total_in_order
from spark_throttle.core.batch.queue_bounds import QueueRoom, WaitingRows
from spark_throttle.core.fair.layout import Candidates
from spark_throttle.core.limits.token_bucket import available_tokens
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Int64s
from spark_throttle.core.state import NO_BOUND, Grants

_PLENTY: Final = 1 << 62
"""More messages, or bytes, than wait in any shard."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRoom:
    """The room for rows that wait for their verdict, in messages and bytes."""

    tokens: Int64s
    """Shape (scopes, 2): what the rows that a scope stopped may take."""

    flow_tokens: Int64s
    """Shape (scopes, 2): what a flow of weight 1 may take, with what it was served in this batch."""

    queue: QueueRoom
    """What the queue has left for rows that wait for their verdict."""

    is_unleased: Bools
    """Shape (scopes,): whether the job has no share of the scope's quota. Its rows wait as those that are delayed."""

    @classmethod
    def of(cls, grants: Grants, policy: CompiledPolicy, queue: QueueRoom) -> WaitingRoom:
        """Return the room that a batch leaves with its `grants`."""
        tokens, deferral = available_tokens(grants.balance_micro), grants.deferral
        flow_tokens = np.full_like(tokens, _PLENTY)
        if deferral is not None:
            tokens = tokens + -(-deferral.room_micro // MICRO)
            # One row at least: a part of a batch may be less than a message, and who has such a part sends seldom.
            parts = np.maximum(deferral.flow_micro // MICRO, deferral.flow_micro > 0)
            flow_tokens = np.where(deferral.flow_micro == NO_BOUND, _PLENTY, parts)
        is_unleased = grants.is_unleased(policy)
        is_free = is_unleased[:, None] | ~policy.shared.is_limited
        return cls(np.where(is_free, _PLENTY, tokens), np.where(is_free, _PLENTY, flow_tokens), queue, is_unleased)

    def takes(
        self,
        rows: Candidates,
        scope: Int64s,
        served: Int64s,
        weight: Int64s,
        candidates: Candidates,
        names: pa.StringArray,
        *,
        now_ms: int,
    ) -> Bools:
        """Return which rows wait for their verdict.

        Parameters
        ----------
        rows
            Rows, in the order in which they are decided.
        scope
            The shared scope that would reject each row; -1 for a row that does not wait.
        served
            Shape (flows, 2): the messages and bytes that each flow was served in this batch.
        weight
            The weight of each flow in the scope that stopped it.
        candidates
            All rows that compete. Where two flows are at the same turn, the one that waits longest goes first
            (`Candidates.ties`).
        names
            The names of the flows.
        """
        waits = np.zeros(len(rows), dtype=np.bool_)
        at = np.flatnonzero((scope >= 0) & by_row(np.logical_and, self.tokens > 0)[scope])
        if not len(at):
            return waits
        turn, bytes_before = _turns(rows.flow[at], rows.size_bytes[at], len(names))
        taken = served.take(rows.flow[at], axis=0) + np.stack([turn, bytes_before], axis=1)
        is_due = by_row(np.logical_and, taken < self._parts(scope[at], weight[rows.flow[at]]))
        fits = (turn < self.queue.messages) & (bytes_before + rows.size_bytes[at] <= self.queue.bytes)
        is_due &= fits | self.is_unleased[scope[at]]
        at, turn = at[is_due], turn[is_due]
        tie = _ties(rows.flow[at], candidates, names, now_ms=now_ms)
        at = at[np.lexsort((tie, turn))]
        at = np.sort(at[self._has_room(scope[at], rows.size_bytes[at])])
        is_unleased = self.is_unleased[scope[at]]
        waits[at] = True
        at = at[~is_unleased]
        leased = rows.take(at)
        if not self.queue.fits(len(leased), int(leased.size_bytes.sum())):
            beyond = self.queue.beyond(WaitingRows(leased), candidates, names, now_ms=now_ms)
            waits[at[beyond]] = False
        return waits

    def _parts(self, scope: Int64s, weight: Int64s) -> Int64s:
        """Return the messages and bytes that flows of these weights may take, shape (n, 2)."""
        part, weight = self.flow_tokens.take(scope, axis=0), weight[:, None]
        return np.where(part < _PLENTY // weight, part * weight, _PLENTY)

    def _has_room(self, scope: Int64s, size_bytes: Int64s) -> Bools:
        """Return which rows, given in turn, find room in their scope."""
        by_scope = np.argsort(scope, kind="stable")
        scope = scope[by_scope]
        before = _tokens_before(size_bytes[by_scope])
        before -= before.take(np.searchsorted(scope, scope), axis=0)
        has_room = np.empty(len(scope), dtype=np.bool_)
        has_room[by_scope] = by_row(np.logical_and, before < self.tokens.take(scope, axis=0))
        return has_room


def _turns(flow: Int64s, size_bytes: Int64s, flows: int) -> tuple[Int64s, Int64s]:
    """Return the number of rows, and their bytes, that go before each row in its own flow."""
    segments = Segments.by_key(flow, flows)
    total = total_in_order(size_bytes, segments.order)
    bytes_before = total[:-1] - np.repeat(total[segments.starts], segments.counts)
    position = segments.position
    return segments.rank[position], bytes_before[position]


def _ties(flow: Int64s, candidates: Candidates, names: pa.StringArray, *, now_ms: int) -> Int64s:
    """Return the rank of each row's flow among the flows of these rows."""
    counts = np.bincount(flow, minlength=len(names))
    flows = np.flatnonzero(counts)
    tie = np.zeros(len(names), dtype=np.int64)
    tie[flows] = candidates.ties(flows, names, now_ms=now_ms)
    return tie[flow]


def _tokens_before(size_bytes: Int64s) -> Int64s:
    """Return the messages and bytes before each row, shape (n, 2)."""
    return np.stack([np.arange(len(size_bytes)), running_total(size_bytes)[:-1]], axis=1)
