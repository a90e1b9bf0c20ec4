"""A job without Spark: the real control plane over a store, and batches that the real kernel decides.

Its control directory is that of a running query, so whatever reads one can be tried on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from spark_throttle.checkpoint.manifest import bind
from spark_throttle.control.charges import write_charges
from spark_throttle.control.clock import Clock
from spark_throttle.control.demand import SharedScopes
from spark_throttle.control.epochs import NO_EPOCH, EpochName
from spark_throttle.control.notes import Pulse
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import write_report
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Verdict
from spark_throttle.core.state import DeciderState
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import QueueOverflowError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.status import Observation, PeerStatus, write_observation
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.store import PolicyStore
from tests.oracle.worlds import make_arrivals

NS_PER_MS = 1_000_000
NOTHING: Mapping[str, int] = {}

Decided: TypeAlias = tuple[str, int, int]
"""A row's verdict, reason and throttle time."""


@dataclass
class MadeUpJob:
    """A job that follows a store; `batch` runs one batch, a second after the one before."""

    control_path: Path
    store: PolicyStore
    now_ms: int = 1_795_266_764_000
    epoch: EpochName = NO_EPOCH
    number: int = -1
    state: DeciderState | None = None
    policy: CompiledPolicy | None = None
    direction: Direction = "publish"
    decided: list[Decided] = field(default_factory=list)
    """What became of every row, over all batches; ends with a `QueueOverflowError` if one was raised."""

    plane: ControlPlane = field(init=False)
    pulse: Pulse = field(init=False)
    """Gives a sign of life when a test says so (`beat`)."""

    def __post_init__(self) -> None:
        self.directory = Directory(str(self.control_path))
        bind(self.directory, direction=self.direction)
        policies = FollowedStore(self.store.location, open_at=lambda _: self.store)
        fence = RunFence(self.directory)
        self.pulse = Pulse(self.directory, fence, self.clock, cores=2)
        self.plane = ControlPlane(self.directory, policies, self.direction, self.clock, fence=fence, pulse=self.pulse)

    @property
    def clock(self) -> Clock:
        """The clocks of the job's machine."""
        return Clock(lambda: self.now_ms, lambda: self.now_ms, "the boot of a test")

    def batch(
        self, offered: Mapping[str, int], *, size_bytes: int = 1000, seconds: float = 1,
        used_ms: Mapping[str, int] = NOTHING, unattributed_ms: int = 0, units: int = 0, identity: int = 0,
    ) -> int:  # fmt: skip
        """Offer so many messages of each namespace, and return the batch's number.

        Parameters
        ----------
        used_ms
            The processing time that the batch is charged, by namespace.
        units
            What each message counts.
        identity
            By what all messages are reserved; 0 if they are not.
        """
        self.now_ms += int(1000 * seconds)
        end = self.plane.next_epoch(self.epoch)
        before, after = self.policy, self.plane.epochs.policy_for(self.epoch, end) or self.policy
        assert after is not None
        row = self.plane.epochs.load(end).control_row(None, after)
        if self.state is None or before is None:
            self.state, before = DeciderState.initial(after, row.share_micro_per_ms, now_ms=self.now_ms), after
        if end != self.epoch:
            self.state = under_epoch(self.state, row, before, after, now_ms=self.now_ms)
        self.policy, self.epoch, self.number = after, end, self.number + 1
        rows = [(name, size_bytes, units) for name, count in offered.items() for _ in range(count)]
        try:
            arrivals = replace(make_arrivals(rows), identity=np.full((len(rows), 2), identity))
            plan = plan_admission(self.state, arrivals, after, now_ms=self.now_ms)
        except QueueOverflowError:
            self.decided.append(("overflow", -1, -1))
            return self.number
        decisions = plan.decisions
        verdicts = zip(
            decisions.verdict.tolist(), decisions.reason.tolist(), decisions.throttle_time_ms.tolist(), strict=True
        )
        self.decided += [(Verdict(verdict).name, reason, wait_ms) for verdict, reason, wait_ms in verdicts]
        self.state = plan.state
        if used_ms or unattributed_ms:
            charges = {name: time_ms * NS_PER_MS for name, time_ms in used_ms.items()}
            charged = TimeCharges.of(charges, unattributed_ns=unattributed_ms * NS_PER_MS)
            write_charges(self.directory, self.number, charged, part="all")
        write_report(self.directory, self.number, pack_usage(plan.usage))
        return self.number

    def share_with(self, *peers: PeerStatus, problem: str = "", is_leased: bool = True) -> None:
        """Note that the job shares its quotas: each job has an equal part, and they use half of it all."""
        assert self.policy is not None
        scopes = SharedScopes.of(self.policy, self.direction)
        quota = scopes.taken(self.policy.shared.rate_micro_per_ms)
        share = np.where(quota == UNLIMITED, UNLIMITED, quota // (1 + len(peers)))
        none, no_pairs = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
        write_observation(
            self.directory,
            Observation(
                scopes.ids, quota, share, np.maximum(quota, 0) // 2, peers, none, none, no_pairs, no_pairs, is_leased,
                1_000, 29_000, self.now_ms, problem,
            ),
        )  # fmt: skip
