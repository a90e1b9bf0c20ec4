"""Every policy store keeps the promises of `spark_throttle.testing.store_suite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import PolicyStore
from spark_throttle.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def open_again(self) -> Callable[[], PolicyStore]:
        store = MemoryStore()
        return lambda: store


class TestFileStore(StoreSuite):
    @pytest.fixture
    def open_again(self, tmp_path: Path) -> Callable[[], PolicyStore]:
        return lambda: FileStore.create(tmp_path / "policies.yaml")


class TestDeltaStore(StoreSuite):
    @pytest.fixture
    def open_again(self, tmp_path: Path) -> Callable[[], PolicyStore]:
        return lambda: DeltaStore.create(str(tmp_path / "policies"))


@pytest.mark.slow
class TestDeltaStoreWithASnapshotAtEveryCommit(TestDeltaStore):
    @pytest.fixture(autouse=True)
    def eager_snapshots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spark_throttle.store.delta.delta_store.SNAPSHOT_REVISIONS", 1)
