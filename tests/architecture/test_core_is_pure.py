"""The core computes: no Spark, no clock, no I/O. import-linter reads the imports; this runs and reads the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "spark_throttle"
CORE = [*sorted((PACKAGE / "core").rglob("*.py")), *sorted((PACKAGE / "errors").rglob("*.py"))]
HEAVY = {"delta", "deltalake", "pandas", "py4j", "pydantic", "pyspark", "yaml"}
"""What loading the core must not load."""

FORBIDDEN_MODULES = (
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.flight",
    "pyarrow.fs",
    "pyarrow.json",
    "pyarrow.parquet",
)
"""What import-linter cannot forbid: parts of a package that the core may import."""

FORBIDDEN_CALLS = {"breakpoint", "exec", "eval", "hash", "id", "input", "open", "print"}
"""I/O, and values that differ from one process to the next."""

FORBIDDEN_ATTRIBUTES = {
    "np.fromfile", "np.load", "np.loadtxt", "np.memmap", "np.random", "np.save", "np.savetxt", "np.savez",
    "np.datetime64", "pa.OSFile", "pa.memory_map", "pa.input_stream", "pa.output_stream",
    "time.monotonic", "time.perf_counter", "time.sleep", "time.time", "time.time_ns", "datetime.now",
}  # fmt: skip
"""As they would be written after `import numpy as np` and `import pyarrow as pa`."""

DIVIDES_FRACTIONS = {"units.py"}
"""Modules whose `/` divides `fractions.Fraction`, which is exact."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loaded_by(modules: list[str]) -> set[str]:
    """Return the top-level names of what a fresh interpreter has loaded after importing `modules`."""
    statements = ["import sys", *(f"import {name}" for name in modules), "print(*sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "; ".join(statements)], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def imports(tree: ast.AST) -> set[str]:
    """Return the dotted name of all that a module imports, `from a import b` as `a.b`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_core_is_not_empty() -> None:
    assert len(CORE) > 5


@pytest.mark.slow
def test_importing_the_core_loads_neither_spark_nor_pandas() -> None:
    assert not loaded_by([module_name(path) for path in CORE]) & HEAVY


def test_importing_the_package_starts_no_jvm_library() -> None:
    assert not loaded_by(["spark_throttle"]) & {"delta", "pandas", "py4j", "pyspark"}


@pytest.mark.parametrize("path", CORE, ids=module_name)
def test_core_module_uses_nothing_that_reads_a_clock_or_a_file(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {name for name in imports(tree) if name.startswith(FORBIDDEN_MODULES)}
    called = {
        node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    } & FORBIDDEN_CALLS
    touched = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    } & FORBIDDEN_ATTRIBUTES
    assert (imported, called, touched) == (set(), set(), set())


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=module_name)
def test_core_module_computes_in_whole_numbers(path: Path) -> None:
    """No float in a decision: no float literal, no true division, no float type."""
    tree = ast.parse(path.read_text())
    literals = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, float)}
    operations = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign)]
    divisions = {
        node.lineno for node in operations if isinstance(node.op, ast.Div) and path.name not in DIVIDES_FRACTIONS
    }
    types = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & {"float16", "float32", "float64"}
    assert (literals, divisions, types) == (set(), set(), set())


@pytest.mark.parametrize("path", CORE, ids=module_name)
def test_core_sorts_keys_that_may_be_equal_in_one_order_on_every_processor(path: Path) -> None:
    """NumPy's default order of equal keys depends on what the processor can do, and a batch may run again elsewhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"np.argsort", "np.argpartition"}:
            assert [keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "'stable'"] == ["kind"]
