"""Where the payload of waiting rows lies, and how many rows still wait there.

Rows that join the queue in a batch are copied, once, to a folder of that batch in the control directory. So a source
may lose a file as soon as the batch that brought it is committed. The account of a batch lists the folders of which
rows wait after it. It is a function of the account before it and of the batch, so a batch that runs again writes the
same, and after a checkpoint was put back the accounts go on from there.

A folder is deleted when no batch that a checkpoint can be put back to may need it: its last row left long enough ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_throttle.core.quota import Int64s
from spark_throttle.files.storage import Directory
from spark_throttle.files.versioned_json import read_versioned, versioned

FOLDER: Final = "waiting"
FORMAT: Final = 1

_ACCOUNTS: Final = "waiting-accounts"
_SLACK_BATCHES: Final = 100
"""Batches for which more is kept than for a checkpoint that is put back: Spark may delete its log later than we do."""


@dataclass(frozen=True, slots=True)
class WaitingFolder:
    """The copies of one batch."""

    batch: int
    first_file: int
    """The numbers of the files from which its rows come."""

    last_file: int
    waiting_messages: int
    empty_since: int | None = None
    """The batch in which its last row left."""

    @property
    def name(self) -> str:
        """The name of the folder in the control directory."""
        return f"{FOLDER}/batch={self.batch}"


@dataclass(frozen=True, slots=True)
class WaitingAccount:
    """The folders of which rows wait after a batch, or waited not long ago."""

    batch: int
    folders: tuple[WaitingFolder, ...] = ()

    def folder_of(self, file: int) -> WaitingFolder | None:
        """Return the folder that has the waiting rows of a file; `None` if they were not copied."""
        return next((each for each in self.folders if each.first_file <= file <= each.last_file), None)

    def after(self, batch: int, left: Int64s, joined: Int64s) -> WaitingAccount:
        """Return the account after a batch.

        Parameters
        ----------
        left, joined
            The numbers of the files of the rows that left the queue in the batch, and of those that joined it.

        Examples
        --------
        >>> import numpy as np
        >>> first = WaitingAccount(0).after(1, np.array([], int), np.array([4, 4, 5]))
        >>> [(folder.name, folder.waiting_messages) for folder in first.folders]
        [('waiting/batch=1', 3)]
        >>> first.after(2, np.array([5, 4, 4]), np.array([], int)).folders[0].empty_since
        2
        """
        newest = max((folder.last_file for folder in self.folders), default=-1)
        left = left[left <= newest]
        folders = []
        for folder in self.folders:
            gone = int(((left >= folder.first_file) & (left <= folder.last_file)).sum())
            waiting = folder.waiting_messages - gone
            is_emptied = waiting <= 0 and folder.empty_since is None
            folders.append(
                replace(folder, waiting_messages=waiting, empty_since=batch if is_emptied else folder.empty_since)
            )
        if len(joined):
            folders.append(WaitingFolder(batch, int(joined.min()), int(joined.max()), len(joined)))
        return WaitingAccount(batch, tuple(folders))

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that `from_fields` takes."""
        rows = [[f.batch, f.first_file, f.last_file, f.waiting_messages, f.empty_since] for f in self.folders]
        return {"batch": self.batch, "folders": rows}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> WaitingAccount:
        """Return the account of the fields that `to_fields` returned."""
        folders = [
            WaitingFolder(int(batch), int(first), int(last), int(waiting), None if empty is None else int(empty))
            for batch, first, last, waiting, empty in fields["folders"]
        ]
        return cls(int(fields["batch"]), tuple(folders))


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """The accounts and the folders of one query.

    Its methods run on the driver, once per attempt at a batch.
    """

    directory: Directory
    batches_retained: int

    def before(self, batch: int) -> WaitingAccount:
        """Return the account that the batch before has left; an empty one if it left none."""
        found = read_versioned(
            self.directory, _name(batch - 1), "the account of waiting rows", FORMAT, WaitingAccount.from_fields
        )
        return WaitingAccount(batch - 1) if found is None else found

    def settle(self, before: WaitingAccount, batch: int, left: Int64s, joined: Int64s) -> None:
        """Write the account of a batch, and delete what no batch can need; nothing is written if no row ever waited."""
        account = before.after(batch, left, joined)
        if not account.folders:
            return
        oldest = batch - self.batches_retained - _SLACK_BATCHES
        is_needed = [each.empty_since is None or each.empty_since >= oldest for each in account.folders]
        kept = tuple(each for each, needed in zip(account.folders, is_needed, strict=True) if needed)
        self.directory.write(_name(batch), versioned(FORMAT, WaitingAccount(batch, kept).to_fields()))
        for folder, needed in zip(account.folders, is_needed, strict=True):
            if not needed:
                self.directory.delete_folder(folder.name)
        self.directory.delete(_name(oldest))


def _name(batch: int) -> str:
    return f"{_ACCOUNTS}/{batch:012d}.json"
