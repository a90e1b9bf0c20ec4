"""A change leaves guarantees that can be kept at once (`policy.guarantees`), whoever makes it, and of which entry.

They are asked of the entries that are guaranteed something and of those above them, so a store without any asks for
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_throttle.policy.codec import parse_document
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

    tenants: set[Key] = {("tenant", name.partition("/")[0]) for kind, name in claims if kind == "namespace"}
    entries = claims | found({*tenants, ("defaults", ""), ("job", "")})
    groups = {resource_group_of(entry.body) for entry in entries.values()}
    entries |= found({("resource_group", name) for name in groups if name is not None})
    values: dict[str, Any] = {}
    for (kind, name), entry in entries.items():
        if kind in SINGLE_KINDS:
            values[SECTIONS[kind]] = policy_of(entry)
        else:
            values.setdefault(SECTIONS[kind], {})[name] = policy_of(entry)
    parse_document(values)
