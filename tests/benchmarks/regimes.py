"""Regimes of the kernel: every way in which a policy can make a job short, for a million rows.

Each regime is measured on a first batch, on a second batch behind the queue that the first one left, and on a batch
without arrivals behind the queue that the second one left. What a group or the job gets is a fifth of a batch's rows.
Rows are decided alone, or as a whole batch (`run_batch`), with a payload of one number and frames to open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.batch.admission import Arrivals
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.state import ControlRow, DeciderState
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.record import pack
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE, TIE, encode

ROWS: Final = 1_000_000
NAMESPACES: Final = 10_000
TENANTS: Final = 100
_FIFTH: Final = ROWS // 5


@dataclass(frozen=True, slots=True)
class Regime:
    """A policy that makes a job short in one way."""

    name: str
    policy: CompiledPolicy

    def control_row(self, now_ms: int) -> bytes:
        """Return the control row of the first batch, which brings the policy."""
        return pack(ControlRow(1, pack(self.policy), PayingTime(now_ms, now_ms)))


def regimes() -> Iterator[Regime]:
    """Yield the regimes, from the one in which nothing runs short."""
    for name, document in _documents():
        yield Regime(name, compile_policy(parse_document({"version": 1, **document}), "publish"))


def _documents() -> Iterator[tuple[str, Mapping[str, Any]]]:
    def group(**publish: Any) -> dict[str, Any]:
        quota = {"messages_per_second": _FIFTH, "burst_seconds": 1, **publish}
        return {"resource_groups": {"g": {"publish": quota}}, "defaults": {"resource_group": "g"}}

    def namespace(**publish: Any) -> dict[str, Any]:
        return {"defaults": {"publish": {"messages_per_second": _FIFTH // NAMESPACES, "burst_seconds": 1, **publish}}}

    tenant = {"publish": {"messages_per_second": _FIFTH // TENANTS, "burst_seconds": 1}}
    in_group = {f"t{n % TENANTS}/n{n}": {"resource_group": f"g{n % 1_000}"} for n in range(NAMESPACES)}
    groups = {f"g{n}": {"publish": {"messages_per_second": _FIFTH // 1_000, "burst_seconds": 1}} for n in range(1_000)}
    yield "nothing is limited", {}
    for action in ("delay", "reject", "observe"):
        yield f"one group, {action}", group(on_excess=action)
        yield f"namespace quotas, {action}", namespace(on_excess=action)
    yield "one group by bytes", group(messages_per_second=ROWS * 2, bytes_per_second=_FIFTH * 200)
    yield "one group by messages and bytes", group(bytes_per_second=_FIFTH * 200)
    yield "job, groups and tenants", {
        **group(), "job": group()["resource_groups"]["g"], "tenants": {f"t{n}": tenant for n in range(TENANTS)},
    }  # fmt: skip
    yield "1,000 groups", {"resource_groups": groups, "namespaces": in_group}
    yield "Pegasus rules", {"defaults": {"write_throttling": "20*delay*100,50*reject*50"}}
    yield "Pegasus rules by size", {"defaults": {"write_throttling_by_size": "4K*delay*100,10K*reject*50"}}
    yield "largest messages", group(max_message_bytes=300)
    yield "queue full of messages", {**group(), "queue": {"messages": _FIFTH // 2}}
    yield "queue full of bytes", {**group(), "queue": {"bytes": _FIFTH * 100}}
    yield "queue too old", {**group(), "queue": {"age_seconds": 0.5, "messages": 5 * ROWS, "bytes": "8GiB"}}


def arrivals() -> Arrivals:
    """Return the rows of one batch: 10,000 namespaces, one as likely as another, and sizes up to 400 bytes."""
    random = np.random.default_rng(1)
    names = pa.array([f"t{n % TENANTS}/n{n}" for n in range(NAMESPACES)])
    namespaces = names.take(pa.array(random.integers(0, NAMESPACES, ROWS)))
    return Arrivals(namespaces, pa.array(random.integers(1, 400, ROWS)))


def frames(rows: Arrivals) -> list[bytes]:
    """Return rows as the frames in which they reach the decider, in order."""
    number = pa.array(np.arange(len(rows)))
    helpers = {NAMESPACE: rows.namespaces, SIZE: rows.size_bytes, f"{ORDER_PREFIX}000": number}
    return encode(pa.table({"id": number, **helpers, TIE: pa.array(np.zeros(len(rows), dtype=np.int64))}))


def nothing() -> Arrivals:
    """Return a batch without rows."""
    return Arrivals(pa.array([], pa.string()), pa.array([], pa.int64()))


def initial(policy: CompiledPolicy, *, now_ms: int) -> DeciderState:
    """Return the state of a decider that has decided nothing, a second before `now_ms`."""
    return replace(DeciderState.initial(policy, now_ms=now_ms), advanced_to_ms=now_ms - 1_000)
