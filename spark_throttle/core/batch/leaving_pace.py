"""How fast the rows that wait are likely to leave: for the layout of their payload, and for no decision.

A namespace's rows leave at the rate of the scope that stopped it, divided by weight among the namespaces that this
scope stopped. That is what the next batches do as long as the same namespaces wait.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.batch.flow_plan import FlowPlan
from spark_throttle.core.batch.micro_batch import MicroBatch
from spark_throttle.core.limits.token_bucket import in_micro
from spark_throttle.core.quota import Dimension, Int64s

FREE_MICRO_PER_MS: Final = 1 << 50
"""The pace of a namespace that no quota stopped: a release time holds its rows."""


def leaving_pace(plan: FlowPlan, batch: MicroBatch) -> Int64s:
    """Return the messages that are likely to leave of each flow, in micro-messages per ms; shape (flows,)."""
    stops, policy, limits = plan.outcome.stops, batch.policy, batch.entered.limits
    flows, dimension = np.arange(len(stops.scope)), np.maximum(stops.dimension, 0)
    pace = np.maximum(limits.rate_micro_per_ms, 0)[flows, dimension]
    weight = batch.weights_in(stops.scope)
    is_shared = stops.scope >= 0
    at, scope = np.flatnonzero(is_shared), stops.scope[is_shared]
    together = sums(scope, weight[at], len(policy.shared))[scope]
    in_force = np.maximum(batch.shared.expected_micro_per_ms(policy), 0)
    # What a scope that is shut holds back leaves in turns when it opens, as what a slow one holds back does.
    pace[at] = np.maximum(proportional(in_force[scope, dimension[at]], weight[at], together), 1)
    waiting = in_micro(plan.outcome.wanted - plan.outcome.served)
    by_other = np.flatnonzero(stops.dimension > Dimension.MESSAGES)
    messages, other = waiting[by_other, Dimension.MESSAGES], waiting[by_other, stops.dimension[by_other]]
    in_messages = proportional(pace[by_other], messages, np.where(other > 0, other, messages))
    pace[by_other] = np.minimum(np.maximum(in_messages, pace[by_other] > 0), FREE_MICRO_PER_MS)
    pace[stops.level < 0] = FREE_MICRO_PER_MS
    return pace
