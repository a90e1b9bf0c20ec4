"""Policy stores on a disk that lies: what is read is what was written, or an error, and so is a change.

A store gets some revisions, by administrators and by a tenant's. Its files are kept after each. A fault gets a copy of
them in a folder. Then a new process, as it were, reads every revision and the history, makes a change, and another one
reads again.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file.file_store import HAND, FileStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, PolicyStore
from spark_throttle.testing.simulation.exchange import START_MS
from tests.lies import faults
from tests.lies.faults import LyingFiles
from tests.lies.outcomes import Found, Outcome, is_refusal, said

ANN: Final = Author("ann", why="a reason")
BOB: Final = Author("bob", tenant="acme")
Seen = dict[str, Any]
"""The newest revision, the entries of every revision, and the facts of all commits."""


def _quota(rate: int) -> dict[str, Any]:
    return {"publish": {"messages_per_second": rate, "burst_seconds": 2}}


def made(service: PolicyService) -> Iterator[None]:
    """Make the changes of a store, one at a time."""
    service.put("resource_group", "gold", _quota(500), ANN)
    yield
    service.put("tenant", "acme", {**_quota(300), "resource_group": "gold"}, ANN)
    yield
    service.put("namespace", "acme/logs", _quota(120), ANN)
    yield
    service.put("namespace", "acme/logs", _quota(60), BOB)
    yield
    service.put("namespace", "acme/clicks", _quota(45), BOB)
    yield
    service.put("resource_group", "gold", _quota(470), ANN)
    yield
    service.delete("namespace", "acme/clicks", BOB)
    yield


def seen(store: PolicyStore) -> Seen:
    """Return all that a store says."""
    newest = store.revision()
    return {
        "revision": newest,
        "entries": {at: list(store.scan(at=at)) for at in range(1, newest + 1)},
        "history": list(store.history(limit=100)),
    }


@contextmanager
def _served(store: PolicyStore) -> Iterator[PolicyService]:
    yield PolicyService(store, clock_ms=lambda: START_MS, pause=lambda _: None)


class StoreBench:
    """One store, into whose files faults are injected."""

    def __init__(self, name: str, opened: Callable[[str], PolicyStore], created: Callable[[str], PolicyStore]) -> None:
        self.name = name
        self._opened = opened
        self._files = LyingFiles()
        with tempfile.TemporaryDirectory() as folder, self._in_small():
            with _served(created(f"{folder}/store")) as service:
                self._keep(Path(folder))
                for _ in made(service):
                    self._keep(Path(folder))
            self._truth = seen(opened(f"{folder}/store"))
            self._keep(Path(folder))
        with self._in_folder(self._files) as folder, self._in_small():
            self._change(folder)
            self._changed = seen(self._opened(f"{folder}/store"))

    @staticmethod
    def _in_small() -> Any:
        return mock.patch("spark_throttle.store.delta.delta_store.SNAPSHOT_REVISIONS", 3)

    def _keep(self, folder: Path) -> None:
        found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
        for name in sorted(dict.keys(self._files) - found.keys()):
            self._files.pop(name)
        for name, path in found.items():
            content = path.read_bytes()
            if dict.get(self._files, name) != content:
                self._files[name] = content

    @staticmethod
    @contextmanager
    def _in_folder(files: LyingFiles) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name in dict.keys(files):
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(dict.__getitem__(files, name))
            yield folder

    def _change(self, folder: str) -> None:
        with _served(self._opened(f"{folder}/store")) as service:
            service.put("namespace", "acme/new", _quota(33), ANN)

    def fault(self, draw: random.Random) -> Found | None:
        """Inject a fault that is drawn, and return what became of it."""
        files = LyingFiles(self._files.writes)
        by_kind: dict[str, list[str]] = {}
        for name in sorted(dict.keys(files)):
            by_kind.setdefault(self._kind_of(name), []).append(name)
        kind = draw.choice([each for each in faults.KINDS if each not in (*faults.LISTINGS, "late write")])
        of_kind = draw.choice(sorted(by_kind))
        if faults.inject(draw, files, kind, draw.choice(by_kind[of_kind])) is None:
            return None
        what = f"{self.name}, {'all' if kind in faults.MANY_FILES else of_kind}"
        with self._in_folder(files) as folder, self._in_small():
            outcome, detail = self._outcome(folder)
        return Found(what, kind, outcome, detail)

    @staticmethod
    def _kind_of(name: str) -> str:
        if "_delta_log" in name:
            return "log"
        return "rows" if name.endswith(".parquet") else name.removeprefix("store").removeprefix(".") or "document"

    def _outcome(self, folder: str) -> tuple[Outcome, str]:
        """Read everything, make a change, and read again."""
        refusal = ""
        for truth, is_changed in ((self._truth, False), (self._changed, True)):
            try:
                if is_changed:
                    self._change(folder)
                found = seen(self._opened(f"{folder}/store"))
            except Exception as error:  # noqa: BLE001 - what it is, is the question
                if not is_refusal(error, (folder,)):
                    return "crashed", said(error)
                refusal = said(error)
                continue
            if problem := difference(truth, found):
                return self._told(found, f"{problem} ({refusal})")
        return ("refused", refusal) if refusal else ("right", "")

    def _told(self, found: Seen, problem: str) -> tuple[Outcome, str]:
        """Return whether a difference is one of which docs/policies.md says that it is not, or how it is, noticed."""
        truth = self._truth
        newest = found["revision"]
        is_older = newest <= truth["revision"] and all(
            found["entries"][at] == truth["entries"][at] for at in range(1, newest + 1)
        )
        is_by_hand = any(each.who == HAND for each in found["history"])
        if is_older or is_by_hand:
            return "told", problem
        return "silent", problem


def difference(truth: Seen, found: Seen) -> str:
    """Return how what a store says differs from what it should say; empty if it does not."""
    if found["revision"] != truth["revision"]:
        return f"it is at revision {found['revision']}, not {truth['revision']}"
    for at, entries in truth["entries"].items():
        if found["entries"][at] != entries:
            other = [each for each in found["entries"][at] if each not in entries]
            return f"revision {at} has {other}, not {[each for each in entries if each not in found['entries'][at]]}"
    for ours, theirs in zip(truth["history"], found["history"], strict=False):
        if ours != theirs:
            return f"the history says {theirs}, not {ours}"
    return "" if len(truth["history"]) == len(found["history"]) else "the history has other commits"


def file_store(_seed: str) -> StoreBench:
    """Return the bench of a store in a file."""
    return StoreBench("file store", FileStore, FileStore.create)


def delta_store(_seed: str) -> StoreBench:
    """Return the bench of a store in a Delta table."""
    return StoreBench("delta store", DeltaStore, DeltaStore.create)
