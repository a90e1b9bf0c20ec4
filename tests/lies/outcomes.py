"""What became of a fault, and the counts of all: by the kind of the file, the kind of the fault and the outcome."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_throttle.errors import ThrottleError

Outcome = Literal["refused", "right", "unread", "told", "silent", "crashed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("refused", "right", "unread", "told", "silent", "crashed")
"""What became of a fault:

- `refused`: by an error of ours that names the file and a remedy; and with the file mended, nothing is lost.
- `right`: the laws hold.
- `unread`: nobody asks for the file any more, so what follows is what would have followed.
- `told`: the documentation says of this case what is not noticed.
- `silent`: a law is broken, and nothing says so.
- `crashed`: by an error that is not ours, or that names no file.
"""

FAULTS: Final[frozenset[Outcome]] = frozenset({"silent", "crashed"})

_REMEDY: Final = re.compile(
    r"restore|write the entry anew|delete it|remove|stop it|let o|correct it|make |mend|put |start "
)


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one fault."""

    file: str
    """The kind of the file."""

    fault: str
    outcome: Outcome
    detail: str = ""


@dataclass(slots=True)
class Tally:
    """The counts of a run, and one example of each kind of bad outcome."""

    counts: Counter[tuple[str, str, Outcome]] = field(default_factory=Counter)
    examples: dict[tuple[str, str, Outcome], str] = field(default_factory=dict)

    def add(self, found: Found) -> None:
        """Count what became of a fault."""
        key = (found.file, found.fault, found.outcome)
        self.counts[key] += 1
        if found.outcome in FAULTS:
            self.examples.setdefault(key, found.detail)

    @property
    def faults(self) -> int:
        """How many faults were injected."""
        return sum(self.counts.values())

    def by_outcome(self) -> dict[str, int]:
        """Return how often each outcome came."""
        found = Counter[str]()
        for (_, _, outcome), count in self.counts.items():
            found[outcome] += count
        return {outcome: found[outcome] for outcome in OUTCOMES}

    def table(self) -> list[str]:
        """Return a line for every kind of file and of fault, with the outcomes."""
        rows = sorted({key[:2] for key in self.counts})
        width = max((len(f"{file}: {fault}") for file, fault in rows), default=0)
        lines = [f"{'':{width}}  " + "  ".join(f"{outcome:>8}" for outcome in OUTCOMES)]
        for file, fault in rows:
            counts = (self.counts[file, fault, outcome] for outcome in OUTCOMES)
            lines.append(f"{f'{file}: {fault}':{width}}  " + "  ".join(f"{count or '':>8}" for count in counts))
        return lines


def is_refusal(error: BaseException, names: tuple[str, ...]) -> bool:
    """Return whether an error is ours, names what is wrong by one of some names, and says what to do."""
    said = str(error)
    return isinstance(error, ThrottleError) and any(name in said for name in names) and bool(_REMEDY.search(said))


def said(error: BaseException) -> str:
    """Return an error as an example shows it."""
    return f"{type(error).__name__}: {error}"[:400]
