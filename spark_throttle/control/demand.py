"""Demand of a job's namespaces in each scope that jobs share: the usage of their batches, as rates.

Jobs share every scope of a policy that enforces a limit, except the job's own. They share its messages and bytes, which
are divided together, its units, and its processing time, which are each divided by itself. So an exchange knows nothing
of these: it divides pairs of rates. A job that knows no quota of units or time passes over their places in others'
reports, as it does with all scopes that it does not use.

Demand is what arrived within the last cycle plus the backlog, as far as a namespace's own limits would let it pass:
rows that a namespace may not send anyway do not count as a claim on its group. Backlog counts as wanted within one
cycle. Rows whose time nobody knows yet count as a millisecond each, so that who has no price wants something too. A
demand that has risen by more than a quarter is believed once it is seen for the second time, an eighth of a cycle after
the first, even while the mean over the cycle is still low. A scope without demand for some cycles is left out: the job
gives it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.control.shared_guarantees import FIRST_WEIGHT, GuaranteeScopes, guaranteed_demand
from spark_throttle.core.arithmetic.segments import by_row, name_hash, sums
from spark_throttle.core.limits.token_bucket import in_micro
from spark_throttle.core.names.matching import Matches, match
from spark_throttle.core.quota import MICRO, UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, Level
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.core.shares.division import demand_bins
from spark_throttle.core.usage import UsageReport, by_scope
from spark_throttle.policy.model import Direction
from spark_throttle.sharing.report import Measurement, found_in

_PAIR: Final = Dimension.UNITS
"""The first dimensions, of which there are as many, are divided together."""

_ALONE: Final = tuple(Dimension)[_PAIR:]
"""Each of the others is divided by itself."""


def is_shared(policy: CompiledPolicy) -> Bools:
    """Return, for each shared scope, whether jobs share any of its quotas.

    They share every scope that enforces a limit, except the job's own.
    """
    return by_row(np.logical_or, _are_shared(policy))


def _are_shared(policy: CompiledPolicy) -> Bools:
    """Return which quotas of the shared scopes jobs share, shape (scopes, 4)."""
    shares = policy.shared.is_enforced
    shares[0] = False
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class SharedScopes:
    """What jobs share of a policy: the tenants and resource groups that have a limit and enforce it.

    A scope's units and its processing time are each divided by itself, whatever is known of their price, and so have
    places of their own beside that of its messages and bytes. Their pairs hold units or time, and nothing.
    """

    position: Int64s
    """Positions in `CompiledPolicy.shared`, in the order of `ids`."""

    ids: Int64s
    """Hashes of direction, level, name and, for units and time, that they are; ascending."""

    alone: Int64s
    """Which of `_ALONE` each place is for; -1 for messages and bytes."""

    @classmethod
    def of(cls, policy: CompiledPolicy, direction: Direction) -> SharedScopes:
        """Return what jobs share of a policy; the job's own limit concerns no other job."""
        shared = _are_shared(policy)
        together = np.flatnonzero(by_row(np.logical_or, shared[:, :_PAIR]))
        positions = [together, *(np.flatnonzero(shared[:, d]) for d in _ALONE)]
        kinds = ["", *(f".{d.name.lower()}" for d in _ALONE)]
        ids = np.concatenate([_ids(policy, direction, *each) for each in zip(positions, kinds, strict=True)])
        alone = np.repeat([-1, *_ALONE], [len(each) for each in positions])
        order = np.argsort(ids, kind="stable")
        return cls(np.concatenate(positions)[order], ids[order], alone[order])

    def taken(self, values: Int64s) -> Int64s:
        """Return the pairs of all places, given values of shape (scopes, 4); `UNLIMITED` beside units and time."""
        return self.pairs(values.take(self.position, axis=0), np.arange(len(self.ids)), beside=UNLIMITED)

    def pairs(self, values: Int64s, at: Int64s, *, beside: int = 0) -> Int64s:
        """Return the pairs of the places `at`, given a row of values, shape (n, 4), for each."""
        alone, found = self.alone[at], values[:, :_PAIR].copy()
        for d in _ALONE:
            found[alone == d] = np.column_stack([values[alone == d, d], np.full(int((alone == d).sum()), beside)])
        return found

    def spread(self, pairs: Int64s, onto: Int64s) -> Int64s:
        """Return `onto`, of shape (scopes, 4), with the pairs of all places in it."""
        out, together = onto.copy(), np.flatnonzero(self.alone < 0)
        out[self.position[together], :_PAIR] = pairs.take(together, axis=0)
        for d in _ALONE:
            at = np.flatnonzero(self.alone == d)
            out[self.position[at], d] = pairs[at, 0]
        return out


