"""The check, when a run begins, that the checkpoint and everything that its query has written share one history.

A checkpoint that was put back, restored in part, or copied plans batches whose numbers its sinks may already have, for
other rows. Before a batch is planned, each mismatch is repaired or refused:

- A Delta table has a batch later than the newest that the checkpoint has planned: refused, with the version to restore.
- Such a table was restored to before those batches: the query goes on under a new name (`manifest.next_line`), because
  a restore leaves the table's transactions as they were.
- A table has forgotten the batch that will run again (``delta.setTransactionRetentionDuration``): the batch's
  transaction is committed again.
- Dead letters of undone batches lie inside the checkpoint: set aside. Records of undone batches: deleted, also where
  the checkpoint has other batches of their numbers.
- Dead letters of undone batches, or of another query, lie in a folder outside the checkpoint: refused. So is a folder
  with the mark of another query: the first that starts there leaves its own. A copy of a checkpoint has the name of its
  original, and is not told from it here.
- A function was given batches that the checkpoint does not know: refused.

A mismatch that cannot be seen here, for example in a table that only Spark can read, is found when that table's next
batch is committed (`checkpoint.batch_mark`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from spark_throttle.checkpoint.batch_mark import REMEDY, BatchMark
from spark_throttle.checkpoint.batch_records import FOLDER, forget_undone
from spark_throttle.checkpoint.manifest import Manifest, next_line, rename
from spark_throttle.checkpoint.offset_log import OffsetLog, batch_time_ms, read_offset_log
from spark_throttle.control.reports import newest_batch
from spark_throttle.control.run_fence import refuse_past
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.delta.table_log import (
    LaterBatches,
    append_batch,
    batches_beyond,
    identity_of_batch,
    open_table,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable


MARK: Final = "_throttle_query"
"""The file of the mark; readers of tables leave out names with an underscore."""

BATCH_FOLDER: Final = "batch="
"""Begins the name of the folder of a batch's dead letters."""

logger = logging.getLogger(__name__)

_RETENTION: Final = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sinks of a query and its checkpoint; they travel as JSON in the options of the control source."""

    checkpoint: str
    tables: tuple[tuple[str, str], ...] = ()
    """Delta tables: the suffix of the query's name in each one's transactions, and its location."""

    dead_letters: str | None = None
    """Location of the dead letters, if they have one folder per batch."""

    has_function: bool = False

    def to_json(self) -> str:
        """Return the sinks as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Sinks:
        """Return the sinks from their JSON."""
        fields = json.loads(text)
        tables = tuple((str(part), str(location)) for part, location in fields.pop("tables"))
        return cls(**fields, tables=tables)


def check_start(directory: Directory, manifest: Manifest, sinks: Sinks) -> Manifest:
    """Return the manifest for the run, after checking that every sink of the query belongs to its checkpoint.

    Raises
    ------
    CheckpointMismatchError
        If a sink does not belong to the checkpoint.
    ConfigurationError
        If the checkpoint has run no batch, but the control directory belongs to a query that has.
    """
    # Read before the log: a batch that has reported is in the log already, even while another run goes on.
    reported = newest_batch(directory)
    folders = [] if sinks.dead_letters is None else _batch_folders(sinks.dead_letters)
    checkpoint = Directory(sinks.checkpoint)
    log = read_offset_log(checkpoint)
    if log.logged < 0 and reported >= 0:
        refuse_past(directory)  # first, because dead letters that would be set aside may belong to another query
    beyond = [batch for batch in folders if batch > log.logged]
    letters = _letters_elsewhere(directory, sinks)
    if letters is not None:
        _check_letters(letters, manifest, beyond, log)
    if log.logged >= 0 and reported > log.logged and sinks.has_function:
        raise CheckpointMismatchError(
            "the function of this query",
            f"was given batches up to {reported}, and the checkpoint knows batches up to {log.logged}",
            f"the later numbers would be used again for other rows; restore the newer checkpoint, or undo what the "
            f"function did with those batches and remove their files below {directory.shown(FOLDER)}",
        )
    if log.logged >= 0:
        manifest = _checked_tables(directory, manifest, sinks.tables, checkpoint, log)
        undone = forget_undone(directory, log.logged, lambda batch: batch_time_ms(checkpoint, batch))
        if undone:
            logger.warning("the records of batches %d to %d, which were undone, are deleted", undone[0], undone[-1])
    if beyond and sinks.dead_letters is not None:
        _set_aside(sinks.dead_letters, beyond)
    if letters is not None:
        _mark_letters(letters, manifest.query)
    return manifest


def _letters_elsewhere(directory: Directory, sinks: Sinks) -> Directory | None:
    """Return the folder of dead letters if it is outside the control directory."""
    if sinks.dead_letters is None or file_system(sinks.dead_letters)[1].startswith(directory.path("")):
        return None
    return Directory(sinks.dead_letters)


