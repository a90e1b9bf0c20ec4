"""What the log of a Delta table says of a query's batches: commit by commit, newest first, without a JVM.

A table's snapshot knows a query's newest batch (``txn``), even after a ``RESTORE`` took the batch's rows out again, and
forgets it after ``delta.setTransactionRetentionDuration``. Its log knows more, as far back as it is kept
(``delta.logRetentionDuration``, 30 days by default).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_throttle.checkpoint.batch_mark import parse_mark
from spark_throttle.files.storage import Directory

_WANTED: Final = (b'"txn"', b'"commitInfo"')
_SLACK_MS: Final = 3_600_000
"""Between the clocks of those who commit."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table, as far as batches are concerned."""

    version: int
    transactions: Mapping[str, int]
    """The newest batch by the name of the query."""

    text: str | None
    """Of whoever committed."""

    is_restore: bool
    restored_version: int | None
    """What a restore went back to; `None` where it names a time."""

    time_ms: int | None


@dataclass(frozen=True, slots=True)
class LaterBatches:
    """What a table's log says of a query's batches beyond one."""

    newest: int | None = None
    """The newest whose rows are in the table; `None` for none."""

    was_restored: bool = False
    """Whether a restore took rows of such batches out."""

    first_version: int | None = None
    """The oldest version that brought such a batch."""

    is_known: bool = True
    """Whether the log goes back far enough to tell."""

    is_short: bool = False
    """Whether a restore took rows of the batch itself, or of one before it, out."""


def read_commits(location: str, newest_version: int) -> Iterator[Commit]:
    """Yield the commits of a table, newest first, as far back as its log is kept."""
    log = Directory(f"{location.rstrip('/')}/_delta_log")
    for version in range(newest_version, -1, -1):
        content = log.read(f"{version:020}.json")
        if content is None:
            return
        yield _commit(version, content)


def identity_of_batch(location: str, newest_version: int, query: str, batch: int) -> str | None:
    """Return the identity that a table's commit of a batch carries; `None` where it has none, or is not found."""
    for commit in read_commits(location, newest_version):
        if commit.transactions.get(query) == batch:
            mark = parse_mark(commit.text)
            return mark.identity if mark is not None and (mark.query, mark.batch) == (query, batch) else None
    return None


def batches_beyond(
    location: str, newest_version: int, query: str, batch: int, *, since_ms: int | None = None
) -> LaterBatches:
    """Return what a table's log says of the batches of a query beyond `batch`.

    Parameters
    ----------
    since_ms
        No such batch was committed before.
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
