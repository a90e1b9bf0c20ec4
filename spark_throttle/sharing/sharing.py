"""One job's part of the quotas that it shares: the reports of others in, a lease out.

There is no coordinator, and nothing that compares and swaps: each job writes a register of its own and reads those of
the others, whole but late, or not at all. Still the sum of what the jobs may use never passes the quota:

- A report carries the job's *claim* in every scope, and names the last report of every other job that it had seen.
- The *window* of a job is its reports from the newest that every live job has seen up to the newest it published: any
  of them may be what another job goes by. What it may use is at most its least claim in the window.
- It may come to use more only up to the quota less the claims in the reports of the others that it has seen itself.

For take any two jobs. When B grows, it goes by some report of A, and has seen no later one. So A cannot have been told
of a later one being seen, that report is in A's window, and what A uses is at most the claim in it, for which B leaves
room. So growing waits for shrinking (Doorman's rule), and late, lost or repeated reports cost time and no tokens.

*Leases.* What a job claimed must come free when it dies. A job that publishes no more is held for dead by another that
looked, and found its last report still there, `hold + margin` after it first saw it. A job that cannot show its
reports falls to its floor `hold` after the last that was seen: before anyone counts on it. Both measure durations,
each by its own steady clock; no two clocks are compared. It keeps its floor, which the others leave alone, for a
hundred leases. A job that fell begins anew: as a new incarnation, whose reports all must see, and that waits a margin
after it found its own report, so that of two jobs which do not know of each other the later one does by then. Whoever
sees a job for the first time counts its own next report as the first that this job goes by: a newcomer may use nothing
until all have answered it.

*Runs.* Reports of one member are ordered by (incarnation, run), where a run is random bits of its start; who sees two
goes by the greater. All see the same one win, for an order is total, and who yields publishes no more.

- A job that was put back begins with an incarnation that was there before, and would be passed over for one of old. Its
  register, or what any other says that it saw of it, names the greater one: it goes beyond that before it uses
  anything. So whoever remembers a run of it hears it, though its register be gone.
- Of two processes that live, the one that began last goes on: it passes the other, which has used something, or was
  passed before, and so yields. It has a register of its own and looks once a margin at least, so it has seen the
  greater mark two margins after that was written, when what it reads is out by one. So long the others leave alone what
  it claimed, and its follower uses nothing, from the last sign that it lives.

That holds while both reach the exchange, or the one before is dead. A copy, whose original may be alive and cut off, is
another member therefore (`seat`). And a register that is deleted is written again within a cycle, but by nobody while
its job is cut off: then newcomers do not know of that job.

*Division.* The claim is the job's part of a division (`core.lending.division`) of what was reported, its own demand
included, which is why it is a pure function of reports. Claims may disagree while reports travel; then nobody grows
until they agree. PIP-82's policies give out more than there is at times, so under them a job uses what its policy says,
lease or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from spark_throttle.core.arithmetic.rate_codes import CodedRates, Codes, decode, encode
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import UNLIMITED, Int64s
from spark_throttle.sharing.division import OtherSeats, divide, floors
from spark_throttle.sharing.measured import Measured, moved
from spark_throttle.sharing.own_scopes import OwnScopes
from spark_throttle.sharing.peer import Claimed, OtherRuns, Peer, changed_scopes, claims_more, left_by, left_over
from spark_throttle.sharing.report import FLOOR_PARTS, NO_MARK, Mark, ScopeRows, ShareReport, found_in, joined
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.status import Observation, PeerStatus

_FALLS = (1 << 20) - 1
"""An incarnation counts the starts of a job above these bits, and how often it fell in them."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a job may use now."""

    ids: Int64s
    rate: Int64s
    """Shape (n, 2): micro-tokens a millisecond; `UNLIMITED` where the scope has no limit."""

    is_leased: bool
    """False while only the floor may be used."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a visit found."""

    reports: Mapping[str, ShareReport]
    """By register; the job's own, and those of other runs of it, included."""

    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Members whose registers could not be understood, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A report, and how it differs from the one before."""

    report: ShareReport
    changed: ScopeRows
    removed: Int64s


class Sharing:
    """The state of one job's leases; no I/O and no clock. Times are of one steady clock of this process, in ms.

    Parameters
    ----------
    member
        Identifies the job among all; two processes with one member must not run at once, as with a checkpoint.
    name
        What people call it.
    incarnation
        Larger than at any earlier start of the member, as far as is known.
    run
        Random bits of this start, below 2**62: by them two processes that took one member and incarnation know of each
        other.
    """

    _target = CodedRates()
    """What the job should claim."""

    _pinned = CodedRates()
    """What its epochs may still use."""

    _right = CodedRates()
    """What it may use while its lease lasts."""

    _floor = CodedRates()
    """And after."""

    def __init__(self, member: str, name: str, incarnation: int, settings: ShareSettings, run: int = 0) -> None:
        self.settings = settings
        self.member = member
        self.run = run
        self._name = name
        self._incarnation = incarnation * (_FALLS + 1)
        self._number = 0
        self._peers: dict[str, Peer] = {}
        self._blocked_by: dict[str, tuple[str, int]] = {}
        self._own = OwnScopes.nothing()
        self._is_leaving = np.zeros(0, dtype=np.bool_)
        self._rows = ScopeRows.empty()
        self._reported_at = np.zeros(0, dtype=np.int32)
        self._members = np.zeros(0, dtype=np.uint16)
        self._is_stale = np.zeros(0, dtype=np.bool_)
        none = np.zeros((0, 2), dtype=np.int64)
        self._target, self._pinned, self._right = none, none, none
        self._floor = none
        self._window = [Claimed(0, encode(none), None)]
        self._published_ms: dict[int, int] = {}
        self._born_ms: int | None = None
        self._shown_ms: int | None = None
        self._held_until_ms: int | None = None
        """`None` while it is fallen."""

        self._floor_until_ms = 0
        self._other_runs = OtherRuns()
        self.is_established = False
        """Whether it ever could use anything."""

        self._is_asked = False
        self.fell_at_ms: int | None = None
        self.is_superseded = False

    @property
    def mark(self) -> Mark:
        """The mark of the last report."""
        return Mark(self._incarnation, self.run, self._number)

    @property
    def _is_fallen(self) -> bool:
        return self._held_until_ms is None

    # ------------------------------------------------------------------------------------------ what the job tells us

    def measure(self, measured: Measured) -> None:
        """Take in what the job's namespaces want and use.

        A scope that is named no more is given up: nothing of it may be used, and once `pin` says so, it is reported no
        more.
        """
        before, was_leaving, old = self._own, self._is_leaving, self._own.ids
        leaving = np.flatnonzero(~found_in(old, measured.ids) & (self._pinned > 0).any(axis=1))
        measured = measured.with_scopes(old[leaving], self._own.quota[leaving])
        self._own = OwnScopes.drafted(self.settings, measured, self._rows, self._reported_at, self._number + 1, old)
        new = self._own.ids
        self._is_leaving = found_in(new, old[leaving])
        if new is old:
            self._is_stale |= self._own.rows.differ(before.rows) | (self._is_leaving != was_leaving)
            self._is_stale |= (self._own.quota_codes != before.quota_codes).any(axis=1)
        else:
            self._is_stale = np.ones(len(new), dtype=np.bool_)
            for name in ("_target", "_pinned", "_right", "_floor"):
                setattr(self, name, moved(getattr(self, name), old, new))
            self._members = moved(self._members, old, new)
            self._window = [each.moved(old, new) for each in self._window]

    def pin(self, ids: Int64s, rate: Int64s) -> None:
        """Note what the job holds itself to from now on; the scopes it does not name are not used."""
        self._pinned = np.maximum(moved(rate, ids, self._own.ids), 0)

    def pin_also(self, ids: Int64s, rate: Int64s) -> None:
        """Note that the job may soon hold itself to this: until `pin` says so, it counts as using the larger."""
        self._pinned = np.maximum(self._pinned, moved(rate, ids, self._own.ids))

    @property
    def ids(self) -> Int64s:
        """The scopes that the job uses, ascending."""
        return self._own.ids

    @property
    def must_shrink(self) -> bool:
        """Whether the job holds itself to more than it should use: others wait for it."""
        return not self._is_fallen and bool((self._pinned > np.minimum(self._right, self._target)).any())

    @property
    def must_tell(self) -> bool:
        """Whether the next report has something that others wait for: a demand, a claim, or an answer to theirs."""
        if self._born_ms is None or self._is_asked:
            return True
        if len(self._own.rows) != len(self._rows) or (self._own.reported_at > self._number).any():
            return True
        return bool((self._claimed() != self._rows.claim).any())

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way: all that is wanted is reported, and all that was claimed may be used."""
        return not self._is_fallen and not (self._target > self._right).any() and not self.must_tell

    @property
    def others(self) -> int:
        """How many other jobs are known of."""
        return len(self._peers)

    def share(self, now_ms: int) -> Share:
        """Return what the job may use now."""
        self._fall_if_due(now_ms)
        if self.is_superseded or (self._is_fallen and now_ms >= self._floor_until_ms):
            rate = np.zeros_like(self._right)
        elif self._is_fallen:
            rate = self._floor
        elif self.settings.policy == "max_min":
            rate = np.minimum(self._right, self._target)
        else:
            rate = self._target
        rate = np.where(self._own.quota == UNLIMITED, UNLIMITED, rate)
        return Share(self._own.ids, rate, is_leased=not self._is_fallen)

    # ------------------------------------------------------------------------------------------ what a visit found

    def take_in(self, found: Found, *, started_ms: int, now_ms: int) -> None:
        """Take in what a visit found that began reading at `started_ms`."""
        self._fall_if_due(now_ms)
        # In the order of their marks, so that of two runs of a job the later one is the last that is seen.
        reports = sorted(found.reports.values(), key=lambda report: report.mark)
        shown = NO_MARK
        for mark in [report.mark for report in reports if report.member == self.member]:
            if mark.run == self.run and mark.incarnation <= self._incarnation:
                shown = mark
            else:
                self._meet(mark, now_ms, is_there=True)
        if self.is_superseded:
            return
        others = [report for report in reports if report.member != self.member]
        for report in others:
            self._meet(report.seen.get(self.member, NO_MARK), now_ms, is_there=False)
        is_shown = shown == self.mark and self._born_ms is not None
        for report in others:
            self._see(report.member, report, now_ms)
        self._note_unreadable(found, now_ms)
        self._bury(is_shown=is_shown, started_ms=started_ms)
        shown_number = shown.number if shown.incarnation == self._incarnation else 0
        self._renew(shown_number, now_ms)
        seats = self._seats()
        self._divide(seats)
        if is_shown and self._shown_ms is None:
            self._shown_ms = now_ms
        waits_ms = self.settings.margin_ms * (2 if self._other_runs else 1)
        is_ripe = self._shown_ms is not None and started_ms >= self._shown_ms + waits_ms
        is_prompt = now_ms - started_ms <= self.settings.margin_ms
        if is_shown and is_ripe and is_prompt and not self._is_fallen:
            self._grow(shown_number, seats, now_ms)

    def _meet(self, mark: Mark, now_ms: int, *, is_there: bool) -> None:
        """Take in that there is, or that another job has seen, a report of this job that another run wrote.

        The run that began last goes on. One that has used nothing yet takes a greater mark for one of before, whatever
        its own checkpoint says, and passes it, once: if it is passed in turn, the other run lives, and yields not.
        """
        if is_there and self._other_runs.wrote(mark):
            self._shown_ms = None
        if (mark.incarnation, mark.run) <= (self._incarnation, self.run):
            return
        self.is_superseded |= is_there and (self.is_established or self._other_runs.has_passed(mark))
        if not self._is_fallen:
            self.fell_at_ms = now_ms
        self._other_runs.note_passed(mark)
        self._begin_anew(self._incarnation if self.is_superseded else (mark.incarnation | _FALLS) + 1)
        self._right = self._floor = np.zeros_like(self._right)
        self._window = [Claimed(self._number, encode(self._floor), None)]

    def _see(self, member: str, report: ShareReport, now_ms: int) -> None:
        peer = self._peers.get(member)
        self._blocked_by.pop(member, None)
        if peer is None:
            self._peers[member] = Peer(report, now_ms, self._first_to_go_by())
            self._is_asked = True
            self._redivide(report.rows)
        elif report.mark > peer.report.mark:
            is_new_run = report.mark.run != peer.report.mark.run
            if is_new_run:
                peer.before.append(left_by(peer, now_ms + 2 * self.settings.margin_ms))
            if peer.is_dead or is_new_run or report.mark.incarnation != peer.report.mark.incarnation:
                peer.since = self._first_to_go_by()
                self._is_asked = True
            self._is_asked |= claims_more(report.rows, peer.report.rows)
            self._redivide(report.rows, peer.report.rows, has_died=peer.is_dead)
            peer.report, peer.seen_at_ms, peer.is_dead = report, now_ms, False
        elif report.mark == peer.report.mark:
            self._redivide(report.rows, peer.report.rows)
            peer.report = report  # with the rows of scopes that this job took up since

    def _redivide(self, new: ScopeRows, old: ScopeRows | None = None, *, has_died: bool = False) -> None:
        """Note the scopes that are to be divided anew since a job's rows changed."""
        for ids in changed_scopes(new, old, has_died=has_died, has_usage=self.settings.policy != "max_min"):
            self._is_stale[np.searchsorted(self._own.ids, ids[found_in(ids, self._own.ids)])] = True

    def _first_to_go_by(self) -> int:
        """Return the number of this job's first report that a peer which begins can go by; 0 if only its answer tells.

        One that begins uses nothing before it has an answer, and this job's next report is the first that can be one.
        But if this job begins itself, the other may be at work already, and not know of it.
        """
        return 0 if self._is_fallen else self._number + 1

    def _note_unreadable(self, found: Found, now_ms: int) -> None:
        """Remember whose registers cannot be understood: what they claim is unknown, so nobody may grow."""
        for member, problem in found.unreadable.items():
            if member != self.member and member not in self._peers:
                before = self._blocked_by.get(member)
                if before is None or before[0] != problem:
                    self._blocked_by[member] = problem, now_ms

    def _bury(self, *, is_shown: bool, started_ms: int) -> None:
        """Hold for dead whoever published nothing for too long, if this visit shows what is there."""
        if not is_shown:
            return
        patience_ms = self.settings.hold_ms + self.settings.margin_ms
        for peer in self._peers.values():
            if not peer.is_dead and started_ms >= peer.seen_at_ms + patience_ms:
                peer.is_dead = True
                self._redivide(peer.report.rows)
        forget_ms = self.settings.forget_ms + self.settings.margin_ms
        for member, peer in list(self._peers.items()):
            if started_ms >= peer.seen_at_ms + forget_ms:
                self._redivide(self._peers.pop(member).report.rows)
        self._blocked_by = {
            member: (problem, since_ms)
            for member, (problem, since_ms) in self._blocked_by.items()
            if started_ms < since_ms + patience_ms
        }

    def _answered(self, peer: Peer) -> int:
        """Return the number of this job's last report that a peer is known to have seen, or cannot have missed."""
        mark = peer.report.seen.get(self.member, NO_MARK)
        is_ours = (mark.incarnation, mark.run) == (self._incarnation, self.run)
        return max(mark.number if is_ours else 0, peer.since)

    def _renew(self, shown_number: int, now_ms: int) -> None:
        """Prolong the lease to `hold` after the last report that was seen by all who can be heard."""
        fresh_ms = now_ms - self.settings.margin_ms
        answers = [self._answered(peer) for peer in self._peers.values() if peer.seen_at_ms >= fresh_ms]
        number = min([shown_number, *answers])
        oldest_ms = now_ms - self.settings.hold_ms
        self._published_ms = {each: at_ms for each, at_ms in self._published_ms.items() if at_ms > oldest_ms}
        times = [at_ms for each, at_ms in self._published_ms.items() if each <= number]
        if times:
            until_ms = max(times) + self.settings.hold_ms
            self._held_until_ms = until_ms if self._held_until_ms is None else max(self._held_until_ms, until_ms)

    def _fall_if_due(self, now_ms: int) -> None:
        """Fall to the floor, and begin anew, if the lease has ended."""
        if self._held_until_ms is not None and now_ms >= self._held_until_ms:
            self.fell_at_ms = self._held_until_ms
            self._floor_until_ms = self._held_until_ms - self.settings.hold_ms + self.settings.forget_ms
            self._begin_anew(self._incarnation + 1)
            self._right = self._floor
            self._window = [Claimed(self._number, encode(self._floor), None)]

    def _begin_anew(self, incarnation: int) -> None:
        """Go on as a newcomer, whose reports all must see anew."""
        self._held_until_ms = self._born_ms = self._shown_ms = None
        self._incarnation = incarnation
        self._published_ms.clear()
        for peer in self._peers.values():
            peer.since = 0

    def _grow(self, shown_number: int, others: OtherSeats, now_ms: int) -> None:
        """Take what all have seen to be claimed, and nobody else claims."""
        if self._blocked_by:
            return
        seen_by_all = min([shown_number, *(self._answered(p) for p in self._peers.values() if not p.is_dead)])
        while len(self._window) > 1 and self._window[1].number <= seen_by_all:
            self._window.pop(0)
        self.is_established = True
        least = np.min([decode(each.claim) for each in self._window], axis=0)
        claimed = self._claimed_by(others) + left_over(self._peers.values(), self._own.ids, now_ms)
        free = np.where(self._own.quota == UNLIMITED, 0, self._own.quota - claimed)
        self._right = np.maximum(self._right, np.minimum(least, free))
        self._floor = np.minimum(np.min([each.floor_rate() for each in self._window], axis=0), self._right)

    def _claimed_by(self, others: OtherSeats) -> Int64s:
        claim = np.where(others.is_dead[:, None], others.rows.floor_rate(), decode(others.rows.claim))
        return sums(others.scope, claim, len(self._own.ids))

    def _seats(self) -> OtherSeats:
        everyone = list(self._peers.values())
        rows = joined([peer.report.rows for peer in everyone])
        counts = [len(peer.report.rows) for peer in everyone]
        who = np.repeat(np.arange(len(everyone)), counts)
        is_dead = np.repeat(np.array([peer.is_dead for peer in everyone], dtype=np.bool_), counts)
        is_ours = found_in(rows.ids, self._own.ids)
        if not is_ours.all():
            kept = np.flatnonzero(is_ours)
            who, is_dead, rows = who[kept], is_dead[kept], rows.take(kept)
        return OtherSeats(who, is_dead, rows, np.searchsorted(self._own.ids, rows.ids))

    def _divide(self, others: OtherSeats) -> None:
        """Set what this job should claim, by what it and the others reported, where that changed."""
        stale = np.flatnonzero(self._is_stale)
        if not len(stale):
            return
        place = np.cumsum(self._is_stale) - 1
        seats = np.flatnonzero(self._is_stale[others.scope])
        some = OtherSeats(
            others.peer[seats], others.is_dead[seats], others.rows.take(seats), place[others.scope[seats]]
        )
        part, self._members[stale] = divide(self.settings, self._own.rows.take(stale), self._own.quota[stale], some)
        target = self._target
        target[stale] = np.where(self._is_leaving[stale, None], 0, part)
        self._target = target
        self._is_stale[:] = False

    # ------------------------------------------------------------------------------------------ what others are told

    def _kept(self) -> Int64s:
        """Return what the job uses though it fell."""
        return self._floor if self._is_fallen else np.zeros_like(self._floor)

    def _claimed(self) -> Codes:
        """Return what the next report claims: what is used, until less of it is."""
        claim, kept = np.maximum(self._target, self._pinned), self._kept()
        # A floor is told in 256ths of the claim, which is so made that they suffice.
        return encode(np.maximum(claim, np.where(kept > 0, kept + kept // 128 + FLOOR_PARTS, 0)))

    def next_report(self, *, now_ms: int, wall_ms: int) -> Update:
        """Return the report to publish now. From now on others may go by it, whether the write succeeds or not."""
        self._fall_if_due(now_ms)
        codes, kept = self._claimed(), self._kept()
        claim = np.maximum(decode(codes), 1)
        wanted = floors(self.settings, self._own.quota, self._members)
        parts = np.maximum(wanted * FLOOR_PARTS // claim, -(-kept * FLOOR_PARTS // claim))
        rows = replace(self._own.rows, claim=codes, floor=np.minimum(parts, FLOOR_PARTS - 1).astype(np.uint8))
        changed = rows.take(np.flatnonzero(rows.differ(self._rows)))
        removed = self._rows.ids[~found_in(self._rows.ids, rows.ids)]
        self._own = replace(self._own, rows=rows)
        self._rows, self._reported_at = rows, self._own.reported_at
        self._number += 1
        self._is_asked = False
        if self._born_ms is None:
            self._born_ms = now_ms
        self._published_ms[self._number] = now_ms
        self._window.append(Claimed(self._number, codes, rows.floor))
        self._right = np.minimum(self._right, decode(codes))
        self._floor = np.minimum(np.minimum(self._floor, rows.floor_rate()), self._right)
        seen = {member: peer.report.mark for member, peer in self._peers.items()}
        return Update(ShareReport(self.member, self._name, self.mark, wall_ms, seen, rows), changed, removed)

    # ------------------------------------------------------------------------------------------ what people are told

    def observed(self, now_ms: int) -> Observation:
        """Return what is known now of every scope and every other job."""
        share, own = self.share(now_ms), self._own
        used = decode(own.rows.usage)
        peers = [
            PeerStatus(peer.report.name, member, now_ms - peer.seen_at_ms, "dead" if peer.is_dead else "live")
            for member, peer in self._peers.items()
        ]
        peers += [
            PeerStatus(member, member, now_ms - since_ms, "unreadable")
            for member, (_, since_ms) in self._blocked_by.items()
        ]
        others = self._seats()
        live = ~others.is_dead
        theirs = decode(others.rows.usage)
        used = used + sums(others.scope[live], theirs[live], len(own.ids))
        left_ms = 0 if self._held_until_ms is None else max(0, self._held_until_ms - now_ms)
        age_ms = -1 if self._held_until_ms is None else now_ms - (self._held_until_ms - self.settings.hold_ms)
        return Observation(
            own.ids, own.quota, share.rate, used, tuple(peers), others.scope, others.peer,
            decode(others.rows.claim), theirs,
            share.is_leased, age_ms, left_ms,
        )  # fmt: skip
