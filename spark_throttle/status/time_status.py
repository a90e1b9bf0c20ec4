"""The processing time of a job: what its scopes used of their quotas, and what its policies promise of the cluster.

An epoch says what its job was charged between the epoch before it and itself (`core.epoch.SettledTime`): the time used
by every scope, that of exempt namespaces, and that which belongs to no namespace. A scope in debt waits for its
throttle time, which is KIP-124's without its bound: a debt is repaid as a whole.

A row of the usage table has what was settled before its batch was planned. An epoch that serves several batches, as
those in which no row moves, counts in the first of them only, so the rows of a scope may be summed.

A quota on processing time is a promise in percent of one core, and does not follow the number of cores, as KIP-124
argues. So the promises of all tenants may be more than the cluster has: then a tenant that keeps within its quota may
yet wait for others. Those of each level are added up on their own, because a namespace's time is charged at all of
them. Globs and the defaults promise the same to each namespace, however many there are, and are not added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.control.epochs import newest_epoch, policy_of_epoch, read_epoch, read_policy
from spark_throttle.control.notes import read_sign_of_life
from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.token_bucket import throttle_time_ms
from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import NEVER_MS, UNLIMITED, CompiledPolicy, Dimension, Int64s, Limits, OnExcess
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.errors import NotFoundError
from spark_throttle.files.storage import Directory

_TIME = Dimension.TIME


@dataclass(frozen=True, slots=True)
class ScopeTime:
    """The processing time of one scope; percent are of one core, as KIP-124's."""

    request_percentage: float | None
    """Its quota; `None` if it has none."""

    share_percentage: float | None
    """This job's part of the quota, which holds its rows back: all of it, if jobs do not share it."""

    used_percentage: float | None
    """What it used in the interval; `None` if nobody knows how long that was."""

    used_ns: int
    """The time that it was charged in the interval."""

    balance_ns: int | None
    """The time that is left of its quota, negative in debt; `None` without a quota."""

    throttle_ms: int | None
    """How long it is in debt, 0 if it is not; `None` without a quota that holds rows back, or if it is for ever."""

    ns_per_message: int | None
    """What a message took in the interval; `None` if nothing was measured."""


