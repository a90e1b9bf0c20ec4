"""Attacks of a tenant's administrator on what it was given, each by its effect on the names of the tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_throttle.policy.model import Direction
from spark_throttle.status.explain import explain_policy
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import Author, Kind
from tests.admin.conftest import ServedApp

ANN = Author("ann")
NAMES = ("acme", "acme/", "acme/x", "acme/export-7", "acme/export-7/eu", "acme/a/b", "acme/é")
DISPATCH = 5

Entries = dict[tuple[Kind, str], dict[str, Any]]

BRONZE: Entries = {
    ("resource_group", "bronze"): {"publish": {"messages_per_second": 50}},
    ("resource_group", "gold"): {"publish": {"messages_per_second": 5000}},
}
OUT_OF_THE_DEFAULTS: Entries = {
    **BRONZE,
    ("defaults", ""): {"resource_group": "bronze"},
    ("tenant", "acme"): {"dispatch": {"messages_per_second": DISPATCH}},
}
PLACED: Entries = {
    **BRONZE,
    ("tenant", "acme"): {"resource_group": "gold"},
    ("namespace", "acme/export-*"): {"resource_group": "bronze"},
}
HEAVY: Entries = {
    **BRONZE,
    ("tenant", "acme"): {"resource_group": "gold"},
    ("namespace", "acme/*"): {"publish": {"weight": 50}},
    ("namespace", "acme/export-*"): {"publish": {"weight": 1}},
}
EMERGENCY: Entries = {
    **BRONZE,
    ("tenant", "acme"): {"resource_group": "gold"},
    ("namespace", "acme/x"): {"publish": {"messages_per_second": 0, "on_excess": "reject"}},
}
BOUNDED: Entries = {
    ("tenant", "acme"): {"publish": {"messages_per_second": 1000}},
    ("defaults", ""): {
        "publish": {"messages_per_second": 50, "bytes_per_second": 5000, "max_message_bytes": 100, "burst_seconds": 2},
        "dispatch": {"messages_per_second": 7},
        "write_throttling": "20*delay*100,50*reject*50",
    },
}


def given(served: ServedApp, entries: Entries) -> None:
    for (kind, name), values in entries.items():
        served.service.put(kind, name, values, ANN)


def effects(served: ServedApp) -> list[object]:
    """Return the rule, the group and the levels of each name, in both directions."""
    directions: tuple[Direction, Direction] = ("publish", "dispatch")
    found = [explain_policy(served.store, name, direction) for name in NAMES for direction in directions]
    return [(each.namespace, each.matched, each.resource_group, each.levels) for each in found]


def put(name: str, values: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return "PUT", f"policies/namespaces/{name.replace('/', '%2F')}", values


def delete(name: str) -> tuple[str, str, None]:
    return "DELETE", f"policies/namespaces/{name.replace('/', '%2F')}", None


ATTACKS: dict[str, tuple[Entries, tuple[str, str, Any], tuple[str, ...]]] = {
    "a: a glob takes its names out of the defaults' group": (
        OUT_OF_THE_DEFAULTS, put("acme/*", {}), ("resource_group", "bronze", "50")),
    "a: an entry takes its name out of the defaults' group": (
        OUT_OF_THE_DEFAULTS, put("acme/x", {}), ("resource_group", "bronze", "50")),
    "a: a quota in one direction lifts the group of the other": (
        OUT_OF_THE_DEFAULTS, put("acme/*", {"dispatch": {"messages_per_second": 1}}), ("bronze", "50")),
    "b: an entry undoes the placement of a glob": (
        PLACED, put("acme/export-7", {}), ("resource_group", "bronze", "50")),
    "b: a wider glob undoes the placement of another": (
        PLACED, put("acme/export-*", {}), ("resource_group", "bronze", "50")),
    "b: a narrower glob undoes the placement of another": (
        PLACED, put("acme/export-*-*", {}), ("resource_group", "bronze", "50")),
    "b: a deleted glob undoes the placement": (PLACED, delete("acme/export-*"), ("administrator",)),
    "b: an attachment undoes the placement": (
        PLACED, ("PUT", "namespaces/acme/export-7/resourcegroup/gold", None), ("resource_group", "bronze", "50")),
    "b: a detachment undoes the placement": (
        {**PLACED, ("namespace", "acme/x"): {"resource_group": "bronze"}},
        ("DELETE", "namespaces/acme/x/resourcegroup", None), ("administrator",)),
    "b: a deleted glob raises the weight": (HEAVY, delete("acme/export-*"), ("administrator",)),
    "b: an entry raises the weight": (
        HEAVY, put("acme/export-7", {"publish": {"weight": 50}}), ("namespace", "weight", "50", "1")),
    "c: an empty entry removes an emergency quota of 0": (
        EMERGENCY, put("acme/x", {}), ("namespace", "publish.messages_per_second", "0")),
    "c: a larger quota removes an emergency quota of 0": (
        EMERGENCY, put("acme/x", {"publish": {"messages_per_second": 1}}), ("namespace", "1", "0")),
    "c: a deletion removes an emergency quota of 0": (EMERGENCY, delete("acme/x"), ("administrator",)),
    "c: rows that wait replace rows that are rejected": (
        EMERGENCY, put("acme/x", {"publish": {"messages_per_second": 0}}), ("on_excess", "delay", "reject")),
    "an entry lifts the messages of the defaults": (
        BOUNDED, put("acme/x", {}), ("namespace", "publish.messages_per_second", "50")),
    "an entry lifts the bytes of the defaults": (
        BOUNDED, put("acme/x", {"publish": {"messages_per_second": 50, "burst_seconds": 2}}),
        ("namespace", "publish.bytes_per_second", "5000")),
    "an entry lifts the size of a message": (
        BOUNDED, put("acme/x", {"publish": {"messages_per_second": 50, "bytes_per_second": 5000, "burst_seconds": 2}}),
        ("namespace", "publish.max_message_bytes", "100")),
    "an entry saves up a larger burst": (
        BOUNDED, put("acme/x", {"publish": {**BOUNDED["defaults", ""]["publish"], "burst_seconds": 3}}),
        ("namespace", "burst", "150", "100")),
    "an entry lifts the other direction": (
        BOUNDED, put("acme/x", {"publish": BOUNDED["defaults", ""]["publish"]}),
        ("namespace", "dispatch.messages_per_second", "7")),
    "an entry lifts a throttling string": (
        BOUNDED, put("acme/x", {key: BOUNDED["defaults", ""][key] for key in ("publish", "dispatch")}),
        ("namespace", "write_throttling", "50*reject*50")),
    "an entry delays for less time": (
        BOUNDED, put("acme/x", {**BOUNDED["defaults", ""], "write_throttling": "20*delay*10,50*reject*50"}),
        ("namespace", "write_throttling", "20*delay*10,", "20*delay*100,")),
    "an entry only observes": (
        BOUNDED, put("acme/x", {**BOUNDED["defaults", ""],
                                "publish": {**BOUNDED["defaults", ""]["publish"], "on_excess": "observe"}}),
        ("namespace", "on_excess", "observe", "delay")),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_is_refused_by_its_effect_and_told_the_level_and_the_number(in_memory: ServedApp, attack: str) -> None:
    entries, (method, path, body), told = ATTACKS[attack]
    given(in_memory, entries)
    before, revision = effects(in_memory), in_memory.store.revision()
    answer = in_memory.client("tenant_admin").request(method, f"/admin/v2/{path}", json=body)
    assert answer.status_code == 403, answer.text
    assert [word for word in told if word not in answer.json()["detail"] + answer.json().get("path", "")] == []
    assert in_memory.store.revision() == revision
    assert effects(in_memory) == before


def test_entry_is_locked_and_unlocked_over_the_api_and_answers_who_wrote_it(in_memory: ServedApp) -> None:
    given(in_memory, BOUNDED)
    admin, tenant, path = in_memory.client(), in_memory.client("tenant_admin"), "/admin/v2/policies/namespaces/acme%2Fx"
    values = {**BOUNDED["defaults", ""], "locked": True}
    assert admin.put(path, json=values).status_code == 200
    assert tenant.get(path).json()["policy"]["locked"] is True
    assert tenant.get(path).json()["author"] == "administrator"
    answer = tenant.put(path, json=BOUNDED["defaults", ""])
    assert (answer.status_code, answer.json()["path"]) == (403, "locked")
    assert tenant.put(path, json={"locked": "yes"}).json()["detail"] == "'yes' is neither true nor false"
    assert admin.put(path, json=BOUNDED["defaults", ""]).status_code == 200
    tighter = {**BOUNDED["defaults", ""], "dispatch": {"messages_per_second": 1}}
    assert tenant.put(path, json=tighter).status_code == 200
    assert admin.get(path).json()["author"] == "tenant"


def test_entries_of_a_tenant_are_bounded_over_the_api(serve: Callable[..., ServedApp]) -> None:
    served = serve(MemoryStore(), most_tenant_entries=2)
    served.service.put("tenant", "acme", {"publish": {"messages_per_second": 9}}, Author("ann"))
    client = served.client("tenant_admin")
    answers = [client.put(f"/admin/v2/policies/namespaces/acme%2F{i}", json={}) for i in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 403]
    assert "has made entries for 2 namespaces of 2; remove one" in answers[2].json()["detail"]
    assert client.delete("/admin/v2/policies/namespaces/acme%2F0").status_code == 200
    assert client.put("/admin/v2/policies/namespaces/acme%2F2", json={}).status_code == 200
