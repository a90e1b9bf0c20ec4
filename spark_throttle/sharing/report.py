"""A job's report to those that share its quotas: the contents of its register, and their form in storage.

A job's *register* is written by one run of that job alone, and replaced whole, so a reader sees one of its reports or
another. A report holds, for each scope that the job uses, the demand of its namespaces (a histogram), their usage, the
job's claim on the quota, and the part of the claim that stays its own while it is silent; and, for every other job, the
last report seen. A scope is a 63-bit hash of its name, and a rate is a 32-bit code: about 40 bytes per scope.

A budget of a scope, in one of its windows, is a row of its own. In place of rates it has amounts: what the job may use
in all of the window, and beside it the part that its runs before this one may have used (`budget_claims`).

In storage a register is two objects: a *base*, with all scopes, written seldom and never changed, and a *head*, which
names its base and holds the scopes that have changed since. So a cycle in which one scope in a hundred changed writes
about a hundredth. While the base stays the same, the scopes of a head only grow in number: a reader can apply any head
to any earlier state.

A measurement is what it is made of: what the job's namespaces want and use of each shared scope, as rates
(`control.demand`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_throttle.core.arithmetic.rate_codes import Codes, decode
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.record import pack, unpack
from spark_throttle.sharing.settings import ShareTerms

Bytes: TypeAlias = npt.NDArray[np.uint8]
Weights: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
"""Weights in the narrowest of these types that holds them."""

FLOOR_PARTS = 256
"""The number of parts of a claim, in which a floor is reported."""


@dataclass(frozen=True, slots=True, eq=False)
class ScopeRows:
    """The scopes of a report as columns, one position per scope, in the order of `ids`."""

    ids: Int64s
    """Hashes of the scopes' names, ascending."""

    claim: Codes
    """Shape (n, 2): the rate that the job may come to use, and that others must leave alone."""

    floor: Bytes
    """Shape (n, 2): the part of the claim, in 256ths, that stays with the job when it falls silent."""

    usage: Codes
    """Shape (n, 2): the rate at which its namespaces were admitted."""

    bins: Bytes
    """Shape (n,): the number of bins in the scope's histogram."""

    bin_demand: Codes
    """Shape (m, 2): the demand in each bin, scope after scope."""

    bin_weight: Weights
    period: Bytes
    """Shape (n,): 0 for rates; for a budget, 1 and its `Period`."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def empty(cls) -> ScopeRows:
        """Return rows without any scope."""
        pairs = np.zeros((0, 2), dtype=np.uint32)
        return cls(
            np.zeros(0, dtype=np.int64), pairs, np.zeros((0, 2), dtype=np.uint8), pairs, np.zeros(0, dtype=np.uint8),
            pairs, np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint8),
        )  # fmt: skip

    @property
    def is_budget(self) -> Bools:
        """Which rows are of budgets."""
        return self.period > 0

    @property
    def amount(self) -> Int64s:
        """What may be used of each budget in its window."""
        return decode(self.claim[:, 0])

    @property
    def earlier(self) -> Int64s:
        """The part of that which the job's earlier runs may have used."""
        return decode(self.claim[:, 1])

    @property
    def nbytes(self) -> int:
        """The size of all columns in bytes."""
        return sum(getattr(self, name).nbytes for name in self.__slots__)

    @property
    def bin_row(self) -> Int64s:
        """The row that each bin belongs to."""
        return np.repeat(np.arange(len(self.ids)), self.bins)

    def floor_rate(self) -> Int64s:
        """Return the floors as rates, shape (n, 2)."""
        return floor_rate(self.claim, self.floor)

    def take(self, rows: Int64s) -> ScopeRows:
        """Return the given rows, in the given order."""
        counts = self.bins[rows].astype(np.int64)
        starts = (np.cumsum(self.bins, dtype=np.int64) - self.bins)[rows]
        ends = np.cumsum(counts)
        bins = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        return ScopeRows(
            self.ids[rows], self.claim.take(rows, axis=0), self.floor.take(rows, axis=0),
            self.usage.take(rows, axis=0), self.bins[rows], self.bin_demand.take(bins, axis=0), self.bin_weight[bins],
            self.period[rows],
        )  # fmt: skip

    def only(self, ids: Int64s) -> ScopeRows:
        """Return the rows of the scopes that are among `ids`, which ascend."""
        rows = np.flatnonzero(found_in(self.ids, ids))
        if not len(rows):
            return EMPTY_ROWS
        return self.take(rows).narrowed()

    def narrowed(self) -> ScopeRows:
        """Return these rows with their weights in the narrowest type that holds them."""
        return replace(self, bin_weight=narrowed(self.bin_weight))

    def split(self, counts: Int64s) -> list[ScopeRows]:
        """Return the rows in successive parts of `counts` rows, as views."""
        ends = np.cumsum(counts)
        bins = np.concatenate([[0], np.cumsum(self.bins, dtype=np.int64)])
        parts = []
        for begin, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
            row, one = slice(begin, end), slice(bins[begin], bins[end])
            parts.append(ScopeRows(
                self.ids[row], self.claim[row], self.floor[row], self.usage[row], self.bins[row],
                self.bin_demand[one], self.bin_weight[one], self.period[row],
            ))  # fmt: skip
        return parts

    def updated(self, changed: ScopeRows, removed: Int64s) -> ScopeRows:
        """Return these rows with those of `changed` replaced or added, and the scopes `removed` left out."""
        if not len(changed) and not len(removed):
            return self
        if not len(removed) and found_in(changed.ids, self.ids).all():
            at = np.searchsorted(self.ids, changed.ids)
            if (self.bins[at] == changed.bins).all():
                return self._overwritten(at, changed)
        gone = found_in(self.ids, changed.ids) | found_in(self.ids, removed)
        kept = self.take(np.flatnonzero(~gone)) if gone.any() else self
        if not len(changed):
            return kept
        both = joined([kept, changed])
        return both.take(np.argsort(both.ids, kind="stable"))

    def _overwritten(self, at: Int64s, changed: ScopeRows) -> ScopeRows:
        """Return these rows with those `at` replaced by `changed`, whose rows have the same numbers of bins."""
        counts = changed.bins.astype(np.int64)
        ends = np.cumsum(counts)
        starts = (np.cumsum(self.bins, dtype=np.int64) - self.bins)[at]
        bins = np.arange(len(changed.bin_weight)) + np.repeat(starts - (ends - counts), counts)
        claim, floor, usage = self.claim.copy(), self.floor.copy(), self.usage.copy()
        claim[at], floor[at], usage[at] = changed.claim, changed.floor, changed.usage
        demand = self.bin_demand.copy()
        weight = self.bin_weight.astype(np.promote_types(self.bin_weight.dtype, changed.bin_weight.dtype))
        demand[bins], weight[bins] = changed.bin_demand, changed.bin_weight
        return ScopeRows(self.ids, claim, floor, usage, self.bins, demand, weight, self.period)

    def differ(self, other: ScopeRows) -> Bools:
        """Return which rows `other` lacks, or holds differently."""
        out = ~found_in(self.ids, other.ids)
        rows = np.flatnonzero(~out)
        mine, theirs = self.take(rows), other.take(np.searchsorted(other.ids, self.ids[rows]))
        fields = ("claim", "floor", "usage")
        differs = np.any([(getattr(mine, name) != getattr(theirs, name)).any(axis=1) for name in fields], axis=0)
        differs |= mine.bins != theirs.bins
        alike = np.flatnonzero(~differs)
        mine, theirs, row = mine.take(alike), theirs.take(alike), alike
        bin_differs = (mine.bin_demand != theirs.bin_demand).any(axis=1) | (mine.bin_weight != theirs.bin_weight)
        differs[row[mine.bin_row[bin_differs]]] = True
        out[rows] = differs
        return out


