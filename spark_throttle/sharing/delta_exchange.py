"""An exchange in a Delta table is for those who have no other shared storage: each object is a row and a partition.

Jobs replace different partitions, so their commits do not conflict in substance; where two do conflict, one job tries
again. A job opens the table once per visit, and reads all objects as they were then.

Nobody needs the table's history. The job whose commit has a round number writes a checkpoint, so that the table opens
quickly, or removes old log entries and files. The number is in the log: so each round falls to one job, however often
jobs restart. What was replaced less than ten minutes ago stays, for those who still read it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

logger = logging.getLogger(__name__)

_SCHEMA: Final = pa.schema([("name", pa.string()), ("content", pa.binary())])
_ATTEMPTS: Final = 20
"""The number of attempts at a commit; each attempt that loses a race loses it to a commit that won."""

_COMMITS_A_CHECKPOINT: Final = 20
_COMMITS_A_CLEANING: Final = 200

_PROPERTIES: Final = {
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    "delta.checkpointInterval": str(_COMMITS_A_CHECKPOINT),
}
"""Properties of the table. Without them its log is kept for 30 days, and ten jobs add two entries per second."""

_STRAY_HOURS: Final = 1
"""How old a file must be that no log entry names: it may belong to a commit that is under way."""

_AHEAD_NS: Final = 1_800 * 10**9
"""How far a clock may be ahead of the storage's for its job to remove anything: half a stray file's time."""

_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""By default each commit lists the whole log; and if a checkpoint cannot be written, a commit that is done fails."""


class DeltaExchange:
    """Objects as rows of a Delta table. For use by one thread.

    Parameters
    ----------
    location
        The table's path or URI; it is created by the first write.
    clock_ns
        The clock of this machine, by which files are old.
    """

    reads_at_once = 1

    def __init__(
        self,
        location: str,
        clock_ns: Callable[[], int] = time.time_ns,  # noqa: TID251 - it is compared with the files' modification times
    ) -> None:
        self._location = location
        self._clock_ns = clock_ns
        self._unread: dict[str, ds.Fragment] = {}
        """By name, the files that `names` found and nobody has read since."""

    # ------------------------------------------------------------------------------------------------------ reading

    def names(self) -> list[str]:
        """Return the names of all objects; the next `read` of each returns what the table holds now."""
        self._unread = self._files()
        return sorted(self._unread)

    def read(self, name: str) -> bytes | None:
        """Return an object; `None` where there is none.

        The first read of a name that `names` returned is of the table as `names` found it. Any other looks again: after
        a write or a deletion of this job's, at a second read, or if the name is new or its file is gone.
        """
        found = self._unread.pop(name, None)
        if found is not None:
            try:
                return _content(found)
            except FileNotFoundError:
                pass  # the object was replaced so long ago that its file has been removed
        found = self._files().get(name)
        return None if found is None else _content(found)

    def _files(self) -> dict[str, ds.Fragment]:
        """Return the data file of every object."""
        table = self._opened()
        files = () if table is None else table.to_pyarrow_dataset().get_fragments()
        return {ds.get_partition_keys(file.partition_expression)["name"]: file for file in files}

    def _opened(self) -> DeltaTable | None:
        """Return the table as it is now; `None` if there is none.

        It is opened anew: to update a table that was opened before is quicker, but fails once the table has been
        removed and created again, or does not notice that it was removed.
        """
        try:
            return DeltaTable(self._location)
        except TableNotFoundError:
            return None

    # ------------------------------------------------------------------------------------------------------ writing

    def write(self, name: str, content: bytes) -> None:
        """Replace an object's row."""
        row = pa.table({"name": [name], "content": [content]}, schema=_SCHEMA)
        self._change(
            lambda table: write_deltalake(
                table, row, mode="overwrite", predicate=_is_of(name), post_commithook_properties=_NO_HOOKS
            )
        )

    def delete(self, name: str) -> None:
        """Remove an object's row; a missing object is no error."""
        if name in self._files():
            self._change(lambda table: table.delete(_is_of(name), post_commithook_properties=_NO_HOOKS))

    def _change(self, change: Callable[[DeltaTable], object]) -> None:
        """Commit a change, and do what the number of the commit calls for."""
        self._unread = {}
        table = self._committed(change)
        version = table.version()
        try:
            if version % _COMMITS_A_CLEANING == 0:
                self._clean()
            elif version % _COMMITS_A_CHECKPOINT == 0:
                table.create_checkpoint()
        except Exception as error:  # noqa: BLE001 - the change itself is committed, and the next round number comes
            logger.warning(
                "exchange: %s: old entries of the table's log could not be removed: %s: %s",
                self._location, type(error).__name__, error,
            )  # fmt: skip

    def _committed(self, change: Callable[[DeltaTable], object]) -> DeltaTable:
        """Return the table after a change.

        A table that is not there is created first, by a commit of its own. So a change always has a predicate, and two
        jobs that create the table at once keep each other's objects.
        """
        lost = 0
        while True:
            try:
                table = self._opened() or self._created()
                change(table)
            except CommitFailedError:
                lost += 1
                if lost == _ATTEMPTS:
                    raise
            else:
                return table

    def _created(self) -> DeltaTable:
        return DeltaTable.create(
            self._location, _SCHEMA, mode="ignore", partition_by=["name"], configuration=_PROPERTIES
        )

    def _clean(self) -> None:
        """Remove old log entries and old files.

        Clocks of machines may differ by any amount. By one that is far ahead of the storage's, a file would be old
        before it is committed: then the work is left to the other jobs.
        """
        table = DeltaTable(self._location)
        table.create_checkpoint()
        ahead_ns = self._clock_ns() - _committed_ns(table)
        if ahead_ns > _AHEAD_NS:
            logger.warning(
                "exchange: %s: this machine's clock is %d s ahead of the storage's: it removes no old files; set it",
                self._location, ahead_ns // 10**9,
            )  # fmt: skip
            return
        table.cleanup_metadata()
        table.vacuum(
            retention_hours=_STRAY_HOURS,
            full=True,  # also files of commits that lost a race, and of jobs that died before they committed
            dry_run=False,
            enforce_retention_duration=False,
            post_commithook_properties=_NO_HOOKS,
        )


def _content(file: ds.Fragment) -> bytes | None:
    """Return the object in a data file; `None` where it has no row."""
    rows = file.to_table(columns=["content"])
    return bytes(rows["content"][0].as_buffer()) if len(rows) else None


def _committed_ns(table: DeltaTable) -> int:
    """Return when the table's last commit was written, by the storage's clock."""
    (entry,) = table.to_pyarrow_dataset().filesystem.get_file_info([f"_delta_log/{table.version():020d}.json"])
    written_ns: int = entry.mtime_ns
    return written_ns


def _is_of(name: str) -> str:
    """Return the predicate of an object's rows."""
    quoted = name.replace("'", "''")
    return f"name = '{quoted}'"
