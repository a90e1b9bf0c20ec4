"""What the queue may hold: rows past their age leave it, rows over its bounds do not enter it.

The bounds of a job are divided equally among its shards. When new rows do not all fit, those that would stand
nearest to the head of their namespace's queue are kept, so that a flood of one namespace cannot take the room of the
others: queue lengths are divided max-min, in messages. Rows that are queued already are never put out by a newer one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_throttle.core.layout import Candidates, Layout
from spark_throttle.core.quota import Bools, Int64s, Overflow, QueueBounds
from spark_throttle.core.segments import Segments, running_total
from spark_throttle.core.state import Queue
from spark_throttle.errors import QueueOverflowError


def is_expired(queue: Queue, bounds: QueueBounds, *, now_ms: int) -> Bools:
    """Return which queued rows are older than the queue's age bound."""
    if bounds.age_ms is None:
        return np.zeros(len(queue), dtype=np.bool_)
    return now_ms - queue.arrival_ms > bounds.age_ms


def overflowing(  # noqa: PLR0913 - all that the bounds depend on
    candidates: Candidates,
    waiting: Int64s,
    rows: Candidates,
    names: pa.StringArray,
    bounds: QueueBounds,
    *,
    now_ms: int,
    shards: int,
    shard: int,
) -> Int64s:
    """Return the positions of the new candidates that the queue has no room for.

    Parameters
    ----------
    waiting
        Positions of the candidates that are to wait, ascending.
    rows
        Those candidates.
    names
        Of the flows.

    Raises
    ------
    QueueOverflowError
        If there is no room and the bounds say to fail.
    """
    bound_messages, bound_bytes = max(1, bounds.messages // shards), max(1, bounds.bytes // shards)
    old_messages, size_bytes = rows.queued, rows.size_bytes
    new = waiting[old_messages:]
    room_messages = bound_messages - old_messages
    room_bytes = bound_bytes - int(size_bytes[:old_messages].sum())
    fits_all = len(new) <= room_messages and int(size_bytes[old_messages:].sum()) <= room_bytes
    if not len(new) or fits_all:
        return np.zeros(0, dtype=np.int64)
    if bounds.on_overflow == Overflow.FAIL:
        raise QueueOverflowError(shard, len(waiting), bound_messages, bound_bytes)
    of_flow = Segments.by_key(rows.flow, len(names))
    place = of_flow.rank[of_flow.position][old_messages:]
    flows, flow = np.unique(rows.flow[old_messages:], return_inverse=True)
    counts = np.bincount(candidates.flow, minlength=len(names))
    tie = Layout.of(candidates, counts).ties(flows, candidates, names, now_ms=now_ms)
    order = np.lexsort((tie[flow], place))
    total_bytes = running_total(size_bytes[old_messages:][order])[1:]
    fits = (np.arange(1, len(new) + 1) <= room_messages) & (total_bytes <= room_bytes)
    return new[order[~fits]]
