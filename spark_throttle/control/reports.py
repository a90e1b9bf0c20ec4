"""The decider's usage reports of every batch, on their way back to the control plane.

A batch that the decider was called for has one report, a record (`checkpoint.batch_records`) that is written before the
batch is committed. A batch that is run again writes the same bytes under the same name, because its decisions are a
function of what was logged. A batch without a report is one for which no epoch was due and which brought no row: it
moved nothing, and nothing of it is lost.

The control plane reads the head of a report once, and the whole report where its namespaces count: for quotas on
processing time, and for those that jobs share (`Reports`). What is said of processing time, of late costs and of
destinations counts until an epoch has settled it. The last one says whether rows wait, when one is due, and what the
shared buckets hold. A checkpoint that was put back goes on from an earlier epoch. The reports of undone batches are
deleted, and what is settled next is what the batches after that epoch and up to the newest that is left used.

The first batch of a run that rejects more than a tenth of what it decides is told in the log, once, with reason and
scope (`RejectionNotice`): rejected rows go to the dead letters, where nobody looks who does not know of them.
Afterwards the metrics tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from spark_throttle.checkpoint.batch_records import (
    DELIVERY,
    REPORT,
    batch_of,
    forget_undone,
    part_of,
    record_name,
    records,
)
from spark_throttle.checkpoint.delivery import Delivery, read_delivery
from spark_throttle.control.charges import read_charges
from spark_throttle.core.batch.decisions import REASONS
from spark_throttle.core.epoch import Epoch, SettledTime
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Dimension
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.core.usage import ReportHead, UsageReport, unpack_head, unpack_usage
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.record import first_block_bytes

_FIRST_BYTES: Final = 1 << 16
"""So much of a file is read for its head: more than the head of a job with a thousand groups, or a small report."""


def write_report(directory: Directory, batch: int, report: bytes) -> None:
    """Write the packed report of a batch."""
    batch_ms = unpack_head(report, f"the usage report of batch {batch}").now_ms
    directory.write(record_name(batch, REPORT, batch_ms), report)


class KeptReport:
    """A report in the control directory; all but its head is read when it is asked for, once."""

    def __init__(self, directory: Directory, name: str, begin: bytes) -> None:
        self._directory, self._name = directory, name
        self._what = f"the report {directory.shown(name)}"
        self._whole: bytes | UsageReport | None = begin if len(begin) < _FIRST_BYTES else None
        if first_block_bytes(begin) > len(begin):
            begin = directory.read_part(name, 0, first_block_bytes(begin)) or begin
        self.head: ReportHead = unpack_head(begin, self._what)
        if part_of(name) != str(self.head.now_ms):
            raise DamagedError(self._what, f"it is of a batch at {self.head.now_ms} ms", RESTORE_CHECKPOINT)

    def whole(self) -> UsageReport:
        """Return the whole report."""
        if not isinstance(self._whole, UsageReport):
            content = self._directory.read(self._name) if self._whole is None else self._whole
            if content is None:
                raise DamagedError(self._what, "it was deleted", RESTORE_CHECKPOINT)
            self._whole = unpack_usage(content, self._what)
        return self._whole


def kept_reports(
    directory: Directory, *, after_batch: int, names: Sequence[str] | None = None
) -> dict[int, KeptReport]:
    """Return the reports of all batches after `after_batch` that have one, in the order of the batches.

    Parameters
    ----------
    names
        The names of reports, if they were listed already.
    """
    found = {}
    for name in records(directory, REPORT, from_batch=after_batch + 1) if names is None else names:
        begin = directory.read_part(name, 0, _FIRST_BYTES) if batch_of(name) > after_batch else None
        if begin is not None:
            found[batch_of(name)] = KeptReport(directory, name, begin)
    return found


def read_reports(directory: Directory, *, after_batch: int) -> dict[int, UsageReport]:
    """Return the whole reports of all batches after `after_batch` that have one, in the order of the batches."""
    return {batch: kept.whole() for batch, kept in kept_reports(directory, after_batch=after_batch).items()}


def report_of(directory: Directory, batch: int) -> UsageReport | None:
    """Return the report of one batch; `None` if it moved nothing, or if it is gone."""
    names = [name for name in records(directory, REPORT, from_batch=batch) if batch_of(name) == batch]
    kept = kept_reports(directory, after_batch=batch - 1, names=names).get(batch)
    return None if kept is None else kept.whole()


def time_before(directory: Directory, batch: int) -> int | None:
    """Return the batch time, in ms, of the newest batch before `batch` that reported; `None` if its report is gone."""
    before = [name for name in records(directory, REPORT) if batch_of(name) < batch]
    return int(part_of(before[-1])) if before else None


def newest_batch(directory: Directory, names: Sequence[str] | None = None) -> int:
    """Return the number of the newest batch that has reported; -1 if none has.

    Parameters
    ----------
    names
        The names of reports, if they were listed already.
    """
    found = records(directory, REPORT) if names is None else names
    return batch_of(found[-1]) if found else -1


class Reports:
    """The reports that no epoch has settled, and the last one.

    Parameters
    ----------
    check_fence
        Called before a file is moved or deleted; raises if the directory belongs to another run.
    takes_costs
        Whether functions may tell late costs, whatever the policy limits.
    """

    def __init__(self, directory: Directory, check_fence: Callable[[], None], *, takes_costs: bool = False) -> None:
        self._directory = directory
        self._check_fence = check_fence
        self._takes_costs = takes_costs
        self._unsettled: dict[int, KeptReport] = {}
        """The reports of unsettled batches, in the order of the batches; without quotas on time, the last batch's."""

        self._charges: dict[int, TimeCharges] = {}
        """What functions charged for unsettled batches."""

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
            settles = epoch.time is not None or epoch.may_return or self._takes_costs
            newest = newest_batch(self._directory)
            begins_at = epoch.settled_batch if settles else newest
            self.newest_batch = max(-1, min(begins_at, newest - 1) - 1)
            self.has_begun = True
        names = records(self._directory, REPORT, from_batch=max(0, self.newest_batch))
        newest = newest_batch(self._directory, names or None)
        if newest != self.newest_batch:
            is_charged = epoch.time is not None or self._takes_costs
            charges = read_charges(self._directory, after_batch=self.newest_batch) if is_charged else {}
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
                if batch in charges and (epoch.time is not None or charges[batch].costs is not None):
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

    @property
    def late_costs(self) -> LateCosts | None:
        """What rows really cost, as functions told it in the batches that are not yet settled; `None` for nothing."""
        told = [charges.costs for charges in self._charges.values() if charges.costs is not None]
        return LateCosts.sum_of(told) if told else None

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


