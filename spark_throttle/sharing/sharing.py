"""One job's part of the quotas that it shares: the reports of other jobs go in, a lease comes out.

There is no coordinator, and no compare-and-swap. A report carries the job's *claim* in every scope, and names the last
report that the job had seen from every other job. The *window* of a job is its reports from the newest that every live
job has seen up to the newest that it published: another job may be relying on any of them. Laws:

- What a job may use is at most its least claim in the window.
- It comes to use more only up to the quota less the claims in the reports of the others that it has seen itself.
- A lease ends `hold` after the last report of the job that all have seen; then the job has its floor, and begins again
  as a newcomer, which uses nothing more until all have answered it.
- Of two runs of one member, the one with the greater mark goes on, and the other publishes no more.

So growing waits for shrinking, and late, lost or repeated reports cost time and no tokens (`docs/several-jobs.md` has
the argument). What surprises: claims may disagree while reports travel; nobody grows until they agree. PIP-82's
policies at times give out more than the quota, so under them a job uses what its policy says, lease or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.rate_codes import CodedRates, Codes, ceiling, decode, encode
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import UNLIMITED, Int64s
from spark_throttle.sharing.budget_claims import used_by_runs
from spark_throttle.sharing.division import OtherSeats, divide_all, floors, most_kept
from spark_throttle.sharing.own_scopes import OtherRuns, OwnScopes, PublishedClaim
from spark_throttle.sharing.peers import News, Peer, Peers, Share, Update, Visit
from spark_throttle.sharing.report import (
    FLOOR_PARTS,
    NO_MARK,
    Mark,
    Measurement,
    ScopeRows,
    ShareReport,
    found_in,
    moved,
)
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.status import Observation

_LEASED: Final = ("max_min", "static")
"""The policies whose parts sum to the quota, so that leases can keep the jobs within it."""

_FALLS = (1 << 20) - 1
"""The bits of an incarnation that count how often the job fell to its floor; those above count its starts."""

_MOST_RETURNS: Final = 8
"""How often a run goes on that yielded to another: both may own a checkpoint, if one is a copy that cannot tell."""


class Sharing:
    """The state of one job's leases; no I/O and no clock. Times are by one steady clock of this process, in ms.

    Parameters
    ----------
    member
        Identifies the job among all; two processes with one member must not run at once, as with a checkpoint.
    name
        What people call it.
    incarnation
        Larger than at any earlier start of the member, as far as is known.
    run
        Random bits of this start, below 2**62, by which two processes that took the same member and incarnation know
        of each other.
    """

    _target_micro_per_ms = CodedRates()
    """The rates that the job should claim."""

    _pinned_micro_per_ms = CodedRates()
    """The rates that its epochs may still use."""

    _right_micro_per_ms = CodedRates()
    """The rates that it may use while its lease lasts."""

    _floor_micro_per_ms = CodedRates()
    """The rates that it may use after its lease has ended."""

    _earlier_tokens = CodedRates()
    """What the job's earlier runs may have used of budgets."""

    _used_tokens = CodedRates()
    """What this run has used of them, as the job told last."""

    def __init__(self, member: str, name: str, incarnation: int, settings: ShareSettings, run: int = 0) -> None:
        self.settings = settings
        self.member = member
        self.run = run
        self._name = name
        self._incarnation = incarnation * (_FALLS + 1)
        self._number = 0
        self._peers = Peers(settings)
        self._own = OwnScopes.nothing()
        self._is_leaving = np.zeros(0, dtype=np.bool_)
        self._rows = ScopeRows.empty()
        self._reported_at = np.zeros(0, dtype=np.int32)
        self._members = np.zeros(0, dtype=np.uint16)
        nothing = np.zeros(0, dtype=np.int64)
        self._earlier_tokens, self._used_tokens, self._by_others_tokens = nothing, nothing, nothing
        self._is_stale = np.zeros(0, dtype=np.bool_)
        none = np.zeros((0, 2), dtype=np.int64)
        self._target_micro_per_ms, self._pinned_micro_per_ms, self._right_micro_per_ms = none, none, none
        self._floor_micro_per_ms = none
        self._window = [PublishedClaim(0, encode(none), None)]
        self._published_ms: dict[int, int] = {}
        self._born_ms: int | None = None
        self._shown_ms: int | None = None
        self._held_until_ms: int | None = None
        """When the lease ends; `None` while the job is fallen."""

        self._floor_until_ms = 0
        self._other_runs = OtherRuns()
        self._look_ms = settings.margin_ms
        """How seldom another run of this job may look: it may have begun with a longer lease."""

        self.is_established = False
        """Whether this run has ever been able to use anything."""

        self._is_asked = False
        self._falls_ms: list[int] = []
        self.is_superseded = False
        """Whether this run yielded to another run of its job: it may use nothing, and publishes nothing."""

        self._yields = 0
        """How often this run has yielded to the run that superseded it."""

    @property
    def mark(self) -> Mark:
        """The mark of the last report."""
        return Mark(self._incarnation, self.run, self._number)

    @property
    def may_go_on(self) -> bool:
        """Whether this run yielded to another run, and not too often, so that `go_on` lets it begin anew."""
        return self.is_superseded and self._yields <= _MOST_RETURNS

    @property
    def _is_fallen(self) -> bool:
        return self._held_until_ms is None

    # ------------------------------------------------------------------------------------------ what the job tells us

    def measure(self, measured: Measurement) -> None:
        """Take in what the job's namespaces want and use.

        A scope that is no longer named is given up: the job may use nothing of it, and reports it no more once `pin`
        says that nothing of it is used.
        """
        before, was_leaving, old = self._own, self._is_leaving, self._own.ids
        leaving = np.flatnonzero(~found_in(old, measured.ids) & (self._pinned_micro_per_ms > 0).any(axis=1))
        rows = self._own.rows
        measured = measured.with_scopes(old[leaving], self._own.quota.take(leaving, axis=0), rows.period[leaving])
        self._earlier_tokens = moved(self._earlier_tokens, old, measured.ids)
        self._used_tokens = ceiling(np.where(measured.periods > 0, measured.usage[:, 0], 0))
        if (measured.periods > 0).any():
            measured = self._with_earlier(measured)
        self._own = OwnScopes.drafted(self.settings, measured, self._rows, self._reported_at, self._number + 1, old)
        new = self._own.ids
        self._is_leaving = found_in(new, old[leaving])
        if new is old:
            self._is_stale |= self._own.rows.differ(before.rows) | (self._is_leaving != was_leaving)
            self._is_stale |= (self._own.quota_codes != before.quota_codes).any(axis=1)
        else:
            self._by_others_tokens = moved(self._by_others_tokens, old, new)
            self._is_stale = np.ones(len(new), dtype=np.bool_)
            for name in ("_target_micro_per_ms", "_pinned_micro_per_ms", "_right_micro_per_ms", "_floor_micro_per_ms"):
                setattr(self, name, moved(getattr(self, name), old, new))
            self._members = moved(self._members, old, new)
            self._window = [each.moved(old, new) for each in self._window]

    def _with_earlier(self, measured: Measurement) -> Measurement:
        """Return a measurement in which what earlier runs used of a budget counts as used."""
        is_budget = measured.periods > 0
        known = np.where(is_budget, measured.usage[:, 1], 0)
        self._note_earlier(known, measured.ids)
        total = ceiling(self._earlier_tokens + self._used_tokens)
        usage = np.where(is_budget[:, None], np.stack([total, np.zeros_like(total)], axis=1), measured.usage)
        return replace(measured, usage=usage)

    def _note_earlier(self, used: Int64s, ids: Int64s) -> None:
        """Note what earlier runs may have used of budgets: what this run uses comes on top of it."""
        earlier = np.maximum(self._earlier_tokens, ceiling(used))
        more = moved(earlier - self._earlier_tokens, ids, self._own.ids)
        if more.any():
            pinned = self._pinned_micro_per_ms
            pinned[:, 0] += np.where(pinned[:, 0] > 0, more, 0)
            self._pinned_micro_per_ms = ceiling(pinned)
        self._earlier_tokens = earlier

    def pin(self, ids: Int64s, rate_micro_per_ms: Int64s) -> None:
        """Note the rates to which the job holds itself from now on; scopes that are not named are not used."""
        self._pinned_micro_per_ms = np.maximum(moved(rate_micro_per_ms, ids, self._own.ids), 0)

    def pin_also(self, ids: Int64s, rate_micro_per_ms: Int64s) -> None:
        """Note rates to which the job may soon hold itself: until the next `pin` it counts as using the larger."""
        self._pinned_micro_per_ms = np.maximum(self._pinned_micro_per_ms, moved(rate_micro_per_ms, ids, self._own.ids))

    @property
    def ids(self) -> Int64s:
        """The scopes that the job uses, ascending."""
        return self._own.ids

    @property
    def must_shrink(self) -> bool:
        """Whether the job holds itself to more than it should use, so that others wait for it."""
        should = np.minimum(self._right_micro_per_ms, self._target_micro_per_ms)
        return not self._is_fallen and bool((self._pinned_micro_per_ms > np.maximum(should, self._taken())).any())

    @property
    def must_tell(self) -> bool:
        """Whether the next report holds something that others wait for: a demand, a claim, or an answer to theirs."""
        if self._born_ms is None or self._is_asked:
            return True
        if len(self._own.rows) != len(self._rows) or (self._own.reported_at > self._number).any():
            return True
        return bool((self._claimed() != self._rows.claim).any())

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way: all that is wanted is reported, and all that was claimed may be used."""
        return (
            not self._is_fallen
            and not (self._target_micro_per_ms > self._right_micro_per_ms).any()
            and not self.must_tell
        )

    @property
    def others(self) -> int:
        """The number of other jobs that this job knows of."""
        return len(self._peers)

    @property
    def on_other_terms(self) -> list[str]:
        """The live jobs that share by other settings than this job, and those settings."""
        return [f"job {report.name} shares by {report.terms}" for report in self._peers.on_other_terms]

    def share(self, now_ms: int) -> Share:
        """Return what the job may use now."""
        self._fall_if_due(now_ms)
        if self.is_superseded or (self._is_fallen and now_ms >= self._floor_until_ms):
            rate_micro_per_ms = np.zeros_like(self._right_micro_per_ms)
        elif self._is_fallen:
            rate_micro_per_ms = np.minimum(self._floor_micro_per_ms, most_kept(self.settings, self._own.quota))
        elif self.settings.policy in _LEASED:
            rate_micro_per_ms = np.minimum(self._right_micro_per_ms, self._target_micro_per_ms)
        else:
            rate_micro_per_ms = self._target_micro_per_ms
        if self._own.rows.is_budget.any():
            amount = np.minimum(self._right_micro_per_ms, self._target_micro_per_ms)
            amount = np.maximum(np.zeros_like(amount) if self.is_superseded else amount, self._taken())
            rate_micro_per_ms = np.where(self._own.rows.is_budget[:, None], amount, rate_micro_per_ms)
        rate_micro_per_ms = np.where(self._own.quota == UNLIMITED, UNLIMITED, rate_micro_per_ms)
        earlier, others = self._earlier_tokens, self._by_others_tokens
        return Share(self._own.ids, rate_micro_per_ms, not self._is_fallen, earlier, others)

    def _taken(self) -> Int64s:
        """Return what all runs of this job may have used of budgets, shape (scopes, 2); 0 for rates."""
        total = ceiling(self._earlier_tokens + self._used_tokens)
        return np.stack([np.where(self._own.rows.is_budget, total, 0), np.zeros_like(total)], axis=1)

    def leased_until_ms(self, since_ms: int, now_ms: int) -> int:
        """Return when the lease first ended after `since_ms`, or `now_ms`; `since_ms` is never less than before.

        A lease that began again later does not count: meanwhile others may have used what this job had.
        """
        self._fall_if_due(now_ms)
        self._falls_ms = [each for each in self._falls_ms if each > since_ms]
        return min([now_ms, *self._falls_ms])

    # ------------------------------------------------------------------------------------------ what a visit found

    def take_in(self, found: Visit, *, started_ms: int, now_ms: int) -> None:
        """Take in what was found by a visit that began reading at `started_ms`."""
        self._fall_if_due(now_ms)
        if self.is_superseded:
            return
        # In the order of their marks, so that of two runs of a job the later one is seen last.
        reports = sorted(found.reports.values(), key=lambda report: report.mark)
        shown = self._take_in_own([report for report in reports if report.member == self.member], now_ms)
        others = [report for report in reports if report.member != self.member]
        for report in others:
            self._meet(report.seen.get(self.member, NO_MARK), now_ms, is_there=False)
        if self.is_superseded:
            return
        is_shown = shown == self.mark and self._born_ms is not None
        for report in others:
            self._note(self._peers.see(report, now_ms, since=self._first_to_go_by()))
        self._note(self._peers.learn(reports))
        for report in reports:
            if (told := report.replaced.get(self.member)) is not None:
                self._note_earlier(moved(told.amount, told.ids, self._own.ids), self._own.ids)
        self._peers.note_unreadable(found.unreadable, found.reports, now_ms)
        if is_shown:
            self._note(self._peers.bury(started_ms))
        shown_number = shown.number if shown.incarnation == self._incarnation else 0
        self._renew(shown_number, now_ms)
        seats = self._peers.seats(self._own.ids, self.member)
        self._divide(seats)
        if is_shown and self._shown_ms is None:
            self._shown_ms = now_ms
        waits_ms = 2 * self._look_ms if self._other_runs else self.settings.margin_ms
        is_ripe = self._shown_ms is not None and started_ms >= self._shown_ms + waits_ms
        is_prompt = now_ms - started_ms <= self.settings.margin_ms
        if is_shown and is_ripe and is_prompt and not self._is_fallen:
            self._grow(shown_number, seats, now_ms)

    def _take_in_own(self, reports: list[ShareReport], now_ms: int) -> Mark:
        """Take in the reports of all runs of this job, in the order of their marks; return the mark of this run's."""
        shown = NO_MARK
        ids = self._own.ids
        self._note_earlier(used_by_runs([report for report in reports if report.mark.run != self.run], ids), ids)
        for report in reports:
            if report.mark.run == self.run and report.mark.incarnation <= self._incarnation:
                shown = report.mark
            else:
                self._look_ms = max(self._look_ms, self.settings.lasting(report.terms).margin_ms)
                self._meet(report.mark, now_ms, is_there=True)
        if shown == NO_MARK and not self.is_established:
            self._shown_ms = None  # its register vanished: another run of this job may not have seen it
        return shown

    def _meet(self, mark: Mark, now_ms: int, *, is_there: bool) -> None:
        """Take in the mark of a report that another run of this job wrote: it is there, or another job has seen it.

        The run that began last goes on. A run that has used nothing yet takes a greater mark to be an earlier run's,
        whatever its own checkpoint says, and goes beyond it, once: if the other run then goes beyond this one, it is
        alive and does not yield. Whose report was once found is not gone: so another job's word for its mark will do.
        """
        if is_there and self._other_runs.wrote(mark):
            self._shown_ms = None
        if self.is_superseded or (mark.incarnation, mark.run) <= (self._incarnation, self.run):
            return
        is_found = is_there or self._other_runs.have_written(mark)
        if is_found and (self.is_established or self._other_runs.has_passed(mark)):
            self.is_superseded, self._yields = True, self._other_runs.note_yielded(mark)
        # The floor is lost too; and an epoch that was pinned within this millisecond is paid for no more than that.
        self._falls_ms.append(now_ms + 1)
        self._other_runs.note_passed(mark)
        self._floor_micro_per_ms = np.zeros_like(self._floor_micro_per_ms)
        self._begin_anew(self._incarnation if self.is_superseded else (mark.incarnation | _FALLS) + 1)

    def go_on(self) -> None:
        """Begin anew though this run yielded, because it, and not the other run, owns the job's checkpoint.

        It goes beyond the other run at its next visit. That run then yields, though perhaps not at once: what either
        reads of the other may be out of date.
        """
        if self.is_superseded:
            self._other_runs.forget_passed()
            self.is_superseded = self.is_established = False
            self._begin_anew(self._incarnation + 1)

    def _note(self, news: News) -> None:
        """Take in news of another job."""
        self._is_asked |= news.is_asked
        for ids in news.changed:
            self._is_stale[np.searchsorted(self._own.ids, ids[found_in(ids, self._own.ids)])] = True

    def _first_to_go_by(self) -> int:
        """Return the number of this job's first report that a new peer can rely on; 0 if only the peer's answer tells.

        A peer that begins uses nothing before it has an answer, and this job's next report is the first that can be
        one. But if this job is beginning itself, the peer may be at work already without knowing of it.
        """
        return 0 if self._is_fallen else self._number + 1

    def _answered(self, peer: Peer) -> int:
        """Return the number of this job's last report that a peer is known to have seen, or cannot have missed."""
        mark = peer.report.seen.get(self.member, NO_MARK)
        is_ours = (mark.incarnation, mark.run) == (self._incarnation, self.run)
        return max(mark.number if is_ours else 0, peer.since)

    def _renew(self, shown_number: int, now_ms: int) -> None:
        """Extend the lease to `hold` after this job's last report that all peers heard within the margin have seen."""
        fresh_ms = now_ms - self.settings.margin_ms
        answers = [self._answered(peer) for peer in self._peers.everyone if peer.seen_at_ms >= fresh_ms]
        number = min([shown_number, *answers])
        oldest_ms = now_ms - self.settings.hold_ms
        self._published_ms = {each: at_ms for each, at_ms in self._published_ms.items() if at_ms > oldest_ms}
        times = [at_ms for each, at_ms in self._published_ms.items() if each <= number]
        if times:
            until_ms = max(times) + self.settings.hold_ms
            self._held_until_ms = until_ms if self._held_until_ms is None else max(self._held_until_ms, until_ms)

    def _fall_if_due(self, now_ms: int) -> None:
        """Fall to the floor, and begin again, if the lease has ended."""
        if self._held_until_ms is not None and now_ms >= self._held_until_ms:
            self._falls_ms.append(self._held_until_ms)
            self._floor_until_ms = self._held_until_ms - self.settings.hold_ms + self.settings.forget_ms
            self._begin_anew(self._incarnation + 1)

    def _begin_anew(self, incarnation: int) -> None:
        """Go on with the floor alone, as a newcomer, whose reports all must see again."""
        self._held_until_ms = self._born_ms = self._shown_ms = None
        self._incarnation = incarnation
        self._published_ms.clear()
        self._peers.begin_anew()
        self._right_micro_per_ms = self._floor_micro_per_ms
        self._window = [PublishedClaim(self._number, encode(self._floor_micro_per_ms), None)]

    def _grow(self, shown_number: int, others: OtherSeats, now_ms: int) -> None:
        """Raise what this job may use to what all have seen it claim and no other job claims."""
        if not self._peers.are_all_readable:
            return
        seen_by_all = min([shown_number, *(self._answered(p) for p in self._peers.everyone if not p.is_dead)])
        while len(self._window) > 1 and self._window[1].number <= seen_by_all:
            self._window.pop(0)
        self.is_established = True
        least = np.min([decode(each.claim) for each in self._window], axis=0)
        claimed = self._peers.claimed(others, self._own.ids, self._own.quota, now_ms)
        free = np.where(self._own.quota == UNLIMITED, 0, self._own.quota - claimed)
        self._right_micro_per_ms = np.maximum(self._right_micro_per_ms, np.minimum(least, free))
        self._keep_floor(np.min([each.floor_rate() for each in self._window], axis=0))

    def _keep_floor(self, floor: Int64s) -> None:
        """Set what this job may use after its lease has ended: a floor of its rates, and all that it has of budgets."""
        right = self._right_micro_per_ms
        self._floor_micro_per_ms = np.where(self._own.rows.is_budget[:, None], right, np.minimum(floor, right))

    def _divide(self, others: OtherSeats) -> None:
        """Set what this job should claim, in the scopes where its own report or another job's has changed."""
        stale = np.flatnonzero(self._is_stale)
        if not len(stale):
            return
        rows, quota, some = self._own.rows.take(stale), self._own.quota.take(stale, axis=0), others.at(self._is_stale)
        unknown = self._peers.unknown(rows.ids)
        part, self._members[stale], self._by_others_tokens[stale] = divide_all(
            self.settings, rows, quota, some, unknown
        )
        target = self._target_micro_per_ms
        target[stale] = np.where(self._is_leaving[stale, None], 0, part)
        self._target_micro_per_ms = target
        self._is_stale[:] = False

    # -------------------------------------------------------------------------------------- what the others are told

    def _kept(self) -> Int64s:
        """Return what the job goes on using while it is fallen; 0 while it is not."""
        return self._floor_micro_per_ms if self._is_fallen else np.zeros_like(self._floor_micro_per_ms)

    def _claimed(self) -> Codes:
        """Return what the next report claims: the target, or what is still used as long as that is more."""
        claim, kept = np.maximum(self._target_micro_per_ms, self._pinned_micro_per_ms), self._kept()
        # A floor is reported in 256ths of the claim: the claim is made large enough for them to express the floor.
        claim = np.maximum(claim, np.where(kept > 0, kept + kept // 128 + FLOOR_PARTS, 0))
        is_budget = self._own.rows.is_budget
        if is_budget.any():
            amounts = np.maximum(np.maximum(self._target_micro_per_ms, self._pinned_micro_per_ms), self._taken())[:, 0]
            amounts = np.stack([amounts, self._earlier_tokens], axis=1)
            claim = np.where(is_budget[:, None], amounts, claim)
        return encode(claim)

    def next_report(self, *, now_ms: int, wall_ms: int) -> Update:
        """Return the report to publish now. From here on others may rely on it, whether or not the write succeeds."""
        self._fall_if_due(now_ms)
        codes, kept = self._claimed(), self._kept()
        claim = np.maximum(decode(codes), 1)
        wanted = floors(self.settings, self._own.quota, self._members)
        parts = np.maximum(wanted * FLOOR_PARTS // claim, -(-kept * FLOOR_PARTS // claim))
        parts[self._own.rows.is_budget] = 0
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
        self._window.append(PublishedClaim(self._number, codes, rows.floor))
        self._right_micro_per_ms = np.minimum(self._right_micro_per_ms, decode(codes))
        self._keep_floor(np.minimum(self._floor_micro_per_ms, rows.floor_rate()))
        seen, replaced, terms = self._peers.seen, self._peers.replaced(), self.settings.terms
        report = ShareReport(self.member, self._name, self.mark, wall_ms, seen, rows, terms, replaced)
        return Update(report, changed, removed)

    # ------------------------------------------------------------------------------------------ what people are told

    def observed(self, now_ms: int) -> Observation:
        """Return what is known now of every scope and every other job."""
        share, own = self.share(now_ms), self._own
        used = decode(own.rows.usage)
        others = self._peers.seats(own.ids, self.member)
        seen = np.flatnonzero(others.peer < len(self._peers.everyone))
        live = ~others.is_dead
        theirs = decode(others.rows.usage)
        used = used + sums(others.scope[live], theirs[live], len(own.ids))
        left_ms = 0 if self._held_until_ms is None else max(0, self._held_until_ms - now_ms)
        age_ms = -1 if self._held_until_ms is None else now_ms - (self._held_until_ms - self.settings.hold_ms)
        return Observation(
            own.ids, own.quota, share.rate_micro_per_ms, used, self._peers.statuses(now_ms), others.scope[seen],
            others.peer[seen], decode(others.rows.claim.take(seen, axis=0)), theirs.take(seen, axis=0),
            share.is_leased, age_ms, left_ms,
        )  # fmt: skip
