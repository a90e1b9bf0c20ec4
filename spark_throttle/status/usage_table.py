"""Usage by scope is the sums of the decider's report, as rows of the usage table and of `status`.

A namespace counts in its own scope, its tenant's, its group's and the job's. A tenant or group that the policy does not
name has no row; a namespace that was active always has one. Its name is written as `core.names.shown_names` shows it,
because the name of a namespace may not be valid UTF-8.

Several jobs may write one table: a row says whose it is. A job that shares quotas also has the share of each scope: its
own part, the whole, and the other jobs' reports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.checkpoint.manifest import Manifest, bound_manifest
from spark_throttle.control.demand import SharedScopes
from spark_throttle.control.epochs import policy_of_epoch
from spark_throttle.core.arithmetic.segments import largest, sums
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import KNOWN, MICRO, UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.usage import ReservationCounts, ScopeUsage, UsageReport
from spark_throttle.core.waiting_times import WaitingTimes, upper_ms
from spark_throttle.files.storage import Directory
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.status import Observation, read_observation
from spark_throttle.status.time_status import TimeStatus, time_of_batch

MEASURES: Final = fields(ScopeUsage)[2:]
"""All numbers of a scope for a batch."""

AT: Final[Mapping[str, int]] = {measure.name: at for at, measure in enumerate(MEASURES)}
"""The position of each measure in `MEASURES`, by its name."""

TIME_COLUMNS: Final[Mapping[str, str]] = {
    "request_percentage": "request_percentage", "used_time_ns": "used_ns", "throttle_time_ms": "throttle_ms",
}  # fmt: skip
"""The columns of processing time, with the field of `ScopeTime` that each holds; null without a quota on it."""

JOB_TIME_COLUMNS: Final[Mapping[str, str]] = {
    "exempt_time_ns": "exempt_ns", "unattributed_time_ns": "unattributed_ns",
}  # fmt: skip
"""The columns of time that is charged to no scope, with the field of `JobTime`; the job's row has them."""

_DECISIONS: Final = pa.schema([
    ("batch_id", pa.int64()), ("batch_time", pa.timestamp("us", tz="UTC")), ("epoch", pa.int64()),
    ("revision", pa.string()), ("level", pa.string()), ("scope", pa.string()),
    *((measure.name, pa.int64()) for measure in MEASURES),
])  # fmt: skip
PERCENTS: Final = (50, 95, 99)
"""The parts of the admitted messages for which a scope tells within what time they had left."""

WAITED: Final = pa.struct([("up_to_ms", pa.int64()), ("messages", pa.int64())])
"""Messages that had waited, and for how long at most: an element of a histogram that adds up (`waiting_times`)."""

WAIT_SCHEMA: Final = pa.schema([
    ("oldest_waiting_ms", pa.int64()), ("held_messages", pa.int64()),
    *((f"granted_{dimension.name.lower()}", pa.float64()) for dimension in KNOWN),
    *((f"waited_p{percent}_ms", pa.int64()) for percent in PERCENTS),
    ("waited", pa.list_(WAITED)),
])  # fmt: skip
"""How long the messages of a scope wait and waited, and what its quotas earned since the batch before."""

USAGE_SCHEMA = pa.schema(
    [
        *_DECISIONS,
        *((name, pa.float64() if name == "request_percentage" else pa.int64()) for name in TIME_COLUMNS),
        *((name, pa.int64()) for name in JOB_TIME_COLUMNS),
        *WAIT_SCHEMA,
        ("job", pa.string()),
    ]
)
"""The schema of the usage table."""

FIRST_COLUMNS: Final = 20
"""Number of columns that the first release wrote. A table that lacks later columns is widened."""


def by_dimension(count: str) -> slice:
    """Return the positions in `MEASURES` of a count, in the dimensions that are `KNOWN`.

    Examples
    --------
    >>> [measure.name for measure in MEASURES[by_dimension("admitted")]]
    ['admitted_messages', 'admitted_bytes', 'admitted_units']
    """
    return slice(AT[f"{count}_messages"], AT[f"{count}_units"] + 1)


