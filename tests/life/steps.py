"""The rules: everything that happens to a job. A rule draws plain data, and carries it out whatever came before.

So a history is a list of steps that can be stored, replayed and cut: a step that finds nothing to do does nothing. To
add a rule, write a pair of functions and name it in `RULES`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_throttle.core.reasons import MAX_NAMESPACE_BYTES
from spark_throttle.errors import PolicyError, ThrottleError
from spark_throttle.testing.simulated_disk import CRASH_POINTS
from tests.life import policies
from tests.life.policies import NAMESPACES, Document, Tempers

if TYPE_CHECKING:
    from tests.life.life import Life

Traffic: TypeAlias = list[tuple[str | None, int | None, int]]
"""Runs of rows: the namespace, the size, how many. A name that starts with `\\udc` is no UTF-8."""

BROKEN: Final[tuple[tuple[str | None, int | None], ...]] = (
    (None, 1), ("", 1), ("x" * (MAX_NAMESPACE_BYTES + 1), 1), ("acme/a", None), ("acme/a", -1),
    ("acme/a", 2**36 + 1), ("acme/b", 2**63 - 1), ("acme/\udce9", 1), ("\udcff", 10),
)  # fmt: skip
PAUSES_MS: Final = (1, 10, 500, 1_000, 1_000, 1_000, 5_000)
LONG_PAUSES_MS: Final = (60_000, 3_600_000, 86_400_000)
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
    """Of every namespace: the sizes of its rows."""

    document: Document
    past: list[Document]

    def rows(self, most: int) -> Traffic:
        """Draw rows of a few namespaces."""
        names = self.rng.sample(self.names, self.rng.randint(1, min(4, len(self.names))))
        return [(name, self.rng.choice(self.sizes[name]), self.rng.randint(1, most)) for name in names]


def _burst(d: Drawing) -> dict[str, Any]:
    return {"rows": d.rows(d.rng.choice((3, 30, 300)))}


def _offer(life: Life, rows: Traffic) -> None:
    life.offer(rows)


def _flood(d: Drawing) -> dict[str, Any]:
    """Backlogs that stay for a while: where fairness can be seen."""
    return {
        "rows": [(name, size, 150) for name, size, _ in d.rows(2)],
        "triggers": d.rng.randint(5, 30),
        "after_ms": 1_000,
    }


def _run(d: Drawing) -> dict[str, Any]:
    return {
        "rows": d.rows(d.rng.choice((1, 5, 50))) if d.rng.random() < 0.7 else [],
        "triggers": d.rng.choice((1, 1, 2, 5, 10)),
        "after_ms": d.rng.choice(PAUSES_MS),
    }


def _steady(d: Drawing) -> dict[str, Any]:
    """A minute or two of the same traffic: what a dry run is."""
    return {"rows": d.rows(20), "triggers": d.rng.randint(20, 40), "after_ms": d.rng.choice((1_000, 2_000))}


def _triggers(life: Life, rows: Traffic, triggers: int, after_ms: int) -> None:
    for _ in range(triggers):
        life.offer(rows)
        life.trigger(after_ms)


def _flooded(life: Life, rows: Traffic, triggers: int, after_ms: int) -> None:
    life.offer(rows)
    for _ in range(triggers):
        life.trigger(after_ms)


def _long_pause(d: Drawing) -> dict[str, Any]:
    return {"rows": [], "triggers": 1, "after_ms": d.rng.choice(LONG_PAUSES_MS)}


def _slow(d: Drawing) -> dict[str, Any]:
    return {
        "rows": d.rows(20),
        "after_ms": 1_000,
        "planning_ms": d.rng.choice((5, 300, 3_000)),
        "most_rows": d.rng.choice((None, 1, 7)),
    }


def _slow_trigger(life: Life, rows: Traffic, after_ms: int, planning_ms: int, most_rows: int | None) -> None:
    life.offer(rows)
    life.trigger(after_ms, planning_ms=planning_ms, most_rows=most_rows)


def _drop(d: Drawing) -> dict[str, Any]:
    return {"batches": d.rng.randint(1, 3), "after_ms": d.rng.choice(PAUSES_MS)}


def _dropped(life: Life, batches: int, after_ms: int) -> None:
    for _ in range(batches):
        life.drop(after_ms)


def _broken(d: Drawing) -> dict[str, Any]:
    return {"rows": [(*d.rng.choice(BROKEN), d.rng.randint(1, 3)) for _ in range(d.rng.randint(1, 3))]}


def _policy(d: Drawing) -> dict[str, Any]:
    d.past.append(d.document)
    d.document = policies.changed(d.rng, d.tempers, d.document, d.past)
    return {"document": d.document}


def _set_policies(life: Life, document: Document) -> None:
    try:
        life.job.set_policies(document)
    except PolicyError:
        return  # refused whole, and what was in force stays


def _dry_run(d: Drawing) -> dict[str, Any]:
    observing, d.document = policies.dry_run(d.rng, d.document)
    return {"observing": observing, "enforced": d.document} | _steady(d)


def _enforced(life: Life, observing: Document, enforced: Document, rows: Traffic, triggers: int, after_ms: int) -> None:
    """Let a quota observe under some traffic, then enforce it under the same."""
    _set_policies(life, observing)
    _triggers(life, rows, triggers, after_ms)
    _set_policies(life, enforced)
    _triggers(life, rows, 10, after_ms)


def _first_quota(d: Drawing) -> dict[str, Any]:
    rows = [(name, size, 150) for name, size, _ in d.rows(2)]
    d.document = policies.first_quota(d.rng, d.tempers, d.document, d.rng.choice(rows)[0] or "")
    return {"rows": rows, "document": d.document, "triggers": d.rng.randint(3, 12), "after_ms": 1_000}


def _limited(life: Life, rows: Traffic, document: Document, triggers: int, after_ms: int) -> None:
    """Give a namespace a quota of its own while it has a backlog."""
    _flooded(life, rows, 2, after_ms)
    _set_policies(life, document)
    _triggers(life, [], triggers, after_ms)


def _jump(d: Drawing) -> dict[str, Any]:
    return {"by_ms": d.rng.choice(JUMPS_MS)}


def _jumped(life: Life, by_ms: int) -> None:
    life.set_clock(by_ms)


def _sawtooth(d: Drawing) -> dict[str, Any]:
    return {"by_ms": d.rng.choice((1_000, 20_000, 3_600_000)), "times": d.rng.randint(2, 6)}


def _jumped_forth_and_back(life: Life, by_ms: int, times: int) -> None:
    for time in range(times):
        life.set_clock(by_ms if time % 2 == 0 else -by_ms)
        life.trigger(10)


def _crash(d: Drawing) -> dict[str, Any]:
    document = None
    if d.rng.random() < 0.5:
        document = _policy(d)["document"]
    return {
        "at": d.rng.choice(CRASH_POINTS), "rows": d.rows(20), "after_ms": 1_000,
        "down_ms": d.rng.choice((0, 1_000, 3_600_000)), "document": document,
    }  # fmt: skip


def _crashed(life: Life, at: Any, rows: Traffic, after_ms: int, down_ms: int, document: Document | None) -> None:
    life.job.crash(at)
    life.offer(rows)
    life.trigger(after_ms)
    if document is not None:
        _set_policies(life, document)
    life.restart(down_ms)


def _restart(d: Drawing) -> dict[str, Any]:
    return {"down_ms": d.rng.choice((0, 1_000, 3_600_000)), "jump_ms": d.rng.choice((0, 0, *JUMPS_MS))}


def _restarted(life: Life, down_ms: int, jump_ms: int) -> None:
    life.job.stop()
    life.set_clock(jump_ms)
    life.restart(down_ms)


def _put_back(d: Drawing) -> dict[str, Any]:
    return {"batches": d.rng.randint(1, 4), "rows": d.rows(5)}


def _was_put_back(life: Life, batches: int, rows: Traffic) -> None:
    """Put the checkpoint back; a job that refuses to go on so gets its newest checkpoint again."""
    backup = life.backup()
    life.job.put_back(batches)
    life.forget()
    life.offer(rows)
    try:
        life.restart(1_000, may_refuse=True)
        life.trigger(1_000, may_refuse=True)
    except ThrottleError:
        life.restore(backup)


def _lose_control(d: Drawing) -> dict[str, Any]:
    return {}


def _lost_control(life: Life) -> None:
    """Restore a checkpoint without its control directory: that is refused, and the directory is then found again."""
    backup = life.backup()
    life.job.lose_control()
    life.forget()
    try:
        life.restart(1_000, may_refuse=True)
        life.trigger(1_000, may_refuse=True)
    except ThrottleError:
        life.restore(backup)


def _clone(d: Drawing) -> dict[str, Any]:
    return {"rows": d.rows(5)}


def _cloned(life: Life, rows: Traffic) -> None:
    """Start a copy of the job on the same sinks: one of the two is refused, before anything is lost or doubled.

    Where it is the job itself, the sinks are put back to before the copy, as the error says.
    """
    backup = life.backup()
    life.offer(rows)
    clone = life.job.clone()
    try:
        clone.restart()
        clone.trigger(0)
    except ThrottleError:
        return
    life.offer(rows)
    try:
        life.trigger(1_000, may_refuse=True)
    except ThrottleError:
        life.restore(backup)


Draw: TypeAlias = Callable[[Drawing], dict[str, Any]]

RULES: Final[dict[str, tuple[int, Draw, Callable[..., None]]]] = {
    "run": (10, _run, _triggers),
    "burst": (3, _burst, _offer),
    "flood": (3, _flood, _flooded),
    "steady": (1, _steady, _triggers),
    "long_pause": (1, _long_pause, _triggers),
    "slow": (1, _slow, _slow_trigger),
    "policy": (4, _policy, _set_policies),
    "dry_run": (1, _dry_run, _enforced),
    "first_quota": (1, _first_quota, _limited),
    "drop": (1, _drop, _dropped),
    "broken": (1, _broken, _offer),
    "jump": (2, _jump, _jumped),
    "sawtooth": (1, _sawtooth, _jumped_forth_and_back),
    "crash": (3, _crash, _crashed),
    "restart": (1, _restart, _restarted),
    "put_back": (1, _put_back, _was_put_back),
    "lose_control": (1, _lose_control, _lost_control),
    "clone": (1, _clone, _cloned),
}
"""By name: how often it is drawn, what draws it, what carries it out."""

ALWAYS: Final = frozenset({"run", "burst", "flood"})
"""Of every life; each other rule is in about half of them."""


def draw_step(drawing: Drawing, rules: tuple[str, ...]) -> Step:
    """Draw the next step."""
    rule = drawing.rng.choices(rules, [RULES[name][0] for name in rules])[0]
    return Step(rule, RULES[rule][1](drawing))


def draw_names(rng: random.Random) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Draw the namespaces of a life and the sizes of their rows: equal, or very unequal."""
    names = tuple(rng.sample(NAMESPACES, rng.randint(2, 5)))
    classes = ((1,), (100,), (1_000,), (60_000,), (0, 1), (10, 5_000), (1_000_000,), (2**36,))
    weights = (8, 3, 6, 4, 1, 2, 1, 1)
    if rng.random() < 0.5:
        size = rng.choices(classes[:3], weights[:3])[0]
        return names, dict.fromkeys(names, size)
    return names, {name: rng.choices(classes, weights)[0] for name in names}
