"""How far the models are explored: which steps are tried from a state, and which states count as one.

A *scene* is a state from which an exploration begins, as a list of steps. So a fault that needs a long history is found
in seconds, and every state of a scene is one that the model comes to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

from tests.models import lease_states as leases
from tests.models.batch_states import (
    DECIDED,
    IDLE,
    KEPT,
    LETTERED,
    LOGGED,
    PLANNED,
    READY,
    REPORTED,
    WRITTEN,
    Control,
    Outcome,
    Rows,
    State,
    rows_of,
)
from tests.models.batches import Batches
from tests.models.checker import Step, follow
from tests.models.leases import Leases, Times


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """How often what may happen in the model of batches, counted from the scene."""

    rows: int = 1
    policies: int = 1
    starts: int = 1
    batches: int = 1
    restores: int = 1
    backups: int = 1
    alive: int = 1
    """How many runs live at once."""


class ExploredBatches(Batches):
    """The model of batches within bounds."""

    def __init__(
        self, bounds: BatchBounds, scene: tuple[Step, ...] = (), without: frozenset[str] | set[str] = frozenset()
    ) -> None:
        super().__init__(without)
        self.bounds = bounds
        self.begins = follow(Batches(), State(), scene)

    def moves(self, s: State) -> Iterator[Step]:  # noqa: PLR0912 - a branch each
        """Return the steps to try, within the bounds."""
        bounds, begins = self.bounds, self.begins
        if s.offered < begins.offered + bounds.rows:
            yield Step("arrive")
        for policy in range(s.policy + 1, begins.policy + bounds.policies + 1):
            yield Step("change_policy", (policy,))
        if s.starts < begins.starts + bounds.starts and len(s.runs) < bounds.alive:
            yield from (Step("start", (s.starts + 1,)), Step("refuse", (s.starts + 1, self.refusal(s, s.starts + 1))))
        if len(s.backups) < len(begins.backups) + bounds.backups:
            yield Step("back_up")
        if s.restores < begins.restores + bounds.restores:
            yield from (Step("put_back", (batches,)) for batches in range(s.spark.committed + 1))
            for backup in s.backups:
                yield from (Step("restore", (backup, with_control)) for with_control in (False, True))
                yield Step("put_control_back", (backup.control,))
            yield Step("put_control_back", (Control(),))
        may_plan = s.plans < begins.plans + bounds.batches
        for run in s.runs:
            yield from (Step("die", (run.id,)), Step("refuse", (run.id, self.refusal(s, run.id))))
            if not run.has_begun:
                yield Step("begin", (run.id,))
            elif run.at == IDLE and may_plan:
                yield from (Step("plan", (run.id, is_new)) for is_new in (False, True))
            elif run.at == PLANNED and "epoch before offset" not in self.without:
                yield Step("write_epoch", (run.id,))
            elif run.at in (READY, PLANNED) and may_plan:
                log = s.spark.log
                least = log[-1].end if log and "offsets are read once" not in self.without else 0
                yield from (Step("log_offset", (run.id, end, s.plans)) for end in range(least, s.offered + 1))
            elif run.at == LOGGED:
                pinned = s.spark.log[run.newest].epoch.policy
                policy = s.policy if "decides by what is pinned" in self.without else pinned
                yield Step("decide", (run.id, decided(rows_of(s, run.newest), policy)))
            else:
                yield from (Step(each, (run.id,)) for each in TO_THE_SINKS.get(run.at, ()))

    def key(self, s: State) -> State:
        """Return the state with its runs numbered anew: only who came before whom counts."""
        owners = {0, s.control.owner, *(each.control.owner for each in s.backups)}
        ids = sorted(owners | {each for r in s.runs for each in (r.id, r.found)})
        if ids[-1] == len(ids) - 1:
            return s
        to = {each: number for number, each in enumerate(ids)}
        runs = tuple(r._replace(id=to[r.id], found=to[r.found]) for r in s.runs)
        backups = tuple(b._replace(control=b.control._replace(owner=to[b.control.owner])) for b in s.backups)
        return s._replace(runs=runs, control=s.control._replace(owner=to[s.control.owner]), backups=backups)


TO_THE_SINKS: Final = {
    DECIDED: ("keep_state", "write"), KEPT: ("write", "write_letters"), WRITTEN: ("write_letters",),
    LETTERED: ("report", "commit"), REPORTED: ("commit",),
}  # fmt: skip


def decided(rows: Rows, policy: int) -> Outcome:
    """Return what is decided in an exploration: one row leaves, the others wait, are rejected, or leave."""
    first, others = rows[:1], rows[1:]
    return (Outcome(first, (), others), Outcome(first, others, ()), Outcome(rows, (), ()))[policy]


def batch(run: int, end: int, time: int, outcome: Outcome, until: str = REPORTED) -> tuple[Step, ...]:
    """Return the steps of a batch that gets as far as `until`, with an epoch of its own."""
    steps = (
        Step("plan", (run, True)), Step("write_epoch", (run,)), Step("log_offset", (run, end, time)),
        Step("decide", (run, outcome)), Step("keep_state", (run,)), Step("write", (run,)),
        Step("write_letters", (run,)), Step("report", (run,)), Step("commit", (run,)),
    )  # fmt: skip
    return steps[: {LOGGED: 3, WRITTEN: 6, REPORTED: 9}[until]]


_UP: Final = (Step("arrive"), Step("arrive"), Step("start", (1,)), Step("begin", (1,)))
_FIRST: Final = batch(1, 1, 0, Outcome((0,), (), ()))
BATCH_SCENES: Final = {
    "fresh": (),
    "written": (*_UP, *batch(1, 1, 0, Outcome((0,), (), ()), WRITTEN), Step("die", (1,))),
    "committed": (*_UP, *batch(1, 2, 0, Outcome((0,), (), (1,)))),
    "logged": (*_UP, *batch(1, 2, 0, Outcome((0,), (), (1,)), LOGGED)),
    "two": (*_UP, *_FIRST, *batch(1, 2, 1, Outcome((1,), (), ()))),
    "one epoch": (
        *_UP, *_FIRST, Step("back_up"), Step("plan", (1, False)), *batch(1, 2, 1, Outcome((1,), (), ()))[2:],
        Step("die", (1,)),
    ),
    "two ways": (
        *_UP, *_FIRST, Step("back_up"), *batch(1, 2, 1, Outcome((1,), (), ())), Step("back_up"), Step("die", (1,)),
    ),
}  # fmt: skip
"""Scenes, by name."""


# ------------------------------------------------------------------------------------------------------------- leases

TICKS: Final = Times(hold=4, margin=2, forget=100, stale=1, floor_percent=20)
QUOTA: Final = 1_000


@dataclass(frozen=True, slots=True)
class LeaseBounds:
    """How often what may happen in the model of leases, counted from the scene."""

    ticks: int = 4
    reports: tuple[int, ...] = (1, 1)
    """Reports of each run of the scene."""

    first_reports: int = 1
    """Reports of each run that starts."""

    claims: tuple[int, ...] = (1_000,)
    starts: tuple[str, ...] = ()
    """The starts that may come: of A ``again``, of A ``put back``, of a ``copy`` of A, of ``another`` member."""

    crashes: int = 0
    losses: int = 0
    """Registers that vanish, are damaged or put back."""

    slow_ticks: int = 0
    """Ticks that the clock of a run does not show."""

    quotas: tuple[int, ...] = ()
    """Quotas that jobs may tell."""

    has_stale_reads: bool = False
    has_lost_writes: bool = False
    goes_on: bool = False
    """Whether runs that yielded may go on."""

    pays: bool = False


class Counted(NamedTuple):
    """A state, and how often what has happened since the scene."""

    state: leases.State
    starts: tuple[str, ...] = ()
    crashes: int = 0
    losses: int = 0
    slow_ticks: int = 0


class ExploredLeases(Leases):
    """The model of leases within bounds."""

    def __init__(
        self, bounds: LeaseBounds, scene: tuple[Step, ...] = (), without: frozenset[str] | set[str] = frozenset()
    ) -> None:
        super().__init__(TICKS, without)
        self.bounds = bounds
        self.scene = follow(Leases(TICKS), leases.State(), scene)
        self.begins: Any = Counted(self.scene)
        self._most_reports = {r.id: r.number + most for r, most in zip(self.scene.runs, bounds.reports, strict=False)}

    def after(self, state: Any, step: Step) -> Any:
        """Return the state after a step, and count it."""
        after = super().after(state.state, step)
        if after is None:
            return None
        if step.action == "start":
            return state._replace(state=after, starts=(*state.starts, step.arguments[2]))
        return Counted(
            after, state.starts, state.crashes + (step.action == "crash"),
            state.losses + (step.action in ("vanish", "damage", "put_back")),
            state.slow_ticks + (step.action == "tick" and len(step.arguments) > 1),
        )  # fmt: skip

    def broken(self, state: Any) -> str | None:
        """Return the name of an invariant that a state breaks."""
        return super().broken(state.state)

    def moves(self, counted: Any) -> Iterator[Step]:
        """Return the steps to try, within the bounds."""
        s, bounds = counted.state, self.bounds
        if s.now < self.scene.now + bounds.ticks and not any(self._must_look(s, r) for r in s.runs):
            yield Step("tick")
            if counted.slow_ticks < bounds.slow_ticks:
                yield from (Step("tick", (1, ((r.id, 0),))) for r in s.runs)
        if counted.crashes < bounds.crashes:
            yield from (Step("crash", (r.id,)) for r in s.runs)
        if counted.losses < bounds.losses:
            for register, found in s.registers:
                yield Step("damage", (register,))
                if all(r.id != register for r in s.runs):  # a live run that looks once a margin writes it again
                    yield Step("vanish", (register,))
                old = [each for each, _ in found.before if isinstance(each, leases.Report)]
                yield from (Step("put_back", (register, each)) for each in old[-1:])
        for kind in bounds.starts[len(counted.starts) : len(counted.starts) + 1]:
            yield from self._starts(s, kind)
        for r in s.runs:
            yield from self._moves_of(s, r)

    def _must_look(self, s: leases.State, r: leases.Run) -> bool:
        """Return whether a run has not looked for as long as a later run of its member waits: that is assumed of it."""
        later = [each for each in s.runs if each.member == r.member and each.id > r.id and each.shown_at is not None]
        waits = 2 * self.times.margin - 1
        return any(each.clock - (each.shown_at or 0) >= waits and each.id not in dict(r.others) for each in later)

    def _starts(self, s: leases.State, kind: str) -> Iterator[Step]:
        """Return the starts of a kind."""
        new = max([r.id for r in s.runs] + [name for name, _ in s.registers], default=0) + 1
        member, place, incarnation = "A", "a", 2 << 20
        if kind == "another":
            member, place = "C", "c"
        elif kind == "copy":
            member, place = "A" if "a copy is another member" in self.without else "A'", "a'"
        elif kind == "put back":
            incarnation = 0
        yield Step("start", (new, member, place, s.now, incarnation, QUOTA))

    def _moves_of(self, s: leases.State, r: leases.Run) -> Iterator[Step]:
        """Return the steps of a run."""
        bounds = self.bounds
        if r.held_until is not None and r.clock >= r.held_until:
            yield Step("ask", (r.id,))
        if r.is_superseded and r.last_yield < 2 and bounds.goes_on:
            yield Step("go_on", (r.id,))
        usable = self.usable(self._fallen(r))
        if usable > r.pinned:
            yield Step("begin_epoch", (r.id, usable))
        less = {each for each in bounds.claims if each < usable}
        yield from (Step("end_epoch", (r.id, rate)) for rate in {usable, *less} if rate < r.pinned or r.has_lapsed)
        most = self._most_reports.get(r.id, bounds.first_reports)
        if r.number < most:
            for claim in bounds.claims:
                yield Step("report", (r.id, claim, min(claim, FLOOR)))
                if bounds.has_lost_writes:
                    yield Step("report", (r.id, claim, min(claim, FLOOR), False))
        yield from (Step("measure", (r.id, quota)) for quota in bounds.quotas if quota != r.quota)
        yield from self._visits(s, r)
        if bounds.pays:
            since = self.scene.now
            ends = {min([r.clock, *(each for each in r.falls if each > since)])}
            ends |= {r.clock} if "a lease that ended and began again" in self.without else set()
            yield from (Step("pay", (r.id, since, until)) for until in sorted(ends))

    def _visits(self, s: leases.State, r: leases.Run) -> Iterator[Step]:
        choices: list[list[leases.Content]] = []
        for name, each in s.registers:
            is_stale = self.bounds.has_stale_reads and name != r.id
            choices.append([each.newest, *(old for old, _ in each.before[-1:] if is_stale)])
        for some in product(*choices):
            held = [(name, what) for (name, _), what in zip(s.registers, some, strict=True)]
            found = tuple((name, what.mark) for name, what in held if isinstance(what, leases.Report))
            damaged = [name for name, what in held if what == leases.DAMAGED and name != r.id]
            unreadable = tuple((name, self._member_of(s, name)) for name in damaged)
            yield Step("visit", (r.id, found, unreadable, r.clock))

    def _member_of(self, s: leases.State, register: int) -> str:
        return next((r.member for r in (*s.runs, *self.scene.runs) if r.id == register), "A")


FLOOR: Final = 100


def settled(claims: dict[int, int], silent: tuple[int, ...] = (), silent_ticks: int = 0) -> tuple[Step, ...]:
    """Return steps in which members A, B, … start at once and come to use what they claim; then some fall silent."""
    model, s = Leases(TICKS), leases.State()
    steps: list[Step] = []

    def take(*more: Step) -> None:
        nonlocal s
        steps.extend(more)
        s = follow(model, s, more)

    for run in claims:
        take(Step("start", (run, "ABC"[run - 1], "abc"[run - 1], 0, 1 << 20, QUOTA)))
    for tick in range(_TICKS_TO_SETTLE + silent_ticks):
        for run, claim in claims.items():
            if run in silent and tick >= _TICKS_TO_SETTLE:
                continue
            held = [(name, each.newest) for name, each in s.registers]
            found = tuple((name, what.mark) for name, what in held if isinstance(what, leases.Report))
            take(Step("visit", (run, found, (), leases.run_of(s, run).clock)))
            usable = model.usable(leases.run_of(s, run))
            take(Step("begin_epoch", (run, usable)), Step("end_epoch", (run, usable)))
            take(Step("report", (run, claim, FLOOR)))
        take(Step("tick"))
    return tuple(steps[:-1])


_TICKS_TO_SETTLE: Final = 6

LEASE_SCENES: Final = {
    "nobody": (),
    "alone": settled({1: 1_000}),
    "shared": settled({1: 500, 2: 500}),
    "unequal": settled({1: 800, 2: 200}),
    "one is silent": settled({1: 500, 2: 500}, (1,), 2),
    "one has died": (
        *settled({1: 500, 2: 500}),
        Step("crash", (2,)),
        *settled({1: 500, 2: 500}, (2,), 10)[len(settled({1: 500, 2: 500})) :],
    ),
}
"""Scenes, by name."""

LEASE_CASES: Final = {
    "two start": ("nobody", LeaseBounds(2, starts=("another", "again"), has_stale_reads=True)),
    "runs of one job": ("nobody", LeaseBounds(0, first_reports=2, starts=("again", "put back"), goes_on=True)),
    "a run beside": ("alone", LeaseBounds(4, (0,), 2, starts=("again",))),
    "a run beside one of two": ("shared", LeaseBounds(0, (0, 1), 1, (200, 1_000), ("again",))),
    "a copy": ("alone", LeaseBounds(1, starts=("copy",))),
    "a job that is put back": ("shared", LeaseBounds(0, (0, 0), 1, (500,), ("put back",), crashes=1, losses=1)),
    "damaged": ("alone", LeaseBounds(2, (0,), starts=("another",), losses=1)),
    "unequal": ("unequal", LeaseBounds(0, (2, 1), claims=(500, 800), has_stale_reads=True)),
    "lost": ("shared", LeaseBounds(1, claims=(200, 1_000), has_lost_writes=True)),
    "slow": ("one is silent", LeaseBounds(2, (0, 1), slow_ticks=1)),
    "silent": ("one is silent", LeaseBounds(4, (0, 1))),
    "paid": ("alone", LeaseBounds(4, pays=True)),
    "a quota falls": ("one has died", LeaseBounds(0, (2,), claims=(200, 400), quotas=(400,))),
}
"""Explorations of the model of leases: a scene, and how far."""

BATCH_CASES: Final = {
    "fresh": ("fresh", BatchBounds(policies=0)),
    "committed": ("committed", BatchBounds(policies=0)),
    "two runs": ("committed", BatchBounds(rows=0, batches=2, restores=0, backups=0, alive=2)),
    "written": ("written", BatchBounds(policies=2, backups=0)),
    "two starts": ("written", BatchBounds(rows=0, policies=0, starts=2, restores=0, backups=0, alive=2)),
    "logged": ("logged", BatchBounds(rows=0, backups=0)),
    "two": ("two", BatchBounds(policies=0, batches=2, backups=0, alive=2)),
    "put back": ("one epoch", BatchBounds(0, 0, 1, 2, 1, 0)),
    "two ways": ("two ways", BatchBounds(0, 0, 2, 2, 2, 0)),
}
"""Explorations of the model of batches: a scene, and how far."""

CASES: Final[dict[str, tuple[str, BatchBounds | LeaseBounds]]] = {**BATCH_CASES, **LEASE_CASES}


def explored_model(
    case: str, bounds: BatchBounds | LeaseBounds | None = None, without: frozenset[str] = frozenset()
) -> ExploredBatches | ExploredLeases:
    """Return the model of a case, within its bounds or others, and without some guards."""
    scene, own = CASES[case]
    within = bounds or own
    if isinstance(within, BatchBounds):
        return ExploredBatches(within, BATCH_SCENES[scene], without)
    return ExploredLeases(within, LEASE_SCENES[scene], without)