logger = logging.getLogger(__name__)

_ONE_IN: Final = 10


class RejectionNotice:
    """The notice of one run; once it is given, a batch costs nothing."""

    def __init__(self) -> None:
        self._is_given = False

    def look(self, kept: KeptReport) -> None:
        """Look at the report on a batch, and log a warning if it is the first to reject more than a tenth."""
        rejected, admitted = kept.head.rejected_messages, kept.head.admitted_messages
        if self._is_given or rejected == 0 or rejected * _ONE_IN <= rejected + admitted:
            return
        self._is_given, report = True, kept.whole()
        logger.warning(
            "a batch rejected %d of the %d messages that it decided (%s%s); they are in the dead letters, and later "
            "batches are not told here: docs/sending.md",
            rejected, rejected + admitted, _by_reason(report), _by_namespace(report),
        )  # fmt: skip


def _by_reason(report: UsageReport) -> str:
    """Return how many messages were rejected for each reason, the most first, as a part of a sentence."""
    total = np.array(report.rejected_by_reason)
    ordered = np.argsort(-total, kind="stable")[: np.count_nonzero(total)]
    return ", ".join(f"{int(total[reason])} for {REASONS[reason]}" for reason in ordered)


def _by_namespace(report: UsageReport) -> str:
    """Return the namespace with most rejections, as a part of a sentence; nothing if no namespace has any."""
    rejected = report.rejected[:, Dimension.MESSAGES]
    if rejected.max(initial=0) == 0:
        return ""
    most = int(rejected.argmax())
    return f"; most in the namespace {shown(report.names.slice(most, 1)).to_pylist()[0]} ({int(rejected[most])})"
