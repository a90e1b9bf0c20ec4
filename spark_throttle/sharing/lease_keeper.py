"""Keeps a job's lease: visits the exchange in a thread of its own, so that no batch waits for it.

The thread and the control plane meet in one `Sharing`, under a lock that is held for computing only. A visit looks at
all registers, lets the plane take up a smaller share if there is one, and writes this job's report: at least once an
interval, and at once if others wait for what it says. Whatever the exchange does, the plane gets an answer: the share
while the lease lasts, then the floor. A visit that hangs is waited for by nobody.

*Pace.* A share is right a cycle after a demand is known because nobody waits for a tick: a job of few scopes looks four
times an interval, so that it sees what others want, and sixteen times while something of it is under way: a demand to
be told, a claim that others have to answer. A new demand, and a smaller share that is pinned, are told at once. What
that costs is bounded: in an interval a job reads at most `_READS` registers, or each once if there are more, and
writes sixteen times, at most 16 KiB each. Jobs of more than `HURRYING_SCOPES` visit once an interval.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_throttle.sharing.exchanges.exchange import Exchange
from spark_throttle.sharing.measurement import Measurement
from spark_throttle.sharing.register import ShareRegister
from spark_throttle.sharing.sharing import Share, Sharing
from spark_throttle.sharing.status import Observation

logger = logging.getLogger(__name__)

HURRYING_SCOPES: Final = 256
"""A job with so few scopes, whose report is small, visits more often than once an interval."""

_CALM, _HURRIED = 4, 16
"""Visits an interval while all is settled, and while something is under way."""

_READS: Final = 512
"""Of registers, in an interval, by a job that hurries; a quarter of it by one that does not."""


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
        Called with what `status` shows, after every report, and whenever a visit went wrong.
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
        forget_ms = self.settings.forget_ms + self.settings.margin_ms
        self._register = ShareRegister(exchange, sharing.member, clocks.steady_ms, forget_ms, sharing.run)
        self._lock = threading.Lock()
        self._has_pinned = threading.Event()
        self._has_moved = threading.Event()
        self._ends = threading.Event()
        self._visit_began_ms: int | None = None
        self._last_visit_ms = clocks.steady_ms() - self.settings.interval_ms  # the first is due
        self._told_ms: int | None = None
        self._shrinks_since_ms: int | None = None
        self._unreadable: Mapping[str, str] = {}
        self._warned_of = ""
        self._is_untold = False
        self.problem: str | None = None
        """What went wrong in the last visit; `None` if nothing did."""

    # -------------------------------------------------------------------------------------------- for the control plane

    def measure(self, measured: Measurement) -> None:
        """Say what the job's namespaces want."""
        with self._lock:
            self._sharing.measure(measured)
        self._has_moved.set()

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
        self._has_moved.set()

    # ------------------------------------------------------------------------------------------------- for the thread

    def start(self) -> None:
        """Visit the exchange whenever a visit is due, until `stop`."""
        threading.Thread(target=self._run, name="throttle-exchange", daemon=True).start()

    def stop(self) -> None:
        """Visit no more, after the visit that is under way."""
        self._ends.set()
        self._has_moved.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._has_moved.clear()
            self._has_moved.wait(self.act() / 1000)

    def act(self) -> int:
        """Do what is due, and return for how many ms nothing is unless the plane says something; 0 to ask again."""
        wait_ms = self.next_visit_ms() - self._clocks.steady_ms()
        if wait_ms <= 0:
            self.visit()
        elif self._has_pinned.is_set():
            self.tell()
        else:
            return wait_ms
        return 0

    def next_visit_ms(self) -> int:
        """Return when the next visit is due, by the steady clock; what the plane says may bring it nearer."""
        sharing = self._sharing
        with self._lock:
            if len(sharing.ids) > HURRYING_SCOPES:
                visits = 1
            elif self.problem is not None or sharing.is_settled:
                visits = min(_CALM, _READS // _CALM // (1 + sharing.others))
            else:
                visits = min(_HURRIED, _READS // (1 + sharing.others))
        return self._last_visit_ms + self.settings.interval_ms // max(visits, 1)

    def visit(self) -> None:
        """Look at what others reported, and report if it is time, or if others wait for it."""
        self._last_visit_ms = self._visit_began_ms = self._clocks.steady_ms()
        self._guarded(self._look_and_tell)
        self._visit_began_ms = None

    def tell(self) -> None:
        """Report at once what the plane has pinned, if others wait for it."""
        self._has_pinned.clear()
        if self.problem is None:
            self._guarded(self._tell)

    def _guarded(self, step: Callable[[], bool]) -> None:
        has_told = False
        try:
            has_told = step()
        except Exception as error:  # noqa: BLE001 - an exchange may fail in any way, and the job must go on
            self._note(f"{type(error).__name__}: {error}")
        else:
            # This job's own register is whole again by now.
            problems = [f"job {who}: {why}" for who, why in self._unreadable.items() if who != self._sharing.member]
            if not self._sharing.is_superseded:
                self._note(f"reports that cannot be read: {'; '.join(problems)}" if problems else None)
        if has_told or self.problem is not None:
            self._tell_status()

    def _look_and_tell(self) -> bool:
        started_ms = self._clocks.steady_ms()
        with self._lock:
            ids = self._sharing.ids
        found = self._register.read(ids)
        self._unreadable = found.unreadable
        self._has_pinned.clear()
        with self._lock:
            self._sharing.take_in(found, started_ms=started_ms, now_ms=self._clocks.steady_ms())
            is_superseded, is_established = self._sharing.is_superseded, self._sharing.is_established
            mark = self._sharing.mark
        if is_superseded:
            self._end()
            return True
        has_told = self._tell()
        if is_established:
            self._register.remove_before(mark)
        return has_told

    def _end(self) -> None:
        """Visit no more, as another run of this job goes on."""
        self._ends.set()
        problem = (
            f"another process runs this job (member {self._sharing.member}) and began later; this one may use nothing "
            f"of the shared quotas any more: stop one of the two, or give it a checkpoint of its own"
        )
        if problem != self.problem:
            logger.error("exchange: %s", problem)
        self.problem = problem

    def _tell(self) -> bool:
        """Publish a report, if it is time or others wait for it; return whether it did."""
        with self._lock:
            now_ms = self._clocks.steady_ms()
            if not self._is_due(now_ms):
                return False
            update = self._sharing.next_report(now_ms=now_ms, wall_ms=self._clocks.wall_ms())
        self._told_ms = None  # until it is written
        self._register.publish(update)
        self._told_ms = now_ms
        return True

    def _is_due(self, now_ms: int) -> bool:
        """Return whether to report now.

        That is when the last report is nearly an interval old, or this job's register is not as it should be, or others
        wait for what is new. But what others wait for most is that the plane writes an epoch with a smaller share: it
        has half an interval to do so.
        """
        if not self._sharing.must_shrink:
            self._shrinks_since_ms = None
        elif self._shrinks_since_ms is None:
            self._shrinks_since_ms = now_ms
        interval_ms = self.settings.interval_ms
        if self._told_ms is None or self._sharing.member in self._unreadable:
            return True
        if self._shrinks_since_ms is not None and now_ms - self._shrinks_since_ms < interval_ms // 2:
            return False
        return now_ms - self._told_ms >= interval_ms - interval_ms // (2 * _CALM) or self._sharing.must_tell

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
        if word != self._warned_of and not self._sharing.is_superseded:
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
        try:
            self._on_visit(replace(observation, as_of_ms=self._clocks.wall_ms(), problem=problem))
        except Exception as error:  # noqa: BLE001 - leases do not depend on who is told of them
            if not self._is_untold:
                logger.warning("exchange: %s: %s; visits go on without a status", type(error).__name__, error)
            self._is_untold = True
        else:
            self._is_untold = False

    @property
    def hangs_for_ms(self) -> int:
        """How long the visit that is under way has taken; 0 between visits."""
        began_ms = self._visit_began_ms
        return 0 if began_ms is None else self._clocks.steady_ms() - began_ms
