"""What each name's effective limits are, slowly and by the rules of docs/policies.md; and when they get looser.

Nothing here is shared with the code under test: policies are plain values, and names are matched one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

Values = dict[str, Any]

Effect = dict[Any, Any]
"""What holds a name: its group, its throttling strings, and by direction and key its limits, the weight, the action."""

DIRECTIONS: Final = ("publish", "dispatch")
RATES: Final = ("messages_per_second", "bytes_per_second", "request_percentage")
STRINGS: Final = ("write_throttling", "write_throttling_by_size", "read_throttling")
INFINITE: Final = float("inf")
UNITS_TRIED: Final = range(1, 12)
"""More units in a second than any throttling string drawn here names."""


@dataclass
class World:
    """A policy as plain values, with the entries as they are and as administrators wrote them."""

    groups: dict[str, Values] = field(default_factory=dict)
    tenants: dict[str, Values] = field(default_factory=dict)
    namespaces: dict[str, Values] = field(default_factory=dict)
    given: dict[str, Values] = field(default_factory=dict)
    """The namespaces' entries as administrators last wrote them; none that only a tenant's administrator wrote."""

    exempt: list[str] = field(default_factory=list)
    defaults: Values = field(default_factory=dict)
    job: Values = field(default_factory=dict)

    def effect(self, name: str, entries: dict[str, Values]) -> Effect:
        """Return what holds a name, if `entries` are the namespaces' entries."""
        if any(matches(pattern, name) for pattern in self.exempt):
            return {"exempt": True}
        matched = [pattern for pattern in entries if matches(pattern, name)]
        tenant = self.tenants.get(name.partition("/")[0], {})
        rule, group = self.defaults, tenant.get("resource_group") or self.defaults.get("resource_group")
        if matched:
            rule = entries[name if name in matched else min(matched, key=rank)]
            group = rule.get("resource_group") or tenant.get("resource_group")
        levels = [rule, tenant, self.groups.get(group, {}) if group else {}, self.job]
        found: Effect = {"exempt": False, "group": group, "strings": [rule.get(key) for key in STRINGS]}
        for direction in DIRECTIONS:
            quotas = [level.get(direction, {}) for level in levels]
            own = quotas[0]
            # The most stringent level decides; one that only observes holds nothing.
            holding = [quota for quota in quotas if quota.get("on_excess") != "observe"]
            for key in (*RATES, "max_message_bytes"):
                found[direction, key] = min((q[key] for q in holding if key in q), default=INFINITE)
            for key in RATES:
                is_held = own in holding and key in own
                found[direction, "burst", key] = own[key] * own.get("burst_seconds", 10) if is_held else INFINITE
            found[direction, "weight"] = own.get("weight", 1)
            is_limited = any(key in own for key in (*RATES, "max_message_bytes"))
            found[direction, "action"] = own.get("on_excess", "delay") if is_limited else None
        return found


@lru_cache(maxsize=200_000)
def matches(pattern: str, name: str) -> bool:
    """Return whether a name is that of an entry, or matches its glob."""
    if "*" not in pattern:
        return pattern == name
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name, re.DOTALL) is not None


def rank(pattern: str) -> tuple[int, int, int, bytes]:
    """Return the key that sorts globs: more text before the first star, more text in all, fewer stars, bytes."""
    text = pattern.replace("*", "")
    return -len(pattern.partition("*")[0].encode()), -len(text.encode()), pattern.count("*"), pattern.encode()


def looser(after: Effect, allowed: Effect) -> list[object]:
    """Return in what a name's effect is looser than another."""
    if allowed["exempt"] or after["exempt"]:
        return [] if allowed["exempt"] else ["exempt"]
    found: list[object] = [] if after["group"] == allowed["group"] else ["group"]
    for direction in DIRECTIONS:
        numbers: list[tuple[str, ...]] = [(direction, key) for key in (*RATES, "max_message_bytes", "weight")]
        numbers += [(direction, "burst", key) for key in RATES]
        found += [key for key in numbers if after[key] > allowed[key]]
        order = ("reject", "delay", "observe")
        was, now = allowed[direction, "action"], after[direction, "action"]
        if was is not None and (now is None or order.index(now) > order.index(was)):
            found.append((direction, "action"))
    strings = zip(STRINGS, after["strings"], allowed["strings"], strict=True)
    found += [key for key, now, was in strings if any(waits_ms(now, n) < waits_ms(was, n) for n in UNITS_TRIED)]
    return found


@lru_cache
def waits_ms(text: str | None, unit: int) -> float:
    """Return how long the nth unit of a second waits under a throttling string: for ever if it is rejected."""
    waits = 0.0
    for rule in (text or "").split(","):
        units, _, rest = rule.partition("*")
        action, _, wait_ms = rest.partition("*")
        if rule and int(units) and unit > int(units):
            waits = max(waits, INFINITE if action == "reject" else float(wait_ms))
    return waits
