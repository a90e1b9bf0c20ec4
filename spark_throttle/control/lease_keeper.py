"""Keeps a job's lease: visits the exchange in a thread of its own, so that no batch waits for it.

The thread and the control plane meet in one `Sharing`, under a lock that is held for computing only. A visit reads all
registers, lets the plane take up a smaller share if there is one, and writes this job's report. Whatever the exchange
does, the plane gets an answer: the share while the lease lasts, then the floor. A visit that hangs is waited for by
nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from spark_throttle.control.exchange import Exchange
from spark_throttle.control.share_register import ShareRegister
from spark_throttle.control.share_status import Observation
from spark_throttle.control.sharing import Measured, Share, Sharing

logger = logging.getLogger(__name__)

HURRYING_SCOPES: Final = 256
"""A job with so few scopes, whose report is small, visits more often while something of it is under way."""

_HURRY: Final = 4


@dataclass(frozen=True, slots=True)
class Clocks:
    """What time it is, in ms."""

    steady_ms: Callable[[], int]
    """Never set, and goes on while the machine sleeps: measures leases."""

    wall_ms: Callable[[], int]
    """What people read; says when a report was written."""


class LeaseKeeper:
    """One job's side of the exchange, for its control plane and its thread.

    Parameters
    ----------
    on_visit
        Called after every visit, with what `status` shows.
    """

    def __init__(
        self,
        sharing: Sharing,
        exchange: Exchange,
        clocks: Clocks,
        on_visit: Callable[[Observation], None] | None = None,
    ) -> None:
        self.settings = sharing.settings
        self._sharing = sharing
        self._clocks = clocks
        self._on_visit = on_visit
        oldest_ms = self.settings.forget_ms + self.settings.lease_ms
        self._register = ShareRegister(exchange, sharing.member, lambda: clocks.wall_ms() - oldest_ms)
        self._lock = threading.Lock()
        self._has_pinned = threading.Event()
        self._hurries = threading.Event()
        self._ends = threading.Event()
        self._visit_began_ms: int | None = None
        self._warned_of = ""
        self.problem: str | None = None
        """What went wrong in the last visit; `None` if nothing did."""

    # -------------------------------------------------------------------------------------------- for the control plane

    def measure(self, measured: Measured) -> None:
        """Say what the job's namespaces want."""
        with self._lock:
            self._sharing.measure(measured)
            if len(measured.ids) <= HURRYING_SCOPES and not self._sharing.is_settled:
                self._hurries.set()

    def share(self) -> Share:
        """Return what the job may use now; a share that was hidden by a lapse is the floor."""
        with self._lock:
            share = self._sharing.share(self._clocks.steady_ms())
        self._tell_lapse(share)
        return share

    def paid_ms(self, since_ms: int) -> int:
        """Return how much of the time since `since_ms`, by the steady clock, was leased."""
        with self._lock:
            now_ms = self._clocks.steady_ms()
            self._sharing.share(now_ms)
            fell_ms = self._sharing.fell_at_ms
        end_ms = now_ms if fell_ms is None or fell_ms <= since_ms else fell_ms
        return max(0, end_ms - since_ms)

    def begin_pin(self) -> tuple[Share, int]:
        """Return what an epoch may hold, and the time: until `end_pin` the job counts as using either share."""
        with self._lock:
            now_ms = self._clocks.steady_ms()
            share = self._sharing.share(now_ms)
            self._sharing.pin_also(share.ids, share.rate)
            return share, now_ms

    def end_pin(self, share: Share) -> None:
        """Say that the epoch which holds `share` is written."""
        with self._lock:
            self._sharing.pin(share.ids, share.rate)
        self._has_pinned.set()

    # ------------------------------------------------------------------------------------------------- for the thread

    def start(self) -> None:
        """Visit the exchange every interval, or four times as often while a job of few scopes waits, until `stop`."""
        threading.Thread(target=self._run, name="throttle-exchange", daemon=True).start()

    def stop(self) -> None:
        """Visit no more, after the visit that is under way."""
        self._ends.set()
        self._hurries.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            began_ms = self._clocks.steady_ms()
            self.visit()
            self._ends.wait(self._left_ms(began_ms, self.settings.interval_ms // _HURRY) / 1000)
            with self._lock:
                waits = len(self._sharing.ids) <= HURRYING_SCOPES and not self._sharing.is_settled
            if not waits:
                self._hurries.clear()
                self._hurries.wait(self._left_ms(began_ms, self.settings.interval_ms) / 1000)

    def _left_ms(self, began_ms: int, interval_ms: int) -> int:
        return max(0, interval_ms - (self._clocks.steady_ms() - began_ms))

    def visit(self, patience_ms: int | None = None) -> None:
        """Read what others reported, and report.

        Parameters
        ----------
        patience_ms
            How long the plane may take to write an epoch with a smaller share, before the larger one is reported once
            more; half an interval by default.
        """
        self._visit_began_ms = self._clocks.steady_ms()
        try:
            self._visit(self.settings.interval_ms // 2 if patience_ms is None else patience_ms)
        except Exception as error:  # noqa: BLE001 - an exchange may fail in any way, and the job must go on
            self._note(f"{type(error).__name__}: {error}")
        else:
            self._note(None)
        finally:
            self._visit_began_ms = None
        self._tell_status()

    def _visit(self, patience_ms: int) -> None:
        started_ms = self._clocks.steady_ms()
        with self._lock:
            ids = self._sharing.ids
        found = self._register.read(ids)
        self._has_pinned.clear()
        with self._lock:
            self._sharing.take_in(found, started_ms=started_ms, now_ms=self._clocks.steady_ms())
            must_shrink = self._sharing.must_shrink
            is_superseded = self._sharing.is_superseded
        if is_superseded:
            self._ends.set()
            raise RuntimeError(
                "another process runs this job, from the same checkpoint; this one uses nothing any more"
            )
        if must_shrink:
            self._has_pinned.wait(patience_ms / 1000)
        with self._lock:
            update = self._sharing.next_report(now_ms=self._clocks.steady_ms(), wall_ms=self._clocks.wall_ms())
        self._register.publish(update)
        # This job's own is whole again by now.
        problems = [
            f"job {member}: {why}" for member, why in found.unreadable.items() if member != self._sharing.member
        ]
        if problems:
            raise RuntimeError(f"reports that cannot be read: {'; '.join(problems)}")

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            logger.warning(
                "exchange: %s; the job keeps its share until its lease ends, then its floor, and goes on trying",
                problem,
            )
        elif problem is None and self.problem is not None:
            logger.info("exchange: visited again without a problem")
        self.problem = problem

    def _tell_lapse(self, share: Share) -> None:
        word = "leased" if share.is_leased else "lapsed"
        if word != self._warned_of:
            if word == "leased":
                logger.info("exchange: the lease holds; %d scopes are shared", len(share.ids))
            elif self._warned_of:
                logger.warning("exchange: the lease ended; until it is renewed the job uses its floor")
            self._warned_of = word
            self._tell_status()
        hangs_ms = self.hangs_for_ms
        if hangs_ms > 2 * self.settings.interval_ms and self.problem is None:
            self._note(f"a visit that began {hangs_ms} ms ago has not ended")
            self._tell_status()

    def _tell_status(self) -> None:
        if self._on_visit is None:
            return
        with self._lock:
            observation = self._sharing.observed(self._clocks.steady_ms())
        problem = self.problem or ""
        self._on_visit(replace(observation, as_of_ms=self._clocks.wall_ms(), problem=problem))

    @property
    def hangs_for_ms(self) -> int:
        """How long the visit that is under way has taken; 0 between visits."""
        began_ms = self._visit_began_ms
        return 0 if began_ms is None else self._clocks.steady_ms() - began_ms
