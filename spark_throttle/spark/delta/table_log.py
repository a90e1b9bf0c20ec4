"""A query's batches in the log of a Delta table, read commit by commit, newest first, without a JVM.

A table's snapshot records a query's newest batch (``txn``), even after a ``RESTORE`` has removed the batch's rows, and
forgets it after ``delta.setTransactionRetentionDuration``. The log records more, as far back as it is kept
(``delta.logRetentionDuration``, 30 days by default).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_throttle.checkpoint.batch_mark import BatchMark, parse_mark
from spark_throttle.files.storage import Directory

_WANTED: Final = (b'"txn"', b'"commitInfo"')
_NEXT_FEW: Final = 8
_SLACK_MS: Final = 3_600_000
"""Largest difference between the clocks of the processes that commit."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The facts about one version of a table that concern batches."""

    version: int
    transactions: Mapping[str, int]
    """The newest batch of each query, by the query's name."""

    text: str | None
    """The ``userMetadata`` of the commit."""

    is_restore: bool
    restored_version: int | None
    """Version to which a restore went back; `None` if the restore names a time, or the commit is not a restore."""

    time_ms: int | None


@dataclass(frozen=True, slots=True)
class LaterBatches:
    """A query's batches later than a given batch, according to a table's log."""

    newest: int | None = None
    """The newest later batch whose rows are in the table; `None` if there is none."""

    was_restored: bool = False
    """Whether a restore removed rows of later batches."""

    first_version: int | None = None
    """The oldest version that added a later batch."""

    is_known: bool = True
    """Whether the log goes back far enough to answer."""

    is_short: bool = False
    """Whether a restore removed rows of the given batch itself, or of an earlier one."""


def read_commits(location: str, newest_version: int) -> Iterator[Commit]:
    """Yield the commits of a table, newest first, as far back as its log is kept."""
    log = Directory(f"{location.rstrip('/')}/_delta_log")
    for version in range(newest_version, -1, -1):
        content = log.read(f"{version:020}.json")
        if content is None:
            return
        yield _commit(version, content)


def identity_of_batch(location: str, newest_version: int, query: str, batch: int) -> str | None:
    """Return the identity in a table's commit of a batch; `None` if the commit has none or is not found."""
    for commit in read_commits(location, newest_version):
        if commit.transactions.get(query) == batch:
            mark = parse_mark(commit.text)
            return mark.identity if mark is not None and (mark.query, mark.batch) == (query, batch) else None
    return None


def version_of_batch(location: str, after_version: int, mark: BatchMark) -> int | None:
    """Return the version, one of the next few after a version, that is the commit of a batch.

    Returns `None` if none is. Then the query has committed another batch, many others have committed, or the log no
    longer goes on from that version.
    """
    for version in range(after_version + 1, after_version + 1 + _NEXT_FEW):
        commit = next(read_commits(location, version), None)
        if commit is None or mark.query in commit.transactions:
            return version if commit is not None and parse_mark(commit.text) == mark else None
    return None


def batches_beyond(
    location: str, newest_version: int, query: str, batch: int, *, since_ms: int | None = None
) -> LaterBatches:
    """Return what a table's log records about the query's batches later than `batch`.

    Parameters
    ----------
    since_ms
        A time before which no such batch was committed; the search stops there.
    """
    visible, oldest = newest_version, newest_version + 1
    newest, first, was_restored, is_restored_to_a_time = None, None, False, False
    for commit in read_commits(location, newest_version):
        oldest = commit.version
        found = commit.transactions.get(query)
        is_visible = commit.version <= visible
        if found is not None and found <= batch:
            return LaterBatches(newest, was_restored, first, not is_restored_to_a_time, is_short=not is_visible)
        if found is not None:
            first = commit.version
            if is_restored_to_a_time:
                return LaterBatches(newest, was_restored, first, is_known=False)
            if is_visible and newest is None:
                newest = found
            was_restored |= not is_visible
        if commit.is_restore and is_visible:
            is_restored_to_a_time |= commit.restored_version is None
            visible = visible if commit.restored_version is None else commit.restored_version
        if since_ms is not None and commit.time_ms is not None and commit.time_ms < since_ms - _SLACK_MS:
            return LaterBatches(newest, was_restored, first)
    return LaterBatches(newest, was_restored, first, is_known=oldest == 0)


def _commit(version: int, content: bytes) -> Commit:
    transactions: dict[str, int] = {}
    info: dict[str, Any] = {}
    for line in content.splitlines():
        if any(word in line for word in _WANTED):
            action = json.loads(line)
            if "txn" in action:
                transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
            info = action.get("commitInfo") or info
    is_restore = info.get("operation") == "RESTORE"
    restored = (info.get("operationParameters") or {}).get("version") if is_restore else None
    time_ms = info.get("timestamp")
    return Commit(
        version,
        transactions,
        info.get("userMetadata"),
        is_restore,
        None if restored is None else int(restored),
        None if time_ms is None else int(time_ms),
    )
