"""Changes one line of what decides at a time and asks whether its tests notice: ``make mutants COUNT=60 SEED=1``.

Cosmic Ray says which changes there are: another operator, comparison or number, a condition negated, a decorator
removed. A seeded sample of them is drawn, a place in the code first and then a change there, so that a place where
many changes are possible is not drawn more often. Each mutant meets, in a copy of the tree, the tests of `make test`
without a JVM that run the changed line, the quickest first, until one fails. `tests.mutants.covering` says which these
are: it is asked once for the code as it is. A mutant that all of them pass is a survivor: a test is
missing, or the change makes no difference and stands with its reason in `tests.mutants.equivalent`.

What is found is appended to ``build/mutants/SEED.jsonl``. A run that was stopped goes on there; ``--again`` tries the
survivors once more, by all tests that run their line, the dearest too. The last line is JSON; the exit status is 0 if
no survivor is without a reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies  # noqa: F401 - loaded once, for every process that tries a mutant
import numpy as np  # noqa: F401
import pyarrow.compute  # noqa: F401
import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_item import MutationSpec

from tests.mutants.covering import MUTATED, PACKAGE, ROOT
from tests.mutants.equivalent import reason_of

COPIED: Final = (PACKAGE, "tests", "conf", "docs", "pyproject.toml", "README.md")
FOLDER: Final = ROOT / "build" / "mutants"
NO_JVM: Final = "not jvm and not kafka and not wide and not thorough"
TESTED: Final = (
    *(f"{PACKAGE}/{name}" for name in MUTATED), *(f"tests/{name}" for name in MUTATED),
    "tests/life/test_written_lives.py", "tests/life/test_steady_service.py", "tests/life/test_laws.py",
    "tests/life/test_laws_of_fairness.py", "tests/public_cases", "tests/what_if", "tests/models", "tests/docs",
)  # fmt: skip
"""Where the tests are that may notice."""

MOST_SECONDS: Final = 30
"""CPU seconds of tests that a mutant meets at first; what costs more than these is left out, the dearest first."""

_LOOPS: Final = "a test does not end"
NO_MUTANT: Final = "the change is no program, or the same"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    module: str
    """Path below the root."""

    line: int
    operator: str
    occurrence: int
    """Which of the places is changed that this operator finds in the module."""

    before: str
    after: str

    @property
    def key(self) -> tuple[object, ...]:
        """By what it is known again."""
        return self.module, self.operator, self.occurrence, self.before

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.before}\n    + {self.after}"


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a mutant."""

    mutant: Mutant
    noticed_by: str | None
    """The test that failed; `None` if all passed."""

    tests: int
    """How many tests it was to meet."""

    left_out: int
    """How many more run its line and cost too much."""

    @classmethod
    def read(cls, line: str) -> Found:
        """Read a line of the file of results."""
        fields = json.loads(line)
        return cls(Mutant(**fields.pop("mutant")), **fields)

    @property
    def reason(self) -> str | None:
        """Why it makes no difference, if it does not."""
        return reason_of(self.mutant.module, self.mutant.before, self.mutant.after)

    @property
    def outcome(self) -> str:
        """In a word, what it is."""
        if self.noticed_by is not None:
            return {_LOOPS: "by time", NO_MUTANT: "no mutant"}.get(self.noticed_by, "noticed")
        return "survives" if self.reason is None else "equivalent"


# ------------------------------------------------------------------------------------------------------ which mutants


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


def drawn_before(count: int, seed: int, only: str) -> list[MutationSpec]:
    """Return what `drawn_changes` drew: to find all changes there are takes as long as to try some."""
    kept = FOLDER / f"drawn-{sources()}-{seed}-{count}-{only.replace('/', '-')}.json"
    if not kept.exists():
        drawn = [
            (str(each.module_path.relative_to(ROOT)), each.operator_name, each.occurrence, each.start_pos, each.end_pos)
            for each in drawn_changes(count, seed, only)
        ]
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(drawn))
    return [MutationSpec(ROOT / path, *rest) for path, *rest in json.loads(kept.read_text())]


def drawn_changes(count: int, seed: int, only: str) -> list[MutationSpec]:
    """Return changes: a place in the code each, and one of the changes that are possible there."""
    modules = [path for name in MUTATED for path in sorted((ROOT / PACKAGE / name).rglob("*.py")) if only in str(path)]
    at: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = defaultdict(list)
    for path in modules:
        ineffective = places_without_effect(path.read_text(encoding="utf-8"))
        for change in changes_of(path):
            if not any(start <= change.start_pos < end for start, end in ineffective):
                at[str(path), change.start_pos].append(change)
    draw = random.Random(seed)
    places = draw.sample(sorted(at), min(count, len(at)))
    return [draw.choice(sorted(at[place], key=lambda each: (each.operator_name, each.occurrence))) for place in places]


