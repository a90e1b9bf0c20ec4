"""Changes one line of the library at a time and asks whether its tests notice: ``make mutants COUNT=60 SEED=1``.

Cosmic Ray says which changes there are: another operator, comparison or number, a condition negated, a decorator
removed. A seeded sample of them is drawn, a place in the code first and then a change there, so that a place where
many changes are possible is not drawn more often. Every mutant is tried in a copy of the tree: first by the quick tests
of its own package, then by those of all packages that use it, and last by the slow ones in the same order. A mutant
that all tests pass is a survivor: a test is missing, or the change makes no difference and stands with its reason in
`tests.mutants.equivalent`.

The last line is JSON; the exit status is 0 if no survivor is without a reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

from tests.mutants.equivalent import reason_of

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "spark_throttle"
MUTATED: Final = ("core", "sharing")
COPIED: Final = (PACKAGE, "tests", "conf", "docs", "pyproject.toml", "README.md")
TIMEOUT_SECONDS: Final = 300
"""A mutant that loops for ever counts as noticed, and apart: on a busy machine the tests alone may take that long."""

_NO_JVM: Final = "not jvm and not kafka"
_NOTHING_TO_RUN: Final = 5
"""Pytest's exit status if the marks leave no test."""

_TESTS: Final = {
    "core": ("tests/core", "tests/control", "tests/life/test_written_lives.py", "tests/life/test_steady_service.py"),
    "sharing": ("tests/sharing", "tests/control"),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    module: str
    """Path below the root."""

    line: int
    operator: str
    before: str
    after: str
    code: str
    """The whole module, changed."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.before}\n    + {self.after}"

    @property
    def runs(self) -> Iterator[tuple[str, ...]]:
        """Yield pytest's arguments for each run, those first that most likely notice soonest."""
        _, room, package, *_ = Path(self.module).parts
        own = f"tests/{room}/{package}"
        for marks in ("not slow", "slow"):
            if (ROOT / own).is_dir():
                yield "-m", f"{_NO_JVM} and {marks}", own
            yield "-m", f"{_NO_JVM} and {marks}", *_TESTS[room]


def places_without_effect(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where annotations and the decorators of classes start and end: they decide nothing."""
    places = []
    for node in ast.walk(ast.parse(source)):
        annotations = (getattr(node, name, None) for name in ("annotation", "returns"))
        places += [_place_of(part) for part in annotations if isinstance(part, ast.expr)]
        if isinstance(node, ast.ClassDef):
            places += [_place_of(part) for part in node.decorator_list]
    return places


def _place_of(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def drawn_specs(count: int, seed: int, only: str) -> Iterator[MutationSpec]:
    """Yield changes: a place in the code each, and one of the changes that are possible there."""
    modules = [path for name in MUTATED for path in sorted((ROOT / PACKAGE / name).rglob("*.py")) if only in str(path)]
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/mutants.sqlite", WorkDB.Mode.create) as database:
        init(modules, database, {})
        specs = [spec for item in database.work_items for spec in item.mutations]
    ineffective = {path: places_without_effect(path.read_text(encoding="utf-8")) for path in modules}
    at: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = defaultdict(list)
    for spec in specs:
        if not any(start <= spec.start_pos < end for start, end in ineffective[spec.module_path]):
            at[str(spec.module_path), spec.start_pos].append(spec)
    draw = random.Random(seed)
    for place in draw.sample(sorted(at), min(count, len(at))):
        yield draw.choice(sorted(at[place], key=lambda spec: (spec.operator_name, spec.occurrence)))


def mutant_of(spec: MutationSpec) -> Mutant | None:
    """Return the mutant of a change, or `None` where it changes nothing."""
    source = spec.module_path.read_text(encoding="utf-8")
    code = mutate_code(source, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
    if code is None or code == source:
        return None
    old, new = source.splitlines(), code.splitlines()
    at = next(i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1])
    name = spec.operator_name.partition("/")[2]
    return Mutant(str(spec.module_path.relative_to(ROOT)), at + 1, name, old[at].strip(), new[at].strip(), code)


def copy_tree(folder: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)


class Outcome(Enum):
    """What the tests make of a mutant."""

    NOTICED = "noticed"
    ENDLESS = f"noticed, or the tests take longer than {TIMEOUT_SECONDS} s here"
    SURVIVED = "SURVIVES"


def outcome_of(mutant: Mutant, python: Path, folder: Path) -> Outcome:
    """Try a mutant in a copy of the tree, and put back what it changed."""
    path = folder / mutant.module
    source = path.read_text(encoding="utf-8")
    path.write_text(mutant.code, encoding="utf-8")
    try:
        outcomes = (outcome_of_run(run, python, folder) for run in mutant.runs)
        return next((outcome for outcome in outcomes if outcome is not Outcome.SURVIVED), Outcome.SURVIVED)
    finally:
        path.write_text(source, encoding="utf-8")


def outcome_of_run(run: Sequence[str], python: Path, folder: Path) -> Outcome:
    """Run tests in a copy of the tree, until one fails."""
    options = ("-x", "-q", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider")
    environment = os.environ | {
        "PYTHONPATH": str(folder), "CI": "true", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"
    }  # fmt: skip
    try:
        done = subprocess.run(
            [python, "-m", "pytest", *options, *run], cwd=folder, env=environment, capture_output=True,
            check=False, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome.ENDLESS
    return Outcome.SURVIVED if done.returncode in {0, _NOTHING_TO_RUN} else Outcome.NOTICED


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants, try them, and print what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the path of the modules to change")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="which runs the tests")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    mutants = [m for spec in drawn_specs(options.count, options.seed, options.only) if (m := mutant_of(spec))]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as workers:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.workers):
            copy_tree(Path(folder) / str(number))
            copies.put(Path(folder) / str(number))

        def tried(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return outcome_of(mutant, options.python.absolute(), copy)
            finally:
                copies.put(copy)

        survivors, explained, endless = [], 0, 0
        for mutant, outcome in zip(mutants, workers.map(tried, mutants), strict=True):
            survives = outcome is Outcome.SURVIVED
            reason = reason_of(mutant.module, mutant.before, mutant.after) if survives else None
            explained += reason is not None
            endless += outcome is Outcome.ENDLESS
            if survives and reason is None:
                survivors.append(mutant)
            verdict = f"makes no difference: {reason}" if reason else outcome.value
            sys.stdout.write(f"{mutant}\n    {verdict}\n")
            sys.stdout.flush()
    killed = len(mutants) - explained - len(survivors)
    result = {
        "seed": options.seed, "mutants": len(mutants), "noticed": killed, "of these by time": endless,
        "equivalent": explained,
        "survivors": [f"{mutant.module}:{mutant.line}" for mutant in survivors],
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
