"""Simulated jobs that share a quota tell what they do as steps of the model of leases, and each step is checked.

The leases are real (`Sharing`, its keeper and its registers), in the simulated time of a simulated exchange. The model
has one scope in one dimension: that which was measured first, in messages. A step that the model does not allow, or
after which a run and its model differ, raises `NotAllowedError`, which names it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from spark_throttle.core.arithmetic.rate_codes import decode
from spark_throttle.core.quota import Int64s
from spark_throttle.errors import StoredFormatError
from spark_throttle.sharing.peers import Share, Update, Visit
from spark_throttle.sharing.report import Measurement, ScopeRows, unpack_head
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.testing.simulation import exchange as exchange_module
from spark_throttle.testing.simulation import job as job_module
from spark_throttle.testing.simulation import query as query_module
from spark_throttle.testing.simulation.exchange import SimulatedExchange, SimulatedPeer
from tests.models.checker import NotAllowedError, Step, follow
from tests.models.lease_states import DAMAGED, GONE, Mark, Register, Report, State, run_of
from tests.models.leases import Leases, Times

_HEAD = ".head"


class LeaseTrace:
    """The history of those who meet in one place, in the words of the model."""

    writes_at_once = True
    """Whether a report is in its register as soon as it is made."""

    def __init__(self, settings: ShareSettings, scope: int | None = None, stale_ms: int = 0) -> None:
        self.times = Times(
            settings.hold_ms, settings.margin_ms, settings.forget_ms, stale_ms, settings.floor_percent
        )  # fmt: skip
        self.model, self.state = Leases(self.times), State()
        self.steps: list[Step] = []
        self.reached: Counter[str] = Counter()
        self.scope = scope
        self._reports: dict[Mark, Report] = {}
        self._begun = set[int]()
        self.problem: str | None = None
        """The first step that was not allowed; what comes after it is not looked at."""

    @property
    def now_ms(self) -> int:
        """The true time."""
        raise NotImplementedError

    def clock_of(self, run: int) -> int:
        """Return what the clock of a run shows."""
        raise NotImplementedError

    def there(self) -> dict[int, Mark | None]:
        """Return the marks of the reports that the registers hold; `None` for what cannot be read."""
        raise NotImplementedError

    def see(self) -> None:
        """Take the steps of what happened without anybody's doing: at least of the registers."""
        self.note_registers()

    def begin(self, sharing: TracedSharing) -> bool:
        """Return whether a run is traced; it starts when it is first heard of."""
        run = sharing.run
        if self.problem is None and run not in self._begun:
            self._begun.add(run)
            self.take("start", run, sharing.member, sharing.member, self.clock_of(run), sharing.first_incarnation, 0)
            self.take("measure", run, 0, False)
        return self.problem is None and self.lives(run)

    def lives(self, run: int) -> bool:
        """Return whether a run has begun, and has not ended."""
        return any(each.id == run for each in self.state.runs)

    def end(self) -> None:
        """Say what was not allowed: a keeper of leases goes on after any error, so none comes through it.

        Raises
        ------
        NotAllowedError
            If a step was not allowed.
        """
        if self.problem is not None:
            raise NotAllowedError(self.problem)

    def take(self, action: str, *arguments: Any) -> None:
        """Take a step, after the time that has passed."""
        self.pass_to(self.now_ms)
        self.step(action, *arguments)
        if action == "report" and self.problem is None:
            r = run_of(self.state, arguments[0])
            seen = tuple((member, peer.report.mark) for member, peer in r.peers)
            self._reports[r.mark] = Report(r.member, r.mark, arguments[1], arguments[2], seen)

    def pass_to(self, now_ms: int) -> None:
        """Let time pass."""
        passed_ms = now_ms - self.state.now
        if passed_ms > 0:
            clocks = [(r.id, self.clock_of(r.id) - r.clock) for r in self.state.runs]
            self.step("tick", passed_ms, tuple(each for each in clocks if each[1] != passed_ms))

    def step(self, action: str, *arguments: Any) -> None:
        """Take a step now."""
        if self.problem is None:
            step = Step(action, arguments)
            self.steps.append(step)
            try:
                self.state = follow(self.model, self.state, [step])
            except NotAllowedError as error:
                self.problem = str(error)
            self.reached[step.action] += 1

    def compare(self, sharing: TracedSharing) -> None:
        """Compare a run with its model."""
        ours, there = _of_model(run_of(self.state, sharing.run)), sharing.known(self.scope)
        for name, value in ours.items():
            if value != there[name]:
                self.problem = f"after {self.steps[-1]}: {name} is {there[name]}, not {value}"
                return

    def note_registers(self) -> None:
        """Take the steps by which registers vanished, were damaged or put back."""
        if self.problem is not None:
            return
        ours, there = dict(self.state.registers), self.there()
        for run in ours.keys() - there.keys():
            if ours[run].newest != GONE:
                self.step("vanish", run)
        for run, mark in there.items():
            before = ours.get(run, Register()).newest
            if mark is None and before != DAMAGED:
                self.step("damage", run)
            elif mark is not None and (not isinstance(before, Report) or before.mark != mark):
                self.step("put_back", run, self._reports[mark])


