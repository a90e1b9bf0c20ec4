"""Which kills a run of the crash program makes, and between which restarts: a function of a number and a seed.

The job lives several times. In a life it may lose Python workers or executors, which Spark replaces, and it ends by
SIGKILL to all of its processes at once, or to the driver's Python alone, or is frozen: at a named point, or at a drawn
moment of a drawn batch. Half of all kills stand at named points. Policies change before lives and within them. Before
some lives what the job has is copied, and before a later one it is put back.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from typing import Literal

from tests.crash.points import OF_AN_EPOCH
from tests.crash.policies import draw_policies

Victim = Literal["job", "frozen", "kernel", "worker", "executor"]
"""A *job* is all of its processes; a *kernel* is the driver's Python, and Spark's JVM lives on, as in notebooks.

A *frozen* job is stopped, all of it, and goes on while the next run does: a machine that was given up and comes back.
"""

PutBack = Literal["copied", "restored", "refused", "control-ahead"]
"""How a checkpoint is put back (docs/changing-a-job.md):

- *copied*: with all sinks, from a copy of all;
- *restored*: with Delta tables, which are restored to the versions of then;
- *refused*: without its sinks; the start is refused, and they are put back as the error says;
- *control-ahead*: Spark's part alone, the control directory stays ahead; with sinks that are put back.
"""

LOCAL = "local[2,8]"
"""Spark tries a failed task eight times here; under plain local[2] a lost worker would be a lost query."""

CLUSTER = "local-cluster[2,1,1024]"
"""Executors are processes of their own here."""

_BATCHES_BETWEEN = 3
_LONGEST_DELAY_MS = 1_500
_PEER_PERCENTS = (0, 20, 60, 200)
_CHANGED_BEFORE = 0.6
"""Part of the lives that begin with other policies than the one before ended with."""

_CHANGED_WITHIN = 0.4
"""Part of the kills on the way to which policies change."""

_KEPT = 0.15
"""Part of the lives before which a copy is made, where none waits to be put back."""

_LIVES_UNDONE = 2
"""So many at most."""

_FROZEN = 0.5
"""Part of the jobs that are frozen instead, where they may be."""

_KERNELS = 0.8
"""Part of the ends in which Spark's JVM lives on: a life after it costs a fifth of one that begins with a new JVM."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill."""

    victim: Victim
    point: str | None
    """Where the job stands when it is killed; `None` for a moment."""

    batches_on: int
    """How many batches are planned in this life before."""

    delay_ms: int
    """Time from the planning of that batch to the kill, if no point is given."""


@dataclass(frozen=True, slots=True)
class Life:
    """One run of the job's Python, from its start to its end."""

    master: str
    losses: tuple[Kill, ...]
    """Workers or executors that are killed; the job survives it, or ends early."""

    end: Kill
    policies: tuple[str, ...]
    """Which are put in force: one before it starts, and one on the way to each of its first kills."""

    peer_percent: int
    """The part of every quota that the job which shares them wants meanwhile, if the run has one."""

    is_kept: bool
    """Whether what the job has is copied before it."""

    put_back: PutBack | None
    """How the latest copy is put back before it."""

    @property
    def batches(self) -> int:
        """How many batches are planned in it at least."""
        return sum(kill.batches_on for kill in (*self.losses, self.end))


def draw_lives(
    kills: int, seed: int, points: Sequence[str], put_backs: Sequence[PutBack] = (), *, may_freeze: bool = False
) -> list[Life]:
    """Return lives with `kills` kills together.

    Parameters
    ----------
    may_freeze
        Whether a job may be frozen: its sink is exact though two runs write to it.

    Examples
    --------
    >>> lives = draw_lives(10, 7, ["epoch-written", "reported"], put_backs=["copied"])
    >>> sum(1 + len(life.losses) for life in lives)
    10
    >>> [life.end.point for life in lives if life.end.point]
    ['reported', 'reported', 'epoch-written', 'reported', 'epoch-written']
    >>> lives == draw_lives(10, 7, ["epoch-written", "reported"], put_backs=["copied"])
    True
    """
    dice = random.Random(seed)
    ends: list[Kill] = []
    while 2 * len(ends) < kills:
        # Every point once, in a drawn order, before any comes again.
        ends += [_end(dice, point) for point in dice.sample(points, len(points))]
    ends = ends[: -(-kills // 2)]
    losses: list[Kill] = []
    for number in range(kills - len(ends)):
        if number % 2:
            ends.append(_end(dice, None))
        else:
            losses.append(_kill(dice, dice.choice(("worker", "worker", "executor")), None))
    dice.shuffle(ends)
    lost: list[list[Kill]] = [[] for _ in ends]
    for kill in losses:
        lost[dice.randrange(len(ends))].append(kill)
    copies = _copies(dice, len(ends), put_backs)
    policies = draw_policies(dice)
    lives: list[Life] = []
    for before, end, (is_kept, put_back) in zip(lost, ends, copies, strict=True):
        is_changed = not lives or dice.random() < _CHANGED_BEFORE
        first = next(policies) if is_changed else lives[-1].policies[-1]
        others = sum(dice.random() < _CHANGED_WITHIN for _ in range(len(before) + 1))
        others = len(before) + 1 if end.point in OF_AN_EPOCH else others
        lives.append(
            Life(
                CLUSTER if any(kill.victim == "executor" for kill in before) else LOCAL,
                tuple(before),
                end,
                (first, *islice(policies, others)),
                dice.choice(_PEER_PERCENTS),
                is_kept,
                put_back,
            )
        )
    return [_frozen(dice, *pair) for pair in pairwise(lives)] + lives[-1:] if may_freeze else lives


def _frozen(dice: random.Random, life: Life, after: Life) -> Life:
    """Return a life that may end frozen, unless what it has must lie still."""
    is_frozen = dice.random() < _FROZEN and life.end.victim == "job" and not after.is_kept and after.put_back is None
    return replace(life, end=replace(life.end, victim="frozen")) if is_frozen else life


def _end(dice: random.Random, point: str | None) -> Kill:
    return _kill(dice, "kernel" if dice.random() < _KERNELS else "job", point)


def _kill(dice: random.Random, victim: Victim, point: str | None) -> Kill:
    return Kill(victim, point, dice.randint(1, _BATCHES_BETWEEN), dice.randrange(_LONGEST_DELAY_MS))


def _copies(dice: random.Random, lives: int, kinds: Sequence[PutBack]) -> list[tuple[bool, PutBack | None]]:
    """Return for each life whether a copy is made before it, and how the last one is put back; every kind by turns."""
    kept, put_back = set[int](), dict[int, PutBack]()
    order = list(islice(cycle(dice.sample(kinds, len(kinds))), lives))
    life = 1
    while kinds and life < lives - 1:
        is_last_chance = not kept and life == lives - 2
        if dice.random() < _KEPT or is_last_chance:
            kept.add(life)
            life = min(life + dice.randint(1, _LIVES_UNDONE), lives - 1)
            put_back[life] = order[len(put_back)]
        life += 1  # a life that begins put back may still have to agree with its sinks
    return [(number in kept, put_back.get(number)) for number in range(lives)]
