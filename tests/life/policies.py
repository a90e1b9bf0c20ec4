"""Every change that a policy can make, drawn from one generator; documents are plain mappings.

A change is a new document. Earlier documents come back too, so that scopes are removed and brought back. Which changes
a life has at all is drawn once for it (`Tempers`): where everything changes at once, little is ever compared.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from spark_throttle.errors import PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.model import GroupPolicy, NamespacePolicy, ScopePolicy, TenantPolicy
from spark_throttle.policy.quotas import BOUNDS, GUARANTEES, Quota
from spark_throttle.testing.simulation.exchange import START_MS
from tests.life.contract import BUDGETS
from tests.oracle.setting_values import settings_of, values_of

Document: TypeAlias = dict[str, Any]

TENANTS: Final = ("acme", "blue", "cora")
GROUPS: Final = ("gold", "iron")
NAMESPACES: Final = ("acme/a", "acme/b", "acme/c", "blue/a", "blue/b", "cora/ü", "solo")
GLOBS: Final = ("acme/*", "*/a", "b*")
RATES: Final = (0.001, 0.01, 0.2, 1, 1, 2, 5, 5, 10, 10, 20, 50, 1_000, 10**9)
BYTE_RATES: Final = (0.001, 1, 100, 1_000, 1_000, 10_000, 10_000, 10_000, 10**6, 8 * 2**20, 10**9)
BURSTS: Final = (0.001, 1, 1, 1, 2, 10, 100)
FACTORS: Final = (0.001, 0.02, 0.5, 2, 50, 1_000)
BOUND_VALUES: Final = (1, 100, 1_000, 10_000, 50_000, 2**20, 2**30, 2**36)
PERCENTAGES: Final = (0.0001, 1, 50, 250)
"""They hold nothing back in a life whose rows take no measured time: a law is broken if one does."""

_PARTS: Final[dict[str, type[BaseModel]]] = {
    "resource_groups": GroupPolicy, "tenants": TenantPolicy, "namespaces": NamespacePolicy, "defaults": NamespacePolicy,
    "job": ScopePolicy,
}  # fmt: skip
_RATES: Final = ("messages_per_second", "bytes_per_second")
ZONES: Final = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns")
STRINGS: Final = ("2*delay*100", "3*reject*50", "5*delay*1000,9*reject*50", "20*delay*100,50*reject*50", "1K*delay*10")

KINDS: Final = (
    "rate", "zero", "absent", "bytes", "burst", "weight", "on_excess", "observe", "namespace", "tenant", "group",
    "job", "glob", "default", "exempt", "move", "queue", "age", "fail", "pegasus", "revert", "bound", "time",
    "exception", "guarantee", "budget",
)  # fmt: skip
"""What a life's policies may do."""


@dataclass(frozen=True, slots=True)
class Tempers:
    """What one life's policies do."""

    kinds: frozenset[str]

    def has(self, kind: str) -> bool:
        """Return whether they do that."""
        return kind in self.kinds


def first(rng: random.Random, tempers: Tempers) -> Document:
    """Draw the document that a life begins with: something is limited."""
    document: Document = {"version": 1}
    if rng.random() < 0.8:
        document["resource_groups"] = {"gold": {"publish": _quota(rng, tempers)}}
        document["defaults"] = {"resource_group": "gold"}
    for _ in range(rng.randint(0, 3)):
        document = changed(rng, tempers, document, [])
    return document


def changed(rng: random.Random, tempers: Tempers, document: Document, past: list[Document]) -> Document:
    """Draw the next document."""
    if past and tempers.has("revert") and rng.random() < 0.2:
        return rng.choice(past)
    document = copy.deepcopy(document)
    changes: list[Callable[[random.Random, Tempers, Document], None]] = [_set, _set, _alter, _alter, _alter]
    changes += [change for kind, change in _BY_KIND.items() if tempers.has(kind)]
    rng.choice(changes)(rng, tempers, document)
    return kept(document)


