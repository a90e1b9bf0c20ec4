"""What is said to make no difference is about code that there is."""

from __future__ import annotations

from tests.mutants.equivalent import EQUIVALENT
from tests.sessions import ROOT


def test_each_line_that_a_reason_is_about_stands_in_its_module() -> None:
    for module, before, after in EQUIVALENT:
        lines = [line.strip() for line in (ROOT / module).read_text().splitlines()]
        assert before in lines, f"{module} has no line {before!r}: the mutant {after!r} is gone, and so is its reason"
