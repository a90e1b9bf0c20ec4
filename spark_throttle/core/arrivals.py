"""How rows enter a shard: what is unusable is told apart, names become positions, buckets refill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.matching import Matches, match
from spark_throttle.core.quota import MAX_SIZE_BYTES, CompiledPolicy, Int64s, Limits
from spark_throttle.core.reasons import MAX_NAMESPACE_BYTES, Reason
from spark_throttle.core.state import Flows, ShardState
from spark_throttle.core.token_bucket import full, refill


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """The rows that a batch brings to a shard, in the order in which they are to be decided."""

    namespaces: pa.StringArray
    """May hold nulls: such a row is rejected."""

    size_bytes: pa.Int64Array
    """May hold nulls: such a row is rejected."""

    def __len__(self) -> int:
        return len(self.namespaces)


@dataclass(frozen=True, slots=True, eq=False)
class Entered:
    """The flows that a batch concerns, refilled to its time, and where its arrivals belong."""

    flows: Flows
    """Those of the state, at their old positions, then those that the arrivals bring."""

    matches: Matches
    limits: Limits
    """The namespaces' own limits, one position a flow."""

    reason: npt.NDArray[np.int8]
    """Of every arrival: why it is unusable, or `Reason.NONE`."""

    flow: Int64s
    """Of every arrival: its position in `flows`, -1 where it is unusable."""

    size_bytes: Int64s
    """Of every arrival: its size, 0 where it is unusable."""


def enter(state: ShardState, arrivals: Arrivals, policy: CompiledPolicy, *, now_ms: int) -> Entered:
    """Take the arrivals of a batch in."""
    reason = _unusable(arrivals)
    usable = np.flatnonzero(reason == Reason.NONE)
    encoded = arrivals.namespaces.take(pa.array(usable)).dictionary_encode()
    found = pc.fill_null(pc.index_in(encoded.dictionary, value_set=state.flows.names), -1)
    position = found.to_numpy(zero_copy_only=False).astype(np.int64)
    is_new = position < 0
    position[is_new] = len(state.flows) + np.arange(int(is_new.sum()))
    flow = np.full(len(arrivals), -1, dtype=np.int64)
    flow[usable] = position[encoded.indices.to_numpy(zero_copy_only=False)]
    size_bytes = np.zeros(len(arrivals), dtype=np.int64)
    size_bytes[usable] = pc.fill_null(arrivals.size_bytes, 0).to_numpy(zero_copy_only=False)[usable]
    new_names = encoded.dictionary.filter(pa.array(is_new))
    names = pa.concat_arrays([state.flows.names, new_names])
    matches = match(names, policy)
    limits = policy.namespace_limits.take(matches.rule)
    return Entered(_refilled(state, names, limits, now_ms=now_ms), matches, limits, reason, flow, size_bytes)


def _unusable(arrivals: Arrivals) -> npt.NDArray[np.int8]:
    """Return the first thing that is wrong with every row."""
    length = pc.fill_null(pc.binary_length(arrivals.namespaces), 0).to_numpy(zero_copy_only=False)
    size = pc.fill_null(arrivals.size_bytes, 0).to_numpy(zero_copy_only=False)
    size_is_null = arrivals.size_bytes.is_null().to_numpy(zero_copy_only=False)
    wrong = [
        (length == 0, Reason.NAMESPACE_MISSING),
        (length > MAX_NAMESPACE_BYTES, Reason.NAMESPACE_TOO_LONG),
        (size_is_null, Reason.SIZE_MISSING),
        (size < 0, Reason.SIZE_NEGATIVE),
        (size > MAX_SIZE_BYTES, Reason.SIZE_TOO_LARGE),
    ]
    return np.select([w for w, _ in wrong], [r for _, r in wrong], Reason.NONE).astype(np.int8)


def _refilled(state: ShardState, names: pa.StringArray, limits: Limits, *, now_ms: int) -> Flows:
    """Return the flows at `now_ms`: known buckets refilled, new ones full, windows of other seconds cleared."""
    known, new = len(state.flows), len(names) - len(state.flows)
    # A clock that went back pays nothing, and the refill goes on from the new time.
    elapsed_ms = max(0, now_ms - state.advanced_to_ms)
    rate, burst = limits.rate_micro_per_ms, limits.burst_micro
    balance = np.concatenate(
        [refill(state.flows.balance_micro, rate[:known], burst[:known], elapsed_ms), full(rate[known:], burst[known:])]
    )
    nothing = np.zeros((new, 2), dtype=np.int64)
    second = now_ms // 1000
    is_current = state.flows.window_second == second
    units = np.concatenate([np.where(is_current[:, None], state.flows.window_units, 0), nothing])
    lead = np.concatenate([state.flows.lead, nothing])
    return Flows(names, balance, lead, np.full(len(names), second, dtype=np.int64), units)
