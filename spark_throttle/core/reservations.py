"""Rows whose cost is known late are charged an estimate when they leave, and what they really cost when it is told.

The units of a row are its estimate. A row that has an *identity* too leaves a *reservation* in the state: the estimate,
and when it was made. Later its cost is told by that identity (`LateCosts`): by another stream, or by a function that
did the work. Before the batch that brings it decides, the difference is charged or given back at all scopes of the row,
and in their budgets (`corrections`), and the reservation is gone. So a cost that is told again finds nothing and
changes nothing; it is counted.

A reservation that nobody settles ends with the first batch in which it is older than the policy lets it be. Then the
estimate stands as the cost. There are `MOST_OPEN` at most: beyond them the oldest of those namespaces end early that
have most, so nobody ends another's by a flood of rows. A cost that a batch brings counts before reservations end in it,
so what was told while the job was down is settled.

Laws: what was reserved was settled, has ended, came back with its row, or is open. No reservation is settled twice.
Everything follows from the state, the rows and the costs of a batch, whatever the order in which costs come.

Surprises:

- Rows of a namespace with an identity that is open join its reservation: one cost is that of all of them, and they end
  together, with the first. Another namespace's row with the same identity has a reservation of its own, and a cost is
  that of the one which was made first. So who may choose identities may settle others' rows: put the tenant into them.
- Two costs that a batch brings for one identity: the larger one counts.
- A row that was not delivered (`left_rows`) takes its reservation back with it. If that was settled or has ended, what
  it was charged in units stays charged, and it is charged again when it leaves again: somebody did work for it.
- Of what is given back, a budget gets only what was reserved in its present window.
- A rate or a budget that did not charge a row, as it was set later, or as the namespace was in another group, gets
  nothing back of it (`under_policy`). What the row cost beyond its estimate it is charged all the same: there the row
  would be charged if it left now.

An identity is 128 bits of SHA-256. Of a million open ones, two are the same with odds of one to 2^89.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import Segments, sums
from spark_throttle.core.corrections import CorrectedRows, Owed, with_owed
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches, match, positions_in
from spark_throttle.core.quota import (
    BUDGETS,
    MICRO,
    UNBOUNDED,
    Bools,
    CompiledPolicy,
    Dimension,
    Int64s,
    Level,
    Limits,
    OnExcess,
    Period,
)
from spark_throttle.core.shared_buckets import under_share
from spark_throttle.core.usage import by_scope

if TYPE_CHECKING:
    from spark_throttle.core.limits.budgets import CalendarWindows
    from spark_throttle.core.state import DeciderState

MOST_OPEN: Final = 1 << 20
"""The most reservations that are open: a checkpoint has some 20 bytes of each."""

_WORD_BYTES: Final = 8


def no_identities(rows: int) -> Int64s:
    """Return the identities of rows that have none."""
    return np.zeros((rows, 2), dtype=np.int64)


def has_identity(identity: Int64s) -> Bools:
    """Return which rows have an identity: one of nothing but zeros stands for none."""
    return (identity[:, 0] | identity[:, 1]) != 0


@dataclass(frozen=True, slots=True, eq=False)
class LateCosts:
    """What rows really cost, as it was told; in any order."""

    identity: Int64s
    """Shape (n, 2): 128 bits, by which the rows were reserved."""

    units: Int64s
    """None is negative."""

    unusable: int = 0
    """How many more were told that say no identity, or no possible cost."""

    def __len__(self) -> int:
        return len(self.units)

    @classmethod
    def none(cls) -> LateCosts:
        """Return no costs."""
        return cls(no_identities(0), np.zeros(0, dtype=np.int64))

    @classmethod
    def sum_of(cls, parts: Sequence[LateCosts]) -> LateCosts:
        """Return all costs together."""
        every = [cls.none(), *parts]
        return cls(
            np.concatenate([part.identity for part in every]), np.concatenate([part.units for part in every]),
            sum(part.unusable for part in parts),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Reservations:
    """The open reservations, in the order in which they were made; no namespace has two with one identity."""

    identity: Int64s
    """Shape (n, 2)."""

    flow: Int64s
    """The position of the namespace in `state.Flows`."""

    rows: Int64s
    """How many rows it is of."""

    units: Int64s
    """What they were charged."""

    reserved_ms: Int64s
    """The paying time of the batch in which the first of them left."""

    unpaid: Int64s | None = None
    """For each, a bit for each rate and budget of its levels (`_bits`) that did not charge it, or did not hold on to
    what it charged; `None` for none."""

    beside: Int64s | None = None
    """As how many units the rest of each counted in the fair order when it left (`fair.work.beside_units`): fewer units
    change nothing there. `None` for none."""

    def __len__(self) -> int:
        return len(self.flow)

    @classmethod
    def none(cls) -> Reservations:
        """Return no reservations."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(no_identities(0), nothing, nothing, nothing, nothing)

    def take(self, at: Int64s | Bools) -> Reservations:
        """Return the reservations at `at`, in that order."""
        unpaid, beside = (None if each is None else each[at] for each in (self.unpaid, self.beside))
        return Reservations(
            self.identity[at], self.flow[at], self.rows[at], self.units[at], self.reserved_ms[at], unpaid, beside
        )

    def with_rows(
        self, identity: Int64s, flow: Int64s, units: Int64s, beside: Int64s | None = None, *, now_ms: int
    ) -> Reservations:
        """Return them after rows have left, all of which have an identity; by default they counted by units alone.

        Examples
        --------
        Two rows of one namespace with one identity, and one of another namespace:

        >>> seven = np.array([[0, 7]] * 3)
        >>> made = Reservations.none().with_rows(seven, np.array([0, 1, 0]), np.array([5, 6, 8]), now_ms=1_000)
        >>> made.flow.tolist(), made.rows.tolist(), made.units.tolist()
        ([0, 1], [2, 1], [13, 6])
        """
        if not len(flow):
            return self
        named = _keys(np.column_stack([identity, flow])).dictionary_encode()
        number, keys = named.indices.to_numpy(), len(named.dictionary)
        rows, charged = np.bincount(number, minlength=keys), sums(number, units, keys)
        found = positions_in(named.dictionary, self._keys)
        joined = np.flatnonzero(found >= 0)
        rows_before, units_before = self.rows.copy(), self.units.copy()
        rows_before[joined] += rows[found[joined]]
        units_before[joined] += charged[found[joined]]
        is_new = np.ones(keys, dtype=np.bool_)
        is_new[found[joined]] = False
        at = np.unique(number, return_index=True)[1][is_new]
        if beside is not None or self.beside is not None:
            more = np.zeros(keys, dtype=np.int64) if beside is None else sums(number, beside, keys)
            counted = np.zeros_like(self.units) if self.beside is None else self.beside.copy()
            counted[joined] += more[found[joined]]
            beside = np.concatenate([counted, more[is_new]])
        return Reservations(
            np.concatenate([self.identity, identity[at]]), np.concatenate([self.flow, flow[at]]),
            np.concatenate([rows_before, rows[is_new]]), np.concatenate([units_before, charged[is_new]]),
            np.concatenate([self.reserved_ms, np.full(len(at), now_ms, dtype=np.int64)]),
            None if self.unpaid is None else np.concatenate([self.unpaid, np.zeros_like(at)]), beside,
        )  # fmt: skip

    def without_rows(self, identity: Int64s, flow: Int64s, units: Int64s) -> tuple[Reservations, Bools]:
        """Return them after rows came back, and which of the rows had an open reservation."""
        asked = _keys(np.column_stack([identity, flow])).dictionary_encode()
        number, keys = asked.indices.to_numpy(), len(asked.dictionary)
        found = positions_in(asked.dictionary, self._keys)
        at = np.flatnonzero(found >= 0)
        is_open = np.zeros(keys, dtype=np.bool_)
        is_open[found[at]] = True
        rows, charged = self.rows.copy(), self.units.copy()
        rows[at] -= np.bincount(number, minlength=keys)[found[at]]
        charged[at] -= sums(number, units, keys)[found[at]]
        beside = None if self.beside is None else self.beside * rows // self.rows
        kept = replace(self, rows=rows, units=charged, beside=beside).take(rows > 0)
        return kept, is_open[number] & has_identity(identity)

    def goes_on(self, *, now_ms: int, after_ms: int, most: int = MOST_OPEN) -> Bools:
        """Return which of them go on after a batch; the others end.

        Where there are too many, the oldest end of the namespaces that have most.

        Parameters
        ----------
        after_ms
            The age at which a reservation ends.
        """
        goes_on: Bools = now_ms - self.reserved_ms < after_ms
        if np.count_nonzero(goes_on) <= most:
            return goes_on
        at = np.flatnonzero(goes_on)
        of_flow = Segments.by_key(self.flow[at], int(self.flow.max()) + 1)
        newer = np.repeat(of_flow.counts, of_flow.counts) - 1 - of_flow.rank
        up_to = np.cumsum(np.bincount(newer))
        each = int(np.searchsorted(up_to, most, side="right"))  # so many newest ones of each namespace fit
        last = np.sort(of_flow.order[newer == each])
        goes_on[at[of_flow.order[newer > each]]] = False
        goes_on[at[last[: int(up_to[each]) - most]]] = False
        return goes_on

    @property
    def _keys(self) -> pa.FixedSizeBinaryArray:
        return _keys(np.column_stack([self.identity, self.flow]))