EMPTY_ROWS = ScopeRows.empty()


def joined(parts: Sequence[ScopeRows]) -> ScopeRows:
    """Return the rows of all parts, one part after another."""
    if not parts:
        return EMPTY_ROWS
    return ScopeRows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ScopeRows.__slots__))


def found_in(values: Int64s, ascending: Int64s) -> Bools:
    """Return which values are among `ascending`."""
    if not len(ascending):
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[at] == values


def narrowed(weights: Weights) -> Weights:
    """Return weights in the narrowest type that holds them."""
    kinds: tuple[type[np.unsignedinteger], ...] = (np.uint8, np.uint16)
    most = int(weights.max(initial=0))
    return weights.astype(next((kind for kind in kinds if most <= np.iinfo(kind).max), np.uint32), copy=False)


def floor_rate(claim: Codes, floor: Bytes) -> Int64s:
    """Return `floor` 256ths of a claim, as rates."""
    rate = decode(claim)
    part = floor.astype(np.int64)
    return rate // FLOOR_PARTS * part + (rate % FLOOR_PARTS * part) // FLOOR_PARTS


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The name of a job's report, ordered by incarnation, then run, then number: later reports of a run are greater."""

    incarnation: int
    """A number that grows with every start of the job, and whenever the job falls to its floor."""

    run: int
    """Random bits drawn when the process started: they distinguish processes that took the same incarnation."""

    number: int
    """A count of the reports of a run, over all its incarnations."""


