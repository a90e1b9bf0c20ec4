"""The settling of usage: the shards' reports since the last epoch, and what they leave in its buckets.

The reports of a batch are read once, and count until an epoch has settled them. A shard that has not reported counts as
having used all that it was lent. The last report of every shard is kept: it says what the shard's namespaces want.

A checkpoint that was put back goes on from an earlier epoch. That epoch holds the buckets as they were, so what is
settled next is what the batches after it and up to the newest that is left used, and not what undone batches used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from spark_throttle.checkpoint.told import read_told
from spark_throttle.control.batch_files import batch_of
from spark_throttle.control.charges import read_charges
from spark_throttle.control.feedback import (
    PackedReports,
    bring_back,
    forget_reports,
    newest_batch,
    put_away,
    read_blocks,
    report_files,
    unpacked,
)
from spark_throttle.control.shared_scopes import is_time_shared
from spark_throttle.core.codec import Epoch
from spark_throttle.core.lending.advances import Reseated, advance_after, carried_advance
from spark_throttle.core.lending.deferrals import Outlook
from spark_throttle.core.lending.destinations import Told
from spark_throttle.core.lending.grants import Buckets, has_rejected, used_by_scope
from spark_throttle.core.lending.owed_time import is_overloaded, missed_by, owed_after, waiting_by_scope
from spark_throttle.core.lending.shares import is_unleased, settle_share, under_share
from spark_throttle.core.limits.message_limits import under_time
from spark_throttle.core.limits.token_bucket import available_tokens
from spark_throttle.core.names.matching import match
from spark_throttle.core.names.sharding import shard_of
from spark_throttle.core.policy_change import former_scopes
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Int64s, OnExcess
from spark_throttle.core.resharding import resharded_reports
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.time_quota.time_ledger import TimeLease, TimeLedger
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory


class Settling:
    """The reports that no epoch has settled, and the last report of every shard.

    Parameters
    ----------
    check_fence
        Called before a report is moved or deleted; raises if the directory belongs to another run.
    resharded_after
        The number of the last epoch of the former shards; -1 where the number of shards never changed. Reports up to
        it are settled as they are, and what they say of namespaces is told by the present shards.
    """

    def __init__(
        self, directory: Directory, shards: int, check_fence: Callable[[], None], *, resharded_after: int = -1
    ) -> None:
        self._directory = directory
        self._shards = shards
        self._check_fence = check_fence
        self._resharded_after = resharded_after
        self._last: dict[int, UsageReport] = {}
        self._former: dict[int, UsageReport] = {}
        """The last report of every former shard, from which those of the present ones are told."""

        self._unsettled: dict[int, list[UsageReport]] = {}
        self._charges: dict[int, TimeCharges] = {}
        """The processing time of unsettled batches that reported any."""

        self._told: dict[int, dict[str, Told]] = {}
        self._blocks: dict[str, PackedReports] = {}
        """The packed reports in the files that this run has read and not put away, by the files' names."""

        self._has_put_away = False
        self._has_begun = False
        self.newest_batch = -1
        """The newest batch whose reports were read; -1 before the first."""

    def take_in(self, epoch: Epoch) -> list[list[UsageReport]]:
        """Read the reports that came since the last call, or at a start all that are kept; return them by batch."""
        came = []
        if not self._has_begun:
            self._check_fence()
            bring_back(self._directory, from_batch=epoch.settled_batch)
            self._has_begun = True
        files = report_files(self._directory)
        newest = newest_batch(self._directory, files)
        if newest != self.newest_batch:
            charges = {} if epoch.time is None else read_charges(self._directory, after_batch=self.newest_batch)
            blocks = read_blocks(self._directory, [name for name in files if batch_of(name) > self.newest_batch])
            self._blocks |= blocks
            for batch, reports in unpacked(self._directory, blocks).items():
                if any(report.epoch > epoch.number for report in reports):
                    # The checkpoint was put back to before this batch, which will run and report again; unless this
                    # run was taken over, and the report is the other run's.
                    self._check_fence()
                    forget_reports(self._directory, from_batch=batch)
                    self._blocks = {name: found for name, found in self._blocks.items() if batch_of(name) < batch}
                    newest = newest_batch(self._directory)
                    break
                self._note_last(reports, epoch)
                self._unsettled[batch] = reports
                if batch in charges:
                    self._charges[batch] = charges[batch]
                if epoch.destinations is not None:
                    self._told[batch] = read_told(self._directory, batch)
                came.append(reports)
            self.newest_batch = newest
        for batch in [batch for batch in self._unsettled if batch <= epoch.settled_batch]:
            del self._unsettled[batch]
            self._charges.pop(batch, None)
            self._told.pop(batch, None)
        return came

    def put_away(self, *, before_batch: int) -> None:
        """Put away the reports of batches before `before_batch`; called once the directory was found to be this run's.

        What was read is not read again: a batch reports the same whenever it runs, and no other run is there.
        """
        names = put_away(
            self._directory, before_batch=before_batch, found=self._blocks, may_be_away=not self._has_put_away
        )
        self._has_put_away |= bool(names)
        for name in names:
            del self._blocks[name]

    def _note_last(self, reports: list[UsageReport], epoch: Epoch) -> None:
        """Keep reports as the last of their shards.

        A checkpoint that was put back to an epoch before the change is of the shards that it then had.
        """
        former = [report for report in reports if report.epoch <= self._resharded_after <= epoch.number]
        if not former:
            self._last.update({report.shard: report for report in reports})
            return
        # Each epoch reaches every shard, so the last epoch's reports are of all former shards.
        self._former.update({report.shard: report for report in former if report.epoch == self._resharded_after})
        self._last = {report.shard: report for report in resharded_reports(list(self._former.values()), self._shards)}

    def is_of_former_shards(self, epoch: Epoch) -> bool:
        """Return whether an epoch lends to another number of shards than there are now."""
        return len(epoch.lending.balance_micro) != self._shards

    @property
    def has_reports(self) -> bool:
        """Whether there is a batch to settle."""
        return bool(self._unsettled)

    @property
    def has_moved(self) -> bool:
        """Whether a batch that is not yet settled brought or moved rows."""
        return any(_has_moved(reports) for reports in self._unsettled.values())

    @property
    def is_waiting(self) -> bool:
        """Whether any row waits."""
        return any(report.waiting.max(initial=0) > 0 for report in self._last.values())

    def newest_settled(self, epoch: Epoch) -> int:
        """Return the last batch that the epoch after `epoch` settles."""
        return max(self._unsettled, default=epoch.settled_batch)

    def told(self) -> list[dict[str, Told]]:
        """Return what destinations said in the batches that are not yet settled, in the order of the batches."""
        return [told for _, told in sorted(self._told.items())]

    def missing_shards(self, epoch: Epoch) -> list[int]:
        """Return the shards that `epoch` lent to and that have not reported."""
        found = {report.shard for reports in self._unsettled.values() for report in reports}
        return sorted(set(range(len(epoch.lending.balance_micro))) - found)

    def began_ms(self, now_ms: int) -> int:
        """Return the paying time of the first unsettled batch that moved rows; `now_ms` if none did."""
        moved = (reports[0].as_of_ms for reports in self._unsettled.values() if _has_moved(reports))
        return min(moved, default=now_ms)

    def last_under(self, policy: CompiledPolicy) -> list[UsageReport]:
        """Return the last report of every shard, with indices into `policy`."""
        return [_rematched(report, policy) for report in self._last.values()]

    def settled(self, epoch: Epoch, policy: CompiledPolicy, now_ms: int) -> Buckets:
        """Return the buckets of `epoch` less what was used; a shard without a report has used all that it was lent."""
        buckets, share = epoch.buckets, epoch.share_in_force
        for reports in self._unsettled.values():
            used = used_by_scope(reports, policy)
            buckets = settle_share(buckets, used, policy, share, at_ms=min(reports[0].as_of_ms, now_ms))
        missing = self.missing_shards(epoch)
        if missing:
            used = available_tokens(epoch.lending.balance_micro[missing]).sum(axis=0)
            # This process cannot know what a lease has earned since then.
            at_ms = now_ms if epoch.share_micro_per_ms is None else buckets.as_of_ms
            buckets = settle_share(buckets, used, policy, share, at_ms=at_ms)
        return buckets

    def settled_time(
        self, epoch: Epoch, policy: CompiledPolicy, buckets: Buckets, *, leased_until_ms: int | None = None
    ) -> TimeLedger | None:
        """Return the time ledger of `epoch` less the time that was used, as of `buckets`, which are settled.

        Returns `None` if the epoch has none. A batch that reports no processing time has used none.

        Parameters
        ----------
        leased_until_ms
            The paying time up to which scopes that jobs share earn after the settled batches; `None` if all scopes
            earn up to that of `buckets`.
        """
        if epoch.time is None:
            return None
        lease = None if leased_until_ms is None else TimeLease(is_time_shared(policy), leased_until_ms)
        policy = under_share(policy, epoch.share_micro_per_ms, epoch.time.share_ns_per_ms)
        ledger, passed_ms = epoch.time.ledger.begun(), epoch.time.ledger.used.interval_ms
        for batch, reports in self._unsettled.items():
            charges = self._charges.get(batch, TimeCharges.sum_of([]))
            at_ms = min(reports[0].as_of_ms, buckets.as_of_ms)
            ledger = ledger.settled(charges, reports, policy, at_ms=at_ms, passed_ms=passed_ms)
            passed_ms = 0
        return ledger.refilled(policy, now_ms=buckets.as_of_ms, lease=lease)

    def outlook(self, reports: list[UsageReport], policy: CompiledPolicy, *, interval_ms: int) -> Outlook | None:
        """Return what the last reports, with indices into `policy`, say of the next batch; `None` if no scope rejects.

        Only a scope that rejects what exceeds its quota defers verdicts.
        """
        if not (policy.shared.on_excess == OnExcess.REJECT).any():
            return None
        waiting = waiting_by_scope(reports, policy, shards=self._shards)
        return Outlook(waiting, has_rejected(reports, policy), interval_ms)

    def owed_ms(
        self, epoch: Epoch, before: CompiledPolicy, after: CompiledPolicy, now_ms: int, *, is_own: bool
    ) -> Int64s | None:
        """Return for how long this job has missed its share of each scope of `after` (`owed_time`).

        No time is missed after an epoch that another run made: this one may have begun much later.
        """
        share, elapsed_ms = epoch.share_micro_per_ms, now_ms - epoch.buckets.as_of_ms
        if share is None and epoch.owed_ms is None:
            return None
        reports, time = self.last_under(before), epoch.time
        is_missed, overloaded = np.zeros((2, len(before.shared)), dtype=np.bool_)
        if share is not None and is_own:
            unleased = is_unleased(share, None if time is None else time.share_ns_per_ms, before)
            is_missed = missed_by(reports, unleased, before)
        if epoch.owed_ms is not None and (outlook := self.outlook(reports, before, interval_ms=elapsed_ms)) is not None:
            in_force = under_time(before, None if time is None else time.limits)
            overloaded = is_overloaded(epoch.owed_ms, outlook, in_force)
        first_ms = min((reports[0].as_of_ms for reports in self._unsettled.values()), default=now_ms)
        owed_ms = owed_after(epoch.owed_ms, is_missed, overloaded, waited_ms=now_ms - first_ms, elapsed_ms=elapsed_ms)
        if owed_ms is None or before.revision == after.revision:
            return owed_ms
        former = former_scopes(before, after)
        return np.where(former >= 0, owed_ms[former], 0)

    def advance(self, epoch: Epoch, before: CompiledPolicy, after: CompiledPolicy) -> Int64s:
        """Return how far each shard is ahead in the scopes of `after`, shape (shards, scopes, 2)."""
        reports = [report for batch in self._unsettled.values() for report in batch]
        limits = None if epoch.time is None else epoch.time.limits
        advance_micro = advance_after(epoch.lending, reports, under_time(before, limits))
        if self.is_of_former_shards(epoch):
            was, now = ([_rematched(each, policy) for each in self._former.values()] for policy in (before, after))
            seats = [shard_of(report.names, self._shards) for report in was]
            return carried_advance(advance_micro, before, after, was, now, resharded=Reseated(self._shards, seats))
        if before.revision == after.revision:
            return advance_micro
        last = list(self._last.values())
        was, now = ([_rematched(report, policy) for report in last] for policy in (before, after))
        return carried_advance(advance_micro, before, after, was, now)


def _has_moved(reports: list[UsageReport]) -> bool:
    """Return whether a batch brought or moved rows."""
    return any(
        report.invalid_messages > 0
        or any(each.max(initial=0) > 0 for each in (report.offered, report.admitted, report.rejected))
        for report in reports
    )


def _rematched(report: UsageReport, policy: CompiledPolicy) -> UsageReport:
    """Return a report with indices into `policy`."""
    if report.revision == policy.revision:
        return report
    found = match(report.names, policy)
    weight = np.where(found.is_exempt, 0, policy.namespace_limits.weight[found.rule])
    # The namespaces' own limits may have changed, so their rows may be able to leave at once.
    leaves_ms = None if report.leaves_ms is None else np.where(report.waiting[:, 0] > 0, report.as_of_ms, NEVER_MS)
    return replace(
        report, revision=policy.revision, tenant=found.tenant, group=found.group, weight=weight, leaves_ms=leaves_ms
    )
