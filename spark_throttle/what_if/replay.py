"""A replay decides recorded traffic in event time, by a job's own decisions, as if it had a batch each second.

Each interval is one batch of `core.batch.admission`. With intervals of a second it decides as such a job does, to the
message. With longer ones, a bucket also holds what it earns until the interval's last second: else a burst of a second
would lose nine seconds of ten. Then

- a delay is right to within an interval, and one that is shorter may not be seen;
- where a policy rejects, somewhat less is rejected: a bucket that is full in the middle of an interval goes on earning.

Every bucket is full when the replay begins, and no message waits. It ends with the last message.

Quotas on processing time are not replayed, because events do not tell what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import begins_run, largest, numbers, sums
from spark_throttle.core.batch.admission import Arrivals, plan_admission
from spark_throttle.core.batch.decisions import DIMENSIONS, Decisions, Reason
from spark_throttle.core.names.matching import MatchMemory, positions_in
from spark_throttle.core.policy_change import carried, in_windows
from spark_throttle.core.quota import (
    AMOUNTS,
    KNOWN,
    MAX_BURST_TOKENS,
    MICRO,
    NEVER_MS,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Int64s,
    Level,
    Limits,
    Overflow,
    Verdict,
)
from spark_throttle.core.state import DeciderState
from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.calendar_windows import has_ended, windows_at
from spark_throttle.what_if.sure_passage import Ways
from spark_throttle.what_if.traffic import Arrived, Traffic

_BATCH_MS: Final = 1_000
"""The job that is replayed has a batch in each second. A Pegasus rule counts by it, too."""

_MOST_MICRO: Final = MAX_BURST_TOKENS * MICRO


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What a policy did with recorded traffic; arrays of n run over `Traffic.names`."""

    offered: Int64s
    """Shape (n, 3), in the dimensions that are `KNOWN`."""

    admitted: Int64s
    rejected: Int64s
    """Shape (n, reasons): the messages rejected, by `Reason`."""

    held: Int64s
    """Shape (n, levels, dimensions): the messages that had to wait when they arrived, by the `Level` of what held
    them, and by `DIMENSIONS`. Those that wait by a Pegasus rule are in no level."""

    delays: Delays
    waiting: Int64s
    """Shape (n,): the messages that wait when the replay ends."""

    oldest_ms: Int64s
    """Shape (n,): for how long the oldest of these has waited; 0 for none."""


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """How long delayed messages waited, as counts; arrays run over pairs of a namespace and a delay."""

    name: Int64s
    """The namespace, as a position in `Traffic.names`."""

    delay_ms: Int64s
    """How long messages waited before they left: a whole number of intervals, at least one."""

    messages: Int64s

    @classmethod
    def of(cls, parts: list[Delays]) -> Delays:
        """Return delays that were counted apart as one table, in the order of namespaces and delays."""
        none = np.zeros(0, dtype=np.int64)
        name, delay_ms, messages = (
            np.concatenate([none, *(getattr(each, column) for each in parts)]) for column in cls.__slots__
        )
        in_order = np.lexsort((delay_ms, name))
        name, delay_ms, messages = name[in_order], delay_ms[in_order], messages[in_order]
        begins = np.flatnonzero(begins_run(name) | begins_run(delay_ms))
        return cls(name[begins], delay_ms[begins], np.add.reduceat(messages, begins) if len(begins) else messages)


Policies: TypeAlias = Sequence[tuple[int, CompiledPolicy]]
"""Policies that follow each other, each behind the event time from which it is in force; the first from the start."""


def in_order(policy: CompiledPolicy | Policies) -> Policies:
    """Return the policies that follow each other; a single one is in force from the start."""
    return [(0, policy)] if isinstance(policy, CompiledPolicy) else policy


