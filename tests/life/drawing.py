"""What steps are made of and drawn from: plain data, so that a history can be stored, replayed and cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.life import policies
from tests.life.policies import Document, Tempers

Traffic: TypeAlias = list[tuple[str | None, int | None, int]]
"""Runs of rows: the namespace, the size, how many. A name that starts with `\\udc` is no UTF-8."""

JUMPS_MS: Final = (
    -31_536_000_000,
    -3_600_000,
    -20_000,
    -1_000,
    -3,
    3,
    1_000,
    20_000,
    20_000,
    3_600_000,
    31_536_000_000,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history: plain data."""

    rule: str
    args: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.rule}({', '.join(f'{key}={value!r}' for key, value in self.args.items())})"


@dataclass(slots=True)
class Drawing:
    """What steps are drawn from."""

    rng: random.Random
    tempers: Tempers
    names: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    """The sizes of the rows of each namespace."""

    document: Document
    past: list[Document]

    def rows(self, most: int) -> Traffic:
        """Draw rows of a few namespaces; the sizes of each come in runs, or by turns."""
        names = self.rng.sample(self.names, self.rng.randint(1, min(4, len(self.names))))
        if most > 2 and self.rng.random() < 0.2:
            of_each: Traffic = [(name, size, 1) for name in names for size in self.sizes[name]]
            return of_each * self.rng.randint(1, max(1, most // len(of_each)))
        return [(name, self.rng.choice(self.sizes[name]), self.rng.randint(1, most)) for name in names]

    def next_policy(self) -> Document:
        """Draw the policies that are in force from now on."""
        self.past.append(self.document)
        self.document = policies.changed(self.rng, self.tempers, self.document, self.past)
        return self.document


Draw: TypeAlias = Callable[[Drawing], dict[str, Any]]
Rule: TypeAlias = tuple[int, Draw, Callable[..., None]]
"""How often it is drawn, what draws it, what carries it out."""