NO_MARK = Mark(-1, 0, -1)


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRuns:
    """What runs of a job may have used of budgets, as far as the run that replaced them does not know of it."""

    by: int
    """The run that replaced them."""

    ids: Int64s
    """The windows of budgets, ascending."""

    amount: Int64s
    """All that these runs may have used of each."""


@dataclass(frozen=True, slots=True, eq=False)
class ShareReport:
    """One report of one job."""

    member: str
    """Identifies the job: it lives and dies with the query's checkpoint."""

    name: str
    """What people call the job."""

    mark: Mark
    published_ms: int
    """Wall clock of the job's machine; shown to people, and compared with nothing."""

    seen: Mapping[str, Mark]
    """By member: the last report that the job had seen from it; in a report that was read, only that of the reader."""

    rows: ScopeRows
    terms: ShareTerms
    """What the job shares by."""

    replaced: Mapping[str, ReplacedRuns] = field(default_factory=dict)
    """By member, what the job remembers of runs whose registers others may not find."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A report as the head of its register holds it: the rows that differ from the base."""

    report: ShareReport
    base: int
    """Number of the base, which holds a report whole; 0 if this head itself does."""

    removed: Int64s
    """Scopes that the base has and the report lacks."""

    budgets: int
    """How many budgets the report claims anything of."""

    longest: int
    """The longest of their periods, as in `ScopeRows`."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Scopes as they are stored: `ScopeRows`, with weights of one type."""

    ids: Int64s
    claim: Codes
    floor: Bytes
    usage: Codes
    bins: Bytes
    bin_demand: Codes
    bin_weight: npt.NDArray[np.uint32]
    period: Bytes = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))

    @classmethod
    def of(cls, rows: ScopeRows) -> StoredRows:
        """Return rows as they are stored."""
        weight = rows.bin_weight.astype(np.uint32, copy=False)
        return cls(rows.ids, rows.claim, rows.floor, rows.usage, rows.bins, rows.bin_demand, weight, rows.period)

    def rows(self) -> ScopeRows:
        """Return the rows."""
        period = self.period if len(self.period) else np.zeros(len(self.ids), dtype=np.uint8)
        return ScopeRows(
            self.ids, self.claim, self.floor, self.usage, self.bins, self.bin_demand, self.bin_weight, period
        )


@dataclass(frozen=True, slots=True, eq=False)
class StoredHead:
    """A head as it is stored."""

    member: str
    name: str
    published_ms: int
    base: int
    seen: pa.StringArray
    """The members of which the job has seen a report."""

    marks: Int64s
    """Shape (1 + seen, 3): the mark of the report itself, then of those seen, each by the fields of `Mark`."""

    removed: Int64s
    rows: StoredRows
    terms: ShareTerms
    budgets: int = 0
    longest: int = 0
    replaced: Mapping[str, ReplacedRuns] = field(default_factory=dict)


