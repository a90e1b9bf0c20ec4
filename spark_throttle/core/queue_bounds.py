"""What the queue may hold: rows past their age leave it, rows over its bounds do not enter it.

The bounds of a job are divided equally among its shards. When new rows do not all fit, room is divided max-min among
the namespaces, by dominant share: of the bounds on messages and on bytes, the larger part that a namespace's queue
takes up to the row. The rows with the least shares are kept, those at the heads of their queues. So neither a flood of
one namespace nor a single huge row takes the room of the others; a row that would not fit by itself comes last. Rows
that are queued already are never put out by a newer one.

Shares are counted in 2**-30ths, rounded up.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_throttle.core.fixed_point import FACTOR_BITS, WHOLE, quotient
from spark_throttle.core.layout import Candidates, Layout
from spark_throttle.core.quota import Bools, Int64s, Overflow, QueueBounds
from spark_throttle.core.segments import Segments, by_row, running_total
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
    total_bytes = running_total(size_bytes[of_flow.order])
    of_queue = np.stack(
        [of_flow.rank + 1, total_bytes[1:] - np.repeat(total_bytes[of_flow.starts], of_flow.counts)], axis=1
    )
    share = _dominant_share(of_queue, np.array([bound_messages, bound_bytes]))
    place, share = (column[of_flow.position][old_messages:] for column in (of_flow.rank, share))
    flows, flow = np.unique(rows.flow[old_messages:], return_inverse=True)
    counts = np.bincount(candidates.flow, minlength=len(names))
    tie = Layout.of(candidates, counts).ties(flows, candidates, names, now_ms=now_ms)
    order = np.lexsort((tie[flow], place, share))
    taken_bytes = running_total(size_bytes[old_messages:][order])[1:]
    fits = (np.arange(1, len(new) + 1) <= room_messages) & (taken_bytes <= room_bytes)
    return new[order[~fits]]


def _dominant_share(of_queue: Int64s, bounds: Int64s) -> Int64s:
    """Return the larger part of the bounds that queues of shape (n, 2) take; just over 1 for more than a bound.

    Examples
    --------
    >>> _dominant_share(np.array([[1, 100], [4, 100], [1, 401]]), np.array([4, 400])) / WHOLE
    array([0.25, 1.  , 1.  ])
    """
    part = quotient(np.minimum(of_queue, bounds), np.broadcast_to(bounds, of_queue.shape), FACTOR_BITS, round_up=True)
    return by_row(np.maximum, np.where(of_queue > bounds, WHOLE + 1, part))
