"""Two laws of a run, checked from its tables alone.

The offered rows are generated again up to the committed offset. Their outcomes are read from the tables of admitted and
rejected rows and from the queue in the checkpoint.

* Conservation: each offered row is, unchanged, in exactly one of the three.
* Limits: for every scope and every two batches i <= j, the tokens admitted in batches i to j are at most
  burst + rate * (time of j - time of i) + one message, the largest debt of a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demos.tables import Batch, BatchRows
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import MICRO, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.load.traffic import SCHEMA, Traffic


@dataclass(frozen=True, slots=True)
class Conservation:
    """The differences between the rows in the tables and the rows that were offered."""

    lost: int
    """Number of offered rows that are nowhere, or only in changed form."""

    doubled: int
    """Number of rows beyond the one that each offered row may have."""


def check_conservation(traffic: Traffic, offered: int, parts: Sequence[pa.Table]) -> Conservation:
    """Compare the rows 0 to `offered` (excluded) with the rows of `parts`, column by column.

    Examples
    --------
    >>> from spark_throttle.load.traffic import TrafficGroup
    >>> traffic = Traffic((TrafficGroup("gold", 3, 1, 100, 1.0),))
    >>> rows = pa.Table.from_batches([traffic.rows(0, 10)])
    >>> check_conservation(traffic, 10, [rows.slice(0, 6), rows.slice(5, 3)])
    Conservation(lost=2, doubled=1)
    """
    expected = pa.Table.from_batches(traffic.batches(0, offered), SCHEMA)
    seen = np.zeros(offered, dtype=np.int64)
    for part in parts:
        known = part.filter(pc.and_(pc.greater_equal(part["id"], 0), pc.less(part["id"], offered)))
        original = expected.take(known["id"])
        same = np.ones(known.num_rows, dtype=np.bool_)
        for name in SCHEMA.names:
            same &= pc.equal(known[name], original[name]).fill_null(False).to_numpy()  # noqa: FBT003
        seen += np.bincount(known["id"].to_numpy()[same], minlength=offered)
    found = int((seen > 0).sum())
    return Conservation(lost=offered - found, doubled=sum(part.num_rows for part in parts) - found)


def count_tokens(part: BatchRows, namespaces: pa.StringArray, batches: int) -> Int64s:
    """Return messages and bytes by batch and namespace: an array of shape (batches, namespaces, 2)."""
    namespace = pc.index_in(part.rows["namespace"], value_set=namespaces).to_numpy()
    cell = part.batch * len(namespaces) + namespace
    cells = batches * len(namespaces)
    sizes = part.rows["size_bytes"].to_numpy()
    tokens = [np.bincount(cell, minlength=cells), np.bincount(cell, weights=sizes, minlength=cells)]
    return np.stack(tokens, axis=-1).astype(np.int64).reshape(batches, len(namespaces), 2)


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Messages and bytes by batch and namespace, of shape (batches, namespaces, 2)."""

    namespaces: pa.StringArray
    offered: Int64s
    admitted: Int64s
    rejected: Int64s


def offered_tokens(traffic: Traffic, batches: Sequence[Batch]) -> Int64s:
    """Return the arrivals of every batch, in the shape of `count_tokens`."""
    end = batches[-1].end_row if batches else 0
    rows = pa.Table.from_batches(traffic.batches(0, end), SCHEMA)
    batch = np.repeat(np.arange(len(batches)), [each.end_row - each.start_row for each in batches])
    return count_tokens(BatchRows(rows, batch), traffic.namespaces(), len(batches))


@dataclass(frozen=True, slots=True, eq=False)
class ScopeLimit:
    """A bucket that the rows of some namespaces pass."""

    name: str
    members: Int64s
    """Positions of its namespaces."""

    rate_micro_per_ms: Int64s
    """Rates of messages and bytes; negative if there is no limit."""

    burst_micro: Int64s


def scope_limits(policy: CompiledPolicy, namespaces: pa.StringArray) -> list[ScopeLimit]:
    """Return every enforced limit that applies to one of `namespaces`; observed limits may be exceeded."""
    found = match(namespaces, policy)
    tenants = len(policy.tenant_names)
    names = ["job", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    limits, shared = [], policy.shared
    for scope, name in enumerate(names):
        if scope == 0:
            members = np.flatnonzero(~found.is_exempt)
        elif scope <= tenants:
            members = np.flatnonzero(found.tenant == scope - 1)
        else:
            members = np.flatnonzero(found.group == scope - 1 - tenants)
        rate, burst = (each[scope, : Dimension.UNITS] for each in (shared.rate_micro_per_ms, shared.burst_micro))
        if len(members) and shared.on_excess[scope] != OnExcess.OBSERVE and (rate >= 0).any():
            limits.append(ScopeLimit(name, members, rate, burst))
    own = policy.namespace_limits
    for index, (name, position) in enumerate(zip(namespaces.to_pylist(), found.rule.tolist(), strict=True)):
        rate, burst = (each[position, : Dimension.UNITS] for each in (own.rate_micro_per_ms, own.burst_micro))
        if own.on_excess[position] != OnExcess.OBSERVE and (rate >= 0).any():
            limits.append(ScopeLimit(name, np.array([index]), rate, burst))
    return limits


def count_over_limit(admitted: Int64s, batches: Sequence[Batch], limits: Sequence[ScopeLimit], largest: Int64s) -> int:
    """Return the number of windows of batches that exceeded their limit, over all scopes and both dimensions.

    `admitted` has the shape of `count_tokens`; `largest` is the largest admitted message of each namespace, in bytes.
    """
    times = np.array([batch.time_ms for batch in batches], dtype=np.int64)
    elapsed_ms = np.maximum(times[None, :] - times[:, None], 0)
    is_window = np.triu(np.ones((len(batches), len(batches)), dtype=np.bool_))
    over = 0
    for limit in limits:
        passed = np.vstack([np.zeros((1, 2), dtype=np.int64), admitted[:, limit.members].sum(axis=1).cumsum(axis=0)])
        debt = np.array([1, largest[limit.members].max(initial=0)], dtype=np.int64)
        for dimension in (Dimension.MESSAGES, Dimension.BYTES):
            if limit.rate_micro_per_ms[dimension] < 0:
                continue
            in_window = passed[None, 1:, dimension] - passed[:-1, None, dimension]
            earned = limit.burst_micro[dimension] + limit.rate_micro_per_ms[dimension] * elapsed_ms
            over += int((is_window & (in_window * MICRO > earned + debt[dimension] * MICRO)).sum())
    return over


def largest_messages(part: BatchRows, namespaces: pa.StringArray) -> Int64s:
    """Return the largest message of every namespace, in bytes; 0 for a namespace without messages."""
    largest = np.zeros(len(namespaces), dtype=np.int64)
    namespace = pc.index_in(part.rows["namespace"], value_set=namespaces).to_numpy()
    np.maximum.at(largest, namespace, part.rows["size_bytes"].to_numpy())
    return largest
