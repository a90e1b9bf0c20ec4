"""Flows that are too far ahead, and must leave a scope's grant to the flows it is due to (`lending.shard_parts`).

They leave it until those flows have caught up with them. A division estimates how much is due to whom; the shard knows
the order of its own flows exactly. So a barred flow takes its turn among the rows of the others, and goes no further
than they can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.fair.fair_order import FairOrder
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.names.matching import SHARED_LEVELS
from spark_throttle.core.quota import Bools, Dimension, Int64s
from spark_throttle.core.state import NO_BOUND

if TYPE_CHECKING:
    from spark_throttle.core.batch.flow_plan import Stops


@dataclass(frozen=True, slots=True, eq=False)
class BarredFlows:
    """The flows that are too far ahead to take any of a grant of one of their scopes."""

    flow: Int64s
    level: Int64s
    dimension: Int64s
    scope: Int64s

    @classmethod
    def of(
        cls, order: FairOrder, lead_vt: Int64s, bound_milli: Int64s, prices: MessagePrices | None = None
    ) -> BarredFlows:
        """Return the flows with the narrowest such scope of each; `bound_milli` is `Grants.ahead_bound_milli`."""
        ahead_milli = order.ahead_milli(lead_vt)
        # Weights are at least 1, so a flow that is ahead by less than the least bound is not barred.
        least = bound_milli.min() if prices is None else min(bound_milli.min(), 1)
        flows = np.flatnonzero(by_row(np.maximum, ahead_milli) >= least)
        enforcing = order.enforcing.take(flows, axis=0)
        is_wider = enforcing != order.domain[flows][:, None]
        weight = order.weight[flows][:, None] * np.where(is_wider, order.domain_weight[flows][:, None], 1)
        bound_milli = np.concatenate([bound_milli, np.full((1, 2), NO_BOUND)])
        ahead_milli = ahead_milli.take(flows, axis=0)
        counted_milli = ahead_milli[:, None, :]
        if prices is not None:
            own = prices.take(flows)
            counted_milli = np.stack([own.counted(ahead_milli, scope) for scope in enforcing.T], axis=1)
        is_over = counted_milli // weight[:, :, None] >= bound_milli[enforcing]
        at, column = np.nonzero(is_over.any(axis=2))
        at, first = np.unique(at, return_index=True)
        column = column[first]
        dimension = np.where(is_over[at, column, Dimension.MESSAGES], Dimension.MESSAGES, Dimension.BYTES)
        return cls(flows[at], np.array(SHARED_LEVELS)[column], dimension, enforcing[at, column])

    def stop(self, stops: Stops, is_stopped: Bools) -> None:
        """Record in `stops` what stopped each of these flows that is stopped."""
        stopped = is_stopped[self.flow]
        flow = self.flow[stopped]
        stops.level[flow], stops.dimension[flow] = self.level[stopped], self.dimension[stopped]
        stops.scope[flow] = self.scope[stopped]