def usage_rows(
    report: UsageReport, policy: CompiledPolicy, batch: int, time: TimeStatus | None = None, job: str | None = None
) -> pa.Table:
    """Return the usage of a batch, one row per scope; namespaces come last, in the order of `reported_names`.

    Parameters
    ----------
    job
        Whose batch it is (`Manifest.job`), where the rows stand beside those of other jobs.
    """
    names, is_active = shown(reported_names(report)), report.is_active
    tenant, group = report.tenant[is_active], report.group[is_active]
    measures = np.column_stack([report.number(measure.name) for measure in MEASURES])[is_active]
    levels = [
        (Level.JOB, pa.array(["job"]), np.zeros(len(names), dtype=np.int64)),
        (Level.TENANT, policy.tenant_names, tenant),
        (Level.RESOURCE_GROUP, policy.group_names, group),
        (Level.NAMESPACE, names, np.arange(len(names))),
    ]
    tables, waits, shared, first = [], [], report.shared_granted_micro, 0
    for level, scopes, at in levels:
        held = at >= 0
        total = sums(at[held], measures[held], len(scopes))
        if level is Level.JOB:
            total[0, [AT["offered_messages"], AT["rejected_messages"]]] += report.invalid_messages
            told = report.reservations or ReservationCounts()
            total[0, AT["unknown_costs"]] += told.unknown_costs + told.unusable_costs
        tables.append(_table(level.name.lower(), scopes, total, report, batch))
        granted_micro = None if shared is None else shared[first : first + len(scopes)]
        if level is Level.NAMESPACE:
            granted_micro = None if report.granted_micro is None else report.granted_micro[is_active]
        waits.append(_waits(level, at, total[:, AT["admitted_messages"]], granted_micro, report, is_active))
        first += len(scopes)
    rows = _with_time(pa.concat_tables(tables), time)
    waited = pa.concat_tables(waits)
    for each in WAIT_SCHEMA:
        rows = rows.append_column(each, waited[each.name])
    rows = rows.append_column("job", pa.array([job] * len(rows), pa.string()))
    # In one chunk: of a table of several, Spark reads only those before the first empty one.
    return rows.combine_chunks()


def _waits(
    level: Level, at: Int64s, admitted: Int64s, granted_micro: Int64s | None, report: UsageReport, is_active: Bools
) -> pa.Table:
    """Return the columns of `WAIT_SCHEMA` for the scopes of a level.

    Parameters
    ----------
    at
        The position of the scope of each active namespace, -1 for none.
    admitted
        The admitted messages of each scope.
    granted_micro
        What its quotas earned, shape (scopes, 4); `None` if none has any.
    """
    scopes, scope = len(admitted), np.full(len(report.names), -1)
    scope[is_active] = at
    is_in = scope >= 0
    oldest_ms, held = np.full(scopes, -1), np.zeros(scopes, dtype=np.int64)
    if report.oldest_ms is not None:
        oldest_ms = largest(scope[is_in], report.oldest_ms[is_in], scopes, least=-1)
    if report.held_by is not None:
        by_it = is_in & (report.held_by[:, 0] == level)
        held = sums(scope[by_it], report.waiting[by_it, Dimension.MESSAGES], scopes)
    if granted_micro is None:
        granted_micro = np.full((scopes, len(Dimension)), UNLIMITED)
    granted = [pa.array(of / MICRO, mask=of == UNLIMITED) for of in granted_micro.T[: len(KNOWN)]]
    times = (report.waited or WaitingTimes.none()).among(scope)
    bins = pa.StructArray.from_arrays([pa.array(upper_ms(times.bin)), pa.array(times.messages)], fields=list(WAITED))
    bounds = pa.array(np.searchsorted(times.at, np.arange(scopes + 1)), pa.int32())
    return pa.Table.from_arrays(
        [
            pa.array(oldest_ms, mask=oldest_ms < 0), pa.array(held), *granted,
            *(pa.array(times.times_ms(admitted, percent)) for percent in PERCENTS),
            pa.ListArray.from_arrays(bounds, bins, pa.list_(WAITED)),
        ],
        schema=WAIT_SCHEMA,
    )  # fmt: skip


def reported_names(report: UsageReport) -> pa.StringArray:
    """Return the names of the active namespaces in a report; they may not be valid UTF-8."""
    return report.names.filter(pa.array(report.is_active))


