"""The keeper of a job's lease: it visits the exchange in a thread of its own, so that no batch waits for it.

The thread and the control plane meet in one `Sharing`, under a lock that is held only while computing. A visit reads
all registers, lets the plane take up a smaller share if there is one, and writes this job's report: at least once per
interval, and at once if others wait for it. Whatever the exchange does, the plane gets an answer: the share while the
lease lasts, then the floor. Nobody waits for a visit that hangs.

*Pace.* A share is right within two cycles after a change because nobody waits for a tick. A job of few scopes looks
four times per interval, to see what others want, and sixteen times while something of its own is under way: a demand to
report, or a claim that others have to answer. A new demand, and a smaller share that is pinned, are reported at once.
The cost is bounded: in an interval a job reads at most `_READS` registers, or each once if there are more, and writes
at most sixteen times, at most 16 KiB each. A job of more than `HURRYING_SCOPES` scopes visits once per interval.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_throttle.files.storage import one_line
from spark_throttle.sharing.exchange import Exchange
from spark_throttle.sharing.peers import Share, UnreadableRegister, member_of
from spark_throttle.sharing.register import ShareRegister
from spark_throttle.sharing.report import Measurement
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.sharing.status import Observation

logger = logging.getLogger(__name__)

HURRYING_SCOPES: Final = 256
"""A job with at most this many scopes, whose report is small, visits more often than once per interval."""

_CALM, _HURRIED = 4, 16
"""Visits per interval while all is settled, and while something is under way."""

_READS: Final = 512
"""The most registers that a job reads per interval while it hurries, unless there are more; a quarter while calm."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a job's process, in ms."""

    steady_ms: Callable[[], int]
    """The clock that measures leases: it is never set, and goes on while the machine sleeps."""

    wall_ms: Callable[[], int]
    """The clock that people read: it dates a report."""


