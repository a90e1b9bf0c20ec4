"""Notes that a job leaves in its control directory for people and for the watch of a server; no decision reads them.

A *sign of life* is written again and again, also when the job is idle: an idle query runs no batch, so an old batch
says nothing about whether the job lives. It counts up, so that whoever watches it sees it change without comparing two
machines' clocks. It also says when Spark last asked the driver for the next batch: a query that hangs keeps its
process, and thus its sign, but it asks for nothing.

Signs are given by a thread of the driver, beside the batches, that no batch waits for (`Pulse`): when the run takes
over its control directory, then once per interval, and when the query ends. Before each, the thread looks whether the
directory still belongs to its run; a run that was taken over is silent from then on. A sign that cannot be written is a
warning and no failure: whoever watches sees the job fall silent.

The *policies* that the job follows are noted whenever they change. Against the note that was there, also an earlier
run's, the log tells what nobody may have meant: that no limit is left, and that the store has gone back.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

from spark_throttle.control.clock import Clock
from spark_throttle.control.run_fence import RunFence, owner_of
from spark_throttle.errors import DamagedError, StoredFormatError
from spark_throttle.files.storage import Directory, read_note
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.record import Count, Name, WallMs, Within, to_json

NAME: Final = "alive.json"

SIGN_INTERVAL_MS: Final = 10_000
"""How often a job gives a sign of life. On an object store that is one read and one write of a small file each time."""

MOST_INTERVAL_MS: Final = 86_400_000
"""A sign that says it is given less often than once a day is damaged: its job would never count as silent."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a job's driver last wrote about itself."""

    run: Name
    """The run that gave the sign (`run_fence`); of two runs, only the directory's owner counts."""

    number: Count
    """How many signs the run had given before this one."""

    interval_ms: Annotated[int, Within(1, MOST_INTERVAL_MS)]
    """How often the run gives a sign."""

    wall_ms: WallMs
    """When the sign was given, by the wall clock of the job's machine."""

    steady_ms: WallMs
    """The same by its steady clock, which only a reader on the same boot of the same machine can compare."""

    boot: Annotated[str, Within(0, 1000)]
    """An id of the machine start from which the steady clock counts."""

    asked_ms: WallMs
    """How long before the sign Spark had last asked for a batch."""

    longest_pause_ms: WallMs
    """The longest time between two such calls in this run: a trigger or a batch may take that long."""

    has_ended: bool = False
    """Whether the query ended in good order after this sign."""

    cores: Annotated[int, Within(1, 10_000_000)] | None = None
    """The cores of the job's cluster when its run began; `None` where nobody knows them."""

    def __post_init__(self) -> None:
        # The steady clock counts from the start of the machine, so nothing of the run is longer ago than that.
        for name in ("asked_ms", "longest_pause_ms"):
            if getattr(self, name) > self.steady_ms:
                raise ValueError(f"{name} is {getattr(self, name)}, and the machine has run for {self.steady_ms} ms")


def write_sign_of_life(directory: Directory, sign: SignOfLife) -> None:
    """Write a sign of life over the one before."""
    directory.write(NAME, to_json(sign))


def read_sign_of_life(directory: Directory) -> SignOfLife | None:
    """Return the newest sign of life; `None` where the job gave none."""
    return read_note(directory, NAME, SignOfLife, "the sign of life")


logger = logging.getLogger(__name__)

_LAST_SIGN_SECONDS = 5.0
"""How long the end of a query waits for its last sign, in case the directory hangs."""


