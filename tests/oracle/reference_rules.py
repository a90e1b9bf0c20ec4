"""The rules of a policy as plain Python values: a namespace's limits, and why a row cannot be decided at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_throttle.core.quota import (
    MAX_SIZE_BYTES,
    MAX_UNITS,
    MICRO,
    UNBOUNDED,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Int64s,
    Level,
    Limits,
    OnExcess,
    WindowRules,
)
from tests.oracle.reference_budget import KEYS, Budget, Tally

MAX_NAMESPACE_BYTES: Final = 1024

Pair = tuple[int, int]
"""A value for messages and one for bytes."""

Tokens = tuple[int, int, int, int]
"""A value for messages, one for bytes, one for units and one for time, indexed by `Dimension`."""

DIMENSIONS = tuple(Dimension)
COUNTED = (Dimension.MESSAGES, Dimension.BYTES)
"""What Pegasus' rules and the bounds of the queue count."""

UNIT_MICRO: Final = {Dimension.MESSAGES: MICRO, Dimension.BYTES: MICRO, Dimension.UNITS: MICRO, Dimension.TIME: 1}
"""What balances lose for a message, a byte, a unit and a nanosecond."""

SIZES: Final = {Dimension.BYTES: "max_message_bytes", Dimension.UNITS: "max_message_units"}
"""What may be too much of a message, and the key that bounds it."""

MOST: Final = {Dimension.BYTES: MAX_SIZE_BYTES, Dimension.UNITS: MAX_UNITS}


def pair(row: Sequence[int] | Int64s) -> Pair:
    """Return a row of an (n, 2) array as Python integers."""
    return int(row[0]), int(row[1])


def tokens(row: Sequence[int] | Int64s) -> Tokens:
    """Return a row of an (n, 4) array as Python integers."""
    messages, in_bytes, units, time = map(int, row)
    return messages, in_bytes, units, time


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """The limits of one scope."""

    level: Level
    index: int
    """Position among the shared scopes; -1 for a namespace."""

    rate_micro_per_ms: Tokens
    burst_micro: Tokens
    on_excess: OnExcess
    weight: int

    largest: Mapping[Dimension, int]
    """Bounds on what a message has of `SIZES`; `MOST` if there is none."""

    budgets: tuple[tuple[str, int], ...] = ()
    """The budgets, by their keys."""

    @classmethod
    def from_limits(cls, limits: Limits, position: int, level: Level, index: int) -> ScopeLimits:
        """Return the limits at `position`."""
        largest = {d: limits.settings.get(key) for d, key in SIZES.items()}
        return cls(
            level,
            index,
            tokens(limits.rate_micro_per_ms[position]),
            tokens(limits.burst_micro[position]),
            OnExcess(int(limits.on_excess[position])),
            int(limits.weight[position]),
            {d: MOST[d] if column is None else min(MOST[d], int(column[position])) for d, column in largest.items()},
            tuple(
                (key, int(limits.settings[key][position]))
                for key in KEYS
                if key in limits.settings and limits.settings[key][position] < UNBOUNDED
            ),
        )

    def limits(self, dimension: Dimension) -> bool:
        """Return whether `dimension` has a limit."""
        return self.rate_micro_per_ms[dimension] != UNLIMITED

    def meaningful(self, values: Tokens) -> Tokens:
        """Return `values`, with 0 in each dimension without a limit."""
        return tokens([values[d] if self.limits(d) else 0 for d in DIMENSIONS])

    @property
    def limited_dimensions(self) -> list[Dimension]:
        """The dimensions that have a limit."""
        return [d for d in DIMENSIONS if self.limits(d)]

    @property
    def is_enforced(self) -> bool:
        """Whether the scope can hold a row back."""
        return bool(self.limited_dimensions or self.budgets) and self.on_excess != OnExcess.OBSERVE

    @property
    def is_observed(self) -> bool:
        """Whether the scope can mark a row."""
        return bool(self.limited_dimensions or self.budgets) and self.on_excess == OnExcess.OBSERVE

    def with_tallies(self, tallies: Sequence[Tally]) -> list[Budget]:
        """Return the budgets with what is used of them."""
        used = {tally.key: tally for tally in tallies}
        is_enforced = self.on_excess != OnExcess.OBSERVE
        return [Budget(tokens, used.get(key, Tally(key)), is_enforced) for key, tokens in self.budgets]


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Pegasus' rule of one namespace in one dimension."""

    delay_units: int
    delay_ms: int
    reject_units: int
    reject_ms: int

    @property
    def is_on(self) -> bool:
        """Whether the rule does anything."""
        return self.delay_units > 0 or self.reject_units > 0

    @classmethod
    def from_rules(cls, rules: WindowRules, position: int, dimension: Dimension) -> WindowRule:
        """Return the rule of `dimension` at `position`."""
        at = (position, int(dimension))
        return cls(
            int(rules.delay_units[at]), int(rules.delay_ms[at]), int(rules.reject_units[at]), int(rules.reject_ms[at])
        )