def pack_head(head: Head) -> bytes:
    """Return a head as a block."""
    report = head.report
    marks = np.array([astuple(mark) for mark in (report.mark, *report.seen.values())], dtype=np.int64)
    return pack(StoredHead(
        report.member, report.name, report.published_ms, head.base, pa.array(report.seen, pa.string()), marks,
        head.removed, StoredRows.of(report.rows), report.terms, head.budgets, head.longest, report.replaced,
    ))  # fmt: skip


def unpack_head(block: bytes, what: str, reader: str) -> Head:
    """Return what `pack_head` stored; of the marks that the job had seen, only that of the reader."""
    f = unpack(StoredHead, block, what)
    at = f.seen.index(reader).as_py()
    seen = {} if at < 0 else {reader: Mark(*f.marks[1 + at].tolist())}
    mark, rows = Mark(*f.marks[0].tolist()), f.rows.rows()
    report = ShareReport(f.member, f.name, mark, f.published_ms, seen, rows, f.terms, f.replaced)
    return Head(report, f.base, f.removed, f.budgets, f.longest)


def pack_base(rows: ScopeRows) -> bytes:
    """Return all rows of a report as a block."""
    return pack(StoredRows.of(rows))


def unpack_base(block: bytes, what: str) -> ScopeRows:
    """Return what `pack_base` stored."""
    return unpack(StoredRows, block, what).rows()


_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What a job's namespaces want and use of each shared scope, as rates; of a budget, as amounts of its window."""

    ids: Int64s
    """Hashes of the scopes' names, ascending."""

    quota: Int64s
    """Shape (n, 2): micro-tokens per millisecond, `UNLIMITED` where there is no limit."""

    usage: Int64s
    """Shape (n, 2): micro-tokens per millisecond; of a budget, what this run used, and what earlier runs did, as far as
    the job knows."""

    bin_row: Int64s
    """Position in `ids` of each bin of the histograms, ascending."""

    bin_demand: Int64s
    bin_weight: Int64s
    period: Bytes | None = None
    """As in `ScopeRows`; `None` if no scope is a budget."""

    @property
    def periods(self) -> Bytes:
        """Shape (n,): as in `ScopeRows`."""
        return np.zeros(len(self.ids), dtype=np.uint8) if self.period is None else self.period

    def with_scopes(self, ids: Int64s, quota: Int64s, period: Bytes) -> Measurement:
        """Return this measurement with more scopes, in which nothing is wanted or used."""
        if not len(ids):
            return self
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros((len(ids), 2), dtype=np.int64)
        return self.joined(Measurement(ids, quota, nothing, none, nothing[:0], none, period))

    def joined(self, other: Measurement) -> Measurement:
        """Return this measurement and that of other scopes."""
        ids = np.concatenate([self.ids, other.ids])
        order = np.argsort(ids, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        row = position[np.concatenate([self.bin_row, other.bin_row + len(self.ids)])]
        bins = np.argsort(row, kind="stable")
        quota, usage = (np.concatenate(each)[order] for each in ((self.quota, other.quota), (self.usage, other.usage)))
        return Measurement(
            ids[order], quota, usage, row[bins], np.concatenate([self.bin_demand, other.bin_demand])[bins],
            np.concatenate([self.bin_weight, other.bin_weight])[bins],
            np.concatenate([self.periods, other.periods])[order],
        )  # fmt: skip


def moved(values: npt.NDArray[_Number], old: Int64s, new: Int64s) -> npt.NDArray[_Number]:
    """Return the rows of `values`, which are of the scopes `old`, for the scopes `new`; 0 where `old` lacks a scope."""
    out = np.zeros((len(new), *values.shape[1:]), dtype=values.dtype)
    rows = np.flatnonzero(found_in(new, old))
    out[rows] = values.take(np.searchsorted(old, new[rows]), axis=0)
    return out
