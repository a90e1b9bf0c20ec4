"""Jobs share every scope of a policy that enforces a limit, except the job's own; each has its place in their reports.

Jobs share the messages and bytes of a scope, which are divided together, and its processing time, which is divided by
itself. So an exchange knows nothing of time: it divides pairs of rates. A job that knows no time quotas passes over the
places of time in others' reports, as it does with all scopes that it does not use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import by_row, name_hash
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.policy.model import Direction


def is_shared(policy: CompiledPolicy) -> Bools:
    """Return, for each shared scope, whether jobs share any of its quotas.

    They share every scope that enforces a limit, except the job's own.
    """
    return by_row(np.logical_or, _are_shared(policy))


def _are_shared(policy: CompiledPolicy) -> Bools:
    """Return which quotas of the shared scopes jobs share, shape (scopes, 3)."""
    shares: Bools = policy.shared.is_limited & (policy.shared.on_excess != OnExcess.OBSERVE)[:, None]
    shares[0] = False
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class SharedScopes:
    """What jobs share of a policy: the tenants and resource groups that have a limit and enforce it.

    A scope's processing time is divided by itself, whatever is known of its price, and so has a place of its own beside
    that of its messages and bytes. Its pairs hold time, and nothing.
    """

    position: Int64s
    """Positions in `CompiledPolicy.shared`, in the order of `ids`."""

    ids: Int64s
    """Hashes of direction, level, name and, for time, that it is time; ascending."""

    is_time: Bools

    @classmethod
    def of(cls, policy: CompiledPolicy, direction: Direction) -> SharedScopes:
        """Return what jobs share of a policy; the job's own limit concerns no other job."""
        shared = _are_shared(policy)
        tokens = np.flatnonzero(by_row(np.logical_or, shared[:, : Dimension.TIME]))
        time = np.flatnonzero(shared[:, Dimension.TIME])
        position = np.concatenate([tokens, time])
        ids = np.concatenate([_ids(policy, direction, tokens, ""), _ids(policy, direction, time, ".time")])
        order = np.argsort(ids, kind="stable")
        return cls(position[order], ids[order], order >= len(tokens))

    def taken(self, values: Int64s) -> Int64s:
        """Return the pairs of all places, given values of shape (scopes, 3); `UNLIMITED` beside time."""
        return self.pairs(values.take(self.position, axis=0), np.arange(len(self.ids)), beside=UNLIMITED)

    def pairs(self, values: Int64s, at: Int64s, *, beside: int = 0) -> Int64s:
        """Return the pairs of the places `at`, given a row of values, shape (n, 3), for each."""
        time = np.column_stack([values[:, Dimension.TIME], np.full(len(values), beside, dtype=np.int64)])
        return np.where(self.is_time[at][:, None], time, values[:, : Dimension.TIME])

    def spread(self, pairs: Int64s, onto: Int64s) -> Int64s:
        """Return `onto`, of shape (scopes, 3), with the pairs of all places in it."""
        out, tokens, time = onto.copy(), np.flatnonzero(~self.is_time), np.flatnonzero(self.is_time)
        out[self.position[tokens], :2] = pairs.take(tokens, axis=0)
        out[self.position[time], 2] = pairs[time, 0]
        return out


def _ids(policy: CompiledPolicy, direction: Direction, position: Int64s, what: str) -> Int64s:
    if not len(position):
        return position
    names = [f"{direction}/tenant{what}/{name}" for name in policy.tenant_names.to_pylist()]
    names += [f"{direction}/resource_group{what}/{name}" for name in policy.group_names.to_pylist()]
    return name_hash(pa.array(names, pa.string()))[position - 1]
