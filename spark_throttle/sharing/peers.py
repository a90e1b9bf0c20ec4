"""The other jobs that a job shares quotas with: each one's report, whether it is dead, and whether it can be read.

A visit to the exchange finds their reports, and leaves the job's next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from spark_throttle.core.arithmetic.rate_codes import decode
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import Int64s
from spark_throttle.sharing.budget_claims import counted, larger, unclaimed, used_by_runs
from spark_throttle.sharing.division import OtherSeats
from spark_throttle.sharing.report import Mark, ReplacedRuns, ScopeRows, ShareReport, found_in, joined, moved
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.status import PeerStatus


@dataclass(slots=True, eq=False)
class Peer:
    """What is known of another job."""

    report: ShareReport
    seen_at_ms: int
    """When its last report was first seen, by this job's steady clock."""

    since: int
    """Number of this job's first report that the peer, in this incarnation, can rely on."""

    is_dead: bool = False
    before: list[Predecessor] = field(default_factory=list)
    """The runs that the run of the last report replaced: they may not know it yet."""

    carried: tuple[Int64s, Int64s] | None = None
    """What these runs may have used of budgets (`budget_claims.counted`)."""

    shown: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The part of it that their registers still show to all jobs."""

    is_gone: bool = False
    """Whether it has been dead for so long that nothing is kept for it but what it claims of budgets."""


@dataclass(frozen=True, slots=True, eq=False)
class Predecessor:
    """The claims of a run that another run of its job has replaced."""

    ids: Int64s
    rate_micro_per_ms: Int64s
    until_ms: int
    """When the replaced run has stopped, by this job's steady clock."""


@dataclass(frozen=True, slots=True)
class UnreadableRegister:
    """A register that a visit found and could not read, so that its job's claims are unknown."""

    problem: str
    digest: str | None
    """Identifies the bytes that could not be understood; `None` if the register's objects could not be read at all."""


@dataclass(slots=True)
class _Unknown:
    """A register that cannot be read: what its job claims is unknown."""

    register: UnreadableRegister
    since_ms: int
    """When the register was first found so, by this job's steady clock."""

    seen_at_ms: int
    is_dead: bool = False
    """Whether the same bytes have stood for longer than a lease: a live job replaces its register."""


@dataclass(frozen=True, slots=True, eq=False)
class News:
    """What follows from another job's report, or from its silence, for this job."""

    changed: list[Int64s]
    """Scopes that must be divided again, as groups of ids."""

    is_asked: bool = False
    """Whether the other job waits for an answer."""


