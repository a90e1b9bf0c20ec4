"""Quotas that several jobs share, as the control plane of one of them sees them: rates by scope, for its epochs.

Times are paying time (`clock`), which goes on as the steady clock that measures leases does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_throttle.control.demand import DemandMeter
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.lease_keeper import LeaseKeeper
from spark_throttle.sharing.sharing import Share

_NOTABLE_PART = 10
"""A share that grew by a tenth of the quota makes an epoch due, though nothing waits for it."""


class SharedQuotas:
    """Tells the exchange what a job wants, and the job's epochs what it may use.

    Parameters
    ----------
    keeper
        Of the job's lease; its thread may run meanwhile.
    """

    def __init__(self, keeper: LeaseKeeper, direction: Direction) -> None:
        settings = keeper.settings
        self._keeper = keeper
        self._meter = DemandMeter(direction, settings.interval_ms, settings.interval_ms * settings.report_every)
        self._measured_ms = -1
        self._is_new = True
        self._pinned: tuple[str, int, int] | None = None
        self._pinning: tuple[Share, int, int] | None = None

    def add(self, reports: Sequence[UsageReport], *, now_ms: int) -> None:
        """Take in the reports of a batch."""
        self._meter.add(reports, now_ms=now_ms)
        self._is_new = True

    def rate(self, policy: CompiledPolicy, *, now_ms: int) -> Int64s:
        """Return what the job may use of every shared scope now, shape (scopes, 2): of what it does not share, all."""
        if self._is_new or now_ms - self._measured_ms >= self._keeper.settings.interval_ms:
            self._keeper.measure(self._meter.measure(policy, now_ms=now_ms))
            self._measured_ms, self._is_new = now_ms, False
        return self._by_scope(policy, self._keeper.share())

    def is_due(self, policy: CompiledPolicy, pinned: Int64s, *, now_ms: int, is_waiting: bool) -> bool:
        """Return whether the rates differ from those of an epoch so that another is needed.

        Others wait for what shrinks. What grows is needed by rows that wait, or, if it is much, by those that may come.
        """
        rate = self.rate(policy, now_ms=now_ms)
        if (rate < pinned).any():
            return True
        least = np.where(is_waiting, 0, np.maximum(policy.shared.rate_micro_per_ms // _NOTABLE_PART, 0))
        return bool((rate - pinned > least).any())

    def begin_epoch(self, policy: CompiledPolicy, *, now_ms: int) -> Int64s:
        """Return the rates to pin in an epoch; from now on the job counts as using them."""
        self.rate(policy, now_ms=now_ms)
        share, steady_ms = self._keeper.begin_pin()
        self._pinning = share, steady_ms, now_ms
        return self._by_scope(policy, share)

    def end_epoch(self, file: str) -> None:
        """Note that the epoch is written, so that its rates are all that the job uses."""
        if self._pinning is not None:
            share, steady_ms, now_ms = self._pinning
            self._pinned = file, steady_ms, now_ms
            self._keeper.end_pin(share)

    def paid_until_ms(self, file: str, *, now_ms: int) -> int:
        """Return up to when, of paying time, an epoch's rates have been leased since it was written.

        For an epoch of another process, 0: that process may have pinned, and told the others, less since.
        """
        if self._pinned is None or self._pinned[0] != file:
            return 0
        _, steady_ms, pinned_ms = self._pinned
        return min(now_ms, pinned_ms + self._keeper.paid_ms(steady_ms))

    def stop(self) -> None:
        """Visit the exchange no more."""
        self._keeper.stop()

    def _by_scope(self, policy: CompiledPolicy, share: Share) -> Int64s:
        scopes = self._meter.scopes(policy)
        rate = policy.shared.rate_micro_per_ms.copy()
        rate[scopes.position] = np.minimum(rate[scopes.position], 0)  # of what is not leased, nothing
        at = np.searchsorted(share.ids, scopes.ids)
        known = np.flatnonzero(at < len(share.ids))
        known = known[share.ids[at[known]] == scopes.ids[known]]
        position = scopes.position[known]
        leased = share.rate[at[known]]
        rate[position] = np.where(policy.shared.is_limited[position], np.maximum(leased, 0), rate[position])
        return rate
