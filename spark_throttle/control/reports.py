"""The decider's reports since the last epoch, as the control plane reads them, and the last report of all.

The head of a report is read once, and the whole report where its namespaces count: for quotas on processing time, and
for those that jobs share. What reports say of processing time and of destinations counts until an epoch has settled it.
The last one says whether rows wait, when one is due, and what the shared buckets hold.

A checkpoint that was put back goes on from an earlier epoch. The reports of undone batches are deleted, and what is
settled next is what the batches after that epoch and up to the newest that is left used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from spark_throttle.checkpoint.delivery import Delivery, delivery_file, read_delivery
from spark_throttle.control.charges import bring_back_charges, read_charges
from spark_throttle.control.feedback import KeptReport, forget_reports, kept_reports, newest_batch, report_files
from spark_throttle.control.shared_scopes import is_time_shared
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.time_quota.time_ledger import TimeLease, TimeLedger
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.core.usage import ReportHead, UsageReport
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory


class Reports:
    """The reports that no epoch has settled, and the last one.

    Parameters
    ----------
    check_fence
        Called before a file is moved or deleted; raises if the directory belongs to another run.
    """

    def __init__(self, directory: Directory, check_fence: Callable[[], None]) -> None:
        self._directory = directory
        self._check_fence = check_fence
        self._unsettled: dict[int, list[KeptReport]] = {}
        """The reports of unsettled batches, in the order of the batches; without quotas on time, the last batch's."""

        self._charges: dict[int, TimeCharges] = {}
        """The processing time of unsettled batches that reported any."""

        self._deliveries: dict[int, Delivery | None] = {}
        self.has_begun = False
        """Whether `take_in` was called."""

        self._last: KeptReport | None = None

        self.newest_batch = -1
        """The newest batch whose reports were read; -1 before the first."""

    @property
    def last(self) -> ReportHead | None:
        """The head of the last report; `None` before the first."""
        return None if self._last is None else self._last.head

    def take_in(self, epoch: Epoch) -> list[list[KeptReport]]:
        """Read the reports that came since the last call, or at a start those that may count; return them by batch."""
        came = []
        if not self.has_begun:
            self._check_fence()
            settles = epoch.time is not None or epoch.may_return
            newest = newest_batch(self._directory)
            begins_at = epoch.settled_batch if settles else newest
            bring_back_charges(self._directory, from_batch=begins_at)
            self.newest_batch = max(-1, min(begins_at, newest - 1) - 1)
            self.has_begun = True
        files = report_files(self._directory, from_batch=max(0, self.newest_batch))
        newest = newest_batch(self._directory, files or None)
        if newest != self.newest_batch:
            charges = {} if epoch.time is None else read_charges(self._directory, after_batch=self.newest_batch)
            for batch, reports in kept_reports(self._directory, after_batch=self.newest_batch, files=files).items():
                if any(report.head.epoch > epoch.number for report in reports):
                    # The checkpoint was put back to before this batch, which will run and report again; unless this
                    # run was taken over, and the report is the other run's.
                    self._check_fence()
                    forget_reports(self._directory, from_batch=batch)
                    newest = newest_batch(self._directory)
                    break
                if epoch.time is None:
                    self._unsettled.clear()
                self._unsettled[batch], self._last = reports, reports[-1]
                if batch in charges:
                    self._charges[batch] = charges[batch]
                if epoch.may_return:
                    self._deliveries[batch] = self._delivery(batch, reports[-1].head)
                came.append(reports)
            self.newest_batch = newest
        for settled in (self._unsettled, self._charges, self._deliveries):
            for batch in [batch for batch in settled if batch <= epoch.settled_batch]:
                del settled[batch]
        return came

    @property
    def has_moved(self) -> bool:
        """Whether a batch that is not yet settled brought or moved rows."""
        return any(report.head.has_moved for reports in self._unsettled.values() for report in reports)

    @property
    def is_waiting(self) -> bool:
        """Whether any row waits."""
        return self.last is not None and self.last.is_waiting

    def newest_settled(self, epoch: Epoch) -> int:
        """Return the last batch that the epoch after `epoch` settles."""
        return max(self.newest_batch, epoch.settled_batch)

    def told(self) -> list[dict[str, Told]]:
        """Return what destinations said in the batches that are not yet settled, in the order of the batches."""
        return [each.told for _, each in sorted(self._deliveries.items()) if each is not None]

    @property
    def is_silent(self) -> bool:
        """Whether the sink of the last batch that is not yet settled says nothing of what it delivered."""
        return bool(self._deliveries) and self._deliveries[max(self._deliveries)] is None

    @property
    def undelivered(self) -> Undelivered | None:
        """What was not delivered of the last batch that is not yet settled; `None` if nothing of it can come back."""
        last = self._deliveries[max(self._deliveries)] if self._deliveries else None
        return None if last is None else last.undelivered

    def _delivery(self, batch: int, head: ReportHead) -> Delivery | None:
        """Return what became of a batch; `None` if its sink does not say it.

        Raises
        ------
        DamagedError
            If its record is gone, and rows of it may come back.
        """
        found = read_delivery(self._directory, batch, head.now_ms)
        if found is None and head.left_messages:
            what = f"the record of what batch {batch} delivered, {delivery_file(self._directory, batch, head.now_ms)},"
            raise DamagedError(what, "it is gone", RESTORE_CHECKPOINT)
        return found

    def last_under(self, policy: CompiledPolicy) -> UsageReport | None:
        """Return the last report, with indices into `policy`."""
        return None if self._last is None else _rematched(self._last.whole(), policy)

    def settled_time(
        self, epoch: Epoch, policy: CompiledPolicy, *, now_ms: int, leased_until_ms: int | None = None
    ) -> TimeLedger | None:
        """Return the time ledger of `epoch` at `now_ms`, less the time that was used.

        Returns `None` if the epoch has none. A batch that reports no processing time has used none.

        Parameters
        ----------
        leased_until_ms
            The paying time up to which scopes that jobs share earn after the settled batches; `None` if all scopes
            earn up to `now_ms`.
        """
        if epoch.time is None:
            return None
        lease = None if leased_until_ms is None else TimeLease(is_time_shared(policy), leased_until_ms)
        policy = under_share(policy, epoch.share_micro_per_ms, epoch.time.share_ns_per_ms)
        ledger, passed_ms = epoch.time.ledger.begun(), epoch.time.ledger.used.interval_ms
        for batch, kept in self._unsettled.items():
            reports = [report.whole() for report in kept]
            charges = self._charges.get(batch, TimeCharges.sum_of([]))
            at_ms = min(reports[0].as_of_ms, now_ms)
            ledger = ledger.settled(charges, reports, policy, at_ms=at_ms, passed_ms=passed_ms)
            passed_ms = 0
        return ledger.refilled(policy, now_ms=now_ms, lease=lease)


def _rematched(report: UsageReport, policy: CompiledPolicy) -> UsageReport:
    """Return a report with indices into `policy`."""
    if report.revision == policy.revision:
        return report
    found = match(report.names, policy)
    weight = np.where(found.is_exempt, 0, policy.namespace_limits.weight[found.rule])
    return replace(report, revision=policy.revision, tenant=found.tenant, group=found.group, weight=weight)
