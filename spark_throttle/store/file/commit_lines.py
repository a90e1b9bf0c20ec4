"""The log of a YAML store: a line of JSON for every commit."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from spark_throttle.errors import DamagedError, UnknownVersionError
from spark_throttle.files.versioned_json import parse_versioned
from spark_throttle.store.memory_store import Commit
from spark_throttle.store.store import KINDS, Change, Revision

FORMAT: Final = 2
"""The newest format of a line of the log. A line without an entry that a tenant's administrator wrote has format 1, so
that older releases read it."""

_UNPENDING: Final = "remove the file; what the document has of it already is then a change that was edited by hand"


def line_of(commit: Commit, document: str) -> str:
    """Return the line of a commit; `document` is the digest of the document after it."""
    has_given = any(change.given is not None for change in commit.changes)
    changes = [
        [change.kind, change.name, change.body, *([change.given] if has_given else [])] for change in commit.changes
    ]
    fields = {"format": FORMAT if has_given else 1, **asdict(commit.revision), "entries": changes, "document": document}
    return json.dumps(fields, ensure_ascii=True) + "\n"


def parsed_line(line: bytes, what: str) -> tuple[Commit, str]:
    """Return the commit of a line, and the digest of the document after it.

    Raises
    ------
    UnknownVersionError
        If a newer release wrote the line.
    DamagedError
        If it cannot be read.
    """

    def commit_of(fields: dict[str, Any]) -> tuple[Commit, str]:
        # Releases before the last two fields write the same format, and read lines that have them.
        names = ("revision", "at_ms", "who", "why", "changes")
        revision = Revision(*(fields[name] for name in names), fields.get("door"), fields.get("caller"))  # type: ignore[call-arg] # mypy counts a generator as all
        commit = Commit(revision, tuple(Change(*change) for change in fields["entries"]))
        _check_types(commit)
        return commit, str(fields["document"])

    return parse_versioned(line, what, FORMAT, commit_of, remedy="restore it from a backup of the store")


def parsed_pending(line: bytes, what: str, newest: int) -> tuple[Commit, str]:
    """Return a commit that a crash may have left, and the digest of the document after it.

    Parameters
    ----------
    newest
        The newest revision in the log.

    Raises
    ------
    DamagedError
        If it cannot be read, or does not follow the log.
    """
    try:
        commit, document = parsed_line(line, what)
    except DamagedError as error:
        raise DamagedError(what, error.problem, _UNPENDING) from error
    revision = commit.revision.revision
    if not line.endswith(b"\n") or revision > newest + 1:
        raise DamagedError(what, f"revision {revision} does not follow revision {newest}, or is cut off", _UNPENDING)
    return commit, document


def is_whole(line: bytes) -> bool:
    """Return whether a line, without its end, is all that was written; nothing is not."""
    try:
        parsed_line(line, "the line")
    except DamagedError:
        return False
    except UnknownVersionError:
        return True
    return True


def _check_types(commit: Commit) -> None:
    """Refuse a commit with a field of another type than `line_of` writes."""
    facts = commit.revision
    numbers, texts = (facts.revision, facts.at_ms, facts.changes), [facts.who, facts.why]
    optional = [facts.door, facts.caller]
    for change in commit.changes:
        texts += [change.kind, change.name]
        optional += [change.body, change.given]
    is_right = all(type(number) is int for number in numbers) and all(isinstance(text, str) for text in texts)
    if not is_right or not all(isinstance(text, str | None) for text in optional):
        raise TypeError("a field has another type than a commit's")
    if not set(KINDS).issuperset(change.kind for change in commit.changes):
        raise ValueError("an entry is of no known kind")