class Peers:
    """All other jobs; no I/O and no clock. Times are by one steady clock of this process, in ms."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._known: dict[str, Peer] = {}
        self._unknown: dict[str, _Unknown] = {}
        """What cannot be read, by register; the job may have been heard before, or have another register."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def everyone(self) -> list[Peer]:
        """All peers that were heard, including the dead."""
        return [peer for peer in self._known.values() if not peer.is_gone]

    @property
    def are_all_readable(self) -> bool:
        """Whether the claims of all jobs are known: otherwise this job may not grow."""
        return all(each.is_dead for each in self._unknown.values())

    @property
    def seen(self) -> dict[str, Mark]:
        """The mark of each peer's last report, by member."""
        return {member: peer.report.mark for member, peer in self._known.items()}

    def see(self, report: ShareReport, now_ms: int, *, since: int) -> News:
        """Take in a report that a visit found.

        Parameters
        ----------
        since
            Number of this job's first report that a new peer can rely on; 0 if only the peer's answer tells.
        """
        member = report.member
        peer = self._known.get(member)
        if peer is None:
            self._known[member] = Peer(report, now_ms, since)
            return News(self._changed(report.rows), is_asked=True)
        if report.mark > peer.report.mark:
            is_new_run = report.mark.run != peer.report.mark.run
            if is_new_run:
                peer.before.append(left_by(peer, now_ms + 2 * self._settings_with(peer).margin_ms))
                peer.carried = counted(peer.report, peer.carried)
            begins = peer.is_dead or is_new_run or report.mark.incarnation != peer.report.mark.incarnation
            if begins:
                peer.since = since
            is_asked = begins or claims_more(report.rows, peer.report.rows)
            changed = self._changed(report.rows, peer.report.rows, has_died=peer.is_dead)
            peer.report, peer.seen_at_ms, peer.is_dead, peer.is_gone = report, now_ms, False, False
            return News(changed, is_asked)
        if report.mark == peer.report.mark:
            changed = self._changed(report.rows, peer.report.rows)
            peer.report = _budgets_of(report) if peer.is_gone else report  # it has rows of scopes taken up since
            return News(changed)
        return News([])

    def note_unreadable(
        self, registers: Mapping[str, UnreadableRegister], readable: Collection[str], now_ms: int
    ) -> None:
        """Remember the registers that a visit could not read; `readable` are those that it could."""
        for stem in readable:
            self._unknown.pop(stem, None)
        for stem, register in registers.items():
            before = self._unknown.get(stem)
            if before is None or before.register != register:
                self._unknown[stem] = _Unknown(register, now_ms, now_ms)
            else:
                before.seen_at_ms = now_ms

    def bury(self, started_ms: int) -> News:
        """Consider dead every job that published nothing for too long, as a visit begun at `started_ms` has shown.

        A job whose register cannot be read is dead if the register does not change either. While nobody can say whether
        it changes, the job may live, and keeps what it has claimed.
        """
        changed: list[Int64s] = []
        patience_ms = self._settings.dead_after_ms
        for stem, unknown in list(self._unknown.items()):
            unknown.is_dead |= unknown.register.digest is not None and started_ms >= unknown.since_ms + patience_ms
            if started_ms >= unknown.seen_at_ms + patience_ms:
                del self._unknown[stem]
        silent = [(member, peer) for member, peer in self._known.items() if self._may_be_dead(member)]
        for _, peer in silent:
            if not peer.is_dead and started_ms >= peer.seen_at_ms + self._settings_with(peer).dead_after_ms:
                peer.is_dead = True
                changed += self._changed(peer.report.rows)
        for member, peer in silent:
            if not peer.is_gone and started_ms >= peer.seen_at_ms + self._settings_with(peer).gone_after_ms:
                changed += self._changed(peer.report.rows)
                peer.is_gone, peer.report = True, _budgets_of(peer.report)
                if not len(counted(peer.report, peer.carried)[0]):
                    del self._known[member]
        return News(changed)

    def _settings_with(self, peer: Peer) -> ShareSettings:
        """Return the settings by which a peer's silence is judged: of the two leases, the longer counts."""
        return self._settings.lasting(peer.report.terms)

    @property
    def on_other_terms(self) -> list[ShareReport]:
        """The reports of live peers that share by other settings than this job."""
        live = [peer.report for peer in self.everyone if not peer.is_dead]
        return [report for report in live if report.terms != self._settings.terms]

    def _may_be_dead(self, member: str) -> bool:
        return all(unknown.is_dead for stem, unknown in self._unknown.items() if member_of(stem) == member)

    def begin_anew(self) -> None:
        """Forget which of this job's reports the others can rely on: it begins again, and all must answer."""
        for peer in self._known.values():
            peer.since = 0

    def seats(self, ids: Int64s, own: str) -> OtherSeats:
        """Return what all peers reported of the scopes `ids`, the gone last; `own` is this job as a member."""
        known = sorted(self._known.items(), key=lambda each: each[1].is_gone)
        everyone = [peer for _, peer in known]
        place = {member: at for at, member in enumerate(sorted({own, *self._known}))}
        rank = np.array([place[member] for member, _ in known], dtype=np.int64)
        rows = joined([peer.report.rows for peer in everyone])
        counts = [len(peer.report.rows) for peer in everyone]
        who = np.repeat(np.arange(len(everyone)), counts)
        is_dead = np.repeat(np.array([peer.is_dead for peer in everyone], dtype=np.bool_), counts)
        is_ours = found_in(rows.ids, ids)
        if not is_ours.all():
            kept = np.flatnonzero(is_ours)
            who, is_dead, rows = who[kept], is_dead[kept], rows.take(kept)
        return OtherSeats(who, is_dead, rows, np.searchsorted(ids, rows.ids), rank[who], place[own])

    def claimed(self, seats: OtherSeats, ids: Int64s, quota: Int64s, now_ms: int) -> Int64s:
        """Return what the peers claim, or may still use, of the scopes `ids`, whose quotas are `quota`."""
        kept = seats.kept(self._settings, quota)
        claim = np.where(seats.is_dead[:, None], kept, decode(seats.rows.claim))
        found = sums(seats.scope, claim, len(ids)) + self._left_over(ids, now_ms)
        found[:, 0] += self.unknown(ids)
        return found

    def unknown(self, ids: Int64s) -> Int64s:
        """Return what replaced runs of other jobs may have used of budgets that their successors do not know of."""
        over = np.zeros(len(ids), dtype=np.int64)
        for peer in self._known.values():
            if peer.carried is not None:
                over += moved(unclaimed(peer.report, peer.carried), peer.carried[0], ids)
        return over

    def replaced(self) -> dict[str, ReplacedRuns]:
        """Return what to tell of these runs, unless their registers surely tell it themselves.

        Their successor, and jobs that begin, learn it so.
        """
        told = {}
        for member, peer in self._known.items():
            if peer.carried is not None:
                is_lost = unclaimed(peer.report, peer.carried) > 0
                if not peer.before:  # else this job may go by an old listing of their registers
                    is_lost &= peer.carried[1] > peer.shown
                if is_lost.any():
                    told[member] = ReplacedRuns(peer.report.mark.run, *(each[is_lost] for each in peer.carried))
        return told

    def learn(self, reports: Sequence[ShareReport]) -> News:
        """Take in what reports tell of replaced runs, where this job knows the run that replaced them.

        Parameters
        ----------
        reports
            All that a visit found, in the order of their marks: those of replaced runs, too.
        """
        changed = []
        runs = defaultdict(list)
        for report in reports:
            runs[report.member].append(report)
            for member, told in report.replaced.items():
                peer = self._known.get(member)
                if peer is not None and peer.report.mark.run == told.by:
                    peer.carried = larger(peer.carried, (told.ids, told.amount))
                    changed.append(told.ids)
        for member, peer in self._known.items():
            if peer.carried is not None:
                before = [report for report in runs[member] if report.mark.run != peer.report.mark.run]
                peer.shown = used_by_runs(before, peer.carried[0])
        return News(changed)

    def _left_over(self, ids: Int64s, now_ms: int) -> Int64s:
        """Return what replaced runs may still use of the scopes `ids`, beyond what their successors claim."""
        over = np.zeros((len(ids), 2), dtype=np.int64)
        for peer in self._known.values():
            peer.before = [each for each in peer.before if now_ms < each.until_ms]
            if peer.before:
                now, was = left_by(peer, now_ms), [moved(each.rate_micro_per_ms, each.ids, ids) for each in peer.before]
                over += np.maximum(np.max(was, axis=0) - moved(now.rate_micro_per_ms, now.ids, ids), 0)
        return over

    def statuses(self, now_ms: int) -> tuple[PeerStatus, ...]:
        """Return the status of every peer, as people see it: first those that can be read."""
        heard = [
            PeerStatus(peer.report.name, member, now_ms - peer.seen_at_ms, "dead" if peer.is_dead else "live")
            for member, peer in self._known.items()
            if not peer.is_gone
        ]
        unreadable = [
            PeerStatus(member_of(stem), member_of(stem), now_ms - unknown.since_ms, "unreadable")
            for stem, unknown in self._unknown.items()
            if member_of(stem) not in self._known
        ]
        return (*heard, *unreadable)

    def _changed(self, new: ScopeRows, old: ScopeRows | None = None, *, has_died: bool = False) -> list[Int64s]:
        return changed_scopes(new, old, has_died=has_died, has_usage=self._settings.policy != "max_min")


