"""The feeds of a reference stream: a folder of Parquet files, oldest first, and a Delta table, commit by commit.

A file of a folder must appear whole, by a rename, and never change: a folder has no log that would tell. The values of
partition columns are read from the names of folders (``day=mon/``); other folders are not read. Names that begin with a
dot are hidden, and those that begin with an underscore and name no partition. All of this is as Spark has it.

A Delta table brings the files of its snapshot when the stream began, then those that each commit adds. Its log is read
without a JVM. The position holds the version that is being read, and how many of its files were brought. As with
Spark's own source, a commit that deletes or rewrites rows ends the query with an error, unless the commit only
rearranges them (``dataChange`` is false); so does a commit that changes the columns while the query runs, because the
query would leave the new ones out. The position holds a digest of the table's identity too: a query that goes on with
another table of the same place, whose versions begin anew, would leave out the first of them.

A reference is a place in a data file, so what a file holds must be what the table holds: no deletion vectors, no mapped
columns. A table of any other kind is read by Spark's own source, and its rows are staged.

Source: "Add File and Remove File" and "Reader Requirements" of the Delta protocol.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from spark_throttle.errors import SourceChangedError
from spark_throttle.files.storage import Directory, file_system, one_line
from spark_throttle.spark.delta.table_log import table_at
from spark_throttle.spark.references.extents import FileFeed, FoundFile, Position, written_ms
from spark_throttle.spark.rows.partition_names import NO_VALUE, PARTITION_TYPES

if TYPE_CHECKING:
    from deltalake import DeltaTable


_BEGUN: Final = "._COPYING_"
"""The end of the names under which Hadoop's shell copies files."""

_LOG: Final = "_spark_metadata"

_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that leave a data file as plain Parquet."""

_MAPPING: Final = "delta.columnMapping.mode"
_FIRST_WITH_MAPPING: Final = 2
_OF_A_TYPE: Final = ("name", "type", "fields", "elementType", "keyType", "valueType")

_RESTART: Final = "start the query with a new checkpoint, after its waiting rows have left"
_OTHER_TABLE: Final = (
    "put the query's table back, or start with a new checkpoint, after the waiting rows have been read with read_queued"
)
_START_AGAIN: Final = "start the query again, which then has the new columns"

_SKIP: Final = (
    "start the query with option('skipChangeCommits', 'true') on its source, which leaves such commits out as a whole, "
    "or with a new checkpoint"
)


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
            listed.append(FoundFile(path, info.size, written_ms(info), values_in_path(path)))
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


def values_in_path(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return the values of the partition columns that the folders of a path name.

    Examples
    --------
    >>> values_in_path("day=mon/kind=a%2Fb/part-0.parquet")
    (('day', 'mon'), ('kind', 'a/b'))
    """
    *folders, _ = path.split("/")
    pairs = (folder.partition("=") for folder in folders)
    return tuple(
        (unquote(column), None if value == NO_VALUE else unquote(value)) for column, mark, value in pairs if mark
    )


def reading_problem(table: DeltaTable) -> str | None:
    """Return why a table's data files are not what the table holds; `None` if they are."""
    protocol, properties = table.protocol(), table.metadata().configuration
    if properties.get(_MAPPING, "none") != "none":
        return f"the table's columns are mapped ({_MAPPING})"
    others = sorted(set(protocol.reader_features or ()) - _FEATURES)
    if others:
        return f"the table has the feature {others[0]!r}, which its readers must know"
    if protocol.min_reader_version > _FIRST_WITH_MAPPING and protocol.reader_features is None:
        return f"the table's readers must be of version {protocol.min_reader_version}"
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    for column in table.metadata().partition_columns:
        if types[column] not in PARTITION_TYPES:
            return f"the table's partition column {column!r} is {types[column]}"
    paths = pa.table(table.get_add_actions()).column("path")
    if any(map(is_elsewhere, paths.to_pylist())):
        return "it has files in another place, as a shallow clone has"
    return None


def is_elsewhere(path: str) -> bool:
    """Return whether the path of a file in a table's log does not begin at the table.

    Examples
    --------
    >>> is_elsewhere("file:/lake/a.parquet"), is_elsewhere("/lake/a.parquet"), is_elsewhere("at=10%3A00/a.parquet")
    (True, True, False)
    """
    return path.startswith("/") or ":" in path.partition("/")[0]


