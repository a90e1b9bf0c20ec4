"""What a metered function that said "not now" in a task tells the driver, which itself learns only that a task failed.

The task writes it to the control directory before it fails. Who called the function for the batch reads it when the
call has failed, and takes it away: so a failure of another cause is never taken for it.
"""

from __future__ import annotations

from typing import Any, Final

from spark_throttle.errors import Backpressure
from spark_throttle.files.storage import Directory
from spark_throttle.files.versioned_json import read_versioned, versioned

_NAME: Final = "refused_in_task.json"
_FORMAT: Final = 1


def note_refusal(directory: Directory, batch: int, refusal: Backpressure) -> None:
    """Write what a function said in a task of a batch; the last one that is written counts."""
    fields = {
        "batch": batch, "retry_after_seconds": refusal.retry_after_seconds, "scope": refusal.scope,
        "problem": refusal.problem,
    }  # fmt: skip
    directory.write(_NAME, versioned(_FORMAT, fields))


def take_refusal(directory: Directory, batch: int) -> Backpressure | None:
    """Return what a function said in a task of a batch, and take it away; `None` if none said anything."""
    found = read_versioned(directory, _NAME, "the refusal of a task", _FORMAT, _parsed)
    if found is None:
        return None
    directory.delete(_NAME)
    return found[1] if found[0] == batch else None


def _parsed(fields: dict[str, Any]) -> tuple[int, Backpressure]:
    refusal = Backpressure(fields["retry_after_seconds"], fields["scope"], str(fields["problem"]))
    return int(fields["batch"]), refusal
