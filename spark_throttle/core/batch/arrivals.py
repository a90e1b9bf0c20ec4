"""The entrance of rows: unusable rows are set apart, names become positions, buckets refill.

The state may remember many more namespaces than a batch concerns. All of them are refilled, because full buckets are
forgotten. Everything else is done only for the namespaces with rows, or with a lead that the batch may change.

What entered, the queue, the shared buckets and the policy together are the `MicroBatch` that is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.batch.decisions import MAX_NAMESPACE_BYTES, UNUSABLE_AMOUNTS, Reason
from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.limits.budgets import CalendarWindows, Spent
from spark_throttle.core.limits.size_bounds import OversizedRows, oversized
from spark_throttle.core.limits.token_bucket import full, refill, refilled_cut
from spark_throttle.core.names.matching import (
    Matches,
    MatchMemory,
    domains_of,
    enforcing_scopes,
    positions_in,
    taken,
    weights_in,
)
from spark_throttle.core.quota import AMOUNTS, MOST_NS, MOST_OF_AMOUNTS, Bools, CompiledPolicy, Int64s, Limits
from spark_throttle.core.reservations import SettledCosts
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import DeciderState, Flows, Queue

Int8s = npt.NDArray[np.int8]

_NO_FLOWS: Final = np.zeros(0, dtype=np.int64)
_MANY_ROWS = 1 << 16
"""Most names have a row among so many first ones; the others are looked for alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """The rows that a batch brings, in the order in which they must be decided."""

    namespaces: pa.StringArray | pa.DictionaryArray
    """The namespace of every row; a row whose namespace is null is rejected. A dictionary of names, in any order and
    with more names than the rows have, saves looking up the name of every row."""

    size_bytes: pa.Int64Array
    """The size of every row; a row whose size is null is rejected."""

    is_writable: Bools | None = None
    """Whether the sink accepts the row; a row that it does not accept is rejected. `None` if it accepts all rows."""

    units: pa.Int64Array | None = None
    """The units of every row; a row whose units are null is rejected. `None` if all rows cost none."""

    identity: Int64s | None = None
    """Shape (n, 2): by what the row is reserved once it leaves (`core.reservations`), zeros where it is not; `None` if
    no row is."""

    def __len__(self) -> int:
        return len(self.namespaces)


