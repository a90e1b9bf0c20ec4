"""Lives of a job, one after the other, for minutes: ``python -m tests.life.run --minutes 30 --seed 1``.

Every tenth life is traced too: each step of its jobs must be one that the models of batches and leases (`tests.models`)
allow. The last line is JSON. The first violation ends the run and is told with its law, its life, the steps that are
left of it when all that is not needed has been taken out, and the command that replays it; ``--all`` goes on and
counts.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pytest

from spark_throttle.testing.simulation.exchange import SimulatedExchange
from tests.life.drawing import Step
from tests.life.laws import Violation
from tests.life.life import LAW_NAMES, SETTINGS, Life, Script, draw_script
from tests.life.policies import KINDS
from tests.life.shrink import shrunk
from tests.life.steps import RULES
from tests.models.batches import Batches
from tests.models.checker import NotAllowedError
from tests.models.leases import Leases
from tests.models.traced_batches import trace_batches
from tests.models.traced_leases import trace_leases

MODEL: Final = "Model"
"""Each step of a job is one that the models of batches and leases allow."""

_TRACED: Final = 10
"""One life of so many is traced: to compare the model with the files costs more than the life."""


@dataclass(slots=True)
class Tally:
    """What a run has seen."""

    steps: int = 0
    batches: int = 0
    lives: int = 0
    by_law: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    """How often each action of the model of batches was taken."""

    of_leases: Counter[str] = field(default_factory=Counter)
    """How often each action of the model of leases was taken."""


def broken_by(
    script: Script, steps: Sequence[Step], laws: Sequence[str], tally: Tally | None = None, *, is_traced: bool = False
) -> tuple[Violation, int] | None:
    """Play steps, and return the violation and the position of the step in which it came."""
    if not is_traced:
        return _broken_by(Life(script.birth, laws), steps, tally)
    exchange = SimulatedExchange(SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        leases, trace = trace_leases(patch, exchange), trace_batches(patch)
        life = Life(script.birth, laws, exchange=exchange if script.birth.is_sharing else None)
        found = _broken_by(life, steps, tally)
    if tally is not None:
        tally.reached += trace.reached
        tally.of_leases += leases.reached
    if leases.problem is not None:
        return Violation(MODEL, leases.problem), len(steps) - 1 if found is None else found[1]
    # That a step is not allowed ends the job as any error does.
    return (Violation(MODEL, found[0].what), found[1]) if found is not None and trace.is_over else found


def _broken_by(life: Life, steps: Sequence[Step], tally: Tally | None) -> tuple[Violation, int] | None:
    at = 0
    try:
        for at, step in enumerate(steps):  # noqa: B007 - the position is told
            life.play([step])
            if tally is not None:
                tally.steps += 1
        life.audit()
    except Violation as violation:
        # A life that cannot go on ends, also where that is not what is asked about.
        return (violation, at) if violation.law in life.laws else None
    except NotAllowedError as error:  # of a run that is not the life's own
        return Violation(MODEL, str(error)), at
    finally:
        if tally is not None:
            tally.batches += life.batches
    return None


def report(
    script: Script,
    found: tuple[Violation, int],
    laws: Sequence[str],
    command: str,
    *,
    is_cut: bool,
    is_traced: bool = False,
) -> list[str]:
    """Return what is to be said of a violation."""
    violation, at = found
    steps: Sequence[Step] = script.steps[: at + 1]
    if is_cut:
        steps = shrunk(steps, lambda some: _is_same(broken_by(script, some, laws, is_traced=is_traced), violation))
    again = broken_by(script, steps, laws, is_traced=is_traced)
    what = again[0] if again else violation
    exchange = " that shares its quotas" if script.birth.is_sharing else ""
    return [
        f"violation of {what}",
        f"  in step {at} of a life{exchange}; {len(steps)} steps are left of it:",
        f"    begins with {json.dumps(script.birth.document, ensure_ascii=True)}",
        *(f"    {number}. {ascii(str(step))[1:-1]}" for number, step in enumerate(steps)),
        f"  replay: {command}",
    ]


def _is_same(found: tuple[Violation, int] | None, violation: Violation) -> bool:
    return found is not None and found[0].law == violation.law


def main(arguments: Sequence[str] | None = None) -> int:
    """Run lives until the time is over."""
    options = _options().parse_args(arguments)
    rules = [rule for rule in options.rules.split(",") if rule not in options.without.split(",")]
    kinds = [kind for kind in options.kinds.split(",") if kind not in options.without.split(",")]
    laws = options.laws.split(",")
    clock = time.process_time if options.by_cpu else time.monotonic
    tally, begun = Tally(), clock()
    numbers = [options.life] if options.life is not None else range(sys.maxsize)
    for number in numbers:
        if clock() - begun > 60 * options.minutes and options.life is None:
            break
        script = draw_script(options.seed, number, rules=rules, kinds=kinds, steps=options.steps)
        # Two checkpoints that write to one sink are none of the model's.
        is_traced = number % _TRACED == 0 and all(step.rule != "clone" for step in script.steps)
        found = broken_by(script, script.steps, laws, tally, is_traced=is_traced)
        tally.lives += 1
        if found is not None:
            tally.by_law[found[0].law] += 1
            command = f"python -m tests.life.run --seed {options.seed} --life {number} {_same(options)}"
            is_first = tally.by_law[found[0].law] <= options.tell
            lines = (
                report(script, found, laws, command, is_cut=is_first, is_traced=is_traced)
                if is_first or not options.all
                else []
            )
            lines.append(f"  found after {tally.steps} steps, {tally.lives} lives, {time.process_time():.1f} CPU s")
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
            if not options.all:
                break
    by_law = {law: tally.by_law[law] for law in (*LAW_NAMES, MODEL)}
    violations = sum(by_law.values())
    line = {"seed": options.seed, "steps": tally.steps, "violations": violations, "by_law": by_law}
    model: dict[str, int | str] = {"model_steps": (tally.reached + tally.of_leases).total()}
    model["model_actions"] = f"{len(tally.reached)} of {len(Batches.actions)}"
    model["lease_actions"] = f"{len(tally.of_leases)} of {len(Leases.actions)}"
    sys.stdout.write(json.dumps(line | {"lives": tally.lives, "batches": tally.batches} | model) + "\n")
    return min(1, violations)


def _same(options: argparse.Namespace) -> str:
    """Return the options that a replay needs."""
    defaults = vars(_options().parse_args([]))
    wanted = {name: getattr(options, name) for name in ("rules", "kinds", "laws", "without", "steps")}
    return " ".join(f"--{name} {value}" for name, value in wanted.items() if value != defaults[name])


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--by-cpu", action="store_true", help="count minutes of CPU time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life", type=int, help="play this life alone")
    parser.add_argument("--steps", type=int, default=30, help="of a life at most")
    parser.add_argument("--rules", default=",".join(RULES), help="rules that lives may have")
    parser.add_argument("--kinds", default=",".join(KINDS), help="changes that policies may make")
    parser.add_argument("--without", default="", help="rules and changes that they may not")
    parser.add_argument("--laws", default=",".join(LAW_NAMES), help="laws that are asked")
    parser.add_argument("--all", action="store_true", help="go on after a violation, and count")
    parser.add_argument("--tell", type=int, default=1, help="violations of each law that are told in full")
    return parser


if __name__ == "__main__":
    logging.disable()  # the job's warnings are of histories that nobody reads
    pa.set_cpu_count(1)  # tables of a few rows: threads cost more than they do
    sys.exit(main())