def _ids(policy: CompiledPolicy, direction: Direction, position: Int64s, what: str) -> Int64s:
    if not len(position):
        return position
    names = [f"{direction}/tenant{what}/{name}" for name in policy.tenant_names.to_pylist()]
    names += [f"{direction}/resource_group{what}/{name}" for name in policy.group_names.to_pylist()]
    return name_hash(pa.array(names, pa.string()))[position - 1]


_FEW_SCOPES = 1000
_RISE_PARTS = 8
"""A rise must show in two successive spans, each of at least a cycle divided by this."""

_NOTABLE_PART = 4
"""A demand has risen if it exceeds the mean over the cycle by more than the mean divided by this."""

_MOST_MESSAGES = 1 << 36


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    time_ms: int
    added_ms: int
    """When its report arrived: by then the batch had ended."""

    before_ms: int
    """Time of the previous batch: the rows of this one have arrived since then."""

    names: pa.StringArray
    served: Int64s
    """What was admitted or rejected, shape (n, 4)."""

    wanted: Int64s
    admitted: Int64s
    waiting: Int64s


@dataclass(frozen=True, slots=True)
class _Flows:
    """Batches whose namespaces share one numbering."""

    batches: Sequence[_Batch]
    at: Sequence[Int64s]
    """For each batch, the numbers of its namespaces."""

    count: int

    @classmethod
    def of(cls, batches: Sequence[_Batch], names: pa.StringArray) -> _Flows:
        places = [pc.index_in(batch.names, value_set=names).to_numpy(zero_copy_only=False) for batch in batches]
        return cls(batches, [place.astype(np.int64) for place in places], len(names))

    def total(self, column: str, begin: int, end: int) -> Int64s:
        """Return the sum of a column over the batches from `begin` up to but not including `end`, by namespace."""
        out = np.zeros((self.count, len(Dimension)), dtype=np.int64)
        for each in range(begin, end):
            out += sums(self.at[each], getattr(self.batches[each], column), self.count)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Rates:
    """What namespaces want and use, as rates of shape (n, 4)."""

    names: pa.StringArray
    demand: Int64s
    usage: Int64s


