"""Whether a Delta table is all that was committed to it: what is looked at, when, and what an error then says.

Nothing is read twice for it. Every new version costs a look at its newest commit and at the mark of the newest
revision, both small files, and one at the list of files that delta-rs holds in memory. Everything else is read once
delta-rs or Arrow has failed, to name the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_throttle.errors import DamagedError, OutcomeUnknownError, StoreUnavailableError, ThrottleError
from spark_throttle.remedies import Remedy
from spark_throttle.store.delta.kept_commits import keep_commit
from spark_throttle.store.delta.log_damage import (
    APP,
    RESTORE_TABLE,
    damage_of_commit,
    damage_of_log,
    damage_of_parquet,
    damage_of_sizes,
    is_damage,
    is_unreached,
    undecodable,
)
from spark_throttle.store.delta.newest_mark import MARK, read_mark, write_mark
from spark_throttle.store.delta.table_files import LOG, TableFiles

logger = logging.getLogger(__name__)


class TableChecks:
    """The checks of one table; safe for use by the threads that share its `DeltaStore`'s lock.

    Parameters
    ----------
    location
        Name of the store in messages.
    opened
        Opens the table anew.
    """

    def __init__(self, location: str, files: TableFiles, opened: Callable[[], DeltaTable]) -> None:
        self._location = location
        self._files = files
        self._opened = opened
        self._passed: tuple[int, int] | None = None
        """Version and revision that were last found whole."""

        self._listed_version = -1
        """Version of a table on an object store whose files were last found there."""

        self._unreadable: str | None = None
        """Path of a file that could not be decoded when it was last read."""

    def forget(self) -> None:
        """Look at the newest commit again, though its version is known: its file is another."""
        self._passed = None

    def check_newest(self, table: DeltaTable, newest: int) -> None:
        """Refuse a table that lacks the end of what was committed, or a revision since its newest snapshot.

        Parameters
        ----------
        newest
            Its newest revision, by its log.

        Raises
        ------
        DamagedError
            If it does.
        """
        looked_at = (table.version(), newest)
        if looked_at != self._passed:
            problem = damage_of_commit(self._files, table.version())
            if problem is not None:
                raise self.damaged(problem)
            self._check_mark(newest)
        changes, snapshot = _revisions_in(table)
        highest = max((last for _, last in changes or ()), default=newest)
        if highest > newest:
            raise self.damaged(
                damage_of_log(self._files)
                or f"it has rows of revision {highest}, and its log {self._files.shown(LOG)} ends with {newest}: the "
                f"end of a commit is missing"
            )
        self._check_gap(changes, snapshot, newest)
        self._passed = looked_at

    def check_whole(self, table: DeltaTable, newest: int) -> None:
        """Refuse a table that lacks a revision of its history, or a file that its log names.

        Raises
        ------
        DamagedError
            If it does.
        """
        self._check_gap(_revisions_in(table)[0], 0, newest)
        self.check_files(table)
        if self._unreadable is not None:
            damage = damage_of_parquet(table, self._files, self._unreadable)
            if damage is not None:
                raise self.damaged(damage)
            self._unreadable = None

    def check_files(self, table: DeltaTable) -> None:
        """Refuse a table with a file that is cut off or gone.

        Raises
        ------
        DamagedError
            If it has one.
        """
        if not self._files.is_on_disk and table.version() == self._listed_version:
            return
        damage = damage_of_sizes(table, self._files)
        if damage is not None:
            raise self.damaged(damage)
        self._listed_version = table.version()

    def keep(self, version: int, revision: int) -> None:
        """Have the disk keep a commit that was made, and note its revision.

        That it cannot be noted makes a later loss harder to notice, and no more.

        Raises
        ------
        OutcomeUnknownError
            If the disk does not say that it keeps the commit.
        """
        try:
            keep_commit(self._files, version)
        except (OSError, ValueError) as error:
            raise OutcomeUnknownError(self._location, revision, str(error)) from error
        try:
            write_mark(self._files, revision)
        except (DeltaError, OSError, pa.ArrowException) as error:
            logger.warning(
                "%s: revision %d was committed, and could not be noted in %s, so that nobody would notice if it got "
                "lost: %s", self._location, revision, self._files.shown(MARK), error,
            )  # fmt: skip

    def error_of(self, said: str, table: DeltaTable | None) -> ThrottleError:
        """Return what an error of delta-rs or Arrow means.

        Parameters
        ----------
        table
            The table, if it could be opened.
        """
        if not self._files.is_on_disk and is_unreached(said):
            return StoreUnavailableError(self._location, said)
        damage = damage_of_log(self._files)
        if damage is None and table is not None:
            damage = self._damage_of_rows(table, said)
        if damage is None and is_damage(said):
            damage = said
        return StoreUnavailableError(self._location, said) if damage is None else self.damaged(damage)

    def absence(self) -> ThrottleError:
        """Return the error of a store whose log has no commit: there is none, or its log is lost."""
        try:
            left = min(self.remains(), default=None)
        except OSError as error:
            return StoreUnavailableError(self._location, str(error))
        if left is None:
            return StoreUnavailableError(self._location, "there is no policy store", Remedy.MAKE_STORE)
        return DamagedError(
            f"the policy store {self._location}",
            f"its log {self._files.shown(LOG)} has no commit, though {self._files.shown(left)} is there",
            f"restore the log from a backup of the store, or, if its policies and their history may be lost, move the "
            f"folder {self._files.shown('').rstrip('/')} away",
        )

    def remains(self) -> list[str]:
        """Return the files that only a store leaves, by path, and no other program."""
        left = [path for path in self._files.row_files() if path.endswith(".parquet")]
        return left or [path for path in self._files.sizes_bytes(LOG) if path == MARK]

    def damaged(self, problem: str, remedy: str = RESTORE_TABLE) -> DamagedError:
        """Return the error of this store that says `problem`."""
        return DamagedError(f"the policy store {self._location}", problem, remedy)

    def _check_mark(self, newest: int) -> None:
        mark = read_mark(self._files)
        if mark <= newest:
            return
        # Another author may have committed since the table was read.
        found = self._opened().transaction_version(APP) or 0
        if found < mark:
            raise self.damaged(
                f"its log {self._files.shown(LOG)} ends with revision {found}, and {self._files.shown(MARK)} says that "
                f"revision {mark} was committed: the newest commits are gone",
                "restore them from a backup of the store, or, if they may be lost, remove that file",
            )

    def _check_gap(self, changes: list[tuple[int, int]] | None, after: int, until: int) -> None:
        if changes is None:
            return  # the readers of rows look for themselves
        expected = after + 1
        for first, last in sorted(changes):
            if first > expected:
                break
            expected = max(expected, last + 1)
        if expected <= until:
            problem = f"revision {expected} of {until} is missing"
            raise self.damaged(damage_of_log(self._files) or problem)

    def _damage_of_rows(self, table: DeltaTable, said: str) -> str | None:
        try:
            damage = damage_of_sizes(table, self._files)
            if damage is None and (self._files.is_on_disk or is_damage(said)):
                self._unreadable = undecodable(table, self._files, said)
                if self._unreadable is not None:
                    damage = damage_of_parquet(table, self._files, self._unreadable)
        except OSError:
            return None  # the files cannot be reached, and that is what the caller is told
        return damage


def _revisions_in(table: DeltaTable) -> tuple[list[tuple[int, int]] | None, int]:
    """Return the first and the last revision of every file of changes, and the newest snapshot's, by the log.

    Another program may have rewritten files without such statistics; then nothing is known of the changes.
    """
    adds = pa.table(table.get_add_actions(flatten=True))
    if not {"min.revision", "max.revision"} <= set(adds.column_names):
        return None, 0
    columns = (adds[name].to_pylist() for name in ("partition.form", "min.revision", "max.revision"))
    rows = list(zip(*columns, strict=True))
    changes = [(first, last) for form, first, last in rows if form == "change"]
    newest_snapshot = max((first for form, first, _ in rows if form == "snapshot" and first is not None), default=0)
    return None if any(None in each for each in changes) else changes, newest_snapshot
