"""`make test` hands out every module once: those that need a Spark session to two processes, the others to all."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distribution import FewSessions, needs_session

SESSION = [f"tests/integration/test_{name}.py::test_{number}" for name in "abc" for number in range(4)]
OTHERS = [f"tests/core/test_{name}.py::test_{number}" for name in "abcdefgh" for number in range(4)]


@dataclass(eq=False)
class Process:
    """A process of pytest that runs what it is given, one test at a time."""

    given: list[int] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    shutting_down: bool = False
    gateway: Any = field(default_factory=lambda: SimpleNamespace(id="gw"))

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_one(self, scheduler: Any, tests: list[str]) -> None:
        at = self.given.pop(0)
        self.ran.append(tests[at])
        scheduler.mark_test_complete(self, at)


def run(tests: list[str]) -> list[list[str]]:
    """Return the tests that each of four processes runs."""
    config: Any = SimpleNamespace(getvalue=lambda _: ["popen"] * 4, option=SimpleNamespace(loadscopereorder=False))
    scheduler, processes = FewSessions(config), [Process() for _ in range(4)]
    for process in processes:
        scheduler.add_node(process)
    for process in processes:
        scheduler.add_node_collection(process, tests)
    scheduler.schedule()
    while any(process.given for process in processes):
        for process in processes:
            if process.given:
                process.run_one(scheduler, tests)
    assert all(process.shutting_down for process in processes)
    return [process.ran for process in processes]


@pytest.mark.parametrize("tests", [[*SESSION, *OTHERS], SESSION, OTHERS, SESSION[:4], [*OTHERS, *SESSION]])
def test_every_test_runs_once_and_those_with_a_session_in_two_processes(tests: list[str]) -> None:
    ran = run(tests)
    assert sorted(test for each in ran for test in each) == sorted(tests)
    assert not [test for each in ran[2:] for test in each if needs_session(test)]
    modules = [{test.partition("::")[0] for test in each} for each in ran]
    assert sum(map(len, modules)) == len(set().union(*modules)), "a module stays in one process"
