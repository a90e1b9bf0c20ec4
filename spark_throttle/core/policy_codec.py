"""The stored bytes of compiled policies.

They have a format version of their own. A reader accepts every version up to its own, and refuses a newer one by
number.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.packing import BlockFields, Field, pack, unpack
from spark_throttle.core.quota import (
    CompiledPolicy,
    Destinations,
    Int64s,
    Limits,
    Overflow,
    QueueBounds,
    TimeQuotas,
    WindowRules,
)

POLICY_VERSION = 5
"""The newest version of a policy. Version 3 added bounds on the size of a message, 4 quotas on processing time, 5
destinations. A policy is written in the lowest version that has all of its content, so that it keeps its bytes."""

_TIMED_POLICY = 4
_UNBOUNDED_POLICY = 2
_UNTIMED_POLICY = 3
_NO_AGE = -1
"""Stored where a queue has no bound on its rows' age."""


def _limit_fields(prefix: str, limits: Limits) -> dict[str, Field]:
    return {
        f"{prefix}_rate": limits.rate_micro_per_ms,
        f"{prefix}_burst": limits.burst_micro,
        f"{prefix}_excess": limits.on_excess,
        f"{prefix}_weight": limits.weight,
    }


def _bound_fields(policy: CompiledPolicy) -> dict[str, Field]:
    """Return the fields for bounds on the size of a message; none if the policy needs no version that has them."""
    bounds = {"shared": policy.shared.max_message_bytes, "namespace": policy.namespace_limits.max_message_bytes}
    if all(each is None for each in bounds.values()) and not policy.has_time:
        return {}
    return {f"{prefix}_max": np.zeros(0, dtype=np.int64) if each is None else each for prefix, each in bounds.items()}


def _time_fields(policy: CompiledPolicy) -> dict[str, Field]:
    """Return the fields for quotas on processing time; none if no scope has such a quota."""
    if not policy.has_time:
        return {}
    fields: dict[str, Field] = {}
    for prefix, limits in (("shared", policy.shared), ("namespace", policy.namespace_limits)):
        nothing = np.zeros(0, dtype=np.int64)
        fields[f"{prefix}_time_rate"] = nothing if limits.time is None else limits.time.rate_ns_per_ms
        fields[f"{prefix}_time_burst"] = nothing if limits.time is None else limits.time.burst_ns
    return fields


def _limits(f: BlockFields, prefix: str) -> Limits:
    return Limits(
        f.pairs(f"{prefix}_rate"), f.pairs(f"{prefix}_burst"), f.integers(f"{prefix}_excess"),
        f.integers(f"{prefix}_weight"), _bounds(f, prefix) if f.has(f"{prefix}_max") else None,
        _time(f, prefix) if f.has(f"{prefix}_time_rate") else None,
    )  # fmt: skip


def _time(f: BlockFields, prefix: str) -> TimeQuotas | None:
    rate_ns_per_ms = f.integers(f"{prefix}_time_rate")
    return TimeQuotas(rate_ns_per_ms, f.integers(f"{prefix}_time_burst")) if len(rate_ns_per_ms) else None


def _bounds(f: BlockFields, prefix: str) -> Int64s | None:
    found = f.integers(f"{prefix}_max")
    return found if len(found) else None


def _destinations(f: BlockFields) -> Destinations | None:
    if not f.has("destination_scope"):
        return None
    return Destinations(
        *(f.integers(f"destination_{name}") for name in ("scope", "floor", "open_after_ms", "gives_up"))
    )


def pack_policy(policy: CompiledPolicy) -> bytes:
    """Return a compiled policy as a block."""
    windows, queue = policy.namespace_windows, policy.queue
    bounds, time = _bound_fields(policy), _time_fields(policy)
    version = _TIMED_POLICY if time else _UNTIMED_POLICY if bounds else _UNBOUNDED_POLICY
    more: dict[str, Field] = {}
    if policy.destinations is not None:
        version, found = POLICY_VERSION, policy.destinations
        more = {
            "destination_scope": found.scope, "destination_floor": found.floor_micro_per_ms,
            "destination_open_after_ms": found.open_after_ms, "destination_gives_up": found.gives_up,
        }  # fmt: skip
    return pack("plcy", version, {
        "revision": policy.revision, **_limit_fields("shared", policy.shared),
        "tenant_names": policy.tenant_names, "group_names": policy.group_names, "tenant_group": policy.tenant_group,
        "namespace_names": policy.namespace_names, "glob_patterns": policy.glob_patterns,
        "exempt_names": policy.exempt_names, "exempt_globs": policy.exempt_globs,
        **_limit_fields("namespace", policy.namespace_limits),
        "delay_units": windows.delay_units, "delay_ms": windows.delay_ms,
        "reject_units": windows.reject_units, "reject_ms": windows.reject_ms,
        "namespace_group": policy.namespace_group,
        "queue_messages": queue.messages, "queue_bytes": queue.bytes,
        "queue_age_ms": _NO_AGE if queue.age_ms is None else queue.age_ms, "queue_overflow": int(queue.on_overflow),
        **bounds, **time, **more,
    })  # fmt: skip


def unpack_policy(block: bytes, what: str) -> CompiledPolicy:
    """Return the policy that `pack_policy` stored."""
    f = unpack(block, "plcy", POLICY_VERSION, what)
    windows = WindowRules(f.pairs("delay_units"), f.pairs("delay_ms"), f.pairs("reject_units"), f.pairs("reject_ms"))
    age_ms = f.integer("queue_age_ms")
    bounds = QueueBounds(
        f.integer("queue_messages"), f.integer("queue_bytes"), None if age_ms == _NO_AGE else age_ms,
        Overflow(f.integer("queue_overflow")),
    )  # fmt: skip
    globs, exempt_names, exempt_globs = (
        pa.array([], pa.string()) if f.version == 1 else f.names(name)
        for name in ("glob_patterns", "exempt_names", "exempt_globs")
    )
    return CompiledPolicy(
        f.text("revision"), _limits(f, "shared"), f.names("tenant_names"), f.names("group_names"),
        f.integers("tenant_group"), f.names("namespace_names"), globs, exempt_names, exempt_globs,
        _limits(f, "namespace"), windows, f.integers("namespace_group"), bounds, _destinations(f),
    )  # fmt: skip