def left_by(peer: Peer, until_ms: int) -> Predecessor:
    """Return what the run that wrote a peer's last report may use, until `until_ms`; of budgets see `Peer.carried`."""
    rows = peer.report.rows.take(np.flatnonzero(~peer.report.rows.is_budget))
    return Predecessor(rows.ids, rows.floor_rate() if peer.is_dead else decode(rows.claim), until_ms)


def claims_more(new: ScopeRows, old: ScopeRows) -> bool:
    """Return whether a job may wait for answers to its new report: it has other scopes, or claims more of one."""
    if new is old:
        return False
    is_same = new.ids is old.ids or np.array_equal(new.ids, old.ids)
    return not is_same or bool((new.claim > old.claim).any())


def changed_scopes(new: ScopeRows, old: ScopeRows | None, *, has_died: bool, has_usage: bool) -> list[Int64s]:
    """Return the scopes in which a job's report has changed, as far as a division depends on it."""
    if old is new and not has_died:
        return []
    if old is None:
        return [new.ids]
    if has_died or old.ids is not new.ids or old.bins is not new.bins:
        return [old.ids, new.ids]
    # The scopes and their numbers of bins are the same: only values were overwritten.
    changed = (new.bin_demand != old.bin_demand).any(axis=1) | (new.bin_weight != old.bin_weight)
    if has_usage:
        changed |= (new.usage != old.usage).any(axis=1)[new.bin_row]
    of_budgets = new.is_budget & ((new.usage != old.usage).any(axis=1) | (new.claim != old.claim).any(axis=1))
    return [new.ids[new.bin_row[changed]], new.ids[of_budgets]]


def _budgets_of(report: ShareReport) -> ShareReport:
    """Return a report with its budgets alone."""
    return replace(report, rows=report.rows.take(np.flatnonzero(report.rows.is_budget)))


def member_of(stem: str) -> str:
    """Return the job that owns a register, whose objects' names begin with `stem`."""
    return stem.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Visit:
    """What a visit to the exchange found."""

    reports: Mapping[str, ShareReport]
    """Reports by register, including the job's own and those of its other runs."""

    unreadable: Mapping[str, UnreadableRegister] = field(default_factory=dict)
    """By register of another job: why it could not be read."""

    is_own_whole: bool = True
    """False if what this job published is there no more, or damaged, so that others cannot read it."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A report, and how it differs from the one before."""

    report: ShareReport
    changed: ScopeRows
    removed: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The rates that a job may use now."""

    ids: Int64s
    rate_micro_per_ms: Int64s
    """Shape (n, 2); `UNLIMITED` where the scope has no limit."""

    is_leased: bool
    """False while only the floor may be used."""

    earlier: Int64s
    """The part of a budget's amount that the job's earlier runs may have used, shape (n,)."""

    by_others: Int64s
    """What other jobs have used of a budget, or may have, as far as their reports tell, shape (n,)."""
