"""A change leaves guarantees that can be kept at once (`policy.guarantees`), whoever makes it, and of which entry.

They are asked of the entries that are guaranteed something below or beside what changes, and of those above them. All
others were kept before, and are still, but where the job has a quota: it is above all.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.model import DIRECTIONS, ScopePolicy
from spark_throttle.policy.quotas import RATES
from spark_throttle.store.checks.entry_index import EntryIndex, says_of_guarantees
from spark_throttle.store.entries import SECTIONS, policy_of, resource_group_of
from spark_throttle.store.store import SINGLE_KINDS, Change, Entry, Key, PolicyStore


def check_guarantees(store: PolicyStore, index: EntryIndex, changes: Sequence[Change], revision: int) -> None:
    """Refuse changes of a revision after which somebody is guaranteed what cannot be kept.

    Raises
    ------
    PolicyError
        With the numbers and the names.
    """
    changed = {change.key: Entry(change.kind, change.name, change.body, 0) for change in changes}
    there = {entry.key: entry for entry in index.guaranteed(revision)} if revision else {}
    claims = {key: entry for key, entry in (there | changed).items() if says_of_guarantees(entry.body)}
    if not claims:
        return

    def found(keys: set[Key]) -> dict[Key, Entry]:
        read = store.find(keys - changed.keys(), at=revision) if revision else {}
        entries = read | {key: changed[key] for key in keys & changed.keys()}
        return {key: entry for key, entry in entries.items() if entry.body is not None}

    tenants: set[Key] = {("tenant", _tenant_of(key)) for key in claims if key[0] == "namespace"}
    above = found({*tenants, ("defaults", ""), ("job", "")})
    if not _limits_rates(above.get(("job", ""))):
        claims = _concerned(claims, above, changed)
        of_claims = {_tenant_of(key) for key in claims}
        above = {(kind, name): entry for (kind, name), entry in above.items() if kind != "tenant" or name in of_claims}
    entries = claims | above
    groups = {resource_group_of(entry.body) for entry in entries.values()}
    entries |= found({("resource_group", name) for name in groups if name is not None})
    values: dict[str, Any] = {}
    for (kind, name), entry in entries.items():
        if kind in SINGLE_KINDS:
            values[SECTIONS[kind]] = policy_of(entry)
        else:
            values.setdefault(SECTIONS[kind], {})[name] = policy_of(entry)
    parse_document(values)


def _concerned(
    claims: Mapping[Key, Entry], above: Mapping[Key, Entry], changed: Mapping[Key, Entry]
) -> dict[Key, Entry]:
    """Return those of `claims` that share a tenant or a group with what changes; all if the defaults change."""
    if ("defaults", "") in changed:
        return dict(claims)
    default = _group_named(above.get(("defaults", "")))

    def group_of(key: Key) -> str | None:
        kind, name = key
        if kind == "resource_group":
            return name
        own = _group_named(claims.get(key))
        tenant: Key = ("tenant", _tenant_of(key))
        return own or (default if kind == "tenant" else _group_named(claims.get(tenant, above.get(tenant))))

    tenants = {_tenant_of(key) for key in changed if key[0] in ("tenant", "namespace")}
    groups = {name for kind, name in changed if kind == "resource_group"}
    groups |= {group_of(key) or "" for key in claims if _is_of(key, tenants)}
    return {key: entry for key, entry in claims.items() if _is_of(key, tenants) or group_of(key) in groups}


def _is_of(key: Key, tenants: Container[str]) -> bool:
    return key[0] in ("tenant", "namespace") and _tenant_of(key) in tenants


def _tenant_of(key: Key) -> str:
    return key[1].partition("/")[0]


def _group_named(entry: Entry | None) -> str | None:
    return None if entry is None else resource_group_of(entry.body)


def _limits_rates(job: Entry | None) -> bool:
    policy = None if job is None else policy_of(job)
    if not isinstance(policy, ScopePolicy):
        return False
    said = [policy, *(part for _, part, _ in policy.parts)]
    return any(getattr(getattr(part, each), rate) is not None for part in said for each in DIRECTIONS for rate in RATES)