def _rate(tokens: Int64s, span_ms: int) -> Int64s:
    """Return a rate, rounded up: who wants a nanosecond a minute wants something."""
    return -(-in_micro(tokens) // span_ms)


def _timed(tokens: Int64s) -> Int64s:
    """Return tokens, where messages whose time is not known take a millisecond each."""
    out, time = tokens.copy(), tokens[:, Dimension.TIME]
    out[:, Dimension.TIME] = np.where(time > 0, time, np.minimum(tokens[:, Dimension.MESSAGES], _MOST_MESSAGES) * MICRO)
    return out


class DemandMeter:
    """A meter of demand, which adds up the usage reports of a job's last cycle.

    Parameters
    ----------
    cycle_ms
        How far back arrivals are counted.
    patience_ms
        A scope without demand for this long is given up.
    """

    def __init__(self, direction: Direction, cycle_ms: int, patience_ms: int) -> None:
        self._direction: Direction = direction
        self._cycle_ms = cycle_ms
        self._patience_ms = patience_ms
        self._batches: deque[_Batch] = deque()
        self._newest_ms = -1
        self._began_ms: int | None = None
        self._wanted = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        """Hashes of the scopes that are held, ascending, and when each was last wanted."""

        self._scopes: tuple[str, SharedScopes] | None = None
        self._guarantees: tuple[str, GuaranteeScopes] | None = None
        self._parts: Int64s | None = None
        self.wanted: tuple[Int64s, Int64s] | None = None
        """Demand, shape (scopes, 4), and weight, shape (scopes,), of all shared scopes of the policy that was measured
        last; `None` if none of them has a budget."""

    def scopes(self, policy: CompiledPolicy) -> SharedScopes:
        """Return the scopes of a policy that jobs share."""
        if self._scopes is None or self._scopes[0] != policy.revision:
            self._scopes = policy.revision, SharedScopes.of(policy, self._direction)
        return self._scopes[1]

    def add(self, report: UsageReport, *, now_ms: int) -> None:
        """Take in the report of a batch."""
        time_ms = report.as_of_ms
        before_ms = self._newest_ms if 0 <= self._newest_ms < time_ms else time_ms - self._cycle_ms
        self._batches.append(
            _Batch(
                time_ms,
                now_ms,
                before_ms,
                report.names,
                _timed(report.admitted + report.rejected),
                _timed(report.demand),
                _timed(report.admitted),
                _timed(report.waiting),
            )
        )
        self._newest_ms = time_ms

    def guarantees(self, policy: CompiledPolicy) -> GuaranteeScopes:
        """Return the guarantees of a policy that jobs divide."""
        if self._guarantees is None or self._guarantees[0] != policy.revision:
            self._guarantees = policy.revision, GuaranteeScopes.of(policy, self._direction)
        return self._guarantees[1]

    def measure(self, policy: CompiledPolicy, parts: Int64s | None = None, *, now_ms: int) -> Measurement:
        """Return the present demand and usage of each scope that jobs share and this one holds.

        Parameters
        ----------
        parts
            What this job has of what is guaranteed, as `GuaranteeScopes.parts` returns it.
        """
        self._parts = parts
        while len(self._batches) > 1 and self._batches[0].time_ms <= self._batches[-1].time_ms - self._cycle_ms:
            self._batches.popleft()
        scopes = self.scopes(policy)
        if self._began_ms is None:
            self._began_ms = now_ms
        if len(scopes.ids) <= _FEW_SCOPES and now_ms - self._began_ms <= self._patience_ms:
            # A job that starts takes its seats before it has rows that would wait for them.
            self._want(scopes.ids, self._began_ms)
        if not self._batches:
            nothing = np.zeros((0, len(Dimension)), dtype=np.int64)
            return self._by_scope(policy, scopes, _Rates(pa.array([], pa.string()), nothing, nothing), now_ms)
        newest, oldest = self._batches[-1], self._batches[0]
        names = pc.unique(pa.chunked_array([batch.names for batch in self._batches]))
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        is_over = now_ms - newest.added_ms > self._cycle_ms  # and no batch has ended since
        flows = _Flows.of(list(self._batches), names)
        n = len(self._batches)
        waiting = flows.total("waiting", n - 1, n)
        if is_over:
            demand, admitted = np.minimum(waiting, flows.total("wanted", n - 1, n)), np.zeros_like(waiting)
        else:
            demand = np.minimum(flows.total("served", 0, n) + waiting, flows.total("wanted", 0, n))
            admitted = flows.total("admitted", 0, n)
        span_ms = max(1, newest.time_ms - oldest.before_ms)
        demand, usage = _rate(demand, span_ms), _rate(admitted, span_ms)
        if not is_over:
            risen = self._risen(flows)
            demand = np.where(risen > demand + demand // _NOTABLE_PART, risen, demand)
        return self._by_scope(policy, scopes, _Rates(names, demand, usage), now_ms)

    def _risen(self, flows: _Flows) -> Int64s:
        """Return the rates that demands have risen to: the lesser arrival rate of the last two eighths of a cycle.

        The mean over the whole cycle would show a rise one cycle late. A burst that came only once is not a rate.
        """
        batches = flows.batches
        least: Int64s | None = None
        end = len(batches)
        for begin in range(len(batches) - 1, 0, -1):  # the batch before is needed: its backlog is no arrival
            span_ms = batches[end - 1].time_ms - batches[begin].before_ms
            if span_ms * _RISE_PARTS < self._cycle_ms:
                continue
            left = flows.total("waiting", end - 1, end) - flows.total("waiting", begin - 1, begin)
            arrived = np.minimum(flows.total("served", begin, end) + left, flows.total("wanted", begin, end))
            rate_micro_per_ms = _rate(np.maximum(arrived, 0), span_ms)
            if least is not None:
                return np.minimum(least, rate_micro_per_ms)
            least, end = rate_micro_per_ms, begin
        return np.zeros((flows.count, len(Dimension)), dtype=np.int64)

    def keep(self, ids: Int64s, until_ms: Int64s) -> None:
        """Note that the scopes `ids`, which ascend, are not given up before `until_ms`, wanted or not."""
        self._want(ids, until_ms - self._patience_ms)

    def _want(self, ids: Int64s, now_ms: Int64s | int) -> None:
        """Note that the scopes `ids`, which ascend, are wanted; what was noted for a later time stays."""
        held, wanted_ms = self._wanted
        if not found_in(ids, held).all():
            both = np.union1d(held, ids)
            moved = np.zeros(len(both), dtype=np.int64)
            moved[np.searchsorted(both, held)] = wanted_ms
            held, wanted_ms = both, moved
        at = np.searchsorted(held, ids)
        wanted_ms[at] = np.maximum(wanted_ms[at], now_ms)
        self._wanted = held, wanted_ms

    def _by_scope(self, policy: CompiledPolicy, scopes: SharedScopes, rates: _Rates, now_ms: int) -> Measurement:
        found = match(rates.names, policy)
        self.wanted = None
        if policy.shared.budgets:
            has_any = (rates.demand > 0).any(axis=1)
            weight = np.where(has_any, policy.namespace_limits.weight[found.rule], 0)
            both = by_scope(found.shared_scope, np.column_stack([rates.demand, weight]), len(policy.shared))
            self.wanted = both[:, :-1], both[:, -1]
        flow, at = _places(found.shared_scope, scopes, len(policy.shared))
        demand, usage = (scopes.pairs(each.take(flow, axis=0), at) for each in (rates.demand, rates.usage))
        wants = (demand > 0).any(axis=1)
        is_wanted = np.zeros(len(scopes.ids), dtype=np.bool_)
        is_wanted[at[wants]] = True
        self._want(scopes.ids[is_wanted], now_ms)
        held, wanted_ms = self._wanted
        is_held = now_ms - wanted_ms <= self._patience_ms
        self._wanted = held[is_held], wanted_ms[is_held]
        kept = np.flatnonzero(found_in(scopes.ids, held[is_held]))
        quota = scopes.taken(policy.shared.rate_micro_per_ms)
        available = np.where(quota == UNLIMITED, PLENTY, quota)
        weight = policy.namespace_limits.weight[found.rule]
        first = self._goes_first(policy, found, rates.demand, scopes, flow, at)
        bin_scope, bin_demand, bin_weight = demand_bins(
            at[wants], (demand - first).compress(wants, axis=0), weight[flow[wants]], available
        )
        together = sums(at, first, len(scopes.ids))
        firsts = np.flatnonzero((together > 0).any(axis=1))
        if len(firsts):
            order = np.argsort(np.concatenate([bin_scope, firsts]), kind="stable")
            bin_scope = np.concatenate([bin_scope, firsts])[order]
            bin_demand = np.concatenate([bin_demand, together[firsts]])[order]
            bin_weight = np.concatenate([bin_weight, np.full(len(firsts), FIRST_WEIGHT)])[order]
        used = sums(at, usage, len(scopes.ids))
        bin_row = np.searchsorted(kept, bin_scope)
        measured = Measurement(
            scopes.ids[kept], quota.take(kept, axis=0), used.take(kept, axis=0), bin_row, bin_demand, bin_weight
        )
        divided = self.guarantees(policy)
        return measured.joined(divided.measured(found, rates.demand, weight, policy)) if len(divided.ids) else measured

    def _goes_first(
        self, policy: CompiledPolicy, found: Matches, demand: Int64s, scopes: SharedScopes, flow: Int64s, at: Int64s
    ) -> Int64s:
        """Return what this job guarantees of the demand of flows at the places that they draw on, shape (n, 2)."""
        if self._parts is None:
            return np.zeros((len(flow), 2), dtype=np.int64)
        is_group = scopes.position[at] > len(policy.tenant_names)
        below = (
            guaranteed_demand(policy, found, demand, self._parts, level)
            for level in (Level.TENANT, Level.RESOURCE_GROUP)
        )
        of_tenant, of_group = (scopes.pairs(each.take(flow, axis=0), at) for each in below)
        first = np.where(is_group[:, None], of_group, of_tenant)
        return np.where(scopes.alone[at][:, None] >= 0, 0, first)


def _places(shared_scope: Int64s, scopes: SharedScopes, count: int) -> tuple[Int64s, Int64s]:
    """Return the flows that draw on what jobs share, and for each the place that it draws on.

    Parameters
    ----------
    shared_scope
        Shape (n, 3), as in `matching.Matches`: the tenant's and the group's count, the job's is not shared.
    """
    flows, places = [], []
    for alone in (-1, *_ALONE):
        here = np.flatnonzero(scopes.alone == alone)
        place = np.full(count + 1, -1, dtype=np.int64)
        place[scopes.position[here]] = here
        of_flow = place[shared_scope[:, :2]]
        flow, level = np.nonzero(of_flow >= 0)
        flows.append(flow)
        places.append(of_flow[flow, level])
    return np.concatenate(flows), np.concatenate(places)
