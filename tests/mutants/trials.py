"""A mutant meets tests: which of them run its line, and what they say of it in a copy of the tree."""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hypothesis.strategies  # noqa: F401 - loaded once, for every process that tries a mutant
import numpy as np  # noqa: F401
import pyarrow.compute  # noqa: F401
import pytest

from tests.mutants.changes import Mutant
from tests.mutants.covering import MUTATED, PACKAGE, ROOT
from tests.mutants.equivalent import reason_of

COPIED: Final = (PACKAGE, "tests", "conf", "docs", "pyproject.toml", "README.md")
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


def cover(path: Path) -> None:
    """Write which tests run which lines: those that the file lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.mutants.covering")
    command = [sys.executable, "-m", "pytest", *options, f"--covering={path}", "-m", NO_JVM, *TESTED]
    status = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, check=False).returncode
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit("the tests fail without a mutant")


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
