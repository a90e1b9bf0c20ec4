"""What one job knows of another, of what it told the others itself, and of other runs of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from spark_throttle.core.arithmetic.rate_codes import Codes, decode
from spark_throttle.core.quota import Int64s
from spark_throttle.sharing.measured import moved
from spark_throttle.sharing.report import Bytes, Mark, ScopeRows, ShareReport, floor_rate


@dataclass(slots=True, eq=False)
class Peer:
    """What is known of another job."""

    report: ShareReport
    seen_at_ms: int
    """When its last report was first seen, by this job's steady clock."""

    since: int
    """Number of this job's first report that the peer, as this incarnation, can go by."""

    is_dead: bool = False
    before: list[Before] = field(default_factory=list)
    """Of runs whose place the last report's run took: they may not know it yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """What a run claimed that another run of its job replaced."""

    ids: Int64s
    rate: Int64s
    until_ms: int
    """By this job's steady clock: then it has stopped."""


@dataclass(frozen=True, slots=True, eq=False)
class Claimed:
    """What one published report claimed."""

    number: int
    claim: Codes
    floor: Bytes | None
    """In 256ths of the claim; `None` is the whole."""

    def floor_rate(self) -> Int64s:
        """Return the floors as rates."""
        return decode(self.claim) if self.floor is None else floor_rate(self.claim, self.floor)

    def moved(self, old: Int64s, new: Int64s) -> Claimed:
        """Return the claims in the scopes `new`."""
        floor = None if self.floor is None else moved(self.floor, old, new)
        return Claimed(self.number, moved(self.claim, old, new), floor)


@dataclass(slots=True)
class OtherRuns:
    """The registers that other runs of this job left or write; true if there are any."""

    _last: dict[int, Mark] = field(default_factory=dict)
    _passed: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self._last)

    def wrote(self, mark: Mark) -> bool:
        """Take in a report, and return whether its run has written it since it was first seen: so it lives."""
        first = self._last.setdefault(mark.run, mark)
        self._last[mark.run] = max(first, mark)
        return mark > first

    def note_passed(self, mark: Mark) -> None:
        """Remember that this run goes beyond a mark of another."""
        self._passed.add(mark.run)

    def has_passed(self, mark: Mark) -> bool:
        """Return whether this run once went beyond the other."""
        return mark.run in self._passed


def left_by(peer: Peer, until_ms: int) -> Before:
    """Return what the run that wrote a job's last report may use."""
    rows = peer.report.rows
    return Before(rows.ids, rows.floor_rate() if peer.is_dead else decode(rows.claim), until_ms)


def left_over(peers: Iterable[Peer], ids: Int64s, now_ms: int) -> Int64s:
    """Return what runs that were replaced may still use of the scopes `ids`, beyond what those in their place claim."""
    over = np.zeros((len(ids), 2), dtype=np.int64)
    for peer in peers:
        peer.before = [each for each in peer.before if now_ms < each.until_ms]
        if peer.before:
            now, was = left_by(peer, now_ms), [moved(each.rate, each.ids, ids) for each in peer.before]
            over += np.maximum(np.max(was, axis=0) - moved(now.rate, now.ids, ids), 0)
    return over


def claims_more(new: ScopeRows, old: ScopeRows) -> bool:
    """Return whether a job may wait for answers to its new report: it claims more of something than in the old."""
    if new is old:
        return False
    is_same = new.ids is old.ids or np.array_equal(new.ids, old.ids)
    return not is_same or bool((new.claim > old.claim).any())


def changed_scopes(new: ScopeRows, old: ScopeRows | None, *, has_died: bool, has_usage: bool) -> list[Int64s]:
    """Return the scopes of which a job says other things than before, as far as a division goes by them."""
    if old is new and not has_died:
        return []
    if old is None:
        return [new.ids]
    if has_died or old.ids is not new.ids or old.bins is not new.bins:
        return [old.ids, new.ids]
    # Only some were overwritten.
    changed = (new.bin_demand != old.bin_demand).any(axis=1) | (new.bin_weight != old.bin_weight)
    if has_usage:
        changed |= (new.usage != old.usage).any(axis=1)[new.bin_row]
    return [new.ids[new.bin_row[changed]]]
