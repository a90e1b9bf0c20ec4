"""Kept calls go on being sent while batches come and go: in threads of the driver, from batch to batch.

A destination that enforces a limit gives nothing for a time in which it was not asked, and a second or more of each
batch goes by while it is planned, its tasks start, and it is committed. So what a batch admits for destinations is kept
at once, and sent from here until the next batch has its own ready; that one is told what was taken meanwhile. The calls
are in the checkpoint until then: a crash sends them again, with the same keys.

A batch waits for calls in flight only for a moment. The thread of those that last longer ends with them, and the next
one learns from it how they end.

It ends by itself when the query does: twice a second it looks whether the query is active.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from spark_throttle.checkpoint.unsent import Held
from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.core.shares.destinations import Told
from spark_throttle.spark.paced.in_flight import InFlight, Stop

_LOOKS_EVERY_SECONDS: Final = 0.5
_MOMENT_SECONDS: Final = 0.25
"""How long a batch waits for calls in flight."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of a destination when sending to it begins."""

    aimd: Aimd
    """What its rate follows."""

    closed_until_ms: int = 0
    """The wall-clock time before which it asked not to be called; 0 if it did not ask."""


@dataclass(frozen=True, slots=True)
class SentMeanwhile:
    """What became of kept calls since the batch before."""

    unsent: list[bytes]
    """Those that are still kept, as tables."""

    told: Mapping[str, Told]
    """What destinations said."""

    heard: Mapping[str, Heard]
    """What is known of them after that."""

    used_ns: int
    """The CPU time of the thread."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """In whose names unsent calls are refused, if not in their destinations', by namespace."""

    in_flight: InFlight = field(default_factory=dict)
    """The unsent calls that are on their way."""


Sending: TypeAlias = Callable[[Stop, Callable[[SentMeanwhile], None]], None]
"""Sends until it is stopped, or nothing is left; says what became of the calls, and waits for those on their way."""


class KeptSender:
    """The threads of one query, of which one sends, and others wait for calls that last."""

    def __init__(self) -> None:
        self._batch = -1
        self._stop = Stop()
        self._found: Future[SentMeanwhile] | None = None
        self._is_active: Callable[[], bool] = lambda: True

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Send only while the query is active."""
        self._is_active = is_active

    def goes_on(self, batch: int) -> bool:
        """Return whether it was begun with what a batch left."""
        return self._found is not None and self._batch == batch

    def begin(self, batch: int, send: Sending) -> None:
        """Begin to send what a batch left."""
        self.end()
        self._batch, self._stop, self._found = batch, Stop(), Future()
        thread = threading.Thread(
            target=_run, args=(send, self._stop, self._found), name="sends kept calls", daemon=True
        )
        thread.start()
        threading.Thread(target=self._watch, args=(thread, self._stop), name="looks at the query", daemon=True).start()

    def end(self, *, hands_over: bool = False) -> SentMeanwhile | None:
        """Let nothing more leave, and return what was found; `None` if it was not begun.

        Parameters
        ----------
        hands_over
            Whether the next sending takes over what is in flight, if that does not end in a moment; else it is waited
            for until it ends.

        Raises
        ------
        BaseException
            What the sending raised.
        """
        if self._found is None:
            return None
        self._stop.set(moment_seconds=_MOMENT_SECONDS if hands_over else None)
        found, self._found = self._found, None
        meanwhile = found.result()
        if not hands_over:
            wait(meanwhile.in_flight.values())
        return meanwhile

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


def _run(send: Sending, stop: Stop, found: Future[SentMeanwhile]) -> None:
    try:
        send(stop, found.set_result)
    except BaseException as error:
        if found.done():  # the batch was told, and does not wait
            raise
        found.set_exception(error)
