"""What lies in a run's directory, in the words of the model of batches, each time that the crash program acts.

No process tells its steps: what it did between two looks follows from the files (`tests.models.seen_batches`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from demos.tables import read_epoch, read_epoch_file, read_offsets
from spark_throttle.checkpoint.batch_records import batch_of, part_of, records
from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.control.run_fence import owner_of
from spark_throttle.files.storage import Directory
from tests.crash.history import read_so_far
from tests.crash.tables import live_files

SIGHTINGS: Final = "sightings.jsonl"


def note(root: Path, event: str) -> None:
    """Append what happens now, and what lies there."""
    with (root / SIGHTINGS).open("a") as out:
        out.write(json.dumps({"event": event, "seen": look(root)}) + "\n")


def read_sightings(root: Path) -> list[dict[str, Any]]:
    """Return what was noted; nothing of a job whose sink has no transactions."""
    if not (root / SIGHTINGS).exists():
        return []
    return [json.loads(line) for line in (root / SIGHTINGS).read_text().splitlines()]


def look(root: Path) -> dict[str, Any]:
    """Return what lies in the checkpoint, the control directory and the tables."""
    checkpoint = root / "checkpoint"
    control = Directory(str(checkpoint / "throttle"))
    log, read = list[tuple[int, str, int, int, int]](), dict[int, int]()
    planned = [int(path.name) for path in (checkpoint / "offsets").glob("*") if path.name.isdigit()]
    for number in range(max(planned, default=-1) + 1):
        read = read_so_far(read_offsets(checkpoint, number), read)
        head = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[1])
        file = read_epoch_file(checkpoint, number)
        log.append((*_epoch(checkpoint, file), int(head["batchTimestampMs"]), sum(read.values())))
    commits = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    return {
        "log": log,
        "committed": max(commits, default=-1) + 1,
        "is_named": read_manifest(control) is not None,
        "owner": owner_of(control),
        "epochs": [_epoch(checkpoint, file) for file in control.names("epochs")],
        "reports": [(batch_of(name), int(part_of(name))) for name in records(control, "report")],
        "table": _batches_of(root / "admitted"),
        "letters": _batches_of(root / "rejected") or _batches_of(checkpoint / "throttle" / "rejected"),
    }


def _epoch(checkpoint: Path, file: str) -> tuple[int, str, int]:
    epoch = read_epoch(checkpoint, file)
    return epoch.number, epoch.revision, epoch.settled_batch


def _batches_of(table: Path) -> list[int]:
    """Return the batches that a table has rows of."""
    if (table / "_delta_log").exists():
        return sorted({file.batch for file in live_files(table).values()})
    return sorted({int(path.parent.name.partition("=")[2]) for path in table.glob("batch=*/*.parquet")})
