"""Pages that say what catches a fault name tests, laws, invariants, guards and mends that exist, and all of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.names import make_targets
from tests.life.life import LAW_NAMES
from tests.life.mends import MENDS
from tests.models.faults import OF_BATCHES, OF_LEASES
from tests.models.promises import OF_BATCHES as PROMISES_OF_BATCHES
from tests.models.promises import OF_LEASES as PROMISES_OF_LEASES
from tests.sessions import ROOT

FAULTS = ROOT / "tests" / "WHAT_WENT_WRONG.md"
CASES = ROOT / "tests" / "public_cases" / "README.md"
KINDS = {
    "law": frozenset(LAW_NAMES),
    "mend": frozenset(mend.name for mend in MENDS),
    "invariant": frozenset({*PROMISES_OF_BATCHES, *PROMISES_OF_LEASES}),
    "guard": frozenset({*OF_BATCHES, *OF_LEASES}),
}
_NAMED = re.compile(rf"\b({'|'.join(KINDS)}) `([^`]+)`")
_CATCH = re.compile(rf"(?:(?:{'|'.join(KINDS)}) )?`[^`]+`")
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+#\d+|SPARK-\d+")


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(_TEST.findall(path.read_text()))


def rows() -> list[tuple[str, str]]:
    """Return what went wrong and what catches it, line by line."""
    _, _, tables = FAULTS.read_text().partition("\n## ")
    cells = (line.strip("| ").rsplit(" | ", 1) for line in tables.splitlines() if line.startswith("| "))
    return [(went, catches) for went, catches in cells if catches != "what catches it now"]


def test_each_fault_has_something_that_catches_it_and_that_is_there() -> None:
    wrong = []
    for went, catches in rows():
        found = _CATCH.findall(catches)
        assert ", ".join(found) == catches, went
        for catch in found:
            kind, _, name = catch.partition(" `")
            if kind in KINDS:
                is_there = name.rstrip("`") in KINDS[kind]
            elif catch.startswith("`make "):
                is_there = catch.strip("`").split()[1] in make_targets()
            else:
                path, _, test = catch.strip("`").partition("::")
                is_there = test in functions_of(ROOT / path)
            wrong += [] if is_there else [catch]
    assert wrong == []


def test_no_line_stands_twice() -> None:
    faults = [went for went, _ in rows()]
    assert len(faults) > 100
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("mend", KINDS["mend"]),
        ("guard", {name for of in (OF_BATCHES, OF_LEASES) for name, fault in of.items() if fault.found}),
    ],
)
def test_every_mend_and_every_guard_that_a_fault_left_has_a_line(kind: str, names: set[str]) -> None:
    written = {name for _, catches in rows() for found, name in _NAMED.findall(catches) if found == kind}
    assert names - written == set()


def test_tests_of_public_cases_exist_and_each_case_is_named_in_one() -> None:
    everywhere = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    applies, _, _ = CASES.read_text().partition("\n## What does not apply")
    named = set(re.findall(r"`(test_\w+)`", applies))
    assert len(named) > 20
    assert named - {name for path in everywhere for name in functions_of(path)} == set()
    files = set(re.findall(r"`(test_\w+\.py)`", applies))
    assert [name for name in files if not (CASES.parent / name).is_file()] == []
    texts = "\n".join(everywhere.values())
    for line in applies.splitlines():
        case = _ADDRESS.search(line.partition(" | ")[0])
        if case is not None and not case[0].startswith("SPARK"):
            repository, _, number = case[0].partition("#")
            assert re.search(rf"{re.escape(repository)}(/(issues|pull)/|#){number}\b", texts), case[0]
