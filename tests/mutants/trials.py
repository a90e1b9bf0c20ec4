"""A mutant meets tests: those of its line, most likely to notice first.

All tests are collected once, in a session of pytest that runs none: a process that is forked from it has everything
loaded, gets the mutant, and runs tests until one fails. What takes effect as a module is loaded has a process that
begins anew (`tests.mutants.changed`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.changed import MUTANT, change_functions
from tests.mutants.changes import Mutant
from tests.mutants.covering import MUTATED, PACKAGE, ROOT, Covered, noting_lines
from tests.mutants.equivalent import reason_of

NO_JVM: Final = "not jvm and not kafka and not wide and not thorough"
_LIFE: Final = (
    "late_costs", "late_costs_of_a_job", "laws", "laws_of_budgets", "laws_of_fairness", "laws_of_guarantees",
    "limits_of_a_job", "put_back_with_sinks", "runs_of_one_job", "simulated_exchange", "simulated_job",
    "steady_service", "written_lives",
)  # fmt: skip
TESTED: Final = (
    *(f"{PACKAGE}/{name}" for name in MUTATED), *(f"tests/{name}" for name in MUTATED),
    *(f"tests/life/test_{name}.py" for name in _LIFE),
    *(f"tests/models/test_{name}.py" for name in ("batches", "leases", "seen_batches")),
    *(f"tests/spark/move/test_{name}.py" for name in ("left_rows", "reserved_rows")),
    "tests/public_cases", "tests/what_if", "tests/docs",
)  # fmt: skip
"""Where the tests are that may notice."""

OPTIONS: Final = ("-q", "-n0", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", "-m")
ENVIRONMENT: Final = {"PYTHONPATH": str(ROOT), "CI": "true", "OMP_NUM_THREADS": "1"}
NO_MUTANT: Final = "the change is no program, or the same"
_LOOPS: Final = "a test does not end"
_SETUP_SECONDS: Final = 0.004
"""What a test costs beside its call."""

_LONGEST_SECONDS: Final = 60
"""What a test costs at most."""

_SLOW_SECONDS: Final = 0.5
"""What a slow test costs of which nothing is known."""

_MEETINGS: Final = 0.05
"""How likely a test notices that has noticed nothing yet, counted in mutants of the module."""


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

    seconds: float = 0
    """The CPU time of the trial."""

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


class Trials:
    """A session of pytest that collects all tests, and lets mutants meet them in processes of their own.

    Parameters
    ----------
    run
        What to do once the tests are collected.
    is_quick
        Whether to leave out the tests that are marked `slow`.
    """

    def __init__(self, covering: Path, run: Callable[[Trials], None], *, is_quick: bool = False) -> None:
        self.covered = Covered(covering)
        self._marks = f"{NO_JVM} and not slow" if is_quick else NO_JVM
        self._run = run
        self._items: dict[str, pytest.Item] = {}
        self._slow: list[str] = []
        self._spent: dict[str, float] = {}
        """What tests cost that passed in this process."""

        self._noticed: Counter[tuple[str, str]] = Counter()
        self._failed: str | None = None

    def begin(self) -> int:
        """Collect the tests, and do what there is to do."""
        os.environ.update(ENVIRONMENT)
        return int(pytest.main([*OPTIONS, self._marks, *TESTED], plugins=[self]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what is to be run in place of the tests."""
        self._items = {item.nodeid: item for item in session.items}
        self._slow = [item.nodeid for item in session.items if item.get_closest_marker("slow") is not None]
        self._run(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the test that fails."""
        if report.failed and self._failed is None:
            self._failed = report.nodeid

    # ------------------------------------------------------------------------------------------- which tests are near

    def cover(self) -> None:
        """Find out which quick tests run which lines, where it is not known yet.

        A slow test runs most lines of what it is about, and to note them costs more than to let it meet some mutants.
        """
        unknown = [test for test in self._items if test not in {*self.covered.seconds, *self._slow}]
        if unknown:
            failed = self._fork(lambda: self._note_lines(unknown), most_seconds=100_000)[1]
            if failed is not None:
                sys.exit(f"without a mutant {failed} fails")
            self.covered = Covered(self.covered.path)

    def _note_lines(self, tests: Sequence[str]) -> None:
        for test, after in zip(tests, [*tests[1:], None], strict=True):
            begun = time.process_time()
            with noting_lines() as lines:
                self._protocol(test, after)
            if self._failed is not None:
                break
            self.covered.note(test, begun, lines)

    def near(self, mutant: Mutant) -> list[str]:
        """Return the tests that run a mutant's line, or its function, in the order of their cost by their chance."""
        surely, perhaps = (each & self._items.keys() for each in self.covered.tests_at(mutant.module, mutant.line))

        path = Path(mutant.module)
        package = path.parts[1]

        def price(test: str) -> tuple[float, str]:
            chance = _MEETINGS + self._noticed[mutant.module, test] + self._noticed[package, test] / 4
            file = Path(test.partition("::")[0])
            if test not in surely:
                chance /= 2 if file.parts[1:-1] == path.parts[1:-1] else 8
            return self._cost(test) / chance / (4 if path.stem in file.stem else 1), test

        perhaps |= {
            test for test in self._slow if test.split("/")[1] in {package, "life", "models", "public_cases", "spark"}
        }
        return sorted(surely | perhaps, key=price)

    def _cost(self, test: str) -> float:
        return self.covered.seconds.get(test, _SLOW_SECONDS) + _SETUP_SECONDS

    def learn(self, found: Found) -> None:
        """Take in what was found of a mutant: who noticed one is likely to notice the next of its module."""
        if found.noticed_by is not None:
            self._noticed[found.mutant.module, found.noticed_by] += 1
            self._noticed[found.mutant.module.split("/")[1], found.noticed_by] += 1

    # --------------------------------------------------------------------------------------------------- one mutant

    def attempt(self, mutant: Mutant, code: str, most_seconds: float) -> Found:
        """Let a mutant meet the tests that are near, until one fails or they cost too much."""
        near = self.near(mutant)
        is_done, failed, spent, met = not near, None, 0.0, dict[str, float]()
        if near:
            longest = _LONGEST_SECONDS + most_seconds
            is_done, failed, spent, met = self._fork(lambda: self._meet(mutant, code, near, most_seconds), longest)
        if not is_done:
            met = dict.fromkeys(self._within(near, most_seconds), 0.0)
            failed, spent = self._begin_anew(mutant, code, list(met), _LONGEST_SECONDS + 2 * most_seconds)
        self.covered.seconds.update((test, each) for test, each in met.items() if test in self._slow and each)
        found = Found(mutant, failed, len(met), len(near) - len(met), round(spent, 2))
        self.learn(found)
        return found

    def _meet(self, mutant: Mutant, code: str, tests: Sequence[str], most_seconds: float) -> bool:
        if not change_functions(mutant.module, code):
            return False
        for each in gc.get_objects():
            if isinstance(each, functools._lru_cache_wrapper):
                each.cache_clear()
        rest, test = iter(tests[1:]), tests[0]
        while True:
            begun, left = time.process_time(), most_seconds - sum(self._spent.values()) - self._cost(test)
            after = next((each for each in rest if self._cost(each) <= left), None)  # a dear one makes room for none
            self._protocol(test, after)
            if self._failed is not None:
                return True
            self._spent[test] = time.process_time() - begun
            if after is None:
                return True
            test = after

    def _within(self, tests: Sequence[str], most_seconds: float) -> Iterator[str]:
        """Yield tests as long as they cost no more; a dear one makes no room for cheap ones."""
        spent = 0.0
        for test in tests:
            if spent == 0 or spent + self._cost(test) <= most_seconds:
                spent += self._cost(test)
                yield test

    def _protocol(self, test: str, after: str | None) -> None:
        item, following = self._items[test], None if after is None else self._items[after]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _fork(
        self, run: Callable[[], bool | None], most_seconds: float
    ) -> tuple[bool, str | None, float, dict[str, float]]:
        """Do something in a process of its own.

        Return whether it was done, the test that failed, the CPU time, and that of each test that passed.
        """
        with tempfile.TemporaryDirectory() as folder:
            answer, log = Path(folder, "answer"), Path(folder, "log")
            process = os.fork()
            if process == 0:
                self._in_the_fork(run, answer, log, int(most_seconds))
            _, status, usage = os.wait4(process, 0)
            spent = usage.ru_utime + usage.ru_stime
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
                return True, _LOOPS, spent, {}
            if status:
                raise AssertionError(f"the tests end with {status}: {log.read_text()[-2000:]}")
            is_done, failed, met = json.loads(answer.read_text())
            return is_done, failed, spent, met

    def _in_the_fork(self, run: Callable[[], bool | None], answer: Path, log: Path, most_seconds: int) -> None:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (most_seconds, most_seconds))
        try:
            is_done = run() is not False
            answer.write_text(json.dumps([is_done, self._failed, self._spent]))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - whatever ends it is told in the file of its output
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def _begin_anew(
        self, mutant: Mutant, code: str, tests: Sequence[str], most_seconds: float
    ) -> tuple[str | None, float]:
        """Let a process that loads the mutant run the tests."""
        with tempfile.TemporaryDirectory() as folder:
            changed, order = Path(folder, "mutant"), Path(folder, "tests")
            changed.write_text(json.dumps([mutant.module, code]))
            order.write_text(json.dumps(list(tests)))
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            plugins = ("-p", "tests.mutants.changed", "-p", "tests.mutants.in_order")
            command = [
                sys.executable,
                "-m",
                "pytest",
                *plugins,
                f"--in-order={order}",
                "-x",
                *OPTIONS,
                self._marks,
                *files,
            ]
            most = int(most_seconds)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | {MUTANT: str(changed)}, check=False, capture_output=True, text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most, most)),
            )  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            failed = None
            with contextlib.suppress(OSError):
                failed = order.with_suffix(".failed").read_text()
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return _LOOPS, spent
        if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise AssertionError(f"none of {tests} is there: {done.stdout[-2000:]}")
        if done.returncode != pytest.ExitCode.OK:
            return failed or "it cannot be loaded", spent
        return None, spent
