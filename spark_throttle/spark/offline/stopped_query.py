"""A stopped query's checkpoint, taken over by a tool: no run of the query goes on in it from here on.

A tool works on what the last committed batch has left. So it refuses a checkpoint with a planned batch that is not
committed, which only the query can finish, and one whose query gives signs of life. Spark may kill a query's source
before it gives the last sign, so after a recent one the tool waits until the next would be due. A silent run may still
be alive: the tool takes the control directory from it, as a new run of the query would (`control.run_fence`), and it
ends before it plans another batch. A batch that it was in the middle of shows in the log.

While a tool changes something, it is a run of its own: it owns the directory and gives signs of life, so that a second
tool is refused as a query would be. It writes first, then looks whether the directory is still its own. A query that
starts takes the directory first, then looks at what the tool writes (`query_plane`). So if they cross, one of the two
sees the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from spark_throttle.checkpoint.manifest import Manifest, read_manifest
from spark_throttle.checkpoint.offset_log import read_offset_log
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import Pulse, read_sign_of_life
from spark_throttle.control.run_fence import RunFence, owner_of
from spark_throttle.errors import ConfigurationError, DamagedError, TakenOverError
from spark_throttle.files.storage import Directory
from spark_throttle.status.liveness import SignWatch

_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class StoppedQuery:
    """The checkpoint of a query that has stopped after a batch was committed."""

    checkpoint: str
    """The checkpoint, as Spark resolves it."""

    directory: Directory
    """The control directory."""

    manifest: Manifest
    batch: int
    """The last batch, which is committed."""

    owner: str | None
    """The run that the control directory belongs to: the last one of the query, or the tool."""

    fence: RunFence
    """The tool's mark in the control directory."""

    clock: Clock

    def check(self) -> None:
        """Refuse to go on if the query was started meanwhile, or has planned a batch.

        Raises
        ------
        TakenOverError
            If the control directory belongs to another run, or the log has another batch.
        """
        log = read_offset_log(Directory(self.checkpoint))
        if (log.logged, log.committed) != (self.batch, self.batch) or owner_of(self.directory) != self.owner:
            raise TakenOverError(self.directory.location)

    @contextmanager
    def taken(self) -> Iterator[StoppedQuery]:
        """Own the control directory, and give signs of life in it, while the checkpoint is changed.

        Raises
        ------
        TakenOverError
            If another run has begun since the checkpoint was looked at, or the log has another batch.
        """
        self.check()
        self.fence.begin()
        pulse = Pulse(self.directory, self.fence, self.clock)
        pulse.beat()  # before anything is written: a second tool looks for it
        pulse.start()
        try:
            query = replace(self, owner=self.fence.run)
            query.check()
            yield query
        finally:
            pulse.stop()


def stopped_query(
    checkpoint: str, control_path: str, clock: Clock, pause: Callable[[float], object] | None = None
) -> StoppedQuery:
    """Return a query's checkpoint, after taking it over from the query.

    Parameters
    ----------
    pause
        Function that waits for a number of seconds.

    Raises
    ------
    ConfigurationError
        If no query has committed a batch there, if its last batch is not committed, or if the query runs.
    DamagedError
        If the offsets of the last batch are gone.
    """
    directory = Directory(control_path)
    fence = RunFence(directory)
    manifest = read_manifest(directory)
    log = read_offset_log(Directory(checkpoint))
    if manifest is None or log.committed < 0:
        raise ConfigurationError(
            f"{checkpoint!r} is not the checkpoint of a throttled query that has committed a batch, or its control "
            f"directory is not {control_path!r}: give the checkpointLocation that the query was started with, and the "
            f"control path if it was given one, in a process that sees both: a client of Spark Connect may see neither"
        )
    has_ended = _has_ended(directory, clock, pause or threading.Event().wait)
    if log.uncommitted is not None:
        raise ConfigurationError(
            f"batch {log.uncommitted} of {checkpoint!r} is planned and not committed, and its sinks may have it: start "
            f"the query as it was, with trigger(processingTime='1 day'), stop it after its first batch, then try again "
            f"(docs/changing-a-job.md, how to stop between two batches)"
        )
    if log.logged < log.committed:
        what = f"the offsets of batch {log.committed} in {checkpoint}"
        raise DamagedError(what, "they are gone, and the batch is committed")
    if not has_ended:
        fence.begin()
    query = StoppedQuery(checkpoint, directory, manifest, log.committed, owner_of(directory), fence, clock)
    query.check()
    return query


def _has_ended(directory: Directory, clock: Clock, pause: Callable[[float], object]) -> bool:
    """Return whether the query is known to have ended; where its last sign is recent, wait for the next.

    Raises
    ------
    ConfigurationError
        If it gives another sign of life.
    """
    watch, first = SignWatch(directory, clock), read_sign_of_life(directory)
    watch.look()
    until_ms = clock.steady_ms() + (0 if first is None else first.interval_ms * 3 // 2)
    while watch.liveness().state in ("reporting", "hanging") and clock.steady_ms() < until_ms:
        pause(_LOOK_SECONDS)
        sign = read_sign_of_life(directory)
        if sign is not None and not sign.has_ended and sign != first:
            raise ConfigurationError(
                f"the query of the control directory {directory.location} runs: it gives signs of life; stop it first, "
                f"or let the drain that gives them end"
            )
        watch.look()
    return watch.liveness().state == "ended"
