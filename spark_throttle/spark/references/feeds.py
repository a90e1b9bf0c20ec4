"""The feed of a stream from its settings, and the extents that it fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_throttle.spark.references.delta_feed import DeltaFeed
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, Position, SourceFile
from spark_throttle.spark.references.file_feed import FileFeed
from spark_throttle.spark.references.folder_feed import FolderFeed


def open_feed(fields: Mapping[str, Any]) -> FileFeed:
    """Return the feed of the settings that its `to_fields` returned."""
    if fields["kind"] == "delta":
        settings = (fields[name] for name in ("root", "most_files", "starting_version", "columns"))
        return DeltaFeed(*settings, skips_changes=fields["skips_changes"])
    return FolderFeed(fields["root"], fields["most_files"])


class NewFiles:
    """The writer of extents: it asks the feed what is new, and numbers the files.

    It keeps the history of the stream in memory, and reads it again only if it is asked to go on from another extent.
    """

    def __init__(self, extents: Extents, feed: FileFeed) -> None:
        self._extents = extents
        self._feed = feed
        self._name: ExtentName | None = None
        self._known: set[str] = set()
        self._next_number = 0
        self._position: Position = {}

    def stop_at_newest(self) -> None:
        """Find no file that appears from now on."""
        self._feed.stop_at_newest()

    def after(self, name: ExtentName) -> ExtentName:
        """Return the extent after `name`, which is written; `name` itself if no file is new."""
        if name != self._name:
            history = self._extents.history(name)
            self._known = {file.path for file in history}
            self._next_number = history[-1].number + 1 if history else 0
            self._position = {} if name == NO_EXTENT else self._extents.load(name).position
            self._name = name
        found, self._position = self._feed.next_files(self._position, self._known)
        if not found:
            return name
        files = [
            SourceFile(number, file.path, file.size_bytes, file.modified_ms, file.partition_values)
            for number, file in enumerate(found, self._next_number)
        ]
        self._name = self._extents.write(name, files, self._position)
        self._known |= {file.path for file in files}
        self._next_number += len(files)
        return self._name
