"""What is damaged in a Delta table on a disk, once delta-rs or Arrow could not read it: the file, and what is wrong.

delta-rs says neither which file it could not read, nor whether a second attempt could help. A commit is moved into
place whole, so a file of the log that is not lines of JSON will never be one, and no attempt helps.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

RESTORE_TABLE: Final = "restore it from a backup of the store"
"""The remedy for a damaged table."""

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_SAID = re.compile(
    r"Json error|Expected contiguous commit files|No table metadata|protocol found in delta log|"
    r"^revision \d+ is missing"
)
"""What delta-rs says of a log that it has read and cannot understand, and `view` of one with a hole."""


def is_damage(message: str) -> bool:
    """Return whether an error of delta-rs is about what the log says, for a table whose files nobody can look at."""
    return _SAID.search(message) is not None


def damage_of_log(folder: Path) -> str | None:
    """Return what is damaged in a table's log; `None` if nothing is found, or if the files cannot be read.

    Only what a new reader reads is looked at: the commits since the newest checkpoint.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
        checkpoint = max((int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))), default=-1)
        versions = [
            int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)) and int(match[1]) > checkpoint
        ]
        for expected, version in enumerate(versions, checkpoint + 1):
            if version != expected:
                return f"its log has no file {folder / _named(expected)}, and later ones"
            problem = _problem_of(folder / _named(version))
            if problem is not None:
                return f"the file {folder / _named(version)} of its log {problem}"
    except OSError:
        return None
    return None


def damage_of_files(table: DeltaTable, folder: Path) -> str | None:
    """Return which file of a table on a disk has another size than was written; `None` if all have theirs."""
    files = pa.table(table.get_add_actions(flatten=True))
    for path, size_bytes in zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True):
        try:
            found_bytes = os.stat(f"{folder}/{unquote(path)}").st_size  # noqa: PTH116 - of hundreds of files
        except FileNotFoundError:
            found_bytes = 0
        if found_bytes != size_bytes:
            return f"its file {folder / unquote(path)} has {found_bytes} of the {size_bytes} bytes that were written"
    return None


def _named(version: int) -> str:
    return f"{version:020d}.json"


def _problem_of(path: Path) -> str | None:
    content = path.read_bytes()
    if not content.strip():
        return "is empty"
    for number, line in enumerate(content.splitlines(), 1):
        try:
            action = json.loads(line)
        except ValueError:
            return f"is cut off or altered: its line {number} is not JSON"
        if not isinstance(action, dict):
            return f"is altered: its line {number} is no action of Delta"
    first = path.name == _named(0)
    if first and not (b'"metaData"' in content and b'"protocol"' in content):
        return "is cut off: it does not say what the table is"
    return None
