"""What a metered function that said "not now" in a task tells the driver, which itself learns only that a task failed.

The task writes it to a record of the batch (`checkpoint.batch_records`) before it fails. Who called the function for
the batch reads it when the call has failed, and takes it away: so a failure of another cause is never taken for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_throttle.checkpoint.batch_records import REFUSAL, record_name
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.errors import Backpressure
from spark_throttle.files.records import read_note
from spark_throttle.files.storage import Directory
from spark_throttle.record import Count, to_json


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a function said in a task."""

    problem: str
    scope: str | None
    retry_after_ms: Count | None


def note_refusal(directory: Directory, batch: int, refusal: Backpressure) -> None:
    """Write what a function said in a task of a batch; the last one that is written counts."""
    seconds = refusal.retry_after_seconds
    retry_after_ms = None if seconds is None else min(math.ceil(seconds * 1000), NEVER_MS)
    directory.write(_name(batch), to_json(Refusal(refusal.problem, refusal.scope, retry_after_ms)))


def take_refusal(directory: Directory, batch: int) -> Backpressure | None:
    """Return what a function said in a task of a batch, and take it away; `None` if none said anything."""
    found = read_note(directory, _name(batch), Refusal, "the refusal of a task")
    if found is None:
        return None
    directory.delete(_name(batch))
    seconds = None if found.retry_after_ms is None else found.retry_after_ms / 1000
    return Backpressure(seconds, found.scope, found.problem)


def _name(batch: int) -> str:
    return record_name(batch, REFUSAL, "task")
