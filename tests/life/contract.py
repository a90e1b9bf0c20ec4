"""What a policy document says of one namespace: an oracle that is slow and obvious, and shares no code with the core.

Numbers are exact integers: micro-tokens, and micro-tokens a millisecond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from spark_throttle.policy.model import NamespacePolicy, PolicyDocument, ScopePolicy
from spark_throttle.policy.quotas import Quota

if TYPE_CHECKING:
    from spark_throttle.testing.simulation.rows import Name

MICRO: Final = 1_000_000
MAX_NAME_BYTES: Final = 1024
MAX_SIZE_BYTES: Final = 2**36

BUDGETS: Final = tuple(
    f"{what}_per_{period}" for what in ("messages", "bytes", "units") for period in ("hour", "day", "month")
)

Level: TypeAlias = Literal["namespace", "tenant", "group", "job"]
Key: TypeAlias = tuple[Level, str]
"""Names a scope, under whatever policy."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of one scope in one dimension."""

    rate: int
    """Micro-tokens a millisecond."""

    burst: int
    """Micro-tokens."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope that a namespace passes."""

    key: Key
    limits: tuple[Limit | None, Limit | None]
    """The limits of messages and of bytes."""

    on_excess: str
    max_message_bytes: int = MAX_SIZE_BYTES
    """The largest message that it lets pass."""

    weight: int = 1
    time: Limit | None = None
    """The limit of processing time, in ns a millisecond, and ns."""

    guaranteed: tuple[int | None, int | None] = (None, None)
    """The rates that it is guaranteed, of messages and of bytes, in micro-tokens a millisecond."""

    burst_ms: int = 0

    budgets: tuple[tuple[str, int], ...] = ()
    """What it may use in an hour, a day or a month of the calendar, by the key."""

    @property
    def is_asked(self) -> bool:
        """Whether its limits can stop a row, if it has any."""
        return self.on_excess != "observe"

    @property
    def is_enforced(self) -> bool:
        """Whether its limits of messages and of bytes can stop a row."""
        return self.is_asked and self.limits != (None, None)


@dataclass(frozen=True, slots=True)
class Contract:
    """What holds for one namespace."""

    scopes: tuple[Scope, ...]
    """Its own, its tenant's, its group's and the job's, as far as there are any; none where it is exempt."""

    weight: int
    has_rules: bool
    """Whether a Pegasus string concerns it."""

    @property
    def enforced(self) -> tuple[Scope, ...]:
        """Those that can stop a row."""
        return tuple(scope for scope in self.scopes if scope.is_enforced)

    @property
    def timed(self) -> tuple[Scope, ...]:
        """Those whose limits of processing time can stop a row."""
        return tuple(scope for scope in self.scopes if scope.is_asked and scope.time is not None)

    @property
    def is_budgeted(self) -> bool:
        """Whether a budget may hold its rows."""
        return any(scope.budgets and scope.is_asked for scope in self.scopes)

    @property
    def narrowest(self) -> Scope | None:
        """The scope that bounds the size of a message; of equal bounds, that of the narrowest scope."""
        asked = [scope for scope in self.scopes if scope.on_excess != "observe"]
        bounded = [scope for scope in asked if scope.max_message_bytes < MAX_SIZE_BYTES]
        return min(bounded, key=lambda scope: scope.max_message_bytes, default=None)

    @property
    def domain(self) -> Scope | None:
        """The shared scope whose tokens it competes for: its group, else its tenant, else the job."""
        shared = {scope.key[0]: scope for scope in self.enforced}
        return shared.get("group") or shared.get("tenant") or shared.get("job")


def text_of(name: Name) -> str:
    """Return a name as text, whatever its bytes."""
    return name.decode(errors="surrogateescape") if isinstance(name, bytes) else name or ""


