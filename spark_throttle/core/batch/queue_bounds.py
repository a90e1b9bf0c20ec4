"""Rows that are too old leave the queue, and so do rows over its bounds, those of the longest queues first.

Up to each row, a namespace's queue takes some part of the bound on messages and some part of the bound on bytes; the
larger of the two is the row's share. If not all rows that should wait fit, the rows with the smallest shares are kept
and the others put out, whether they waited already or are new: room is divided max-min among the namespaces by dominant
share. This is the policy of shared-memory switches that drop from the longest queue (Drop on Demand of Wei, Coyle &
Hsiao 1991; Longest Queue Drop of Hahne, Kesselman & Mansour 2001).

So a namespace keeps a prefix of its queue. A namespace whose share is below the level loses nothing, whoever came
first, and a row that is over a bound by itself takes no room. Of two rows with the same share, the one nearer to the
head of its queue is kept first, then the one whose namespace has waited longest (`Candidates.ties`).

Shares are counted in 2**-30ths, rounded up. The search for the level begins with the sums of the namespaces' queues;
only rows near the level are put in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, quotient
from spark_throttle.core.arithmetic.segments import ranges, running_total
from spark_throttle.core.fair.layout import Candidates, Layout
from spark_throttle.core.quota import Bools, Int64s, Overflow, QueueBounds
from spark_throttle.core.state import Queue
from spark_throttle.errors import QueueOverflowError

_FEW_ROWS = 1024
"""With at most this many rows in question, they are sorted rather than searched further."""

_MARGIN_BITS = 5
"""The first looks are this many bits apart from the level that the queues' totals suggest."""


def is_expired(queue: Queue, bounds: QueueBounds, *, now_ms: int) -> Bools:
    """Return whether each queued row is older than the queue's bound on age."""
    if bounds.age_ms is None:
        return np.zeros(len(queue), dtype=np.bool_)
    return now_ms - queue.arrival_ms > bounds.age_ms


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRows:
    """The rows that should wait: some of the candidates."""

    rows: Candidates
    laid_out: tuple[Int64s, Layout] | None = None
    """If it is known: their positions among the candidates, and the layout of the candidates, reduced to these rows."""

    def __len__(self) -> int:
        return len(self.rows)


