"""The last batch of a running query: what it moved in all, by scope, and by destination.

Destinations are as the job's newest epoch has them: how fast rows go there, and whether they are available.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import newest_epoch, read_policy
from spark_throttle.control.notes import ExceptionInForce, read_next_policies
from spark_throttle.control.reports import newest_batch, report_of, time_before
from spark_throttle.control.run_fence import owner_of
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import KNOWN, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.shared_buckets import guaranteed_rates
from spark_throttle.core.shares.destinations import group_names
from spark_throttle.core.usage import ReservationCounts, ScopeUsage
from spark_throttle.files.storage import Directory
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.status import Observation, PeerStatus, read_observation
from spark_throttle.status.budget_status import BudgetStatus, budgets_by_scope
from spark_throttle.status.explanation import NO_NUMBERS, Numbers, numbers_of
from spark_throttle.status.liveness import LifeBounds, Liveness, SignWatch
from spark_throttle.status.time_status import JobTime, ScopeTime, time_of_epoch
from spark_throttle.status.usage_table import ScopeShare, per_second, reported_names, scope_shares, usage_rows


def batch_counts(control_path: str, batch: int) -> dict[str, int]:
    """Return what a batch offered, admitted, rejected and left waiting, by dimension; 0 if it moved nothing.

    Examples
    --------
    >>> counts = batch_counts("/there/is/none", 7)
    >>> list(counts)[:2], set(counts.values())
    (['offered_messages', 'offered_bytes'], {0})
    """
    report = report_of(Directory(control_path), batch)
    counts = {}
    for count in ("offered", "admitted", "rejected", "waiting"):
        for dimension in KNOWN:
            total = 0 if report is None else int(getattr(report, count)[:, dimension].sum())
            if report is not None and dimension == Dimension.MESSAGES and count in ("offered", "rejected"):
                total += report.invalid_messages
            counts[f"{count}_{dimension.name.lower()}"] = total
    return counts


@dataclass(frozen=True, slots=True)
class DestinationStatus:
    """One resource group that stands for a destination."""

    resource_group: str
    messages_per_second: float
    """The rate at which rows are admitted for it: up to an eighth more than is sent."""

    floor_messages_per_second: float
    ceiling_messages_per_second: float
    is_unavailable: bool
    """Whether its breaker is open."""

    refused_for_ms: int
    """For how long it has refused every call; 0 if it took one of the last batch."""


def destinations_of(epoch: Epoch | None, policy: CompiledPolicy | None) -> tuple[DestinationStatus, ...]:
    """Return the destinations of an epoch of `policy`; none if the policy has none."""
    if epoch is None or policy is None or policy.destinations is None or epoch.destinations is None:
        return ()
    rates, known = epoch.destinations, policy.destinations
    return tuple(
        DestinationStatus(
            name,
            int(rates.in_force_micro_per_ms[at]) / 1000,
            int(known.floor_micro_per_ms[at]) / 1000,
            int(policy.shared.rate_micro_per_ms[known.scope[at], Dimension.MESSAGES]) / 1000,
            bool(rates.is_open[at]),
            int(rates.refused_for_ms[at]),
        )
        for at, name in enumerate(group_names(policy))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeStatus(ScopeUsage):
    """One scope's numbers in the last batch; rates are its quota, `None` where it has none."""

    messages_per_second: float | None
    bytes_per_second: float | None
    units_per_second: float | None = None
    guaranteed: Numbers = NO_NUMBERS
    """What this job guarantees to the scope a second; `None` where nothing is guaranteed."""

    oldest_waiting_ms: int | None = None
    """How long its oldest waiting message has waited; `None` if none waits."""

    held_messages: int = 0
    """The waiting messages of the namespaces whose next row this quota holds back, and not a narrower one."""

    granted_messages: float | None = None
    """What its quota earned since the batch before; `None` without one."""

    granted_bytes: float | None = None
    granted_units: float | None = None
    waited_p50_ms: int = 0
    """The time within which half of the admitted messages had left; most often 0. 6 % too much at most."""

    waited_p95_ms: int = 0
    waited_p99_ms: int = 0
    shared: ScopeShare | None = None
    """This job's part, where jobs share the scope."""

    time: ScopeTime | None = None
    """What it used of its quota on processing time; `None` where the policies have no such quota."""

    budgets: tuple[BudgetStatus, ...] = ()
    """What is left of its budgets."""