def fault_of(name: Name, size_bytes: int | None) -> str | None:
    """Return why a row is unusable, or `None`."""
    raw = text_of(name).encode(errors="surrogateescape")
    if not raw:
        return "namespace_missing"
    if len(raw) > MAX_NAME_BYTES:
        return "namespace_too_long"
    if size_bytes is None:
        return "size_missing"
    if size_bytes < 0:
        return "size_negative"
    return "size_too_large" if size_bytes > MAX_SIZE_BYTES else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row is refused as it arrives, whatever the quotas hold."""

    reason: str
    level: Level | None = None
    """Whose bound it is too large for; `None` where it is unusable under any policy."""

    scope: str | None = None


def refusal_of(contracts: Contracts, name: Name, size_bytes: int | None) -> Refusal | None:
    """Return why a row may not come in, or `None`."""
    fault = fault_of(name, size_bytes)
    if fault is not None:
        return Refusal(fault)
    narrowest = contracts.of(text_of(name)).narrowest
    if narrowest is None or (size_bytes or 0) <= narrowest.max_message_bytes:
        return None
    return Refusal(f"{'units' if contracts.amount == 'units' else 'size'}_too_large", *narrowest.key)


class Contracts:
    """The contracts of all namespaces under one document."""

    def __init__(self, document: PolicyDocument, direction: str = "publish") -> None:
        self.document = document
        self._direction = direction
        self.of = lru_cache(maxsize=None)(self._of)

    @property
    def shared(self) -> list[Scope]:
        """The scopes that namespaces share, whether one is in them or not."""
        document = self.document
        keyed: list[tuple[Key, ScopePolicy]] = [
            *((("tenant", name), tenant) for name, tenant in document.tenants.items()),
            *((("group", name), group) for name, group in document.resource_groups.items()),
            (("job", ""), document.job),
        ]
        return [self._scope(key, policy) for key, policy in keyed]

    @cached_property
    def has_guarantees(self) -> bool:
        """Whether anybody is guaranteed anything: then equals are not served alike."""
        return "guaranteed_" in str(self.document.model_dump(exclude_defaults=True))

    @cached_property
    def guaranteed(self) -> list[Scope]:
        """The scopes that are guaranteed messages or bytes; none where any is guaranteed processing time."""
        named = self.document.namespaces.items()
        own = [self._scope(("namespace", name), entry) for name, entry in named if "*" not in name]
        found = [scope for scope in (*self.shared, *own) if scope.guaranteed != (None, None)]
        return [] if "guaranteed_request" in str(self.document.model_dump(exclude_defaults=True)) else found

    def home_of(self, tenant: str) -> str | None:
        """Return the group in which a tenant is guaranteed something."""
        return self.document.tenants[tenant].resource_group or self.document.defaults.resource_group

    def _of(self, name: str) -> Contract:
        document = self.document
        if any(_matches(pattern, name) for pattern in document.exempt):
            return Contract((), 1, has_rules=False)
        tenant = name.partition("/")[0]
        rule, is_default = self._rule(name)
        of_tenant = document.tenants.get(tenant)
        group = rule.resource_group
        if of_tenant is not None and of_tenant.resource_group is not None and (is_default or group is None):
            group = of_tenant.resource_group
        scopes = [self._scope(("namespace", name), rule)]
        if of_tenant is not None:
            scopes.append(self._scope(("tenant", tenant), of_tenant))
        if group is not None:
            scopes.append(self._scope(("group", group), document.resource_groups[group]))
        scopes.append(self._scope(("job", ""), document.job))
        strings = (
            (rule.write_throttling, rule.write_throttling_by_size)
            if self._direction == "publish"
            else (rule.read_throttling,)
        )
        own: Quota = getattr(rule, self._direction)
        return Contract(tuple(scopes), own.weight, has_rules=any(strings))

    def _rule(self, name: str) -> tuple[NamespacePolicy, bool]:
        """Return the entry of a namespace, and whether it is the default."""
        named = self.document.namespaces
        if name in named and "*" not in name:
            return named[name], False
        globs = [pattern for pattern in named if "*" in pattern and _matches(pattern, name)]
        if globs:
            return named[min(globs, key=_least_specific_last)], False
        return self.document.defaults, True

    @cached_property
    def amount(self) -> str:
        """What the second dimension is: bytes, or units, of which each row has as many."""
        said = self.document.model_dump_json(exclude_defaults=True)
        return "units" if "units_per_" in said or "max_message_units" in said else "bytes"

    def _scope(self, key: Key, policy: ScopePolicy) -> Scope:
        quota: Quota = getattr(policy, self._direction)
        rates = (quota.messages_per_second, getattr(quota, f"{self.amount}_per_second"))
        limits = (_limit(rates[0], quota), _limit(rates[1], quota))
        most = getattr(quota, f"max_message_{self.amount}")
        bound = MAX_SIZE_BYTES if most is None else most
        percentage = quota.request_percentage
        time = None if percentage is None else _limit(percentage * 10, quota)
        claims = quota.guaranteed_messages_per_second, getattr(quota, f"guaranteed_{self.amount}_per_second")
        messages, in_bytes = (None if claim is None else int(claim * 1000) for claim in claims)
        burst_ms = int(quota.burst_seconds * 1000)
        budgets = tuple((each, most) for each in BUDGETS if (most := getattr(quota, each)) is not None)
        claimed = messages, in_bytes
        return Scope(key, limits, quota.on_excess, bound, quota.weight, time, claimed, burst_ms, budgets)


def is_inside(scope: Scope, way: Contract, contracts: Contracts) -> bool:
    """Return whether a namespace has a part of what a scope is guaranteed."""
    keys = [each.key for each in way.scopes]
    if scope.key not in keys:
        return False
    home = contracts.home_of(scope.key[1]) if scope.key[0] == "tenant" else None
    return scope.key[0] != "tenant" or next((key[1] for key in keys if key[0] == "group"), None) == home


def above_of(scope: Scope, way: Contract) -> list[Scope]:
    """Return the scopes above one on a way that can hold rows."""
    keys = [each.key for each in way.scopes]
    return [each for each in way.scopes[keys.index(scope.key) + 1 :] if each.is_enforced]


def holds_ms(scope: Scope) -> int:
    """Return for how long a scope keeps what it earns: the least of its limits."""
    limits = [limit for limit in scope.limits if limit is not None and limit.rate]
    return min((*(limit.burst // limit.rate for limit in limits), scope.burst_ms))


def _limit(per_second: Decimal | None, quota: Quota) -> Limit | None:
    if per_second is None:
        return None
    rate = int(per_second * 1000)
    return Limit(rate, rate * int(quota.burst_seconds * 1000))


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name, re.DOTALL) is not None


def _least_specific_last(pattern: str) -> tuple[int, int, int, bytes]:
    before = pattern.partition("*")[0]
    beside = pattern.replace("*", "")
    return -len(before.encode()), -len(beside.encode()), pattern.count("*"), pattern.encode()
