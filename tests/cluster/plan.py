"""Which kills a run of the cluster bench makes, in which weather: a function of a number and a seed.

Executors, workers, the driver and the master are killed by turns, half of them while the job stands at a named point.
A worker is killed with all that runs on its machine. Of ten kills one falls into an outage of the store of seconds, and
of fifty one into an outage of minutes: in half of them connections are reset, in half nobody answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tests.cluster.faults import WEATHERS, Faults

Victim = Literal["executor", "worker", "driver", "master"]
VICTIMS: Final[tuple[Victim, ...]] = ("executor", "worker", "driver", "master")

_MOST_BATCHES_BETWEEN: Final = 3
_LONGEST_DELAY_MS: Final = 1_500
_SECONDS: Final = (4, 20)
_MINUTES_SECONDS: Final = (90, 150)
_SILENT: Final = 0.5
"""Part of the outages in which requests get no answer."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill."""

    victim: Victim
    point: str | None
    """Where the job stands when it is made; `None` for a moment."""

    batches_on: int
    """How many batches are planned before, since the last kill."""

    delay_ms: int
    """Time from the planning of that batch to the kill, if no point is given."""

    weather: Faults
    """What requests meet on the way to the kill."""

    outage_seconds: int
    """For so long nobody reaches the store after it."""

    is_silent: bool
    """Whether requests then get no answer at all; else connections are reset."""


def draw_kills(kills: int, seed: int, points: Sequence[str]) -> list[Kill]:
    """Return so many kills.

    Examples
    --------
    >>> drawn = draw_kills(8, 1, ["epoch-written", "reported"])
    >>> sorted(kill.victim for kill in drawn) == sorted(2 * VICTIMS)
    True
    >>> sum(kill.point is not None for kill in drawn)
    4
    """
    dice = random.Random(seed)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    dice.shuffle(victims)
    at: list[str] = []
    while 2 * len(at) < kills:
        at += dice.sample(points, len(points))
    stands = [*at[: kills // 2], *([None] * (kills - kills // 2))]
    dice.shuffle(stands)
    seconds = set(dice.sample(range(kills), -(-kills // 10)))
    minutes = set(dice.sample(range(kills), kills // 50))
    return [
        Kill(
            victim,
            point,
            dice.randint(1, _MOST_BATCHES_BETWEEN),
            dice.randrange(_LONGEST_DELAY_MS),
            dice.choice(WEATHERS),
            dice.randint(*(_MINUTES_SECONDS if number in minutes else _SECONDS if number in seconds else (0, 0))),
            dice.random() < _SILENT,
        )
        for number, (victim, point) in enumerate(zip(victims, stands, strict=True))
    ]
