"""The answer to why a namespace, or a tenant, is held as it is has what a job's reports say; `explain` has the rest.

The reports have the balances and backlogs of the namespace's levels, and its last batch. What the batches since the
newest epoch used of processing time is not known yet: their messages count at what they were estimated to take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.control.notes import ExceptionInForce
from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.policy_change import carried_shared
from spark_throttle.core.quota import (
    KNOWN,
    MICRO,
    UNBOUNDED,
    UNLIMITED,
    Bools,
    CompiledPolicy,
    Dimension,
    Int64s,
    Level,
    Limits,
    OnExcess,
)
from spark_throttle.core.shared_buckets import guaranteed_rates, under_share
from spark_throttle.core.usage import UsageReport
from spark_throttle.policy.quotas import BOUNDS, HOLDS
from spark_throttle.status.budget_status import BudgetStatus, budgets_by_scope
from spark_throttle.status.time_status import ScopeTime, time_status_of

Numbers: TypeAlias = tuple[float | None, float | None, float | None]
"""Numbers of messages, bytes and units."""

Counts: TypeAlias = tuple[int, int, int]
"""Whole numbers of messages, bytes and units."""

NO_NUMBERS: Final[Numbers] = (None, None, None)


@dataclass(frozen=True, slots=True)
class LevelExplanation:
    """One level that rows pass through; numbers are of messages, bytes and units, `None` where there is no limit."""

    level: str
    scope: str
    per_second: Numbers
    burst: Numbers
    on_excess: str
    weight: int

    bounds: Mapping[str, int] = field(default_factory=dict)
    """Its bounds and budgets, by the key of the quota, such as `max_message_bytes`."""

    request_percentage: float | None = None
    """The processing time, in percent of one core; `None` where the level has no such quota."""

    guaranteed: Numbers = NO_NUMBERS
    """What it gets a second before others borrow; `None` where nothing is guaranteed."""

    guaranteed_percentage: float | None = None
    """The same of processing time, in percent of one core."""

    guaranteed_in_force: Numbers = NO_NUMBERS
    """What the job itself guarantees of that, where its shares of the quotas are not all; `None` where they are, or no
    job was asked."""

    share: Numbers = NO_NUMBERS
    """What the job may use of the quota, where that is not all of it: its share, or the rate of a destination."""

    balance: Numbers = NO_NUMBERS
    """What the level's bucket holds after the last batch; negative is debt. `None` also where no job was asked, and for
    the namespace's own bucket."""

    balance_time_ns: int | None = None
    """What the newest epoch left of the quota on processing time; negative is debt. `None` without such a quota, and
    where no job was asked."""

    waiting: Counts | None = None
    """The backlog of all the level's namespaces; `None` where no job was asked."""

    release_ms: int | None = None
    """How long until that backlog may have left, if nothing more arrives and the share stays (of nothing, at the
    quota); `None` for never, or if nothing waits."""

    budgets: tuple[BudgetStatus, ...] = ()
    """What the last batch left of its budgets; none where no job was asked."""

    reserved_units: int = 0
    """What its messages were estimated to cost that left and whose costs are not known yet."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What became of a namespace's or tenant's rows in a job's last batch: messages, bytes and units."""

    batch_id: int
    batch_time_ms: int
    epoch: int
    offered: Counts = (0, 0, 0)
    admitted: Counts = (0, 0, 0)
    rejected: Counts = (0, 0, 0)
    waiting: Counts = (0, 0, 0)
    observed_messages: int = 0


