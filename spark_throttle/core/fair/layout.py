"""The rows of a batch laid out by namespace, with what goes before each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import Segments, name_hash, ranges, sums, taken, total_in_order
from spark_throttle.core.quota import Bools, Dimension, Int64s
from spark_throttle.core.state import Queue


def cost(messages: Int64s, amounts: Sequence[Int64s], price_ns: Int64s | None) -> Int64s:
    """Return what so many messages of each flow take, shape (resources, flows).

    Resources are the first of all dimensions: messages, bytes, units where rows have any, and time where any scope
    limits it.

    Parameters
    ----------
    amounts
        What these messages have of `AMOUNTS`.
    price_ns
        The time of a message of each flow; `None` if no scope limits time.

    Examples
    --------
    >>> two, thirty = np.array([2]), np.array([30])
    >>> cost(two, [thirty], None).tolist(), cost(two, [thirty], np.array([500])).tolist()
    ([[2], [30]], [[2], [30], [0], [1000]])
    """
    tokens = [messages, *amounts]
    if price_ns is not None:
        tokens += [np.zeros_like(messages)] * (Dimension.TIME - len(tokens))
        tokens.append(messages * price_ns)
    return np.stack(tokens)


def by_dimension(costs: Int64s) -> Int64s:
    """Return costs, shape (resources, n), as a table of shape (n, 4)."""
    out = np.zeros((costs.shape[1], len(Dimension)), dtype=np.int64)
    out[:, : len(costs)] = costs.T
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """All rows of a batch, or those that compete: first the queued ones, oldest first, then the arrivals."""

    row: Int64s | None
    """The position among all rows of the batch, ascending; `None` if these are all of them."""

    flow: Int64s
    """The row's flow; -1 for an unusable arrival."""

    amounts: tuple[Int64s, ...]
    """What the row has of `AMOUNTS`: its bytes, and its units where rows have any."""

    arrival_ms: Int64s
    release_ms: Int64s
    """The batch time before which the row may not leave; 0 where only quotas hold it back."""

    queued: int
    """The number of these rows that were queued."""

    def __len__(self) -> int:
        return len(self.flow)

    @classmethod
    def of_batch(
        cls,
        queue: Queue,
        queue_flow: Int64s,
        flow: Int64s,
        amounts: tuple[Int64s, ...],
        release_ms: Int64s,
        *,
        now_ms: int,
    ) -> Candidates:
        """Return all rows of a batch: the rows of `queue`, whose flows are `queue_flow`, then the arrivals."""
        just_now = np.broadcast_to(np.int64(now_ms), flow.shape)
        if not len(queue):
            return cls(None, flow, amounts, just_now, release_ms, 0)
        free = np.broadcast_to(np.int64(0), (len(queue) + len(flow),))
        return cls(
            None,
            np.concatenate([queue_flow, flow]),
            tuple(np.concatenate(each) for each in zip(queue.amounts(len(amounts)), amounts, strict=True)),
            np.concatenate([queue.arrival_ms, just_now]),
            np.concatenate([queue.release_ms, release_ms]) if queue.release_ms.any() or release_ms.any() else free,
            len(queue),
        )

    def take(self, at: Int64s) -> Candidates:
        """Return the rows at `at`, which ascends."""
        return Candidates(
            self.row_at(at), self.flow[at], tuple(each[at] for each in self.amounts), taken(self.arrival_ms, at),
            taken(self.release_ms, at), int(np.searchsorted(at, self.queued)),
        )  # fmt: skip

    @property
    def size_bytes(self) -> Int64s:
        """The size of each row."""
        return self.amounts[0]

    def is_held(self, now_ms: int) -> Bools:
        """Return whether each row may not leave yet."""
        return self.release_ms > now_ms

    def holds(self, now_ms: int) -> bool:
        """Return whether any row may not leave yet."""
        release_ms = self.release_ms[: 1 if _is_constant(self.release_ms) else None]
        return int(release_ms.max(initial=0)) > now_ms

    def first_of(self, flows: int, among: Int64s | None = None) -> Int64s:
        """Return the position of each flow's first row, by default of all; the number of rows where it has none.

        Parameters
        ----------
        among
            The positions of the rows in question.
        """
        first = np.full(flows, len(self), dtype=np.int64)
        if among is None:
            np.minimum.at(first, self.flow, np.arange(len(self)))
        else:
            np.minimum.at(first, self.flow[among], among)
        return first

    def ties(self, flows: Int64s, names: pa.StringArray, *, now_ms: int) -> Int64s:
        """Return the rank that each of `flows`, which ascend, has among them when they are otherwise equal.

        The flow whose first row has waited longest goes first. Then a hash of the name and the time decides, so that no
        spelling is preferred, and who loses the tie in one batch does not lose it in the next one too.
        """
        return self.ties_of(flows, self.first_of(len(names))[flows], names, now_ms=now_ms)

    def ties_of(self, flows: Int64s, first: Int64s, names: pa.StringArray, *, now_ms: int) -> Int64s:
        """Return the `ties` of flows whose first rows are at `first`, past the last row where there is none."""
        is_present = first < len(self)
        head_ms = np.full(len(flows), now_ms, dtype=np.int64)
        head_ms[is_present] = self.arrival_ms[first[is_present]]
        place = np.empty(len(flows), dtype=np.int64)
        place[np.lexsort((name_hash(names.take(pa.array(flows)), now_ms), head_ms))] = np.arange(len(flows))
        return place

    def row_at(self, at: Int64s) -> Int64s:
        """Return the positions of the rows at `at` among all rows of the batch."""
        return at if self.row is None else self.row[at]

    def has_rows(self, flows: int, start: int = 0) -> Bools:
        """Return whether each flow has any of these rows, or of those from `start` on."""
        has_rows = np.zeros(flows, dtype=np.bool_)
        has_rows[self.flow[start:]] = True
        return has_rows

    def arrived(self, flows: int, price_ns: Int64s | None) -> Int64s:
        """Return the `cost` of the usable arrivals, by flow."""
        flow = self.flow[self.queued :]
        messages = np.bincount(flow + 1, minlength=flows + 1)[1:]
        return cost(messages, [sums(flow, each[self.queued :], flows + 1)[:-1] for each in self.amounts], price_ns)

    def tally(self, at: Int64s, flows: int, price_ns: Int64s | None) -> Int64s:
        """Return the `cost` of the rows at `at`, by flow."""
        flow = self.flow[at]
        return cost(
            np.bincount(flow, minlength=flows), [sums(flow, each[at], flows) for each in self.amounts], price_ns
        )