def _check_letters(letters: Directory, manifest: Manifest, beyond: Sequence[int], log: OffsetLog) -> None:
    """Refuse a folder of dead letters of another query, or of batches that were undone.

    Raises
    ------
    CheckpointMismatchError
        If it is another query's, or has batches that the checkpoint does not know.
    """
    _refuse_others_letters(letters, manifest.query)
    if beyond:
        raise CheckpointMismatchError(
            f"the folder of dead letters {letters.location}",
            f"holds batches up to {max(beyond)}, and the checkpoint knows batches up to {log.logged} (-1: none)",
            "the later ones belong to batches that were undone, or to another query; move these folders away, or give "
            "this query a folder of its own, or restore the newer checkpoint",
        )


def _refuse_others_letters(folder: Directory, query: str) -> None:
    """Refuse a folder of dead letters that has the mark of another query.

    Raises
    ------
    CheckpointMismatchError
        If it has.
    """
    _refuse(folder, folder.read(MARK), query)


def _refuse(folder: Directory, found: bytes | None, query: str) -> None:
    if found is not None and found != _name(query):
        raise CheckpointMismatchError(
            f"the folder of dead letters {folder.location}",
            f"belongs to another query, by the mark {folder.shown(MARK)}: each of the two would replace what the other "
            f"rejects in a batch of the same number",
            "give this query a folder of its own; or, if the other one is gone, move all of the folder away",
        )


def _mark_letters(folder: Directory, query: str) -> None:
    """Leave the mark of a query in its folder of dead letters.

    Raises
    ------
    CheckpointMismatchError
        If another query left its own.
    """
    found = folder.read(MARK)
    if found is None:
        folder.write(MARK, _name(query))
        found = folder.read(MARK)  # another query may have written at the same time
    _refuse(folder, found, query)


def _name(query: str) -> bytes:
    """Return the name of a query in all its lines (`manifest.next_line`)."""
    return query.partition("-")[0].encode()


def _batch_folders(location: str) -> list[int]:
    files, root = file_system(location)
    found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    names = (info.base_name for info in found if info.type == fs.FileType.Directory)
    matches = (re.fullmatch(rf"{BATCH_FOLDER}(\d+)", name) for name in names)
    return sorted(int(match[1]) for match in matches if match is not None)


def _set_aside(location: str, batches: Sequence[int]) -> None:
    """Hide the dead letters of undone batches from readers, because their rows are decided again."""
    files, root = file_system(location)
    for batch in batches:
        folder = f"{root}/{BATCH_FOLDER}{batch}"
        logger.warning("dead letters in %s are set aside: batch %d was undone", folder, batch)
        found = files.get_file_info(fs.FileSelector(folder, recursive=True))
        # Named by the time of its newest file, because a batch may be undone more than once.
        newest_ns = max((info.mtime_ns or 0 for info in found), default=0)
        aside = f"{root}/.undone/{newest_ns}-{BATCH_FOLDER}{batch}"
        for info in found:
            if info.type == fs.FileType.File:
                target = f"{aside}/{info.path.removeprefix(folder).lstrip('/')}"
                files.create_dir(target.rpartition("/")[0], recursive=True)
                files.move(info.path, target)
        files.delete_dir(folder)