class Pulse:
    """The signs of life of one run.

    Parameters
    ----------
    directory
        The job's control directory.
    fence
        The run's mark in the directory.
    clock
        The clocks of the job's machine.
    interval_ms
        How often a sign is given.
    cores
        The cores of the job's cluster, which its signs tell.
    """

    def __init__(
        self,
        directory: Directory,
        fence: RunFence,
        clock: Clock,
        *,
        interval_ms: int = SIGN_INTERVAL_MS,
        cores: int | None = None,
    ) -> None:
        self._directory = directory
        self._fence = fence
        self._clock = clock
        self._interval_ms = interval_ms
        self._cores = cores
        self._number = 0
        self._asked_ms = clock.steady_ms()
        self._longest_pause_ms = 0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem = ""

    def note_call(self) -> None:
        """Note that Spark asks for a batch; called for every trigger, from Spark's thread."""
        now_ms = self._clock.steady_ms()
        self._longest_pause_ms = max(self._longest_pause_ms, now_ms - self._asked_ms)
        self._asked_ms = now_ms

    def start(self) -> None:
        """Give signs from a thread of their own until `stop`; the first one at once."""
        self._thread = threading.Thread(target=self._run, name="throttle-pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give the last sign, which says that the query has ended; called once, when it ends.

        It does not wait for a directory that hangs.
        """
        self._ends.set()
        if self._thread is not None:
            self._thread.join(_LAST_SIGN_SECONDS)

    def _run(self) -> None:
        while self.beat() and not self._ends.wait(self._interval_ms / 1000):
            pass
        if self._ends.is_set():
            self.beat(has_ended=True)

    def beat(self, *, has_ended: bool = False) -> bool:
        """Give a sign; return whether to go on, which ends once another run has taken over the directory.

        A directory that was deleted stays deleted.
        """
        try:
            owner = owner_of(self._directory)
            if owner not in (None, self._fence.run):
                logger.info("signs of life end: another run has taken over %s", self._directory.location)
                return False
            if owner is not None:
                write_sign_of_life(self._directory, self._sign(has_ended=has_ended))
        except Exception as error:  # noqa: BLE001 - a store may fail in any way; batches do not depend on signs
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem:
                logger.warning("no sign of life could be given: %s; the job goes on, and seems silent", problem)
            self._problem = problem
            return True
        self._problem = ""
        self._number += 1
        return True

    def _sign(self, *, has_ended: bool) -> SignOfLife:
        now_ms = self._clock.steady_ms()
        return SignOfLife(
            self._fence.run, self._number, self._interval_ms, self._clock.wall_ms(), now_ms, self._clock.boot,
            max(0, now_ms - self._asked_ms), self._longest_pause_ms, has_ended,
            self._cores,
        )  # fmt: skip


_POLICIES_NAME = "followed.json"


@dataclass(frozen=True, slots=True)
class ExceptionInForce:
    """One exception that the next batch is planned with."""

    path: Annotated[str, Within(0, 2000)]
    """The path of its entry in a policy document, such as ``tenants.acme``."""

    until_ms: WallMs
    """When it ends, by the wall clock of the job's machine."""

    reason: Annotated[str, Within(0, 1000)]


def exceptions_in_force(document: PolicyDocument, now_ms: int) -> tuple[ExceptionInForce, ...]:
    """Return the exceptions of a document that have not ended; the first to end comes first."""
    return tuple(
        ExceptionInForce(path, each.until_ms, each.reason)
        for path, each in document.exceptions
        if now_ms < each.until_ms
    )


@dataclass(frozen=True, slots=True)
class NextPolicies:
    """The policies that the next batch is planned with."""

    revision: Annotated[str, Within(0, 1000)]
    """An id of the policies' content for the direction that the job enforces (`compile.revision_of`)."""

    store_revision: Count | None
    """The store's revision; `None` where the job follows a file or a fixed document."""

    problem: Annotated[str, Within(0, 1_000_000)] | None
    """Why the present content of the file or the store is not in force; `None` if it is."""

    exceptions: tuple[ExceptionInForce, ...] = ()
    """The exceptions in force; the first to end comes first."""

    @property
    def named(self) -> str:
        """The revision as messages name it: the policy store's, or that of the content."""
        return f"of revision {self.revision if self.store_revision is None else self.store_revision}"


def write_next_policies(directory: Directory, followed: NextPolicies) -> None:
    """Write the policies that a job follows, over those noted before."""
    directory.write(_POLICIES_NAME, to_json(followed))


def warn_of_lost_policies(directory: Directory, followed: NextPolicies, *, limits_nothing: bool) -> None:
    """Warn if the policies that follow those noted limit nothing, or come from an older revision of the store."""
    with suppress(DamagedError, StoredFormatError):  # a note decides nothing, and is about to be written anew
        before = read_next_policies(directory)
        if before is None or before.revision == followed.revision:
            return
        if limits_nothing:
            logger.warning("policies %s limit nothing: every row is admitted from the next batch on", followed.named)
        if (before.store_revision or 0) > (followed.store_revision or 0) > 0:
            logger.warning(
                "the policy store has gone back from revision %s to revision %s, which is in force: a backup was put "
                "back, or this is another store; what was changed since is lost",
                before.store_revision, followed.store_revision,
            )  # fmt: skip


def read_next_policies(directory: Directory) -> NextPolicies | None:
    """Return the policies that a job follows, or `None` before its first batch is planned."""
    return read_note(directory, _POLICIES_NAME, NextPolicies, "the file")