class ExchangeTrace(LeaseTrace):
    """The history of one exchange."""

    def __init__(self, exchange: SimulatedExchange) -> None:
        super().__init__(exchange.settings)
        self.exchange = exchange
        self._marks: dict[str, tuple[bytes, Mark | None]] = {}
        """What the heads were found to hold."""

    @property
    def now_ms(self) -> int:
        """The true time."""
        return self.exchange.time.now_ms

    def clock_of(self, run: int) -> int:
        """Return what all clocks show."""
        return self.now_ms

    def there(self) -> dict[int, Mark | None]:
        """Return the marks in the heads."""
        found = dict[int, Mark | None]()
        for name, block in self.exchange.objects.items():
            if name.endswith(_HEAD):
                if name not in self._marks or self._marks[name][0] is not block:
                    self._marks[name] = block, _mark_in(block, name)
                found[int(name.removesuffix(_HEAD).partition(".")[2] or "0", 16)] = self._marks[name][1]
        return found


def _mark_in(block: bytes, name: str) -> Mark | None:
    try:
        return mark_of(unpack_head(block, name, "").report.mark)
    except StoredFormatError:
        return None


def mark_of(mark: Any) -> Mark:
    return Mark(mark.incarnation, mark.run, mark.number)


def _of_model(r: Any) -> dict[str, Any]:
    """Return what a run of the model knows."""
    return {
        "mark": r.mark,
        "right": r.right,
        "floor": r.floor,
        "pinned": r.pinned,
        "held until": r.held_until,
        "shown at": r.shown_at,
        "is born": r.is_born,
        "is superseded": r.is_superseded,
        "is established": r.is_established,
        "window": [tuple(each) for each in r.window],
        "published": dict(r.published),
        "others": dict(r.others),
        "peers": {
            member: (
                each.report.mark,
                each.report.claim,
                each.report.floor,
                each.seen_at,
                each.since,
                each.is_dead,
                each.before,
            )
            for member, each in r.peers
        },
        "unreadable": {(each.member, each.since, each.is_dead) for _, each in r.unreadable},
    }


