"""A query as the control plane sees it: a clock that is set, policies that are set, batches that report.

What a batch admits is told by the test. The shared buckets are the core's own, so reports hold the balances that a
decider would leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import write_report
from spark_throttle.control.run_fence import RunFence
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.names.matching import match
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, NEVER_MS, CompiledPolicy, Dimension
from spark_throttle.core.state import DeciderState
from spark_throttle.core.usage import UsageReport, by_scope, pack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.sharing.exchange import Exchange
from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing

START_MS = 1_760_000_000_000

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
    states: list[tuple[DeciderState, CompiledPolicy]] = field(default_factory=list)
    """What every batch left, and its policy."""

    batches_retained: int = 100
    is_fenced: bool = False
    """Whether each of its runs takes the control directory over."""

    takes_costs: bool = False
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
            Clock(lambda: self.now_ms + self.shift_ms, lambda: self.now_ms),
            shared,
            batches_retained=self.batches_retained,
            fence=RunFence(self.directory) if self.is_fenced else None,
            takes_costs=self.takes_costs,
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

    def decider(self) -> DeciderState:
        """Return the decider's state in a batch that is run now, before it admits anything."""
        epoch, batch_ms = self.epoch, self.now_ms + self.shift_ms
        policy = self.plane.epochs.policy(epoch)
        row = epoch.control_row(None, policy)
        if self.next_batch == 0:
            now_ms = row.paying.of_batch(batch_ms, is_new=True, advanced_to_ms=0)
            return replace(
                under_epoch(
                    DeciderState.initial(policy, row.share_micro_per_ms, now_ms=now_ms), row, policy, policy,
                    now_ms=now_ms,
                ),
                advanced_to_ms=now_ms,
            )  # fmt: skip
        state, before = self.states[self.next_batch - 1]
        is_new = state.epoch != epoch.number
        now_ms = row.paying.of_batch(batch_ms, is_new=is_new, advanced_to_ms=state.advanced_to_ms)
        if is_new:
            before = policy if before.revision == policy.revision else before
            state = under_epoch(state, row, before, policy, now_ms=now_ms)
        shared = state.shared.refilled(policy, now_ms=now_ms)
        return replace(state, advanced_to_ms=now_ms, shared=shared)

    def report(
        self,
        admitted: Usage | None = None,
        *,
        waiting: int = 0,
        due_ms: int = NEVER_MS,
        due_with_quotas_ms: int | None = None,
    ) -> UsageReport:
        """Return the report of a batch that is run now."""
        names = pa.array(list(admitted or {}), pa.string())
        policy, state = self.plane.epochs.policy(self.epoch), self.decider()
        found = match(names, policy)
        used = np.array([(*each, 0, 0) for each in (admitted or {}).values()], dtype=np.int64).reshape(
            -1, len(Dimension)
        )
        nothing = np.zeros(len(names), dtype=np.int64)
        left = np.stack([nothing + waiting, *[nothing] * (len(Dimension) - 1)], axis=1)
        taken = by_scope(found.shared_scope, used, len(policy.shared))
        shared = state.shared.debited(taken, policy, MIN_BALANCE_MICRO)
        return UsageReport(
            self.name.number, self.epoch.revision, self.now_ms + self.shift_ms, names, found.tenant, found.group,
            nothing + 1, used, used, 0 * used, left, used + left, nothing, nothing, shared.balance_micro, due_ms,
            due_ms if due_with_quotas_ms is None else due_with_quotas_ms, due_ms, paid_ms=state.advanced_to_ms,
        )  # fmt: skip

    def batch(self, report: UsageReport | None = None) -> None:
        """Run a batch; without a report, no row reaches the decider."""
        left = self.states[-1:]
        if report is not None:
            state, policy = self.decider(), self.plane.epochs.policy(self.epoch)
            left = [(replace(state, shared=replace(state.shared, balance_micro=report.shared_micro)), policy)]
            write_report(self.directory, self.next_batch, pack_usage(report))
        self.states[self.next_batch :] = left
        self.next_batch += 1

    def busy_batch(self, admitted: int = 1, waiting: int = 0, due_ms: int = NEVER_MS) -> None:
        """Run a batch that admits messages of one namespace."""
        self.batch(self.report({"a/x": (admitted, admitted)}, waiting=waiting, due_ms=due_ms))

    def quiet_batch(self) -> None:
        """Run a batch in which nothing moves."""
        self.batch(self.report())

    def put_back(self, batches: int, name: EpochName) -> None:
        """Put the checkpoint back to what it was after so many batches, the last of them of the epoch `name`."""
        self.next_batch, self.name = batches, name
        self.restart()

    def tokens(self, scope: int = 0) -> float:
        """Return the messages that a shared scope's bucket holds in a batch that is run now."""
        return float(self.decider().shared.balance_micro[scope, 0]) / MICRO