@dataclass(frozen=True, slots=True, eq=False)
class SettledCosts:
    """What the costs that a batch brought have settled; arrays run over the namespaces of the state."""

    given_back: Int64s
    """The units that rows cost less than the estimate."""

    overdrawn: Int64s
    """The units that they cost more."""

    flows: Int64s
    """The flows of which any reservation was settled."""

    settled_messages: int = 0

    unknown: int = 0
    """How many costs found no reservation: it was settled before, had ended, or never was."""

    unusable: int = 0


def settled(state: DeciderState, costs: LateCosts, policy: CompiledPolicy) -> tuple[DeciderState, SettledCosts]:
    """Return the state that the last batch left under a policy with costs in place of estimates, and what changed."""
    opened, flows, nothing = state.reservations, len(state.flows), np.zeros(0, dtype=np.int64)
    nobody = SettledCosts(nothing, nothing, nothing, 0, len(costs), costs.unusable)
    if not len(opened) or not len(costs):
        return state, nobody
    told = _keys(costs.identity).dictionary_encode()
    cost = np.zeros(len(told.dictionary), dtype=np.int64)
    np.maximum.at(cost, told.indices.to_numpy(), costs.units)
    found = positions_in(told.dictionary, _keys(opened.identity))
    named = np.flatnonzero(found >= 0)
    _, first = np.unique(found[named], return_index=True)
    at = named[first]
    if not len(at):
        return state, nobody
    done = opened.take(at)
    owed = cost[found[at]] - done.units
    goes_on = np.ones(len(opened), dtype=np.bool_)
    goes_on[at] = False
    owes = _owed(done, owed, state, policy)
    after = with_owed(state, owes, policy)
    counts = np.flatnonzero((owed > 0) | ((owed < 0) & (True if done.unpaid is None else done.unpaid == 0)))
    flow, given = done.flow[counts], np.maximum(-owed[counts], 0)
    charged, costs_now = done.units[counts], cost[found[at]][counts]
    if done.beside is not None:
        charged, costs_now = (np.maximum(each, done.beside[counts]) for each in (charged, costs_now))
    lost = _lost(flow, given, owes, state, policy)
    fair = CorrectedRows.of(Dimension.UNITS, flow, done.rows[counts], charged, costs_now, lost)
    fair = fair.with_more(state.corrected)
    by_flow = SettledCosts(
        sums(done.flow, np.maximum(-owed, 0), flows), sums(done.flow, np.maximum(owed, 0), flows),
        done.flow, int(done.rows.sum()), len(costs) - len(at), costs.unusable,
    )  # fmt: skip
    return replace(after, reservations=opened.take(goes_on), corrected=fair), by_flow