@dataclass(frozen=True, slots=True, eq=False)
class KnownFlows:
    """All namespaces that are known in a batch, refilled to the batch's time."""

    flows: Flows
    """The namespaces of the state, at their old positions, then the new ones among the arrivals."""

    matches: Matches
    full_micro: Int64s
    """Shape (n, 4): the balances of the namespaces' buckets when full."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchFlows:
    """The flows that a batch concerns, and the flow of each of its rows, as a position among them."""

    known: KnownFlows
    at: Int64s
    """The positions in `known` of the flows that the batch concerns, ascending: those with rows or a lead."""

    flows: Flows
    matches: Matches
    limits: Limits
    queue_flow: Int64s
    """The flow of every queued row."""

    flow: Int64s
    """The flow of every arrival, -1 where the arrival is unusable."""

    amounts: tuple[Int64s, ...]
    """What every arrival has of `AMOUNTS`, 0 where it is unusable; without units if no row has any and no scope of the
    policy limits them."""

    unusable: Int64s
    """The positions of the unusable arrivals, ascending."""

    reason: Int8s
    """The `Reason` why each unusable arrival is unusable."""

    oversized: OversizedRows
    """The usable arrivals that are larger than a scope lets pass."""

    price_ns: Int64s | None
    """The processing time as which a message of each flow counts; `None` if no scope of the policy limits time."""

    corrected: CorrectedRows | None
    """What the batch corrects in the fair order, by these flows; `None` for nothing."""


def enter(
    state: DeciderState,
    arrivals: Arrivals,
    policy: CompiledPolicy,
    memory: MatchMemory,
    settled: SettledCosts | None = None,
    *,
    now_ms: int,
) -> BatchFlows:
    """Return the flows that a batch concerns, with its arrivals assigned to them.

    Parameters
    ----------
    settled
        What the costs have settled that came with the batch.
    """
    has_units = arrivals.units is not None or state.queue.units is not None or policy.has_units
    read = _read(arrivals, len(AMOUNTS) if has_units else 1)
    position = _positions(read.names, state.flows.names)
    is_new = position < 0
    position[is_new] = len(state.flows) + np.arange(int(is_new.sum()))
    names, new_names = state.flows.names, read.names.filter(pa.array(is_new))
    matches = memory.match(names, new_names, policy)
    if len(new_names):
        names = pa.concat_arrays([names, new_names])
    known = _refilled(state, names, matches, policy.namespace_limits, now_ms=now_ms)
    corrected, changed = state.corrected, _NO_FLOWS if settled is None else settled.flows
    if corrected is not None:
        changed = np.concatenate([changed, corrected.flow])
    at = _concerned(known.flows, np.concatenate([state.queue.flow, position, state.reservations.flow, changed]))
    if len(at) == len(names):
        flows, queue_flow = known.flows, state.queue.flow
    else:
        place = np.full(len(names), -1, dtype=np.int64)
        place[at] = np.arange(len(at))
        flows, matches = known.flows.take(at), taken(matches, at)
        position, queue_flow = place[position], place[state.queue.flow]
        corrected = None if corrected is None else replace(corrected, flow=place[corrected.flow])
    # If no namespace is known yet, the arriving ones keep the numbers that they already have.
    is_numbered = not len(state.flows) and not len(read.unusable)
    flow = read.name.astype(np.int64) if is_numbered else np.append(position, -1).take(read.name.astype(np.int64))
    return BatchFlows(
        known, at, flows, matches, matches.own_limits(policy), queue_flow, flow,
        read.amounts, read.unusable, read.reason, oversized(flow, read.amounts, matches, policy, observed=False),
        _prices(flows, state, len(arrivals)) if policy.has_time else None, corrected,
    )  # fmt: skip


def _prices(flows: Flows, state: DeciderState, arrivals: int) -> Int64s:
    """Return what a message of each flow is estimated to take; all rows together take `MOST_NS` at most."""
    specific_ns = np.where(flows.priced_ms > 0, flows.price_ns, state.prices.specific_ns)
    return np.minimum(specific_ns + state.prices.common_ns, MOST_NS // max(1, len(state.queue) + arrivals))


def _concerned(flows: Flows, named: Int64s) -> Int64s:
    """Return the positions, ascending, of the flows that are named or have a lead."""
    is_concerned = flows.has_lead
    is_concerned[named] = True
    return np.flatnonzero(is_concerned)


@dataclass(frozen=True, slots=True, eq=False)
class _ArrivalArrays:
    """Arrivals as arrays."""

    names: pa.StringArray
    """The distinct names of the usable rows, in the order of their first rows."""

    name: npt.NDArray[np.integer]
    """The name of every row, as a position in `names`; -1 where the row is unusable."""

    amounts: tuple[Int64s, ...]
    unusable: Int64s
    reason: Int8s


def _read(arrivals: Arrivals, amounts: int) -> _ArrivalArrays:
    """Return the arrivals as arrays; the distinct names and the extreme amounts show at once if all rows are usable."""
    rows = len(arrivals)
    none = np.zeros(0, dtype=np.int64)
    given = [arrivals.size_bytes] if arrivals.units is None else [arrivals.size_bytes, arrivals.units]
    rest = (np.broadcast_to(np.int64(0), (rows,)),) * (amounts - len(given))
    may_all_be = arrivals.is_writable is None or bool(arrivals.is_writable.all())
    if may_all_be and not arrivals.namespaces.null_count and not any(each.null_count for each in given):
        encoded = _encoded(arrivals.namespaces)
        found = tuple(each.to_numpy() for each in given)
        length = pc.binary_length(encoded.dictionary).to_numpy()
        is_usable = (length > 0) & (length <= MAX_NAMESPACE_BYTES)
        bounded = zip(found, MOST_OF_AMOUNTS, strict=False)
        if is_usable.all() and all(each.min(initial=0) >= 0 and each.max(initial=0) <= most for each, most in bounded):
            name = encoded.indices.to_numpy()
            return _ArrivalArrays(encoded.dictionary, name, found + rest, none, none.astype(np.int8))
    namespaces = _decoded(arrivals.namespaces)
    reason = _unusable(namespaces, arrivals)
    usable = np.flatnonzero(reason == Reason.NONE)
    encoded = namespaces.take(pa.array(usable)).dictionary_encode()
    name = np.full(rows, -1, dtype=np.int64)
    name[usable] = encoded.indices.to_numpy(zero_copy_only=False)
    found = tuple(
        np.where(reason == Reason.NONE, pc.fill_null(each, 0).to_numpy(zero_copy_only=False), 0) for each in given
    )
    unusable = np.flatnonzero(reason)
    return _ArrivalArrays(encoded.dictionary, name, found + rest, unusable, reason[unusable])


def _encoded(namespaces: pa.StringArray | pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the names as a dictionary of distinct ones in the order of their first rows; no row may be null."""
    if not isinstance(namespaces, pa.DictionaryArray) or namespaces.dictionary.null_count:
        return _decoded(namespaces).dictionary_encode()
    distinct = namespaces.dictionary.cast(pa.string()).dictionary_encode()
    names, code = distinct.dictionary, namespaces.indices.to_numpy()
    if len(names) < len(distinct):
        code = distinct.indices.to_numpy()[code]
    first = np.full(len(names), len(code), dtype=np.int64)
    np.minimum.at(first, code[:_MANY_ROWS], np.arange(min(len(code), _MANY_ROWS)))
    later = _MANY_ROWS + np.flatnonzero((first == len(code)).take(code[_MANY_ROWS:]))
    np.minimum.at(first, code[later], later)
    in_order = np.argsort(first, kind="stable")[: int(np.count_nonzero(first < len(code)))]
    if len(in_order) == len(names) and (in_order[1:] > in_order[:-1]).all():
        return pa.DictionaryArray.from_arrays(pa.array(code), names)
    number = np.zeros(len(names), dtype=np.int32)
    number[in_order] = np.arange(len(in_order))
    return pa.DictionaryArray.from_arrays(pa.array(number[code]), names.take(pa.array(in_order)))


