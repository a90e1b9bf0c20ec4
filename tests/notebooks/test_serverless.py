"""What serverless compute forbids is not used: the JVM, the context, RDDs, `persist` and triggers that do not end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebooks.cells import NOTEBOOKS, code_cells

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "spark_throttle").rglob("*.py"))

OF_THE_JVM = {"_jvm", "_jdf", "_jsc", "_jsparkSession", "_sc", "sparkContext", "rdd"}
KEEPS_ROWS = {"persist", "cache", "checkpoint", "localCheckpoint"}
NEEDS_A_CLUSTER = {"02_operating.py", "03_several_jobs.py"}
"""Notebooks whose queries run on, by a trigger that serverless compute has not: `docs/install.md` says so."""


def nodes(notebook: Path) -> Iterator[ast.AST]:
    for _, cell in code_cells(notebook):
        yield from ast.walk(ast.parse(cell))


def called(node: ast.AST) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.py")), ids=lambda path: path.stem)
def test_notebook_touches_neither_the_jvm_nor_the_context_and_keeps_no_rows(notebook: Path) -> None:
    found = list(nodes(notebook))
    assert {node.attr for node in found if isinstance(node, ast.Attribute)} & (OF_THE_JVM | KEEPS_ROWS) == set()
    words = {word.arg for node in found if isinstance(node, ast.Call) and called(node) == "trigger" for word in node.keywords}
    triggers = words - {"after_ms"}  # of a `SimulatedJob`
    assert triggers == ({"processingTime"} if notebook.name in NEEDS_A_CLUSTER else {"availableNow"})
    page = (ROOT / "docs" / "install.md").read_text()
    assert (f"`{notebook.name}`" in page) == (notebook.name in NEEDS_A_CLUSTER)


def test_library_keeps_no_rows() -> None:
    """Serverless compute forbids it."""
    keeping = [
        path.name
        for path in LIBRARY
        if any(called(node) in ("persist", "cache") for node in ast.walk(ast.parse(path.read_text())))
    ]
    assert keeping == []