def kept(document: Document) -> Document:
    """Return a document without its guarantees, if they cannot be kept at once."""
    if "guaranteed_" not in str(document):
        return document
    try:
        parse_document(document)
    except PolicyError:
        for quota in _quotas(document, with_exceptions=True):
            for key in GUARANTEES:
                quota.pop(key, None)
    return document


def _quota(rng: random.Random, tempers: Tempers) -> Document:
    quota: Document = {}
    in_bytes = tempers.has("bytes") and rng.random() < 0.4
    if in_bytes:
        quota["bytes_per_second"] = _rate(rng, tempers, BYTE_RATES)
    if not in_bytes or rng.random() < 0.3:
        quota["messages_per_second"] = _rate(rng, tempers, RATES)
    quota["burst_seconds"] = rng.choice(BURSTS)
    if rng.random() < 0.3:
        quota["weight"] = rng.choice((1, 2, 3, 7))
    if tempers.has("on_excess") and rng.random() < 0.3:
        quota["on_excess"] = _action(rng, tempers)
    if tempers.has("time") and rng.random() < 0.4:
        quota["request_percentage"] = rng.choice(PERCENTAGES)
    for key in BOUNDS if tempers.has("bound") else ():
        if rng.random() < 0.4:
            quota[key] = rng.choice(values_of(key, BOUND_VALUES))
    return quota


def _rate(rng: random.Random, tempers: Tempers, rates: tuple[float, ...]) -> float:
    if tempers.has("zero") and rng.random() < 0.2:
        return 0
    return rng.choice(rates)


def _action(rng: random.Random, tempers: Tempers) -> str:
    return rng.choice(("delay", "delay", "reject", "observe") if tempers.has("observe") else ("delay", "reject"))


def _quotas(document: Document, *, with_exceptions: bool = False) -> list[Document]:
    """Return all quotas that a document has."""
    entries = [
        entry
        for section in ("resource_groups", "tenants", "namespaces")
        for entry in document.get(section, {}).values()
    ]
    entries += [document[single] for single in ("defaults", "job") if single in document]
    if with_exceptions:
        parts = [entry["exception"] for entry in entries if "exception" in entry]
        parts += [part for entry in entries for part in entry.get("schedule", {}).values()]
        entries += parts
    return [entry["publish"] for entry in entries if entry.get("publish")]


def _places(tempers: Tempers, document: Document) -> list[tuple[str, str | None]]:
    places: list[tuple[str, str | None]] = [("resource_groups", name) for name in document.get("resource_groups", {})]
    for kind, section, names in (
        ("group", "resource_groups", GROUPS), ("tenant", "tenants", TENANTS), ("namespace", "namespaces", NAMESPACES),
        ("glob", "namespaces", GLOBS),
    ):  # fmt: skip
        if tempers.has(kind):
            places += [(section, name) for name in names]
    places += [(single, None) for kind, single in (("job", "job"), ("default", "defaults")) if tempers.has(kind)]
    return places or [("resource_groups", "gold")]


