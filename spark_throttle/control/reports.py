"""The decider's reports since the last epoch, as the control plane reads them, and the last report of all.

The head of a report is read once, and the whole report where its namespaces count: for quotas on processing time, and
for those that jobs share. What reports say of processing time and of destinations counts until an epoch has settled it.
The last one says whether rows wait, when one is due, and what the shared buckets hold.

A checkpoint that was put back goes on from an earlier epoch. The reports of undone batches are deleted, and what is
settled next is what the batches after that epoch and up to the newest that is left used.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_throttle.checkpoint.batch_records import DELIVERY, REPORT, forget_undone, record_name, records
from spark_throttle.checkpoint.delivery import Delivery, read_delivery
from spark_throttle.control.charges import read_charges
from spark_throttle.control.feedback import KeptReport, kept_reports, newest_batch
from spark_throttle.core.epoch import Epoch, SettledTime
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.core.usage import ReportHead
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
        self._unsettled: dict[int, KeptReport] = {}
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

    def take_in(self, epoch: Epoch) -> list[KeptReport]:
        """Read the reports that came since the last call, or at a start those that may count; return them."""
        came = []
        if not self.has_begun:
            self._check_fence()
            settles = epoch.time is not None or epoch.may_return
            newest = newest_batch(self._directory)
            begins_at = epoch.settled_batch if settles else newest
            self.newest_batch = max(-1, min(begins_at, newest - 1) - 1)
            self.has_begun = True
        names = records(self._directory, REPORT, from_batch=max(0, self.newest_batch))
        newest = newest_batch(self._directory, names or None)
        if newest != self.newest_batch:
            charges = {} if epoch.time is None else read_charges(self._directory, after_batch=self.newest_batch)
            for batch, report in kept_reports(self._directory, after_batch=self.newest_batch, names=names).items():
                if report.head.epoch > epoch.number:
                    # The checkpoint was put back to before this batch, which will run and report again; unless this
                    # run was taken over, and the report is the other run's.
                    self._check_fence()
                    forget_undone(self._directory, newest=batch - 1)
                    newest = newest_batch(self._directory)
                    break
                if epoch.time is None:
                    self._unsettled.clear()
                self._unsettled[batch] = self._last = report
                if batch in charges:
                    self._charges[batch] = charges[batch]
                if epoch.may_return:
                    self._deliveries[batch] = self._delivery(batch, report.head)
                came.append(report)
            self.newest_batch = newest
        for settled in (self._unsettled, self._charges, self._deliveries):
            for batch in [batch for batch in settled if batch <= epoch.settled_batch]:
                del settled[batch]
        return came

    @property
    def has_moved(self) -> bool:
        """Whether a batch that is not yet settled brought or moved rows."""
        return any(report.head.has_moved for report in self._unsettled.values())

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
            place = self._directory.shown(record_name(batch, DELIVERY, head.now_ms))
            what = f"the record of what batch {batch} delivered, {place},"
            raise DamagedError(what, "it is gone", RESTORE_CHECKPOINT)
        return found

    def settled_time(
        self, epoch: Epoch, before: CompiledPolicy, after: CompiledPolicy, *, now_ms: int
    ) -> SettledTime | None:
        """Return the time that batches used since `epoch`, of the policy `before`, for an epoch of the policy `after`.

        A batch that reports no processing time has used none. `None` is returned if `after` has no quota on it.
        """
        if not after.has_time:
            return None
        if epoch.time is None:
            return SettledTime.none(after)
        charges = TimeCharges.sum_of(list(self._charges.values()))
        reports = [report.whole() for report in self._unsettled.values()]
        return SettledTime.of(charges, reports, before, after, since_ms=epoch.paid_ms, now_ms=now_ms)
