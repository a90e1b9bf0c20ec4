"""A policy's author is told of settings without effect, and of quotas of 0 that let rows wait.

A quota that is accepted is applied. A setting that is accepted but cannot act as it stands is reported to its author.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from spark_throttle.core.limits.pegasus import parse_throttling
from spark_throttle.policy.guarantees import scopes_above
from spark_throttle.policy.model import DIRECTIONS, Direction, NamespacePolicy, PolicyDocument, QueuePolicy, ScopePolicy
from spark_throttle.policy.quotas import GUARANTEES, HOLDS, LIMITS, RATES, NamespaceQuota, Quota, may_hold_by
from spark_throttle.store.checks.limit_changes import WAITS
from spark_throttle.store.entries import path_of
from spark_throttle.store.store import Kind

_PLAIN: Final = NamespaceQuota()
_ANY_RATE: Final = f"{', '.join(RATES[:-1])} or {RATES[-1]}"


def idle_parts(kind: Kind, name: str, policy: ScopePolicy | QueuePolicy) -> Iterator[str]:
    """Yield the settings of an entry that have no effect as they stand, and why.

    Examples
    --------
    >>> policy = ScopePolicy.model_validate({"publish": {"burst_seconds": 5}})
    >>> list(idle_parts("resource_group", "gold", policy))
    ['resource_groups.gold.publish.burst_seconds does nothing without messages_per_second, bytes_per_second, \
units_per_second or request_percentage']
    """
    if isinstance(policy, QueuePolicy):
        return
    path = path_of(kind, name)
    if isinstance(policy, NamespacePolicy):
        if kind == "defaults" and policy.locked:
            yield f"{path}.locked does nothing: only an administrator changes the defaults"
        for key in ("write_throttling", "write_throttling_by_size", "read_throttling"):
            yield from _idle_rules(f"{path}.{key}", getattr(policy, key))
    for where, direction, quota, given in _quotas(path, policy):
        yield from _idle_keys(f"{where}.{direction}", quota, given)
        if kind == "job" and "weight" in given:
            yield f"{where}.{direction}.weight does nothing: the job shares with nobody"


def _idle_keys(where: str, quota: Quota, given: set[str]) -> Iterator[str]:
    """Yield the keys of a quota that need another one."""
    is_bounded = any(getattr(quota, key) is not None for key in LIMITS)
    if all(getattr(quota, key) is None for key in RATES):
        for key in ("burst_seconds", "on_excess"):
            acts = key == "on_excess" and is_bounded and quota.on_excess == "observe"
            acts |= key == "on_excess" and any(getattr(quota, each) is not None for each in HOLDS)
            acts |= key == "burst_seconds" and any(getattr(quota, each) is not None for each in GUARANTEES)
            if key in given and not acts:
                yield f"{where}.{key} does nothing without {_ANY_RATE}"
    if "observe_percent" in given and (quota.on_excess == "observe" or not is_bounded):
        yield f"{where}.observe_percent does nothing without a limit that delays or rejects"


def _idle_rules(where: str, text: str | None) -> Iterator[str]:
    """Yield the rules of a throttling string that hold nothing back: Pegasus takes them, and so does a policy."""
    if text is None:
        return
    rule = parse_throttling(text)
    if "delay" in text and 0 in (rule.delay_units, rule.delay_ms):
        why = "0 ms is no wait" if rule.delay_units else "0 units turn a rule off"
        yield f"{where}: its delay does nothing: {why}"
    if "reject" in text and rule.reject_units == 0:
        yield f"{where}: its reject does nothing: 0 units turn a rule off"


def _quotas(path: str, policy: ScopePolicy) -> Iterator[tuple[str, Direction, Quota, set[str]]]:
    """Yield the quotas of an entry, and those by its exception and its schedule, with the keys that each sets."""
    for direction in DIRECTIONS:
        quota: Quota = getattr(policy, direction)
        yield path, direction, quota, {key for key, value in quota if value != getattr(_PLAIN, key)}
        for key, part, then in policy.parts:
            sets = {name for name, value in getattr(part, direction) if value is not None}
            yield f"{path}.{key}", direction, getattr(then, direction), sets


def waiting_parts(kind: Kind, name: str, policy: ScopePolicy | QueuePolicy) -> Iterator[str]:
    """Yield the quotas of 0 that let rows wait instead of rejecting them.

    Examples
    --------
    >>> policy = ScopePolicy.model_validate({"publish": {"messages_per_second": 0}})
    >>> for note in waiting_parts("tenant", "acme", policy):
    ...     print(note)
    tenants.acme.publish.messages_per_second is 0 under on_excess: delay: nothing is admitted; rows wait until a bound \
of the queue is reached, and are then rejected (queue_full, queue_age); on_excess: reject rejects them at once
    """
    if isinstance(policy, QueuePolicy):
        return
    for where, direction, quota, given in _quotas(path_of(kind, name), policy):
        for key in HOLDS:
            is_new = key in given or "on_excess" in given
            if is_new and getattr(quota, key) == 0 and quota.on_excess == "delay":
                yield f"{where}.{direction}.{key} is 0 under on_excess: delay: nothing is admitted; {WAITS}"


def notes_on(kind: Kind, name: str, policy: ScopePolicy | QueuePolicy) -> Iterator[str]:
    """Yield what the author of an entry may not expect of it."""
    yield from idle_parts(kind, name, policy)
    yield from waiting_parts(kind, name, policy)


def notes_on_document(document: PolicyDocument) -> Iterator[str]:
    """Yield what the author of a document may not expect of it."""
    named: list[tuple[Kind, str, ScopePolicy]] = [
        *(("resource_group", name, policy) for name, policy in document.resource_groups.items()),
        *(("tenant", name, policy) for name, policy in document.tenants.items()),
        *(("namespace", name, policy) for name, policy in document.namespaces.items()),
        ("defaults", "", document.defaults),
        ("job", "", document.job),
    ]
    entries = {path_of(kind, name): policy for kind, name, policy in named}
    for kind, name, policy in named:
        yield from notes_on(kind, name, policy)
        yield from _idle_guarantees(path_of(kind, name), document, entries)


def _idle_guarantees(path: str, document: PolicyDocument, entries: Mapping[str, ScopePolicy]) -> Iterator[str]:
    """Yield what an entry is guaranteed of something that no scope above limits, at any time."""
    for where, direction, _, given in _quotas(path, entries[path]):
        for key, rate in zip(GUARANTEES, RATES, strict=True):
            if key in given:
                above = [entries[each] for each in scopes_above(path, document) if each in entries]
                quotas = (quota for each in above for _, at, quota, _ in _quotas("", each) if at == direction)
                if not any(may_hold_by(quota, rate) for quota in quotas):
                    yield f"{where}.{direction}.{key} does nothing: no scope above holds rows back by {rate}"
