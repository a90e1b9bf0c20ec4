"""What one rule for a namespace allows beyond another, part by part.

A rule is an entry, a glob or the defaults, with the group that it leads to for the namespaces of one tenant. Each part
is compared by itself: each limit of each direction, the burst, the weight, the action, the throttling strings, and the
group. A rule is looser in a part if it lets more through there, or claims more of what tenants share:

* a limit that is larger, or missing where the other rule has one;
* a burst of more tokens, where both rules have the rate;
* a larger weight;
* `observe` in place of `delay`, or `delay` in place of `reject`, where the other rule has a limit in that direction;
* a throttling string that delays or rejects later, or delays for less time;
* another group, even one with smaller quotas, because its members would have to share it.

So two rules compare the same whatever limits of the tenant and the job stand beside them, and whatever becomes of
those later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias

from spark_throttle.core.limits.pegasus import PegasusRule, parse_throttling
from spark_throttle.core.quota import Level
from spark_throttle.policy.model import DIRECTIONS, RATES, NamespacePolicy, Quota

_LIMITS: Final = (*RATES, "max_message_bytes")
_OF_BURSTS: Final = {
    "messages_per_second": "messages", "bytes_per_second": "bytes", "request_percentage": "percent of a core's second",
}  # fmt: skip
"""What a burst is counted in, by the key of its rate."""

_STRINGS: Final = ("write_throttling", "write_throttling_by_size", "read_throttling")
_ACTIONS: Final = ("reject", "delay", "observe")
"""From the tightest to the loosest: what waits takes room from others and is admitted later."""

_Number: TypeAlias = Decimal | int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, as it acts on the namespaces of one tenant."""

    name: str
    """The entry or glob; empty for the defaults."""

    policy: NamespacePolicy
    group: str | None
    """The resource group of the tenant's namespaces that the rule applies to."""

    group_of: str | None = None
    """The tenant whose own entry names the group; `None` if the rule names it, or there is none."""

    @property
    def where(self) -> str:
        """The place of the rule in messages."""
        return f"namespaces.{self.name}" if self.name else "defaults"

    @property
    def where_group(self) -> str:
        """The place of the entry that names the group, in messages."""
        return self.where if self.group_of is None else f"tenants.{self.group_of}"


@dataclass(frozen=True, slots=True)
class LooserPart:
    """A part in which a rule allows more than another."""

    path: str
    """The key, such as ``publish.messages_per_second``."""

    level: Level
    value: str
    bound: str
    """What the other rule says."""


def looser_parts(rule: Rule, other: Rule) -> Iterator[LooserPart]:
    """Yield the parts in which `rule` allows more than `other`.

    Examples
    --------
    >>> five = NamespacePolicy.model_validate({"publish": {"messages_per_second": 5}})
    >>> for part in looser_parts(Rule("acme/x", NamespacePolicy(), None), Rule("", five, "bronze")):
    ...     print(part.path, part.level.name, part.value, part.bound)
    resource_group RESOURCE_GROUP none bronze
    publish.messages_per_second NAMESPACE unlimited 5
    """
    if rule.group != other.group:
        yield LooserPart("resource_group", Level.RESOURCE_GROUP, rule.group or "none", other.group or "none")
    for direction in DIRECTIONS:
        for part in _looser_of_quota(getattr(rule.policy, direction), getattr(other.policy, direction)):
            key, value, bound = part
            yield LooserPart(f"{direction}.{key}", Level.NAMESPACE, value, bound)
    for key in _STRINGS:
        value, bound = getattr(rule.policy, key), getattr(other.policy, key)
        if bound is not None and _is_looser_string(value, bound):
            yield LooserPart(key, Level.NAMESPACE, value or "none", bound)


def _looser_of_quota(quota: Quota, other: Quota) -> Iterator[tuple[str, str, str]]:
    for key in _LIMITS:
        value, bound = getattr(quota, key), getattr(other, key)
        if _is_larger(value, bound):
            yield key, _said(value), _said(bound)
    for key in RATES:
        value, bound = getattr(quota, key), getattr(other, key)
        if value is not None and bound is not None:
            burst, burst_bound = value * quota.burst_seconds, bound * other.burst_seconds
            if burst > burst_bound:
                unit = _OF_BURSTS[key]
                yield (
                    "burst_seconds",
                    f"{_said(quota.burst_seconds)} (a burst of {_said(burst)} {unit})",
                    (f"{_said(other.burst_seconds)} (a burst of {_said(burst_bound)} {unit})"),
                )
    if quota.weight > other.weight:
        yield "weight", str(quota.weight), str(other.weight)
    has_limit = any(getattr(other, key) is not None for key in _LIMITS)
    if has_limit and _ACTIONS.index(quota.on_excess) > _ACTIONS.index(other.on_excess):
        yield "on_excess", quota.on_excess, other.on_excess


def _is_larger(value: _Number, bound: _Number) -> bool:
    return bound is not None and (value is None or value > bound)


def _said(number: _Number) -> str:
    return "unlimited" if number is None else f"{Decimal(number).normalize():f}"


def _is_looser_string(value: str | None, bound: str) -> bool:
    rule, other = (PegasusRule() if text is None else parse_throttling(text) for text in (value, bound))
    rejects_sooner = 0 < rule.reject_units <= (other.reject_units or rule.reject_units)
    if other.reject_units and not rejects_sooner:
        return True
    delays_sooner = 0 < rule.delay_units <= other.delay_units and rule.delay_ms >= other.delay_ms
    return bool(other.delay_units) and not delays_sooner and not 0 < rule.reject_units <= other.delay_units
