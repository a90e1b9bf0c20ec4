"""The control plane of one job: when a new epoch is due, and what stands in it.

Everything that a batch depends on beside its rows is written into an epoch before the batch is planned, and
the batch's offset names the epoch. So a batch that is run again, after a crash, on another machine, with other policies
in force by then, finds what it found the first time. Clocks are read here, and nowhere in the data path: tokens are
paid by a clock that is never set (`clock`), whose reading every epoch pins.

An epoch is due when the policies changed, when the last batch brought or moved rows, when a waiting row may leave or
expire by now, or when the wall clock was set. When nothing waits and nothing comes, none is due, and an idle query runs
no batch. Grants then stand, and grow (`core.state.Grants`), so that the first rows after a pause are served at once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_throttle.control.clock import Clock, Moment, moment_after
from spark_throttle.control.compile import compile_policy
from spark_throttle.control.feedback import forget_reports, newest_batch, read_reports
from spark_throttle.control.followed import Followed, write_followed
from spark_throttle.control.model import Direction
from spark_throttle.control.run_fence import RunFence, refuse_past
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.control.source import PolicySnapshot
from spark_throttle.control.storage import Directory
from spark_throttle.core.advances import advance_after, carried_advance, scopes_that_stand
from spark_throttle.core.codec import Epoch, pack_epoch, pack_policy, unpack_epoch, unpack_policy
from spark_throttle.core.events import lent_turn, next_event_ms
from spark_throttle.core.grants import Buckets, claims_of, lend, used_by_scope
from spark_throttle.core.matching import match
from spark_throttle.core.policy_change import carried_shared
from spark_throttle.core.quota import MICRO, NEVER_MS, CompiledPolicy, Int64s
from spark_throttle.core.sharding import shard_of
from spark_throttle.core.shares import refill_share, settle_share, under_share
from spark_throttle.core.token_bucket import admissible_messages
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError

logger = logging.getLogger(__name__)

BATCHES_RETAINED = 100
"""Spark's own default: so many batches a checkpoint can be put back."""

_PRUNED_EVERY = 100
"""Epochs. As many are kept in addition, for Spark's log may be pruned later than ours."""

_EPOCHS_TO_WARM_UP = 2

_LEASE_WAIT_MS = 1_000
"""After so long it is asked again whether a job that shares its quotas has a lease."""


class PolicySource(Protocol):
    """Whatever says what the policies are now."""

    def current(self) -> PolicySnapshot:
        """Return the policies in force; called at every trigger, so it must be cheap while nothing changes."""


@dataclass(frozen=True, slots=True)
class EpochName:
    """What an offset says of an epoch."""

    number: int
    """0 before the first."""

    file: str


NO_EPOCH = EpochName(0, "")