def _set(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Give a scope a quota, or take its entry away."""
    section, name = rng.choice(_places(tempers, document))
    entry = document.setdefault(section, {}) if name is None else document.setdefault(section, {}).setdefault(name, {})
    if tempers.has("absent") and rng.random() < 0.25:
        entry.pop("publish", None)
    else:
        entry["publish"] = _quota(rng, tempers)


def _alter(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Alter one number or word of one quota."""
    quotas = _quotas(document)
    if not quotas:
        return
    quota = rng.choice(quotas)
    key = rng.choice([*(key for key in ("rate", "burst", "weight", "on_excess") if tempers.has(key)), "rate"])
    if key == "rate":
        rate = rng.choice([name for name in quota if name in _RATES] or ["messages_per_second"])
        value = round(float(quota.get(rate, 1)) * rng.choice(FACTORS), 3)
        quota[rate] = min(max(value, 0.001), 10**9) if value or not tempers.has("zero") else rng.choice((0, 5))
    elif key == "burst":
        quota["burst_seconds"] = rng.choice(BURSTS)
    elif key == "weight":
        quota["weight"] = rng.choice((1, 2, 3, 10))
    else:
        quota["on_excess"] = _action(rng, tempers)


def _move(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Move a namespace, a tenant or the default to a group, or out of all."""
    for group in GROUPS:
        document.setdefault("resource_groups", {}).setdefault(group, {"publish": _quota(rng, tempers)})
    section, name = rng.choice(
        [("tenants", rng.choice(TENANTS)), ("namespaces", rng.choice(NAMESPACES)), ("defaults", "")]
    )
    entry = document.setdefault(section, {})
    entry = entry.setdefault(name, {}) if name else entry
    if rng.random() < 0.2:
        entry.pop("resource_group", None)
    else:
        entry["resource_group"] = rng.choice(GROUPS)


def _dry_run(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Let a quota that is enforced only observe, and enforce one that observes."""
    quotas = _quotas(document)
    if quotas:
        quota = rng.choice(quotas)
        is_dry = quota.get("on_excess") == "observe"
        quota["on_excess"] = rng.choice(("delay", "delay", "reject")) if is_dry else "observe"


def dry_run(rng: random.Random, document: Document) -> tuple[Document, Document]:
    """Return a document in which one quota only observes, and the same in which it is enforced."""
    observing = copy.deepcopy(document)
    quotas = _quotas(observing)
    if quotas:
        rng.choice(quotas)["on_excess"] = "observe"
    enforced = copy.deepcopy(observing)
    for quota in _quotas(enforced):
        if quota.get("on_excess") == "observe":
            quota["on_excess"] = "delay"
    return observing, enforced


def first_quota(rng: random.Random, tempers: Tempers, document: Document, name: str) -> Document:
    """Return a document in which a namespace has a quota of its own, as it had none before or another."""
    document = copy.deepcopy(document)
    document.setdefault("namespaces", {}).setdefault(name, {})["publish"] = _quota(rng, tempers)
    return kept(document)


def common_group(rng: random.Random, document: Document) -> Document:
    """Return a document in which all are equal in one group that is limited by bytes or by messages."""
    document = {"version": 1, **{key: copy.deepcopy(document[key]) for key in ("queue",) if key in document}}
    quota: Document = {"burst_seconds": rng.choice((1, 2))}
    if rng.random() < 0.8:
        quota["bytes_per_second"] = rng.choice((10_000, 30_000, 60_000))
    else:
        quota["messages_per_second"] = rng.choice((1, 5, 10))
    document["resource_groups"] = {"gold": {"publish": quota}}
    document["defaults"] = {"resource_group": "gold"}
    return document


def group_of_both(rng: random.Random, document: Document, message_bytes: int) -> Document:
    """Return a document in which all are equal in one group; a message takes as long as `message_bytes`."""
    document = {"version": 1, **{key: copy.deepcopy(document[key]) for key in ("queue",) if key in document}}
    messages = rng.choice((1, 2, 5, 10))
    quota = {"messages_per_second": messages, "bytes_per_second": messages * message_bytes}
    document["resource_groups"] = {"gold": {"publish": quota | {"burst_seconds": rng.choice((1, 2))}}}
    document["defaults"] = {"resource_group": "gold"}
    return document


def group_of_time(rng: random.Random, document: Document, names: tuple[str, ...]) -> Document:
    """Return a document in which some are in one group, or in the job alone, that limits nothing but time."""
    document = {"version": 1, **{key: copy.deepcopy(document[key]) for key in ("queue",) if key in document}}
    quota: Document = {"request_percentage": 50, "burst_seconds": rng.choice((2, 2, 10))}
    group: Document = {}
    if rng.random() < 0.7:
        document["resource_groups"], group = {"gold": {"publish": quota}}, {"resource_group": "gold"}
    else:
        document["job"] = {"publish": quota}
    document["defaults"] = group
    document["namespaces"] = {name: {**group, "publish": {"weight": rng.choice((1, 1, 1, 4))}} for name in names}
    return document


def nudged(rng: random.Random, document: Document) -> Document:
    """Return a document in which one rate is higher by one."""
    document = copy.deepcopy(document)
    quotas = [quota for quota in _quotas(document) if any(quota.get(key) for key in quota if key in _RATES)]
    if quotas:
        quota = rng.choice(quotas)
        rate = rng.choice([key for key in quota if key in _RATES and quota[key]])
        quota[rate] += 1
    return document


def tight_scope(rng: random.Random, document: Document, names: tuple[str, ...]) -> Document:
    """Return a document in which the job, or a tenant, is short, and the groups of namespaces are not."""
    document = copy.deepcopy(document)
    in_bytes = rng.random() < 0.4
    rate = "bytes_per_second" if in_bytes else "messages_per_second"
    tight: Document = {rate: rng.choice((1_000, 10_000) if in_bytes else (1, 3, 10)), "burst_seconds": 1}
    wide = rng.choice((10**5, 10**6) if in_bytes else (50, 100, 1_000))
    document["job"] = {"publish": tight}
    document["tenants"] = {}
    if rng.random() < 0.3:
        del document["job"]
        document["tenants"] = {name.partition("/")[0]: {"publish": tight} for name in names}
    document["resource_groups"] = {
        group: {"publish": {rate: wide, "weight": rng.choice((1, 1, 4))}} for group in GROUPS
    }
    document["defaults"] = {}
    document["namespaces"] = {
        name: {"resource_group": group} for name in names if (group := rng.choice((*GROUPS, None))) is not None
    }
    return document


def _exempt(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Exempt a namespace or a glob, or no longer."""
    name = rng.choice((*NAMESPACES, "cora/*"))
    names = set(document.get("exempt", []))
    document["exempt"] = sorted(names ^ {name})


def _queue(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Bound the queue."""
    queue: Document = {"messages": rng.choice((1, 10, 100, 10**6, 10**6)), "bytes": rng.choice((1_000, 10**6, 2**40))}
    if tempers.has("fail") and rng.random() < 0.3:
        queue["on_overflow"] = "fail"
    document["queue"] = queue


def _age(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Bound the time that a row may wait, or no longer."""
    queue = document.setdefault("queue", {})
    if queue.pop("age_seconds", None) is None:
        queue["age_seconds"] = rng.choice((0.5, 5, 600))


def _pegasus(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Give a namespace Pegasus' strings, or take them away."""
    entry = document.setdefault("namespaces", {}).setdefault(rng.choice(NAMESPACES), {})
    key = rng.choice(("write_throttling", "write_throttling_by_size"))
    if entry.pop(key, None) is None or rng.random() < 0.5:
        entry[key] = rng.choice(STRINGS)


def _bound(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Bound a scope that has a quota or none, or no longer; likewise its other settings, but who divides a group."""
    section, name = rng.choice(_places(tempers, document))
    entry = document.setdefault(section, {}) if name is None else document.setdefault(section, {}).setdefault(name, {})
    for part, values in ((Quota, entry.setdefault("publish", {})), (_PARTS[section], entry)):
        for key in settings_of(part):
            if key not in (*BUDGETS, "fair_between") and (values.pop(key, None) is None or rng.random() < 0.7):
                values[key] = rng.choice(values_of(key, BOUND_VALUES))


def _exception(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Give a scope an exception that ends, or hours that begin, in the first minutes of the life; or take it back."""
    section, name = rng.choice(_places(tempers, document))
    entry = document.setdefault(section, {}) if name is None else document.setdefault(section, {}).setdefault(name, {})
    if entry.pop("exception", None) is None or rng.random() < 0.7:
        until = datetime.fromtimestamp(START_MS // 1000 + rng.randint(0, 180), UTC)
        entry["exception"] = {"until": until.isoformat(), "reason": "drawn", "publish": _quota(rng, tempers)}
    elif entry.pop("schedule", None) is None or rng.random() < 0.5:
        zone = ZoneInfo(document.get("job", {}).get("time_zone", "UTC"))
        begin, end = (datetime.fromtimestamp(START_MS // 1000 + 60 * at, zone) for at in (rng.randint(0, 2), 3))
        entry["schedule"] = {f"{begin:%H:%M}-{end:%H:%M}": {"publish": _quota(rng, tempers)}}


def _budget(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Give a scope a budget of an hour or more, or take it back; or set the calendar to another zone."""
    section, name = rng.choice(_places(tempers, document))
    if rng.random() < 0.2:
        document.setdefault("job", {})["time_zone"] = rng.choice(ZONES)
    entry = document.setdefault(section, {}) if name is None else document.setdefault(section, {}).setdefault(name, {})
    quota, key = entry.setdefault("publish", {}), rng.choice(BUDGETS)
    if quota.pop(key, None) is None or rng.random() < 0.7:
        quota[key] = rng.choice((1, 5, 20, 100) if key.startswith("messages") else (100, 2_000, 10_000, 10**6))


def _guarantee(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Guarantee something to a scope in every dimension that a policy may limit, or nothing any more."""
    places = [place for place in _places(tempers, document) if place[1] is not None and "*" not in place[1]]
    if not places:
        return
    section, name = rng.choice(places)
    quota = document.setdefault(section, {}).setdefault(name, {}).setdefault("publish", {})
    if quota.pop(GUARANTEES[0], None) is None or rng.random() < 0.7:
        quota |= dict(zip(GUARANTEES, (rng.choice((0.2, 1, 2, 5)), rng.choice((100, 1_000, 5_000)), 1), strict=True))
    if not tempers.has("time"):
        quota.pop(GUARANTEES[2], None)


def guaranteed(rng: random.Random, document: Document, names: tuple[str, ...]) -> Document:
    """Return a document in which the job is short, and some of those that send are guaranteed a part of it."""
    document = {"version": 1, **{key: copy.deepcopy(document[key]) for key in ("queue",) if key in document}}
    rates = ("messages_per_second", "bytes_per_second")[: rng.choice((1, 1, 2))]
    have = {rate: rng.choice((5, 10, 30)) * (1 if rate.startswith("messages") else 1_000) for rate in rates}
    document["job"] = {"publish": have | {"burst_seconds": rng.choice((2, 10))}}

    def claim(part: float) -> Document:
        weight = rng.choice((1, 1, 5))
        return {"publish": {"weight": weight} | {f"guaranteed_{rate}": most * part for rate, most in have.items()}}

    if is_grouped := rng.random() < 0.5:
        document["resource_groups"] = {group: claim(0.4) if rng.random() < 0.6 else {} for group in GROUPS}
    tenants = sorted({name.partition("/")[0] for name in names})
    document["tenants"] = {
        tenant: (claim(0.1) if rng.random() < 0.6 else {})
        | ({"resource_group": rng.choice(GROUPS)} if is_grouped and rng.random() < 0.8 else {})
        for tenant in tenants
    }
    document["namespaces"] = {name: claim(0.05) for name in names if rng.random() < 0.5}
    return kept(document)


def _remove(rng: random.Random, tempers: Tempers, document: Document) -> None:
    """Remove an entry whole."""
    section = rng.choice(("resource_groups", "tenants", "namespaces", "defaults", "job"))
    if section in ("defaults", "job"):
        document.pop(section, None)
    elif document.get(section):
        document[section].pop(rng.choice(sorted(document[section])))


_BY_KIND: Final[dict[str, Callable[[random.Random, Tempers, Document], None]]] = {
    "move": _move, "observe": _dry_run, "exempt": _exempt, "queue": _queue, "age": _age,
    "pegasus": _pegasus, "absent": _remove, "bound": _bound, "exception": _exception, "guarantee": _guarantee,
    "budget": _budget,
}  # fmt: skip
