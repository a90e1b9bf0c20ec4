"""What a change costs is found in as many reads of the store, however many groups there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from spark_throttle.errors import UnconfirmedError
from spark_throttle.policy.codec import parse_document
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Entry

FIVE = {"publish": {"messages_per_second": 5}}
UNCONFIRMED = Author("ann", is_confirmed=False)


class CountingStore(MemoryStore):
    """A store that counts how often it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = Counter[str]()

    def get(self, *args: Any, **options: Any) -> Entry | None:
        self.reads["get"] += 1
        return super().get(*args, **options)

    def page(self, *args: Any, **options: Any) -> list[Entry]:
        self.reads["page"] += 1
        return super().page(*args, **options)

    def scan(self, **options: Any) -> Any:
        self.reads["scan"] += 1
        return super().scan(**options)


def named(groups: int, quota: dict[str, Any], first: int = 0) -> dict[str, Any]:
    return {f"g{at}": quota for at in range(first, groups)}


def document_of(groups: int, **more: Any) -> dict[str, Any]:
    """Return a policy with groups that tenants, namespaces and nobody are attached to, each a third of them."""
    return {
        "resource_groups": named(groups, FIVE),
        "tenants": {f"t{at}": {"resource_group": f"g{at}"} for at in range(0, groups, 3)},
        "namespaces": {f"n/{at}": {"resource_group": f"g{at}"} for at in range(1, groups, 3)},
        "defaults": FIVE,
        "exempt": [f"{tenant}/free*" for tenant in "abcdefgh"],
        **more,
    }


CHANGES: dict[str, Callable[[PolicyService, int], object]] = {
    "end of an exemption": lambda service, _: service.delete("exempt", "a/free*", UNCONFIRMED),
    "end of many exemptions": lambda service, groups: service.apply(
        parse_document(document_of(groups, exempt=[])), UNCONFIRMED
    ),
    "exemption": lambda service, _: service.put("exempt", "zz*", {}, UNCONFIRMED),
    "defaults": lambda service, _: service.put("defaults", "", {**FIVE, "resource_group": "g1"}, UNCONFIRMED),
    "glob": lambda service, _: service.put("namespace", "*x", {**FIVE, "resource_group": "g1"}, UNCONFIRMED),
    "group": lambda service, _: service.put("resource_group", "g1", {}, UNCONFIRMED),
    "ten groups": lambda service, groups: service.apply(
        parse_document(document_of(groups, resource_groups=named(10, {}) | named(groups, FIVE, 10))), UNCONFIRMED
    ),
}


def reads_of(change: Callable[[PolicyService, int], object], groups: int) -> tuple[Counter[str], str]:
    store = CountingStore()
    service = PolicyService(store, clock_ms=lambda: 0)
    service.apply(parse_document(document_of(groups)), Author("ann"))
    store.reads.clear()
    said = "done"
    try:
        change(service, groups)
    except UnconfirmedError as error:
        said = str(error)
    return store.reads, said


@pytest.mark.parametrize("name", CHANGES)
def test_reads_of_the_store_do_not_grow_with_the_number_of_groups(name: str) -> None:
    few, of_few = reads_of(CHANGES[name], 12)
    many, of_many = reads_of(CHANGES[name], 60)
    assert (of_few == "done") == (of_many == "done")
    assert many == few