def changes_of(path: Path) -> Iterator[MutationSpec]:
    """Yield all changes of a module that Cosmic Ray knows."""
    nodes = list(ast_nodes(get_ast_from_path(path)))
    for name in operator_names():
        kind = get_operator(name)
        if not kind.arguments():
            operator = kind()
            places = [place for node in nodes for place in operator.mutation_positions(node)]
            for occurrence, (start, end) in enumerate(places):
                yield MutationSpec(path, name, occurrence, start, end)


def mutant_of(change: MutationSpec) -> tuple[Mutant, str | None]:
    """Return the mutant of a change with the whole module's code; `None` where that does the same, or is no code."""
    source = change.module_path.read_text(encoding="utf-8")
    code = mutate_code(source, get_operator(change.operator_name)(), change.occurrence)
    old, new = source.splitlines(), (code or source).splitlines()
    line = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    at = change.start_pos[0] - 1 if line is None else line
    module, name = str(change.module_path.relative_to(ROOT)), change.operator_name.partition("/")[2]
    mutant = Mutant(module, at + 1, name, change.occurrence, old[at].strip(), new[at].strip())
    try:
        is_other = code is not None and ast.dump(ast.parse(code)) != ast.dump(ast.parse(source))
    except SyntaxError:
        is_other = False
    return mutant, code if is_other else None


# --------------------------------------------------------------------------------------------------------- which tests


class Covered:
    """Which tests run which lines, and what they cost."""

    def __init__(self, path: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for told in map(json.loads, path.read_text().splitlines()):
            self.seconds[told["test"]] = told["seconds"]
            for module, lines in told["lines"].items():
                for line in lines:
                    self._tests[module][line].add(told["test"])

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the changed statement, the quickest first.

        What runs as the module is loaded concerns all that use the module.
        """
        lines = self._tests[mutant.module]
        first, last = statement_at((ROOT / mutant.module).read_text(encoding="utf-8"), mutant.line)
        tests = set[str]().union(*(lines[line] for line in range(first, last + 1) if line in lines))
        tests = tests or set[str]().union(*lines.values())
        return sorted(tests, key=lambda test: (self.seconds[test], test))

    def affordable(self, tests: Sequence[str], most_seconds: float) -> list[str]:
        """Return as many of the tests, in their order, as cost so much."""
        spent, some = 0.0, list[str]()
        for test in tests:
            spent += self.seconds[test]
            if some and spent > most_seconds:
                break
            some.append(test)
        return some


def statement_at(source: str, line: int) -> tuple[int, int]:
    """Return the first and the last line of the innermost statement at a line; of one with a body, of its head."""
    first, last = line, line
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if line <= max(end, node.lineno):
                first, last = node.lineno, max(end, node.lineno)
    return first, last


def sources() -> str:
    """Return a name for the code as it is: lines that tests ran in other code are of no use."""
    digest = hashlib.sha256()
    for path in sorted(path for name in MUTATED for path in (ROOT / PACKAGE / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def cover(path: Path) -> None:
    """Write which tests run which lines: those that the file lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.mutants.covering")
    command = [sys.executable, "-m", "pytest", *options, f"--covering={path}", "-m", NO_JVM, *TESTED]
    status = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False).returncode
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit("the tests fail without a mutant")


# ------------------------------------------------------------------------------------------------------------- a trial

ENVIRONMENT: Final = {"PYTHONPATH": str(ROOT), "CI": "true", "OMP_NUM_THREADS": "1"}