@dataclass(frozen=True, slots=True)
class JobTime:
    """The processing time of a job that is charged to no scope, and the interval in which all was used."""

    as_of_ms: int
    interval_ms: int
    exempt_ns: int
    """The time of exempt namespaces, which is measured and not throttled."""

    unattributed_ns: int
    """The time that belongs to no namespace."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeStatus:
    """The processing time of a job in the interval before an epoch."""

    revision: str
    """The revision of the policy."""

    job: JobTime
    scopes: pa.Table
    """The fields of `ScopeTime` by ``level`` and ``scope``: the job, the tenants and the groups, then the namespaces
    that were charged and have a quota of their own."""

    def by_scope(self) -> dict[tuple[str, str], ScopeTime]:
        """Return the time of every scope, by level and shown name."""
        rows = self.scopes.to_pylist()
        return {(row.pop("level"), row.pop("scope")): ScopeTime(**row) for row in rows}

    def of(self, levels: pa.ChunkedArray, scopes: pa.ChunkedArray) -> pa.Table:
        """Return the time of these scopes, one row for each; nulls for a scope that has none."""
        known = pc.binary_join_element_wise(self.scopes["level"], self.scopes["scope"], "/")
        at = pc.index_in(pc.binary_join_element_wise(levels, scopes, "/"), value_set=known)
        return self.scopes.take(at.combine_chunks())

    def without_used(self) -> TimeStatus:
        """Return what is left of the quotas alone, for a batch before which nothing was settled."""
        at, used = self.scopes.schema.get_field_index("used_ns"), pa.array(np.zeros(len(self.scopes), np.int64))
        job = replace(self.job, exempt_ns=0, unattributed_ns=0)
        return TimeStatus(self.revision, job, self.scopes.set_column(at, "used_ns", used))


def time_of_epoch(directory: Directory, epoch: Epoch | None) -> TimeStatus | None:
    """Return the processing time of a job by an epoch and its policy; `None` without a quota on processing time."""
    if epoch is None or epoch.time is None:
        return None
    policy = read_policy(directory, epoch.revision)
    return None if policy is None else time_status_of(epoch, policy)


def time_of_batch(directory: Directory, policy: CompiledPolicy, number: int, batch: int) -> TimeStatus | None:
    """Return the processing time that was settled before a batch of epoch `number` was planned, for the usage table.

    Parameters
    ----------
    policy
        The policy that decided the batch. If it has no quota on processing time, `None` is returned.
    """
    if not policy.has_time:
        return None
    # Runs that were killed may have left epochs of the same number, made under policies that were in force then.
    files = [name for name in reversed(directory.names("epochs")) if name.startswith(f"{number:012d}-")]
    epochs = (read_epoch(directory, file) for file in files)
    epoch = next((each for each in epochs if each is not None and each.revision == policy.revision), None)
    found = None if epoch is None else time_status_of(epoch, policy)
    if epoch is None or found is None:
        return None
    return found if batch == epoch.settled_batch + 1 else found.without_used()


def time_status_of(epoch: Epoch, policy: CompiledPolicy) -> TimeStatus | None:
    """Return the processing time of an epoch of `policy`; `None` if the policy has no quota on processing time."""
    if epoch.time is None:
        return None
    settled, measured = epoch.time, epoch.time.measured
    rules = match(measured.names, policy).own_limits(policy)
    levels = ["job", *["tenant"] * len(policy.tenant_names), *["resource_group"] * len(policy.group_names)]
    names = pa.concat_arrays([pa.array(["job"]), policy.tenant_names, policy.group_names])
    share = under_share(policy, epoch.share_micro_per_ms).shared
    shared = _Rows(share, settled.shared_left_ns, settled.shared_ns, settled.shared_messages)
    at = np.flatnonzero(rules.is_limited[:, _TIME])  # the others are entered for their price
    rules = rules.take(at)
    own = _Rows(rules, settled.own_left_ns[at], measured.measured_ns[at], measured.messages[at])
    rows = pa.concat_tables([
        shared.named(levels, names, policy.shared, settled.interval_ms),
        own.named(["namespace"] * len(at), shown(measured.names.take(pa.array(at))), rules, settled.interval_ms),
    ]).combine_chunks()  # fmt: skip
    job = JobTime(epoch.paid_ms, settled.interval_ms, settled.exempt_ns, settled.unattributed_ns)
    return TimeStatus(policy.revision, job, rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What is known of some scopes."""

    limits: Limits
    """The job's parts of the quotas."""

    left_ns: Int64s
    used_ns: Int64s
    messages: Int64s

    def named(self, levels: list[str], names: pa.StringArray, quotas: Limits, interval_ms: int) -> pa.Table:
        """Return the fields of `ScopeTime`, with the level and the name before them."""
        rate = self.limits.rate_micro_per_ms[:, _TIME]
        throttle_ms, is_free = throttle_time_ms(self.left_ns, rate), rate == UNLIMITED
        is_open = is_free | (self.limits.on_excess == OnExcess.OBSERVE) | (throttle_ms >= NEVER_MS)
        is_told = (self.messages > 0) & (self.used_ns > 0)
        used_percent = self.used_ns / (max(interval_ms, 1) * NS_PER_MS_OF_A_PERCENT)
        return pa.table({
            "level": pa.array(levels, pa.string()),
            "scope": names,
            "request_percentage": _percents(quotas.rate_micro_per_ms[:, _TIME]),
            "share_percentage": _percents(rate),
            "used_percentage": pa.array(used_percent, mask=np.full(len(rate), interval_ms == 0)),
            "used_ns": pa.array(self.used_ns),
            "balance_ns": pa.array(self.left_ns, mask=is_free),
            "throttle_ms": pa.array(throttle_ms, mask=is_open),
            "ns_per_message": pa.array(self.used_ns // np.maximum(self.messages, 1), mask=~is_told),
        })  # fmt: skip


def _percents(rate_ns_per_ms: Int64s) -> pa.DoubleArray:
    return pa.array(rate_ns_per_ms / NS_PER_MS_OF_A_PERCENT, mask=rate_ns_per_ms == UNLIMITED)


_PERCENT_OF_A_CORE: Final = 100
LEVELS: Final = ("job", "tenant", "resource_group", "namespace")


@dataclass(frozen=True, slots=True)
class LevelPromises:
    """The quotas on processing time of one level, in percent of one core."""

    level: str
    percents: tuple[tuple[str, Decimal], ...]
    """The scopes with a quota, and their quotas."""

    @property
    def promised_percent(self) -> Decimal:
        """The sum of all quotas."""
        return sum((percent for _, percent in self.percents), Decimal(0))


@dataclass(frozen=True, slots=True)
class PromisedTime:
    """The promises of a job's policies beside the cores of its cluster."""

    cores: int
    levels: tuple[LevelPromises, ...]
    open_tenants: int
    """The number of tenants that the policies name without such a quota."""

    @property
    def capacity_percent(self) -> int:
        """The time of all cores, in percent of one."""
        return self.cores * _PERCENT_OF_A_CORE

    @property
    def tenants(self) -> LevelPromises:
        """The tenants' quotas."""
        return self.levels[LEVELS.index("tenant")]

    def warnings(self) -> Iterator[str]:
        """Yield what is promised and cannot be given."""
        has = f"the cluster has {self.capacity_percent} % ({self.cores} {'core' if self.cores == 1 else 'cores'})"
        remedy = "lower them, or add cores"
        for each in self.levels:
            word, promised = each.level.replace("_", " "), each.promised_percent
            if promised > self.capacity_percent and len(each.percents) > 1:
                yield f"the quotas of {len(each.percents)} {word}s promise {_text(promised)} %, and {has}: {remedy}"
            for name, percent in each.percents:
                if percent > self.capacity_percent:
                    who = "the job" if each.level == "job" else f"the {word} {name}"
                    yield f"the quota of {who} is {_text(percent)} %, and {has}: it is never reached; lower it"
        whole = self.levels[LEVELS.index("job")].percents
        if whole and self.tenants.promised_percent > whole[0][1]:
            yield (
                f"the quotas of {len(self.tenants.percents)} tenants promise {_text(self.tenants.promised_percent)} %, "
                f"and the job's own quota is {_text(whole[0][1])} %: lower them, or raise it"
            )


def promised_time(control_path: str) -> PromisedTime:
    """Return what a running job's policies promise of its cluster's cores.

    Raises
    ------
    NotFoundError
        If no job has planned a batch there, or if it was begun by a release that does not tell its cores.
    """
    directory = Directory(control_path)
    sign, epoch = read_sign_of_life(directory), newest_epoch(directory)
    if epoch is None:
        raise NotFoundError("job that has planned a batch in", control_path, "; give <checkpoint>/throttle of a query")
    policy = policy_of_epoch(directory, epoch.number, epoch.revision)
    if sign is None or sign.cores is None:
        raise NotFoundError(
            "number of cores of the job", control_path, "; restart it with this release, or give --cores"
        )
    tenants = _promises("tenant", policy.tenant_names, _rates(policy, 1, len(policy.tenant_names)))
    levels = (
        _promises("job", pa.array(["job"]), _rates(policy, 0, 1)),
        tenants,
        _promises(
            "resource_group",
            policy.group_names,
            _rates(policy, 1 + len(policy.tenant_names), len(policy.group_names)),
        ),
        _promises(
            "namespace",
            shown(policy.namespace_names),
            policy.namespace_limits.rate_micro_per_ms[: len(policy.namespace_names), Dimension.TIME],
        ),
    )
    return PromisedTime(sign.cores, levels, len(policy.tenant_names) - len(tenants.percents))


def _rates(policy: CompiledPolicy, first: int, count: int) -> Int64s:
    return policy.shared.rate_micro_per_ms[first : first + count, Dimension.TIME]


def _promises(level: str, names: pa.StringArray, rates: Int64s) -> LevelPromises:
    pairs = zip(names.to_pylist(), rates.tolist(), strict=True)
    return LevelPromises(
        level, tuple((name, Decimal(rate) / NS_PER_MS_OF_A_PERCENT) for name, rate in pairs if rate != UNLIMITED)
    )


def _text(percent: Decimal) -> str:
    return f"{percent.normalize():f}"
