"""A policy that takes the place of another changes the limits that hold a name: some are looser, some are lost.

Two questions are asked, of the same limits (`limits_of`):

* `looser_parts`: in what does a rule admit more, or make wait what was rejected? Each part is compared by itself, so
  what is tighter stays so whatever becomes of the limits beside it.
* `losses_between`: which limit is gone, which quota is 0 from here on, and which is 0 no more?

A row that waits is never rejected by the quota of a scope that it meets later, and takes its tokens when it leaves. So
where a scope rejects, a narrower one that delays turns rejected rows into waiting ones, and even a tighter one admits
more of the same input: what it holds back of a burst passes later. There, a rule that delays must say what was given,
and a rule that rejects must not delay again: its bucket may be emptier than it would be, and so hold back more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias, get_args

from spark_throttle.core.limits.pegasus import PegasusRule, parse_throttling
from spark_throttle.core.quota import Level
from spark_throttle.policy.model import DIRECTIONS, Direction, NamespacePolicy, ScopePolicy
from spark_throttle.policy.quotas import GUARANTEES, HOLDS, LIMITS, RATES, NamespaceQuota, Quota
from spark_throttle.store.checks.policy_view import Scope

WAITS: Final = (
    "rows wait until a bound of the queue is reached, and are then rejected (queue_full, queue_age); "
    "on_excess: reject rejects them at once"
)
"""What becomes of rows that a quota of 0 delays."""

_OF_BURSTS: Final = {
    "messages_per_second": "messages", "bytes_per_second": "bytes", "units_per_second": "units",
    "request_percentage": "percent of a core's second",
}  # fmt: skip
"""What a burst is counted in, by the key of its rate."""

_STRINGS: Final[dict[Direction, tuple[str, ...]]] = {
    "publish": ("write_throttling", "write_throttling_by_size"), "dispatch": ("read_throttling",),
}  # fmt: skip
_STRING_KEYS: Final = tuple(key for keys in _STRINGS.values() for key in keys)
_ALL: Final = 100
_ACTIONS: Final = ("reject", "delay", "observe")
"""From the tightest to the loosest: what waits takes room from others and is admitted later."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A number beyond which rows are held back."""

    most: Decimal | int
    text: str
    on_excess: str
    """What becomes of the rows beyond it."""

    wait_ms: int = 0
    """How long a throttling string makes them wait."""

    observed_percent: int = 0
    """Of how many percent of its names it holds nothing back."""

    @property
    def is_shut(self) -> bool:
        """Whether it is a quota of 0."""
        return not self.most

    @property
    def full_text(self) -> str:
        """The number, and of a quota of 0 what becomes of the rows that it holds."""
        return f"{self.text} under {self.on_excess}" if self.is_shut else self.text

    def holds(self, other: Limit) -> bool:
        """Return whether it holds back whatever the other does, for as long."""
        return self.most <= other.most and self.wait_ms >= other.wait_ms


Limits: TypeAlias = Mapping[str, Limit]
"""The limits of a scope, by their paths, such as ``publish.messages_per_second``."""


def limits_of(policy: ScopePolicy, *, is_observed_counted: bool = False) -> Limits:
    """Return the limits of a policy; those of a scope that only observes hold nothing, and count only on request.

    A rule of a throttling string that is off, or delays for 0 ms, is none.

    Examples
    --------
    >>> policy = NamespacePolicy.model_validate(
    ...     {
    ...         "publish": {"bytes_per_second": "1KiB"},
    ...         "dispatch": {"weight": 2},
    ...         "write_throttling": "2*delay*100,0*reject*5",
    ...     }
    ... )
    >>> {path: limit.text for path, limit in limits_of(policy).items()}
    {'publish.bytes_per_second': '1024', 'write_throttling.delay': '2*delay*100'}
    """
    found: dict[str, Limit] = {}
    for direction in DIRECTIONS:
        quota: Quota = getattr(policy, direction)
        percent = observed_percent_of(quota)
        if percent < _ALL or is_observed_counted:
            values = ((key, getattr(quota, key)) for key in LIMITS)
            found |= {
                f"{direction}.{key}": Limit(most, _said(most), quota.on_excess, observed_percent=percent)
                for key, most in values
                if most is not None
            }
    if isinstance(policy, NamespacePolicy):
        for key in _STRING_KEYS:
            text = getattr(policy, key)
            rule = PegasusRule() if text is None else parse_throttling(text)
            if rule.delay_units > 0 and rule.delay_ms > 0:
                text = f"{rule.delay_units}*delay*{rule.delay_ms}"
                found[f"{key}.delay"] = Limit(rule.delay_units, text, "delay", rule.delay_ms)
            if rule.reject_units > 0:
                text = f"{rule.reject_units}*reject*{rule.reject_ms}"
                found[f"{key}.reject"] = Limit(rule.reject_units, text, "reject")
    return found


def observed_percent_of(quota: Quota) -> int:
    """Return of how many percent of its names a quota only observes."""
    if quota.on_excess == "observe":
        return _ALL
    return quota.observe_percent if isinstance(quota, NamespaceQuota) else 0


