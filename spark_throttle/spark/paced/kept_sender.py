"""Kept calls go on being sent while batches come and go: in one thread of the driver, from batch to batch.

A destination that enforces a limit gives nothing for a time in which it was not asked, and a second or more of each
batch goes by while it is planned, its tasks start, and it is committed. So what a batch admits for destinations is kept
at once, and sent from here until the next batch has its own ready; that one is told what was taken meanwhile. The calls
are in the checkpoint until then: a crash sends them again, with the same keys.

It ends by itself when the query does: twice a second it looks whether the query is active.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_throttle.core.lending.destinations import Told
from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.spark.paced.sending import Stop

_LOOKS_EVERY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class SentMeanwhile:
    """What became of kept calls since the batch before."""

    unsent: list[bytes]
    """Those that are still kept, as tables."""

    told: Mapping[str, Told]
    """What destinations said."""

    aimds: Mapping[str, Aimd]
    """What their rates follow after that."""

    used_ns: int
    """The CPU time of the thread."""


Sending: TypeAlias = Callable[[Stop], SentMeanwhile]
"""Sends until it is stopped, or nothing is left."""


class KeptSender:
    """The thread of one query."""

    def __init__(self) -> None:
        self._batch = -1
        self._stop = Stop()
        self._thread: threading.Thread | None = None
        self._found: SentMeanwhile | BaseException | None = None
        self._is_active: Callable[[], bool] = lambda: True

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Send only while the query is active."""
        self._is_active = is_active

    def goes_on(self, batch: int) -> bool:
        """Return whether it was begun with what a batch left."""
        return self._thread is not None and self._batch == batch

    def begin(self, batch: int, send: Sending) -> None:
        """Begin to send what a batch left."""
        self.end()
        self._batch, self._stop, self._found = batch, Stop(), None
        self._thread = threading.Thread(target=self._run, args=(send, self._stop), name="sends kept calls", daemon=True)
        self._thread.start()
        threading.Thread(
            target=self._watch, args=(self._thread, self._stop), name="looks at the query", daemon=True
        ).start()

    def end(self) -> SentMeanwhile | None:
        """Let nothing more leave, wait for the calls in flight, and return what was found; `None` if it was not begun.

        Raises
        ------
        BaseException
            What the sending raised.
        """
        if self._thread is None:
            return None
        self._stop.set()
        self._thread.join()
        self._thread, found = None, self._found
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self, send: Sending, stop: Stop) -> None:
        try:
            self._found = send(stop)
        except BaseException as error:  # noqa: BLE001 - the next batch raises it
            self._found = error

    def _watch(self, thread: threading.Thread, stop: Stop) -> None:
        while thread.is_alive():
            thread.join(_LOOKS_EVERY_SECONDS)
            if not self._still_active():
                stop.set()
                return

    def _still_active(self) -> bool:
        try:
            return self._is_active()
        except Exception:  # noqa: BLE001 - the session is gone, and the query with it
            return False
