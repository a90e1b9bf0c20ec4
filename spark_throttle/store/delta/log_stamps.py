"""Whether the files of a Delta table's log are those that were read: nobody has cut, restored or replaced one since.

A process that has read a commit does not read its file again. If the file is damaged afterwards, the process would go
on with policies that no other process can read, and acknowledge changes of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

_Stamp: TypeAlias = tuple[int, int, int] | None

_LAST_CHECKPOINT: Final = "_last_checkpoint"


class LogStamps:
    """The sizes, modification times and numbers of the files that a new reader of the table would read.

    Parameters
    ----------
    folder
        The table's ``_delta_log``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"{folder}/"
        self._stamps: dict[str, _Stamp] = {}

    def note(self, version: int) -> None:
        """Remember the files up to a version of the table, which has just been read."""
        names = set(self._names(version))
        self._stamps = {
            name: self._stamps[name] if name in self._stamps else _stamp(self._prefix + name) for name in sorted(names)
        }
        self._stamps[_LAST_CHECKPOINT] = _stamp(self._prefix + _LAST_CHECKPOINT)

    def forget(self) -> None:
        """Remember nothing: the table is read anew."""
        self._stamps = {}

    def are_unchanged(self) -> bool:
        """Return whether all files that were read are as they were; a `stat` for each since the last checkpoint.

        A checkpoint that was added since is no change.
        """
        return bool(self._stamps) and all(
            stamp == _stamp(self._prefix + name) for name, stamp in self._stamps.items() if name != _LAST_CHECKPOINT
        )

    def _names(self, version: int) -> Iterator[str]:
        checkpoint = -1
        try:
            checkpoint = int(json.loads((self._folder / _LAST_CHECKPOINT).read_bytes())["version"])
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            checkpoint = -1  # a reader does without it
        if checkpoint > version:
            checkpoint = -1
        if checkpoint >= 0:
            yield from (path.name for path in self._folder.glob(f"{checkpoint:020d}.checkpoint*.parquet"))
        yield from (f"{each:020d}.json" for each in range(checkpoint + 1, version + 1))


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)  # noqa: PTH116 - a hundred of them at every look: a Path costs three times as much
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino
