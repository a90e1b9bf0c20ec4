"""The rows of a batch laid out by namespace, with what goes before each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Int64s
from spark_throttle.core.segments import Segments, name_hash, running_total


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The rows that compete in a batch: those queued, oldest first, then those that arrived."""

    row: Int64s
    """Position among all rows of the batch."""

    flow: Int64s
    size_bytes: Int64s
    arrival_ms: Int64s
    release_ms: Int64s
    """Batch time before which the row may not leave; 0 where only quotas hold it."""

    queued: int
    """How many of them were queued."""

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Candidates laid out by flow; per-row arrays are in the order of the layout."""

    segments: Segments
    rank: Int64s
    """Rows that go before it in its own flow."""

    size_bytes: Int64s
    total: Int64s
    """Running total of bytes over the whole layout, one longer than it."""

    @classmethod
    def of(cls, candidates: Candidates, flows: int) -> Layout:
        """Lay `candidates` out."""
        segments = Segments.by_key(candidates.flow, flows)
        size_bytes = candidates.size_bytes[segments.order]
        return cls(segments, segments.rank, size_bytes, running_total(size_bytes))

    @property
    def bytes_before(self) -> Int64s:
        """Bytes that go before each row in its own flow."""
        return self.total[:-1] - self.total[self.segments.starts[self.segments.key]]

    def bytes_of_first(self, rows: Int64s) -> Int64s:
        """Return, by flow, the bytes of its first `rows` rows."""
        return self.total[self.segments.starts + rows] - self.total[self.segments.starts]

    def rows_within(self, room_bytes: Int64s) -> Int64s:
        """Return, by flow, how many first rows have at most `room_bytes` before them; none where it is negative."""
        starts, counts = self.segments.starts, self.segments.counts
        last = self.total[starts] + np.clip(room_bytes, 0, self.total[-1])
        within = np.searchsorted(self.total[:-1], last, side="right") - starts
        return np.where(room_bytes < 0, 0, np.minimum(within, counts))

    def first_rows(self, flows: Int64s, rows: Int64s) -> Int64s:
        """Return the positions of the first `rows` rows of each of `flows`."""
        before = running_total(rows)
        return np.repeat(self.segments.starts[flows] - before[:-1], rows) + np.arange(before[-1])

    def ties(self, flows: Int64s, candidates: Candidates, names: pa.StringArray, *, now_ms: int) -> Int64s:
        """Return the place of each of `flows` among flows that are equal otherwise.

        The one whose first row waits longest goes first, then by a hash of the name, so that no spelling is preferred.
        The array runs over all flows and is 0 at those that were not asked for.
        """
        present = self.segments.counts[flows] > 0
        head_ms = np.full(len(flows), now_ms, dtype=np.int64)
        head_ms[present] = candidates.arrival_ms[self.segments.order[self.segments.starts[flows[present]]]]
        place = np.zeros(len(self.segments.counts), dtype=np.int64)
        in_turn = np.lexsort((name_hash(names.take(pa.array(flows))), head_ms))
        place[flows[in_turn]] = np.arange(len(flows))
        return place
