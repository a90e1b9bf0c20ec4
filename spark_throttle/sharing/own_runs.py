"""The claims that a job has published itself, and what it knows of its other runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spark_throttle.core.arithmetic.rate_codes import Codes, decode
from spark_throttle.core.quota import Int64s
from spark_throttle.sharing.measurement import moved
from spark_throttle.sharing.report import Bytes, Mark, floor_rate


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