def overflowing(
    waiting: WaitingRows,
    candidates: Candidates,
    names: pa.StringArray,
    bounds: QueueBounds,
    *,
    now_ms: int,
) -> Int64s:
    """Return the positions, ascending, of the rows that the queue has no room for.

    Parameters
    ----------
    names
        The names of the flows.

    Raises
    ------
    QueueOverflowError
        If there is no room and the bounds say to fail.
    """
    room = QueueRoom(max(1, bounds.messages), max(1, bounds.bytes))
    rows = waiting.rows
    if room.fits(len(rows), int(rows.size_bytes.sum())):
        return np.zeros(0, dtype=np.int64)
    if bounds.on_overflow == Overflow.FAIL:
        if rows.queued == len(rows):  # a bound that shrank loses nothing by itself
            return np.zeros(0, dtype=np.int64)
        raise QueueOverflowError(len(rows), room.messages, room.bytes)
    return room.beyond(waiting, candidates, names, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """Messages and bytes that the queue may hold."""

    messages: int
    bytes: int

    def fits(self, messages: int, size_bytes: int) -> bool:
        """Return whether that many messages and bytes may wait."""
        return messages <= self.messages and size_bytes <= self.bytes

    def beyond(self, waiting: WaitingRows, candidates: Candidates, names: pa.StringArray, *, now_ms: int) -> Int64s:
        """Return the positions, ascending, of the waiting rows that do not fit."""
        rows = waiting.rows
        if waiting.laid_out is None:
            at, layout = None, Layout.of(rows, np.bincount(rows.flow, minlength=len(names)))
        else:
            at, layout = waiting.laid_out
        flows = np.flatnonzero(layout.segments.counts)
        queues = layout.of_flows(flows)
        share, kept = self.level(queues)
        if share < WHOLE:  # otherwise the remaining rows are over a bound by themselves
            equal = self.rows_up_to(share + 1, queues) - kept
            tied = np.flatnonzero(equal)
            tie = candidates.ties(flows[tied], names, now_ms=now_ms)
            queue, place = np.repeat(tied, equal[tied]), ranges(kept[tied], equal[tied])
            order = np.lexsort((np.repeat(tie, equal[tied]), place))
            queue, place = queue[order], place[order]
            kept += np.bincount(queue[: self.first_that_fit(queue, place, queues, kept)], minlength=len(kept))
        beyond = queues.beyond(kept)
        if at is None:
            return beyond
        is_beyond = np.zeros(len(candidates), dtype=np.bool_)
        is_beyond[beyond] = True
        return np.flatnonzero(is_beyond[at])

    def rows_up_to(self, share: int, queues: Layout) -> Int64s:
        """Return how many first rows of each queue have a share of at most `share`, which is at most the whole."""
        within = queues.rows_of(share * self.bytes >> FACTOR_BITS)
        return np.minimum(within, share * self.messages >> FACTOR_BITS)

    def level(self, queues: Layout) -> tuple[int, Int64s]:
        """Return the largest share up to which all rows fit, and the number of first rows of each queue up to it."""
        low, high = 0, WHOLE + 1
        kept, beyond = np.zeros_like(queues.segments.counts), self.rows_up_to(WHOLE, queues)
        looks = self._looks(queues)
        few = max(_FEW_ROWS, 2 * len(kept))
        while high - low > 1 and int((beyond - kept).sum()) > few:
            share = looks.pop() if looks else (low + high) // 2
            if not low < share < high:
                continue
            rows = self.rows_up_to(share, queues)
            if self.fits(int(rows.sum()), int(queues.bytes_of_first(rows).sum())):
                low, kept = share, rows
            else:
                high, beyond = share, rows
        return (low, kept) if high - low == 1 else self._level_among(queues, kept, beyond, high)

    def _looks(self, queues: Layout) -> list[int]:
        """Return shares around the probable level, the first last: that of messages alone, or bytes alone, if less."""
        messages, size_bytes = queues.segments.counts, queues.bytes_of_first(queues.segments.counts)
        level = min(
            (_common_part(each, bound) << FACTOR_BITS) // max(bound, 1)
            for each, bound in ((messages, self.messages), (size_bytes, self.bytes))
        )
        margin = (level >> _MARGIN_BITS) + 1
        return [level + 8 * margin, level - 8 * margin, level + margin, level - margin]

    def _level_among(self, queues: Layout, kept: Int64s, beyond: Int64s, high: int) -> tuple[int, Int64s]:
        """Return the level, if it is known that the rows up to `kept` fit, and that it is below `high`.

        Parameters
        ----------
        beyond
            The number of first rows of each queue with shares of at most `high`, or of at most the whole.
        """
        queue, place = np.repeat(np.arange(len(kept)), beyond - kept), ranges(kept, beyond - kept)
        size_bytes = queues.bytes_before(queue, place + 1)
        share = np.maximum(_part_of(place + 1, self.messages), _part_of(size_bytes, self.bytes))
        order = np.argsort(share, kind="stable")
        size_bytes = size_bytes - queues.bytes_before(queue, place)
        messages = int(kept.sum()) + np.arange(1, len(order) + 1)
        total = int(queues.bytes_of_first(kept).sum()) + np.cumsum(size_bytes[order])
        over = np.flatnonzero((messages > self.messages) | (total > self.bytes))
        level = int(share[order[over[0]]]) - 1 if len(over) else high - 1
        return level, kept + np.bincount(queue[share <= level], minlength=len(kept))

    def first_that_fit(self, queue: Int64s, place: Int64s, queues: Layout, kept: Int64s) -> int:
        """Return how many of the rows at `place` in `queue` fit, in order, in addition to those that are `kept`."""
        size_bytes = queues.bytes_before(queue, place + 1) - queues.bytes_before(queue, place)
        left_bytes = self.bytes - int(queues.bytes_of_first(kept).sum())
        by_bytes = int(np.searchsorted(running_total(size_bytes), left_bytes, side="right")) - 1
        return min(self.messages - int(kept.sum()), by_bytes)


def _part_of(amount: Int64s, bound: int) -> Int64s:
    """Return the share that amounts are of a bound, rounded up; amounts are at most the bound."""
    return quotient(amount, np.full_like(amount, bound), FACTOR_BITS, round_up=True)


def _common_part(amounts: Int64s, total: int) -> int:
    """Return about how much each of the amounts may be cut to for all of them to sum to `total`."""
    ascending = np.sort(amounts)
    before = running_total(ascending)[:-1]
    level = (total - before) // np.arange(len(ascending), 0, -1)
    found = np.flatnonzero(level <= ascending)
    return int(level[found[0]] if len(found) else ascending[-1])
