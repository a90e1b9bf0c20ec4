"""Policy files, on a disk or on an object store, are followed while jobs run, and no batch waits long for any source.

A change that cannot be applied leaves the last good document in force: a typing error must neither stop
a stream nor lift its limits. The problem is logged once, and every snapshot has it until it is fixed.

A source may hang: a store on a network, a file on a mount that has gone away. A batch must neither wait for such a
source nor run without limits. So a separate thread asks the source, and a batch waits for the answer as long as a
healthy source may take: a change committed before a batch is planned acts in that batch. If the source has not answered
by then, the last good policies stay in force; this is logged once, and every snapshot says so. No later batch waits for
that answer; when it comes, it counts.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias

from pyarrow import fs

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.files.storage import file_system, read_object
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import Direction, PolicyDocument

logger = logging.getLogger(__name__)

_Signature: TypeAlias = tuple[int, int, int]

SETTLING_NS: Final = 50_000_000
"""For this long after a change, a file may change again without a new modification time: file clocks are coarse."""

OBJECT_SETTLING_MS: Final = 3_000
"""For this long after it is first seen, an object may do so too: object stores give times in whole seconds."""

OBJECT_STALE_MS: Final = 60_000
"""Time after which an object is read again though it seems unchanged: no store guarantees its modification times."""


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """The policies in force from a policy file or a policy store, and whether they are the newest."""

    document: PolicyDocument
    """The last good document."""

    revision: str
    """Digest of the content of `document`, both directions."""

    problem: str | None
    """Why the newest content of the file or the store is not in force; `None` if it is."""

    store_revision: int | None = None
    """The policy store's revision that `document` was read at; `None` if it does not come from a store."""

    @property
    def named_revision(self) -> int | str:
        """The revision as messages name it: the policy store's, or the digest."""
        return self.revision if self.store_revision is None else self.store_revision


class PolicySource(Protocol):
    """A source of the current policies."""

    def current(self) -> PolicySnapshot:
        """Return the policies in force; called at every trigger, so it must be cheap while nothing changes."""


class DocumentInForce:
    """The last good content of a document that is read repeatedly.

    Parameters
    ----------
    what
        Name of the document in messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._good_digest = b""
        self._bad_digest = b""
        self._bad_problem = ""
        self.snapshot: PolicySnapshot | None = None
        """The snapshot in force; `None` until there is one."""

    def examine(self, data: bytes) -> PolicySnapshot:
        """Return the snapshot in force, now that the document's content is `data`.

        Raises
        ------
        PolicyError
            If the content cannot be applied and no earlier content could.
        """
        digest = hashlib.sha256(data).digest()
        last = self.snapshot
        if last is not None and digest == self._good_digest:
            return self.accept(PolicySnapshot(last.document, last.revision, None))
        if last is not None and digest == self._bad_digest:
            return self.keep(last, self._bad_problem)
        try:
            document = parse_policies(data)
        except PolicyError as error:
            if last is None:
                raise PolicyError(error.path, f"{error.problem} (in the {self._what})") from None
            self._bad_digest, self._bad_problem = digest, f"the {self._what} cannot be applied: {error}"
            return self.keep(last, self._bad_problem)
        self._good_digest, self._bad_digest = digest, b""
        return self.accept(PolicySnapshot(document, revision_of(document), None))

    def miss(self, why: object, remedy: str) -> PolicySnapshot:
        """Return the snapshot in force while the document cannot be read.

        Raises
        ------
        ConfigurationError
            If it could never be read.
        """
        problem = f"cannot read the {self._what}: {why}"
        if self.snapshot is None:
            raise ConfigurationError(f"{problem}; {remedy}")
        return self.keep(self.snapshot, problem)

    def accept(self, newest: PolicySnapshot) -> PolicySnapshot:
        """Return the snapshot in force, now that the newest content is good: the last one if nothing else differs."""
        last = self.snapshot
        if last is not None and last == replace(newest, document=last.document):
            return last
        logger.info("%s: revision %s is in force", self._what, newest.named_revision)
        self.snapshot = newest
        return newest

    def keep(self, last: PolicySnapshot, problem: str) -> PolicySnapshot:
        """Return the last good snapshot with the problem, which is logged when it is new."""
        if last.problem != problem:
            logger.error("%s; revision %s stays in force", problem, last.named_revision)
            self.snapshot = last = replace(last, problem=problem)
        return last


class PolicyFile:
    """The policies of a YAML file, read again when it changes.

    While the file does not change, `current` calls only `stat` and returns the same object. Not safe for use by several
    threads at once.

    Parameters
    ----------
    path : str or os.PathLike
        The file. Replace it by renaming a complete new file onto it: a half-written file counts as a problem if it
        does not parse, and as a policy if it does.
    clock_ns : Callable
        The wall clock, which is compared only with modification times.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock_ns: Callable[[], int] = time.time_ns,  # noqa: TID251 - the clock of the file's modification times
    ) -> None:
        self.path = Path(path)
        self._clock_ns = clock_ns
        self._signature: _Signature | None = None
        self._kept = DocumentInForce(f"policy file {str(self.path)!r}")

    def current(self) -> PolicySnapshot:
        """Return the last good document, and what is wrong with the file, if anything.

        Raises
        ------
        ConfigurationError
            If the file cannot be read and never could be.
        PolicyError
            If the document cannot be applied and no earlier one could.
        """
        try:
            status = self.path.stat()
            signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._kept.snapshot is not None and signature == self._signature:
                return self._kept.snapshot
            data = self.path.read_bytes()
        except OSError as error:
            self._signature = None
            return self._kept.miss(error.strerror, "give the path of a YAML file")
        snapshot = self._kept.examine(data)
        is_settling = 0 <= self._clock_ns() - status.st_mtime_ns < SETTLING_NS
        self._signature = None if is_settling else signature
        return snapshot


