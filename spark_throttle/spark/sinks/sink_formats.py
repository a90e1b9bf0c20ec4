"""The known formats of sinks, by name: the delivery guarantee of each, and how it takes a batch.

A format that is not listed here is another system to which Spark writes batches, at least once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from spark_throttle.errors import ConfigurationError

Promise = Literal["exactly once", "at least once", "none", "the function's own"]

DELTA: Final = "delta"
_WITHOUT_STRUCTS: Final = ("csv", "text")

PACED: Final = "throttle_paced"
"""The sink of ours that sends rows at a pace (`spark.paced`)."""


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """A format of a sink, and how it takes a batch."""

    name: str
    promise: Promise = "at least once"
    """The delivery guarantee for a batch that is written again after a crash."""

    has_files: bool = False
    """Whether it consists of plain files under a path, so that dead letters can have one folder per batch."""

    needs_checkpoint: bool = True
    """Whether a query must be given a checkpoint location."""

    refused: str = ""
    """Why it takes no batches, and what to do instead; empty if it takes them."""

    @property
    def has_path(self) -> bool:
        """Whether its path names files, so that Spark resolves it."""
        return self.has_files or self.name == DELTA

    @property
    def is_paid_by_bytes(self) -> bool:
        """Whether a write costs what its bytes cost; writes to other systems may need all tasks."""
        return self.has_files or self.promise != "at least once"


FORMATS: Final[Mapping[str, SinkFormat]] = {
    each.name: each
    for each in (
        SinkFormat(DELTA, "exactly once"),
        *(SinkFormat(name, has_files=True) for name in ("parquet", "json", "orc", "csv", "avro", "text", "xml")),
        SinkFormat(PACED),
        *(SinkFormat(name, "none", needs_checkpoint=False) for name in ("console", "noop")),
        SinkFormat(
            "memory",
            refused="the memory sink takes no batches: use "
            "throttle.apply(events, control_path=…).writeStream.format('memory'), or foreachBatch",
        ),
    )
}


def refuse_dead_letters(name: str) -> None:
    """Refuse a format that cannot take dead letters, which have a struct.

    Raises
    ------
    ConfigurationError
        If it is such a format: the first rejected row would end the query.

    Examples
    --------
    >>> refuse_dead_letters("json")
    """
    if name in _WITHOUT_STRUCTS:
        raise ConfigurationError(
            f"dead letters cannot be {name!r} files, which hold no struct, as the column 'throttle' is: give 'delta', "
            f"'parquet', 'json' or 'orc'"
        )


def format_of(name: str | None) -> SinkFormat:
    """Return the entry for a format; `None` is the session's default format.

    Examples
    --------
    >>> format_of("delta").promise, format_of("kafka").promise
    ('exactly once', 'at least once')
    """
    return FORMATS.get(name or "") or SinkFormat(name or "")
