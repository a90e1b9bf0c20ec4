"""The giver of a job's signs of life: a thread of the driver, beside the batches, that no batch waits for.

A sign is given when the run takes over its control directory, then once per interval, and when the query ends. Before
each, the thread looks whether the directory still belongs to its run; a run that was taken over is silent from then on.
A sign that cannot be written is a warning and no failure: whoever watches sees the job fall silent.
"""

from __future__ import annotations

import logging
import threading

from spark_throttle.control.clock import Clock
from spark_throttle.control.run_fence import RunFence, owner_of
from spark_throttle.control.sign_of_life import SIGN_INTERVAL_MS, SignOfLife, write_sign_of_life
from spark_throttle.files.storage import Directory

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
        """Give the last sign, which says that the query has ended; called once, by Spark, unless it kills the process.

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