class ControlPlane:
    """Decides when an epoch is due, and makes it.

    Parameters
    ----------
    directory
        Where epochs, policy revisions and feedback are kept: inside the query's checkpoint.
    clock
        What time it is.
    shared
        This job's part of quotas that several jobs share; `None` where it has them for itself.
    batches_retained
        How many batches the checkpoint can be put back (``spark.sql.streaming.minBatchesToRetain``).
    fence
        Tells whether the directory is still this run's.
    """

    def __init__(  # noqa: PLR0913 - what it works with, given once
        self,
        directory: Directory,
        policies: PolicySource,
        direction: Direction,
        shards: int,
        clock: Clock | Callable[[], int],
        shared: SharedQuotas | None = None,
        *,
        batches_retained: int = BATCHES_RETAINED,
        fence: RunFence | None = None,
    ) -> None:
        self._directory = directory
        self._policies = policies
        self._direction: Direction = direction
        self._shards = shards
        self._clock = Clock.of(clock)
        self._shared = shared
        self._batches_retained = batches_retained
        self._fence = fence
        self._epochs: dict[EpochName, Epoch] = {}
        self._compiled: dict[str, CompiledPolicy] = {}
        self._snapshot: tuple[PolicySnapshot, CompiledPolicy] | None = None
        self._last_report: dict[int, UsageReport] = {}
        self._unsettled: dict[int, list[UsageReport]] = {}
        self._newest_batch = -1
        self._planned: Epoch | None = None
        self._event: tuple[Epoch | None, int, int] = None, -1, NEVER_MS
        self._warned_of = ""
        self._epochs_made = 0

    def next_epoch(self, start: EpochName) -> EpochName:
        """Return the epoch that the next batch is planned with: a new one if one is due, else `start`."""
        policy = self._policy_in_force()
        if start == NO_EPOCH:
            refuse_past(self._directory)
            self._begin()
            return self._make(1, policy, None, -1, moment_after(None, self._clock))
        self._planned = epoch = self.load(start)
        moment = moment_after(epoch, self._clock)
        now_ms = moment.paid_ms
        self._take_in_reports(epoch, now_ms)
        if not moment.is_off and not self._is_due(epoch, policy, now_ms):
            return start
        before = self._policy(epoch)
        missing = self._missing_shards()
        if missing:
            logger.warning(
                "epoch %d: no usage report of shards %s; their whole grants count as used", epoch.number, missing
            )
        settled = self._settled(epoch, before, now_ms)
        advance_micro = self._advance(epoch, before, policy)
        self._warn_if_slow(policy, now_ms)
        if epoch.share_micro_per_ms is not None:
            # The time since was earned at the share of then, by the process that held the lease.
            paid_ms = 0 if self._shared is None else self._shared.paid_until_ms(start.file, now_ms=now_ms)
            settled = refill_share(settled, before, epoch.share_micro_per_ms, now_ms=max(settled.as_of_ms, paid_ms))
            settled = Buckets(settled.balance_micro, now_ms)
        # The time until now is paid at the rates that were in force.
        buckets = settled if self._shared is not None else settled.refill(before, now_ms=now_ms)
        if policy.revision != before.revision:
            buckets = Buckets(carried_shared(buckets.balance_micro, before, policy), buckets.as_of_ms)
        settled_batch = max(self._unsettled, default=epoch.settled_batch)
        name = self._make(epoch.number + 1, policy, buckets, settled_batch, moment, advance_micro)
        forget_reports(self._directory, before_batch=epoch.settled_batch)  # `_make` asked whether they are this run's
        return name

    def wait_ms(self) -> int | None:
        """Return how long until a waiting row may leave, 0 if one may now, `None` if none ever will by itself.

        A row that nothing holds but a share of 0 leaves when the job has a lease: nobody knows when that is.
        """
        now_ms = moment_after(self._planned, self._clock).paid_ms
        event_ms = self._next_event_ms(self._planned, now_ms)
        if event_ms >= NEVER_MS:
            return _LEASE_WAIT_MS if self._waits_for_a_lease(self._planned, now_ms) else None
        return max(0, event_ms - now_ms)

    def load(self, name: EpochName) -> Epoch:
        """Return an epoch.

        Raises
        ------
        EpochMissingError
            If its file is gone.
        DamagedError
            If its file is not what was written.
        """
        self._begin()
        if name not in self._epochs:
            path = self._directory.path(f"epochs/{name.file}")
            content = self._directory.read(f"epochs/{name.file}")
            if content is None:
                raise EpochMissingError(name.number, path)
            self._remember(name, unpack_epoch(content, f"the epoch file {path}"))
        return self._epochs[name]

    def _remember(self, name: EpochName, epoch: Epoch) -> None:
        """Keep an epoch at hand, with the one before it: a batch lies between the two."""
        self._epochs = {**dict(list(self._epochs.items())[-1:]), name: epoch}
        needed = {epoch.revision for epoch in self._epochs.values()}
        self._compiled = {revision: policy for revision, policy in self._compiled.items() if revision in needed}

    def policy_for(self, start: EpochName, end: EpochName) -> CompiledPolicy | None:
        """Return the policy that batches of `end` apply, or `None` if those of `start` applied the same."""
        before = self.load(start).revision if start != NO_EPOCH else None
        epoch = self.load(end)
        return None if epoch.revision == before else self._policy(epoch)

    def forget_before(self, name: EpochName) -> None:
        """Delete the files that no batch which Spark retains can need; called once the batch of `name` is committed.

        A batch has one epoch at most, so what `batches_retained` batches need is among as many epochs.
        """
        if name.number % _PRUNED_EVERY:
            return
        self._check_fence()
        needed = {self._policy_in_force().revision}
        for file in self._directory.names("epochs"):
            number, _, rest = file.partition("-")
            if int(number) < name.number - self._batches_retained - _PRUNED_EVERY:
                self._directory.delete(f"epochs/{file}")
            else:
                # An epoch's file is named by its number, its digest and its revision.
                needed.add(rest.partition("-")[2] or self.load(EpochName(int(number), file)).revision)
        for revision in self._directory.names("policies"):
            if revision not in needed:
                self._directory.delete(f"policies/{revision}")
                self._compiled.pop(revision, None)

    def _policy_in_force(self) -> CompiledPolicy:
        snapshot = self._policies.current()
        if self._snapshot is None or self._snapshot[0] is not snapshot:
            is_same = self._snapshot is not None and self._snapshot[0].document is snapshot.document
            policy = (
                self._snapshot[1] if self._snapshot and is_same else compile_policy(snapshot.document, self._direction)
            )
            write_followed(self._directory, Followed(policy.revision, snapshot.store_revision, snapshot.problem))
            self._snapshot = (snapshot, policy)
        return self._snapshot[1]

    def _policy(self, epoch: Epoch) -> CompiledPolicy:
        """Return the revision that an epoch names, whatever is in force by now."""
        revision = epoch.revision
        if revision not in self._compiled:
            path = self._directory.path(f"policies/{revision}")
            content = self._directory.read(f"policies/{revision}")
            if content is None:
                raise EpochMissingError(epoch.number, path)
            self._compiled[revision] = unpack_policy(content, f"the policy revision {path}")
        return self._compiled[revision]

    def _begin(self) -> None:
        """Take the directory over, now that this run goes on in it."""
        if self._fence is not None:
            self._fence.begin()

    def _check_fence(self) -> None:
        if self._fence is not None:
            self._fence.check()

    def _take_in_reports(self, epoch: Epoch, now_ms: int) -> None:
        """Read the reports that came since the last call; at a start, all that are kept."""
        if newest_batch(self._directory) != self._newest_batch:
            for batch, reports in read_reports(self._directory, after_batch=self._newest_batch).items():
                if any(report.epoch > epoch.number for report in reports):
                    # The checkpoint was rolled back to before this batch, which will run and report anew; unless this
                    # run was taken over, and it is the other's.
                    self._check_fence()
                    forget_reports(self._directory, from_batch=batch)
                    break
                self._last_report.update({report.shard: report for report in reports})
                if self._shared is not None:
                    self._shared.add(reports, now_ms=now_ms)
                self._unsettled[batch] = reports
            self._newest_batch = newest_batch(self._directory)
        for batch in [batch for batch in self._unsettled if batch <= epoch.settled_batch]:
            del self._unsettled[batch]

    def _is_due(self, epoch: Epoch, policy: CompiledPolicy, now_ms: int) -> bool:
        if policy.revision != epoch.revision or (self._shared is None) != (epoch.share_micro_per_ms is None):
            return True
        if self._shared is not None and epoch.share_micro_per_ms is not None:
            is_waiting = any(report.waiting.any() for report in self._last_report.values())
            if self._shared.is_due(policy, epoch.share_micro_per_ms, now_ms=now_ms, is_waiting=is_waiting):
                return True
        # Every batch reports before it is committed: without a report, this epoch's batch ran and its report is lost.
        has_moved = any(_has_moved(reports) for reports in self._unsettled.values())
        return not self._unsettled or has_moved or self._next_event_ms(epoch, now_ms) <= now_ms

    def _next_event_ms(self, epoch: Epoch | None, now_ms: int) -> int:
        """Return when a row that waits after `epoch`'s batches may leave or expire."""
        if epoch is None or not self._unsettled:
            return NEVER_MS
        if self._event[0] is not epoch or self._event[1] != self._newest_batch:
            policy = self._policy(epoch)
            reports = [_rematched(report, policy) for report in self._last_report.values()]
            in_force = under_share(policy, epoch.share_micro_per_ms)
            event_ms = next_event_ms(reports, self._settled(epoch, policy, now_ms), in_force)
            self._event = epoch, self._newest_batch, event_ms
        return self._event[2]

    def _waits_for_a_lease(self, epoch: Epoch | None, now_ms: int) -> bool:
        """Return whether a row would leave if the job had the shared quotas whole."""
        if self._shared is None or epoch is None or not self._unsettled:
            return False
        policy = self._policy(epoch)
        reports = [_rematched(report, policy) for report in self._last_report.values()]
        return next_event_ms(reports, self._settled(epoch, policy, now_ms), policy) < NEVER_MS

    def _missing_shards(self) -> list[int]:
        found = {report.shard for reports in self._unsettled.values() for report in reports}
        return sorted(set(range(self._shards)) - found)

    def _settled(self, epoch: Epoch, policy: CompiledPolicy, now_ms: int) -> Buckets:
        """Return the buckets of `epoch` less what was used; a shard without a report has used all it was lent."""
        buckets, share = epoch.buckets, epoch.share_micro_per_ms
        for reports in self._unsettled.values():
            used = used_by_scope(reports, policy)
            buckets = settle_share(buckets, used, policy, share, at_ms=min(reports[0].as_of_ms, now_ms))
        missing = self._missing_shards()
        if missing:
            lent = epoch.lending.balance_micro[missing]
            used = np.where([True, False], admissible_messages(lent), np.maximum(lent // MICRO, 0)).sum(axis=0)
            # What a lease has earned since then, this process cannot tell.
            at_ms = now_ms if share is None else buckets.as_of_ms
            buckets = settle_share(buckets, used, policy, share, at_ms=at_ms)
        return buckets

    def _advance(self, epoch: Epoch, before: CompiledPolicy, after: CompiledPolicy) -> Int64s:
        """Return how far each shard is ahead in the scopes of `after`."""
        reports = [report for batch in self._unsettled.values() for report in batch]
        advance_micro = advance_after(epoch.lending, reports, before)
        if before.revision == after.revision:
            return advance_micro
        now = [_rematched(report, after) for report in reports]
        return carried_advance(advance_micro, scopes_that_stand(before, after, reports, now))

    def _warn_if_slow(self, policy: CompiledPolicy, now_ms: int) -> None:
        """Say once a revision that batches take longer than a bucket fills: such a quota cannot be reached.

        The first batches of a run do not count: they start workers, or follow a time in which nothing ran.
        """
        if self._epochs_made < _EPOCHS_TO_WARM_UP:
            return
        batches_ms = [reports[0].as_of_ms for reports in self._unsettled.values() if _has_moved(reports)]
        elapsed_ms = now_ms - min(batches_ms, default=now_ms)
        rate, burst = policy.shared.rate_micro_per_ms, policy.shared.burst_micro
        is_slow = (rate > 0) & (elapsed_ms > burst // np.maximum(rate, 1))
        if is_slow.any() and self._warned_of != policy.revision:
            self._warned_of = policy.revision
            logger.warning(
                "the last batch took %d ms, longer than %d of %d quotas save up: what comes in during such a batch "
                "cannot all be granted; raise burst_seconds above %d",
                elapsed_ms, int(is_slow.any(axis=1).sum()), len(policy.shared), -(-elapsed_ms // 1000),
            )  # fmt: skip

    def _make(
        self,
        number: int,
        policy: CompiledPolicy,
        buckets: Buckets | None,
        settled_batch: int,
        moment: Moment,
        advance_micro: Int64s | None = None,
    ) -> EpochName:
        """Write an epoch, and the policy that it names, and return its name; without buckets, new ones are full."""
        self._check_fence()
        now_ms = moment.paid_ms
        reports = [_rematched(report, policy) for report in self._last_report.values()]
        share = None if self._shared is None else self._shared.begin_epoch(policy, now_ms=now_ms)
        in_force = under_share(policy, share)
        if buckets is None:
            buckets = Buckets.full(in_force, now_ms=now_ms)
        elif share is not None:
            buckets = refill_share(Buckets(buckets.balance_micro, now_ms), policy, share, now_ms=now_ms)
        claims = claims_of(reports, policy)
        lending = lent_turn(
            reports,
            replace(buckets, as_of_ms=now_ms),
            in_force,
            lambda turn: lend(
                buckets, claims, in_force, shards=self._shards, turn=turn, advance_micro=advance_micro,
                is_by_turn=turn != number,
            ),
            number,
        )  # fmt: skip
        held = Buckets(buckets.balance_micro, now_ms)
        epoch = Epoch(number, policy.revision, held, lending, settled_batch, share, moment.reading)
        if policy.revision not in self._compiled:
            self._directory.write(f"policies/{policy.revision}", pack_policy(policy))
            self._compiled[policy.revision] = policy
        block = pack_epoch(epoch)
        digest = hashlib.sha256(block).hexdigest()[:16]
        name = EpochName(number, f"{number:012d}-{digest}-{policy.revision}")
        self._directory.write(f"epochs/{name.file}", block)
        if self._shared is not None:
            self._shared.end_epoch(name.file)
        self._epochs_made += 1
        self._remember(name, epoch)
        return name


def _has_moved(reports: list[UsageReport]) -> bool:
    """Return whether a batch brought or moved rows."""
    return any(
        report.invalid_messages or report.offered.any() or report.admitted.any() or report.rejected.any()
        for report in reports
    )


def _rematched(report: UsageReport, policy: CompiledPolicy) -> UsageReport:
    """Return a report with its indices in `policy`."""
    if report.revision == policy.revision:
        return report
    found = match(report.names, policy)
    weight = np.where(found.is_exempt, 0, policy.namespace_limits.weight[found.rule])
    # Its own limits may be others by now, so that its rows may leave at once.
    leaves_ms = None if report.leaves_ms is None else np.where(report.waiting[:, 0] > 0, report.as_of_ms, NEVER_MS)
    return replace(
        report, revision=policy.revision, tenant=found.tenant, group=found.group, weight=weight, leaves_ms=leaves_ms
    )


def slice_of(policy: CompiledPolicy, shard: int, shards: int) -> CompiledPolicy:
    """Return what one shard needs of a policy: all but the names of namespaces that live in other shards."""
    here = shard_of(policy.namespace_names, shards) == shard
    unnamed = np.arange(len(policy.namespace_names), len(policy.namespace_limits))
    rows = np.concatenate([np.flatnonzero(here), unnamed])
    exempt_here = shard_of(policy.exempt_names, shards) == shard
    return replace(
        policy,
        namespace_names=policy.namespace_names.filter(pa.array(here)),
        exempt_names=policy.exempt_names.filter(pa.array(exempt_here)),
        namespace_limits=policy.namespace_limits.take(rows),
        namespace_windows=policy.namespace_windows.take(rows),
        namespace_group=policy.namespace_group[rows],
    )