class LeaseKeeper:
    """One job's side of the exchange, for its control plane and its thread.

    Parameters
    ----------
    on_visit
        Called with what `status` shows: after every report, when the lease begins or ends, and when a visit goes wrong.
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
        self._register = ShareRegister(
            exchange, sharing.member, clocks.steady_ms, self.settings.gone_after_ms, sharing.run,
            self.settings.hold_ms // 3,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._has_pinned = threading.Event()
        self._has_moved = threading.Event()
        self._ends = threading.Event()
        self._visit_began_ms: int | None = None
        self._last_visit_ms = clocks.steady_ms() - self.settings.interval_ms  # the first is due
        self._told_ms: int | None = None
        self._shrinks_since_ms: int | None = None
        self._unreadable: Mapping[str, UnreadableRegister] = {}
        self._concern = ""
        """What is wrong though the last visit went well."""

        self._warned_of = ""
        self._is_untold = False
        self.problem: str | None = None
        """What went wrong in the last visit; `None` if nothing did."""

    # -------------------------------------------------------------------------------------------- for the control plane

    def measure(self, measured: Measurement) -> None:
        """Take in what the job's namespaces want and use."""
        with self._lock:
            self._sharing.measure(measured)
        self._has_moved.set()

    def share(self) -> Share:
        """Return what the job may use now: its share or, once the lease has ended, its floor."""
        with self._lock:
            share = self._sharing.share(self._clocks.steady_ms())
        self._tell_lapse(share)
        return share

    def paid_ms(self, since_ms: int) -> int:
        """Return how much of the time since `since_ms`, by the steady clock, was leased without a break."""
        with self._lock:
            return max(0, self._sharing.leased_until_ms(since_ms, self._clocks.steady_ms()) - since_ms)

    def has_lapsed(self, since_ms: int) -> bool:
        """Return whether the lease ended since `since_ms`, by the steady clock, even if it began again."""
        with self._lock:
            now_ms = self._clocks.steady_ms()
            return self._sharing.leased_until_ms(since_ms, now_ms) < now_ms

    def begin_pin(self) -> tuple[Share, int]:
        """Return the share for an epoch to pin, and the time: until `end_pin` the job counts as using either share."""
        with self._lock:
            now_ms = self._clocks.steady_ms()
            share = self._sharing.share(now_ms)
            self._sharing.pin_also(share.ids, share.rate_micro_per_ms)
            return share, now_ms

    def end_pin(self, share: Share) -> None:
        """Note that the epoch that pins `share` is written."""
        with self._lock:
            self._sharing.pin(share.ids, share.rate_micro_per_ms)
        self._has_pinned.set()
        self._has_moved.set()

    @property
    def member(self) -> str:
        """The job as one of those that share."""
        return self._sharing.member

    @property
    def may_go_on(self) -> bool:
        """Whether this run yielded to another run of its job, and may begin anew if it owns the job's checkpoint."""
        return self._sharing.may_go_on

    def go_on(self) -> None:
        """Begin anew after this run yielded, because it owns the job's checkpoint."""
        with self._lock:
            self._sharing.go_on()
        self._warned_of = ""  # whoever has yielded has no floor: only a new lease is news
        logger.warning("exchange: this run owns the checkpoint, so it goes beyond the other process and on")
        self._last_visit_ms = self._clocks.steady_ms() - self.settings.interval_ms  # the next is due
        self._has_moved.set()

    # ------------------------------------------------------------------------------------------------- for the thread

    def start(self) -> None:
        """Visit the exchange whenever a visit is due, until `stop`."""
        threading.Thread(target=self._run, name="throttle-exchange", daemon=True).start()

    def stop(self) -> None:
        """Stop visiting, after the visit that is under way."""
        self._ends.set()
        self._has_moved.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._has_moved.clear()
            self._has_moved.wait(self.act() / 1000)

    def act(self) -> int:
        """Do what is due, and return for how many ms nothing will be unless the plane calls; 0 to ask again at once."""
        if self._sharing.is_superseded:
            return self.settings.interval_ms
        wait_ms = self.next_visit_ms() - self._clocks.steady_ms()
        if wait_ms <= 0:
            self.visit()
        elif self._has_pinned.is_set():
            self.tell()
        else:
            return wait_ms
        return 0

    def next_visit_ms(self) -> int:
        """Return when the next visit is due, by the steady clock; a call of the plane may bring it forward."""
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
        """Read the reports of the others, and report if it is time or others wait for it."""
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
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an exchange may fail in any way (Rust panics), the job goes on
            self._note(f"{type(error).__name__}: {one_line(error)}")
        else:
            problems = [f"job {member_of(stem)}: {each.problem}" for stem, each in self._unreadable.items()]
            if not self._sharing.is_superseded:
                self._note(f"reports that cannot be read: {'; '.join(problems)}" if problems else None)
        if has_told or self.problem is not None or self._concern:
            self._tell_status()

    def _look_and_tell(self) -> bool:
        started_ms = self._clocks.steady_ms()
        with self._lock:
            ids = self._sharing.ids
        found = self._register.read(ids)
        self._unreadable = found.unreadable
        if not found.is_own_whole:
            self._told_ms = None
        self._has_pinned.clear()
        with self._lock:
            now_ms = self._clocks.steady_ms()
            self._sharing.take_in(found, started_ms=started_ms, now_ms=now_ms)
            concerns = self._sharing.on_other_terms
            is_superseded, is_established = self._sharing.is_superseded, self._sharing.is_established
            mark = self._sharing.mark
        self._note_concerns(concerns, now_ms - started_ms)
        if is_superseded:
            self._say_superseded()
            return True
        has_told = self._tell()
        if is_established and not self._sharing.must_tell:  # what they claim of budgets is in this run's own report
            self._register.remove_before(mark)
        return has_told

    def _note_concerns(self, concerns: list[str], took_ms: int) -> None:
        """Note what keeps the jobs from sharing as they should, though this visit went well."""
        margin_ms = self.settings.margin_ms
        if concerns:
            concerns = [f"{'; '.join(concerns)}; this one by {self.settings.terms}: give all jobs the same settings"]
        if took_ms > self.settings.lease_ms:
            concerns.append(
                f"reading the reports took {took_ms} ms, longer than a whole lease, so this job's share cannot grow "
                f"now: find out why the exchange's store did not answer; a longer lease is no remedy for that"
            )
        elif took_ms > margin_ms:
            concerns.append(
                f"reading the reports took {took_ms} ms, longer than a tenth of the lease ({margin_ms} ms), so this "
                f"job's share cannot grow: make exchange.lease longer than {10 * took_ms} ms, for all jobs"
            )
        concern = "; ".join(concerns)
        # The time of a visit differs each time: a log line for each would bury the others.
        if concern and not self._concern:
            logger.warning("exchange: %s", concern)
        self._concern = concern

    def _say_superseded(self) -> None:
        """Say that this run yielded to another one, and so visits no more until it goes on."""
        may_go_on = self._sharing.may_go_on
        remedy = (
            "until its next epoch, in which it goes on if it owns the checkpoint, and else ends: do nothing, unless "
            "this is said again and again"
            if may_go_on
            else "any more: stop one of the two, or give it a checkpoint of its own, and then start this one again"
        )
        problem = (
            f"another process runs this job (member {self._sharing.member}) and goes before this one, which may use "
            f"nothing of the shared quotas {remedy}"
        )
        if problem != self.problem:
            logger.log(logging.WARNING if may_go_on else logging.ERROR, "exchange: %s", problem)
        self.problem = problem

    def _tell(self) -> bool:
        """Publish a report if it is time or others wait for it; return whether one was published."""
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

        A report is due when the last one is nearly an interval old, when this job's register is not as it should be, or
        when others wait for what is new. But above all the others wait for the plane to write an epoch with a smaller
        share: it first has half an interval to do so.
        """
        if not self._sharing.must_shrink:
            self._shrinks_since_ms = None
        elif self._shrinks_since_ms is None:
            self._shrinks_since_ms = now_ms
        interval_ms = self.settings.interval_ms
        if self._told_ms is None:
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
            logger.info("exchange: visits work again")
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
        problem = "; ".join(each for each in (self.problem, self._concern) if each)
        try:
            self._on_visit(replace(observation, as_of_ms=self._clocks.wall_ms(), problem=problem))
        except Exception as error:  # noqa: BLE001 - leases do not depend on who is told about them
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
