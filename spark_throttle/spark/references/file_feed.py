"""The files of a stream as a feed finds them: what is new since an extent, at most as many as a batch may bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from spark_throttle.spark.references.extents import Position


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that no batch has brought yet."""

    path: str
    """Its path below the root of the stream."""

    size_bytes: int
    modified_ms: int
    partition_values: tuple[tuple[str, str | None], ...] = ()


class FileFeed(Protocol):
    """A finder of new files, in the process of the source's reader, for the whole run of a query."""

    def next_files(self, position: Position, known: set[str]) -> tuple[list[FoundFile], Position]:
        """Return the files of the next batch in their order, and where the feed then goes on; no files if none is new.

        Parameters
        ----------
        position
            Where the feed goes on after the last extent; empty before the first.
        known
            The paths of all files of the stream so far.
        """
        ...

    def stop_at_newest(self) -> None:
        """Find no file that appears from now on; called once, when a query is to end with what is available."""
        ...

    def to_fields(self) -> dict[str, Any]:
        """Return the feed's settings as JSON values."""
        ...
