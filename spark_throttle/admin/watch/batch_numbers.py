"""The numbers of a batch of a job, and their totals since the watch began, of the worst scopes by name.

At most `MOST_NAMED` scopes of a level are named, ranked by `status.ranking` anew in every batch; what the others did in
that batch is added to the total of ``_other``. So each message is counted in one total, and no total ever shrinks: one
that leaves the named ones stays as it is until its scope comes back. Processing time is counted from the epochs that
settled it: a scope has a total of its own while it is named, and the rest of a level is summed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import KNOWN, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.usage import ReservationCounts, UsageReport
from spark_throttle.core.waiting_times import bin_of, upper_ms
from spark_throttle.status.budget_status import BudgetsByScope, budgets_by_scope
from spark_throttle.status.explanation import Numbers
from spark_throttle.status.ranking import Key, ratio_of_quota, worst_first
from spark_throttle.status.time_status import ScopeTime, TimeStatus
from spark_throttle.status.usage_table import (
    AT,
    MEASURES,
    WAIT_SCHEMA,
    by_dimension,
    per_second,
    reported_names,
    usage_rows,
)

JOB: Final = ("job", "job")
WITHIN_SECONDS: Final = (1, 10, 60, 600, 3600)
"""The bounds of the waiting times that are counted for each scope."""

COLUMNS: Final = len(MEASURES) + 1 + len(WITHIN_SECONDS)
"""The number of values of a shared scope: those that `usage_table.MEASURES` names, then how many admitted messages had
waited, and how many of these had left within each of `WITHIN_SECONDS`."""

Quotas: TypeAlias = Numbers
_NO_NAMES: Final = pa.array([], pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class BatchNumbers:
    """The numbers of a batch, as the decider reported them."""

    batch: int
    epoch: int
    now_ms: int
    elapsed_ms: int
    """Time since the previous batch; 0 for the first batch that was seen."""

    revision: str
    shared: dict[Key, Int64s]
    """The values that `COLUMNS` tells of, of the job and of each group and tenant that was active."""

    waits: dict[Key, dict[str, Any]]
    """How long their messages wait and waited: the columns of `WAIT_SCHEMA` by name, but for the histogram."""

    quotas: dict[Key, Quotas]
    """Quotas in messages and bytes per second, with the keys of `shared`; `None` where there is no limit."""

    rejected_by_reason: Int64s
    """The number of rejected messages by `Reason`."""

    names: pa.StringArray
    """Names of the namespaces; they may not be valid UTF-8."""

    counts: Int64s
    """The values that `usage_table.MEASURES` names, by namespace."""

    oldest_ms: Int64s
    """How long the oldest waiting row of each namespace had waited, -1 where none waited."""

    held_by: Int64s
    """As in `UsageReport`."""

    budgets: BudgetsByScope
    """What is left of the budgets of all scopes."""

    reservations: ReservationCounts | None

    def oldest_of(self, key: Key) -> int:
        """Return how long the oldest waiting message of a shared scope had waited, -1 where none waited."""
        oldest_ms = self.waits.get(key, {}).get("oldest_waiting_ms")
        return -1 if oldest_ms is None else oldest_ms

    @property
    def waiting(self) -> Int64s:
        """Shape (n, 3), by namespace: what waits, in the dimensions that are `KNOWN`."""
        return self.counts[:, by_dimension("waiting")]

    def used_ratios(self, keys: Sequence[Key]) -> np.ndarray:
        """Return which part of its quota each of these scopes used; -1 for one without a quota, or that was idle."""
        idle, none = np.zeros(COLUMNS, np.int64), (None,) * len(KNOWN)
        counts = np.array([self.shared.get(key, idle) for key in keys]).reshape(-1, COLUMNS)
        rates = np.array([self.quotas.get(key, none) for key in keys], np.float64).reshape(-1, len(KNOWN))
        return ratio_of_quota(counts[:, by_dimension("admitted")], rates, self.elapsed_ms).max(axis=1, initial=-1.0)

    def without_details(self) -> BatchNumbers:
        """Return the numbers of only the job, its groups and its tenants."""
        kept = {key: counts.copy() for key, counts in self.shared.items()}
        return replace(self, shared=kept, waits={}, budgets={}, names=_NO_NAMES, counts=self.counts[:0].copy(),
                       oldest_ms=self.oldest_ms[:0].copy(), held_by=self.held_by[:0].copy())  # fmt: skip


def numbers_of(batch: int, report: UsageReport, policy: CompiledPolicy, elapsed_ms: int) -> BatchNumbers:
    """Return the numbers of a batch."""
    rows = usage_rows(report, policy, batch)
    is_namespace = pc.equal(rows["level"], "namespace")
    wide = rows.filter(pc.invert(is_namespace))  # the job, the tenants and the groups, as in the policy
    table, keys = _columns(wide), list(zip(wide["level"].to_pylist(), wide["scope"].to_pylist(), strict=True))
    active = np.union1d(0, np.flatnonzero(table.any(axis=1))).tolist()
    table = np.column_stack([table, _left_within(wide)])
    waits = wide.take(active).select([name for name in WAIT_SCHEMA.names if name != "waited"]).to_pylist()
    namespaces, is_active = rows.filter(is_namespace), report.is_active
    nobody = np.full((len(report.names), 2), -1)
    return BatchNumbers(
        batch=batch,
        epoch=report.epoch,
        now_ms=report.now_ms,
        elapsed_ms=elapsed_ms,
        revision=policy.revision,
        shared={keys[at]: table[at] for at in active},
        waits={keys[at]: each for at, each in zip(active, waits, strict=True)},
        quotas={keys[at]: per_second(policy.shared.rate_micro_per_ms[at, : Dimension.TIME]) for at in active},
        rejected_by_reason=np.array(report.rejected_by_reason, np.int64),
        names=reported_names(report),
        counts=_columns(namespaces),
        oldest_ms=(nobody[:, 0] if report.oldest_ms is None else report.oldest_ms)[is_active],
        held_by=(nobody if report.held_by is None else report.held_by)[is_active],
        budgets=budgets_by_scope(report, policy),
        reservations=report.reservations,
    )


def _columns(rows: pa.Table) -> Int64s:
    return np.column_stack([rows[measure.name].to_numpy() for measure in MEASURES]).astype(np.int64)


def _left_within(rows: pa.Table) -> Int64s:
    """Return how many messages had waited, and how many of them left within each bound; shape (rows, 1 + bounds)."""
    waited = rows["waited"].combine_chunks()
    at, bins = pc.list_parent_indices(waited).to_numpy(), waited.flatten()
    up_to_ms, messages = bins.field("up_to_ms").to_numpy(), bins.field("messages").to_numpy()
    # The bin in which a bound lies counts whole: a message that waited for just a second left within a second.
    bounds_ms = upper_ms(bin_of(1000 * np.array(WITHIN_SECONDS)))
    within = [up_to_ms <= bound_ms for bound_ms in bounds_ms.tolist()]
    return np.column_stack([sums(at[each], messages[each], len(rows)) for each in (up_to_ms >= 0, *within)])


MOST_NAMED: Final = 200
"""The most groups, and the most tenants, of a job that have totals of their own."""

OTHER: Final = "_other"
"""The name of the sum of all others of a level."""


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Sums over the batches that the watch saw, and the ranking after the newest of them."""

    counts: Mapping[Key, Int64s] = field(default_factory=dict)
    """The values that `COLUMNS` tells of, by level and scope."""

    named: tuple[Key, ...] = ()
    """The job, then the groups and the tenants that have a place, each level with the worst first."""

    ranked: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)
    """By level, all that were active in the newest batch or have a place, the worst first."""

    throttled: frozenset[Key] = frozenset()
    """Those that had waiting or rejected messages in it."""

    def series(self) -> Iterator[tuple[Key, Int64s]]:
        """Yield the totals that are shown: of the named scopes, and of the others of a level."""
        others = ((level, OTHER) for level in ("resource_group", "tenant"))
        yield from ((key, self.counts[key]) for key in (*self.named, *others) if key in self.counts)

    def worst(self, most: int) -> list[Key]:
        """Return the job, and the first of the groups and of the tenants that have a place."""
        of_level = [[key for key in self.named if key[0] == level][:most] for level in ("resource_group", "tenant")]
        return [JOB, *of_level[0], *of_level[1]]

    def with_batch(self, numbers: BatchNumbers) -> Totals:
        """Return totals with those of one more batch."""
        counts, named, ranked, throttled = dict(self.counts), [JOB], dict[str, tuple[Key, ...]](), set[Key]()
        _add(counts, JOB, numbers.shared[JOB])
        for level in ("resource_group", "tenant"):
            placed = frozenset(key for key in self.named if key[0] == level)
            keys = [key for key in numbers.shared if key[0] == level]
            keys += sorted(placed.difference(keys))
            idle = np.zeros(COLUMNS, np.int64)
            rows = np.array([numbers.shared.get(key, idle) for key in keys], np.int64).reshape(-1, COLUMNS)
            order = worst_first(
                oldest_ms=np.array([numbers.oldest_of(key) for key in keys], np.int64),
                rejected=rows[:, AT["rejected_messages"]],
                used_ratio=numbers.used_ratios(keys),
                waiting=rows[:, AT["waiting_messages"]],
                offered=rows[:, AT["offered_messages"]],
                has_place=np.array([key in placed for key in keys], np.bool_),
                held=np.array([numbers.waits.get(key, {}).get("held_messages") or 0 for key in keys], np.int64),
            )
            ranked[level] = tuple(keys[at] for at in order.tolist())
            is_held = (rows[:, [AT["waiting_messages"], AT["rejected_messages"]]] > 0).any(axis=1)
            throttled.update(keys[at] for at in np.flatnonzero(is_held).tolist())
            for at in order[:MOST_NAMED].tolist():
                named.append(keys[at])
                _add(counts, keys[at], rows[at])
            if len(order) > MOST_NAMED:
                _add(counts, (level, OTHER), rows[order[MOST_NAMED:]].sum(axis=0))
        return Totals(counts, tuple(named), ranked, frozenset(throttled))


def _add(counts: dict[Key, Int64s], key: Key, more: Int64s) -> None:
    counts[key] = counts.get(key, np.zeros_like(more)) + more


@dataclass(frozen=True, slots=True)
class TimeTotals:
    """Sums over the epochs that the watch saw."""

    used_ns: Mapping[Key, int] = field(default_factory=dict)
    """The time that was charged, by level and scope; empty if no policy had a quota on processing time."""

    exempt_ns: int = 0
    unattributed_ns: int = 0

    def with_epoch(self, time: TimeStatus, named: Collection[Key]) -> TimeTotals:
        """Return the totals with those of one more epoch; scopes that are not `named` are summed."""
        used_ns = dict(self.used_ns)
        for level in ("job", "tenant", "resource_group"):
            scopes = [scope for of, scope in named if of == level and scope != OTHER]
            rows = time.scopes.filter(pc.equal(time.scopes["level"], level))
            is_named = pc.is_in(rows["scope"], value_set=pa.array(scopes, pa.string()))
            for scope, each_ns in zip(
                *rows.filter(is_named).select(["scope", "used_ns"]).to_pydict().values(), strict=True
            ):
                used_ns[level, scope] = used_ns.get((level, scope), 0) + each_ns
            rest_ns = pc.sum(rows.filter(pc.invert(is_named))["used_ns"]).as_py() or 0
            if rest_ns:
                used_ns[level, OTHER] = used_ns.get((level, OTHER), 0) + rest_ns
        job = time.job
        return TimeTotals(used_ns, self.exempt_ns + job.exempt_ns, self.unattributed_ns + job.unattributed_ns)


def times_of(time: TimeStatus | None, keys: Collection[Key]) -> dict[Key, ScopeTime]:
    """Return the processing time of these scopes, by the newest epoch; nothing without a quota on processing time."""
    if time is None or not keys:
        return {}
    levels, scopes = (pa.chunked_array([pa.array(words, pa.string())]) for words in zip(*keys, strict=True))
    rows = time.of(levels, scopes).to_pylist()
    return {
        (level, scope): ScopeTime(**row)
        for row in rows
        if (level := row.pop("level")) is not None and (scope := row.pop("scope")) is not None
    }
