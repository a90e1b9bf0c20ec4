"""The control plane of one job: when a new epoch is due, and what it contains.

Everything that a batch depends on, except its rows, is written into an epoch before the batch is planned, and the
batch's offset names the epoch. So a batch that is run again, after a crash, on another machine or with other policies
in force, finds what it found the first time. Clocks are read here, and nowhere in the data path: tokens are earned by
a clock that is never set (`clock`), and every epoch pins its reading.

An epoch is due when the policies or the job's shares have changed, when the last batch brought or moved rows, when a
waiting row may by now leave or expire, or when the wall clock was set. When nothing waits and nothing arrives, none is
due, and an idle query runs no batch. Grants then stand and grow (`core.state.Grants`), so the first rows after a pause
are served at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.checkpoint.handover import read_handover
from spark_throttle.checkpoint.manifest import Resharding
from spark_throttle.control.charges import put_away_charges
from spark_throttle.control.clock import Clock, Moment, Occasion, moment_after
from spark_throttle.control.epochs import BATCHES_RETAINED, NO_EPOCH, EpochName, Epochs
from spark_throttle.control.next_policies import NextPolicies, write_next_policies
from spark_throttle.control.pulse import Pulse
from spark_throttle.control.rejection_notice import RejectionNotice
from spark_throttle.control.run_fence import RunFence, refuse_past
from spark_throttle.control.settling import Settling
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.control.shared_scopes import is_shared
from spark_throttle.core.codec import Epoch
from spark_throttle.core.lending.destinations import DestinationRates, rates_after
from spark_throttle.core.lending.events import lent_turn, next_event_ms
from spark_throttle.core.lending.grants import Buckets, claims_of, lend
from spark_throttle.core.lending.owed_time import with_owed
from spark_throttle.core.lending.shares import lacks_messages, refill_share, under_share
from spark_throttle.core.limits.message_limits import under_time
from spark_throttle.core.policy_change import carried_shared
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Int64s
from spark_throttle.core.time_codec import EpochTime
from spark_throttle.core.time_quota.time_in_force import PolicyInForce
from spark_throttle.core.time_quota.time_ledger import TimeLedger
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import Direction
from spark_throttle.policy.source import PolicySnapshot, PolicySource

logger = logging.getLogger(__name__)

_EPOCHS_TO_WARM_UP = 2

_EPOCHS_TO_PUT_AWAY = 100
"""Where no quota on processing time is set, charges are put away after so many epochs: nothing reads them."""

_DESTINATIONS_ARE_NOT_SHARED = (
    "the policy has a resource group with a destination, whose rate follows what this job alone is told, and this job "
    "shares its quotas with others: leave out `destination`, or the exchange"
)
_UNSENT_WAIT_MS = 1_000
"""How long to wait before a batch for nothing but rows that a destination did not take."""

_LEASE_WAIT_MS = 1_000
"""How long to wait before checking again whether a job that shares its quotas has a lease."""

_LOOK_INTERVAL_MS = 1_000
"""Time between two looks at an object store while no batch runs: Spark asks every 10 ms, and each look is a request."""


@dataclass(frozen=True, slots=True, eq=False)
class _Left:
    """What an epoch leaves to the next one."""

    buckets: Buckets
    settled_batch: int = -1
    advance_micro: Int64s | None = None
    owed_ms: Int64s | None = None
    interval_ms: int = 0
    time: TimeLedger | None = None
    destinations: DestinationRates | None = None


class ControlPlane:
    """The planner of a job's epochs: it decides when an epoch is due, and makes it.

    Parameters
    ----------
    directory
        Where epochs, policy revisions and feedback are kept: inside the query's checkpoint.
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
    resharding
        The last change of the number of shards; `None` where it never changed.
    are_policies_on_disk
        Whether to ask for the policies costs next to nothing: no request to a store.
    """

    def __init__(  # noqa: PLR0913 - its collaborators, given once
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
        pulse: Pulse | None = None,
        resharding: Resharding | None = None,
        are_policies_on_disk: bool = True,
    ) -> None:
        self._directory = directory
        self._pulse = pulse
        self._policies = policies
        self._direction: Direction = direction
        self._shards = shards
        self._clock = Clock.of(clock)
        self._shared = shared
        self.epochs = Epochs(directory, fence, batches_retained=batches_retained)
        """The epochs that it made, by name."""

        self._resharding = resharding
        last = -1 if resharding is None else int(resharding.handover.partition("-")[0])
        self._settling = Settling(directory, shards, self.epochs.check_fence, resharded_after=last)
        self._snapshot: tuple[PolicySnapshot, CompiledPolicy] | None = None
        self._planned: Epoch | None = None
        self._event: tuple[Epoch | None, int, int] = None, -1, NEVER_MS
        self._rejections = RejectionNotice()
        self._warned_of = ""
        self._ends_when_drained = False
        self._epochs_made = 0
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
            refuse_past(self._directory)
            self.epochs.begin()
            return self._make(1, self._policy_in_force(), None, moment_after(None, self._clock))
        last, epoch = self._planned, self.epochs.load(start)
        self._planned = epoch
        handover = self._handover_after(start, epoch)
        looks = self._look.comes() or epoch is not last or ends_when_drained
        policy = self._policy_in_force() if looks else self._policy_seen()
        moment = moment_after(epoch, self._clock)
        now_ms = moment.paid_ms
        for reports in self._settling.take_in(epoch) if looks else ():
            self._rejections.look(reports)
            if self._shared is not None:
                self._shared.add(reports, now_ms=now_ms)
        if not moment.is_off and not handover and not self._is_due(epoch, policy, now_ms):
            return start
        before = self.epochs.policy(epoch)
        missing = self._settling.missing_shards(epoch)
        if missing:
            logger.warning(
                "epoch %d: no usage report from shards %s; their whole grants count as used", epoch.number, missing
            )
        settled = self._settling.settled(epoch, before, now_ms)
        advance_micro = self._settling.advance(epoch, before, policy)
        self._warn_if_slow(policy, now_ms)
        leased_until_ms = self._leased_until_ms(epoch, start, settled, now_ms=now_ms)
        buckets = _paid(settled, epoch, before, leased_until_ms, now_ms=now_ms)
        time = self._settling.settled_time(epoch, before, buckets, leased_until_ms=leased_until_ms)
        if policy.revision != before.revision:
            buckets = Buckets(carried_shared(buckets.balance_micro, before, policy), buckets.as_of_ms)
            time = None if time is None else time.carried(before, policy)
        left = _Left(
            buckets, self._settling.newest_settled(epoch), advance_micro,
            self._settling.owed_ms(epoch, before, policy, now_ms, is_own=self._has_pinned(start)),
            now_ms - epoch.buckets.as_of_ms, time,
            rates_after(
                epoch.destinations, before, self._settling.told(), policy, elapsed_ms=now_ms - epoch.buckets.as_of_ms
            ),
        )  # fmt: skip
        name = self._make(epoch.number + 1, policy, left, moment, handover)
        self._settling.put_away(before_batch=epoch.settled_batch)  # `_make` checked that they are this run's
        if epoch.time is not None or epoch.number % _EPOCHS_TO_PUT_AWAY == 0:
            put_away_charges(self._directory, before_batch=epoch.settled_batch)
        return name

    def _leased_until_ms(self, epoch: Epoch, start: EpochName, settled: Buckets, *, now_ms: int) -> int | None:
        """Return the paying time up to which scopes that jobs share earn; `None` if this job never shared any.

        After the settled batches they earn only while this process, having made `epoch`, holds the lease.
        """
        if self._shared is None:
            return None if epoch.share_micro_per_ms is None else settled.as_of_ms
        return max(settled.as_of_ms, self._shared.paid_until_ms(start.file, now_ms=now_ms))

    def _handover_after(self, start: EpochName, epoch: Epoch) -> str:
        """Return the handover with which the shards begin after the last epoch of the former ones; else no name.

        Raises
        ------
        CheckpointMismatchError
            If the epoch lends to another number of shards, and is not that last one.
        """
        if not self._settling.is_of_former_shards(epoch):
            return ""
        name = "" if self._resharding is None else self._resharding.handover
        if not name or read_handover(self._directory, name).epoch_file != start.file:
            raise CheckpointMismatchError(
                f"the control directory {self._directory.location}",
                f"is of {self._shards} shards, and the checkpoint goes on from epoch {epoch.number}, which is of "
                f"{len(epoch.lending.balance_micro)}",
                "the two were not put back together: restore both from one backup",
            )
        return name

    def _has_pinned(self, name: EpochName) -> bool:
        """Return whether this run made the epoch, as one that shares quotas."""
        return self._shared is not None and self._shared.has_pinned(name.file)

    def handovers(self, epoch: Epoch, keys: Sequence[int]) -> dict[int, tuple[str, bytes | None]]:
        """Return what becomes of the states of keys with an epoch, by key; empty if the epoch begins no new shards.

        For each key: the digest of its former shard's state, and the state with which its new shard begins.

        Parameters
        ----------
        keys
            The key of every shard.
        """
        if not epoch.handover:
            return {}
        found = read_handover(self._directory, epoch.handover)
        states = {key: found.state(self._directory, shard) for shard, key in enumerate(keys)}
        return {key: (found.former.get(key, ""), states.get(key)) for key in found.former.keys() | states.keys()}

    def wait_ms(self) -> int | None:
        """Return how long until a waiting row may leave or expire: 0 if at once, `None` if none ever will by itself.

        A row that only a share of 0 holds back leaves once the job has a lease: nobody knows when that will be.
        """
        now_ms = moment_after(self._planned, self._clock).paid_ms
        event_ms = self._next_event_ms(self._planned, now_ms)
        if event_ms >= NEVER_MS:
            return _LEASE_WAIT_MS if self._waits_for_a_lease(self._planned, now_ms) else None
        return max(0, event_ms - now_ms)

    def note_batch(self) -> None:
        """Note that a batch is planned, which will report, so that the next look is not put off."""
        self._look.call_for()

    def forget_before(self, name: EpochName) -> None:
        """Delete the files that no batch retained by Spark can need; called once the batch of `name` is committed."""
        self.epochs.forget_before(name, self._policy_seen().revision)

    def stop(self) -> None:
        """End the threads beside the batches; called when the query's reader ends, but not if its process is killed."""
        if self._shared is not None:
            self._shared.stop()
        if self._pulse is not None:
            self._pulse.stop()

    def _policy_seen(self) -> CompiledPolicy:
        """Return the policy that was in force at the last look."""
        return self._policy_in_force() if self._snapshot is None else self._snapshot[1]

    def _policy_in_force(self) -> CompiledPolicy:
        snapshot = self._policies.current()
        if self._snapshot is None or self._snapshot[0] is not snapshot:
            is_same = self._snapshot is not None and self._snapshot[0].document is snapshot.document
            policy = (
                self._snapshot[1] if self._snapshot and is_same else compile_policy(snapshot.document, self._direction)
            )
            problem = snapshot.problem
            if self._shared is not None and policy.destinations is not None:
                if self._snapshot is None:
                    raise ConfigurationError(_DESTINATIONS_ARE_NOT_SHARED)
                policy, problem = self._snapshot[1], _DESTINATIONS_ARE_NOT_SHARED
            self.epochs.check_fence()
            write_next_policies(self._directory, NextPolicies(policy.revision, snapshot.store_revision, problem))
            self._snapshot = (snapshot, policy)
        return self._snapshot[1]

    def _is_due(self, epoch: Epoch, policy: CompiledPolicy, now_ms: int) -> bool:
        if policy.revision != epoch.revision or (self._shared is None) != (epoch.share_micro_per_ms is None):
            return True
        shared, share, is_waiting = self._shared, epoch.shares, self._settling.is_waiting
        if (
            shared is not None
            and share is not None
            and shared.is_due(policy, share, now_ms=now_ms, is_waiting=is_waiting)
        ):
            return True
        # Every batch reports before it is committed: without a report, this epoch's batch ran, and its report was lost.
        is_over = not self._settling.has_reports or self._settling.has_moved
        return is_over or self._next_event_ms(epoch, now_ms) <= now_ms

    def _next_event_ms(self, epoch: Epoch | None, now_ms: int) -> int:
        """Return when a row that waits after `epoch`'s batches may leave or expire."""
        if epoch is None or not self._settling.has_reports:
            return NEVER_MS
        if self._event[0] is not epoch or self._event[1] != self._settling.newest_batch:
            time_share = None if epoch.time is None else epoch.time.share_ns_per_ms
            event_ms = self._event_under(
                under_share(self.epochs.policy(epoch), epoch.share_in_force, time_share), epoch, now_ms
            )
            event_ms = min(event_ms, self._destinations_event_ms(epoch))
            self._event = epoch, self._settling.newest_batch, event_ms
        return self._event[2]

    def _destinations_event_ms(self, epoch: Epoch) -> int:
        """Return when rows that a destination did not take are to be sent, or an epoch may say that they were."""
        rates, told = epoch.destinations, self._settling.told()[-1:]
        if rates is None or not told:
            return NEVER_MS
        given_up = set[str]()
        if self._ends_when_drained and self._epochs_made:
            given_up = rates.unavailable(self.epochs.policy(epoch))
        if any(each.unsent_messages and (each.accepted or name not in given_up) for name, each in told[0].items()):
            return epoch.buckets.as_of_ms + _UNSENT_WAIT_MS
        were_sent = any(not each.unsent_messages for each in told[0].values())
        return epoch.buckets.as_of_ms if were_sent and bool(rates.unsent_messages.any()) else NEVER_MS

    def _waits_for_a_lease(self, epoch: Epoch | None, now_ms: int) -> bool:
        """Return whether a waiting row would ever leave or expire if the job had the whole of its shared quotas."""
        if self._shared is None or epoch is None or not self._settling.has_reports:
            return False
        return self._event_under(self.epochs.policy(epoch), epoch, now_ms) < NEVER_MS

    def _event_under(self, policy: CompiledPolicy, epoch: Epoch, now_ms: int) -> int:
        """Return when a row may leave or expire at the rates of `policy`: the epoch's, with or without its shares."""
        own = self.epochs.policy(epoch)
        settled = self._settling.settled(epoch, own, now_ms)
        reports = self._settling.last_under(policy)
        timed = PolicyInForce.of(policy, settled, self._settling.settled_time(epoch, own, settled), reports)
        return next_event_ms(reports, timed.buckets, timed.policy)

    def _warn_if_slow(self, policy: CompiledPolicy, now_ms: int) -> None:
        """Warn, once per revision, that a batch takes longer than a bucket to fill: such a quota cannot be reached.

        The first batches of a run do not count: they start workers, or follow a time in which nothing ran.
        """
        if self._epochs_made < _EPOCHS_TO_WARM_UP:
            return
        elapsed_ms = now_ms - self._settling.began_ms(now_ms)
        rate, burst = policy.shared.rate_micro_per_ms, policy.shared.burst_micro
        is_slow = (rate > 0) & (elapsed_ms > burst // np.maximum(rate, 1))
        if (time := policy.shared.time) is not None:
            is_short = (time.rate_ns_per_ms > 0) & (elapsed_ms > time.burst_ns // np.maximum(time.rate_ns_per_ms, 1))
            is_slow = is_slow | is_short[:, None]
        if is_slow.any() and self._warned_of != policy.revision:
            self._warned_of = policy.revision
            first, *others = np.flatnonzero(is_slow.any(axis=1)).tolist()
            logger.warning(
                "the last batch took %d ms, longer than the bucket of %s takes to fill%s: not all that arrives during "
                "such a batch can be granted; raise burst_seconds above %d",
                elapsed_ms, _scope_in_words(policy, first), f" (and {len(others)} more)" if others else "",
                -(-elapsed_ms // 1000),
            )  # fmt: skip

    def _check_fence_and_go_on(self) -> None:
        """Refuse to go on if the directory is another run's; if it is this run's, so is its place in the exchange."""
        yields = self._shared is not None and self._shared.may_go_on
        self.epochs.check_fence()
        if self._shared is not None and yields:
            self._shared.go_on()

    def _make(
        self, number: int, policy: CompiledPolicy, left: _Left | None, moment: Moment, handover: str = ""
    ) -> EpochName:
        """Write an epoch and the policy that it names, and return its name; in the first one, all buckets are full."""
        self._check_fence_and_go_on()
        now_ms = moment.paid_ms
        reports = self._settling.last_under(policy)
        shares, share, time_share, in_force = None, None, None, policy
        if self._shared is not None:
            prices = None if left is None or left.time is None else left.time.shared
            shares = self._shared.begin_epoch(policy, prices, now_ms=now_ms)
            share, time_share = shares[:, :2].copy(), None if policy.shared.time is None else shares[:, 2].copy()
            in_force = under_share(policy, share, time_share)
        destinations = rates_after(None, None, [], policy, elapsed_ms=0) if left is None else left.destinations
        bounded = None if destinations is None else destinations.share(None, len(policy.shared))
        if bounded is not None:
            in_force = under_share(policy, bounded)
        if left is None:
            left = _Left(Buckets.full(in_force, now_ms=now_ms))
        buckets, time = left.buckets, _ledger(in_force, left.time, now_ms)
        if destinations is not None:
            balance_micro = destinations.room_left(buckets.balance_micro, policy)
            buckets = refill_share(Buckets(balance_micro, now_ms), policy, bounded, now_ms=now_ms)
        if self._shared is not None and shares is not None:
            buckets = refill_share(Buckets(buckets.balance_micro, now_ms), policy, share, now_ms=now_ms)
            time = None if time is None else time.refilled(in_force, now_ms=now_ms)
            balance_ns = np.zeros(len(shares), dtype=np.int64) if time is None else time.shared.balance_ns
            balances = np.column_stack([buckets.balance_micro, balance_ns])
            self._shared.keep_until_repaid(policy, balances, shares, now_ms=now_ms)
        outlook = self._settling.outlook(reports, policy, interval_ms=left.interval_ms)
        timed = PolicyInForce.of(in_force, replace(buckets, as_of_ms=now_ms), time, reports)
        claims = claims_of(reports, policy, timed.limits)
        advance_micro = left.advance_micro
        if advance_micro is not None and time is not None:
            advance_micro = np.where(timed.policy.shared.is_limited, advance_micro, 0)
        lending = lent_turn(
            reports,
            timed.buckets,
            timed.policy,
            lambda turn: lend(
                timed.buckets, claims, timed.policy, shards=self._shards, turn=turn, advance_micro=advance_micro,
                is_by_turn=turn != number, outlook=outlook,
            ),
            number,
        )  # fmt: skip
        lending = with_owed(lending, left.owed_ms, outlook, under_time(policy, timed.limits))
        held = Buckets(buckets.balance_micro, now_ms)
        epoch_time = None
        if time is not None and (limits := timed.limits) is not None:
            if share is not None and time_share is not None:
                limits = limits.unleased(lacks_messages(share, time_share, policy))
            epoch_time = EpochTime(time, limits, time_share)
        epoch = Epoch(
            number, policy.revision, held, lending, left.settled_batch, share, moment.reading, left.owed_ms, epoch_time,
            destinations, handover,
        )  # fmt: skip
        name = self.epochs.write(epoch, policy)
        if self._shared is not None:
            self._shared.end_epoch(name.file)
        self._epochs_made += 1
        return name


def _paid(
    settled: Buckets, epoch: Epoch, before: CompiledPolicy, leased_until_ms: int | None, *, now_ms: int
) -> Buckets:
    """Return the settled buckets with the time up to now paid, at the rates that were in force.

    A scope that jobs share earns at the share that `epoch` pins, and as long as it was leased.
    """
    bounded = None if epoch.destinations is None else epoch.destinations.share(None, len(before.shared))
    own = refill_share(settled, before, bounded, now_ms=now_ms)
    if leased_until_ms is None:
        return own
    share, leased = epoch.share_in_force, settled
    if share is not None:
        leased = refill_share(settled, before, share, now_ms=leased_until_ms)
    return Buckets(np.where(is_shared(before)[:, None], leased.balance_micro, own.balance_micro), now_ms)


def _ledger(policy: CompiledPolicy, left: TimeLedger | None, now_ms: int) -> TimeLedger | None:
    """Return the time ledger of the next epoch; `None` if the policy has no quota on processing time."""
    if not policy.has_time:
        return None
    return TimeLedger.opened(policy, now_ms=now_ms) if left is None else left.without_idle(policy)


def _scope_in_words(policy: CompiledPolicy, scope: int) -> str:
    """Return a shared scope as a sentence names it."""
    tenants = len(policy.tenant_names)
    if scope == 0:
        return "the job"
    if scope <= tenants:
        return f"tenant {policy.tenant_names[scope - 1].as_py()}"
    return f"resource group {policy.group_names[scope - 1 - tenants].as_py()}"
