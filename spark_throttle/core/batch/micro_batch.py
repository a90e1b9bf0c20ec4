"""What the decisions on a batch depend on, besides its candidates and the plan of its flows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spark_throttle.core.batch.arrivals import BatchFlows
from spark_throttle.core.names.matching import domains_of, enforcing_scopes, weights_in
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import Queue


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One micro-batch."""

    queue: Queue
    """The rows that waited before the batch."""

    entered: BatchFlows
    """The flows that the batch concerns, and the rows that arrive."""

    shared: SharedBuckets
    """The shared buckets when the batch begins."""

    policy: CompiledPolicy
    epoch: int
    """The number of the epoch in force."""

    now_ms: int
    """The paying time of the batch."""

    elapsed_ms: int
    """The time since the previous batch, used as an estimate of the time until the next; 0 for the first batch."""

    unavailable: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The shared scopes whose rows are given up (`state.ControlRow`)."""

    def weights_in(self, scope: Int64s) -> Int64s:
        """Return the weight of each flow in a shared scope of its own; shape (flows,)."""
        domain = domains_of(enforcing_scopes(self.entered.matches.shared_scope, self.policy))
        return weights_in(scope, self.entered.limits.weight, domain, self.policy)