def _owed(done: Reservations, owed: Int64s, state: DeciderState, policy: CompiledPolicy) -> Owed:
    """Return what is owed by namespace and scope, given what each reservation that is settled owes."""
    at, of_name = np.unique(done.flow, return_inverse=True)
    names = state.flows.names.take(pa.array(at))
    each = np.column_stack([owed, _in_windows(done, owed, state.windows)])
    counts = np.repeat(each[:, None], len(Level), axis=1)
    if done.unpaid is not None:
        counts[(owed < 0)[:, None, None] & (done.unpaid[:, None, None] & _bits() != 0)] = 0
    by_name = np.stack([sums(of_name, counts[:, level], len(at)) for level in Level], axis=1)
    own, scopes = by_name[:, Level.NAMESPACE], match(names, policy).shared_scope
    shared = np.zeros((len(policy.shared), each.shape[1]), dtype=np.int64)
    for column, level in enumerate(SHARED_LEVELS):
        shared += by_scope(scopes[:, [column]], by_name[:, level], len(shared))
    return Owed(Dimension.UNITS, names, own[:, 0], shared[:, 0], own[:, 1:], shared[:, 1:])


def _lost(flow: Int64s, given: Int64s, owed: Owed, state: DeciderState, policy: CompiledPolicy) -> Int64s:
    """Return what of `given` back to each flow its shared scopes have no room for, shape (n, 3), as theirs are full."""
    limits = under_share(policy, state.shared.share_micro_per_ms).shared
    room = np.maximum(limits.burst_micro - state.shared.balance_micro, 0)[:, Dimension.UNITS] // MICRO
    beyond = np.where(limits.is_limited[:, Dimension.UNITS], np.maximum(-owed.shared - room, 0), 0)
    scopes = match(state.flows.names.take(pa.array(flow)), policy).shared_scope
    of_scope = by_scope(scopes, given[:, None], len(beyond))[:, 0]
    lost, together = (np.append(each, 0)[scopes] for each in (beyond, of_scope))
    return np.minimum(proportional(given[:, None], lost, together), given[:, None])


