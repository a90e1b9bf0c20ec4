"""The rules: everything that happens to a job. A rule draws plain data, and carries it out whatever came before.

So a history is a list of steps that can be stored, replayed and cut: a step that finds nothing to do does nothing. To
add a rule, write a pair of functions and name it in `RULES`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from spark_throttle.core.batch.decisions import MAX_NAMESPACE_BYTES
from tests.life import policies
from tests.life.contract import text_of
from tests.life.drawing import JUMPS_MS, Drawing, Rule, Step, Traffic
from tests.life.policies import NAMESPACES, Document
from tests.life.row_costs import costs, draw_prices
from tests.life.steps_of_runs import RULES_OF_RUNS
from tests.life.steps_of_sharing import RULES_OF_SHARING

if TYPE_CHECKING:
    from tests.life.life import Life

BROKEN: Final[tuple[tuple[str | None, int | None], ...]] = (
    (None, 1), ("", 1), ("x" * (MAX_NAMESPACE_BYTES + 1), 1), ("acme/a", None), ("acme/a", -1),
    ("acme/a", 2**36 + 1), ("acme/b", 2**63 - 1), ("acme/\udce9", 1), ("\udcff", 10),
)  # fmt: skip
PAUSES_MS: Final = (1, 10, 500, 1_000, 1_000, 1_000, 5_000)
LONG_PAUSES_MS: Final = (60_000, 3_600_000, 86_400_000)


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
    return {"document": d.next_policy()}


def _set_policies(life: Life, document: Document) -> None:
    life.set_policies(document)


def _dry_run(d: Drawing) -> dict[str, Any]:
    observing, d.document = policies.dry_run(d.rng, d.document)
    return {"observing": observing, "enforced": d.document} | _steady(d)


def _enforced(life: Life, observing: Document, enforced: Document, rows: Traffic, triggers: int, after_ms: int) -> None:
    """Let a quota observe under some traffic, then enforce it under the same."""
    life.set_policies(observing)
    _triggers(life, rows, triggers, after_ms)
    life.set_policies(enforced)
    _triggers(life, rows, 10, after_ms)


def _first_quota(d: Drawing) -> dict[str, Any]:
    rows = [(name, size, 150) for name, size, _ in d.rows(2)]
    d.document = policies.first_quota(d.rng, d.tempers, d.document, d.rng.choice(rows)[0] or "")
    return {"rows": rows, "document": d.document, "triggers": d.rng.randint(3, 12), "after_ms": 1_000}


def _limited(life: Life, rows: Traffic, document: Document, triggers: int, after_ms: int) -> None:
    """Give a namespace a quota of its own while it has a backlog."""
    _flooded(life, rows, 2, after_ms)
    life.set_policies(document)
    _triggers(life, [], triggers, after_ms)


def _contest(d: Drawing) -> dict[str, Any]:
    """Two or three that stay backlogged, with large messages and small ones, beside one or two that only trickle."""
    names = d.rng.sample(NAMESPACES, d.rng.randint(2, 5))
    heavy = names[: d.rng.choice((2, 3, 3))]
    sizes = d.rng.choice(((1_000,), (1_000, 60_000), (1_000, 20_000), (60_000, 1_000, 20_000)))
    if d.rng.random() < 0.8:
        d.document = policies.common_group(d.rng, d.document)
    nudged = policies.nudged(d.rng, d.document) if d.rng.random() < 0.4 else d.document
    return {
        "documents": [d.document, nudged],
        "heavy": [(name, sizes[at % len(sizes)]) for at, name in enumerate(heavy)],
        "light": [(name, d.rng.choice((1, 10)), 1) for name in names[len(heavy) :]],
        "triggers": d.rng.randint(20, 45),
        "every": d.rng.choice((1, 3, 5)),
    }


def _contest_for_both(d: Drawing) -> dict[str, Any]:
    """As `_contest`, in a group of two limits: messages take about as long as their bytes, more of one or of both."""
    names = d.rng.sample(NAMESPACES, d.rng.randint(2, 5))
    heavy = names[: d.rng.choice((2, 3, 4))]
    even = d.rng.choice((10, 100, 400))
    d.document = policies.group_of_both(d.rng, d.document, even)
    nudged = policies.nudged(d.rng, d.document) if d.rng.random() < 0.2 else d.document
    return {
        "documents": [d.document, nudged],
        "heavy": [
            (name, d.rng.choice((0, 1, even // 10, even // 2, even, even, 2 * even, 5 * even))) for name in heavy
        ],
        "light": [(name, d.rng.choice((1, even)), 1) for name in names[len(heavy) :]],
        "triggers": d.rng.randint(20, 60),
        "every": 5,
    }


def _contested(
    life: Life,
    documents: list[Document],
    heavy: list[tuple[str, int]],
    light: Traffic,
    triggers: int,
    every: int,
) -> None:
    """Keep some backlogged while others trickle and one rate changes a little every few triggers."""
    for trigger in range(triggers):
        if trigger % every == 0:
            life.set_policies(documents[trigger // every % 2])
        waiting = Counter(text_of(row.namespace) for row in life.job.waiting)
        life.offer(
            [(name, size, max(0, min(150, 10 + 100_000 // max(size, 1)) - waiting[name])) for name, size in heavy]
        )
        life.offer(light)
        life.trigger(1_000)


def _contest_for_time(d: Drawing) -> dict[str, Any]:
    """Some that stay backlogged in a group of a quota on time, beside one that sends a row at times."""
    names = tuple(d.rng.sample([name for name in NAMESPACES if name.partition("/")[0] in policies.TENANTS], 4))
    d.document = policies.group_of_time(d.rng, d.document, names)
    return {
        "document": d.document, "heavy": names[: d.rng.choice((2, 3))], "light": names[3],
        "row_ns": draw_prices(d.rng), "triggers": d.rng.randint(15, 40), "every": d.rng.choice((1, 5, 12)),
    }  # fmt: skip


def _contested_for_time(
    life: Life,
    document: Document,
    heavy: tuple[str, ...],
    light: str,
    row_ns: tuple[tuple[str, int], ...],
    triggers: int,
    every: int,
) -> None:
    """Keep some backlogged with rows of different prices."""
    life.set_policies(document)
    life.job.cost_ns = costs(row_ns)
    each_ns = dict(row_ns)
    for trigger in range(triggers):
        waiting = Counter(text_of(row.namespace) for row in life.job.waiting)
        for name in heavy:
            most = 5 + 500_000_000 // each_ns[name.partition("/")[0]]  # a second of half a core
            life.offer([(name, 1, max(0, most - waiting[name]))])
        if trigger % every == every - 1:
            life.offer([(light, 1, 1)])
        life.trigger(1_000)


def _tight(d: Drawing) -> dict[str, Any]:
    """Draw backlogs of groups that have tokens, while the job or a tenant is short."""
    rows = [(name, size, 150) for name, size, _ in d.rows(2)]
    d.document = policies.tight_scope(d.rng, d.document, tuple(str(name) for name, _, _ in rows))
    return {"document": d.document, "rows": rows, "triggers": d.rng.randint(10, 40), "after_ms": 1_000}


def _was_tight(life: Life, document: Document, rows: Traffic, triggers: int, after_ms: int) -> None:
    """Let rows compete for what is short."""
    life.set_policies(document)
    _flooded(life, rows, triggers, after_ms)


def _guaranteed(d: Drawing) -> dict[str, Any]:
    """Draw backlogs of which some are guaranteed a part of what the job has."""
    rows = [(name, size, 150) for name, size, _ in d.rows(2)]
    d.document = policies.guaranteed(d.rng, d.document, tuple(str(name) for name, _, _ in rows))
    return {"document": d.document, "rows": rows, "triggers": d.rng.randint(10, 40), "after_ms": 1_000}


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


RULES: Final[dict[str, Rule]] = {
    "run": (10, _run, _triggers),
    "burst": (3, _burst, _offer),
    "flood": (3, _flood, _flooded),
    "steady": (1, _steady, _triggers),
    "long_pause": (1, _long_pause, _triggers),
    "slow": (1, _slow, _slow_trigger),
    "policy": (4, _policy, _set_policies),
    "dry_run": (1, _dry_run, _enforced),
    "first_quota": (1, _first_quota, _limited),
    "contest": (4, _contest, _contested),
    "contest_for_both": (3, _contest_for_both, _contested),
    "contest_for_time": (2, _contest_for_time, _contested_for_time),
    "tight": (2, _tight, _was_tight),
    "guaranteed": (3, _guaranteed, _was_tight),
    "drop": (1, _drop, _dropped),
    "broken": (1, _broken, _offer),
    "jump": (2, _jump, _jumped),
    "sawtooth": (1, _sawtooth, _jumped_forth_and_back),
    **RULES_OF_RUNS,
    **RULES_OF_SHARING,
}
"""All rules of lives, by name."""

ALWAYS: Final = frozenset({"run", "burst", "flood"})
"""The rules of every life; about half of all lives have any other rule."""


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