def _table(level: str, scopes: pa.StringArray, total: Int64s, report: UsageReport, batch: int) -> pa.Table:
    n = len(scopes)
    batch_time = pa.array(np.full(n, report.now_ms * 1000), pa.timestamp("us", tz="UTC"))
    constant = [pa.array([batch] * n, pa.int64()), batch_time, pa.array([report.epoch] * n, pa.int64())]
    words = [pa.array([report.revision] * n, pa.string()), pa.array([level] * n, pa.string())]
    counts = [pa.array(total[:, column]) for column in range(total.shape[1])]
    return pa.Table.from_arrays([*constant, *words, scopes, *counts], schema=_DECISIONS)


def _with_time(rows: pa.Table, time: TimeStatus | None) -> pa.Table:
    """Return rows with the columns of processing time."""
    if time is None:
        for name in (*TIME_COLUMNS, *JOB_TIME_COLUMNS):
            rows = rows.append_column(USAGE_SCHEMA.field(name), pa.nulls(len(rows), USAGE_SCHEMA.field(name).type))
        return rows
    scopes, is_job = time.of(rows["level"], rows["scope"]), pc.equal(rows["level"], "job")
    for name, found in TIME_COLUMNS.items():
        rows = rows.append_column(USAGE_SCHEMA.field(name), scopes[found])
    for name, found in JOB_TIME_COLUMNS.items():
        value = pc.if_else(is_job, pa.scalar(getattr(time.job, found), pa.int64()), pa.scalar(None, pa.int64()))
        rows = rows.append_column(USAGE_SCHEMA.field(name), value)
    return rows


@dataclass(frozen=True, slots=True)
class PeerUse:
    """The last report of another job on a scope."""

    job: str
    state: str
    """``live``, ``dead`` or ``unreadable``."""

    report_age_ms: int
    claimed_messages_per_second: float | None
    claimed_bytes_per_second: float | None
    used_messages_per_second: float
    used_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class ScopeShare:
    """One shared scope, as this job knows it; `None` where the scope has no limit."""

    quota_messages_per_second: float | None
    quota_bytes_per_second: float | None
    quota_units_per_second: float | None
    share_messages_per_second: float | None
    share_bytes_per_second: float | None
    share_units_per_second: float | None
    lease_age_ms: int
    """Time since this job's last report that the others are known to have seen; -1 while only the floor is left."""

    used_by_all_messages_per_second: float
    used_by_all_bytes_per_second: float
    used_by_all_units_per_second: float
    utilisation: float | None
    """The part of the quota that all jobs use together, in messages, bytes or units, whichever is largest."""

    peers: tuple[PeerUse, ...]


SHARE_SCHEMA = pa.schema([
    *((name, pa.float64()) for name in (
        *(f"{of}_{counted}_per_second" for of in ("quota", "share") for counted in ("messages", "bytes", "units")),
    )),
    ("lease_age_ms", pa.int64()),
    *((name, pa.float64()) for name in (
        *(f"used_by_all_{counted}_per_second" for counted in ("messages", "bytes", "units")), "utilisation",
    )),
    ("peers", pa.list_(pa.struct([
        ("job", pa.string()), ("state", pa.string()), ("report_age_ms", pa.int64()),
        ("claimed_messages_per_second", pa.float64()), ("claimed_bytes_per_second", pa.float64()),
        ("used_messages_per_second", pa.float64()), ("used_bytes_per_second", pa.float64()),
    ]))),
])  # fmt: skip
"""The columns that a job adds to `usage_table.USAGE_SCHEMA` if it shares quotas; null where a scope is not shared."""


def scope_shares(
    observation: Observation, policy: CompiledPolicy, direction: Direction,
    among: Collection[tuple[str, str]] | None = None,
) -> dict[tuple[str, str], ScopeShare]:  # fmt: skip
    """Return the shares by level and name, of all scopes or of those `among` them."""
    scopes = SharedScopes.of(policy, direction)
    names = [("tenant", name) for name in policy.tenant_names.to_pylist()]
    names += [("resource_group", name) for name in policy.group_names.to_pylist()]
    order = np.argsort(observation.peer_scope, kind="stable")
    starts = np.searchsorted(observation.peer_scope[order], np.arange(len(observation.ids) + 1))
    place_of = {each: row for row, each in enumerate(observation.ids.tolist())}
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    for each, at, alone in zip(scopes.ids.tolist(), scopes.position.tolist(), scopes.alone.tolist(), strict=True):
        row, key = place_of.get(each, -1), names[at - 1]
        if row >= 0 and alone in (-1, Dimension.UNITS) and (among is None or key in among):
            pair, units = rows.get(key, (-1, -1))
            rows[key] = (row, units) if alone < 0 else (pair, row)
    return {
        key: _scope_share(observation, pair, units, order[starts[pair] : starts[pair + 1]] if pair >= 0 else order[:0])
        for key, (pair, units) in rows.items()
    }


