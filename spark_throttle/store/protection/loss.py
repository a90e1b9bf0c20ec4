"""What holds the rows of a scope, and what of it is lost between two policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias, get_args

from spark_throttle.core.limits.pegasus import parse_throttling
from spark_throttle.core.quota import Level
from spark_throttle.policy.model import DIRECTIONS, RATES, NamespacePolicy, QueuePolicy, ScopePolicy

_ZERO: Final = "0 under "
"""How the term of a quota of 0 begins; what the scope does with excess follows."""

WAITS: Final = (
    "rows wait until a bound of the queue is reached, and are then rejected (queue_full, queue_age); "
    "on_excess: reject rejects them at once"
)
"""What becomes of rows that a quota of 0 delays."""

_STRINGS: Final = ("write_throttling", "write_throttling_by_size", "read_throttling")

LossKind: TypeAlias = Literal["no_policy", "zero", "lifted", "raised", "unlocked"]
KINDS_OF_LOSS: Final[tuple[LossKind, ...]] = get_args(LossKind)
"""The worst first."""

Terms: TypeAlias = Mapping[str, str]
"""The limits of a scope that hold rows back, as text, by their paths, such as ``publish.messages_per_second``."""


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

    @property
    def is_end_of_own_emergency(self) -> bool:
        """Whether the change raises the entry's own quota of 0, or lifts its lock: who changes that entry means it."""
        return self.kind == "unlocked" or (self.kind == "raised" and not self.where)

    def __str__(self) -> str:
        """Return the loss in words."""
        if self.kind == "no_policy":
            return "no limit is left in the whole policy: every row of every tenant is admitted"
        if self.kind == "unlocked":
            return f"the lock of {self.path} is lifted"
        place = f"{self.path}: {self.key} of {self.where}" if self.where else f"{self.path}.{self.key}"
        if self.kind == "zero":
            fate = {"delay": f": under delay, {WAITS}", "reject": ", but rejected", None: ""}[self.on_excess]
            return f"{place} becomes 0 (it was {self.before or 'unlimited'}): what it holds is never admitted{fate}"
        if self.kind == "raised":
            return f"{place} is raised from 0 to {self.after}"
        return f"{place} is lifted (it was {self.before})"


def terms_of(policy: ScopePolicy | QueuePolicy | None) -> Terms:
    """Return the limits of a policy that hold rows back: none where it only observes.

    Examples
    --------
    >>> terms_of(ScopePolicy.model_validate({"publish": {"messages_per_second": 5}, "dispatch": {"weight": 2}}))
    {'publish.messages_per_second': '5'}
    """
    if policy is None or isinstance(policy, QueuePolicy):
        return {}
    terms: dict[str, str] = {}
    for direction in DIRECTIONS:
        quota = getattr(policy, direction)
        if quota.on_excess == "observe":
            continue
        for key in (*RATES, "max_message_bytes"):
            value = getattr(quota, key)
            if value is not None:
                text = f"{Decimal(value).normalize():f}"
                terms[f"{direction}.{key}"] = text if value else f"{_ZERO}{quota.on_excess}"
    if isinstance(policy, NamespacePolicy):
        for key in _STRINGS:
            terms |= _terms_of_string(key, getattr(policy, key))
    return terms


def is_zero(term: str | None) -> bool:
    """Return whether a limit is a quota of 0."""
    return term is not None and term.startswith(_ZERO)


def _terms_of_string(key: str, text: str | None) -> Terms:
    """Return what a throttling string does; a rule of 0 units is off, and a delay of 0 ms delays nothing."""
    if text is None:
        return {}
    rule = parse_throttling(text)
    terms = {}
    if rule.delay_units > 0 and rule.delay_ms > 0:
        terms[f"{key}.delay"] = f"{rule.delay_units}*delay*{rule.delay_ms}"
    if rule.reject_units > 0:
        terms[f"{key}.reject"] = f"{rule.reject_units}*reject*{rule.reject_ms}"
    return terms


def losses_between(before: Terms, after: Terms, *, path: str, level: Level, where: str = "") -> Iterator[Loss]:
    """Yield what is lost between the limits that held rows and those that will.

    Examples
    --------
    >>> before, after = {"publish.bytes_per_second": "100"}, {"dispatch.bytes_per_second": "0 under reject"}
    >>> for loss in losses_between(before, after, path="tenants.acme", level=Level.TENANT):
    ...     print(loss)
    tenants.acme.publish.bytes_per_second is lifted (it was 100)
    tenants.acme.dispatch.bytes_per_second becomes 0 (it was unlimited): what it holds is never admitted, but rejected
    """
    name = level.name.lower()
    for key, value in before.items():
        if key not in after:
            yield Loss("lifted", path, key, name, value, None, where)
        elif is_zero(value) and not is_zero(after[key]):
            yield Loss("raised", path, key, name, "0", after[key], where)
    for key, value in after.items():
        if is_zero(value) and not is_zero(before.get(key)):
            yield Loss("zero", path, key, name, before.get(key), "0", where, value.removeprefix(_ZERO))