def replay(traffic: Traffic, policy: CompiledPolicy | Policies) -> Replay:
    """Decide recorded traffic under a policy.

    Parameters
    ----------
    traffic
        What was sent.
    policy
        One direction of the policy, or of several that follow each other, as when exceptions end.

    Raises
    ------
    ConfigurationError
        If a Pegasus rule of the policy counts shorter than an interval.

    Examples
    --------
    One message a second for half a minute, and a quota of one each two seconds: a full bucket holds five.

    >>> from spark_throttle.policy.compile import compile_policy
    >>> from spark_throttle.policy.model import PolicyDocument
    >>> ones = {"messages": [1] * 30, "bytes": [1] * 30, "largest_bytes": [1] * 30}
    >>> sums = pa.table({"interval": range(30), "namespace": ["acme/a"] * 30, **ones})
    >>> quota = {"messages_per_second": "0.5", "burst_seconds": 10}
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": {"publish": quota}}})
    >>> found = replay(Traffic.of(sums, interval_ms=1_000), compile_policy(document, "publish"))
    >>> found.admitted.tolist(), found.waiting.tolist(), found.delays.delay_ms.tolist()
    ([[20, 20, 0]], [10], [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000])
    """
    policies = [*in_order(policy)]
    has_rules = any(each.namespace_windows.has_rule.any() for _, each in policies)
    if has_rules and traffic.interval_ms > _BATCH_MS:
        raise ConfigurationError(
            "the policy has throttling rules, which count by the second, and the interval is "
            f"{traffic.interval_ms / 1000:g} seconds; give an interval of 1 second"
        )
    first_ms = traffic.first_ms + traffic.interval_ms  # the first batch begins the job
    while len(policies) > 1 and policies[1][0] <= first_ms:
        policies.pop(0)
    widened = [(from_ms, _widened(each, traffic.interval_ms)) for from_ms, each in policies]
    ledger = _Ledger(traffic.names, widened, traffic.interval_ms)
    state, due_ms = ledger.begun()
    nothing = Arrived.none()
    for arrived in traffic.arrived():
        # Where messages wait, or the policy changes, there are batches between arrivals too.
        while (step := -(-due_ms // traffic.interval_ms)) <= arrived.number:
            state, due_ms = ledger.decided(state, nothing, now_ms=step * traffic.interval_ms)
        now_ms = (arrived.number + 1) * traffic.interval_ms
        state, due_ms = ledger.decided(state, arrived, now_ms=now_ms)
    return ledger.closed(state, end_ms=traffic.end_ms)


def _widened(policy: CompiledPolicy, interval_ms: int) -> CompiledPolicy:
    """Return a policy whose buckets hold what they earn until an interval's last batch, too, without quotas on time.

    What is guaranteed is earned and kept for as long.
    """
    more_ms = max(interval_ms - _BATCH_MS, 0)

    def wide(limits: Limits) -> Limits:
        rate = limits.rate_micro_per_ms.copy()
        rate[:, Dimension.TIME] = UNLIMITED
        earned = np.minimum(np.maximum(rate, 0), _MOST_MICRO // interval_ms) * more_ms
        burst = np.where(rate == UNLIMITED, 0, limits.burst_micro + earned)
        return replace(limits, rate_micro_per_ms=rate, burst_micro=burst)

    guarantees = policy.guarantees
    if guarantees is not None:
        most_ms = _MOST_MICRO // np.maximum(guarantees.rate_micro_per_ms, 1)
        guarantees = replace(
            guarantees, burst_ms=np.minimum(guarantees.burst_ms + more_ms, most_ms.min(axis=1)),
            earning_ms=np.minimum(guarantees.earning_ms + more_ms, most_ms),
        )  # fmt: skip
    queue = replace(policy.queue, on_overflow=Overflow.REJECT)
    return replace(
        policy, shared=wide(policy.shared), namespace_limits=wide(policy.namespace_limits), queue=queue,
        guarantees=guarantees,
    )  # fmt: skip


class _Ledger:
    """The counts of a replay, batch by batch.

    Parameters
    ----------
    names
        `Traffic.names`.
    policies
        The policies that follow each other.
    """

    def __init__(self, names: pa.StringArray, policies: Policies, interval_ms: int) -> None:
        n = len(names)
        self._names, self._interval_ms = names, interval_ms
        (_, self._policy), *self._later = policies
        self._ways = Ways.of(names, self._policy, interval_ms)
        self._memory = MatchMemory()
        self._known: tuple[pa.StringArray, Int64s] | None = None
        self._offered = np.zeros((n, len(KNOWN)), dtype=np.int64)
        self._admitted = np.zeros((n, len(KNOWN)), dtype=np.int64)
        self._rejected = np.zeros((n, len(Reason)), dtype=np.int64)
        self._held = np.zeros((n, len(Level), len(DIMENSIONS)), dtype=np.int64)
        self._delays: list[Delays] = []

    def begun(self) -> tuple[DeciderState, int]:
        """Return the state before the first batch, and when the next batch is due without an arrival."""
        return DeciderState.initial(self._policy), NEVER_MS

    def decided(self, state: DeciderState, arrived: Arrived, *, now_ms: int) -> tuple[DeciderState, int]:
        """Decide and count a batch; return the state after it, and when the next is due without an arrival."""
        while self._later and self._later[0][0] <= now_ms:
            before, (_, self._policy) = self._policy, self._later.pop(0)
            state, self._memory = carried(state, before, self._policy, now_ms=now_ms), MatchMemory()
            self._ways = Ways.of(self._names, self._policy, self._interval_ms)
        if state.windows is None or has_ended(state.windows, self._policy, now_ms):
            windows = windows_at(state.windows, self._policy, wall_ms=now_ms, paid_ms=now_ms)
            state = in_windows(state, windows, self._policy)
        next_ms = self._later[0][0] if self._later else NEVER_MS
        known = self._known_of(state)
        passing = self._ways.passing(
            state, known, arrived, now_ms=now_ms, may_forget=next_ms > now_ms + self._interval_ms
        )
        messages = np.where(passing.is_sure, passing.is_remembered, arrived.messages)
        if messages.any() or len(state.queue) or len(state.nodes) or state.flows.has_lead.any():
            state, next_ms = self._planned(state, known, arrived, messages, now_ms=now_ms)
            known = self._known_of(state)
        else:
            state = replace(state, shared=state.shared.refilled(self._policy, now_ms=now_ms).lent())
        offered = np.column_stack([arrived.messages, *arrived.totals])
        self._offered[arrived.known, : offered.shape[1]] += offered
        self._admitted[arrived.known] += passing.behind
        return self._ways.charged(state, known, arrived, passing), next_ms

    def _known_of(self, state: DeciderState) -> Int64s:
        """Return the namespaces of a state, as positions among all; they stay until a batch is planned."""
        if self._known is None or self._known[0] is not state.flows.names:
            self._known = state.flows.names, positions_in(self._names, state.flows.names)
        return self._known[1]

    def _planned(
        self, state: DeciderState, known: Int64s, arrived: Arrived, messages: Int64s, *, now_ms: int
    ) -> tuple[DeciderState, int]:
        """Decide and count so many messages of each namespace that sent any; return as `decided`."""
        at, amounts = arrived.rows(messages)
        names = pa.DictionaryArray.from_arrays(pa.array(at, pa.int32()), self._names.take(pa.array(arrived.known)))
        arrivals = Arrivals(names, pa.array(amounts[0]), units=pa.array(amounts[1]) if len(amounts) > 1 else None)
        plan = plan_admission(state, arrivals, self._policy, now_ms=now_ms, memory=self._memory)
        self._count(plan.decisions, state, known, arrived.known[at], amounts, now_ms)
        return plan.state, min(plan.usage.due_ms, self._later[0][0] if self._later else NEVER_MS)

    def _count(
        self, decisions: Decisions, state: DeciderState, flows: Int64s, known: Int64s, amounts: tuple[Int64s, ...],
        now_ms: int,
    ) -> None:  # fmt: skip
        """Count what was decided of what waited in a state, and of arrivals.

        Parameters
        ----------
        flows
            The namespaces of the state, as positions among all.
        known
            Those of the arrivals.
        """
        queue = state.queue
        queued = len(queue)
        if queued:
            none = np.zeros_like(known)
            known = np.concatenate([flows[queue.flow], known])
            waiting = queue.amounts(len(AMOUNTS))
            amounts = tuple(np.concatenate([own, new]) for own, new in zip_longest(waiting, amounts, fillvalue=none))
        verdict = decisions.verdict
        left = np.flatnonzero(verdict == Verdict.ADMIT)
        admitted = np.column_stack([np.ones(len(left), dtype=np.int64), *(each[left] for each in amounts)])
        self._admitted[:, : admitted.shape[1]] += sums(known[left], admitted, len(self._admitted))
        refused = np.flatnonzero(verdict == Verdict.REJECT)
        np.add.at(self._rejected, (known[refused], decisions.take(refused).reason), 1)
        held = queued + np.flatnonzero(verdict[queued:] == Verdict.DELAY)
        cause = decisions.take(held)
        by_quota = cause.level >= 0
        np.add.at(self._held, (known[held][by_quota], cause.level[by_quota], cause.dimension[by_quota]), 1)
        late = left[: np.searchsorted(left, queued)]
        if len(late):
            ones = np.ones(len(late), dtype=np.int64)
            self._delays.append(Delays.of([Delays(known[late], now_ms - queue.arrival_ms[late], ones)]))

    def closed(self, state: DeciderState, *, end_ms: int) -> Replay:
        """Return what was counted, and what waits."""
        n, known = len(self._names), self._known_of(state)[state.queue.flow]
        waited_ms = end_ms - state.queue.arrival_ms
        return Replay(
            self._offered, self._admitted, self._rejected, self._held, Delays.of(self._delays),
            numbers(known, n), largest(known, waited_ms, n, least=0),
        )  # fmt: skip
