"""What is damaged in a Delta table: the file, and what is wrong with it.

delta-rs says neither which file it could not read, nor whether a second attempt could help; and it takes a commit for
whole that was cut off after a line. A commit is moved into place whole, so a file of the log that is not what its
writer says it is will never be, and no attempt helps.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_throttle.store.delta.table_files import LOG, TableFiles

RESTORE_TABLE: Final = "restore it from a backup of the store"
"""The remedy for a damaged table."""

APP: Final = "spark-throttle-policies"
"""Application id in Delta's log; the versions of its transactions are the revisions of the store."""

REVISION_KEY: Final = "policyRevision"
"""Key of the revision in the facts of a commit."""

_COMMIT = re.compile(rf"{LOG}/(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{LOG}/(\d{{20}})\.checkpoint.*\.parquet")
_LAST_CHECKPOINT: Final = f"{LOG}/_last_checkpoint"
_SAID = re.compile(
    r"Json error|Expected contiguous commit files|No table metadata|protocol found in delta log|Invalid Checkpoint|"
    r"[Pp]arquet (argument )?error|magic bytes|deserialize thrift|[Cc]orrupt|Unexpected end of stream|non.?UTF-?8|"
    r"^revision \d+ of \d+ is missing"
)
"""What delta-rs and Arrow say of a file that they have read and cannot understand, and `rows` of a hole."""

_UNREACHED = re.compile(r"Generic (?!delta)\w+ error|error sending request|timed out|Connection")
_COUNTED: Final = {"num_added_files": "add", "numFilesAdded": "add", "numFilesRemoved": "remove"}
"""Facts of a commit that say how many of its lines are of a kind."""


def is_damage(message: str) -> bool:
    """Return whether an error of delta-rs or Arrow is about what a file holds, and not about how to reach it."""
    return _SAID.search(message) is not None and not is_unreached(message)


def is_unreached(message: str) -> bool:
    """Return whether an error of delta-rs or Arrow is about how to reach an object store."""
    return _UNREACHED.search(message) is not None


def damage_of_log(files: TableFiles) -> str | None:
    """Return what is damaged in a table's log; `None` if nothing is found, or if the files cannot be read.

    Only what a new reader reads is looked at: the newest checkpoint, and the commits since.
    """
    try:
        sizes = files.sizes_bytes(LOG)
        checkpoints = {path: int(match[1]) for path in sizes if (match := _CHECKPOINT.fullmatch(path))}
        newest = max(checkpoints.values(), default=-1)
        for path in sorted(path for path, version in checkpoints.items() if version == newest):
            problem = _problem_of_parquet(files, path)
            if problem is not None:
                return f"the checkpoint {files.shown(path)} of its log {problem}"
        versions = sorted(int(match[1]) for path in sizes if (match := _COMMIT.fullmatch(path)))
        for expected, version in enumerate((each for each in versions if each > newest), newest + 1):
            if version != expected:
                return f"its log has no file {files.shown(named_commit(expected))}, and later ones"
            problem = damage_of_commit(files, version)
            if problem is not None:
                return problem
        return _damage_of_hint(files, newest)
    except OSError:
        return None


def damage_of_commit(files: TableFiles, version: int) -> str | None:
    """Return what is damaged in the commit of one version of the table; `None` if nothing is, or if it has no file.

    Delta removes the files of commits that a checkpoint replaces.
    """
    content = files.read(named_commit(version))
    problem = None if content is None else _problem_of(content, is_first=version == 0)
    return None if problem is None else f"the file {files.shown(named_commit(version))} of its log {problem}"


def damage_of_sizes(table: DeltaTable, files: TableFiles) -> str | None:
    """Return which file of a table has another size than was written; `None` if all have theirs."""
    found = files.row_files()
    for path, size_bytes in _written(table).items():
        if found.get(path, 0) != size_bytes:
            return f"its file {files.shown(path)} has {found.get(path, 0)} of the {size_bytes} bytes that were written"
    return None


def undecodable(table: DeltaTable, files: TableFiles, said: str) -> str | None:
    """Return the path of a file of a table that cannot be decoded; `None` if all can, or cannot be reached.

    Parameters
    ----------
    said
        The error that somebody met; files that it names are looked at first.
    """
    try:
        return next((path for path in _by_mention(table, said) if damage_of_parquet(table, files, path)), None)
    except OSError:
        return None


def damage_of_parquet(table: DeltaTable, files: TableFiles, path: str) -> str | None:
    """Return what is wrong with a file of a table; `None` if nothing is, or if the table does without that file."""
    problem = _problem_of_parquet(files, path) if path in _written(table) else None
    return None if problem is None else f"its file {files.shown(path)} {problem}"


def _by_mention(table: DeltaTable, said: str) -> list[str]:
    return sorted(_written(table), key=lambda path: (path not in said, path))


def _written(table: DeltaTable) -> dict[str, int]:
    adds = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(map(unquote, adds["path"].to_pylist()), adds["size_bytes"].to_pylist(), strict=True))


def named_commit(version: int) -> str:
    """Return the path of the commit of one version of a table."""
    return f"{LOG}/{version:020d}.json"


def _damage_of_hint(files: TableFiles, newest_checkpoint: int) -> str | None:
    try:
        version = int(json.loads(files.read(_LAST_CHECKPOINT) or b"")["version"])
    except (ValueError, KeyError, TypeError):
        return None  # a reader does without it
    if version <= newest_checkpoint:
        return None
    return (
        f"the file {files.shown(_LAST_CHECKPOINT)} of its log names the checkpoint of version {version}, and "
        f"{files.shown(f'{LOG}/{version:020d}.checkpoint.parquet')} is not there"
    )


def _problem_of_parquet(files: TableFiles, path: str) -> str | None:
    content = files.read(path)
    if not content:
        return "is empty" if content is not None else "is not there"
    try:
        pq.ParquetFile(pa.BufferReader(content)).read().validate(full=True)
    except (pa.ArrowException, OSError) as error:
        return f"is cut off or altered: {str(error).partition(chr(10))[0].strip()}"
    return None


def _problem_of(content: bytes, *, is_first: bool) -> str | None:
    if not content.strip():
        return "is empty"
    actions: list[Mapping[str, Any]] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            action = json.loads(line)
        except ValueError:
            return f"is cut off or altered: its line {number} is not JSON"
        if not isinstance(action, dict):
            return f"is altered: its line {number} is no action of Delta"
        actions.append(action)
    counts = Counter(key for action in actions for key in action)
    if is_first:
        is_whole = counts["metaData"] and counts["protocol"]
        return None if is_whole else "is cut off: it does not say what the table is"
    return _problem_of_facts(actions, counts)


def _problem_of_facts(actions: list[Mapping[str, Any]], counts: Counter[str]) -> str | None:
    """Return what a commit lacks of what it says that it does."""
    found = (action.get("commitInfo") for action in actions)
    facts: Mapping[str, Any] = next((each for each in found if isinstance(each, dict)), {})
    metrics = facts.get("operationMetrics")
    for name, kind in _COUNTED.items():
        said = metrics.get(name) if isinstance(metrics, dict) else None
        if isinstance(said, int) and said != counts[kind]:
            return f"is cut off or altered: it says that it has {said} lines '{kind}', and it has {counts[kind]}"
    revision = facts.get(REVISION_KEY)
    transactions = [action["txn"] for action in actions if isinstance(action.get("txn"), dict)]
    committed = {str(each.get("version")) for each in transactions if each.get("appId") == APP}
    if revision is not None and committed != {str(revision)}:
        return f"is cut off or altered: it says that it is revision {revision}, and does not commit it"
    return None
