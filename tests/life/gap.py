"""How far two that compete come apart: the widest difference of their services over any window."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(slots=True)
class Gap:
    """How far one namespace is ahead of another, since both are backlogged under one policy."""

    ahead: Fraction = Fraction(0)
    most: Fraction = Fraction(0)
    least: Fraction = Fraction(0)

    batches: int = 0

    def add(self, difference: Fraction) -> Fraction:
        """Add a batch's difference, and return the widest over any window."""
        self.ahead += difference
        self.most, self.least = max(self.most, self.ahead), min(self.least, self.ahead)
        self.batches += 1
        return self.most - self.least