def under_policy(
    opened: Reservations, was: Matches, becomes: Matches, before: CompiledPolicy, after: CompiledPolicy, former: Int64s
) -> Reservations:
    """Return the reservations after a change of policy.

    Parameters
    ----------
    was, becomes
        The scopes of the namespaces of the state before and after.
    former
        Of each shared scope, its position before, -1 where it is new.
    """
    if not len(opened):
        return opened
    holds = np.empty((len(was.rule), *_bits().shape), dtype=np.bool_)
    holds[:, Level.NAMESPACE] = _hold_on(was.own_limits(before), becomes.own_limits(after))
    of_scope = _hold_on(before.shared.take(former), after.shared)
    for column, level in enumerate(SHARED_LEVELS):
        old, new = was.shared_scope[:, column], becomes.shared_scope[:, column]
        holds[:, level] = ((old >= 0) & (np.append(former, -1)[new] == old))[:, None] & of_scope[new]
    lost = np.where(holds, 0, _bits()).sum(axis=(1, 2))[opened.flow]
    return replace(opened, unpaid=lost if opened.unpaid is None else opened.unpaid | lost)


def _hold_on(before: Limits, after: Limits) -> Bools:
    """Return which rates and budgets of scopes hold on to what they have charged; the columns are those of `_bits`.

    Of what passed while a scope observed, its rate held on to a burst at most.
    """
    begins = (before.on_excess == OnExcess.OBSERVE) & (after.on_excess != OnExcess.OBSERVE)
    found = [before.is_limited[:, Dimension.UNITS] & after.is_limited[:, Dimension.UNITS] & ~begins]
    for key, dimension, _ in BUDGETS:
        if dimension == Dimension.UNITS:
            nothing = np.full(len(begins), UNBOUNDED)
            most = (each.settings.get(key, nothing) for each in (before, after))
            found.append(np.logical_and.reduce([each < UNBOUNDED for each in most]))
    return np.stack(found, axis=1)


def _bits() -> Int64s:
    """Return a bit for each level's rate, and for each of its budgets, by `Period`; shape (levels, 1 + periods)."""
    shape = len(Level), 1 + len(Period)
    return (1 << np.arange(shape[0] * shape[1])).reshape(shape)


def _in_windows(done: Reservations, owed: Int64s, windows: CalendarWindows | None) -> Int64s:
    """Return what each reservation owes to the budgets of each `Period`: nothing is given back from earlier windows."""
    if windows is None:
        return np.zeros((len(owed), len(Period)), dtype=np.int64)
    is_of_window = done.reserved_ms[:, None] >= windows.since_ms
    return np.where(is_of_window | (owed > 0)[:, None], owed[:, None], 0)


def _keys(words: Int64s) -> pa.FixedSizeBinaryArray:
    """Return rows of words as values that can be looked up."""
    kind = pa.binary(_WORD_BYTES * words.shape[1])
    content = np.ascontiguousarray(words, dtype=np.int64)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(words), [None, pa.py_buffer(content)])
