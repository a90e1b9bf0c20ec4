"""How fast each namespace of a batch may go: its own rate, and its part of the rates of the scopes above it.

A scope's rate is divided over the batch's namespaces by what each of them has to send, so that the namespaces of a
scope all need the same time. A namespace is sent by one task, so no two tasks need to talk. Counts, policy and shares
are pinned with the batch's epoch: a batch that is run again has the same costs.

Laws: what the costs allow all namespaces of a scope together is at most the scope's rate, in messages and in bytes; a
namespace without a limit anywhere costs nothing. Scopes that only observe hold nothing back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_throttle.core.names.matching import enforcing_scopes, match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.shared_buckets import rates_of_shares

_PS_OF_A_MILLITOKEN: Final = 10**15
"""Picoseconds in which one thousandth of a token per second adds a token; rates are in micro-tokens per millisecond."""

MOST_PS: Final = 2**53
"""The highest cost of one row, two and a half hours: so sums fit into 64 bits."""


class RowCost(NamedTuple):
    """The time for which one row of a namespace uses up the namespace's rate."""

    message_ps: int
    """Picoseconds for each row; 0 where messages are not limited."""

    byte_ps: int
    """Picoseconds for each byte of a row; 0 where bytes are not limited."""

    def of_rows_ns(self, sizes_bytes: Int64s) -> Int64s:
        """Return the cost of each row in nanoseconds: of its message or of its bytes, whichever is more.

        Examples
        --------
        >>> RowCost(message_ps=1_000_000, byte_ps=10_000).of_rows_ns(np.array([1, 500])).tolist()
        [1000, 5000]
        """
        costs_ps = np.full(len(sizes_bytes), min(self.message_ps, MOST_PS), dtype=np.int64)
        if self.byte_ps:
            byte_ps = min(self.byte_ps, MOST_PS)
            costs_ps = np.maximum(costs_ps, np.minimum(sizes_bytes, MOST_PS // byte_ps) * byte_ps)
        rounded: Int64s = -(-costs_ps // 1000)
        return rounded


def row_costs(
    names: pa.StringArray, admitted: Int64s, policy: CompiledPolicy, share_micro_per_ms: Int64s | None = None
) -> dict[str, RowCost]:
    """Return the cost of a row of each namespace of a batch.

    Parameters
    ----------
    admitted
        Shape (n, 2) or more: the messages and bytes of each namespace that the batch admitted.
    share_micro_per_ms
        This job's shares of the shared scopes' rates, if it shares quotas with other jobs.

    Examples
    --------
    Two namespaces share 100 messages per second, and one of them has three times the rows of the other.

    >>> from spark_throttle.policy.compile import compile_policy
    >>> from spark_throttle.policy.model import PolicyDocument
    >>> limits = {"tenants": {"acme": {"publish": {"messages_per_second": 100}}}}
    >>> policy = compile_policy(PolicyDocument.model_validate(limits), "publish")
    >>> costs = row_costs(pa.array(["acme/a", "acme/b"]), np.array([[30, 0], [10, 0]]), policy)
    >>> [cost.message_ps // 10**6 for cost in costs.values()]  # in microseconds: 75 and 25 per second
    [13333, 40000]
    """
    matches = match(names, policy)
    own = policy.namespace_limits.take(matches.rule)
    own_rates = np.where((own.on_excess == OnExcess.OBSERVE)[:, None], -1, own.rate_micro_per_ms)
    shared_rates = policy.shared.rate_micro_per_ms
    if share_micro_per_ms is not None:
        shared_rates = rates_of_shares(share_micro_per_ms, policy)
    scopes = enforcing_scopes(matches.shared_scope, policy)
    pairs = zip(
        *(
            _costs_ps(admitted[:, dimension], own_rates[:, dimension], scopes, shared_rates[:, dimension])
            for dimension in (Dimension.MESSAGES, Dimension.BYTES)
        ),
        strict=True,
    )
    return dict(zip(shown(names).to_pylist(), map(RowCost._make, pairs), strict=True))


def _costs_ps(counts: Int64s, own_rates: Int64s, scopes: Int64s, shared_rates: Int64s) -> list[int]:
    """Return the picoseconds that a token of each namespace costs in one dimension; 0 where nothing limits it."""
    totals = np.zeros(len(shared_rates), dtype=np.int64)
    for level in scopes.T:
        np.add.at(totals, level[level >= 0], counts[level >= 0])
    # Products are wider than 64 bits: they are made in Python, once for each scope and each rate, then taken by number.
    busy = np.flatnonzero((totals > 0) & (shared_rates > 0))
    needed = {
        scope: -(-total * _PS_OF_A_MILLITOKEN // rate)
        for scope, total, rate in zip(busy.tolist(), totals[busy].tolist(), shared_rates[busy].tolist(), strict=True)
    }
    longest_ps = [0, *sorted(set(needed.values()))]
    rank_of = {ps: rank for rank, ps in enumerate(longest_ps)}
    ranks = np.zeros(len(shared_rates) + 1, dtype=np.int64)  # the last is of no scope
    ranks[busy] = [rank_of[ps] for ps in needed.values()]
    longest = ranks.take(scopes).max(axis=1, initial=0)

    rates, rate_of = np.unique(own_rates, return_inverse=True)
    own_ps = [-(-_PS_OF_A_MILLITOKEN // rate) if rate > 0 else 0 for rate in rates.tolist()]
    found = [own_ps[at] for at in rate_of.tolist()]
    shared = np.flatnonzero((longest > 0) & (counts > 0))
    for at, rank, count in zip(shared.tolist(), longest[shared].tolist(), counts[shared].tolist(), strict=True):
        part_ps = -(-longest_ps[rank] // count)
        found[at] = max(found[at], part_ps)
    return found