@dataclass(frozen=True, slots=True)
class WaitingNamespace:
    """A namespace of a tenant, with what waits of it and what holds it: messages, bytes and units."""

    namespace: str
    resource_group: str | None
    waiting: Counts
    rejected: Counts
    held_by: tuple[str, str]
    """The level and the scope that let its backlog go last."""

    release_ms: int | None
    """How long until they may have; `None` for never, or where it is not told."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a namespace, or a tenant, is held as it is."""

    namespace: str
    """The name that was asked for: a tenant's, if the rule is ``tenant``."""

    direction: str
    rule: str
    """The kind of rule that won: ``exempt``, ``namespace``, ``glob`` or ``defaults``; ``tenant`` of a tenant."""

    matched: str
    """The name or glob that won; empty for the defaults, and for a tenant without an entry."""

    reasons: tuple[str, ...]
    """Why that kind won and the others did not, in the order of precedence."""

    resource_group: str | None
    levels: tuple[LevelExplanation, ...]
    """From the narrowest to the widest; none where the namespace is exempt. A tenant has several groups."""

    revision: str
    last_batch: LastBatch | None = None
    unit: str = "units"
    """What the policy calls units."""

    predicted_release_ms: int | None = None
    """How long after the last batch the namespace's backlog will have left, if nothing more arrives; `None` for never,
    if nothing waits, or where a note says that it is not told."""

    exceptions: tuple[ExceptionInForce, ...] = ()
    """The exceptions in force at its levels; the first to end in front."""

    notes: tuple[str, ...] = ()
    """Anything else worth knowing, such as a revision that is not in force."""

    namespaces: tuple[WaitingNamespace, ...] = ()
    """Of a tenant, the first of its namespaces that wait, the worst first."""

    waiting_namespaces: int = 0
    """How many of a tenant's namespaces wait in all."""


def exceptions_of(
    explained: Explanation, exceptions: Iterable[ExceptionInForce], now_ms: int, *, is_wide: bool = True
) -> tuple[ExceptionInForce, ...]:
    """Return the exceptions of the entries by which a name is held, of those that have not ended.

    Parameters
    ----------
    is_wide
        Whether the reader may know of entries that are not its tenant's.
    """
    paths = entries_of(explained, is_wide=is_wide)
    return tuple(each for each in exceptions if each.path in paths and now_ms < each.until_ms)


def entries_of(explained: Explanation, *, is_wide: bool = True) -> set[str]:
    """Return the paths of the entries by which a name is held, as far as the reader may know of them."""
    rule = f"namespaces.{explained.matched}" if explained.rule in ("namespace", "glob") else explained.rule
    paths = {rule, *(f"{level.level}s.{level.scope}" for level in explained.levels if level.level != "job")}
    paths |= {"job"} if explained.rule != "exempt" else set()
    tenant = explained.namespace.partition("/")[0]
    own = (f"tenants.{tenant}", f"namespaces.{tenant}")
    return {each for each in paths if is_wide or each in own or each.startswith(f"{own[1]}/")}


def numbers_of(values: Int64s, part: int, rates: Int64s) -> Numbers:
    """Return values of messages, bytes and units, of which so many are 1; `None` where there is no limit."""
    known = zip(values[: Dimension.TIME].tolist(), rates[: Dimension.TIME].tolist(), strict=True)
    messages, in_bytes, units = (None if rate == UNLIMITED else value / part for value, rate in known)
    return messages, in_bytes, units


def counts_of(tokens: Int64s) -> Counts:
    """Return what rows take, as whole numbers of messages, bytes and units."""
    messages, in_bytes, units = tokens[: Dimension.TIME].tolist()
    return messages, in_bytes, units


