"""The policies that the crash program puts in force by turns: every change that a policy can make, drawn from a seed.

A change is a new document, made of the one before. Now and then the first one comes back, so that what was removed is
put back, and the job is not shut for the rest of the run.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import yaml

Document: TypeAlias = dict[str, Any]

GROUPS: Final = ("later", "never")
TENANTS: Final = ("gold", "silver", "open")
NAMESPACES: Final = ("gold/00", "gold/03", "silver/01", "silver/04", "open/02", "open/05")
FIRST: Final[Document] = {
    "resource_groups": {
        "later": {"publish": {"messages_per_second": 400, "burst_seconds": 1}},
        "never": {"publish": {"messages_per_second": 250, "burst_seconds": 1, "on_excess": "reject"}},
    },
    "tenants": {
        "gold": {"resource_group": "later"},
        "silver": {"resource_group": "never", "publish": {"messages_per_second": 150, "burst_seconds": 1}},
    },
    "namespaces": {
        "gold/00": {"resource_group": "later", "publish": {"weight": 3}},
        "open/02": {"publish": {"messages_per_second": 60, "burst_seconds": 1}},
    },
    "queue": {"messages": 4000},
}
"""Of a file's 1,500 rows gold brings 675, silver 456 and open/02 106, of 100 bytes on average."""

AMPLE: Final[Document] = {
    "resource_groups": {"later": {"publish": {"messages_per_second": 40_000, "burst_seconds": 1}}},
    "tenants": {"gold": {"resource_group": "later"}, "silver": {"resource_group": "later"}},
    "queue": {"messages": 4000},
}
"""The last policies, under which the queue drains."""

_FACTORS: Final = (0.001, 0.001, 0.25, 4, 1_000, 1_000)
_RATES: Final = {"messages_per_second": (0.1, 1e6, 150), "bytes_per_second": (10, 1e8, 15_000)}
"""By dimension: the least and the largest rate, and the one that a new limit has."""

_BACK_TO_FIRST: Final = 0.25


def draw_policies(dice: random.Random) -> Iterator[str]:
    """Yield one document after another, as text; it never ends.

    Examples
    --------
    >>> drawn = draw_policies(random.Random(7))
    >>> texts = [next(drawn) for _ in range(3)]
    >>> len(set(texts))
    3
    """
    document = FIRST
    while True:
        yield text_of(document)
        if document is not FIRST and dice.random() < _BACK_TO_FIRST:
            document = FIRST
            continue
        before, document = document, copy.deepcopy(document)
        while document == before:
            for _ in range(dice.randint(1, 2)):
                dice.choice(_CHANGES)(dice, document)


TIME_PERCENTS: Final = {"gold": 4, "silver": 2, "open": 3}
"""By tenant: the quota on processing time in a run with such quotas, in percent of a core, less than its rows take."""


def with_time(text: str) -> str:
    """Return a document whose tenants also have quotas on processing time; the last policies limit nothing so.

    Examples
    --------
    >>> document = yaml.safe_load(with_time(text_of(FIRST)))
    >>> document["tenants"]["silver"]["publish"]["request_percentage"]
    2
    """
    document = yaml.safe_load(text)
    percents = dict.fromkeys(TIME_PERCENTS, 10_000) if document == AMPLE else TIME_PERCENTS
    for tenant, percent in percents.items():
        quota = document["tenants"].setdefault(tenant, {}).setdefault("publish", {})
        quota |= {"request_percentage": percent, "burst_seconds": quota.get("burst_seconds", 2)}
    return text_of(document)


def with_units(text: str) -> str:
    """Return a document whose job also has a quota in units that holds nothing back, and waits long for late costs.

    Examples
    --------
    >>> yaml.safe_load(with_units(text_of(FIRST)))["job"]["reservation_seconds"]
    86400
    """
    document = yaml.safe_load(text)
    job = document.setdefault("job", {})
    job["reservation_seconds"] = 86_400
    job.setdefault("publish", {})["units_per_second"] = 10**9
    return text_of(document)


def text_of(document: Document) -> str:
    """Return a document as YAML."""
    return yaml.safe_dump(document, sort_keys=False)


def _publish(dice: random.Random, document: Document, *, limited: bool) -> Document:
    """Return the quota of a drawn scope; `limited`: of one that has a rate."""
    entries = [
        entry for section in ("resource_groups", "tenants", "namespaces") for entry in document[section].values()
    ]
    quotas: list[Document] = [entry.setdefault("publish", {}) for entry in entries if not limited or _rates(entry)]
    return dice.choice(quotas)


def _rates(entry: Document) -> list[str]:
    return [key for key in entry.get("publish", {}) if key in _RATES]


def _act_otherwise(dice: random.Random, document: Document) -> None:
    """Go from a dry run to a delay, from that to rejecting, and from that to any."""
    quota = _publish(dice, document, limited=True)
    following = {"observe": "delay", "delay": dice.choice(("reject", "observe"))}
    quota["on_excess"] = following.get(quota.get("on_excess", "delay"), dice.choice(("delay", "observe")))


def _move(dice: random.Random, document: Document) -> None:
    """Put a tenant or a namespace into another group, or into none."""
    section, names = dice.choice((("tenants", TENANTS), ("namespaces", NAMESPACES)))
    entry = document[section].setdefault(dice.choice(names), {})
    was = entry.pop("resource_group", None)
    group = dice.choice([group for group in (*GROUPS, None) if group != was])
    if group is not None:
        entry["resource_group"] = group


def _rate(dice: random.Random, document: Document) -> None:
    """Multiply a rate, by a thousand or otherwise."""
    quota = _publish(dice, document, limited=True)
    key = dice.choice(_rates({"publish": quota}))
    least, most, _ = _RATES[key]
    quota[key] = round(min(max(quota[key] * dice.choice(_FACTORS), least), most), 3)


def _dimension(dice: random.Random, document: Document) -> None:
    """Limit a scope in one more dimension, or in one less."""
    quota = _publish(dice, document, limited=False)
    key = dice.choice(list(_RATES))
    if quota.pop(key, None) is None:
        quota[key] = _RATES[key][2] * dice.choice((1, 4))
        quota.setdefault("burst_seconds", 1)


def _weight(dice: random.Random, document: Document) -> None:
    """Give a namespace another weight."""
    entry = document["namespaces"].setdefault(dice.choice(NAMESPACES), {})
    entry.setdefault("publish", {})["weight"] = dice.choice((1, 2, 3, 10))


def _burst(dice: random.Random, document: Document) -> None:
    _publish(dice, document, limited=True)["burst_seconds"] = dice.choice((0.1, 1, 5))


def _queue(dice: random.Random, document: Document) -> None:
    document["queue"] = {"messages": dice.choice((300, 2_500, 4_000))}


_CHANGES: Final[tuple[Callable[[random.Random, Document], None], ...]] = (
    _act_otherwise, _act_otherwise, _move, _move, _rate, _rate, _dimension, _weight, _burst, _queue,
)  # fmt: skip