class PolicyObject:
    """The policies of a YAML file on an object store, read again when its size or modification time changes.

    While neither changes, `current` asks only for these two, except that it reads the object until its modification
    time has settled, and again every `OBJECT_STALE_MS`. Not safe for use by several threads at once.

    Parameters
    ----------
    uri : str
        A URI that `storage.file_system` takes.
    clock_ms : Callable
        A steady clock; the store's own clock is compared with none.
    open_at : Callable
        Returns the file system of a URI, and the path in it.
    """

    def __init__(
        self,
        uri: str,
        *,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        open_at: Callable[[str], tuple[fs.FileSystem, str]] = file_system,
    ) -> None:
        self.uri = uri
        self._clock_ms = clock_ms
        self._open_at = open_at
        self._place: tuple[fs.FileSystem, str] | None = None
        self._signature: tuple[int | None, int | None] = (None, None)
        self._first_seen_ms = self._read_ms = 0
        self._kept = DocumentInForce(f"policy file {uri!r}")

    def current(self) -> PolicySnapshot:
        """Return the last good document, and what is wrong with the object, if anything.

        Raises
        ------
        ConfigurationError
            If the object cannot be read and never could be.
        PolicyError
            If the document cannot be applied and no earlier one could.
        """
        try:
            data = self._changed()
        except (OSError, ValueError) as error:
            self._place, self._signature = None, (None, None)
            return self._kept.miss(error, "give the URI of a YAML file, and the credentials that its store needs")
        if data is None:
            assert self._kept.snapshot is not None  # noqa: S101 - else it would have been read
            return self._kept.snapshot
        return self._kept.examine(data)

    def _changed(self) -> bytes | None:
        """Return the object's content; `None` if it has not changed since it was last read."""
        # Opened again after a failure: credentials may have come.
        files, path = self._place = self._place or self._open_at(self.uri)
        info = files.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError("there is no such object")
        now_ms = self._clock_ms()
        signature = (info.mtime_ns, info.size)
        if signature != self._signature:
            self._signature, self._first_seen_ms = signature, now_ms
        elif self._kept.snapshot is not None and self._is_settled(now_ms):
            return None
        data = read_object(files, path)
        self._read_ms = now_ms
        return data

    def _is_settled(self, now_ms: int) -> bool:
        """Return whether the last read is recent, and was made after the object's modification time had settled."""
        is_known = None not in self._signature and self._read_ms >= self._first_seen_ms + OBJECT_SETTLING_MS
        return is_known and now_ms < self._read_ms + OBJECT_STALE_MS


def refuse_units(document: PolicyDocument, direction: Direction) -> None:
    """Refuse policies that limit units in a direction, for a job whose rows state none.

    Raises
    ------
    PolicyError
        If they do: nothing would ever be held.
    """
    path = document.first_of_units(direction)
    if path is not None:
        unit = document.job.unit
        what = "units" if unit == "units" else f"units ({unit})"
        raise PolicyError(
            ".".join(path),
            f"it counts {what}, and the job does not say what its rows cost; give the throttle units, a column or an "
            f"expression, or units='0' if its rows cost none",
        )


