"""The same namespaces and waiting rows in another number of shards.

A namespace lives in the shard that its name gives (`names.sharding`), so it leaves one shard as a whole and enters one
as a whole:

- *Waiting rows* keep their order within every namespace. In a new shard, those that come from one former shard follow
  those of the next, which no decision asks: it compares rows of one namespace, and namespaces by their leads.
- *Balances* are paid up to one time, the latest to which any shard was paid, at the rates in force. Time that was paid
  once is not paid again.
- *Leads* are kept. They are relative to the virtual time of their domain, which each shard has for itself: flows that
  were equally far ahead in different shards are so in one.
- *Grants* end. The buckets of shared scopes are in the control plane, whole, and the next epoch lends them anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.message_limits import under_time
from spark_throttle.core.names.sharding import shard_of
from spark_throttle.core.policy_change import carried
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Int64s
from spark_throttle.core.state import DeciderState, Flows, Grants, Queue
from spark_throttle.core.usage import UsageReport

_BY_FLOW: Final = (
    "tenant", "group", "weight", "offered", "admitted", "rejected", "waiting", "demand", "observed_messages",
    "delayed_ms", "leaves_ms", "ahead_milli", "rejected_by_shared_messages",
)  # fmt: skip
"""The arrays of a report that run over its flows."""


@dataclass(frozen=True, slots=True, eq=False)
class StatePart:
    """What goes from one former shard to one new one."""

    state: DeciderState
    rows: Int64s
    """The positions, ascending, of its waiting rows in the former shard's queue."""


def paid_until(state: DeciderState, policy: CompiledPolicy, *, to_ms: int) -> DeciderState:
    """Return a state whose balances are paid up to `to_ms`, at the rates of its policy."""
    if not state.advanced_to_ms < to_ms or not len(state.flows):
        return replace(state, advanced_to_ms=max(to_ms, state.advanced_to_ms))
    in_force = under_time(policy, state.grants.time)
    return carried(state, in_force, in_force, now_ms=to_ms)


def parts_of(state: DeciderState, shards: int) -> Iterator[StatePart]:
    """Yield the part of every new shard, in their order.

    Examples
    --------
    >>> pairs = np.zeros((3, 2), dtype=np.int64)
    >>> flows = Flows(pa.array(["a", "b", "d"]), pairs, pairs, pairs[:, 0], pairs)
    >>> queue = Queue(*(np.array(values) for values in ([2, 0, 0, 2], [10, 20, 30, 40], [5] * 4, [0] * 4)))
    >>> state = replace(DeciderState.initial(1), flows=flows, queue=queue)
    >>> [(part.state.flows.names.to_pylist(), part.rows.tolist()) for part in parts_of(state, 2)]
    [(['d'], [0, 3]), (['a', 'b'], [1, 2])]
    """
    flows, queue = state.flows, state.queue
    shard = shard_of(flows.names, shards)
    for each in range(shards):
        at = np.flatnonzero(shard == each)
        position = np.zeros(len(flows), dtype=np.int64)
        position[at] = np.arange(len(at))
        rows = np.flatnonzero(shard[queue.flow] == each)
        held = Queue(
            position[queue.flow[rows]], queue.size_bytes[rows], queue.arrival_ms[rows], queue.release_ms[rows],
            None if queue.is_deferred is None else queue.is_deferred[rows],
        )  # fmt: skip
        yield StatePart(replace(state, flows=flows.take(at), queue=held), rows)


def joined(parts: Sequence[DeciderState]) -> DeciderState:
    """Return the state of a new shard from its parts, in the order of the former shards; nothing is granted to it.

    The parts are paid up to the same time.
    """
    flows, queues = [part.flows for part in parts], [part.queue for part in parts]
    before = np.cumsum([0, *map(len, flows)])
    names = pa.concat_arrays([pa.array([], pa.string()), *(each.names for each in flows)])
    all_flows = Flows(names, *(
        np.concatenate([getattr(each, name) for each in flows])
        for name in ("balance_micro", "lead_vt", "window_second", "window_units")
    ))  # fmt: skip
    is_deferred = None
    if any(queue.is_deferred is not None for queue in queues):
        is_deferred = np.concatenate([
            np.zeros(len(queue), dtype=np.bool_) if queue.is_deferred is None else queue.is_deferred for queue in queues
        ])  # fmt: skip
    sizes, arrivals, releases = (
        np.concatenate([getattr(each, name) for each in queues]) for name in ("size_bytes", "arrival_ms", "release_ms")
    )
    flow = np.concatenate([each.flow + start for each, start in zip(queues, before[:-1], strict=True)])
    queue = Queue(flow, sizes, arrivals, releases, is_deferred)
    grants = max((part.grants for part in parts), key=lambda each: each.epoch)
    nothing = np.zeros_like(grants.balance_micro)
    ended = Grants(grants.epoch, nothing - 1, nothing, grants.as_of_ms, time=grants.time)
    return DeciderState(max(part.advanced_to_ms for part in parts), all_flows, queue, ended)


def resharded_reports(reports: Sequence[UsageReport], shards: int) -> list[UsageReport]:
    """Return what new shards would have reported of the flows of former ones.

    The reports are of one epoch. What is counted by shard and not by flow stays out.
    """
    if not reports:
        return []
    seats = [shard_of(report.names, shards) for report in reports]
    found = []
    for each in range(shards):
        places = (np.flatnonzero(seat == each) for seat in seats)
        parts = [_taken(report, each, at) for report, at in zip(reports, places, strict=True) if len(at)]
        found += [_together(parts, each)] if parts else []
    return found


def _taken(report: UsageReport, shard: int, at: Int64s) -> UsageReport:
    """Return the flows of a report at `at`, as those of a shard."""
    values = ((name, getattr(report, name)) for name in _BY_FLOW)
    taken: dict[str, Any] = {name: None if value is None else value[at] for name, value in values}
    expires_ms = report.expires_ms if report.waiting[at].any() else NEVER_MS
    return replace(
        report, shard=shard, names=report.names.take(pa.array(at)), expires_ms=expires_ms, invalid_messages=0,
        rejected_by_reason=None, oldest_waiting_ms=None, **taken,
    )  # fmt: skip


def _together(parts: Sequence[UsageReport], shard: int) -> UsageReport:
    """Return the reports of one shard as one."""
    values: dict[str, Any] = {}
    for name in _BY_FLOW:
        found = [getattr(part, name) for part in parts]
        values[name] = None if any(value is None for value in found) else np.concatenate(found)
    return replace(
        parts[0], shard=shard, names=pa.concat_arrays([part.names for part in parts]),
        expires_ms=min(part.expires_ms for part in parts), **values,
    )  # fmt: skip
