"""Where the payload of waiting rows lies, and how many rows still wait there.

Rows that join the queue in a batch are copied, once, to a folder of that batch in the control directory: their files as
they are, if they are small, or else the rows alone (`is_kept_whole`). So a source may lose a file as soon as the batch
that brought it is committed. The account of a batch lists the folders of which rows wait after it. It is a function of
the account before it and of the batch, so a batch that runs again writes the same, and after a checkpoint was put back
the accounts go on from there.

Many rows that join together are laid out in parts, in the order in which they are likely to leave (`parts_of`). A
batch then reads the parts in which its rows lie.

*Leftovers* are folders of which few rows wait any more. If they become many, or hold many rows that have left, a batch
copies what waits in them to one folder of its own (`leftovers`). So the folders of a query are few, whatever waits for
long, and the rows in them that have left are at most eight times those that wait, beside a fixed number.

A folder is deleted when no batch that a checkpoint can be put back to may need it: its last row left long enough ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.files.records import read_note
from spark_throttle.files.storage import Directory
from spark_throttle.record import to_json
from spark_throttle.spark.references.extents import SourceFile

FOLDER: Final = "waiting"
"""The copies of rows."""

FILES_FOLDER: Final = "waiting-files"
"""The copies of whole files."""

ACCOUNT: Final = "the account of waiting rows"
_ACCOUNTS: Final = "waiting-accounts"
_SLACK_BATCHES: Final = 100
"""Batches for which more is kept than for a checkpoint that is put back: Spark may delete its log later than we do."""

_FEW_MESSAGES: Final = 1_000
_SPARSE: Final = 8
"""A folder of which one row in so many waits is a leftover, however many these are."""

_MANY_LEFTOVERS: Final = 32
_MANY_GONE_MESSAGES: Final = 1_000_000

_MOST_KEPT_MESSAGES: Final = 50_000
_MOST_KEPT_FILES: Final = 16
_SMALL_BYTES: Final = 4 << 20
"""Files that are kept, however few of their rows wait: to write those alone would cost Spark more."""

_MOST_KEPT_BYTES: Final = 64 << 20
_KEPT_SHARE: Final = 4
"""Larger files are kept if one row in so many waits."""

_PART_MESSAGES: Final = 20_000
"""About as many rows as Spark reads in the time that it takes to plan a query."""

_MOST_PARTS: Final = 120
"""The number of a part is an integer of eight bits."""

FileRange = tuple[int, int]
"""The first and the last number of neighbouring files."""


class CopyKind(StrEnum):
    """What a folder of copies holds."""

    FILES = "files"
    """The files in which rows joined the queue in one batch, as they are."""

    ROWS = "batch"
    """The rows that joined the queue in one batch."""

    LEFTOVERS = "joined"
    """The leftovers of other folders."""


@dataclass(frozen=True, slots=True)
class WaitingFolder:
    """The copies that one batch made."""

    batch: int
    ranges: tuple[FileRange, ...]
    """The numbers of the files from which its rows come, ascending. No two folders with waiting rows share a file."""

    waiting_messages: int
    copied_messages: int
    """The rows that were copied; those of whole files, also if they did not join the queue."""

    empty_since: int | None = None
    """The batch in which its last row left."""

    kind: CopyKind = CopyKind.ROWS
    parts: int = 0
    """The number of parts in which its rows are laid out; 0 if they lie in one folder."""

    @property
    def name(self) -> str:
        """The name of the folder in the control directory."""
        if self.kind == CopyKind.FILES:
            return f"{FILES_FOLDER}/batch={self.batch}"
        return f"{FOLDER}/{self.kind}={self.batch}"

    @property
    def is_leftover(self) -> bool:
        """Whether few of its rows wait."""
        few = self.waiting_messages <= _FEW_MESSAGES or self.waiting_messages * _SPARSE <= self.copied_messages
        return self.waiting_messages > 0 and few


@dataclass(frozen=True, slots=True)
class WaitingAccount:
    """The folders of which rows wait after a batch, or waited not long ago."""

    batch: int
    folders: tuple[WaitingFolder, ...] = ()
    schema: str = ""
    """The schema of the source in the batch, as Spark's JSON: files are copied with columns of their own."""

    @property
    def held(self) -> tuple[WaitingFolder, ...]:
        """The folders of which rows wait."""
        return tuple(folder for folder in self.folders if folder.empty_since is None)

    def folder_of(self, file: int) -> WaitingFolder | None:
        """Return the folder that has the waiting rows of a file; `None` if they were not copied."""
        found = (folder for folder in self.held if any(first <= file <= last for first, last in folder.ranges))
        return next(found, None)

    def after(self, batch: int, left: Int64s, joined: Int64s, *, kept_messages: int = 0) -> WaitingAccount:
        """Return the account after a batch.

        Parameters
        ----------
        left, joined
            The numbers of the files of the rows that left the queue in the batch, and of those that joined it.
        kept_messages
            The rows of the files of `joined`, if these are kept whole.

        Examples
        --------
        >>> first = WaitingAccount(0).after(1, np.array([], int), np.array([4, 4, 5]))
        >>> [(folder.name, folder.waiting_messages) for folder in first.folders]
        [('waiting/batch=1', 3)]
        >>> first.after(2, np.array([5, 4, 4]), np.array([], int)).folders[0].empty_since
        2
        """
        held = self.held
        gone = dict(zip(held, _counts(held, left), strict=True))
        folders = []
        for folder in self.folders:
            waiting = folder.waiting_messages - gone.get(folder, 0)
            is_emptied = waiting <= 0 and folder.empty_since is None
            folders.append(
                replace(folder, waiting_messages=waiting, empty_since=batch if is_emptied else folder.empty_since)
            )
        if len(joined):
            files = ((int(joined.min()), int(joined.max())),)
            kind = CopyKind.FILES if kept_messages else CopyKind.ROWS
            parts = 0 if kept_messages else parts_of(len(joined))
            copied = kept_messages or len(joined)
            folders.append(WaitingFolder(batch, files, len(joined), copied, kind=kind, parts=parts))
        return WaitingAccount(batch, tuple(folders))

    def leftovers(self) -> tuple[WaitingFolder, ...]:
        """Return the folders whose waiting rows the batch of this account copies to one folder; none if it need not.

        Rows that joined the queue in this batch are no leftovers yet.

        Examples
        --------
        >>> few = [WaitingFolder(at, ((at, at),), 1, 5) for at in range(32)]
        >>> len(WaitingAccount(40, tuple(few)).leftovers()), len(WaitingAccount(40, tuple(few[1:])).leftovers())
        (32, 0)
        """
        found = tuple(folder for folder in self.held if folder.is_leftover and folder.batch < self.batch)
        gone = sum(folder.copied_messages - folder.waiting_messages for folder in found)
        return found if len(found) >= _MANY_LEFTOVERS or gone >= _MANY_GONE_MESSAGES else ()

    def with_joined(self, leftovers: Sequence[WaitingFolder]) -> WaitingAccount:
        """Return the account after the batch has copied the waiting rows of leftovers to one folder.

        Examples
        --------
        >>> account = WaitingAccount(9, (WaitingFolder(1, ((1, 1),), 2, 8), WaitingFolder(2, ((3, 4),), 1, 8)))
        >>> emptied, other, new = account.with_joined(account.folders).folders
        >>> new.name, new.ranges, new.waiting_messages, emptied.empty_since
        ('waiting/joined=9', ((1, 4),), 3, 9)
        """
        if not leftovers:
            return self
        others = [folder for folder in self.held if folder not in leftovers]
        messages = sum(folder.waiting_messages for folder in leftovers)
        ranges = _neighbours(leftovers, others)
        folders = [
            replace(folder, waiting_messages=0, empty_since=self.batch) if folder in leftovers else folder
            for folder in self.folders
        ]
        new = WaitingFolder(self.batch, ranges, messages, messages, kind=CopyKind.LEFTOVERS)
        return replace(self, folders=(*folders, new))