def _decoded(namespaces: pa.StringArray | pa.DictionaryArray) -> pa.StringArray:
    return namespaces.cast(pa.string()) if isinstance(namespaces, pa.DictionaryArray) else namespaces


def _unusable(namespaces: pa.StringArray, arrivals: Arrivals) -> Int8s:
    """Return the first `Reason` why each row is unusable, `NONE` where it is usable."""
    length = pc.fill_null(pc.binary_length(namespaces), 0).to_numpy(zero_copy_only=False)
    wrong = [(length == 0, Reason.NAMESPACE_MISSING), (length > MAX_NAMESPACE_BYTES, Reason.NAMESPACE_TOO_LONG)]
    for column, most, reasons in zip(
        (arrivals.size_bytes, arrivals.units), MOST_OF_AMOUNTS, UNUSABLE_AMOUNTS, strict=True
    ):
        if column is not None:
            amount = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
            is_wrong = column.is_null().to_numpy(zero_copy_only=False), amount < 0, amount > most
            wrong += zip(is_wrong, reasons, strict=True)
    if arrivals.is_writable is not None:
        wrong.append((~arrivals.is_writable, Reason.PARTITION_UNWRITABLE))
    return np.select([w for w, _ in wrong], [r for _, r in wrong], Reason.NONE).astype(np.int8)


def _positions(names: pa.StringArray, known: pa.StringArray) -> Int64s:
    """Return the position of each of `names` in `known`, -1 where it is not there; neither repeats a name."""
    if len(names) >= len(known):
        return positions_in(known, names)
    # The shorter list becomes the lookup table, in which the longer one is looked up.
    found = positions_in(names, known)
    position = np.full(len(names), -1, dtype=np.int64)
    hits = np.flatnonzero(found >= 0)
    position[found[hits]] = hits
    return position


def _refilled(
    state: DeciderState, names: pa.StringArray, matches: Matches, limits: Limits, *, now_ms: int
) -> KnownFlows:
    """Return the flows as of `now_ms`: known buckets refilled, new ones full, windows of other seconds cleared."""
    known, flows = len(state.flows), state.flows
    # A clock that went back pays nothing, and the refill continues from the new time.
    elapsed_ms = max(0, now_ms - state.advanced_to_ms)
    full_micro = full(limits.rate_micro_per_ms, limits.burst_micro).take(matches.rule, axis=0)
    rate = limits.rate_micro_per_ms.take(matches.rule[:known], axis=0)
    filled = np.zeros_like(flows.balance_micro)
    for at in np.flatnonzero(limits.is_limited.any(axis=0)):  # what no rule limits holds 0, and costs nothing
        filled[:, at] = refill(flows.balance_micro[:, at], rate[:, at], full_micro[:known, at], elapsed_ms)
    second, units = now_ms // 1000, flows.window_units
    is_current = flows.window_second == second
    if not is_current.all():
        units = np.where(is_current[:, None], units, 0) if is_current.any() else np.zeros_like(units)
    still_cut = refilled_cut(flows.cut_micro, flows.balance_micro, filled, rate, full_micro[:known], elapsed_ms)
    flows = replace(flows, cut_micro=still_cut, window_units=units).with_new(names[known:])
    if len(names) > known:
        filled = np.concatenate([filled, full_micro[known:]])
    flows = replace(flows, balance_micro=filled, window_second=np.full(len(names), second, dtype=np.int64))
    if limits.budgets and flows.spent is None:
        flows = replace(flows, spent=Spent.nothing(len(names), len(limits.budgets)))
    return KnownFlows(flows, matches, full_micro)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One micro-batch."""

    queue: Queue
    """The rows that waited before the batch."""

    entered: BatchFlows
    """The flows that the batch concerns, and the rows that arrive."""

    shared: SharedBuckets
    """The shared buckets when the batch begins."""

    policy: CompiledPolicy
    epoch: int
    """The number of the epoch in force."""

    now_ms: int
    """The paying time of the batch."""

    elapsed_ms: int
    """The time since the previous batch, used as an estimate of the time until the next; 0 for the first batch."""

    unavailable: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The shared scopes whose rows are given up (`state.ControlRow`)."""

    windows: CalendarWindows | None = None
    """The windows of budgets in force (`state.ControlRow`)."""

    def weights_in(self, scope: Int64s) -> Int64s:
        """Return the weight of each flow in a shared scope of its own; shape (flows,)."""
        domain = domains_of(enforcing_scopes(self.entered.matches.shared_scope, self.policy))
        return weights_in(scope, self.entered.limits.weight, domain, self.policy)
