"""The batches in Spark's own logs of a checkpoint: those that were planned, and those that were committed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from spark_throttle.files.storage import Directory


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The newest batches of a checkpoint, -1 for none.

    Spark logs a batch's offsets before it runs, and its commit once its sink has it: the two differ by at most one.
    """

    logged: int
    committed: int

    @property
    def uncommitted(self) -> int | None:
        """The batch that the next start runs again; `None` if it plans a new one."""
        return self.logged if self.logged > self.committed else None


def read_offset_log(checkpoint: Directory) -> OffsetLog:
    """Return what the logs of a checkpoint hold; both -1 where there is no checkpoint yet."""
    return OffsetLog(_newest(checkpoint, "offsets"), _newest(checkpoint, "commits"))


def batch_time_ms(checkpoint: Directory, batch: int) -> int | None:
    """Return when a batch was planned, by its offsets; `None` where they are missing or do not hold the time."""
    try:
        return int(_values(checkpoint, batch)["batchTimestampMs"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def pinned_setting(checkpoint: Directory, batch: int, name: str) -> str | None:
    """Return a setting of the session that Spark logged with a batch, and keeps at a restart; `None` for none."""
    try:
        return str(_values(checkpoint, batch)["conf"][name])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _values(checkpoint: Directory, batch: int) -> dict[str, Any]:
    """Return what Spark logged of a batch itself: the second line, behind a version and before a line per source.

    Raises
    ------
    IndexError, ValueError
        If the batch was not planned, or its offsets are damaged.
    """
    values: dict[str, Any] = json.loads((checkpoint.read(f"offsets/{batch}") or b"").splitlines()[1])
    return values


def _newest(checkpoint: Directory, log: str) -> int:
    return max((int(name) for name in checkpoint.names(log) if name.isascii() and name.isdigit()), default=-1)


def source_positions(checkpoint: Directory, batch: int) -> list[str | None]:
    """Return the position of each source after a batch, as Spark logged it; `None` for a source that had none yet."""
    lines = (checkpoint.read(f"offsets/{batch}") or b"").splitlines()[2:]
    return [None if line == b"-" else line.decode() for line in lines if line]


def source_offsets(checkpoint: Directory, batch: int) -> list[dict[str, Any]]:
    """Return the offsets of a batch's sources that are objects of JSON; none where the batch was not planned."""
    content = checkpoint.read(f"offsets/{batch}") or b""
    found = (json.loads(line) for line in content.splitlines()[2:] if line.startswith(b"{"))
    return [each for each in found if isinstance(each, dict)]