class TracedSharing(Sharing):
    """A run that tells its steps."""

    trace: LeaseTrace | None = None

    def tell(self, action: str, *arguments: Any) -> None:
        """Tell a step, and compare."""
        trace = self.trace
        if trace is not None and trace.problem is None:
            trace.see()
            if trace.begin(self):
                trace.take(action, self.run, *arguments)
            if trace.lives(self.run) and trace.problem is None:
                trace.compare(self)

    def __init__(self, member: str, name: str, incarnation: int, settings: ShareSettings, run: int = 0) -> None:
        super().__init__(member, name, incarnation, settings, run)
        self.first_incarnation = self._incarnation

    def measure(self, measured: Measurement) -> None:
        """Take in what the job wants."""
        super().measure(measured)
        trace = self.trace
        if trace is not None and trace.scope is None:
            trace.scope = next(map(int, self.ids[(self._own.quota[:, 0] > 0) & (self._own.rows.period == 0)]), None)
        if trace is not None and trace.scope is not None:
            self.tell("measure", self._at(self._own.quota, self.ids), bool(np.isin(trace.scope, self.ids)))

    def pin(self, ids: Int64s, rate_micro_per_ms: Int64s) -> None:
        """Note what the epoch uses."""
        super().pin(ids, rate_micro_per_ms)
        self.tell("end_epoch", self._at(rate_micro_per_ms, ids))

    def pin_also(self, ids: Int64s, rate_micro_per_ms: Int64s) -> None:
        """Note what the epoch may soon use."""
        super().pin_also(ids, rate_micro_per_ms)
        self.tell("begin_epoch", self._at(rate_micro_per_ms, ids))

    def share(self, now_ms: int) -> Share:
        """Return what may be used now."""
        share = super().share(now_ms)
        self.tell("ask", self._at(share.rate_micro_per_ms, share.ids))
        return share

    def leased_until_ms(self, since_ms: int, now_ms: int) -> int:
        """Return until when time is paid."""
        until_ms = super().leased_until_ms(since_ms, now_ms)
        self.tell("pay", since_ms, until_ms)
        return until_ms

    def take_in(self, found: Visit, *, started_ms: int, now_ms: int) -> None:
        """Take in what a visit found."""
        super().take_in(found, started_ms=started_ms, now_ms=now_ms)
        marks = tuple((report.mark.run, mark_of(report.mark)) for report in found.reports.values())
        parts = [stem.partition(".") for stem in found.unreadable]
        self.tell("visit", marks, tuple((int(run or "0", 16), member) for member, _, run in parts), started_ms)

    def next_report(self, *, now_ms: int, wall_ms: int) -> Update:
        """Return the next report."""
        update = super().next_report(now_ms=now_ms, wall_ms=wall_ms)
        rows = update.report.rows
        is_written = self.trace is not None and self.trace.writes_at_once
        self.tell("report", self._at(decode(rows.claim), rows.ids), self._at(rows.floor_rate(), rows.ids), is_written)
        return update

    def go_on(self) -> None:
        """Go on after it yielded."""
        was_superseded = self.is_superseded
        super().go_on()
        if was_superseded:
            self.tell("go_on")

    def _at(self, values: Int64s, ids: Int64s, scope: int | None = None) -> int:
        """Return what an array has for the traced scope, in messages; 0 where it lacks the scope."""
        scope = self.trace.scope if self.trace is not None and scope is None else scope
        at = np.flatnonzero(ids == scope)
        return max(0, int(values[at[0], 0])) if len(at) else 0

    def known(self, scope: int | None) -> dict[str, Any]:
        """Return what this run knows, in the form of the model."""

        def rows(each: ScopeRows) -> tuple[int, int]:
            return self._at(decode(each.claim), each.ids, scope), self._at(each.floor_rate(), each.ids, scope)

        window = [
            (each.number, self._at(decode(each.claim), self.ids), self._at(each.floor_rate(), self.ids))
            for each in self._window
        ]
        peers = {
            member: (
                mark_of(each.report.mark), *rows(each.report.rows), each.seen_at_ms, each.since, each.is_dead,
                tuple((self._at(old.rate_micro_per_ms, old.ids), old.until_ms) for old in each.before),
            )
            for member, each in self._peers._known.items()
        }  # fmt: skip
        return {
            "mark": mark_of(self.mark),
            "right": self._at(self._right_micro_per_ms, self.ids),
            "floor": self._at(self._floor_micro_per_ms, self.ids),
            "pinned": self._at(self._pinned_micro_per_ms, self.ids),
            "held until": self._held_until_ms,
            "shown at": self._shown_ms,
            "is born": self._born_ms is not None,
            "is superseded": self.is_superseded,
            "is established": self.is_established,
            "window": window,
            "published": self._published_ms,
            "others": {run: mark_of(mark) for run, mark in self._other_runs._last.items()},
            "peers": peers,
            "unreadable": {
                (stem.partition(".")[0], each.since_ms, each.is_dead) for stem, each in self._peers._unknown.items()
            },
        }


def trace_leases(patch: pytest.MonkeyPatch, exchange: SimulatedExchange) -> ExchangeTrace:
    """Let the jobs that meet in an exchange tell their steps."""
    trace = ExchangeTrace(exchange)
    stop, leave = job_module.SimulatedJob.stop, SimulatedExchange.leave

    def crash(sharing: Sharing) -> None:
        trace.see()
        if trace.lives(sharing.run):
            trace.take("crash", sharing.run)

    def told_stop(job: job_module.SimulatedJob) -> None:
        lease = None if job._running is None else job._running.lease
        stop(job)
        if lease is not None:
            crash(lease.keeper._sharing)

    def told_leave(here: SimulatedExchange, peer: SimulatedPeer) -> None:
        leave(here, peer)
        crash(peer._lease.keeper._sharing)

    patch.setattr(TracedSharing, "trace", trace)
    for module in (query_module, exchange_module):
        patch.setattr(module, "Sharing", TracedSharing)
    patch.setattr(job_module.SimulatedJob, "stop", told_stop)
    patch.setattr(SimulatedExchange, "leave", told_leave)
    return trace
