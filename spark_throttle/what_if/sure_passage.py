"""A namespace surely passes an interval if none of its messages waits, and all its scopes have room for all who ask.

What all who ask take of a scope is what waits for it and what arrives. If there is room for that, every message passes,
in whatever order, and nobody is held by that scope (`core.batch.scope_room`). So the messages of such a namespace are
not decided one by one: they are charged together, behind the batch. Those that no scope of theirs has room for are
decided by the kernel.

A namespace that has limits of its own is in the batch with its largest message, so that the decider remembers its
bucket; the others are charged there too. If its bucket is full, and earns until the next interval what it sends, it is
full again then, as if it had sent nothing: so there is nothing to remember.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.batch.scope_room import Room, is_short_of, limited_scopes, taken_by
from spark_throttle.core.limits.token_bucket import debit, full, in_micro, refill
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import (
    AMOUNTS,
    BOUNDS_OF_AMOUNTS,
    BUDGETS,
    KNOWN,
    MIN_BALANCE_MICRO,
    MOST_OF_AMOUNTS,
    UNBOUNDED,
    Bools,
    CompiledPolicy,
    Dimension,
    Int64s,
    Limits,
)
from spark_throttle.core.state import DeciderState
from spark_throttle.what_if.traffic import Arrived

_MOST_EARNED_MICRO: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """Which of the namespaces of an interval surely pass; arrays run over `Arrived.known`."""

    is_sure: Bools
    is_remembered: Bools
    """Those of them that are in the batch with their largest message."""

    behind: Int64s
    """Shape (n, 3), by `KNOWN`: what is charged behind the batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The scopes that each namespace passes under a policy; arrays run over all namespaces of the traffic."""

    policy: CompiledPolicy
    scopes: Int64s
    """Shape (n, 3): the shared scopes that limit anything, -1 where there is none."""

    limits: Limits
    """The limits of the namespaces by themselves."""

    full_micro: Int64s
    earned_micro: Int64s
    """Shape (n, 4): what their buckets earn in an interval."""

    most: Int64s
    """Shape (n, 2): the largest message that every scope lets pass, by `AMOUNTS`."""

    may_be_sure: Bools

    @classmethod
    def of(cls, names: pa.StringArray, policy: CompiledPolicy, interval_ms: int) -> Ways:
        """Return the ways of namespaces; of those with a Pegasus rule or a budget of their own nothing is sure."""
        matches = match(names, policy)
        limits, rule = matches.own_limits(policy), matches.rule
        may_be_sure = ~policy.namespace_windows.has_rule[rule]
        for at in limits.budgets:
            may_be_sure &= limits.settings[BUDGETS[at][0]] == UNBOUNDED
        most = np.tile(np.array(MOST_OF_AMOUNTS), (len(names), 1))
        for column, key in enumerate(BOUNDS_OF_AMOUNTS):
            own, shared = (each.settings.get(key) for each in (limits, policy.shared))
            if own is not None:
                np.minimum(most[:, column], own, out=most[:, column])
            if shared is not None:
                least = by_row(np.minimum, np.append(shared, UNBOUNDED)[matches.shared_scope])
                np.minimum(most[:, column], least, out=most[:, column])
        rate = limits.rate_micro_per_ms
        return cls(
            policy, limited_scopes(matches, policy), limits, full(rate, limits.burst_micro),
            np.clip(rate, 0, _MOST_EARNED_MICRO // interval_ms) * interval_ms, most, may_be_sure,
        )  # fmt: skip

    def passing(
        self, state: DeciderState, known: Int64s, arrived: Arrived, *, now_ms: int, may_forget: bool
    ) -> Passing:
        """Return which namespaces of an interval surely pass.

        Parameters
        ----------
        known
            The namespaces of `state.flows`, as positions among all.
        may_forget
            Whether this policy is in force until the next interval.
        """
        policy, at, resources = self.policy, arrived.known, 1 + len(arrived.totals)
        asked = np.zeros((resources, len(self.may_be_sure)), dtype=np.int64)
        asked[:, at] = arrived.messages, *arrived.totals
        waits = np.zeros(len(self.may_be_sure), dtype=np.bool_)
        if len(state.queue):
            queue = state.queue
            ones = np.ones(len(queue), dtype=np.int64)
            waiting = np.column_stack([ones, *queue.amounts(len(AMOUNTS))])[:, :resources]
            asked[:, known] += sums(queue.flow, waiting, len(known)).T
            waits[known[queue.flow]] = True
        shared = state.shared.refilled(policy, now_ms=now_ms)
        room = Room.of(shared.balance_micro, policy.shared, resources, shared.spent, shared.claims)
        is_short = np.append(is_short_of(self.scopes, asked, room), np.False_)  # the last stands for no scope
        is_sure = self.may_be_sure[at] & ~waits[at] & ~by_row(np.logical_or, is_short[self.scopes[at]])
        for column, largest in enumerate(arrived.largest):
            is_sure &= largest <= self.most[at, column]
        limits, balance_micro = self.limits.take(at), self._balances(state, known, now_ms)[at]
        is_cut = np.zeros_like(waits)
        is_cut[known] = by_row(np.logical_or, state.flows.cut_micro > 0)
        is_sure &= ~Room.of(balance_micro, limits, resources).lacks(asked[:, at])
        sent = np.zeros((len(at), len(Dimension)), dtype=np.int64)
        sent[:, :resources] = asked[:, at].T
        is_full = (balance_micro == self.full_micro[at]) & (in_micro(sent) <= self.earned_micro[at])
        is_as_before = by_row(np.logical_and, is_full | ~limits.is_limited) & ~is_cut[at] & may_forget
        is_remembered = is_sure & ~is_as_before & by_row(np.logical_or, limits.is_limited)
        behind = np.where(is_sure[:, None], sent[:, : len(KNOWN)], 0)
        for column, amount in enumerate((np.ones_like(at), *arrived.largest)):
            behind[:, column] -= np.where(is_remembered, amount, 0)
        return Passing(is_sure, is_remembered, behind)

    def _balances(self, state: DeciderState, known: Int64s, now_ms: int) -> Int64s:
        """Return the balances of all namespaces, refilled."""
        if not len(known):
            return self.full_micro
        found, rate = self.full_micro.copy(), self.limits.rate_micro_per_ms[known]
        elapsed_ms = now_ms - state.advanced_to_ms
        found[known] = refill(state.flows.balance_micro, rate, self.full_micro[known], elapsed_ms)
        return found

    def charged(self, state: DeciderState, known: Int64s, arrived: Arrived, passing: Passing) -> DeciderState:
        """Return the state after a batch with what passed behind it.

        Parameters
        ----------
        known
            As in `passing`.
        """
        some = np.flatnonzero(by_row(np.logical_or, passing.behind > 0))
        if not len(some):
            return state
        taken = np.zeros((len(self.policy.shared), len(Dimension)), dtype=np.int64)
        taken[:, : len(KNOWN)] = taken_by(self.scopes[arrived.known[some]], passing.behind[some].T, len(taken)).T
        shared = state.shared.debited(taken, self.policy, MIN_BALANCE_MICRO)
        own = some[passing.is_remembered[some]]
        if not len(own):
            return replace(state, shared=shared)
        behind = np.zeros((len(self.may_be_sure), len(Dimension)), dtype=np.int64)
        behind[arrived.known[own], : len(KNOWN)] = passing.behind[own]
        is_limited = self.limits.is_limited[known]
        left = debit(state.flows.balance_micro, np.where(is_limited, in_micro(behind[known]), 0))
        return replace(state, shared=shared, flows=replace(state.flows, balance_micro=left))