# --------------------------------------------------------------------------------------------------- what is looser


@dataclass(frozen=True, slots=True)
class LooserPart:
    """A part in which a rule allows more than another."""

    path: str
    """The key, such as ``publish.messages_per_second``."""

    level: Level
    value: str
    bound: str
    """What it must not exceed."""

    where: str = ""
    """The place of the bound, if it is not in the other rule."""


def looser_parts(policy: NamespacePolicy, other: NamespacePolicy, shared: Sequence[Scope]) -> Iterator[LooserPart]:
    """Yield the parts in which a rule allows more than another for names that pass some shared scopes.

    A rule is looser if it has a limit that is larger or missing, a larger guarantee, a burst of more tokens, a larger
    weight, `observe` in place of `delay` or `delay` in place of `reject`, a larger part of names that it only observes,
    or a throttling string that acts later or delays for less time; and if it delays where a scope rejects, and does not
    say the same as the other one.

    Examples
    --------
    >>> five = NamespacePolicy.model_validate({"publish": {"messages_per_second": 5}})
    >>> for part in looser_parts(NamespacePolicy(), five, []):
    ...     print(part.path, part.level.name, part.value, part.bound)
    publish.messages_per_second NAMESPACE unlimited 5
    >>> group = ScopePolicy.model_validate({"publish": {"messages_per_second": 100, "on_excess": "reject"}})
    >>> for part in looser_parts(five, NamespacePolicy(), [Scope(Level.RESOURCE_GROUP, "resource_groups.free", group)]):
    ...     print(part.path, part.value, part.bound, part.where)
    publish.on_excess delay, and rows that are rejected would wait reject resource_groups.free
    """
    limits, bounds = (limits_of(each, is_observed_counted=True) for each in (policy, other))
    beyond = {path: bound for path, bound in bounds.items() if path not in limits or not limits[path].holds(bound)}
    for direction in DIRECTIONS:
        for path in (f"{direction}.{key}" for key in LIMITS):
            if path in beyond:
                value = limits[path].text if path in limits else "unlimited"
                yield LooserPart(path, Level.NAMESPACE, value, beyond[path].text)
        quota, its = getattr(policy, direction), getattr(other, direction)
        for key, value, said in _looser_of_quota(quota, its):
            yield LooserPart(f"{direction}.{key}", Level.NAMESPACE, value, said)
        yield from newly_waiting(direction, policy, other, (*shared, Scope(Level.NAMESPACE, "", other)))
    for key in _STRING_KEYS:
        if f"{key}.delay" in beyond or f"{key}.reject" in beyond:
            yield LooserPart(key, Level.NAMESPACE, getattr(policy, key) or "none", getattr(other, key))


def _looser_of_quota(quota: Quota, other: Quota) -> Iterator[tuple[str, str, str]]:
    for key in GUARANTEES:
        value, bound = getattr(quota, key) or 0, getattr(other, key) or 0
        if value > bound:
            yield key, _said(value), _said(bound)
    for key in (*RATES, *GUARANTEES):
        value, bound = getattr(quota, key), getattr(other, key)
        if value is not None and bound is not None:
            burst, burst_bound = value * quota.burst_seconds, bound * other.burst_seconds
            if burst > burst_bound:
                unit = _OF_BURSTS[key.removeprefix("guaranteed_")]
                yield (
                    "burst_seconds",
                    f"{_said(quota.burst_seconds)} (a burst of {_said(burst)} {unit})",
                    f"{_said(other.burst_seconds)} (a burst of {_said(burst_bound)} {unit})",
                )
    if quota.weight > other.weight:
        yield "weight", str(quota.weight), str(other.weight)
    has_limit = any(getattr(other, key) is not None for key in LIMITS)
    if has_limit and _ACTIONS.index(quota.on_excess) > _ACTIONS.index(other.on_excess):
        yield "on_excess", quota.on_excess, other.on_excess
    percent, most = observed_percent_of(quota), observed_percent_of(other)
    if has_limit and percent > most and quota.on_excess != "observe":
        yield "observe_percent", str(percent), str(most)


def newly_waiting(
    direction: Direction, policy: NamespacePolicy, other: NamespacePolicy, rejecting: Sequence[Scope]
) -> Iterator[LooserPart]:
    """Yield what makes rows wait in a rule that differs from another, if one of some scopes rejects rows."""
    scope = next((each for each in rejecting if _rejects(each.policy, direction)), None)
    waits = _waits(policy, direction)
    if scope is None or not waits or _of_direction(policy, direction) == _of_direction(other, direction):
        return
    key = waits[0]
    said = getattr(policy, key) if key in _STRING_KEYS else "delay"
    yield LooserPart(key, scope.level, f"{said}, and rows that are rejected would wait", "reject", scope.where)


def _rejects(policy: ScopePolicy, direction: Direction) -> bool:
    """Return whether a scope rejects what exceeds its quota."""
    quota: Quota = getattr(policy, direction)
    return quota.on_excess == "reject" and any(getattr(quota, key) is not None for key in HOLDS)


