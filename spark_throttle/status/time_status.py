"""What the scopes of a job used of their quotas on processing time, by an epoch.

An epoch says what its job was charged between the epoch before it and itself (`core.epoch.SettledTime`): the time used
by every scope, that of exempt namespaces, and that which belongs to no namespace. A scope in debt waits for its
throttle time, which is KIP-124's without its bound: a debt is repaid as a whole.

A row of the usage table has what was settled before its batch was planned. An epoch that serves several batches, as
those in which no row moves, counts in the first of them only, so the rows of a scope may be summed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.control.epochs import read_epoch, read_policy
from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.token_bucket import throttle_time_ms
from spark_throttle.core.names.matching import match
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import NEVER_MS, UNLIMITED, CompiledPolicy, Dimension, Int64s, Limits, OnExcess
from spark_throttle.core.shared_buckets import under_share
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
    rules = policy.namespace_limits.take(match(measured.names, policy).rule)
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