def columns_of(schema: str) -> str:
    """Return the names and types of a schema's columns, given as JSON in the form that Delta and Spark share.

    Examples
    --------
    >>> columns_of('{"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}')
    '{"fields": [{"name": "id", "type": "long"}], "type": "struct"}'
    """
    return json.dumps(_bare(json.loads(schema)), sort_keys=True)


def _bare(node: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if isinstance(node, dict):
        return {key: _bare(value) for key, value in node.items() if key in _OF_A_TYPE}
    return node


class DeltaFeed:
    """The files of a Delta table.

    Parameters
    ----------
    root
        The location of the table.
    most_files
        The most files of a batch.
    starting_version
        The first version whose files are brought; `None` begins with the table as it is.
    columns
        The columns of the stream (`columns_of`), which those of the table must be; `None` to compare none.
    skips_changes
        Whether a commit that deletes or rewrites rows is left out, as a whole, instead of ending the query.
    """

    def __init__(
        self,
        root: str,
        most_files: int,
        starting_version: int | None = None,
        columns: str | None = None,
        *,
        skips_changes: bool = False,
    ) -> None:
        self._root = root
        self._most_files = most_files
        self._starting_version = starting_version
        self._columns = columns
        self._skips_changes = skips_changes
        self._compared: int | None = None
        self._table = 0
        self._log = Directory(f"{root.rstrip('/')}/_delta_log")
        self._last_version: int | None = None
        self._read: tuple[int, bool, list[FoundFile]] | None = None

    def next_files(self, position: Position, known: set[str]) -> tuple[list[FoundFile], Position]:
        """Return the files of the next batch in their order, and where the feed then goes on.

        Raises
        ------
        SourceChangedError
            If a commit changed rows that are there already, or the table so that its files cannot be read; or if it
            is another table than that of the position.
        """
        del known  # a table may bring a file again, if it was restored after a deletion that is left out
        if self._compared is None:
            self._compared, self._table = self._newest()
            self._check_reading(self._compared)
        if not position:
            position = self._first()
        if position["table"] != self._table:
            self._refuse(self._compared, "it is of another table, which took the place of the query's", _OTHER_TABLE)
        found: list[FoundFile] = []
        while len(found) < self._most_files:
            version, taken, is_snapshot = position["version"], position["taken"], bool(position["is_snapshot"])
            files = self._files_of(version, is_snapshot=is_snapshot)
            if files is None:
                break
            wanted = _new_in_batch(found, files[taken : taken + self._most_files - len(found)])
            found += wanted
            taken += len(wanted)
            if taken < len(files):
                return found, self._position(version, taken, is_snapshot=is_snapshot)
            position = self._position(version + 1)
        return found, position

    def stop_at_newest(self) -> None:
        """Find no file of a version that is committed from now on."""
        self._last_version, _ = self._newest()

    def to_fields(self) -> dict[str, Any]:
        """Return the feed's settings as JSON values."""
        return {
            "kind": "delta",
            "root": self._root,
            "most_files": self._most_files,
            "starting_version": self._starting_version,
            "columns": self._columns,
            "skips_changes": self._skips_changes,
        }

    def _first(self) -> Position:
        if self._starting_version is not None:
            return self._position(self._starting_version)
        newest = self._newest()[0] if self._last_version is None else self._last_version
        return self._position(newest, is_snapshot=True)

    def _position(self, version: int, taken: int = 0, *, is_snapshot: bool = False) -> Position:
        return {"version": version, "taken": taken, "is_snapshot": int(is_snapshot), "table": self._table}

    def _newest(self) -> tuple[int, int]:
        """Return the newest version of the table, and a digest of the table's identity."""
        table = table_at(self._root)
        identity = hashlib.sha256(str(table.metadata().id).encode()).digest()
        return int(table.version()), int.from_bytes(identity[:6])

    def _files_of(self, version: int, *, is_snapshot: bool) -> list[FoundFile] | None:
        """Return the files that a version brings; `None` if there is no such version yet."""
        if self._read is not None and self._read[:2] == (version, is_snapshot):
            return self._read[2]
        if self._last_version is not None and version > self._last_version:
            return None
        files = self._snapshot(version) if is_snapshot else self._commit(version)
        if files is not None:
            self._read = (version, is_snapshot, files)
        return files

    def _snapshot(self, version: int) -> list[FoundFile]:
        table = table_at(self._root, version)
        problem = reading_problem(table)
        if problem is not None:
            raise SourceChangedError(f"the Delta table {self._root}", problem, _RESTART)
        columns = table.metadata().partition_columns
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        found = [
            (row["modification_time"], row["path"], int(row["size_bytes"]), _written_values(row, columns))
            for row in rows
        ]
        return [FoundFile(unquote(path), size, 0, values) for _, path, size, values in sorted(found)]

    def _commit(self, version: int) -> list[FoundFile] | None:
        content = self._log.read(f"{version:020}.json")
        if content is None:
            if version < self._oldest_version():
                problem = f"its log no longer has version {version}"
                raise SourceChangedError(f"the Delta table {self._root}", problem, _RESTART)
            return None
        found = []
        actions = [json.loads(line) for line in content.splitlines()]
        if any(_changes_rows(action) for action in actions):
            if not self._skips_changes:
                self._refuse(version, "it deletes or rewrites rows", _SKIP)
            actions = [action for action in actions if "add" not in action]
        for action in actions:
            if "add" in action and action["add"].get("dataChange", True):
                add = action["add"]
                if is_elsewhere(add["path"]):
                    self._refuse(version, "it adds a file in another place")
                values = tuple(sorted((add.get("partitionValues") or {}).items()))
                found.append(FoundFile(unquote(add["path"]), int(add["size"]), 0, values))
            elif "metaData" in action or "protocol" in action:
                self._check_reading(version)
        return found

    def _check_reading(self, version: int) -> None:
        from deltalake.exceptions import DeltaError

        columns = None
        try:
            table = table_at(self._root, version)
            problem, columns = reading_problem(table), columns_of(table.schema().to_json())
        except DeltaError as error:
            problem = f"it cannot be read without Spark ({one_line(error)})"
        if problem is not None:
            self._refuse(version, f"since it, {problem}")
        # What was changed before the query started is in its columns, or Spark's own source would have said so.
        is_new = self._compared is None or version >= self._compared
        if is_new and self._columns is not None and columns != self._columns:
            self._refuse(version, "since it, its columns are others than the query's", _START_AGAIN)

    def _refuse(self, version: int, problem: str, remedy: str = _RESTART) -> None:
        raise SourceChangedError(f"version {version} of the Delta table {self._root}", problem, remedy)

    def _oldest_version(self) -> int:
        names = (name.partition(".") for name in self._log.names(""))
        return min((int(number) for number, _, kind in names if kind == "json" and number.isdigit()), default=0)


def _new_in_batch(found: list[FoundFile], files: list[FoundFile]) -> list[FoundFile]:
    """Return the files up to the first that the batch has already: rows are looked up by the path of their file."""
    paths = {file.path for file in found}
    return list(takewhile(lambda file: file.path not in paths, files))


def _changes_rows(action: dict[str, Any]) -> bool:
    """Return whether an action of a commit takes rows away."""
    removed, added = action.get("remove"), action.get("add")
    takes_away = removed is not None and removed.get("dataChange", True)
    return takes_away or (added is not None and bool(added.get("deletionVector")) and added.get("dataChange", True))


def _written_values(row: dict[str, Any], columns: list[str]) -> tuple[tuple[str, str | None], ...]:
    found = ((column, row[f"partition.{column}"]) for column in sorted(columns))
    return tuple((column, None if value is None else _written(value)) for column, value in found)


def _written(value: Any) -> str:  # noqa: ANN401 - what deltalake makes of a partition's value
    return str(value).lower() if isinstance(value, bool) else str(value)


def open_feed(fields: Mapping[str, Any]) -> FileFeed:
    """Return the feed of the settings that its `to_fields` returned."""
    if fields["kind"] == "delta":
        settings = (fields[name] for name in ("root", "most_files", "starting_version", "columns"))
        return DeltaFeed(*settings, skips_changes=fields["skips_changes"])
    return FolderFeed(fields["root"], fields["most_files"])
