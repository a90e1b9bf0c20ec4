"""What a shard remembers between two batches.

All arrays of `Flows` run over the same namespaces, and all arrays of `Queue` over the same waiting rows. A
namespace with nothing to remember (full buckets, no lead in its fair queue, nothing waiting) is not in the
table at all, and returns exactly as it left. So an idle namespace costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.limits.message_limits import MessageLimits
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Int64s

NO_BOUND: Final = 1 << 62
"""The `Grants.ahead_bound_milli` of a scope in which no flow is too far ahead."""

NO_CONTEST: Final = NO_BOUND + 1
"""The `Grants.ahead_bound_milli` of a loose scope: other scopes stop its flows first, so it has enough tokens for
everything that they let pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """The namespaces that a shard remembers."""

    names: pa.StringArray

    balance_micro: Int64s
    """Shape (n, 2), by `Dimension`: the tokens held, negative in debt; 0 where unlimited."""

    lead_vt: Int64s
    """Shape (n, 2): the virtual finish time less the domain's virtual time (`fair_queue`)."""

    window_second: Int64s
    """Shape (n,): the wall-clock second that `window_units` counts (`pegasus`)."""

    window_units: Int64s
    """Shape (n, 2): the messages and bytes that passed in `window_second`."""

    def __len__(self) -> int:
        return len(self.names)

    def take(self, at: Int64s) -> Flows:
        """Return the namespaces at `at`, in that order."""
        return Flows(
            self.names.take(pa.array(at)),
            self.balance_micro.take(at, axis=0),
            self.lead_vt.take(at, axis=0),
            self.window_second[at],
            self.window_units.take(at, axis=0),
        )

    @classmethod
    def empty(cls) -> Flows:
        """Return an empty table of namespaces."""
        pairs = np.zeros((0, 2), dtype=np.int64)
        return cls(pa.array([], pa.string()), pairs, pairs, np.zeros(0, dtype=np.int64), pairs)


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """The rows that wait, oldest first within every namespace."""

    flow: Int64s
    """The position of the row's namespace in `Flows`."""

    size_bytes: Int64s
    arrival_ms: Int64s
    """The paying time of the batch in which the row arrived."""

    release_ms: Int64s
    """The paying time before which the row may not leave; 0 where only quotas hold it back."""

    is_deferred: Bools | None = None
    """Whether the row waits for its verdict: the scope that holds it back rejects what exceeds its quota
    (`batch.deferral`). `None` if that holds for no row."""

    def __len__(self) -> int:
        return len(self.flow)

    def with_end_in(self, order: Int64s) -> Queue:
        """Return the queue with its last rows in another order, which keeps the order within every namespace.

        No decision depends on how rows of different namespaces stand in a queue.

        Parameters
        ----------
        order
            The positions of the last ``len(order)`` rows among these, each once.

        Examples
        --------
        >>> flow, nothing = np.array([5, 0, 0, 1]), np.zeros(4, dtype=np.int64)
        >>> Queue(flow, flow * 100, nothing, nothing).with_end_in(np.array([0, 2, 1])).size_bytes.tolist()
        [500, 0, 100, 0]
        """
        first = len(self) - len(order)

        def moved(values: np.ndarray) -> np.ndarray:
            return np.concatenate([values[:first], values[first:][order]])

        return Queue(
            moved(self.flow), moved(self.size_bytes), moved(self.arrival_ms), moved(self.release_ms),
            None if self.is_deferred is None else moved(self.is_deferred),
        )  # fmt: skip

    @classmethod
    def empty(cls) -> Queue:
        """Return an empty queue."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, nothing)


@dataclass(frozen=True, slots=True, eq=False)
class Deferral:
    """The tokens for which rows may wait for their verdict, where a scope rejects what exceeds its quota.

    What determines them is told in `lending.deferrals`, and what they do in `batch.deferral`.
    """

    room_micro: Int64s
    """Shape (scopes, 2): the tokens beyond the balance that all rows may wait for."""

    flow_micro: Int64s
    """Shape (scopes, 2): the tokens that a flow of weight 1 may take in a batch and wait for; `NO_BOUND` where only
    `room_micro` bounds it."""

    def of_shard(self, shard: int) -> Deferral:
        """Return the part of a shard; these arrays have the shape (shards, scopes, 2)."""
        return Deferral(self.room_micro[shard], self.flow_micro[shard])

    def grown(self, gained_micro: Int64s, in_force: Int64s, *, shards: int) -> Deferral:
        """Return these tokens after every shard has gained as much; none where the rate is 0."""
        is_shut = in_force == 0
        flow_micro = np.minimum(self.flow_micro, NO_BOUND - gained_micro * shards) + gained_micro * shards
        return Deferral(
            np.where(is_shut, 0, self.room_micro + gained_micro * (shards - 1)),
            np.where(self.flow_micro == NO_BOUND, NO_BOUND, np.where(is_shut, 0, flow_micro)),
        )


def rates_of_shares(share_micro_per_ms: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the rates that a job may use with its shares, shape (scopes, 2): never more than the quotas.

    Shares follow a quota that was lowered only when the jobs have divided it anew.
    """
    shared = policy.shared
    return np.where(shared.is_limited, np.clip(share_micro_per_ms, 0, shared.rate_micro_per_ms), UNLIMITED)