class Trial:
    """The tests that a mutant meets, as a plugin of pytest."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the tests that are asked for, in their order."""
        order = {test: number for number, test in enumerate(self.seconds)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the test that fails."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def try_in(copy: Path, seconds: dict[str, float], answer: Path) -> None:
    """Run tests in a copy of the tree until one fails, in a process that does nothing else, and write which."""
    out = os.open(copy / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", PACKAGE}]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(each for each in sys.path if each not in {"", str(ROOT)})]
    os.chdir(copy)
    os.environ.update(ENVIRONMENT | {"PYTHONPATH": str(copy)})
    most = int(10 + sum(seconds.values()))  # they were counted while their lines were noted, which takes longer
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    trial = Trial(seconds)
    files = dict.fromkeys(test.partition("::")[0] for test in seconds)
    loaded_before = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    options = ("-x", "-q", "-n0", "-p", "no:randomly", "-p", "no:cacheprovider", *loaded_before, "-m", NO_JVM)
    status = pytest.main([*options, *files], plugins=[trial])
    answer.write_text(json.dumps({"status": int(status), "test": trial.failed}))
    os._exit(0)


class Copies:
    """Copies of the tree, in each of which a mutant at a time is tried."""

    def __init__(self, folder: Path, count: int, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._free = [folder / str(number) for number in range(count)]
        self._busy: dict[int, tuple[Path, Mutant, list[str], int]] = {}
        self._clock = 0
        for copy in self._free:
            copy_tree(copy)

    def start(self, mutant: Mutant, code: str, tests: Sequence[str], covered: Covered) -> Iterator[Found]:
        """Try a mutant, when a copy is free; yield what was found until then."""
        while not self._free:
            yield self._ended()
        copy, some = self._free.pop(), covered.affordable(tests, self._most_seconds)
        self._write(copy / mutant.module, code)
        seconds = {test: covered.seconds[test] for test in some}
        process = os.fork()
        if process == 0:
            try:
                try_in(copy, seconds, copy / "answer")
            except BaseException:  # noqa: BLE001 - whatever ends it is told in the file of its output
                traceback.print_exc()
                os._exit(1)
        self._busy[process] = copy, mutant, some, len(tests) - len(some)

    def rest(self) -> Iterator[Found]:
        """Yield what is found of those that are being tried."""
        while self._busy:
            yield self._ended()

    def _ended(self) -> Found:
        process, status = os.wait()
        copy, mutant, tests, left_out = self._busy.pop(process)
        self._write(copy / mutant.module, (ROOT / mutant.module).read_text(encoding="utf-8"))
        self._free.append(copy)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return Found(mutant, _LOOPS, len(tests), left_out)
        if status:
            raise AssertionError(f"the tests end with {status}: {(copy / 'pytest.log').read_text()[-2000:]}")
        answer = json.loads((copy / "answer").read_text())
        (copy / "answer").unlink()
        if answer["status"] == pytest.ExitCode.OK:
            return Found(mutant, None, len(tests), left_out)
        if answer["status"] == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise AssertionError(f"no test of {tests} is in {copy}")
        return Found(mutant, answer["test"] or "it cannot be loaded", len(tests), left_out)

    def _write(self, path: Path, code: str) -> None:
        """Write a module, with a time of change that no version of it had: a compiled one would be taken for it."""
        path.write_text(code, encoding="utf-8")
        self._clock += 1
        os.utime(path, (self._clock, self._clock))


def copy_tree(folder: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)


# ------------------------------------------------------------------------------------------------------------- the run


def try_all(
    changes: Sequence[MutationSpec],
    covered: Covered,
    known: dict[tuple[object, ...], Found],
    workers: int,
    most_seconds: float,
) -> Iterator[Found]:
    """Yield what is found of each change that makes a mutant, whether it was known or is tried now."""
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in {each.module_path for each in changes}}
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(Path(folder), workers, most_seconds)
        for change in changes:
            module, name = str(change.module_path.relative_to(ROOT)), change.operator_name.partition("/")[2]
            before = lines[change.module_path][change.start_pos[0] - 1].strip()
            key = module, name, change.occurrence, before
            if key in known:
                yield known[key]
                continue
            mutant, code = mutant_of(change)
            if code is None:
                yield Found(mutant, NO_MUTANT, 0, 0)
            elif tests := covered.tests_of(mutant):
                yield from copies.start(mutant, code, tests, covered)
            else:
                yield Found(mutant, None, 0, 0)
        yield from copies.rest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants, try them, and print what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the path of the modules to change")
    parser.add_argument("--again", action="store_true", help="try again what survived before")
    parser.add_argument("--covering", type=Path, help="which tests run which lines, as an earlier run has found out")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    covering = options.covering or FOLDER / f"covering-{sources()}.jsonl"
    if options.covering is None:
        cover(covering)
    results = FOLDER / f"{options.seed}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    found = [Found.read(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {each.mutant.key: each for each in found}
    most_seconds = float("inf") if options.again else MOST_SECONDS
    if options.again:
        known = {key: each for key, each in known.items() if each.outcome != "survives"}
    changes = drawn_before(options.count, options.seed, options.only)
    counted, survivors = Counter[str](), []
    for each in try_all(changes, Covered(covering), known, options.workers, most_seconds):
        counted[each.outcome] += 1
        if each.mutant.key not in known:
            with results.open("a") as out:
                out.write(json.dumps(asdict(each)) + "\n")
            _say(f"{each.mutant}\n    {each.reason or each.noticed_by or f'SURVIVES {each.tests} tests'}")
        if each.outcome == "survives":
            survivors.append(f"{each.mutant.module}:{each.mutant.line}")
    told: dict[str, Any] = {
        "seed": options.seed,
        "mutants": sum(counted.values()) - counted.pop("no mutant", 0),
        **counted,
        "survivors": survivors,
    }
    _say(json.dumps(told))
    return int(bool(survivors))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
