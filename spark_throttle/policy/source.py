"""A policy file, on a disk or on an object store, that is followed while jobs run.

A change that cannot be applied leaves the last good document in force: a typing error must neither stop
a stream nor lift its limits. It is said once in the log, and in every snapshot until it is put right.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from pyarrow import fs

from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.files.storage import file_system
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import PolicyDocument

logger = logging.getLogger(__name__)

_Signature: TypeAlias = tuple[int, int, int]

SETTLING_NS: Final = 50_000_000
"""A file changed so recently may change again without a new modification time: clocks of file systems are coarse."""

OBJECT_SETTLING_MS: Final = 3_000
"""An object that was first seen so recently may do so too: object stores tell times by the second."""

OBJECT_STALE_MS: Final = 60_000
"""An object that seems unchanged is read again after so long: no store promises its modification times."""


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """What a policy file or a policy store says now."""

    document: PolicyDocument
    """The last good document."""

    revision: str
    """Names the content of `document`, both directions."""

    problem: str | None
    """Why what the file or the store says now is not in force; `None` if it is."""

    store_revision: int | None = None
    """The revision of the policy store that `document` is; `None` where it is no store's."""


class PolicySource(Protocol):
    """Whatever says what the policies are now."""

    def current(self) -> PolicySnapshot:
        """Return the policies in force; called at every trigger, so it must be cheap while nothing changes."""


class DocumentInForce:
    """The last good content of a document that is read again and again.

    Parameters
    ----------
    what
        Names the document in messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._good_digest = b""
        self._bad_digest = b""
        self._bad_problem = ""
        self.snapshot: PolicySnapshot | None = None
        """What is in force; `None` before there is any."""

    def examine(self, data: bytes) -> PolicySnapshot:
        """Return what is in force now that the document says this.

        Raises
        ------
        PolicyError
            If it cannot be applied and there was none before it that could.
        """
        digest = hashlib.sha256(data).digest()
        last = self.snapshot
        if last is not None and digest == self._good_digest:
            return self._accept(last.document, last.revision)
        if last is not None and digest == self._bad_digest:
            return self._keep(last, self._bad_problem)
        try:
            document = parse_policies(data)
        except PolicyError as error:
            if last is None:
                raise PolicyError(error.path, f"{error.problem} (in the {self._what})") from None
            self._bad_digest, self._bad_problem = digest, str(error)
            return self._keep(last, self._bad_problem)
        self._good_digest, self._bad_digest = digest, b""
        return self._accept(document, revision_of(document))

    def miss(self, why: object, remedy: str) -> PolicySnapshot:
        """Return what is in force though the document cannot be read.

        Raises
        ------
        ConfigurationError
            If it never could.
        """
        problem = f"cannot read the {self._what}: {why}"
        if self.snapshot is None:
            raise ConfigurationError(f"{problem}; {remedy}")
        return self._keep(self.snapshot, problem)

    def _accept(self, document: PolicyDocument, revision: str) -> PolicySnapshot:
        last = self.snapshot
        if last is None or last.problem is not None or last.revision != revision:
            logger.info("%s: revision %s is in force", self._what, revision)
            self.snapshot = last = PolicySnapshot(document, revision, None)
        return last

    def _keep(self, last: PolicySnapshot, problem: str) -> PolicySnapshot:
        if last.problem != problem:
            logger.error("%s: %s; revision %s stays in force", self._what, problem, last.revision)
            self.snapshot = last = replace(last, problem=problem)
        return last


class PolicyFile:
    """The policies of a YAML file, read again when it changes.

    Nothing but `stat` is called while the file stays as it is, and `current` then returns the same object. Not safe
    for use by several threads at once.

    Parameters
    ----------
    path : str or os.PathLike
        The file. Replace it by renaming a whole new one onto it; a half-written file is seen as a problem if it does
        not parse, and as a policy if it does.
    clock_ns : Callable
        The wall clock, which is compared with modification times only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock_ns: Callable[[], int] = time.time_ns,  # noqa: TID251 - the clock that the file's times are of
    ) -> None:
        self.path = Path(path)
        self._clock_ns = clock_ns
        self._signature: _Signature | None = None
        self._kept = DocumentInForce(f"policy file {str(self.path)!r}")

    @property
    def problem(self) -> str | None:
        """Why the file, as `current` last saw it, is not in force."""
        return self._kept.snapshot.problem if self._kept.snapshot else None

    def current(self) -> PolicySnapshot:
        """Return the last good document, and what is wrong with the file if something is.

        Raises
        ------
        ConfigurationError
            If the file cannot be read and never could.
        PolicyError
            If the document cannot be applied and there was none before it that could.
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

    Only these are asked for while the object stays as it is. Not safe for use by several threads at once.

    Parameters
    ----------
    uri : str
        As `storage.file_system` takes it.
    clock_ms : Callable
        A steady clock; that of the store is not compared with any.
    open_at : Callable
        Returns the file system of the URI, and the path in it.
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
        """Return the last good document, and what is wrong with the object if something is.

        Raises
        ------
        ConfigurationError
            If the object cannot be read and never could.
        PolicyError
            If the document cannot be applied and there was none before it that could.
        """
        try:
            data = self._changed()
        except (OSError, ValueError) as error:
            self._place, self._signature = None, (None, None)
            return self._kept.miss(error, "give the URI of a YAML file, and what the store needs to be reached")
        if data is None:
            assert self._kept.snapshot is not None  # noqa: S101 - else it would have been read
            return self._kept.snapshot
        return self._kept.examine(data)

    def _changed(self) -> bytes | None:
        """Return the object; `None` if it is as it was read last."""
        # Opened anew after a failure: credentials may have come.
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
        with files.open_input_stream(path) as stream:
            data: bytes = stream.read()
        self._read_ms = now_ms
        return data

    def _is_settled(self, now_ms: int) -> bool:
        """Return whether the object was read after its time could stand for another content no more."""
        is_known = None not in self._signature and self._read_ms >= self._first_seen_ms + OBJECT_SETTLING_MS
        return is_known and now_ms < self._read_ms + OBJECT_STALE_MS
