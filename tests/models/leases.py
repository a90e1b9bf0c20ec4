"""The model of leases: jobs that share one quota by reports in an exchange, without a coordinator.

A *run* is one process of a *member*, which is a job. It reports what it claims of the quota, and which report of each
other member it has seen. It uses no more than the least claim in its *window*, which begins with its newest report that
all others have seen; and it comes to use more only up to what the others leave (`docs/several-jobs.md`). Runs crash,
and are started again, from older checkpoints and from copies; their clocks drift; writes come late, and visits find
reports that were replaced a short while ago; registers vanish and are damaged. In every state

- the runs together use no more than the quota;
- what a silent member had, less its floor, is free for the others after `dead_after`, and the floor after `gone_after`.

Left out: how a quota is divided (a run may claim anything), all but one scope in one dimension, amounts of budgets
(whose windows are scopes of their own, and do not come back with a lease), settings that differ between the jobs,
visits that take long, and who removes the registers of runs that are gone (any may vanish). Assumed: a run whose member
has another run, or whose register vanished, looks once in a margin.
Explorations hold a lease for two margins, where the code has five, and do not come to the return of floors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.models.checker import Model
from tests.models.lease_states import (
    DAMAGED,
    GONE,
    NO_MARK,
    Claim,
    Content,
    Mark,
    Peer,
    Register,
    Report,
    Run,
    State,
    Unreadable,
    put,
    put_run,
    run_of,
)
from tests.models.promises import OF_LEASES

FALLS: Final = (1 << 20) - 1
"""The bits of an incarnation that count falls to the floor; those above count starts."""

MOST_RETURNS: Final = 8
"""How often a run goes on that yielded to another."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long what lasts; in the code ms, in an exploration ticks."""

    hold: int
    margin: int
    forget: int
    stale: int
    """How long after it was replaced a report may be found."""

    floor_percent: int = 3

    def most_kept(self, quota: int) -> int:
        """Return the most that silent jobs keep."""
        return self.floor_percent * (quota // 100)


class Leases(Model[State]):
    """The model."""

    def __init__(self, times: Times, without: frozenset[str] | set[str] = frozenset()) -> None:
        super().__init__(without)
        self.times = times

    # --------------------------------------------------------------------------------------------- what happens

    def tick(self, s: State, by: int = 1, shown: tuple[tuple[int, int], ...] = ()) -> State:
        """Time passes; the clocks of some runs show that another time has passed. Old reports are found no more."""
        shown_by, now = dict(shown), s.now + by
        runs = tuple(r._replace(clock=r.clock + shown_by.get(r.id, by)) for r in s.runs)
        registers = []
        for name, each in s.registers:
            before = tuple(old for old in each.before if old[1] >= now - self.times.stale)
            if before or each.newest != GONE:
                registers.append((name, each._replace(before=before)))
        return s._replace(now=now, runs=runs, registers=tuple(registers))

    def start(
        self, s: State, run: int, member: str, place: str, clock: int, incarnation: int, quota: int
    ) -> State | None:
        """A process starts; a copy of a checkpoint in another place is a member of its own."""
        is_own = all(r.member != member or r.place == place for r in s.runs)
        if not self.needs("a copy is another member", is_own):
            return None
        silent = tuple(each for each in s.silent_since if each[0] != member)
        runs = (*s.runs, Run(run, member, place, clock, incarnation, quota))
        return s._replace(runs=runs, silent_since=silent, most_quota=max(s.most_quota, quota))

    def crash(self, s: State, run: int) -> State:
        """A process dies without a word."""
        gone, runs = run_of(s, run), tuple(r for r in s.runs if r.id != run)
        is_last = all(r.member != gone.member for r in runs)
        silent = (*s.silent_since, (gone.member, s.now)) if is_last else s.silent_since
        return s._replace(runs=runs, silent_since=silent)

    def vanish(self, s: State, register: int) -> State:
        """A register vanishes."""
        return _written(s, register, GONE)

    def damage(self, s: State, register: int) -> State:
        """A register is damaged: a visit finds it, and cannot read it."""
        return _written(s, register, DAMAGED)

    def put_back(self, s: State, register: int, report: Report) -> State:
        """A report of before stands in a register: the exchange was put back, or its write took long."""
        silent = tuple((name, s.now if name == report.member else since) for name, since in s.silent_since)
        return _written(s._replace(silent_since=silent), register, report)

    # ------------------------------------------------------------------------------------------- what a run does

    def measure(self, s: State, run: int, quota: int, uses: bool = True) -> State | None:
        """The job tells its quota, and whether it uses the scope; it gives up none that its epochs use."""
        r = run_of(s, run)._replace(quota=quota, uses=uses)
        if not uses:
            if r.pinned:
                return None
            r = r._replace(right=0, floor=0, window=tuple(Claim(each.number, 0, 0) for each in r.window))
        return put_run(s, r)._replace(most_quota=max(s.most_quota, quota))

    def visit(
        self,
        s: State,
        run: int,
        found: tuple[tuple[int, Mark], ...],
        unreadable: tuple[tuple[int, str], ...],
        began: int,
    ) -> State | None:
        """A run has read the registers, from the time `began` on; `found` names the reports."""
        reports = _found(s, found, unreadable)
        if reports is None:
            return None
        r = self._fallen(run_of(s, run))
        if r.is_superseded:
            return put_run(s, r)
        now, shown, told = r.clock, NO_MARK, NO_MARK
        by_mark = sorted(reports, key=lambda each: each.mark)
        for report in [each for each in by_mark if each.member == r.member]:
            if report.mark.run == r.id and report.mark.incarnation <= r.incarnation:
                shown = report.mark
            else:
                r = self._met(r, report.mark, is_there=True)
        others = [each for each in by_mark if each.member != r.member]
        for report in others:
            word = dict(report.seen).get(r.member, NO_MARK)
            told, r = max(told, word), self._met(r, word, is_there=False)
        r = r._replace(told=told)
        if r.is_superseded:
            return put_run(s, r)
        is_shown = shown == r.mark and r.is_born
        if shown == NO_MARK and not r.is_established:
            r = r._replace(shown_at=None)
        for report in others:
            r = self._seen(r, report if r.uses else report._replace(claim=0, floor=0))
        r = _noted(r, {name for name, _ in found}, unreadable)
        if is_shown:
            r = self._buried(r, began)
        r = self._renewed(r, shown.number if shown.incarnation == r.incarnation else 0)
        if is_shown and r.shown_at is None:
            r = r._replace(shown_at=now)
        waits = self.times.margin * (2 if r.others and "two margins beside another run" not in self.without else 1)
        is_ripe = r.shown_at is not None and self.needs("a margin before the first use", began >= r.shown_at + waits)
        is_prompt = now - began <= self.times.margin
        if is_shown and is_ripe and is_prompt and r.held_until is not None:
            r = self._grown(r, shown.number if shown.incarnation == r.incarnation else 0, began)
        return put_run(s, r)

    def report(self, s: State, run: int, claim: int, floor: int, is_written: bool = True) -> State | None:
        """A run reports a claim; from here on others may go by it, though the write may be lost."""
        r = self._fallen(run_of(s, run))
        if r.is_superseded or not self.needs("claims what its epochs use", claim >= r.pinned):
            return None
        number, claims = r.number + 1, (*r.window, Claim(r.number + 1, claim, floor))
        right = min(r.right, claim) if "uses less as it claims less" not in self.without else r.right
        r = r._replace(number=number, is_born=True, published=(*r.published, (number, r.clock)), window=claims)
        r = r._replace(right=right, floor=min(r.floor, floor, right))
        s = put_run(s, r)
        if not is_written:
            return s
        seen = tuple((member, peer.report.mark) for member, peer in r.peers)
        return _written(s, run, Report(r.member, r.mark, claim, floor, seen))

    def begin_epoch(self, s: State, run: int, rate: int) -> State | None:
        """A run is about to write an epoch that pins what it may use now; until then it may use either rate."""
        r = self._fallen(run_of(s, run))
        return put_run(s, r._replace(pinned=max(r.pinned, rate))) if 0 <= rate <= self.usable(r) else None

    def end_epoch(self, s: State, run: int, rate: int) -> State | None:
        """The epoch is written."""
        r = run_of(s, run)
        return put_run(s, r._replace(pinned=rate, has_lapsed=False)) if rate <= r.pinned else None

    def ask(self, s: State, run: int, rate: int = 0) -> State | None:
        """A run asks what it may use; a lease that is over ends."""
        r = self._fallen(run_of(s, run))
        return put_run(s, r) if rate <= self.usable(r) else None

    def pay(self, s: State, run: int, since: int, until: int) -> State | None:
        """A run is paid for the time since an epoch: up to the first end of a lease after it."""
        r = self._fallen(run_of(s, run))
        leased_until = min([r.clock, *(each for each in r.falls if each > since)])
        is_held = r.held_until is not None and "a lease that ended and began again" in self.without
        if until != leased_until and not is_held:
            return None
        return put_run(s, r._replace(overpaid=r.overpaid or until > leased_until))

    def go_on(self, s: State, run: int) -> State | None:
        """A run that yielded goes on, because it owns its checkpoint."""
        r = run_of(s, run)
        if not r.is_superseded or r.last_yield > MOST_RETURNS or "the owner goes on" in self.without:
            return None
        r = r._replace(passed=frozenset(), is_superseded=False, is_established=False, told=NO_MARK)
        return put_run(s, _anew(r, r.incarnation + 1))

    # ------------------------------------------------------------------------------------------------- its parts

    def usable(self, r: Run) -> int:
        """Return the most that a run may pin now."""
        if r.held_until is not None:
            return r.right
        is_kept = not r.is_superseded and r.clock < r.floor_until
        return min(r.floor, self.times.most_kept(r.quota)) if is_kept else 0

    def _fallen(self, r: Run) -> Run:
        """Return a run whose lease has ended if it is over: it has its floor, and begins again."""
        if r.held_until is None or r.clock < r.held_until:
            return r
        floor_until = r.held_until - self.times.hold + self.times.forget
        return _anew(r._replace(falls=(*r.falls, r.held_until), floor_until=floor_until), r.incarnation + 1)

    def _met(self, r: Run, mark: Mark, *, is_there: bool) -> Run:
        """Return a run that knows of another run of its member: it yields to a greater mark, or goes beyond it."""
        if "other runs of one job" in self.without:
            return r
        if is_there:
            last = dict(r.others).get(mark.run)
            r = r._replace(others=put(r.others, mark.run, max(last or mark, mark)))
            r = r._replace(shown_at=None) if last is not None and mark > last else r
        if r.is_superseded or mark[:2] <= (r.incarnation, r.id):
            return r
        if not is_there and "goes beyond what others remember" in self.without:
            return r
        is_found = is_there or mark.run in dict(r.others)
        yields = is_found and (r.is_established or mark.run in r.passed)
        if yields:
            count = dict(r.yielded).get(mark.run, 0) + 1
            r = r._replace(is_superseded=True, yielded=put(r.yielded, mark.run, count), last_yield=count)
        r = r._replace(falls=(*r.falls, r.clock + 1), passed=r.passed | {mark.run})
        if "no floor for who yields" not in self.without:
            r = r._replace(floor=0)
        return _anew(r, r.incarnation if yields else (mark.incarnation | FALLS) + 1)

    def _seen(self, r: Run, report: Report) -> Run:
        """Return a run that takes in a report of another member."""
        peer, since = dict(r.peers).get(report.member), 0 if r.held_until is None else r.number + 1
        if peer is None:
            return r._replace(peers=put(r.peers, report.member, Peer(report, r.clock, since)))
        old = peer.report.mark
        if report.mark > old:
            before = peer.before
            if report.mark.run != old.run and "what a replaced run claimed" not in self.without:
                before = (*before, (peer.left, r.clock + 2 * self.times.margin))
            begins = peer.is_dead or report.mark[:2] != old[:2]
            peer = Peer(report, r.clock, since if begins else peer.since, False, before)
        elif report.mark == old:
            peer = peer._replace(report=report)
        return r._replace(peers=put(r.peers, report.member, peer))

    def _buried(self, r: Run, began: int) -> Run:
        """Return a run that takes the silent for dead, and forgets who is silent for long."""
        dead_after = self.times.hold + self.times.margin
        unreadable = tuple(
            (name, each._replace(is_dead=each.is_dead or began >= each.since + dead_after))
            for name, each in r.unreadable if began < each.seen_at + dead_after
        )  # fmt: skip
        may_live = {each.member for _, each in unreadable if not each.is_dead}
        silent = {each for each, peer in r.peers if each not in may_live and began >= peer.seen_at + dead_after}
        peers = tuple(
            (member, peer._replace(is_dead=peer.is_dead or member in silent))
            for member, peer in r.peers
            if member in may_live or began < peer.seen_at + self.times.forget + self.times.margin
        )  # fmt: skip
        return r._replace(peers=peers, unreadable=unreadable)

    def _answered(self, r: Run, peer: Peer) -> int:
        """Return the last of a run's reports that a peer has seen, or cannot have missed."""
        mark = dict(peer.report.seen).get(r.member, NO_MARK)
        return max(mark.number if mark[:2] == (r.incarnation, r.id) else 0, peer.since)

    def _renewed(self, r: Run, shown: int) -> Run:
        """Return a run whose lease lasts for `hold` after its last report that all who were heard have seen."""
        fresh = [peer for _, peer in r.peers if peer.seen_at >= r.clock - self.times.margin]
        number = min([shown, *(self._answered(r, peer) for peer in fresh)])
        published = tuple(each for each in r.published if each[1] > r.clock - self.times.hold)
        r = r._replace(published=published)
        times = [
            at if "held from its report on" not in self.without else r.clock for each, at in published if each <= number
        ]
        held = [each for each in (r.held_until,) if each is not None] + [each + self.times.hold for each in times]
        return r._replace(held_until=max(held)) if times else r

    def _grown(self, r: Run, shown: int, began: int) -> Run:
        """Return a run that uses what all have seen it claim, as far as no other claims it."""
        if not self.needs("claims that cannot be read", all(each.is_dead for _, each in r.unreadable)):
            return r
        seen = min([shown, *(self._answered(r, peer) for _, peer in r.peers if not peer.is_dead)])
        if "answers of all" in self.without:
            seen = shown
        first = max([0, *(at for at, each in enumerate(r.window) if at and each.number <= seen)])
        r = r._replace(window=r.window[first:], is_established=True, looked=began)
        least = (
            min(each.claim for each in r.window)
            if "least claim of the window" not in self.without
            else r.window[-1].claim
        )
        claimed, peers = 0, []
        for member, known in r.peers:
            peer = known._replace(before=tuple(each for each in known.before if r.clock < each[1]))
            claimed += self._kept(r, peer) + max([0, *(each - peer.left for each, _ in peer.before)])
            peers.append((member, peer))
        right = max(r.right, min(least, r.quota - claimed))
        floor = min(*(each.floor for each in r.window), right)
        return r._replace(right=right, floor=floor, peers=tuple(peers))

    def _kept(self, r: Run, peer: Peer) -> int:
        """Return what a run leaves to a peer; of a dead one's floor no more than the quota as it stands has."""
        is_cut = peer.is_dead and "floors of the quota as it stands" not in self.without
        return min(peer.left, self.times.most_kept(r.quota)) if is_cut else peer.left

    invariants = OF_LEASES
    actions = (
        "tick", "start", "crash", "vanish", "damage", "put_back", "measure", "visit", "report", "begin_epoch",
        "end_epoch", "ask", "pay", "go_on",
    )  # fmt: skip


def _written(s: State, register: int, content: Content) -> State:
    """Return a state in which a register holds something else; visits may find what it held for a while."""
    old = dict(s.registers).get(register, Register())
    return s._replace(registers=put(s.registers, register, Register(content, (*old.before, (old.newest, s.now)))))


def _found(
    s: State, found: tuple[tuple[int, Mark], ...], unreadable: tuple[tuple[int, str], ...]
) -> list[Report] | None:
    """Return the reports that a visit names; `None` if no register, now or a short while ago, held what it names."""
    named: dict[int, Mark | str] = {**{name: DAMAGED for name, _ in unreadable}, **dict(found)}
    reports, registers = [], dict(s.registers)
    for name in named.keys() | registers.keys():
        may_hold, what = registers.get(name, Register()).may_hold, named.get(name, GONE)
        some = [each for each in may_hold if what == (each.mark if isinstance(each, Report) else each)]
        if not some and not (what == GONE and DAMAGED in may_hold):  # a run does not look for its own
            return None
        reports += [each for each in some if isinstance(each, Report)]
    return reports


def _anew(r: Run, incarnation: int) -> Run:
    """Return a run that begins anew with its floor alone, as a newcomer, whose reports all must see."""
    peers = tuple((member, peer._replace(since=0)) for member, peer in r.peers)
    return r._replace(
        incarnation=incarnation, held_until=None, is_born=False, shown_at=None, published=(), right=r.floor,
        peers=peers, window=(Claim(r.number, r.floor, r.floor),), has_lapsed=True,
    )  # fmt: skip


def _noted(r: Run, readable: set[int], unreadable: tuple[tuple[int, str], ...]) -> Run:
    """Return a run that remembers the registers that it could not read."""
    known = {name: each for name, each in r.unreadable if name not in readable}
    for name, member in unreadable:
        since = known[name].since if name in known else r.clock
        known[name] = Unreadable(member, since, r.clock, name in known and known[name].is_dead)
    return r._replace(unreadable=tuple(sorted(known.items())))
