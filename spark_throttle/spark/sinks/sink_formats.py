"""What is known of the formats that a sink may have, by name: what each promises, and how it takes a batch.

A format that is not named here is some other system that Spark writes batches to: at least once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Promise = Literal["exactly once", "at least once", "none", "the function's own"]

DELTA: Final = "delta"


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """One format."""

    name: str
    promise: Promise = "at least once"
    """What becomes of a batch that is written again after a crash."""

    has_files: bool = False
    """Whether it is plain files below a path, of which dead letters can have a folder a batch."""

    needs_checkpoint: bool = True
    """Whether a query must be given a place for its checkpoint."""

    refused: str = ""
    """Why it takes no batches, and what to do instead."""

    @property
    def has_path(self) -> bool:
        """Whether its path is one of files, which Spark resolves."""
        return self.has_files or self.name == DELTA

    @property
    def is_paid_by_bytes(self) -> bool:
        """Whether rows cost what their bytes cost. What talks to another system may need all tasks there are."""
        return self.has_files or self.promise != "at least once"


FORMATS: Final[Mapping[str, SinkFormat]] = {
    each.name: each
    for each in (
        SinkFormat(DELTA, "exactly once"),
        *(SinkFormat(name, has_files=True) for name in ("parquet", "json", "orc", "csv", "avro", "text", "xml")),
        *(SinkFormat(name, "none", needs_checkpoint=False) for name in ("console", "noop")),
        SinkFormat(
            "memory",
            refused="the memory sink takes no batches: use "
            "throttle.apply(events, control_path=…).writeStream.format('memory'), or foreachBatch",
        ),
    )
}


def format_of(name: str | None) -> SinkFormat:
    """Return what is known of a format; `None` is the session's default.

    Examples
    --------
    >>> format_of("delta").promise, format_of("kafka").promise
    ('exactly once', 'at least once')
    """
    return FORMATS.get(name or "") or SinkFormat(name or "")
