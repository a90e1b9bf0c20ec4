"""The share of each scope, for `status` and the usage table: this job's part, the whole, the other jobs' reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.manifest import Manifest, bound_manifest
from spark_throttle.control.demand import SharedScopes
from spark_throttle.control.epochs import policy_of_epoch
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.status import Observation, read_observation
from spark_throttle.status.time_status import time_of_batch
from spark_throttle.status.usage_table import usage_rows


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
    share_messages_per_second: float | None
    share_bytes_per_second: float | None
    lease_age_ms: int
    """Time since this job's last report that the others are known to have seen; -1 while only the floor is left."""

    used_by_all_messages_per_second: float
    used_by_all_bytes_per_second: float
    utilisation: float | None
    """The part of the quota that all jobs use together, in messages or in bytes, whichever is larger."""

    peers: tuple[PeerUse, ...]


SHARE_SCHEMA = pa.schema([
    *((name, pa.float64()) for name in (
        "quota_messages_per_second", "quota_bytes_per_second", "share_messages_per_second", "share_bytes_per_second",
    )),
    ("lease_age_ms", pa.int64()),
    *((name, pa.float64()) for name in (
        "used_by_all_messages_per_second", "used_by_all_bytes_per_second", "utilisation",
    )),
    ("peers", pa.list_(pa.struct([
        ("job", pa.string()), ("state", pa.string()), ("report_age_ms", pa.int64()),
        ("claimed_messages_per_second", pa.float64()), ("claimed_bytes_per_second", pa.float64()),
        ("used_messages_per_second", pa.float64()), ("used_bytes_per_second", pa.float64()),
    ]))),
])  # fmt: skip
"""The columns that a job adds to `usage_table.USAGE_SCHEMA` if it shares quotas; null where a scope is not shared."""


def scope_shares(
    observation: Observation, policy: CompiledPolicy, direction: Direction
) -> dict[tuple[str, str], ScopeShare]:
    """Return the shares by level and name."""
    scopes = SharedScopes.of(policy, direction)
    names = [("tenant", name) for name in policy.tenant_names.to_pylist()]
    names += [("resource_group", name) for name in policy.group_names.to_pylist()]
    tokens = np.flatnonzero(~scopes.is_time)
    name_of = {int(scopes.ids[at]): names[scopes.position[at] - 1] for at in tokens}
    order = np.argsort(observation.peer_scope, kind="stable")
    starts = np.searchsorted(observation.peer_scope[order], np.arange(len(observation.ids) + 1))
    return {
        name_of[each]: _scope_share(observation, row, order[starts[row] : starts[row + 1]])
        for row, each in enumerate(observation.ids.tolist())
        if each in name_of
    }


def _scope_share(observation: Observation, row: int, reports: Int64s) -> ScopeShare:
    quota, used = observation.quota[row], observation.used_by_all[row]
    parts = [float(use / most) for use, most in zip(used, quota, strict=True) if most > 0]
    share = np.where(quota == UNLIMITED, UNLIMITED, observation.share[row])
    return ScopeShare(
        *per_second(quota),
        *per_second(share),
        observation.lease_age_ms,
        float(used[0]) / 1000,
        float(used[1]) / 1000,
        max(parts, default=None),
        tuple(_peer_use(observation, at, quota) for at in reports.tolist()),
    )


def _peer_use(observation: Observation, at: int, quota: Int64s) -> PeerUse:
    peer = observation.peers[int(observation.peer[at])]
    claim = np.where(quota == UNLIMITED, UNLIMITED, observation.peer_claim[at])
    used = observation.peer_used[at] / 1000
    return PeerUse(peer.name, peer.state, peer.report_age_ms, *per_second(claim), float(used[0]), float(used[1]))


def per_second(rate: Int64s) -> tuple[float | None, float | None]:
    """Return a quota of messages and bytes per second, `None` where there is no limit."""
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
    rows = usage_rows(report, policy, batch, time)
    observation = None if has_shares is False else read_observation(directory)
    if not has_shares and observation is None:
        return rows
    manifest = manifest or bound_manifest(directory)
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
