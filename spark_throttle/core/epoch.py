"""An epoch: everything that batches take from the control plane until the next one. It is a stored record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_throttle.core.limits.budgets import BudgetClaims, CalendarWindows
from spark_throttle.core.limits.token_bucket import ClockReading, PayingTime, full
from spark_throttle.core.measured_time import MeasuredTime, time_by_scope
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import CompiledPolicy, Dimension, Int64s
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.shares.destinations import DestinationRates
from spark_throttle.core.state import ControlRow
from spark_throttle.core.time_charges import TimeCharges, sums_of_time
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.core.usage import UsageReport, admitted_messages


@dataclass(frozen=True, slots=True, eq=False)
class SettledTime:
    """The processing time of the batches that an epoch settles."""

    measured: MeasuredTime
    own_left_ns: Int64s
    """What is left of the own quotas of the namespaces of `measured` when the epoch is made; it decides nothing."""

    shared_ns: Int64s
    """Shape (scopes,): what was used in every shared scope of the epoch's policy, by a quota or not."""

    shared_messages: Int64s
    """Shape (scopes,): the messages that were admitted there."""

    shared_left_ns: Int64s
    """Shape (scopes,): what is left of their quotas when the epoch is made; it decides nothing."""

    exempt_ns: int
    """The time of exempt namespaces, which is charged to no scope."""

    unattributed_ns: int
    """The time that belongs to no namespace."""

    interval_ms: int
    """The time since the previous epoch."""

    @classmethod
    def none(cls, policy: CompiledPolicy) -> SettledTime:
        """Return what is settled before the first batch."""
        shared = policy.shared
        left = full(shared.rate_micro_per_ms, shared.burst_micro)[:, Dimension.TIME]
        nothing = np.zeros_like(left)
        return cls(MeasuredTime.none(), nothing[:0], nothing, nothing, left, 0, 0, 0)

    @classmethod
    def of(
        cls,
        charges: TimeCharges,
        reports: Sequence[UsageReport],
        before: CompiledPolicy,
        after: CompiledPolicy,
        *,
        since_ms: int,
        now_ms: int,
    ) -> SettledTime:
        """Return what batches of the policy `before` used since the last epoch, for one of the policy `after`.

        What is left of shared quotas is not known here.
        """
        is_exempt = match(charges.names, before).is_exempt
        exempt_ns = int(sums_of_time(is_exempt.astype(np.int64), charges.time_ns, 2)[1])
        shared_ns = time_by_scope(charges.names, charges.time_ns, after)
        measured = MeasuredTime.of(charges, reports, before)
        return cls(
            measured, measured.left_ns(reports, before, now_ms=now_ms), shared_ns,
            time_by_scope(*admitted_messages(reports), after), np.zeros_like(shared_ns),
            exempt_ns, charges.unattributed_ns, max(0, now_ms - since_ms),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """Everything that batches take from the control plane until the next epoch."""

    number: int
    revision: str
    paid_ms: int
    """The paying time at which the epoch was made."""

    reading: ClockReading
    """The clocks' reading at that time."""

    settled_batch: int
    """The last batch whose report is accounted for; -1 before the first."""

    share_micro_per_ms: Int64s | None = None
    """Shape (scopes, 4): this job's shares of the rates of the shared scopes; `None` if it shares no quota with other
    jobs."""

    earns_until_ms: Int64s | None = None
    """As in `state.ControlRow`."""

    time: SettledTime | None = None
    """The processing time of the batches that it settles; `None` if its policy has no quota on it."""

    destinations: DestinationRates | None = None
    """The rates of destinations that push back; `None` if the policy has none."""

    undelivered: Undelivered | None = None
    """What was not delivered of the batch before (`left_rows`); `None` if nothing of it could come back."""

    windows: CalendarWindows | None = None
    """As in `state.ControlRow`."""

    claims: BudgetClaims | None = None
    """As in `state.ControlRow`."""

    parts_micro_per_ms: Int64s | None = None
    """As in `state.ControlRow`."""

    costs: LateCosts | None = None
    """As in `state.ControlRow`, of the batches that it settles."""

    @property
    def may_return(self) -> bool:
        """Whether rows that leave in its batches may come back: what became of them is said with the next epoch."""
        return self.destinations is not None or self.undelivered is not None

    def share_in_force(self, scopes: int) -> Int64s | None:
        """Return the shares of the shared scopes' rates, none higher than its destination's rate."""
        if self.destinations is None:
            return self.share_micro_per_ms
        return self.destinations.share(self.share_micro_per_ms, scopes)

    def control_row(self, packed: bytes | None, policy: CompiledPolicy) -> ControlRow:
        """Return the row that the epoch gives the decider.

        Parameters
        ----------
        packed
            The policy, packed; `None` if the decider already has it.
        """
        return ControlRow(
            self.number, packed, PayingTime(self.paid_ms, self.reading.wall_ms),
            self.share_in_force(len(policy.shared)), self.earns_until_ms,
            None if self.time is None else self.time.measured, self.undelivered,
            None if self.destinations is None else self.destinations.given_up(policy), self.windows,
            self.claims, self.parts_micro_per_ms, self.costs,
        )  # fmt: skip
