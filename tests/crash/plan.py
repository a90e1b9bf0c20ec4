"""Which kills a run of the crash program makes, and between which restarts: a function of a number and a seed.

The job lives several times. In a life it may lose Python workers or executors, which Spark replaces, and it ends by
SIGKILL to all of its processes at once: at a named point, or at a drawn moment of a drawn batch. Half of all kills
stand at named points.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Victim = Literal["job", "worker", "executor"]
Writer = Literal["native", "spark"]

LOCAL = "local[2,4]"
"""Spark tries a failed task four times here; under plain local[2] a lost worker would be a lost query."""

CLUSTER = "local-cluster[2,1,1024]"
"""Executors are processes of their own here."""

_BATCHES_BETWEEN = 2
_LONGEST_DELAY_MS = 1_500
_PEER_PERCENTS = (0, 20, 60, 200)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill."""

    victim: Victim
    point: str | None
    """Where the job stands when it is killed; `None` for a moment."""

    batches_on: int
    """How many batches are planned in this life before."""

    delay_ms: int
    """From the planning of that batch to the kill, where there is no point."""


@dataclass(frozen=True, slots=True)
class Life:
    """One run of the job, from its start to its end by SIGKILL."""

    master: str
    losses: tuple[Kill, ...]
    """Of workers or executors, which it survives, or which end it early."""

    end: Kill
    revision: int
    """Which of the policies are put in force before it starts."""

    writer: Writer
    """By which Delta is written in this life."""

    peer_percent: int
    """The part of every quota that the job which shares them wants meanwhile, if the run has one."""


def draw_lives(
    kills: int, seed: int, points: Sequence[str], revisions: int, native_points: Sequence[str] = ()
) -> list[Life]:
    """Return lives with `kills` kills together; at `native_points` only the native writer comes by.

    Examples
    --------
    >>> lives = draw_lives(10, 7, ["epoch-written", "reported"], revisions=3)
    >>> sum(1 + len(life.losses) for life in lives)
    10
    >>> [life.end.point for life in lives if life.end.point]
    ['epoch-written', 'reported', 'reported', 'epoch-written', 'epoch-written']
    >>> lives == draw_lives(10, 7, ["epoch-written", "reported"], revisions=3)
    True
    """
    dice = random.Random(seed)
    ends: list[Kill] = []
    while 2 * len(ends) < kills:
        # Every point once, in a drawn order, before any comes again.
        ends += [_kill(dice, "job", point) for point in dice.sample(points, len(points))]
    ends = ends[: -(-kills // 2)]
    losses: list[Kill] = []
    for number in range(kills - len(ends)):
        if number % 2:
            ends.append(_kill(dice, "job", None))
        else:
            losses.append(_kill(dice, dice.choice(("worker", "worker", "executor")), None))
    dice.shuffle(ends)
    return _lives(dice, ends, losses, revisions, native_points)


def _kill(dice: random.Random, victim: Victim, point: str | None) -> Kill:
    return Kill(victim, point, dice.randint(1, _BATCHES_BETWEEN), dice.randrange(_LONGEST_DELAY_MS))


def _lives(
    dice: random.Random, ends: list[Kill], losses: list[Kill], revisions: int, native_points: Sequence[str]
) -> list[Life]:
    lost: list[list[Kill]] = [[] for _ in ends]
    for kill in losses:
        lost[dice.randrange(len(ends))].append(kill)
    return [
        Life(
            CLUSTER if any(kill.victim == "executor" for kill in kills) else LOCAL,
            tuple(kills),
            end,
            dice.randrange(revisions),
            "native" if end.point in native_points else dice.choice(("native", "spark")),
            dice.choice(_PEER_PERCENTS),
        )
        for kills, end in zip(lost, ends, strict=True)
    ]
