"""Policies from a source that may hang: a store on a network, a file on a mount that has gone away.

A batch must neither wait for such a source nor run without limits. So a separate thread asks the source, and a batch
waits for the answer as long as a healthy source may take: a change committed before a batch is planned acts in that
batch. If the source has not answered by then, the last good policies stay in force; this is logged once, and every
snapshot says so. No later batch waits for that answer; when it comes, it counts.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Final

from spark_throttle.errors import ConfigurationError
from spark_throttle.policy.source import PolicySnapshot, PolicySource

logger = logging.getLogger(__name__)

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