@dataclass(frozen=True, slots=True)
class NamespaceRules:
    """All rules of a policy that apply to one namespace."""

    limits: ScopeLimits
    windows: tuple[WindowRule, WindowRule]
    tenant: int
    """Position in `tenant_names`; -1 if the policy does not name the tenant."""

    group: int
    """Position in `group_names`; -1 for no group."""

    shared: tuple[ScopeLimits, ...]
    """The shared scopes that a row passes, narrowest first."""

    @property
    def has_windows(self) -> bool:
        """Whether a Pegasus rule counts the namespace's arrivals, then in both dimensions."""
        return any(rule.is_on for rule in self.windows)

    def too_small_for(self, tokens: Tokens, *, observed: bool) -> tuple[ScopeLimits, Dimension] | None:
        """Return the scope with the least bound, observing or not as asked, if a row exceeds it; otherwise `None`."""
        asked = [each for each in (self.limits, *self.shared) if (each.on_excess == OnExcess.OBSERVE) == observed]
        for d in SIZES:
            least = min(asked, key=lambda each, d=d: each.largest[d], default=None)  # type: ignore[misc]
            if least is not None and tokens[d] > least.largest[d]:  # the narrowest of equals
                return least, d
        return None

    @property
    def enforced(self) -> tuple[ScopeLimits, ...]:
        """The shared scopes that can hold a row back."""
        return tuple(scope for scope in self.shared if scope.is_enforced)


def falls_under(name: str, pattern: str) -> bool:
    """Return whether `name` matches `pattern`, in which each star stands for any text.

    Examples
    --------
    >>> falls_under("acme/orders", "acme/*"), falls_under("acme", "acme/*"), falls_under("a.b", "a?b")
    (True, False, False)
    """
    first, star, rest = pattern.partition("*")
    if not star:
        return name == pattern
    return name.startswith(first) and any(falls_under(name[at:], rest) for at in range(len(first), len(name) + 1))


def hash_of(name: str) -> int:
    """Return the 63 bits that decide in which part of the names one is: a polynomial of its bytes, mixed.

    Examples
    --------
    >>> hash_of("a"), hash_of("b")
    (2714811491967746737, 4609608581513853055)
    """
    found, power = 0, 1
    for byte in name.encode():
        power = power * 0x9E3779B97F4A7C15 % 2**64
        found = (found + byte * power) % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        found = (found ^ found >> 33) * factor % 2**64
    return (found ^ found >> 33) >> 1


def _own_limits(policy: CompiledPolicy, position: int, namespace: str) -> ScopeLimits:
    """Return the limits of a rule for one of its names: it only observes those of a certain part."""
    own = ScopeLimits.from_limits(policy.namespace_limits, position, Level.NAMESPACE, -1)
    percents = policy.namespace_limits.settings.get("observe_percent")
    if percents is None or hash_of(namespace) % 100 >= percents[position]:
        return own
    return replace(own, on_excess=OnExcess.OBSERVE)


def rules_of(policy: CompiledPolicy, namespace: str) -> NamespaceRules:
    """Return the rules of `policy` that apply to `namespace`."""
    named: list[str] = policy.namespace_names.to_pylist()
    globs: list[str] = policy.glob_patterns.to_pylist()
    tenants: list[str] = policy.tenant_names.to_pylist()
    exempt = [*policy.exempt_names.to_pylist(), *policy.exempt_globs.to_pylist()]
    if any(falls_under(namespace, each) for each in exempt):
        rule = len(named) + len(globs)
        own = ScopeLimits.from_limits(policy.namespace_limits, rule, Level.NAMESPACE, -1)
        return NamespaceRules(own, (WindowRule(0, 0, 0, 0), WindowRule(0, 0, 0, 0)), -1, -1, ())
    over = [glob for glob in globs if falls_under(namespace, glob)]
    is_default = namespace not in named and not over
    if namespace in named:
        position = named.index(namespace)
    elif over:
        position = len(named) + globs.index(over[0])
    else:
        position = len(policy.namespace_limits) - 1
    tenant_name = namespace.split("/", maxsplit=1)[0]
    tenant = tenants.index(tenant_name) if tenant_name in tenants else -1

    through_tenant = int(policy.tenant_group[tenant]) if tenant != -1 else -1
    by_itself = int(policy.namespace_group[position])
    first, second = (through_tenant, by_itself) if is_default else (by_itself, through_tenant)
    group = first if first != -1 else second

    shared = []
    if tenant != -1:
        shared.append(ScopeLimits.from_limits(policy.shared, 1 + tenant, Level.TENANT, 1 + tenant))
    if group != -1:
        index = 1 + len(tenants) + group
        shared.append(ScopeLimits.from_limits(policy.shared, index, Level.RESOURCE_GROUP, index))
    shared.append(ScopeLimits.from_limits(policy.shared, 0, Level.JOB, 0))
    windows = policy.namespace_windows
    return NamespaceRules(
        _own_limits(policy, position, namespace),
        (
            WindowRule.from_rules(windows, position, Dimension.MESSAGES),
            WindowRule.from_rules(windows, position, Dimension.BYTES),
        ),
        tenant,
        group,
        tuple(shared),
    )


def malformed_reason(
    namespace: str | None, size_bytes: int | None, units: int | None = 0, *, is_writable: bool = True
) -> str:
    """Return why a row cannot be decided at all, or an empty string.

    Examples
    --------
    >>> malformed_reason("", 1), malformed_reason("acme/logs", -1), malformed_reason("acme/logs", 0)
    ('namespace_missing', 'size_negative', '')
    """
    if not namespace:
        return "namespace_missing"
    if len(namespace.encode()) > MAX_NAMESPACE_BYTES:
        return "namespace_too_long"
    for what, amount, most in (("size", size_bytes, MAX_SIZE_BYTES), ("units", units, MAX_UNITS)):
        if amount is None:
            return f"{what}_missing"
        if amount < 0:
            return f"{what}_negative"
        if amount > most:
            return f"{what}_too_large"
    return "" if is_writable else "partition_unwritable"