def _scope_share(observation: Observation, pair: int, units: int, reports: Int64s) -> ScopeShare:
    """Return a scope's share, given its places of messages and bytes and of units; -1 where it has none."""
    quota, share, used = (
        np.append(values[pair] if pair >= 0 else [nothing] * 2, values[units, 0] if units >= 0 else nothing)
        for values, nothing in (
            (observation.quota, UNLIMITED), (observation.share, UNLIMITED), (observation.used_by_all, 0)
        )
    )  # fmt: skip
    parts = [float(use / most) for use, most in zip(used, quota, strict=True) if most > 0]
    return ScopeShare(
        *per_second(quota),
        *per_second(np.where(quota == UNLIMITED, UNLIMITED, share)),
        observation.lease_age_ms,
        float(used[0]) / 1000,
        float(used[1]) / 1000,
        float(used[2]) / 1000,
        max(parts, default=None),
        tuple(_peer_use(observation, at, quota[:2]) for at in reports.tolist()),
    )


def _peer_use(observation: Observation, at: int, quota: Int64s) -> PeerUse:
    peer = observation.peers[int(observation.peer[at])]
    claim = np.where(quota == UNLIMITED, UNLIMITED, observation.peer_claim[at])
    used = observation.peer_used[at] / 1000
    return PeerUse(peer.name, peer.state, peer.report_age_ms, *_pair_per_second(claim), float(used[0]), float(used[1]))


def per_second(rate: Int64s) -> tuple[float | None, float | None, float | None]:
    """Return a quota of messages, bytes and units per second, `None` where there is no limit."""
    messages, size_bytes, units = (None if each == UNLIMITED else each / 1000 for each in rate.tolist())
    return messages, size_bytes, units


def _pair_per_second(rate: Int64s) -> tuple[float | None, float | None]:
    """Return the pair of rates of messages and bytes that jobs divide together, as `per_second` does."""
    messages, size_bytes = (None if each == UNLIMITED else each / 1000 for each in rate.tolist())
    return messages, size_bytes


def batch_usage(
    directory: Directory,
    report: UsageReport,
    batch: int,
    *,
    has_shares: bool | None = None,
    manifest: Manifest | None = None,
    policy: CompiledPolicy | None = None,
) -> pa.Table:
    """Return the usage of a batch, one row per scope.

    Parameters
    ----------
    has_shares
        Whether the rows have the columns of `SHARE_SCHEMA`; by default, whether the job has shares to show.
    manifest, policy
        The query's manifest, and the policy that decided the batch, if they were read already.
    """
    policy = policy_of_epoch(directory, report.epoch, report.revision) if policy is None else policy
    time = time_of_batch(directory, policy, report.epoch, batch)
    manifest = manifest or bound_manifest(directory)
    rows = usage_rows(report, policy, batch, time, manifest.job)
    observation = None if has_shares is False else read_observation(directory)
    if not has_shares and observation is None:
        return rows
    direction: Direction = "dispatch" if manifest.direction == "dispatch" else "publish"
    return with_shares(rows, {} if observation is None else scope_shares(observation, policy, direction))


def with_shares(rows: pa.Table, shares: dict[tuple[str, str], ScopeShare]) -> pa.Table:
    """Return usage rows with the columns of `SHARE_SCHEMA`."""
    found = [shares.get(key) for key in zip(rows["level"].to_pylist(), rows["scope"].to_pylist(), strict=True)]
    for each in SHARE_SCHEMA:
        if each.name == "peers":
            values = [None if share is None else [_as_dict(peer) for peer in share.peers] for share in found]
        else:
            values = [None if share is None else getattr(share, each.name) for share in found]
        rows = rows.append_column(each, pa.array(values, each.type))
    return rows.combine_chunks()


def _as_dict(peer: PeerUse) -> dict[str, object]:
    return {name: getattr(peer, name) for name in PeerUse.__slots__}
