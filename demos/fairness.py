"""The fairness with which an overloaded group served its namespaces, measured from a run's tables.

Namespaces that always had rows waiting should be served in proportion to their weights (law L3), in a group that is
divided between namespaces. Service is dominant service: the larger of a namespace's parts of its group's message rate
and byte rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from demos.recount import Flows
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s

Float64s: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Fairness:
    """The service of one group's namespaces while the group was overloaded; arrays have one entry per namespace."""

    members: Int64s
    weight: Int64s
    is_backlogged: npt.NDArray[np.bool_]
    """Whether rows of the namespace waited after every batch of that time."""

    service: Float64s
    """Service of each namespace: the larger of its parts of one second of the group's message and byte quotas."""

    offered: Float64s
    """Demand of each namespace in that time, in the same measure."""

    @property
    def ratio(self) -> float | None:
        """Most weighted service over least, among the namespaces that always had rows waiting; 1 is perfect."""
        each = self.service[self.is_backlogged] / self.weight[self.is_backlogged]
        return float(each.max() / each.min()) if len(each) and each.min() > 0 else None


def measure_fairness(policy: CompiledPolicy, group: str, flows: Flows) -> Fairness:
    """Measure from the first batch after which one second of the quota waited, to the last batch with arrivals."""
    found = match(flows.namespaces, policy)
    position = policy.group_names.to_pylist().index(group)
    members = np.flatnonzero(found.group == position)
    rate = policy.shared.rate_micro_per_ms[1 + len(policy.tenant_names) + position, : Dimension.UNITS] / 1000
    waiting = (flows.offered - flows.admitted - flows.rejected)[:, members].cumsum(axis=0)
    is_limited = rate >= 0
    overloaded = (waiting.sum(axis=1) >= np.where(is_limited, rate, np.inf)).any(axis=1)
    arrived = flows.offered[:, members, 0].sum(axis=1) > 0
    first = int(overloaded.argmax()) if overloaded.any() else len(overloaded)
    last = int(np.flatnonzero(arrived).max(initial=0))
    period = slice(first + 1, last + 1)

    def dominant(tokens: Int64s) -> Float64s:
        parts = tokens[period][:, members].sum(axis=0) / np.where(is_limited & (rate > 0), rate, np.inf)
        return np.asarray(parts.max(axis=1), dtype=np.float64)

    return Fairness(
        members=members,
        weight=policy.namespace_limits.weight[found.rule[members]],
        is_backlogged=np.asarray((waiting[first : last + 1, :, 0] > 0).all(axis=0) & (first < last), dtype=np.bool_),
        service=dominant(flows.admitted),
        offered=dominant(flows.offered),
    )