def _waits(policy: NamespacePolicy, direction: Direction) -> list[str]:
    """Return the keys of a rule that make rows wait."""
    quota: Quota = getattr(policy, direction)
    is_delaying = quota.on_excess == "delay" and any(getattr(quota, key) is not None for key in HOLDS)
    strings = [key for key in _STRINGS[direction] if f"{key}.delay" in limits_of(policy)]
    return [*([f"{direction}.on_excess"] if is_delaying else []), *strings]


def _of_direction(policy: NamespacePolicy, direction: Direction) -> tuple[Quota, ...]:
    """Return what a rule says in a direction, but for the weight, which holds nothing back."""
    quota: Quota = getattr(policy, direction)
    return quota.model_copy(update={"weight": 1}), *(getattr(policy, key) for key in _STRINGS[direction])


def _said(number: Decimal | int) -> str:
    return f"{Decimal(number).normalize():f}"


# ----------------------------------------------------------------------------------------------------- what is lost

LossKind: TypeAlias = Literal["no_policy", "zero", "lifted", "raised", "unlocked"]
KINDS_OF_LOSS: Final[tuple[LossKind, ...]] = get_args(LossKind)
"""The worst first."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that a change costs."""

    kind: LossKind
    """`no_policy`: no limit is left anywhere. `zero`: a quota of 0 admits nothing. `lifted`: a limit is gone. `raised`:
    a quota of 0 is larger. `unlocked`: a lock is gone."""

    path: str
    """The changed entry in a document, such as ``resource_groups.gold``; empty for the whole policy."""

    key: str = ""
    """The limit, such as ``publish.messages_per_second``."""

    level: str = ""
    """The level of the limit, such as ``resource_group``."""

    before: str | None = None
    after: str | None = None
    where: str = ""
    """The place of the limit, if it is not in the changed entry itself."""

    on_excess: str | None = None
    """What a quota of 0 does with the rows that it holds; `None` where several differ."""

    hours: tuple[str, ...] = ()
    """The hours of schedules that hold whenever this is lost."""

    @property
    def is_end_of_own_emergency(self) -> bool:
        """Whether the change raises the entry's own quota of 0, or lifts its lock: who changes that entry means it."""
        return self.kind == "unlocked" or (self.kind == "raised" and not self.where)

    def __str__(self) -> str:
        """Return the loss in words."""
        return f"at the hours {' and '.join(self.hours)} {self._what}" if self.hours else self._what

    @property
    def _what(self) -> str:
        if self.kind == "no_policy":
            return "no limit is left in the whole policy: every row of every tenant is admitted"
        if self.kind == "unlocked":
            return f"the lock of {self.path} is lifted"
        place = f"{self.path}: {self.key} of {self.where}" if self.where else f"{self.path}.{self.key}"
        if self.kind == "zero":
            fate = {"delay": f": under delay, {WAITS}", "reject": ", but rejected", None: ""}[self.on_excess]
            never = "not" if self.hours else "never"
            return f"{place} becomes 0 (it was {self.before or 'unlimited'}): what it holds is {never} admitted{fate}"
        if self.kind == "raised":
            return f"{place} is raised from 0 to {self.after}"
        of = f" for {self.after}" if self.after else ""
        return f"{place} is lifted{of} (it was {self.before})"


def losses_between(before: Scope, after: Scope, path: str) -> Iterator[Loss]:
    """Yield what names lose by a change of an entry that moves them from one scope to another, or changes theirs.

    Examples
    --------
    >>> first, second = (
    ...     {"publish": {"bytes_per_second": 100}},
    ...     {"dispatch": {"bytes_per_second": 0, "on_excess": "reject"}},
    ... )
    >>> before, after = (Scope(Level.TENANT, "tenants.acme", ScopePolicy.model_validate(e)) for e in (first, second))
    >>> for loss in losses_between(before, after, "tenants.acme"):
    ...     print(loss)
    tenants.acme.publish.bytes_per_second is lifted (it was 100)
    tenants.acme.dispatch.bytes_per_second becomes 0 (it was unlimited): what it holds is never admitted, but rejected
    """
    if before.policy is after.policy:
        return
    level = before.level.name.lower()
    was, becomes = limits_of(before.policy), limits_of(after.policy)
    was_at, is_at = ("" if each.where == path else each.where for each in (before, after))
    for key, limit in was.items():
        if key not in becomes:
            yield Loss("lifted", path, key, level, limit.full_text, None, was_at)
        elif limit.is_shut and not becomes[key].is_shut:
            yield Loss("raised", path, key, level, "0", becomes[key].text, was_at)
        elif becomes[key].observed_percent > limit.observed_percent:
            part = f"{becomes[key].observed_percent - limit.observed_percent} % of its names"
            yield Loss("lifted", path, key, level, limit.full_text, part, was_at)
    for key, limit in becomes.items():
        if limit.is_shut and not (key in was and was[key].is_shut):
            yield Loss("zero", path, key, level, was[key].text if key in was else None, "0", is_at, limit.on_excess)
