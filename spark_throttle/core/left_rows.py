"""Rows that left in the last batch and may come back: a destination has yet to say that it took them.

What was not delivered has not left. The state keeps, for one batch more, the rows that left for a destination. The next
control row says which of them were not delivered (`Undelivered`), and each row has one of three fates:

- *taken*: it is forgotten;
- *returned*: nobody took it. It stands at the head of its namespace's queue again, and what it was charged is given
  back at all levels, before anything else is paid or decided. No balance exceeds its burst;
- *sent again*: nobody knows whether it was taken. It leaves again in the next batch, charged once and decided once,
  under the key that it had. A receiver that honours keys so has it once.

A row that is sent again is charged where it goes: if a budget begins anew meanwhile, or the policy changes, its charge
moves to the windows and the scopes of the batch in which it goes again. So it may be given back there.

Laws: every row has one fate. A bucket whose rows all came back holds what it would hold had they never left, so limits
hold of what was delivered. Rows of a namespace keep their order: all that left stood before all that waits. The fates
follow from the state and the control row alone, so a batch that is run again finds the same.

A row that was reserved takes its reservation back with it. If that was settled meanwhile, the units that it was charged
stay charged (`reservations`).

Surprises: a lead in the fair tree is not taken back; it is at most two of the largest messages. The processing time
that a row was charged by an estimate is corrected to what was measured (`measured_time`), so it is not given back here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.segments import Segments, ranges, sums
from spark_throttle.core.fair.layout import by_dimension
from spark_throttle.core.limits.budgets import Budgets
from spark_throttle.core.limits.token_bucket import credit, debit, full, in_micro
from spark_throttle.core.names.matching import match, positions_in
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import AMOUNTS, KNOWN, MIN_BALANCE_MICRO, Bools, CompiledPolicy, Int64s
from spark_throttle.core.reservations import has_identity
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.core.state import DeciderState, Queue
from spark_throttle.core.undelivered import Undelivered
from spark_throttle.core.usage import by_scope
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError

TAKEN, RETURNED, AGAIN = range(3)
"""The fates."""

_WHAT: Final = "the control row"


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """What became of the rows that left."""

    state: DeciderState
    """The state with the returned rows in the queue; of `left` only those that are sent again."""

    fate: Int64s
    """Shape (rows that left,)."""

    returned: Int64s
    """Shape (namespaces of the state, 3): what came back, in the dimensions that are `KNOWN`."""


def settle(state: DeciderState, left_at: Int64s, undelivered: Undelivered | None, policy: CompiledPolicy) -> Settlement:
    """Return what became of the rows that left in the batch which the state is of.

    Parameters
    ----------
    left_at
        The position of each of these rows among all that the state keeps; the others wait.
    undelivered
        What was not delivered of them; `None` if the batch has no control row that says it.
    policy
        The policy under which they were charged.

    Raises
    ------
    DamagedError
        If nothing says what became of them, or rows came back that did not leave.
    """
    left, flows = state.left, len(state.flows)
    if not len(left):
        if undelivered is not None and len(undelivered.names):
            raise DamagedError(_WHAT, "it returns rows, and none have left", RESTORE_CHECKPOINT)
        return Settlement(state, np.zeros(0, dtype=np.int64), np.zeros((flows, len(KNOWN)), dtype=np.int64))
    if undelivered is None:
        problem = f"it does not say what became of the {len(left)} rows that left in the batch before"
        raise DamagedError(_WHAT, problem, RESTORE_CHECKPOINT)
    fate = fates(state, undelivered)
    state, back = _unreserved(state, left.take(np.flatnonzero(fate == RETURNED)))
    returned = tally(back, flows)
    is_waiting = np.ones(len(left) + len(state.queue), dtype=np.bool_)
    is_waiting[left_at] = fate == RETURNED
    queue = state.queue.with_rows(left_at, left).take(np.flatnonzero(is_waiting))
    after = replace(given_back(state, returned, policy), queue=queue, left=left.take(np.flatnonzero(fate == AGAIN)))
    return Settlement(after, fate, returned)


def _unreserved(state: DeciderState, rows: Queue) -> tuple[DeciderState, Queue]:
    """Return the state without the reservations of rows that came back, and these with the units that go back."""
    if rows.identity is None:
        return state, rows
    _, units = rows.amounts(len(AMOUNTS))
    opened, is_open = state.reservations.without_rows(rows.identity, rows.flow, units)
    goes_back = np.where(is_open | ~has_identity(rows.identity), units, 0)
    return replace(state, reservations=opened), replace(rows, units=goes_back)


def may_return(flow: Int64s, is_admitted: Bools, group_scope: Int64s, policy: CompiledPolicy | None) -> Int64s:
    """Return the positions of the admitted rows that go to a destination.

    Parameters
    ----------
    flow
        The flow of each row.
    group_scope
        The shared scope of each flow's resource group.
    policy
        `None` if no row may come back.
    """
    if policy is None or policy.destinations is None:
        return np.zeros(0, dtype=np.int64)
    goes_there = np.append(np.isin(group_scope, policy.destinations.scope), False)  # the last is of no flow
    return np.flatnonzero(is_admitted & goes_there[flow])


def fates(state: DeciderState, undelivered: Undelivered) -> Int64s:
    """Return the fate of each row that left in the batch which the state is of."""
    fate = np.full(len(state.left), TAKEN, dtype=np.int64)
    flow = positions_in(state.flows.names, undelivered.names)
    layout = Segments.by_key(state.left.flow, len(state.flows))
    is_there = (flow >= 0) & (undelivered.place >= 0) & (undelivered.rows > 0)
    is_there &= undelivered.place + undelivered.rows <= layout.counts[flow]
    if not is_there.all():
        name = shown(undelivered.names.slice(int(np.flatnonzero(~is_there)[0]), 1))[0]
        raise DamagedError(_WHAT, f"it returns rows of {name} that have not left", RESTORE_CHECKPOINT)
    at = layout.order[ranges(layout.starts[flow] + undelivered.place, undelivered.rows)]
    fate[at] = np.repeat(np.where(undelivered.is_again, AGAIN, RETURNED), undelivered.rows)
    return fate


def tally(rows: Queue, flows: int) -> Int64s:
    """Return the messages and the amounts of some rows, by flow; shape (flows, 3)."""
    counts = np.bincount(rows.flow, minlength=flows)
    return np.stack([counts, *(sums(rows.flow, each, flows) for each in rows.amounts(len(AMOUNTS)))], axis=1)


def charged(state: DeciderState, rows: Int64s, policy: CompiledPolicy) -> DeciderState:
    """Return the state with what its namespaces sent, shape (flows, 3), charged at all of their levels."""
    matches = match(state.flows.names, policy)
    own, taken, spent = matches.own_limits(policy), by_dimension(rows.T), state.flows.spent
    own_micro = np.where(
        own.is_limited, debit(state.flows.balance_micro, in_micro(taken)), state.flows.balance_micro
    )  # fmt: skip
    if spent is not None and (budgets := Budgets.of(own)) is not None:
        spent = spent.charged(taken, budgets)
    by_scopes = by_scope(matches.shared_scope, taken, len(policy.shared))
    return replace(
        state,
        flows=replace(state.flows, balance_micro=own_micro, spent=spent),
        shared=state.shared.debited(by_scopes, policy, MIN_BALANCE_MICRO),
    )


def given_back(state: DeciderState, returned: Int64s, policy: CompiledPolicy) -> DeciderState:
    """Return the state with what rows were charged, given as in `charged`, back in its buckets."""
    matches, shared = match(state.flows.names, policy), under_share(policy, state.shared.share_micro_per_ms).shared
    own = matches.own_limits(policy)
    given = by_dimension(returned.T)
    own_micro = credit(state.flows.balance_micro, in_micro(given), full(own.rate_micro_per_ms, own.burst_micro))
    by_scopes = by_scope(matches.shared_scope, given, len(shared))
    full_micro = full(shared.rate_micro_per_ms, shared.burst_micro)
    shared_micro = credit(state.shared.balance_micro, in_micro(by_scopes), full_micro)
    spent, shared_spent = (
        None if spent is None or budgets is None else spent.given_back(tokens, budgets)
        for spent, budgets, tokens in (
            (state.flows.spent, Budgets.of(own), given), (state.shared.spent, Budgets.of(shared), by_scopes)
        )
    )  # fmt: skip
    return replace(
        state,
        flows=replace(state.flows, balance_micro=own_micro, spent=spent),
        shared=replace(state.shared, balance_micro=shared_micro, spent=shared_spent),
    )
