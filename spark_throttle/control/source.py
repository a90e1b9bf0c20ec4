"""A policy file that is followed while jobs run.

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
from typing import Final, TypeAlias

from spark_throttle.control.codec import parse_policies
from spark_throttle.control.compile import revision_of
from spark_throttle.control.model import PolicyDocument
from spark_throttle.errors import ConfigurationError, PolicyError

logger = logging.getLogger(__name__)

_Signature: TypeAlias = tuple[int, int, int]

SETTLING_NS: Final = 50_000_000
"""A file changed so recently may change again without a new modification time: clocks of file systems are coarse."""


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
        self._good_digest = b""
        self._bad_digest = b""
        self._bad_problem = ""
        self._snapshot: PolicySnapshot | None = None

    @property
    def problem(self) -> str | None:
        """Why the file, as `current` last saw it, is not in force."""
        return self._snapshot.problem if self._snapshot else None

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
            if self._snapshot is not None and signature == self._signature:
                return self._snapshot
            data = self.path.read_bytes()
        except OSError as error:
            self._signature = None
            problem = f"cannot read the policy file {str(self.path)!r}: {error.strerror}"
            if self._snapshot is None:
                raise ConfigurationError(f"{problem}; give the path of a YAML file") from error
            return self._keep(self._snapshot, problem)
        snapshot = self._examine(data)
        is_settling = 0 <= self._clock_ns() - status.st_mtime_ns < SETTLING_NS
        self._signature = None if is_settling else signature
        return snapshot

    def _examine(self, data: bytes) -> PolicySnapshot:
        digest = hashlib.sha256(data).digest()
        last = self._snapshot
        if last is not None and digest == self._good_digest:
            return self._accept(last.document, last.revision)
        if last is not None and digest == self._bad_digest:
            return self._keep(last, self._bad_problem)
        try:
            document = parse_policies(data)
        except PolicyError as error:
            if last is None:
                raise PolicyError(error.path, f"{error.problem} (in the policy file {str(self.path)!r})") from None
            self._bad_digest, self._bad_problem = digest, str(error)
            return self._keep(last, self._bad_problem)
        self._good_digest, self._bad_digest = digest, b""
        return self._accept(document, revision_of(document))

    def _accept(self, document: PolicyDocument, revision: str) -> PolicySnapshot:
        last = self._snapshot
        if last is None or last.problem is not None or last.revision != revision:
            logger.info("policy file %s: revision %s is in force", self.path, revision)
            self._snapshot = last = PolicySnapshot(document, revision, None)
        return last

    def _keep(self, last: PolicySnapshot, problem: str) -> PolicySnapshot:
        if last.problem != problem:
            logger.error("policy file %s: %s; revision %s stays in force", self.path, problem, last.revision)
            self._snapshot = last = replace(last, problem=problem)
        return last
