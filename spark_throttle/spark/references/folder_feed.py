"""The feed of a folder of Parquet files: every file that appears there, oldest first, as Spark's file source has it.

A file must appear whole, by a rename, and never change: a folder has no log that would tell. The values of partition
columns are read from the names of folders (``day=mon/``); other folders are not read. Names that begin with a dot are
hidden, and those that begin with an underscore and name no partition. All of this is as Spark has it.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from pyarrow import fs

from spark_throttle.files.storage import file_system
from spark_throttle.spark.references.extents import Position
from spark_throttle.spark.references.file_feed import FoundFile, written_ms

_BEGUN: Final = "._COPYING_"
"""The end of the names under which Hadoop's shell copies files."""

_LOG: Final = "_spark_metadata"
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


class FolderFeed:
    """The files of a folder.

    Parameters
    ----------
    root
        The folder.
    most_files
        The most files of a batch; `None` for no bound.
    """

    def __init__(self, root: str, most_files: int | None) -> None:
        self._root = root
        self._most_files = most_files
        self._files, self._path = file_system(root)
        self._at_end: list[FoundFile] | None = None

    def next_files(self, position: Position, known: set[str]) -> tuple[list[FoundFile], Position]:
        """Return the files of the next batch in their order, and where the feed then goes on."""
        found = self._listed() if self._at_end is None else self._at_end
        new = [file for file in found if file.path not in known]
        return new[: self._most_files], position

    def stop_at_newest(self) -> None:
        """Find no file that appears from now on."""
        self._at_end = self._listed()

    def to_fields(self) -> dict[str, Any]:
        """Return the feed's settings as JSON values."""
        return {"kind": "folder", "root": self._root, "most_files": self._most_files}

    def _listed(self) -> list[FoundFile]:
        """Return all files of the folder, oldest first."""
        selector = fs.FileSelector(self._path, recursive=True, allow_not_found=True)
        start = len(self._path.rstrip("/")) + 1
        listed = []
        for info in self._files.get_file_info(selector):
            path = info.path[start:]
            is_begun = info.type == fs.FileType.File and info.size > 0
            if not is_begun or not _is_read(path):
                continue
            listed.append(FoundFile(path, info.size, written_ms(info), partition_values(path)))
        return sorted(listed, key=lambda file: (file.modified_ms, file.path))


def folder_problem(root: str) -> str | None:
    """Return why the files below a root are not all that count; `None` if they are."""
    files, path = file_system(root)
    folder, log = files.get_file_info([path, f"{path.rstrip('/')}/{_LOG}"])
    if folder.type == fs.FileType.File:
        return "the source's path is a file, not a folder"
    if log.type != fs.FileType.NotFound:
        return f"the folder was written by a stream, whose log ({_LOG}) says which files count"
    return None


def _is_read(path: str) -> bool:
    """Return whether Spark's file source reads a file at a path.

    Examples
    --------
    >>> [_is_read(path) for path in ("_day=1/a", "day=1/_a", "day=1/.b=2/a", "staging/a", "a._COPYING_")]
    [True, False, False, False, False]
    """
    *folders, name = path.split("/")
    is_hidden = any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in (*folders, name))
    return not is_hidden and not name.endswith(_BEGUN) and all("=" in folder for folder in folders)


def partition_values(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return the values of the partition columns that the folders of a path name.

    Examples
    --------
    >>> partition_values("day=mon/kind=a%2Fb/part-0.parquet")
    (('day', 'mon'), ('kind', 'a/b'))
    """
    *folders, _ = path.split("/")
    pairs = (folder.partition("=") for folder in folders)
    return tuple(
        (unquote(column), None if value == _NO_VALUE else unquote(value)) for column, mark, value in pairs if mark
    )