def observed_levels(
    levels: Sequence[LevelExplanation],
    policy: CompiledPolicy,
    epoch: Epoch,
    last: UsageReport,
    found: Matches,
    *,
    before: CompiledPolicy,
    is_settled: bool,
) -> list[LevelExplanation]:
    """Return the levels with their buckets' balances and their backlogs.

    Parameters
    ----------
    last
        The report of the last batch.
    found
        The scopes of its namespaces.
    before
        The policy of that batch: what its buckets held is told as the change of the policy will carry it over.
    is_settled
        Whether the epoch knows what that batch used of processing time.
    """
    is_of_policy = last.revision == policy.revision
    balance_micro = last.shared_micro if is_of_policy else carried_shared(last.shared_micro, before, policy)
    times = _times(levels, epoch, policy)
    quota = policy.shared.rate_micro_per_ms
    in_force = under_share(policy, epoch.share_in_force(len(policy.shared))).shared.rate_micro_per_ms
    guaranteed = (
        None
        if policy.guarantees is None
        else guaranteed_rates(policy, epoch.share_in_force(len(policy.shared)), epoch.parts_micro_per_ms)
    )
    observed, budgets = [], budgets_by_scope(last, policy)
    for level, time in zip(levels, times, strict=True):
        scope = position_of(policy, level.level, level.scope)
        rows = _rows(last, found, level, scope)
        waiting: Int64s = last.waiting[rows].sum(axis=0)
        rates = np.array([UNLIMITED if r is None else round(r * 1000) for r in level.per_second], dtype=np.int64)
        earned = rates if scope < 0 else np.where(in_force[scope] == 0, quota[scope], in_force[scope])
        own_micro = _own_micro(last, level.scope) if level.level == "namespace" and is_of_policy else None
        balance = balance_micro[scope] if scope >= 0 else np.zeros(len(Dimension), dtype=np.int64)
        if own_micro is not None:
            balance[: Dimension.TIME] = own_micro
        left_ns = None if time is None else time.balance_ns
        if left_ns is not None and not is_settled:
            left_ns = int(balance[Dimension.TIME]) if scope >= 0 else _own_left_ns(last, level.scope, left_ns)
        of_level = budgets.get((level.level, shown(pa.array([level.scope], pa.string()))[0].as_py()), ())
        of_budgets = [] if level.on_excess == "observe" else [
            each.release_ms(int(waiting[each.dimension]))
            for each in of_level
            if waiting[Dimension.MESSAGES]
        ]  # fmt: skip
        free_ms = _release_ms(waiting, balance, earned), _paid_ms(waiting, level, time, left_ns), *of_budgets
        release_ms = None if None in free_ms else max(each for each in free_ms if each is not None)
        seen = replace(level, waiting=counts_of(waiting), release_ms=release_ms, balance_time_ns=left_ns,
                       budgets=of_level, reserved_units=int(last.number("reserved_units")[rows].sum()))  # fmt: skip
        if guaranteed is not None and level.guaranteed != NO_NUMBERS:
            rule = policy.namespace_names.index(level.scope).as_py() if level.level == "namespace" else scope
            rates_in_force = guaranteed[guarantee_at(policy, level.level, rule)]
            in_job = numbers_of(rates_in_force, 1000, rates_in_force)
            seen = replace(seen, guaranteed_in_force=in_job if in_job != level.guaranteed else NO_NUMBERS)
        if scope >= 0:
            own = np.where(in_force[scope] == quota[scope], UNLIMITED, in_force[scope])
            seen = replace(seen, balance=numbers_of(balance, MICRO, rates), share=numbers_of(own, 1000, own))
        elif own_micro is not None:
            seen = replace(seen, balance=numbers_of(balance, MICRO, rates))
        observed.append(seen)
    return observed


def position_of(policy: CompiledPolicy, level: str, scope: str) -> int:
    """Return the place of a scope among the shared ones; -1 for a namespace, and for what the policy does not name."""
    named: dict[str, tuple[int, pa.StringArray]] = {
        "tenant": (1, policy.tenant_names),
        "resource_group": (1 + len(policy.tenant_names), policy.group_names),
    }
    if level not in named:
        return 0 if level == "job" else -1
    first, names = named[level]
    at: int = pc.index(names, scope).as_py()
    return -1 if at < 0 else first + at


