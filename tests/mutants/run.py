"""Changes one line of what decides at a time and asks whether its tests notice: ``make mutants COUNT=60 SEED=1``.

Cosmic Ray says which changes there are: another operator, comparison or number, a condition negated, a decorator
removed. A seeded sample of them is drawn, a place in the code first and then a change there, so that a place where
many changes are possible is not drawn more often. Each mutant meets the tests of `make test` without a JVM that run the
changed line, or are slow and about its package, those first that are cheap and have noticed others of its module,
until one fails (`tests.mutants.trials`). A mutant that all of them pass is a survivor: a test is missing, or the change
makes no difference and stands with its reason in `tests.mutants.equivalent`.

What is found is appended to ``build/mutants/SEED.jsonl``. A run that was stopped goes on there. With ``--quick`` the
tests marked slow are left out, which is the way to begin; ``--again`` tries the survivors once more. Each meets tests
for as many ``--seconds`` of CPU. The last line is JSON; the exit status is 0 if no survivor is without a reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosmic_ray.work_item import MutationSpec

from tests.mutants.changes import FOLDER, drawn_before, mutant_of, sources
from tests.mutants.covering import ROOT
from tests.mutants.trials import NO_MUTANT, Found, Trials


def try_all(
    changes: Sequence[MutationSpec],
    known: dict[tuple[object, ...], Found],
    trials: Trials,
    most_seconds: float,
    *,
    is_again: bool,
) -> Iterator[Found]:
    """Yield what is found of each change that makes a mutant, whether it was known or is tried now."""
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in {each.module_path for each in changes}}
    for found in known.values():
        trials.learn(found)
    for change in changes:
        module, name = str(change.module_path.relative_to(ROOT)), change.operator_name.partition("/")[2]
        before = lines[change.module_path][change.start_pos[0] - 1].strip()
        key = module, name, change.occurrence, before
        if key in known and not (is_again and known[key].outcome == "survives"):
            yield known[key]
            continue
        mutant, code = mutant_of(change)
        if code is None:
            yield Found(mutant, NO_MUTANT, 0, 0)
        else:
            yield trials.attempt(mutant, code, most_seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants, try them, and print what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the path of the modules to change")
    parser.add_argument("--again", action="store_true", help="try again what survived before")
    parser.add_argument("--seconds", type=float, default=30, help="of CPU that the tests of a mutant may cost at first")
    parser.add_argument("--quick", action="store_true", help="leave out the tests that are marked slow")
    parser.add_argument("--covering", type=Path, help="which tests run which lines, as an earlier run has found out")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = FOLDER / f"{options.seed}.jsonl"
    changes = drawn_before(options.count, options.seed, options.only)
    survivors: list[str] = []

    def run(trials: Trials) -> None:
        trials.cover()
        lines = results.read_text().splitlines() if results.exists() else []
        known = {each.mutant.key: each for each in map(Found.read, lines)}
        counted = Counter[str]()
        for each in try_all(changes, known, trials, options.seconds, is_again=options.again):
            counted[each.outcome] += 1
            if each.mutant.key not in known or known[each.mutant.key] is not each:
                with results.open("a") as out:
                    out.write(json.dumps(asdict(each)) + "\n")
                said = each.reason or each.noticed_by or f"SURVIVES {each.tests} tests"
                _say(f"{each.mutant}\n    {said} ({each.seconds} CPU s)")
            if each.outcome == "survives":
                survivors.append(f"{each.mutant.module}:{each.mutant.line}")
        mutants = sum(counted.values()) - counted.pop("no mutant", 0)
        told: dict[str, Any] = {"seed": options.seed, "mutants": mutants, **counted, "survivors": survivors}
        _say(json.dumps(told))

    covering = options.covering or FOLDER / f"covering-{sources()}.jsonl"
    Trials(covering, run, is_quick=options.quick).begin()
    return int(bool(survivors))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
