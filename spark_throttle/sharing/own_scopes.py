"""A job's next report of its own scopes, held in as few bytes as the report itself.

A measurement is put at once into the form of the report, and is not kept: rates become codes, and a row that changed
too little stays as it was last reported. After a report, its arrays are the only ones that the job holds.

Beside it stand the claims that the job has published itself, and what it knows of its other runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_throttle.core.arithmetic.rate_codes import Codes, decode, encode
from spark_throttle.core.quota import UNLIMITED, Int64s
from spark_throttle.sharing.division import is_news
from spark_throttle.sharing.report import Bytes, Mark, Measurement, ScopeRows, floor_rate, found_in, moved, narrowed
from spark_throttle.sharing.settings import ShareSettings

Numbers: TypeAlias = npt.NDArray[np.int32]

_UNLIMITED = np.uint32(0xFFFF_FFFF)
"""The code for no limit; no rate has it."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnScopes:
    """The scopes that a job uses."""

    ids: Int64s
    """Hashes of the scopes' names, ascending."""

    quota_codes: Codes
    rows: ScopeRows
    """The rows of the next report, except for the claims and floors."""

    reported_at: Numbers
    """For each row, the number of the report that last renewed it."""

    @classmethod
    def nothing(cls) -> OwnScopes:
        """Return no scopes."""
        rows = ScopeRows.empty()
        return cls(rows.ids, rows.claim, rows, np.zeros(0, dtype=np.int32))

    @classmethod
    def drafted(
        cls,
        settings: ShareSettings,
        measured: Measurement,
        old: ScopeRows,
        reported_at: Numbers,
        number: int,
        ids: Int64s,
    ) -> OwnScopes:
        """Return the scopes of a measurement as the report `number` will hold them.

        Parameters
        ----------
        old, reported_at
            The rows of the last report, and for each the number of the report that last renewed it.
        ids
            An array to keep in place of the measurement's, if it holds the same scopes.
        """
        ids = ids if np.array_equal(ids, measured.ids) else measured.ids
        n = len(ids)
        pairs = np.zeros((n, 2), dtype=np.uint32)
        bins = np.bincount(measured.bin_row, minlength=n).astype(np.uint8)
        weight = np.minimum(measured.bin_weight, np.iinfo(np.uint32).max).astype(np.uint32)
        new = ScopeRows(
            ids, pairs, pairs.astype(np.uint8), encode(measured.usage), bins, encode(measured.bin_demand),
            narrowed(weight), measured.periods,
        )  # fmt: skip
        numbers = np.full(n, number, dtype=np.int32)
        mine = np.flatnonzero(found_in(old.ids, ids))
        at = np.searchsorted(ids, old.ids[mine])
        known = old.take(mine)
        stands = np.flatnonzero(~is_news(settings, new.take(at), known, number - reported_at[mine].astype(np.int64)))
        numbers[at[stands]] = reported_at[mine[stands]]
        rows = new.updated(known.take(stands), np.zeros(0, dtype=np.int64))
        quota = np.where(measured.quota == UNLIMITED, _UNLIMITED, encode(np.maximum(measured.quota, 0)))
        return cls(ids, quota.astype(np.uint32), replace(rows, ids=ids), numbers)

    @property
    def quota(self) -> Int64s:
        """Shape (n, 2): rounded down to a rate that has a code, as every job does; `UNLIMITED` where there is none."""
        return np.where(self.quota_codes == _UNLIMITED, UNLIMITED, decode(self.quota_codes))


@dataclass(frozen=True, slots=True, eq=False)
class PublishedClaim:
    """The claims of one published report."""

    number: int
    claim: Codes
    floor: Bytes | None
    """The floors in 256ths of the claim; `None` stands for the whole claim."""

    def floor_rate(self) -> Int64s:
        """Return the floors as rates."""
        return decode(self.claim) if self.floor is None else floor_rate(self.claim, self.floor)

    def moved(self, old: Int64s, new: Int64s) -> PublishedClaim:
        """Return these claims, which are in the scopes `old`, for the scopes `new`."""
        floor = None if self.floor is None else moved(self.floor, old, new)
        return PublishedClaim(self.number, moved(self.claim, old, new), floor)


@dataclass(slots=True)
class OtherRuns:
    """The registers that other runs of this job have left or still write; true if there are any."""

    _last: dict[int, Mark] = field(default_factory=dict)
    _passed: set[int] = field(default_factory=set)
    _yields: Counter[int] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self._last)

    def wrote(self, mark: Mark) -> bool:
        """Take in a report, and return whether its run has written since it was first seen, and so is alive."""
        first = self._last.setdefault(mark.run, mark)
        self._last[mark.run] = max(first, mark)
        return mark > first

    def have_written(self, mark: Mark) -> bool:
        """Return whether a report of the run of `mark`, perhaps an earlier one, was found."""
        return mark.run in self._last

    def note_passed(self, mark: Mark) -> None:
        """Remember that this run goes beyond a mark of another run."""
        self._passed.add(mark.run)

    def has_passed(self, mark: Mark) -> bool:
        """Return whether this run once went beyond the run of `mark`."""
        return mark.run in self._passed

    def forget_passed(self) -> None:
        """Forget which runs this run went beyond, so that it may do so again."""
        self._passed.clear()

    def note_yielded(self, mark: Mark) -> int:
        """Remember that this run yields to the run of `mark`, and return how often it did by now."""
        self._yields[mark.run] += 1
        return self._yields[mark.run]
