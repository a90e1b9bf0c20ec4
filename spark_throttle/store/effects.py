"""Settings that have no effect unless another is set.

A quota that is accepted is applied. A setting that is accepted but cannot act as it stands is reported to its author.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_throttle.policy.model import DIRECTIONS, NamespacePolicy, PolicyDocument, QueuePolicy, Quota, ScopePolicy
from spark_throttle.store.entries import SECTIONS
from spark_throttle.store.store import Kind

_PLAIN: Final = Quota()


def idle_parts(kind: Kind, name: str, policy: ScopePolicy | QueuePolicy) -> Iterator[str]:
    """Yield the settings of an entry that have no effect as they stand, and why.

    Examples
    --------
    >>> policy = ScopePolicy.model_validate({"publish": {"burst_seconds": 5}})
    >>> list(idle_parts("resource_group", "gold", policy))
    ['resource_groups.gold.publish.burst_seconds does nothing without messages_per_second or bytes_per_second']
    """
    if isinstance(policy, QueuePolicy):
        return
    path = SECTIONS[kind] + (f".{name}" if name else "")
    if kind == "defaults" and isinstance(policy, NamespacePolicy) and policy.locked:
        yield f"{path}.locked does nothing: only an administrator changes the defaults"
    for direction in DIRECTIONS:
        quota: Quota = getattr(policy, direction)
        if quota.messages_per_second is None and quota.bytes_per_second is None:
            for key in ("burst_seconds", "on_excess"):
                acts = key == "on_excess" and quota.max_message_bytes is not None and quota.on_excess == "observe"
                if getattr(quota, key) != getattr(_PLAIN, key) and not acts:
                    yield f"{path}.{direction}.{key} does nothing without messages_per_second or bytes_per_second"
        if kind == "job" and quota.weight != _PLAIN.weight:
            yield f"{path}.{direction}.weight does nothing: the job shares with nobody"


def idle_parts_of(document: PolicyDocument) -> Iterator[str]:
    """Yield the settings of a document that have no effect as they stand, and why."""
    named: list[tuple[Kind, str, ScopePolicy]] = [
        *(("resource_group", name, policy) for name, policy in document.resource_groups.items()),
        *(("tenant", name, policy) for name, policy in document.tenants.items()),
        *(("namespace", name, policy) for name, policy in document.namespaces.items()),
        ("defaults", "", document.defaults),
        ("job", "", document.job),
    ]
    for kind, name, policy in named:
        yield from idle_parts(kind, name, policy)
