"""An epoch: everything that batches take from the control plane until the next one. It is a stored record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.limits.message_limits import MessageLimits
from spark_throttle.core.limits.paying import ClockReading, PayingTime
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Int64s
from spark_throttle.core.shares.destinations import DestinationRates
from spark_throttle.core.state import ControlRow
from spark_throttle.core.time_quota.time_ledger import TimeLedger
from spark_throttle.core.undelivered import Undelivered


@dataclass(frozen=True, slots=True, eq=False)
class EpochTime:
    """The part of an epoch that quotas on processing time add."""

    ledger: TimeLedger
    limits: MessageLimits
    """What the ledger lets through; its namespaces are those of the ledger."""

    share_ns_per_ms: Int64s | None = None
    """Shape (scopes,): this job's shares of processing time; `None` if it shares none with other jobs."""


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
    """Shape (scopes, 2): this job's shares of the rates of the shared scopes; `None` if it shares no quota with other
    jobs."""

    earns_until_ms: Int64s | None = None
    """As in `state.ControlRow`."""

    time: EpochTime | None = None
    """What is left of the policy's quotas on processing time, and what it lets through; `None` if it has none."""

    destinations: DestinationRates | None = None
    """The rates of destinations that push back; `None` if the policy has none."""

    undelivered: Undelivered | None = None
    """What was not delivered of the batch before (`left_rows`); `None` if nothing of it could come back."""

    @property
    def may_return(self) -> bool:
        """Whether rows that leave in its batches may come back: what became of them is said with the next epoch."""
        return self.destinations is not None or self.undelivered is not None

    def share_in_force(self, scopes: int) -> Int64s | None:
        """Return the shares of the shared scopes' rates, none higher than its destination's rate."""
        if self.destinations is None:
            return self.share_micro_per_ms
        return self.destinations.share(self.share_micro_per_ms, scopes)

    @property
    def shares(self) -> Int64s | None:
        """Shape (scopes, 3): this job's shares of messages, bytes and processing time; `None` if it shares no quota."""
        share = self.share_micro_per_ms
        if share is None:
            return None
        time = None if self.time is None else self.time.share_ns_per_ms
        return np.column_stack([share, np.full(len(share), UNLIMITED, dtype=np.int64) if time is None else time])

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
            None if self.time is None else self.time.limits.needed(), undelivered=self.undelivered,
            unavailable=None if self.destinations is None else self.destinations.given_up(policy),
        )  # fmt: skip
