"""The audit log has who did what, through which door, from where, and with what outcome; refusals too.

A file of JSON, a line for each event, which is only appended to: it may be given the attribute of such a file
(``chattr +a``). A line is on the disk before the one who asked has the answer. A line that a full disk cut short stays,
and the next one begins on a line of its own.

The log holds no secret: tokens that somebody wrote into a path, a name or a reason are hidden.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from spark_throttle.admin.redaction import LONGEST_NAMES, without_secrets, without_tokens
from spark_throttle.admin.refusals import Outcome
from spark_throttle.errors import FileUnusableError
from spark_throttle.files.ownership import opened_or_made
from spark_throttle.files.private_file import OWNER_ONLY, check_no_link, check_private, sync_folder, unusable
from spark_throttle.store.committer import MadeChange
from spark_throttle.store.store import Door

logger = logging.getLogger(__name__)

FORMAT: Final = 1
MOST_UNWRITTEN: Final = 1000
"""Lines that are kept while the log cannot be written; more refusals are not."""

_ANYBODYS: Final = ("detail", "why")
"""Fields that hold what anybody may have written; the others name who or what, and must not look alike."""

NOTHING_CHANGED: Final[tuple[Outcome, ...]] = ("refused", "unconfirmed", "failed")
"""Outcomes of an attempt that changed nothing, though it asked for a change."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log."""

    door: Door
    caller: str | None
    """What was authenticated (`Author.caller`); `None` if nothing was."""

    who: str | None
    """What the caller is called; from the command line, what it calls itself."""

    source: str
    """The address that a request came from, or the name of the machine that a command ran on."""

    action: str
    """The command, or the method and the path of the call."""

    outcome: Outcome
    detail: str = ""
    """The reason of a refusal, in more words than a stranger or a tenant is told."""

    why: str = ""
    """The caller's reason."""

    role: str | None = None
    tenant: str | None = None
    revision: int | None = None
    """The store's revision that the change made."""

    status: int | None = None
    """Status of the answer to a call."""

    proxy: str | None = None
    """The proxy that handed the request on, and that the source is taken from."""

    changes: list[dict[str, Any]] = field(default_factory=list)
    """The entries that were changed, as `changes_of` returns them."""

    changes_left_out: int | None = None
    """How many more entries were changed."""

    omitted: int | None = None
    """Number of refusals of this caller that were not recorded before this one, because they were too many."""


class AuditLog:
    """An audit log; safe for use by several threads and processes.

    Parameters
    ----------
    path
        The file; it is made with the first line.
    clock_ms
        The wall clock.
    beside
        If root makes the file, it belongs to the owner of this one: the file of tokens, which a server reads.

    Examples
    --------
    >>> import tempfile
    >>> log = AuditLog(Path(tempfile.mkdtemp()) / "audit", clock_ms=lambda: 0)
    >>> log.append(Event("cli", "ann (uid 1000)", "ann", "host", "policy apply", "done", revision=7))
    >>> json.loads(log.path.read_text())["at"]
    '1970-01-01T00:00:00.000Z'
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock_ms: Callable[[], int], beside: Path | None = None
    ) -> None:
        self.path = Path(path)
        self._beside = beside
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._unwritten: list[bytes] = []

    def check(self) -> None:
        """Refuse to go on while the log cannot be written: what cannot be recorded is not done.

        Raises
        ------
        FileUnusableError
            If it cannot be opened, or lines that could not be written still cannot.
        """
        with self._lock:
            self._write()

    def append(self, event: Event) -> None:
        """Write a line; if that fails, it is kept and written before the next one.

        Raises
        ------
        FileUnusableError
            If it cannot be written.
        """
        line = _line(event, self._clock_ms())
        with self._lock:
            # While the log cannot be written changes are refused, so this bound holds for all lines.
            if event.outcome not in ("refused", "unconfirmed") or len(self._unwritten) < MOST_UNWRITTEN:
                self._unwritten.append(line)
            self._write()

    def _write(self) -> None:
        check_no_link(self.path)
        try:
            flags = os.O_RDWR | os.O_APPEND
            descriptor, is_new = opened_or_made(self.path, flags, OWNER_ONLY, beside=self._beside)
            try:
                status = os.fstat(descriptor)
                check_private(self.path, status)
                if self._unwritten:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    self._write_to(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unusable(self.path, "the audit log cannot be written", error) from error
        if is_new:
            sync_folder(self.path)

    def _write_to(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            _write_all(descriptor, b"\n")
        _write_all(descriptor, b"".join(self._unwritten))
        os.fsync(descriptor)
        self._unwritten.clear()


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _line(event: Event, at_ms: int) -> bytes:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    given = {name: value for name, value in asdict(event).items() if value not in (None, "", [])}
    # Of a refusal nobody has accepted the names.
    anybodys = (*_ANYBODYS, "action") if event.outcome in ("refused", "failed") else _ANYBODYS
    fields = {name: without_secrets(value) if name in anybodys else _with_names(value) for name, value in given.items()}
    return json.dumps({"format": FORMAT, "at": at, **fields}).encode() + b"\n"


def _with_names(value: object) -> Any:  # noqa: ANN401 - what JSON takes
    if isinstance(value, list):
        return [_with_names(each) for each in value]
    if isinstance(value, dict):
        shown = {_with_names(key): _with_names(each) for key, each in value.items()}
        text = json.dumps(shown)
        return shown if "path" in shown or len(text) <= LONGEST_NAMES else without_tokens(text)
    return without_tokens(value) if isinstance(value, str) else value


def changes_of(made: Iterable[MadeChange]) -> list[dict[str, Any]]:
    """Return changed entries for a line: path, before and after, as plain values; `None` where there is no entry.

    Examples
    --------
    >>> changes_of([MadeChange("tenants.acme", None, '{"resource_group":"gold"}')])
    [{'path': 'tenants.acme', 'before': None, 'after': {'resource_group': 'gold'}}]
    """
    return [{"path": each.path, "before": values_of(each.before), "after": values_of(each.after)} for each in made]


def values_of(body: str | None) -> object:
    """Return the values of an entry; what is no JSON, as an entry that somebody damaged, stays text."""
    try:
        return None if body is None else json.loads(body)
    except ValueError:
        return body


def append_or_log(log: AuditLog, event: Event) -> None:
    """Write a line about what has happened already; what cannot be written is an error in the server's log."""
    try:
        log.append(event)
    except FileUnusableError as error:
        logger.error("%s; changes are refused until it can", error)  # noqa: TRY400 - the message says it all
