"""The control plane of one job: when a new epoch is due, and what it contains.

Everything that a batch depends on, except its rows, is written into an epoch before the batch is planned, and the
batch's offset names the epoch. So a batch that is run again, after a crash, on another machine or with other policies
in force, finds what it found the first time. Clocks are read here, and nowhere in the data path: tokens are earned by
a clock that is never set (`clock`), and every epoch pins its reading.

An epoch is due when the policies or the job's shares have changed, when a waiting row may by now leave or expire, when
processing time, late costs or a destination's answers are to be settled, when a budget begins anew, or when the wall
clock was set. The decider refills its buckets itself, so while none of this happens batches run without a new epoch,
and an idle query runs no batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from spark_throttle.control.charges import join_charges
from spark_throttle.control.clock import Clock, Moment, Occasion, moment_after
from spark_throttle.control.demand import is_shared
from spark_throttle.control.epochs import BATCHES_RETAINED, NO_EPOCH, EpochName, Epochs
from spark_throttle.control.notes import (
    NextPolicies,
    Pulse,
    exceptions_in_force,
    warn_of_lost_policies,
    write_next_policies,
)
from spark_throttle.control.reports import RejectionNotice, Reports
from spark_throttle.control.run_fence import RunFence, forget_past, refuse_past, waited_ms
from spark_throttle.control.shared_budgets import NamedWindows
from spark_throttle.control.shared_quotas import PinnedShares, SharedQuotas, owes_without_share, why_not_shared
from spark_throttle.core.corrections import corrected_balances, in_dimension
from spark_throttle.core.epoch import Epoch, SettledTime
from spark_throttle.core.limits.budgets import BudgetClaims, CalendarWindows
from spark_throttle.core.names.visible_text import visible
from spark_throttle.core.policy_change import carried_shared
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.shares.destinations import DestinationRates, rates_after
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.core.usage import ReportHead
from spark_throttle.errors import RESTORE_CHECKPOINT, ConfigurationError, DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.calendar_windows import has_ended, window_keys, windows_at
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import Direction
from spark_throttle.policy.source import PolicySnapshot, PolicySource
from spark_throttle.policy.weekly_hours import Phase

logger = logging.getLogger(__name__)

_BATCHES_TO_WARM_UP = 2

_BATCHES_TO_FORGET = 100
"""Commits between two prunings, of which the first commit of a run is one; `Epochs` keeps as many batches more."""

_LEASE_WAIT_MS = 1_000
"""How long to wait before checking again whether a job that shares its quotas has a lease."""

_LOOK_INTERVAL_MS = 1_000
"""Time between two looks at an object store while no batch runs: Spark asks every 10 ms, and each look is a request."""


@dataclass(frozen=True, slots=True, eq=False)
class _Left:
    """What an epoch leaves to the next one."""

    balance_micro: Int64s
    """Shape (scopes, 4): the balances of the shared buckets now, as far as the last report tells."""

    settled_batch: int = -1
    earns_until_ms: Int64s | None = None
    time: SettledTime | None = None
    destinations: DestinationRates | None = None
    undelivered: Undelivered | None = None
    windows: CalendarWindows | None = None
    lost: BudgetClaims | None = None
    """What the epoch pinned, if its batch did not report."""
    costs: LateCosts | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _InForce:
    """The policy in force, and what it was made from."""

    snapshot: PolicySnapshot
    phase: Phase
    """That of the document, with the exceptions and schedules in force."""

    policy: CompiledPolicy


class ControlPlane:
    """The planner of a job's epochs: it decides when an epoch is due, and makes it.

    Parameters
    ----------
    directory
        Where epochs, policy revisions and records of batches are kept: inside the query's checkpoint.
    clock
        The wall clock and the steady clock, or one function that serves as both.
    shared
        This job's part of the quotas that several jobs share; `None` where it has them to itself.
    batches_retained
        The number of batches by which the checkpoint can be put back (``spark.sql.streaming.minBatchesToRetain``).
    fence
        Checks that the directory still belongs to this run.
    pulse
        Gives the job's signs of life, which no decision reads; `None` where nobody watches.
    are_policies_on_disk
        Whether to ask for the policies costs next to nothing: no request to a store.
    may_begin_anew
        Whether a query that begins deletes what an earlier one left, instead of being refused.
    most_wait_ms
        The longest time without a batch while rows wait, if the policies are read again by batches alone.
    takes_costs
        Whether rows are reserved, so that functions may tell what they cost.
    """

    def __init__(  # noqa: PLR0913 - its collaborators, given once
        self,
        directory: Directory,
        policies: PolicySource,
        direction: Direction,
        clock: Clock | Callable[[], int],
        shared: SharedQuotas | None = None,
        *,
        batches_retained: int = BATCHES_RETAINED,
        fence: RunFence | None = None,
        pulse: Pulse | None = None,
        are_policies_on_disk: bool = True,
        may_begin_anew: bool = False,
        most_wait_ms: int | None = None,
        takes_costs: bool = False,
    ) -> None:
        self._directory = directory
        self._pulse = pulse
        self._policies = policies
        self._direction: Direction = direction
        self._may_begin_anew = may_begin_anew
        self._most_wait_ms = most_wait_ms
        self._clock = Clock.of(clock)
        self._shared = shared
        self.epochs = Epochs(directory, fence, batches_retained=batches_retained)
        """The epochs that it made, by name."""

        self._reports = Reports(directory, self.epochs.check_fence, takes_costs=takes_costs)
        self._snapshot: PolicySnapshot | None = None
        """The policies as they were at the last look."""

        self._in_force: _InForce | None = None
        self._planned: Epoch | None = None
        self._planned_file = ""
        self._rejections = RejectionNotice()
        self._warned_of = ""
        self._due_ms = NEVER_MS
        self._ends_when_drained = False
        self._epochs_made = self._batches_seen = self._commits_to_pruning = 0
        is_cheap = directory.is_on_disk and are_policies_on_disk
        self._look = Occasion(self._clock.steady_ms, 0 if is_cheap else _LOOK_INTERVAL_MS)
        """The occasion to look for reports and for other policies."""

    def next_epoch(self, start: EpochName, *, ends_when_drained: bool = False) -> EpochName:
        """Return the epoch that the next batch is planned with: a new one if one is due, else `start`.

        Parameters
        ----------
        ends_when_drained
            Whether the query is to end once all is done that can be done now: then it does not wait for a destination
            that is unavailable.
        """
        self._ends_when_drained = ends_when_drained
        if self._pulse is not None:
            self._pulse.note_call()
        if start == NO_EPOCH:
            if self._may_begin_anew:
                forget_past(self._directory)
            refuse_past(self._directory)
            self.epochs.begin()
            self._snapshot = self._policies.current()
            moment = moment_after(None, self._clock)
            return self._make(1, self._policy_at(moment), None, moment)
        last, epoch = self._planned, self.epochs.load(start)
        self._planned, self._planned_file = epoch, start.file
        # What a batch did not deliver is said with the next one: its report is looked for before that is planned.
        looks = self._look.comes() or epoch is not last or ends_when_drained or epoch.may_return
        if looks or self._snapshot is None:
            self._snapshot = self._policies.current()
        moment = self._moment_after(epoch)
        policy = self._policy_at(moment)
        now_ms = moment.paid_ms
        before = self.epochs.policy(epoch)
        has_come = looks and self._take_in(epoch, before, now_ms)
        if has_come and moment.is_off:
            moment = self._moment_after(epoch)  # which goes on from what batches were paid
            now_ms = moment.paid_ms
        name = start
        if self._shared is not None and not self._epochs_made:
            self._shared.begin_after(epoch.claims)
        if moment.is_off or self._is_due(epoch, start, policy, now_ms):
            left = self._left(epoch, start, before, policy, moment)
            name = self._make(epoch.number + 1, policy, left, moment)
            if epoch.time is not None:
                join_charges(self._directory, before_batch=epoch.settled_batch)
        elif has_come:
            self.epochs.check_fence()
        return name

    def _take_in(self, epoch: Epoch, policy: CompiledPolicy, now_ms: int) -> bool:
        """Read the reports that came since the last look, and return whether any did."""
        is_of_earlier_run = not (self._reports.has_begun or self._epochs_made)
        came = self._reports.take_in(epoch)
        for report in came:
            self._rejections.look(report)
            if self._shared is not None:
                self._shared.add(report.whole(), now_ms=now_ms)
                self._keep_until_repaid(epoch, report.head, policy, now_ms)
            if not is_of_earlier_run:
                self._batches_seen += 1
                self._warn_if_late(report.head, policy)
            self._due_ms = self._due_of(report.head)
        return bool(came)

    def _keep_until_repaid(self, epoch: Epoch, last: ReportHead, policy: CompiledPolicy, now_ms: int) -> None:
        """Keep the shares of the scopes that a batch left in debt (`SharedQuotas.keep_until_repaid`)."""
        share = epoch.share_micro_per_ms
        if self._shared is not None and share is not None and last.revision == policy.revision:
            self._shared.keep_until_repaid(policy, last.shared_micro, share, now_ms=now_ms)

    def _left(
        self, epoch: Epoch, start: EpochName, before: CompiledPolicy, policy: CompiledPolicy, moment: Moment
    ) -> _Left:
        """Return what the epoch leaves, under the policy that is in force now."""
        now_ms = moment.paid_ms
        leased_until_ms = self._leased_until_ms(epoch, start, now_ms=now_ms)
        earns_until_ms = None
        if leased_until_ms is not None:
            earns_until_ms = np.where(is_shared(before), leased_until_ms, NEVER_MS)
        time = self._reports.settled_time(epoch, before, policy, now_ms=now_ms)
        balance_micro = self._balances(epoch, before, time, now_ms, earns_until_ms)
        if policy.revision != before.revision:
            balance_micro = carried_shared(balance_micro, before, policy)
        if time is not None:
            time = replace(time, shared_left_ns=balance_micro[:, Dimension.TIME].copy())
        rates = None if self._reports.is_silent else epoch.destinations
        destinations = rates_after(
            rates, before, self._reports.told(), policy, elapsed_ms=now_ms - epoch.paid_ms,
            wall_ms=moment.reading.wall_ms, is_to_end=self._is_to_end,
        )  # fmt: skip
        settled_batch, undelivered = self._reports.newest_settled(epoch), self._reports.undelivered
        last = self._reports.last
        lost = epoch.claims if last is None or last.epoch != epoch.number else None
        return _Left(
            balance_micro, settled_batch, earns_until_ms, time, destinations, undelivered, epoch.windows, lost,
            self._reports.late_costs,
        )  # fmt: skip

    def _balances(
        self,
        epoch: Epoch,
        policy: CompiledPolicy,
        time: SettledTime | None,
        now_ms: int,
        earns_until_ms: Int64s | None,
    ) -> Int64s:
        """Return the balances of the shared buckets now, as the decider will find them."""
        share, last = epoch.share_in_force(len(policy.shared)), self._reports.last
        if last is None or last.revision != policy.revision:
            return SharedBuckets.full(policy, share, now_ms=now_ms).balance_micro
        left = last.shared_micro
        if time is not None:
            owed = in_dimension(time.measured.owed_by_scope(policy), Dimension.TIME)
            left = corrected_balances(left, owed, policy.shared)
        buckets = SharedBuckets(left, last.as_of_ms, share)
        return buckets.refilled(policy, now_ms=now_ms, earns_until_ms=earns_until_ms).balance_micro

    def _leased_until_ms(self, epoch: Epoch, start: EpochName, *, now_ms: int) -> int | None:
        """Return the paying time up to which scopes that jobs share earn; `None` if this job never shared any.

        After the last batch they earn only while this process, having made `epoch`, holds the lease.
        """
        last = self._reports.last
        reported_ms = epoch.paid_ms if last is None else max(epoch.paid_ms, last.as_of_ms)
        if self._shared is None:
            return None if epoch.share_micro_per_ms is None else reported_ms
        return max(reported_ms, self._shared.paid_until_ms(start.file, now_ms=now_ms))

    def wait_ms(self) -> int | None:
        """Return how long until a waiting row may leave or expire: 0 if at once, `None` if none ever will by itself.

        A row that only a share of 0 holds back leaves once the job has a lease: nobody knows when that will be. A row
        that a spent budget holds is not waited for.
        """
        if self._planned is None:
            return None
        due_ms, last = self._next_due_ms(self._planned, waits_for_calendar=False), self._reports.last
        if due_ms >= NEVER_MS:
            waits_for_lease = self._shared is not None and last is not None and last.due_with_quotas_ms < NEVER_MS
            return _LEASE_WAIT_MS if waits_for_lease else None
        return max(0, due_ms - self._moment_after(self._planned).paid_ms)

    def _moment_after(self, epoch: Epoch) -> Moment:
        last = self._reports.last
        reached_ms = 0 if last is None or last.epoch != epoch.number else last.as_of_ms
        most_ms = partial(waited_ms, self._directory, f"epochs/{self._planned_file}")
        return moment_after(epoch, self._clock, reached_ms, most_ms)

    def note_batch(self) -> None:
        """Note that a batch is planned, which will report, so that the next look is not put off."""
        self._look.call_for()

    def forget_before(self, name: EpochName) -> None:
        """Delete the files that no batch retained by Spark can need; called once the batch of `name` is committed."""
        self._commits_to_pruning -= 1
        if self._commits_to_pruning >= 0:
            return
        self._commits_to_pruning = _BATCHES_TO_FORGET - 1
        self.epochs.forget_before(name, self._policy_seen().revision)
        if self._planned is None or self._planned.time is None:  # else every epoch joins what it settles
            join_charges(self._directory, before_batch=self._reports.newest_batch)

    def stop(self) -> None:
        """End the threads beside the batches; called when the query's reader ends."""
        if self._shared is not None:
            self._shared.stop()
        if self._pulse is not None:
            self._pulse.stop()

    def _policy_seen(self) -> CompiledPolicy:
        """Return the policy with which the last epoch was planned, or would be."""
        if self._in_force is None:
            self._snapshot = self._policies.current()
            return self._policy_at(moment_after(None, self._clock))
        return self._in_force.policy

    def _policy_at(self, moment: Moment) -> CompiledPolicy:
        """Return the policies that the last look found, with the exceptions and schedules in force at a moment."""
        snapshot, last, wall_ms = self._snapshot, self._in_force, moment.reading.wall_ms
        assert snapshot is not None  # noqa: S101 - there was a look
        phase = snapshot.document.phase(wall_ms)
        if last is not None and (last.snapshot is snapshot and last.phase == phase):
            return last.policy
        is_same = last is not None and last.snapshot.document is snapshot.document and last.phase == phase
        policy = last.policy if last and is_same else compile_policy(snapshot.document.at(wall_ms), self._direction)
        problem = snapshot.problem
        unshared = None if self._shared is None else why_not_shared(policy)
        if unshared is not None:
            if last is None:
                raise ConfigurationError(unshared)
            policy, problem = last.policy, unshared
        self.epochs.check_fence()
        in_force = exceptions_in_force(snapshot.document, wall_ms)
        followed = NextPolicies(policy.revision, snapshot.store_revision, problem, in_force)
        warn_of_lost_policies(self._directory, followed, limits_nothing=policy.limits_nothing)
        write_next_policies(self._directory, followed)
        if last is not None and last.snapshot.document is snapshot.document:
            for path, each in snapshot.document.exceptions[last.phase[0] : phase[0]]:
                said = visible(f"{path} has ended: it was given until {each.until} ({each.reason})")
                logger.info("the exception of %s", said)
        self._in_force = _InForce(snapshot, phase, policy)
        return policy

    def _is_due(self, epoch: Epoch, start: EpochName, policy: CompiledPolicy, now_ms: int) -> bool:
        is_other = policy.revision != epoch.revision or (self._shared is None) != (epoch.share_micro_per_ms is None)
        if is_other or has_ended(epoch.windows, policy, now_ms):
            return True
        named = _named(epoch.windows, policy, epoch.reading.wall_ms, epoch.paid_ms)
        shared, share, reports = self._shared, epoch.share_micro_per_ms, self._reports
        if shared is not None and share is not None:
            pinned = PinnedShares(share, epoch.claims, epoch.parts_micro_per_ms)
            is_waiting = reports.is_waiting or owes_without_share(policy, reports.last, share)
            if shared.is_due(policy, pinned, named, now_ms=now_ms, is_waiting=is_waiting):
                return True
            # The decider would pay the whole time since its last batch, though others had the share for a while.
            if shared.has_lapsed(start.file) and (share > 0)[is_shared(policy)].any():
                return True
        # Every batch reports before it is committed. So without a report, that of this epoch's batch was lost.
        if reports.last is None or reports.last.epoch != epoch.number:
            if epoch.time is not None or epoch.may_return:  # what that batch used or did not deliver is to be settled
                what = f"the control directory {self._directory.location}"
                raise DamagedError(what, f"the report of the batch of epoch {epoch.number} is gone", RESTORE_CHECKPOINT)
            return True
        is_to_settle = (epoch.time is not None or epoch.may_return) and reports.has_moved
        return is_to_settle or reports.late_costs is not None or self._next_due_ms(epoch) <= now_ms

    def _next_due_ms(self, epoch: Epoch, *, waits_for_calendar: bool = True) -> int:
        """Return when a row that waits after `epoch`'s batches may leave or expire, or a destination be asked again."""
        last = self._reports.last
        due_ms = NEVER_MS if last is None or last.epoch != epoch.number else self._due_of(last)
        if last is not None and last.filled_ms >= NEVER_MS and not waits_for_calendar:
            due_ms = NEVER_MS
        is_waiting = last is not None and last.is_waiting and not self._ends_when_drained
        if self._most_wait_ms is not None and last is not None and is_waiting:
            due_ms = min(due_ms, last.as_of_ms + self._most_wait_ms)
        if epoch.destinations is None:
            return due_ms
        policy, wall_ms = self.epochs.policy(epoch), epoch.reading.wall_ms
        there_ms = epoch.destinations.due_ms(
            policy, paid_ms=epoch.paid_ms, wall_ms=wall_ms, is_to_end=self._is_to_end
        )  # fmt: skip
        return min(due_ms, there_ms)

    def _due_of(self, report: ReportHead) -> int:
        """Return when waiting rows want a batch: at once as the first may leave, or, to end in few batches, later."""
        return report.filled_ms if self._ends_when_drained else report.due_ms

    @property
    def _is_to_end(self) -> bool:
        """Whether destinations that are unavailable are not waited for: they were asked in this run."""
        return self._ends_when_drained and self._epochs_made > 0

    def _warn_if_late(self, report: ReportHead, policy: CompiledPolicy) -> None:
        """Warn, once per revision, that rows waited longer for a batch than a bucket takes to fill.

        Such a quota cannot be reached. The first batches of a run do not count: they start workers, or follow a time in
        which nothing ran.
        """
        late_ms = report.as_of_ms - self._due_ms
        if self._batches_seen <= _BATCHES_TO_WARM_UP or late_ms <= 0 or report.revision != policy.revision:
            return
        rate, burst = policy.shared.rate_micro_per_ms, policy.shared.burst_micro
        is_slow = (rate > 0) & (late_ms > burst // np.maximum(rate, 1))
        if is_slow.any() and self._warned_of != policy.revision:
            self._warned_of = policy.revision
            first, *others = np.flatnonzero(is_slow.any(axis=1)).tolist()
            logger.warning(
                "waiting rows were due %d ms before their batch, longer than the bucket of %s takes to fill%s: what "
                "it would have earned meanwhile is lost; raise burst_seconds above %d, or trigger more often",
                late_ms, _scope_in_words(policy, first), f" (and {len(others)} more)" if others else "",
                -(-late_ms // 1000),
            )  # fmt: skip

    def _check_fence_and_go_on(self) -> None:
        """Refuse to go on if the directory is another run's; if it is this run's, so is its place in the exchange."""
        yields = self._shared is not None and self._shared.may_go_on
        self.epochs.check_fence()
        if self._shared is not None and yields:
            self._shared.go_on()

    def _make(self, number: int, policy: CompiledPolicy, left: _Left | None, moment: Moment) -> EpochName:
        """Write an epoch and the policy that it names, and return its name; in the first one, all buckets are full."""
        self._check_fence_and_go_on()
        now_ms = moment.paid_ms
        windows = windows_at(
            None if left is None else left.windows, policy, wall_ms=moment.reading.wall_ms, paid_ms=now_ms
        )
        share, claims, parts = None, None, None
        if self._shared is not None:
            named = _named(windows, policy, moment.reading.wall_ms, now_ms)
            pinned = self._shared.begin_epoch(policy, named, None if left is None else left.lost, now_ms=now_ms)
            share, claims, parts = pinned.rates, pinned.claims, pinned.parts
        if left is None:
            destinations = rates_after(None, None, [], policy, elapsed_ms=0, wall_ms=moment.reading.wall_ms)
            in_force = share if destinations is None else destinations.share(share, len(policy.shared))
            balance_micro = SharedBuckets.full(policy, in_force, now_ms=now_ms).balance_micro
            time = SettledTime.none(policy) if policy.has_time else None
            left = _Left(balance_micro, time=time, destinations=destinations)
        if self._shared is not None and share is not None:
            self._shared.keep_until_repaid(policy, left.balance_micro, share, now_ms=now_ms)
        epoch = Epoch(
            number, policy.revision, now_ms, moment.reading, left.settled_batch, share, left.earns_until_ms, left.time,
            left.destinations, left.undelivered, windows, claims, parts, left.costs,
        )  # fmt: skip
        name = self.epochs.write(epoch, policy)
        if self._shared is not None:
            self._shared.end_epoch(name.file)
        self._epochs_made += 1
        return name


def _named(windows: CalendarWindows | None, policy: CompiledPolicy, wall_ms: int, paid_ms: int) -> NamedWindows | None:
    if windows is None or not policy.shared.budgets:
        return None
    return NamedWindows(windows, window_keys(windows, policy, wall_ms=wall_ms, paid_ms=paid_ms))


def _scope_in_words(policy: CompiledPolicy, scope: int) -> str:
    """Return a shared scope as a sentence names it."""
    tenants = len(policy.tenant_names)
    if scope == 0:
        return "the job"
    if scope <= tenants:
        return f"tenant {policy.tenant_names[scope - 1].as_py()}"
    return f"resource group {policy.group_names[scope - 1 - tenants].as_py()}"
