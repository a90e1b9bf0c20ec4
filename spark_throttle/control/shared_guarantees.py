"""What a policy guarantees, over several jobs: each job guarantees a part, where the rows are.

A guarantee is a scope of its own in the exchange, whose quota is the guaranteed rate: so the jobs divide it by what
their rows below it want, and the parts sum to no more (`sharing`). What a job's rows want within its part goes first
when the quotas above are divided: it is one flow of a weight that is larger than those of all others together. So a job
that had little of a group, and gets rows of a tenant that is guaranteed something, has that of the group too.

Units and processing time are not divided so: of them a job guarantees the part that it has of the quotas on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, WHOLE, quotient, times
from spark_throttle.core.arithmetic.segments import name_hash, sums
from spark_throttle.core.fair.guarantees import guarantees_of
from spark_throttle.core.names.matching import Matches
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.core.shares.division import demand_bins
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.peers import Share
from spark_throttle.sharing.report import Measurement, moved

FIRST_WEIGHT = 1 << 24
"""The weight of what is guaranteed, beside that of all namespaces of a scope."""

_PAIR = slice(0, Dimension.BYTES + 1)


@dataclass(frozen=True, slots=True, eq=False)
class GuaranteeScopes:
    """The guarantees that jobs divide: those of quotas that they share."""

    at: Int64s
    """The position of each in `CompiledPolicy.guarantees`, in the order of `ids`."""

    ids: Int64s
    """Hashes of direction, level and name; ascending."""

    rate_micro_per_ms: Int64s
    """Shape (n, 2): what is guaranteed; `UNLIMITED` where nothing is said."""

    @classmethod
    def of(cls, policy: CompiledPolicy, direction: Direction) -> GuaranteeScopes:
        """Return those of a policy; none if it guarantees nothing of quotas that jobs share."""
        known = policy.guarantees
        if known is None:
            none = np.zeros(0, dtype=np.int64)
            return cls(none, none, np.zeros((0, 2), dtype=np.int64))
        is_shared = np.append(policy.shared.is_enforced[:, _PAIR].any(axis=1), False)
        at = np.flatnonzero(is_shared[known.way[:, :2]].any(axis=1))
        names = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
        texts = [
            f"{direction}/{Level(level).name.lower()}.guaranteed/"
            f"{names[scope] if scope >= 0 else policy.namespace_names[rule].as_py()}"
            for level, scope, rule in zip(
                known.level[at].tolist(), known.scope[at].tolist(), known.rule[at].tolist(), strict=True
            )
        ]
        ids = name_hash(pa.array(texts, pa.string()))
        order = np.argsort(ids, kind="stable")
        return cls(at[order], ids[order], known.rate_micro_per_ms[at[order], _PAIR])

    def parts(self, policy: CompiledPolicy, share: Share) -> Int64s | None:
        """Return what this job has of each guarantee, shape (guarantees, 4); `None` if none is divided.

        `UNLIMITED` stands where one is not.
        """
        if policy.guarantees is None or not len(self.ids):
            return None
        found = np.full_like(policy.guarantees.rate_micro_per_ms, UNLIMITED)
        leased = np.maximum(moved(share.rate_micro_per_ms, share.ids, self.ids), 0)
        found[self.at, _PAIR] = np.where(self.rate_micro_per_ms == UNLIMITED, UNLIMITED, leased)
        return found

    def measured(self, matches: Matches, demand: Int64s, weight: Int64s, policy: CompiledPolicy) -> Measurement:
        """Return what flows want of each guarantee: all that they want, up to it.

        Parameters
        ----------
        demand, weight
            Shapes (flows, 4) and (flows,).
        """
        assert policy.guarantees is not None  # noqa: S101 - asked where there are some
        place = np.full(len(policy.guarantees) + 1, -1, dtype=np.int64)
        place[self.at] = np.arange(len(self.at))
        found = place[guarantees_of(policy.guarantees, matches.shared_scope, matches.rule)]
        level, flow = np.nonzero((found >= 0) & (demand[:, _PAIR] > 0).any(axis=1))
        at = found[level, flow]
        wanted = np.where(self.rate_micro_per_ms[at] == UNLIMITED, 0, demand[flow, _PAIR])
        available = np.where(self.rate_micro_per_ms == UNLIMITED, PLENTY, self.rate_micro_per_ms)
        row, bins, weights = demand_bins(at, wanted, weight[flow], available)
        nothing = np.zeros((len(self.ids), 2), dtype=np.int64)
        return Measurement(self.ids, self.rate_micro_per_ms, nothing, row, bins, weights)


def guaranteed_demand(policy: CompiledPolicy, matches: Matches, demand: Int64s, parts: Int64s, level: Level) -> Int64s:
    """Return the part of each flow's demand that this job guarantees below its tenant or group, shape (flows, 4).

    Parameters
    ----------
    parts
        As `GuaranteeScopes.parts` returns them.
    level
        The level of the scope above. Below a group a tenant's guarantee counts, and else the namespace's own.
    """
    assert policy.guarantees is not None  # noqa: S101 - asked where there are some
    own, of_tenant, _ = guarantees_of(policy.guarantees, matches.shared_scope, matches.rule)
    at = own if level == Level.TENANT else np.where(of_tenant >= 0, of_tenant, own)
    rows = np.flatnonzero(at >= 0)
    total = sums(at[rows], demand.take(rows, axis=0), len(parts))
    most = np.where(
        (parts == UNLIMITED) | (total == 0),
        WHOLE,
        quotient(np.minimum(parts, total), total, FACTOR_BITS),
    )
    found = np.zeros_like(demand)
    found[rows] = times(demand.take(rows, axis=0), most.min(axis=1)[at[rows], None])
    return found