def has_no_share(share_micro_per_ms: Int64s, policy: CompiledPolicy) -> Bools:
    """Return where a job may use nothing of a quota, though the quota is not 0; shape (scopes, 2)."""
    return (share_micro_per_ms == 0) & (policy.shared.rate_micro_per_ms > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Grants:
    """A shard's part of every shared scope, until the next epoch replaces it.

    While a grant stands, it grows at the shard's part of the scope's rate, up to the shard's part of the room
    that the scope's bucket had. So the sum over the shards never exceeds what the bucket itself would hold.
    """

    epoch: int
    """The epoch that made the grants; 0 before the first."""

    balance_micro: Int64s
    """Shape (scopes, 2): the tokens granted and not yet used; negative once overdrawn."""

    headroom_micro: Int64s
    """Shape (scopes, 2): by how much the balance may still grow."""

    as_of_ms: int
    """The paying time up to which growth is counted."""

    share_micro_per_ms: Int64s | None = None
    """Shape (scopes, 2): this job's shares of the rates of the shared scopes; `None` if it shares no quota with other
    jobs."""

    ahead_bound_milli: Int64s | None = None
    """Shape (scopes, 2): how far ahead, in thousandths of a token, a flow of weight 1 must be to take none of the
    granted tokens, which are then due to others (`shard_parts`). `NO_BOUND` or `NO_CONTEST` where no flow is too far
    ahead; `None` if that holds in every scope."""

    deferral: Deferral | None = None
    """The tokens for which rows may wait for their verdict; `None` if there are none and will be none."""

    time: MessageLimits | None = None
    """The quotas on processing time as limits on messages; `None` if the policy has no such quota."""

    @property
    def is_loose(self) -> Bools | None:
        """Which scopes nobody competes for, as other scopes stop their flows first; `None` if no flow is bounded."""
        if self.ahead_bound_milli is None:
            return None
        return np.logical_or.reduce(self.ahead_bound_milli == NO_CONTEST, axis=1)

    def rate_micro_per_ms(self, policy: CompiledPolicy) -> Int64s:
        """Return the rates at which this job's shared scopes earn tokens, shape (scopes, 2)."""
        if self.share_micro_per_ms is None:
            return policy.shared.rate_micro_per_ms
        return rates_of_shares(self.share_micro_per_ms, policy)

    def expected_micro_per_ms(self, policy: CompiledPolicy) -> Int64s:
        """Return `rate_micro_per_ms`, with the quota in place of a share of 0: nobody knows how long that one lasts."""
        rate = self.rate_micro_per_ms(policy)
        return np.where(rate == 0, policy.shared.rate_micro_per_ms, rate)

    def is_unleased(self, policy: CompiledPolicy) -> Bools:
        """Return which shared scopes this job may use nothing of, though their quota is not 0, shape (scopes,).

        The job waits for a lease there: what it offers is not beyond the quota.
        """
        if self.share_micro_per_ms is None:
            return np.zeros(len(policy.shared), dtype=np.bool_)
        return by_row(np.logical_or, has_no_share(self.share_micro_per_ms, policy))

    def grown(self, policy: CompiledPolicy, *, now_ms: int, shards: int) -> Grants:
        """Return these grants as of `now_ms`; a rate of 0 admits nothing, whatever was granted."""
        elapsed_ms = max(0, now_ms - self.as_of_ms)
        in_force = self.rate_micro_per_ms(policy)
        rate, rest = np.divmod(np.maximum(in_force, 0), shards)
        # The headroom is at most a burst and a debt, below 2**62 micro-tokens: capping the time keeps the product in
        # int64.
        time_to_full_ms = -(-self.headroom_micro // np.maximum(rate, 1))
        earned = rate * np.minimum(elapsed_ms, time_to_full_ms) + rest * elapsed_ms // shards
        gained = np.minimum(earned, self.headroom_micro)
        balance = self.balance_micro + gained
        balance = np.where(in_force == 0, np.minimum(balance, -1), balance)
        deferral = None if self.deferral is None else self.deferral.grown(gained, in_force, shards=shards)
        headroom = self.headroom_micro - gained
        time = None if self.time is None else self.time.grown(elapsed_ms)
        return replace(
            self, balance_micro=balance, headroom_micro=headroom, as_of_ms=now_ms, deferral=deferral, time=time
        )


@dataclass(frozen=True, slots=True, eq=False)
class ShardState:
    """Everything that a shard's decisions depend on, other than the batch itself and the policy."""

    advanced_to_ms: int
    """The paying time (`paying`) to which all balances are refilled; 0 before the first batch."""

    flows: Flows
    queue: Queue
    grants: Grants

    @classmethod
    def initial(cls, shared_scopes: int) -> ShardState:
        """Return the state of a shard before its first batch, with nothing granted."""
        nothing = np.zeros((shared_scopes, 2), dtype=np.int64)
        return cls(0, Flows.empty(), Queue.empty(), Grants(0, nothing - 1, nothing, 0))