@dataclass(frozen=True, slots=True)
class ExchangeStatus:
    """How this job stands with the jobs that share its quotas."""

    is_leased: bool
    """False while only the floor may be used."""

    lease_age_ms: int
    lease_left_ms: int
    as_of_ms: int
    """When the job last observed this, by its wall clock."""

    problem: str | None
    """What is wrong with the exchange; `None` if nothing is."""

    peers: tuple[PeerStatus, ...]
    detail: str
    """With how many live jobs it shares its quotas, which are not live, and whether it has only its floor; in words."""


@dataclass(frozen=True, slots=True)
class Status:
    """The last batch of a query; without scopes before the first."""

    batch_id: int
    batch_time_ms: int
    epoch: int
    revision: str
    scopes: tuple[ScopeStatus, ...]
    exchange: ExchangeStatus | None = None
    """`None` where the job shares nothing."""

    problem: str | None = None
    """Why the present content of the policy file or store is not in force; `None` if it is."""

    store_revision: int | None = None
    """The revision of the policy store that the next batch is planned with; `None` where the job follows none."""

    elapsed_ms: int | None = None
    """Time between the newest batch and the one before it, for which its numbers are; `None` if that is not known."""

    batch_age_ms: int | None = None
    """Time since the newest batch, by the wall clocks; `None` before the first."""

    life: Liveness | None = None
    """Whether the job lives; `None` before its first start."""

    time: JobTime | None = None
    """The processing time that is charged to no scope; `None` without a quota on processing time."""

    destinations: tuple[DestinationStatus, ...] = ()
    """The policy's destinations, as the newest epoch has them; none until a batch under a new policy has reported."""

    exceptions: tuple[ExceptionInForce, ...] = ()
    """The exceptions that the next batch is planned with; the first to end in front."""

    unit: str = "units"
    """What the policy calls units."""

    reservations: ReservationCounts | None = None
    """The rows that left for an estimate, and what became of others in the batch; `None` if there are and were none."""

    def per_second(self, number: int) -> float | None:
        """Return a number of the newest batch as a rate, to be compared with a quota; `None` if that is not known."""
        return None if not self.elapsed_ms else number * 1000 / self.elapsed_ms

    def of_level(self, level: str) -> dict[str, ScopeStatus]:
        """Return the scopes of a level, by name."""
        return {status.scope: status for status in self.scopes if status.level == level}


class StatusReader:
    """The status of one job, read as often as it is asked for; signs of life are compared from one time to the next.

    Parameters
    ----------
    control_path
        The job's control directory.
    clock
        The reader's clocks; by default the machine's.
    bounds
        When the job counts as silent or hanging.
    """

    def __init__(self, control_path: str, *, clock: Clock | None = None, bounds: LifeBounds | None = None) -> None:
        self._directory = Directory(control_path)
        self._clock = clock or Clock.system()
        self._signs = SignWatch(self._directory, self._clock, bounds)

    def read(self) -> Status:
        """Return the numbers of the newest batch that reported, and whether the job lives."""
        self._signs.look()
        life = None if owner_of(self._directory) is None else self._signs.liveness()
        found = _read_batch(self._directory)
        if found.batch_id < 0 or not found.scopes:
            return replace(found, life=life)
        before_ms = time_before(self._directory, found.batch_id)
        elapsed_ms = None if before_ms is None else found.batch_time_ms - before_ms
        return replace(
            found,
            elapsed_ms=elapsed_ms if elapsed_ms is not None and elapsed_ms > 0 else None,
            batch_age_ms=max(0, self._clock.wall_ms() - found.batch_time_ms),
            life=life,
        )


def read_status(control_path: str) -> Status:
    """Return the numbers of the newest batch that reported, and whether the job lives."""
    return StatusReader(control_path).read()


