"""A query as the control plane sees it: a clock that is set, policies that are set, batches that report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.feedback import write_reports
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.run_fence import RunFence
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.core.codec import Epoch, pack_usage
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import MICRO, NEVER_MS, CompiledPolicy
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import compile_policy, revision_of
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.sharing.exchanges.exchange import Exchange
from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing

START_MS = 1_760_000_000_000
SHARDS = 2

Usage = dict[str, tuple[int, int]]
"""Admitted messages and bytes of each namespace."""


def snapshot(document: dict[str, object]) -> PolicySnapshot:
    parsed = PolicyDocument.model_validate(document)
    return PolicySnapshot(parsed, revision_of(parsed), None)


def per_second(messages: float, **more: object) -> dict[str, object]:
    return {"publish": {"messages_per_second": messages, "burst_seconds": 1, **more}}


QUOTAS = {"job": per_second(100), "resource_groups": {"gold": per_second(40)}, "defaults": {"resource_group": "gold"}}


@dataclass
class FakePolicies:
    snapshot: PolicySnapshot = field(default_factory=lambda: snapshot(QUOTAS))
    asked: int = 0

    def current(self) -> PolicySnapshot:
        self.asked += 1
        return self.snapshot

    def set(self, document: dict[str, object]) -> None:
        self.snapshot = snapshot(document)


@dataclass
class Query:
    """A query as the control plane sees it: a clock, policies, batches that report."""

    path: Path
    policies: FakePolicies = field(default_factory=FakePolicies)
    now_ms: int = START_MS
    shift_ms: int = 0
    """How far the wall clock is ahead."""

    name: EpochName = NO_EPOCH
    next_batch: int = 0
    batches_retained: int = 100
    is_fenced: bool = False
    """Whether each of its runs takes the control directory over."""

    plane: ControlPlane = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def directory(self) -> Directory:
        return Directory(str(self.path))

    def restart(self) -> None:
        self.open_plane(None)

    def open_plane(self, shared: SharedQuotas | None) -> None:
        self.plane = ControlPlane(
            self.directory,
            self.policies,
            "publish",
            SHARDS,
            Clock(lambda: self.now_ms + self.shift_ms, lambda: self.now_ms),
            shared,
            batches_retained=self.batches_retained,
            fence=RunFence(self.directory) if self.is_fenced else None,
        )

    def open_sharing(
        self, settings: ShareSettings, exchange: Exchange, incarnation: int = 1, run: int = 0
    ) -> LeaseKeeper:
        """Open a plane that shares its quotas, and return the keeper of its lease."""
        sharing = Sharing(self.path.name, self.path.name, incarnation, settings, run)
        keeper = LeaseKeeper(sharing, exchange, Clocks(lambda: self.now_ms, lambda: self.now_ms))
        self.open_plane(SharedQuotas(keeper, "publish"))
        return keeper

    def trigger(self, after_ms: int = 1_000) -> EpochName:
        self.now_ms += after_ms
        self.name = self.plane.next_epoch(self.name)
        return self.name

    @property
    def epoch(self) -> Epoch:
        return self.plane.epochs.load(self.name)

    @property
    def policy(self) -> CompiledPolicy:
        return compile_policy(self.policies.snapshot.document, "publish")

    def report(
        self, shard: int, admitted: Usage | None = None, *, waiting: int = 0, next_event_ms: int = NEVER_MS
    ) -> UsageReport:
        names = pa.array(list(admitted or {}), pa.string())
        found = match(names, self.policy)
        used = np.array(list((admitted or {}).values()), dtype=np.int64).reshape(-1, 2)
        nothing = np.zeros(len(names), dtype=np.int64)
        left = np.stack([nothing + waiting, nothing], axis=1)
        return UsageReport(
            shard, self.name.number, self.epoch.revision, self.now_ms, names, found.tenant, found.group, nothing + 1,
            used, used, 0 * used, left, used + left, nothing, nothing, next_event_ms,
        )  # fmt: skip

    def batch(self, *reports: UsageReport) -> None:
        """Run a batch: every shard reports, unless only some are given."""
        write_reports(self.directory, self.next_batch, [pack_usage(report) for report in reports])
        self.next_batch += 1

    def quiet_batch(self) -> None:
        self.batch(*(self.report(shard) for shard in range(SHARDS)))

    def tokens(self, scope: int = 0) -> float:
        """Return the messages that a shared scope's bucket held when the epoch was made."""
        return float(self.epoch.buckets.balance_micro[scope, 0]) / MICRO
