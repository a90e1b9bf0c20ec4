"""A change of one entry is refused if what others are guaranteed could not be kept after it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from spark_throttle.errors import NotPermittedError, PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.store.entries import SECTIONS, document_of
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Kind

ANN, BOB = Author("ann", is_confirmed=True), Author("bob", tenant="acme")
GIVEN: dict[str, Any] = {
    "job": {"publish": {"messages_per_second": 100}},
    "resource_groups": {"gold": {"publish": {"messages_per_second": 50}}, "iron": {}},
    "tenants": {
        "acme": {"resource_group": "gold", "publish": {"guaranteed_messages_per_second": 40}},
        "blue": {"publish": {"guaranteed_messages_per_second": 60}},
    },
    "namespaces": {"acme/x": {"publish": {"guaranteed_messages_per_second": 30, "messages_per_second": 35}}},
}


@pytest.fixture
def service() -> PolicyService:
    service = PolicyService(MemoryStore(), clock_ms=lambda: 0, pause=lambda _: None)
    service.apply(parse_document(GIVEN), ANN)
    return service


def per_second(rate: float, **more: Any) -> dict[str, Any]:
    return {"publish": {"messages_per_second": rate, **more}}


@pytest.mark.parametrize(("change", "said"), [
    (lambda s: s.put("job", "", per_second(99), ANN), "100 are guaranteed of its 99 (tenants.blue 60, tenants"),
    (lambda s: s.put("resource_group", "gold", per_second(39), ANN), "40 are guaranteed of its 39 (tenants.acme 40)"),
    (lambda s: s.put("tenant", "cora", {"publish": {"guaranteed_messages_per_second": 1}}, ANN), "101 are guaranteed"),
    (lambda s: s.put("tenant", "acme", {"publish": {"guaranteed_messages_per_second": 29}}, ANN), "30 are guaranteed"),
    (lambda s: s.put("job", "", per_second(100, bytes_per_second=9), ANN), "job limits bytes_per_second to 9"),
    (lambda s: s.put("namespace", "acme/*", {"publish": {"guaranteed_messages_per_second": 1}}, ANN), "any number"),
])  # fmt: skip
def test_change_after_which_a_guarantee_cannot_be_kept_is_refused(
    service: PolicyService, change: Callable[[PolicyService], object], said: str
) -> None:
    revision = service.store.revision()
    with pytest.raises(PolicyError, match=said.replace("(", r"\(").replace(")", r"\)")):
        change(service)
    assert service.store.revision() == revision


def test_change_that_leaves_all_guarantees_is_made(service: PolicyService) -> None:
    service.put("tenant", "blue", {"publish": {"guaranteed_messages_per_second": 50}}, ANN)
    service.put("job", "", per_second(90), ANN)
    service.delete("tenant", "blue", ANN)
    service.put("job", "", per_second(40), ANN)


def test_tenants_administrator_raises_no_guarantee(service: PolicyService) -> None:
    for name, written, path in (
        ("acme/x", {"guaranteed_messages_per_second": 31, "messages_per_second": 35}, "guaranteed_messages_per_second"),
        ("acme/x", {"guaranteed_bytes_per_second": 1, "messages_per_second": 30}, "guaranteed_bytes_per_second"),
        ("acme/x", {"guaranteed_messages_per_second": 30, "messages_per_second": 30, "burst_seconds": 11},
         "burst_seconds"),
        ("acme/y", {"guaranteed_messages_per_second": 1}, "guaranteed_messages_per_second"),
    ):  # fmt: skip
        with pytest.raises(NotPermittedError) as refused:
            service.put("namespace", name, {"publish": written}, BOB)
        assert refused.value.path == f"publish.{path}"
    service.put("namespace", "acme/x", per_second(35, guaranteed_messages_per_second=29), BOB)


def drawn_change(draw: random.Random) -> tuple[Kind, str, dict[str, Any] | None]:
    """Return an entry, and what it is to say; `None` to remove it."""

    def quota(*, may_claim: bool) -> dict[str, Any]:
        keys = ["messages_per_second", *(["guaranteed_messages_per_second"] * 2 if may_claim else [])]
        return {"publish": {key: draw.choice([1, 2, 3, 5, 8]) for key in keys if draw.random() < 0.5}}

    group = {"resource_group": draw.choice(["gold", "iron"])} if draw.random() < 0.5 else {}
    kind: Kind = draw.choice(["resource_group", "tenant", "tenant", "namespace", "namespace", "defaults", "job"])
    if kind == "job":
        limited = quota(may_claim=False)
        return kind, "", draw.choice([{}, {}, limited, {"schedule": {"sat": limited}} if limited["publish"] else {}])
    if kind == "defaults":
        return kind, "", group
    name = {"resource_group": draw.choice(["gold", "iron"]), "tenant": draw.choice(["acme", "blue", "cora"])}.get(kind)
    name = name or draw.choice(["acme/x", "acme/y", "blue/x", "cora/x"])
    if kind != "resource_group" and draw.random() < 0.2:
        return kind, name, None
    hours = {"schedule": {"sat": quota(may_claim=True)}} if draw.random() < 0.2 else {}
    hours = hours if hours.get("schedule", {}).get("sat", {}).get("publish") else {}
    return kind, name, {**quota(may_claim=True), **hours, **(group if kind != "resource_group" else {})}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_looked_at_decides_as_the_whole_document_does(seed: int) -> None:
    draw, counts = random.Random(seed), Counter[str]()
    service = PolicyService(MemoryStore(), clock_ms=lambda: 0, pause=lambda _: None)
    service.apply(parse_document({"resource_groups": {"gold": {}, "iron": {}}}), ANN)
    for _ in range(120):
        kind, name, values = drawn_change(draw)
        entries = {entry.key: entry for entry in service.store.scan()}
        if values is None and (kind, name) not in entries:
            continue
        document = document_of(entries.values(), what="the store").model_dump(mode="json", exclude_defaults=True)
        section = document.setdefault(SECTIONS[kind], {}) if name else document
        section[name or kind] = values or {}
        if values is None:
            del section[name]
        try:
            parse_document(document)
            is_kept = True
        except PolicyError:
            is_kept = False
        try:
            service.delete(kind, name, ANN) if values is None else service.put(kind, name, values, ANN)
            counts["made"] += 1
            assert is_kept, (kind, name, values, document)
        except PolicyError:
            counts["refused"] += 1
            assert not is_kept, (kind, name, values, document)
    assert min(counts["made"], counts["refused"]) > 10, counts