def _is_constant(values: Int64s) -> bool:
    """Return whether `values` is a broadcast view of one number."""
    return values.strides == (0,)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Candidates laid out by flow."""

    segments: Segments
    """The rows laid out; its `order` may hold other rows, too, between those of its keys."""

    totals: tuple[Int64s, ...]
    """The running totals of amounts over the whole layout, as in `Candidates`; longer than the layout by one."""

    @classmethod
    def of(cls, candidates: Candidates, counts: Int64s) -> Layout:
        """Lay `candidates` out; `counts` has the number of rows of every flow."""
        segments = Segments.with_counts(candidates.flow, counts)
        return cls(segments, tuple(total_in_order(each, segments.order) for each in candidates.amounts))

    def of_flows(self, flows: Int64s) -> Layout:
        """Return the layout over `flows` alone, which ascend and have all of its rows."""
        segments = self.segments
        return Layout(Segments(segments.order, segments.starts[flows], segments.counts[flows]), self.totals)

    def bytes_before(self, flows: Int64s, rank: Int64s) -> Int64s:
        """Return the bytes that go before row `rank` in each of `flows`."""
        starts, total = self.segments.starts[flows], self.totals[0]
        return total[starts + rank] - total[starts]

    def tokens_before(self, at: Int64s, flow: Int64s, price_ns: Int64s | None) -> Int64s:
        """Return the tokens of the rows that go before the candidates `at`, of these flows, shape (rows, 4).

        Parameters
        ----------
        price_ns
            Shape (flows,): the time of a message; `None` if no scope limits time.
        """
        place, starts = self.segments.position[at], self.segments.starts[flow]
        amounts = [total[place] - total[starts] for total in self.totals]
        return by_dimension(cost(place - starts, amounts, None if price_ns is None else price_ns[flow]))

    def cost_of_first(self, rows: Int64s, price_ns: Int64s | None) -> Int64s:
        """Return, by flow, the `cost` of its first `rows` rows."""
        starts = self.segments.starts
        return cost(rows, [total[starts + rows] - total[starts] for total in self.totals], price_ns)

    def bytes_of_first(self, rows: Int64s) -> Int64s:
        """Return, by flow, the bytes of its first `rows` rows."""
        return self.totals[0][self.segments.starts + rows] - self.totals[0][self.segments.starts]

    def rows_within(self, room: Int64s, total: Int64s) -> Int64s:
        """Return, by flow, how many first rows have at most `room` of a total before them; 0 where that is negative."""
        starts, counts = self.segments.starts, self.segments.counts
        last = total[starts] + np.clip(room, 0, total[-1])
        within = np.searchsorted(total[:-1], last, side="right") - starts
        return np.where(room < 0, 0, np.minimum(within, counts))

    def rows_of(self, size_bytes: int) -> Int64s:
        """Return, by flow, how many first rows sum to at most `size_bytes`, which is not negative."""
        starts, total = self.segments.starts, self.totals[0]
        last = total[starts] + min(size_bytes, int(total[-1]))
        return np.minimum(np.searchsorted(total, last, side="right") - 1 - starts, self.segments.counts)

    def beyond(self, count: Int64s) -> Int64s:
        """Return the positions, ascending, of the candidates that are not among the first `count` of their flow."""
        segments = self.segments
        is_beyond = np.zeros(len(segments.order), dtype=np.bool_)
        if int(segments.counts.sum()) == len(segments.order):
            is_beyond[segments.order] = ~segments.first_of_each(count)
        else:
            is_beyond[segments.order[ranges(segments.starts + count, segments.counts - count)]] = True
        return np.flatnonzero(is_beyond)

    def behind(self, count: Int64s) -> Layout:
        """Return the layout of the candidates that are not among the first `count` of their flow."""
        segments = self.segments
        return Layout(Segments(segments.order, segments.starts + count, segments.counts - count), self.totals)

    def ties(self, flows: Int64s, candidates: Candidates, names: pa.StringArray, *, now_ms: int) -> Int64s:
        """Return the `Candidates.ties` of `flows`, which ascend."""
        starts, counts = self.segments.starts[flows], self.segments.counts[flows]
        first = np.full(len(flows), len(candidates), dtype=np.int64)
        first[counts > 0] = self.segments.order[starts[counts > 0]]
        return candidates.ties_of(flows, first, names, now_ms=now_ms)