class WithoutUnits:
    """The policies of a job whose rows state no units: those that limit units cannot be applied.

    As with a document that cannot be read, the last good policies stay in force, and every snapshot has the problem.
    """

    def __init__(self, source: PolicySource, direction: Direction) -> None:
        self._source = source
        self._direction: Direction = direction
        self._newest: PolicySnapshot | None = None
        self._told: PolicySnapshot | None = None

    def current(self) -> PolicySnapshot:
        """Return the newest policies that limit no units.

        Raises
        ------
        PolicyError
            If the policies limit units and no earlier ones did not.
        ThrottleError
            Whatever the source raises.
        """
        newest = self._source.current()
        if newest is self._newest and self._told is not None:
            return self._told
        self._newest = newest
        try:
            refuse_units(newest.document, self._direction)
        except PolicyError as error:
            if self._told is None:
                raise
            problem = f"the policies of revision {newest.named_revision} cannot be applied: {error}"
            if problem != self._told.problem:
                logger.error("%s; revision %s stays in force", problem, self._told.named_revision)  # noqa: TRY400
            newest = replace(self._told, problem=problem)
        self._told = newest
        return newest


PATIENCE_SECONDS: Final = 2.0
"""Longest time that a source holds up a batch, once, when it begins to hang."""

FIRST_PATIENCE_SECONDS: Final = 60.0
"""Longest time that a starting query waits for its first policies: it has none to stay with."""


@dataclass(slots=True)
class _Answer:
    """The answer to one question: a snapshot or an error, once `is_here` is set."""

    is_here: threading.Event = field(default_factory=threading.Event)
    snapshot: PolicySnapshot | None = None
    error: Exception | None = None


class PatientPolicies:
    """A policy source that always answers in time; safe for use by one thread.

    Parameters
    ----------
    source
        The source to ask; one thread calls it, one call at a time.
    patience_seconds, first_patience_seconds
        How long an answer may take, and how long the first answer may take.
    """

    def __init__(
        self,
        source: PolicySource,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        first_patience_seconds: float = FIRST_PATIENCE_SECONDS,
    ) -> None:
        self._source = source
        self._patience_seconds = patience_seconds
        self._first_patience_seconds = first_patience_seconds
        self._questions: SimpleQueue[_Answer] = SimpleQueue()
        self._asker: threading.Thread | None = None
        self._pending: _Answer | None = None
        self._last: PolicySnapshot | None = None
        self._late: PolicySnapshot | None = None

    def current(self) -> PolicySnapshot:
        """Return the source's answer, or its last one if it does not answer in time.

        Raises
        ------
        ConfigurationError
            If the source does not answer and never has.
        ThrottleError
            Whatever the source raises.
        """
        answer = self._pending or self._ask()
        patience_seconds = self._first_patience_seconds if self._last is None else self._patience_seconds
        if not answer.is_here.wait(0 if self._late is not None else patience_seconds):
            return self._stay(answer, patience_seconds)
        self._pending = None
        if answer.error is not None:
            raise answer.error
        assert answer.snapshot is not None  # noqa: S101 - without an error there is one
        if self._late is not None:
            logger.info("the policies can be read again; revision %s is in force", answer.snapshot.revision)
            self._late = None
        self._last = answer.snapshot
        return answer.snapshot

    def _ask(self) -> _Answer:
        if self._asker is None:
            # A daemon: a thread that hangs must not keep the process alive.
            self._asker = threading.Thread(target=self._run, name="policies", daemon=True)
            self._asker.start()
        answer = _Answer()
        self._questions.put(answer)
        return answer

    def _run(self) -> None:
        while True:
            answer = self._questions.get()
            try:
                answer.snapshot = self._source.current()
            except Exception as error:  # noqa: BLE001 - raised by `current`, in the thread that asked
                answer.error = error
            answer.is_here.set()

    def _stay(self, answer: _Answer, patience_seconds: float) -> PolicySnapshot:
        self._pending = answer
        problem = f"the policies were not read within {patience_seconds:g} s; the store or the mount seems to hang"
        if self._last is None:
            raise ConfigurationError(f"{problem}; check that it can be reached, then start again")
        if self._late is None:
            logger.error("%s; revision %s stays in force", problem, self._last.revision)
            self._late = replace(self._last, problem=problem)
        return self._late
