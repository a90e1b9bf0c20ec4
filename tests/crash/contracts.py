"""Guarantees and budgets beside the rates of the crash program's policies, changed by turns, as rates are.

What is guaranteed is a part of what the scopes above have, so that it can be kept. Some budgets are small enough to
bind. The calendar is that of a zone of which an hour ends soon (`zones`). When it has ended, there are no budgets for a
while, so that the calendar begins anew, in another zone.
"""

from __future__ import annotations

import math
import random
from typing import Final

import yaml

from tests.crash.policies import AMPLE, Document, text_of
from tests.crash.zones import ending_soon, wall_seconds

_BUDGETED: Final = (
    ("tenants", "gold"), ("tenants", "silver"), ("tenants", "open"), ("resource_groups", "later"),
    ("resource_groups", "never"), ("namespaces", "gold/00"), ("namespaces", "open/02"),
)  # fmt: skip
_TOKENS: Final = {
    "messages_per_hour": (200, 2_000, 5_000, 10**7), "bytes_per_day": (20_000, 200_000, 500_000, 10**9),
}  # fmt: skip
_GUARANTEED: Final = (("tenants", "gold"), ("tenants", "open"), ("namespaces", "gold/00"), ("namespaces", "silver/01"))
_RATES: Final = ("messages_per_second", "bytes_per_second")
_OF_THE_JOB: Final = {"messages_per_second": 500, "burst_seconds": 1}
_PART: Final = 8
"""Of what a scope has, one below it is guaranteed so small a part, and no more than four are."""


class Promises:
    """What is promised beside the rates of a document."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._budgets: dict[tuple[str, str], dict[str, int]] = {}
        self._guaranteed: tuple[tuple[str, str], ...] = ()
        self._zone, self._ends = "", 0

    def with_promises(self, text: str) -> str:
        """Return a document with guarantees and budgets that differ a little from those of the one before."""
        document = yaml.safe_load(text)
        if document == AMPLE:
            return text
        if self._dice.random() < 0.5:
            self._guaranteed = tuple(self._dice.sample(_GUARANTEED, self._dice.choice((0, 0, 2, 4))))
        self._change_budgets()
        for (section, name), budgets in self._budgets.items():
            _publish(document, section, name).update(budgets)
            document.setdefault("job", {})["time_zone"] = self._zone
        if self._guaranteed:
            document.setdefault("job", {})["publish"] = dict(_OF_THE_JOB)
            for section, name in sorted(self._guaranteed, reverse=True):  # tenants before their namespaces
                _guarantee(document, section, name)
        return text_of(document)

    def _change_budgets(self) -> None:
        if self._budgets and wall_seconds() > self._ends and self._dice.random() < 0.5:
            self._budgets = {}
            return
        changes = self._dice.randint(1, 2) if self._budgets else len(_BUDGETED)
        if not self._budgets or self._dice.random() < 0.2:
            self._zone, self._ends = ending_soon()
        for _ in range(changes):
            budgets, key = self._budgets.setdefault(self._dice.choice(_BUDGETED), {}), self._dice.choice([*_TOKENS])
            budgets[key] = self._dice.choice(_TOKENS[key])


def _publish(document: Document, section: str, name: str) -> Document:
    quota: Document = document[section].setdefault(name, {}).setdefault("publish", {})
    return quota


def _guarantee(document: Document, section: str, name: str) -> None:
    """Guarantee a scope a part of all that those above it have, if it is anything."""
    of_tenant = document["tenants"].get(name.partition("/")[0], {})
    own = document[section].get(name, {})
    group = own.get("resource_group") or of_tenant.get("resource_group")
    above = [document["job"], document["resource_groups"].get(group, {})]
    above += [of_tenant] if section == "namespaces" else []
    found = {}
    for rate in _RATES:
        has = [quota[key] for key in (rate, f"guaranteed_{rate}") for quota in _quotas(above) if key in quota]
        if has:
            most = [quota[rate] for quota in _quotas([own]) if rate in quota]
            found[f"guaranteed_{rate}"] = math.floor(min([*has, *most]) / _PART * 1_000) / 1_000
    if all(found.values()):
        _publish(document, section, name).update(found)


def _quotas(entries: list[Document]) -> list[Document]:
    return [entry.get("publish", {}) for entry in entries]
