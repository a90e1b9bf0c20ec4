"""Copies of what a job has, made while it is down, and putting them back later: the checkpoint, sinks, or both."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from tests.crash.plan import PutBack
from tests.crash.tables import newest_batch

SINKS: Final = ("admitted", "rejected", "usage", "decided")
PUT_BACKS: Final[dict[str, tuple[PutBack, ...]]] = {
    "delta": ("copied", "restored", "refused", "control-ahead"),
    "delta-catalog": (),
    "delta-partitioned": ("copied", "restored", "refused", "control-ahead"),
    "file-sink": ("copied",),
    "parquet": ("copied",),
    "iceberg": ("copied",),
    "merge": ("copied",),
    "kafka": (),
    "function": ("copied", "control-ahead"),
    "paced": (),
}
"""By sink: what is right, or refused with a remedy. Other files take rows again, so they are put back too.

A receiver and a topic cannot be put back: they would get rows again, which left in other batches."""

_RESTORE: Final = re.compile(r"RESTORE TABLE delta\.`(?P<path>[^`]+)` TO VERSION AS OF (?P<version>\d+)")


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a checkpoint and of all sinks, and the versions that tables had then."""

    place: Path
    root: Path
    versions: dict[str, int]
    newest_planned: int

    @classmethod
    def make(cls, root: Path) -> Copy:
        """Copy all that the job has; an older copy is given up."""
        place = root / "kept"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name in ("checkpoint", *SINKS):
            if (root / name).exists():
                shutil.copytree(root / name, place / name)
        versions = {name: DeltaTable(root / name).version() for name in _tables(root)}
        return cls(place, root, versions, newest_planned(root))

    def put_back(self, how: PutBack) -> bool:
        """Put the checkpoint back, and of the sinks what belongs to that; return whether a start must be refused."""
        if not (self.place / "checkpoint").exists():
            return False  # it was made before the first batch
        tables = _tables(self.root)
        if how == "restored" and tables != list(self.versions):
            how = "copied"  # a table that was not there has no version to be restored to
        checkpoint, ahead = self.root / "checkpoint", self.root / "control-ahead"
        if how == "control-ahead":
            (checkpoint / "throttle").rename(ahead)
        self._copy_back("checkpoint")
        if how == "control-ahead":
            shutil.rmtree(checkpoint / "throttle")
            ahead.rename(checkpoint / "throttle")
        if how == "refused":
            return any(newest_batch(self.root / name) > self.newest_planned >= 0 for name in tables)
        if how == "restored":
            for name, version in self.versions.items():
                restore(self.root / name, version)
            return False
        for name in SINKS:
            self._copy_back(name)
        return how == "control-ahead" and not tables and any(".report." in path.name for path in self._undone_records())

    def follow_remedy(self, error: str, *, is_first: bool) -> None:
        """Do what a refusal says; at the first, for all tables, as docs/changing-a-job.md has it."""
        said = {Path(found["path"]): int(found["version"]) for found in _RESTORE.finditer(error)}
        if said:
            others = {self.root / name: version for name, version in self.versions.items()} if is_first else {}
            for table, version in (others | said).items():
                restore(table, version)
            return
        assert "remove their files below" in error, f"the error has no remedy: {error}"
        for record in self._undone_records():
            record.unlink()

    def _undone_records(self) -> list[Path]:
        """Return the records of batches that the checkpoint knows nothing of; a name begins with the batch."""
        found = (self.root / "checkpoint" / "throttle" / "batches").glob("[0-9]*")
        return [path for path in found if int(path.name.partition(".")[0]) > self.newest_planned]

    def _copy_back(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)
        if (self.place / name).exists():
            shutil.copytree(self.place / name, self.root / name)


def restore(table: Path, version: int) -> None:
    """Restore a Delta table to a version; to the one that it has, it stays as it is."""
    opened = DeltaTable(table)
    if opened.version() != version:
        opened.restore(version)


def newest_planned(root: Path) -> int:
    """Return the newest batch in the offset log, -1 for none."""
    numbers = (path.name for path in (root / "checkpoint" / "offsets").glob("*"))
    return max((int(name) for name in numbers if name.isdigit()), default=-1)


def _tables(root: Path) -> list[str]:
    return [name for name in SINKS if (root / name / "_delta_log").exists()]
