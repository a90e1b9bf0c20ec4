"""Stored records in the files of a directory; `record` says how they are stored."""

from __future__ import annotations

from typing import TypeVar

from spark_throttle.errors import RESTORE_CHECKPOINT
from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json, unpack

Record = TypeVar("Record")


def read_note(directory: Directory, name: str, kind: type[Record], what: str) -> Record | None:
    """Return the record in a note; `None` where there is no file. The errors are those of `record.of_json`."""
    content = directory.read(name)
    return None if content is None else of_json(kind, content, f"{what} {directory.shown(name)}")


def read_block(
    directory: Directory, name: str, kind: type[Record], what: str = "the file", *, remedy: str = RESTORE_CHECKPOINT
) -> Record | None:
    """Return the record in a block; `None` where there is no file. The errors are those of `record.unpack`."""
    content = directory.read(name)
    return None if content is None else unpack(kind, content, f"{what} {directory.shown(name)}", remedy=remedy)