@dataclass(frozen=True, slots=True)
class _Table:
    """One Delta table of the query."""

    part: str
    location: str
    opened: DeltaTable

    def name(self, query: str) -> str:
        """Return the query's name in the table's transactions."""
        return f"{query}/{self.part}" if self.part else query

    def newest(self, query: str) -> int:
        """Return the newest batch of a query that the table's snapshot remembers; -1 if there is none."""
        found = self.opened.transaction_version(self.name(query))
        return -1 if found is None else int(found)

    @property
    def forgets(self) -> bool:
        """Whether the table's snapshot drops old transactions."""
        return _RETENTION in self.opened.metadata().configuration

    def beyond(self, query: str, batch: int, since_ms: int | None) -> LaterBatches:
        """Return what the table's log records about batches later than `batch`."""
        return batches_beyond(self.location, self.opened.version(), self.name(query), batch, since_ms=since_ms)

    def refused(self, problem: str, found: LaterBatches) -> _Refusal:
        """Return why a start over this table is refused, with the version to restore if the log shows it."""
        return _Refusal(self.location, problem, found.first_version - 1 if found.first_version else None)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a start over one table is refused."""

    location: str
    problem: str
    version: int | None
    """The version to restore; `None` where the log does not show it."""


def _raise_if_any(refusals: Sequence[_Refusal]) -> None:
    """Refuse the start, and name all tables at once, because all must be restored.

    Raises
    ------
    CheckpointMismatchError
        If there is a refusal.
    """
    if not refusals:
        return
    first, *others = refusals
    problem = "; ".join([first.problem, *(f"the Delta table {each.location} {each.problem}" for each in others)])
    restores = [
        f"RESTORE TABLE delta.`{each.location}` TO VERSION AS OF {each.version}"
        for each in refusals
        if each.version is not None
    ]
    remedy = f"{REMEDY} ({'; '.join(restores)}: if nobody else has written there since)" if restores else REMEDY
    raise CheckpointMismatchError(f"the Delta table {first.location}", problem, remedy)


def _opened(tables: Sequence[tuple[str, str]]) -> Iterator[_Table]:
    for part, location in tables:
        try:
            table = open_table(location)
        except (ImportError, ConfigurationError) as error:
            logger.info("the Delta table %s is checked only when batches are committed: %s", location, error)
            continue
        if table is not None:
            yield _Table(part, location, table)


def _checked_tables(
    directory: Directory,
    manifest: Manifest,
    locations: Sequence[tuple[str, str]],
    checkpoint: Directory,
    log: OffsetLog,
) -> Manifest:
    """Return the manifest, with a new name of the query if tables were restored together with the checkpoint."""
    query = manifest.query
    since_ms = batch_time_ms(checkpoint, log.committed)
    tables = list(_opened(locations))
    restored: list[_Table] = []
    with_batch: list[tuple[_Table, LaterBatches]] = []
    refusals: list[_Refusal] = []
    for table in tables:
        found = _looked_at(table, query, checkpoint, log, since_ms)
        if isinstance(found, _Refusal):
            refusals.append(found)
            continue
        if found.was_restored:
            restored.append(table)
        if found.newest is not None:
            with_batch.append((table, found))
    _raise_if_any(refusals)
    newest_line, line = query, next_line(query)
    while any(table.newest(line) >= 0 for table in tables):
        for table in (each for each in tables if each.newest(line) >= 0):
            found = table.beyond(line, -1, None)
            if found.newest is not None or not found.is_known:
                problem = f"has batches of {line}, the name under which this query went on after an earlier restore"
                refusals.append(table.refused(problem, found))
        _raise_if_any(refusals)
        newest_line, line = line, next_line(line)
    if not restored and newest_line == query:
        return manifest
    also = "which the checkpoint has not committed, and tables of the query were restored, so this one must also be"
    _raise_if_any(
        [
            table.refused(f"has batch {found.newest}, {also} restored to before that batch", found)
            for table, found in with_batch
        ]
    )
    logger.warning("the sinks were put back with the checkpoint: query %s continues as %s", query, line)
    return rename(directory, manifest, line)


def _looked_at(
    table: _Table, query: str, checkpoint: Directory, log: OffsetLog, since_ms: int | None
) -> LaterBatches | _Refusal:
    """Return what a table's log shows beyond the committed batches, or why the start is refused.

    The log is read only if there may be any such batch.
    """
    newest = table.newest(query)
    if newest <= log.committed and not table.forgets:
        return LaterBatches()
    found = table.beyond(query, log.committed, since_ms)
    if not found.is_known:
        if newest > log.logged or found.was_restored:
            problem = f"has batches up to {newest} of this query, and the checkpoint knows batches up to {log.logged}"
            return table.refused(f"{problem}; its log does not say which of them a restore took out", found)
        if table.forgets and newest < log.logged and log.uncommitted is not None:
            raise CheckpointMismatchError(
                f"the Delta table {table.location}",
                f"forgets transactions ({_RETENTION}), its log no longer goes back to batch {log.logged}, and that "
                f"batch is not committed (planned at {batch_time_ms(checkpoint, log.logged)} ms)",
                f"check whether its rows are in the table; if they are, append an empty batch with txnAppId "
                f"{table.name(query)!r} and txnVersion {log.logged}; in either case, before the next start, unset the "
                f"property or make its duration longer than any downtime of the query",
            )
        return LaterBatches()
    if found.newest is not None and found.newest > log.logged:
        problem = f"has batch {found.newest} of this query, and the checkpoint knows batches up to {log.logged}"
        return table.refused(problem, found)
    if found.was_restored and found.is_short:
        problem = f"was restored to before batches that the checkpoint has committed (up to {log.committed})"
        return table.refused(problem, found)
    if found.newest is not None and newest < found.newest:
        _remind(table, query, found.newest)
    return found


def _remind(table: _Table, query: str, batch: int) -> None:
    """Commit a batch's transaction again, without rows, because the table's snapshot has forgotten it."""
    name = table.name(query)
    identity = identity_of_batch(table.location, table.opened.version(), name, batch)
    logger.warning(
        "the Delta table %s has forgotten batch %d, which its log has: the batch's transaction is committed again",
        table.location,
        batch,
    )
    append_batch(table.opened, table.location, BatchMark(name, batch, identity or ""), [])
