"""What differs between two revisions, and going back, take as many reads of the store for 2,000 entries as for 300."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import NOTHING, Author, Change, PolicyStore

ANN = Author("ann")
READS = ("get", "find", "page", "scan", "delegated", "changed", "history")
FIVE, SIX = (f'{{"publish":{{"messages_per_second":{rate}}}}}' for rate in (5, 6))
MOST_READS = 8


def counted(store: PolicyStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each read of a store is called from here on."""
    reads = Counter[str]()

    def counting(name: str) -> None:
        read = getattr(store, name)

        def call(*args: Any, **options: Any) -> Any:
            reads[name] += 1
            return read(*args, **options)

        monkeypatch.setattr(store, name, call)

    for name in READS:
        counting(name)
    return reads


def service_over(store: PolicyStore, entries: int) -> PolicyService:
    """Return a service over a store of which revision 2 rewrites every entry, adds some, and removes one."""
    tenants = [Change("tenant", f"t{at}", FIVE) for at in range(max(1, entries // 100))]
    names = [f"t{at % len(tenants)}/n{at}" for at in range(entries)]
    first = [Change("namespace", name, FIVE, NOTHING if name[1:2] == "0" else None) for name in names]
    store.commit([*tenants, *first], expected_revision=0, author=ANN, at_ms=0)
    second = [Change("namespace", name, SIX) for name in [*names[1:], "t0/new"]]
    store.commit([*second, Change("namespace", names[0], None)], expected_revision=1, author=ANN, at_ms=0)
    return PolicyService(store, clock_ms=lambda: 0)


@pytest.mark.parametrize("entries", [300, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["memory", "delta"])
def test_reads_of_a_rollback_do_not_grow_with_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, entries: int
) -> None:
    store: PolicyStore = MemoryStore() if kind == "memory" else DeltaStore.create(str(tmp_path / "store"))
    service = service_over(store, entries)
    before = list(store.scan(at=1))
    reads = counted(store, monkeypatch)
    found = service.diff(1, 2)
    assert reads == {"changed": 1, "find": 1}
    assert [(each.before is None, each.after is None) for each in found].count((False, False)) == entries - 1
    reads.clear()
    planned = service.planned_rollback(1)
    assert reads.total() <= MOST_READS
    assert [(each.after, each.before) for each in planned.differences] == [(each.before, each.after) for each in found]
    reads.clear()
    service.rollback(1, ANN)
    assert reads.total() <= MOST_READS
    monkeypatch.undo()
    after = list(store.scan())
    assert [(e.kind, e.name, e.body, e.given) for e in after] == [(e.kind, e.name, e.body, e.given) for e in before]