def is_kept_whole(joined_messages: int, messages: int | None, files: Sequence[SourceFile]) -> bool:
    """Return whether the files in which rows join the queue are copied as they are.

    To copy a file takes no query of Spark, which costs as much as to copy many megabytes. A file whose folder has some
    of the values of its rows is not copied, for its copy would lack them.

    Parameters
    ----------
    messages
        The rows of the files; `None` if the stream drops some of them.

    Examples
    --------
    >>> large = [SourceFile(0, "a", 32 << 20, 0)]
    >>> is_kept_whole(25_000, 100_000, large), is_kept_whole(24_999, 100_000, large), is_kept_whole(50_001, 60_000, [])
    (True, False, False)
    """
    if joined_messages > _MOST_KEPT_MESSAGES or len(files) > _MOST_KEPT_FILES:
        return False
    if any(file.partition_values for file in files):
        return False
    size_bytes = sum(file.size_bytes for file in files)
    is_mostly_wanted = messages is not None and joined_messages * _KEPT_SHARE >= messages
    return size_bytes <= _SMALL_BYTES or (is_mostly_wanted and size_bytes <= _MOST_KEPT_BYTES)


def parts_of(joined_messages: int) -> int:
    """Return the number of parts in which rows that join the queue together are laid out; 0 if they are few.

    Examples
    --------
    >>> parts_of(50_000), parts_of(100_000), parts_of(5_000_000)
    (0, 5, 120)
    """
    return 0 if joined_messages <= _MOST_KEPT_MESSAGES else min(joined_messages // _PART_MESSAGES, _MOST_PARTS)


def is_in_ranges(folders: Sequence[WaitingFolder], files: Int64s) -> Bools:
    """Return which of the files' numbers lie in the ranges of one of the folders.

    Examples
    --------
    >>> is_in_ranges([WaitingFolder(1, ((1, 2), (5, 5)), 2, 8)], np.array([2, 3, 5])).tolist()
    [True, False, True]
    """
    found: Bools = _owners(folders, files) >= 0
    return found


def _counts(folders: Sequence[WaitingFolder], files: Int64s) -> list[int]:
    """Return how many of the files' numbers lie in the ranges of each folder."""
    owners = _owners(folders, files)
    counts: list[int] = np.bincount(owners[owners >= 0], minlength=len(folders)).tolist()
    return counts


def _owners(folders: Sequence[WaitingFolder], files: Int64s) -> Int64s:
    """Return which folder, by its position, has each file's number in its ranges; -1 for none."""
    found = sorted((first, last, at) for at, folder in enumerate(folders) for first, last in folder.ranges)
    if not found:
        return np.full(len(files), -1, dtype=np.int64)
    first, last, owner = np.array(found, dtype=np.int64).T
    at = np.searchsorted(first, files, side="right") - 1
    return np.where((at >= 0) & (files <= last[at]), owner[at], -1)


def _neighbours(of: Sequence[WaitingFolder], others: Sequence[WaitingFolder]) -> tuple[FileRange, ...]:
    """Return the ranges of folders, those in one between which no other folder has a file."""
    ranges = sorted((first, last, True) for folder in of for first, last in folder.ranges)
    between = sorted((first, last, False) for folder in others for first, last in folder.ranges)
    found: list[FileRange] = []
    is_open = False
    for first, last, is_own in sorted([*ranges, *between]):
        if is_own and is_open:
            found[-1] = (found[-1][0], last)
        elif is_own:
            found.append((first, last))
        is_open = is_own
    return tuple(found)


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """The accounts and the folders of one query.

    Its methods run on the driver, once per attempt at a batch.
    """

    directory: Directory
    batches_retained: int

    def before(self, batch: int) -> WaitingAccount:
        """Return the account that the batch before has left; an empty one if it left none."""
        found = read_note(self.directory, account_name(batch - 1), WaitingAccount, ACCOUNT)
        return WaitingAccount(batch - 1) if found is None else found

    def settle(self, account: WaitingAccount) -> None:
        """Write the account of a batch, and delete what no batch can need; nothing is written if no row ever waited.

        An undone batch of the same number, before the checkpoint was put back, may have left an account, which goes.
        """
        batch = account.batch
        if not account.folders:
            self.directory.delete(account_name(batch))
            return
        oldest = batch - self.batches_retained - _SLACK_BATCHES
        is_needed = [each.empty_since is None or each.empty_since >= oldest for each in account.folders]
        kept = tuple(each for each, needed in zip(account.folders, is_needed, strict=True) if needed)
        self.directory.write(account_name(batch), to_json(replace(account, folders=kept)))
        for folder, needed in zip(account.folders, is_needed, strict=True):
            if not needed:
                self.directory.delete_folder(folder.name)
        self.directory.delete(account_name(oldest))


def account_name(batch: int) -> str:
    """Return the name of the account of a batch in the control directory."""
    return f"{_ACCOUNTS}/{batch:012d}.json"
