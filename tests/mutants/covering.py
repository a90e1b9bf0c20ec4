"""Which tests run which lines of the packages that decide, and what each test costs.

A line of JSON for each test that passes, in one file, so that a run that was stopped goes on: its CPU seconds, and by
module the lines that it runs. To note each line that runs would cost more than the tests: of a function, lines are
noted in its first calls alone. A line is therefore known to be run by a test, or only its function is.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "spark_throttle"
MUTATED: Final = ("core", "control", "sharing")
"""The packages whose lines decide."""

_CALLS: Final = 8
"""In how many calls of a function its lines are noted."""

_FOLDERS: Final = tuple(f"{ROOT}/{PACKAGE}/{name}/" for name in MUTATED)


@contextmanager
def noting_lines() -> Iterator[dict[str, set[int]]]:
    """Note which lines run meanwhile, by module; of each function that is called, the first line at least."""
    lines: dict[CodeType, set[int]] = {}
    calls: dict[CodeType, int] = defaultdict(int)
    elsewhere: set[CodeType] = set()

    def on_call(frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if code in elsewhere:
            return None
        if code not in lines:
            if not code.co_filename.startswith(_FOLDERS):
                elsewhere.add(code)
                return None
            lines[code] = {code.co_firstlineno}
        calls[code] += 1
        return on_line if calls[code] <= _CALLS else None

    def on_line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            lines[frame.f_code].add(frame.f_lineno)
        return on_line

    found: dict[str, set[int]] = defaultdict(set)
    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        yield found
    finally:
        sys.settrace(None)
        threading.settrace(None)
        for code, some in list(lines.items()):
            found[str(Path(code.co_filename).relative_to(ROOT))] |= some


class Covered:
    """Which tests run which lines, and what they cost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for line in path.read_text().splitlines() if path.exists() else ():
            told = json.loads(line)
            self._take(told["test"], told["seconds"], told["lines"])

    def _take(self, test: str, seconds: float, lines: dict[str, list[int]]) -> None:
        self.seconds[test] = seconds
        for module, some in lines.items():
            for line in some:
                self._tests[module][line].add(test)

    def note(self, test: str, begun: float, lines: dict[str, set[int]]) -> None:
        """Append what a test runs that began at `begun` by the clock of this process."""
        told = {
            "test": test, "seconds": round(time.process_time() - begun, 4),
            "lines": {module: sorted(some) for module, some in sorted(lines.items())},
        }  # fmt: skip
        with self.path.open("a") as out:
            out.write(json.dumps(told, separators=(",", ":")) + "\n")

    def tests_at(self, module: str, line: int) -> tuple[set[str], set[str]]:
        """Return the tests that run a statement, and those that call its function or, outside any, load its module."""
        source = (ROOT / module).read_text(encoding="utf-8")
        lines = self._tests[module]
        first, last = statement_at(source, line)
        surely = set[str]().union(*(lines[each] for each in range(first, last + 1) if each in lines))
        function = function_at(source, line)
        if function is None:
            return surely, set[str]().union(*lines.values())
        heads = range(function[0], function[1] + 1)
        return surely, set[str]().union(*(lines[each] for each in heads if each in lines))


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


def function_at(source: str, line: int) -> tuple[int, int] | None:
    """Return the first line of the innermost function whose body has a line, with its decorators, and the last."""
    found = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (node.end_lineno or node.lineno):
            found = min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or node.lineno
    return found
