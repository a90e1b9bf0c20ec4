"""The rows of flows in fair order, as `contention` takes them: a row's key, and the number of rows up to a key.

A row's key is its start tag (`fair_queue`) divided by its domain's weight: a domain of twice the weight goes twice as
far. The tag is the larger of two clocks that only advance, so the rows up to a key are a prefix of the flow. Its length
is the smaller of the two that the clocks allow: for messages by the inverse of virtual time, for bytes by that inverse
and a search in the running total of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.fair.fair_order import FairOrder
from spark_throttle.core.fair.fair_queue import ServiceCurve
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.quota import Dimension, Int64s

_LARGEST_TAG = 1 << 62
"""A bound above every tag: a clock and a service are at most 2**60 each, except for what one message adds."""


@dataclass(frozen=True, slots=True, eq=False)
class FairRows:
    """The rows of some flows, which are numbered from 0 in ascending order."""

    layout: Layout
    order: FairOrder
    """The fair order of these flows."""

    starts: Int64s
    """The positions in the layout at which the flows' rows begin."""

    ties_of: Callable[[Int64s], Int64s]
    """The function behind `ties`."""

    def keys(self, flow: Int64s, rank: Int64s) -> Int64s:
        """Return the keys of rows."""
        return self.order.keys(flow, rank, self.bytes_before(flow, rank))

    def ties(self, flow: Int64s) -> Int64s:
        """Return the numbers that order distinct flows, given in ascending order, where their keys are equal."""
        return self.ties_of(flow)

    def bytes_before(self, flow: Int64s, rank: Int64s) -> Int64s:
        """Return the bytes that go before each row in its own flow."""
        start = self.starts[flow]
        return self.layout.total[start + rank] - self.layout.total[start]

    def rows_within(self, flow: Int64s, size_bytes: Int64s) -> Int64s:
        """Return how many first rows of each flow have at most `size_bytes`, not negative, before them."""
        start, total = self.starts[flow], self.layout.total
        # The search is for at most all bytes, so that the sum stays in int64.
        return np.searchsorted(total, total[start] + np.minimum(size_bytes, total[-1] - total[start]), "right") - start

    def counts(self, flow: Int64s, most: Int64s) -> FairCounts:
        """Prepare to count the rows of each `flow` up to a key, at most `most` of them."""
        order = self.order
        weight, rate, is_counted = order.weight[flow], order.rate_micro_per_ms, order.is_counted
        messages, size_bytes = (
            ServiceCurve.of(
                rate[flow, dimension], weight, tokens, order.clock_vt[flow, dimension], is_counted[flow, dimension]
            )
            for dimension, tokens in ((Dimension.MESSAGES, most), (Dimension.BYTES, self.bytes_before(flow, most)))
        )
        return FairCounts(self, flow, most, order.domain_weight[flow], messages, size_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class FairCounts:
    """The numbers of flows' rows up to a key."""

    rows: FairRows
    flow: Int64s
    most: Int64s
    domain_weight: Int64s
    messages: ServiceCurve
    bytes: ServiceCurve

    def take(self, at: Int64s) -> FairCounts:
        """Return the counts for the flows at `at` only."""
        return FairCounts(
            self.rows, self.flow[at], self.most[at], self.domain_weight[at], self.messages.take(at), self.bytes.take(at)
        )

    def up_to(self, key: Int64s) -> Int64s:
        """Return, for each flow, how many of its first rows have at most its `key`, which is not negative."""
        weight = self.domain_weight
        tag = np.minimum(key, _LARGEST_TAG // weight - 1) * weight + weight - 1
        by_messages = self.messages.within(tag) + 1
        tokens = self.bytes.within(tag)
        by_bytes = np.where(tokens < 0, 0, self.rows.rows_within(self.flow, np.maximum(tokens, 0)))
        return np.minimum(np.minimum(by_messages, by_bytes), self.most)
