"""A large Delta store is paged in the order of the names, whatever order its writer's threads work in."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.store import Author, Change

NAMES = 60_000


@pytest.mark.slow
def test_pages_of_a_snapshot_hold_every_name_once_and_in_order(tmp_path: Path) -> None:
    changes = [Change("namespace", f"tenant-{i % 100:03d}/ns-{i:06d}", "{}") for i in range(NAMES)]
    DeltaStore.create(str(tmp_path)).commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    assert list((tmp_path / "form=snapshot").glob("*.parquet"))
    store, found, after = DeltaStore(str(tmp_path)), [], ""
    while page := store.page("namespace", after=after, limit=10_000):
        found += [entry.name for entry in page]
        after = found[-1]
    assert found == sorted(change.name for change in changes)