def _times(levels: Sequence[LevelExplanation], epoch: Epoch, policy: CompiledPolicy) -> list[ScopeTime | None]:
    """Return the processing time of the levels; `None` where none is known."""
    found = time_status_of(epoch, policy)
    if found is None:
        return [None] * len(levels)
    kinds = pa.chunked_array([pa.array([level.level for level in levels], pa.string())])
    names = pa.array([level.scope for level in levels], pa.string())
    rows = found.of(kinds, pa.chunked_array([shown(names)])).drop_columns(["level", "scope"]).to_pylist()
    return [None if row["used_ns"] is None else ScopeTime(**row) for row in rows]


def _own_left_ns(report: UsageReport, namespace: str, otherwise_ns: int) -> int:
    """Return what a report leaves of a namespace's own quota on processing time."""
    at = pc.index(report.names, namespace).as_py()
    return otherwise_ns if at < 0 or report.own_time_ns is None else int(report.own_time_ns[at])


def _own_micro(report: UsageReport, namespace: str) -> Int64s | None:
    """Return what a namespace's own buckets hold, `None` if a report does not say."""
    at = pc.index(report.names, namespace).as_py()
    return None if at < 0 or report.own_micro is None else report.own_micro[at]


def _rows(report: UsageReport, found: Matches, level: LevelExplanation, scope: int) -> Bools:
    """Return which namespaces of a report pass through a level."""
    if level.level == "namespace":
        is_it: Bools = pc.equal(report.names, level.scope).to_numpy(zero_copy_only=False)
        return is_it
    return found.shared_scope[:, SHARED_LEVELS.index(Level[level.level.upper()])] == scope


def standing_backlog(
    levels: Sequence[LevelExplanation], policy: CompiledPolicy, last: UsageReport, found: Matches
) -> tuple[str, ...]:
    """Return a note if the level that lets its backlog go last was offered as much in the last batch as left it."""
    level = max(levels, key=lambda each: each.release_ms or 0, default=None)
    if level is None or not level.release_ms or level.waiting is None:
        return ()
    rows = _rows(last, found, level, position_of(policy, level.level, level.scope))
    offered, left = (
        int(each[rows, Dimension.MESSAGES].sum()) for each in (last.offered, last.admitted + last.rejected)
    )
    waits = level.waiting[0]
    if not 0 < left <= offered or waits <= offered - left:  # nothing waited before
        return ()
    where = f"{level.level.replace('_', ' ')} {level.scope}"
    said = (
        f"the last batch brought {where} {offered} messages, and {left} left: while it is offered what its quota lets"
    )
    return (f"{said} pass, this backlog of {waits} does not shrink",)