def _read_batch(directory: Directory) -> Status:
    batch = newest_batch(directory)
    report = report_of(directory, batch)
    observation = read_observation(directory)
    exchange = exchange_status(observation)
    policy = None if report is None else read_policy(directory, report.revision)
    followed = read_next_policies(directory)
    problem, store_revision = (followed.problem, followed.store_revision) if followed else (None, None)
    exceptions = followed.exceptions if followed else ()
    if report is None or policy is None:
        return Status(batch, 0, 0, "", (), exchange, problem, store_revision, exceptions=exceptions)
    rows = usage_rows(report, policy, batch).to_pylist()
    quotas = _quotas(policy, reported_names(report))
    manifest = read_manifest(directory)
    direction: Direction = "dispatch" if manifest is not None and manifest.direction == "dispatch" else "publish"
    shares = {} if observation is None else scope_shares(observation, policy, direction)
    newest = newest_epoch(directory)
    time = time_of_epoch(directory, newest)
    times = {} if time is None else time.by_scope()
    share = newest.share_in_force(len(policy.shared)) if newest and newest.revision == policy.revision else None
    parts = newest.parts_micro_per_ms if newest and newest.revision == policy.revision else None
    guaranteed, scopes = _guaranteed(policy, share, parts), []
    budgets = budgets_by_scope(report, policy)
    for row in rows:
        numbers = {name: row[name] for name in ScopeStatus.__dataclass_fields__ if name in row}
        messages, size_bytes, units = quotas[row["level"], row["scope"]]
        key = (row["level"], row["scope"])
        scope = ScopeStatus(
            **numbers, messages_per_second=messages, bytes_per_second=size_bytes, units_per_second=units
        )
        scope = replace(scope, guaranteed=guaranteed.get(key, scope.guaranteed))
        scopes.append(replace(scope, shared=shares.get(key), time=times.get(key), budgets=budgets.get(key, ())))
    now_ms, epoch = report.now_ms, report.epoch
    found = Status(
        batch, now_ms, epoch, policy.revision, tuple(scopes), exchange, problem, store_revision, exceptions=exceptions,
        unit=policy.unit,
        reservations=report.reservations,
    )  # fmt: skip
    if newest is not None and newest.revision == policy.revision:  # of another policy its batch has not reported yet
        found = replace(found, destinations=destinations_of(newest, policy))
    return found if time is None else replace(found, time=time.job)


def _guaranteed(
    policy: CompiledPolicy, share_micro_per_ms: Int64s | None, parts_micro_per_ms: Int64s | None
) -> dict[tuple[str, str], Numbers]:
    """Return what a job with these shares guarantees, by the levels and the names of scopes as they are shown."""
    if policy.guarantees is None:
        return {}
    shared = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    columns = zip(
        policy.guarantees.level.tolist(),
        policy.guarantees.scope.tolist(),
        policy.guarantees.rule.tolist(),
        guaranteed_rates(policy, share_micro_per_ms, parts_micro_per_ms),
        strict=True,
    )
    found = [
        (Level(level).name.lower(), shared[scope] if scope >= 0 else policy.namespace_names[rule].as_py(), rates)
        for level, scope, rule, rates in columns
    ]
    names = shown(pa.array([name for _, name, _ in found], pa.string())).to_pylist()
    return {(level, name): numbers_of(rates, 1000, rates) for (level, _, rates), name in zip(found, names, strict=True)}


def exchange_status(observation: Observation | None) -> ExchangeStatus | None:
    """Return how a job stands with those that share its quotas; `None` where it shares nothing."""
    if observation is None:
        return None
    others = [f"; {peer.name} is {peer.state}" for peer in observation.peers if peer.state != "live"]
    live = len(observation.peers) - len(others)
    floor = "" if observation.is_leased else "; it has only its floor"
    return ExchangeStatus(
        observation.is_leased,
        observation.lease_age_ms,
        observation.lease_left_ms,
        observation.as_of_ms,
        observation.problem or None,
        observation.peers,
        f"shares quotas with {live} live job{'' if live == 1 else 's'}{''.join(others)}{floor}",
    )


def _quotas(policy: CompiledPolicy, namespaces: pa.StringArray) -> dict[tuple[str, str], tuple[float | None, ...]]:
    """Return the quota of every shared scope and of these namespaces, by level and shown name."""
    names = [
        ("job", "job"),
        *(("tenant", name) for name in policy.tenant_names.to_pylist()),
        *(("resource_group", name) for name in policy.group_names.to_pylist()),
        *(("namespace", name) for name in shown(namespaces).to_pylist()),
    ]
    own = policy.namespace_limits.rate_micro_per_ms[match(namespaces, policy).rule]
    rates = [*policy.shared.rate_micro_per_ms, *own]
    return {name: per_second(rate[: Dimension.TIME]) for name, rate in zip(names, rates, strict=True)}