def _release_ms(waiting: Int64s, balance_micro: Int64s, rates: Int64s) -> int | None:
    """Return how long a bucket takes to earn the tokens for a backlog; `None` if nothing waits, or at a rate of 0."""
    if not waiting[Dimension.MESSAGES]:
        return None
    longest = 0
    for dimension in KNOWN:
        rate = int(rates[dimension])
        if rate == UNLIMITED:
            continue
        if rate == 0:
            return None
        lacking = int(waiting[dimension]) * MICRO - int(balance_micro[dimension])
        longest = max(longest, -(-lacking // rate))
    return max(0, longest)


def _paid_ms(waiting: Int64s, level: LevelExplanation, time: ScopeTime | None, left_ns: int | None) -> int | None:
    """Return how long a quota on processing time takes to pay for a backlog; `None` if nothing waits, or for ever.

    It pays first what it owes. Messages count at what the last ones took or, if nothing was measured, as estimated.
    """
    if not waiting[Dimension.MESSAGES]:
        return None
    if time is None or time.share_percentage is None or left_ns is None or level.on_excess == "observe":
        return 0
    if time.share_percentage == 0:
        return None
    takes_ns = int(waiting[Dimension.TIME])
    if time.ns_per_message is not None:
        takes_ns = int(waiting[Dimension.MESSAGES]) * time.ns_per_message
    due_ns = takes_ns - left_ns
    return max(0, -(-due_ns // round(time.share_percentage * NS_PER_MS_OF_A_PERCENT)))


def namespace_of_tenant(tenant: str, report: UsageReport) -> str | None:
    """Return the first of a tenant's namespaces that are in a batch, as it is shown, by its report."""
    inside = pc.filter(report.names, pc.starts_with(report.names, f"{tenant}/"))
    return min(shown(inside).to_pylist(), default=None)


def flows_of(report: UsageReport, name: str, *, is_tenant: bool = False) -> Bools:
    """Return which of a report's flows are of a namespace, or of a tenant."""
    found = pc.equal(report.names, name)
    if is_tenant:
        found = pc.or_(found, pc.starts_with(report.names, f"{name}/"))
    flows: Bools = found.to_numpy(zero_copy_only=False)
    return flows


def last_batch_of(batch: int, report: UsageReport, flows: Bools) -> LastBatch:
    """Return what became of some flows' rows in a batch."""
    offered, admitted, rejected, waiting = (
        counts_of(each[flows].sum(axis=0))
        for each in (report.offered, report.admitted, report.rejected, report.waiting)
    )
    return LastBatch(
        batch, report.now_ms, report.epoch, offered, admitted, rejected, waiting,
        int(report.observed_messages[flows].sum()),
    )  # fmt: skip


OF_ONE_TENANT: Final = ("namespace", "tenant")
"""The levels whose numbers a tenant may see; others share the rest."""


def level_of(
    level: str,
    scope: str,
    policy: CompiledPolicy,
    position: int,
    *,
    own: Limits | None = None,
    group_scope: int | None = None,
) -> LevelExplanation:
    """Return a level as the policies have it, by its place in the limits.

    Parameters
    ----------
    own
        The limits of a namespace by itself, one position; of a rule some namespaces may only be observed.
    group_scope
        The group, -1 for none, of the namespace that is asked for: what its tenant is guaranteed may be for another.
    """
    limits, row = (policy.shared, position) if own is None else (own, 0)
    guaranteed = np.full(len(Dimension), UNLIMITED)
    at, guarantees = guarantee_at(policy, level, position), policy.guarantees
    if guarantees is not None and at >= 0 and (level != "tenant" or group_scope in (None, guarantees.way[at, 1])):
        guaranteed = guarantees.rate_micro_per_ms[at]
    return LevelExplanation(
        level, scope, numbers_of(limits.rate_micro_per_ms[row], 1000, limits.rate_micro_per_ms[row]),
        numbers_of(limits.burst_micro[row], MICRO, limits.rate_micro_per_ms[row]),
        OnExcess(int(limits.on_excess[row])).name.lower(), int(limits.weight[row]),
        request_percentage=_percentage(int(limits.rate_micro_per_ms[row, Dimension.TIME])),
        bounds={
            key: int(column[row]) for key, column in limits.settings.items()
            if key in (*BOUNDS, *HOLDS) and column[row] < UNBOUNDED
        },
        guaranteed=numbers_of(guaranteed, 1000, guaranteed),
        guaranteed_percentage=_percentage(int(guaranteed[Dimension.TIME])),
    )  # fmt: skip


def guarantee_at(policy: CompiledPolicy, level: str, position: int) -> int:
    """Return the place of what a scope is guaranteed, by the scope's place in its limits; -1 for nothing."""
    if policy.guarantees is None:
        return -1
    places = policy.guarantees.rule if level == "namespace" else policy.guarantees.scope
    found = np.flatnonzero((places == position) & (places >= 0))
    return int(found[0]) if len(found) else -1


def _percentage(rate_ns_per_ms: int) -> float | None:
    return None if rate_ns_per_ms == UNLIMITED else rate_ns_per_ms / NS_PER_MS_OF_A_PERCENT


def is_shut(level: LevelExplanation) -> bool:
    """Return whether a quota of 0 holds what waits."""
    said = (*level.per_second, level.request_percentage, *level.bounds.values())
    return 0 in said and level.on_excess != "observe"
