"""The page of the Python API has what the other pages use: whatever it lacks counts as internal."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from runpy import run_path
from typing import Final

import pytest

from spark_throttle.spark import Throttle, ThrottledStreamWriter
from spark_throttle.spark.reference_stream import ThrottledStreamReader
from tests.docs.snippets import PAGES
from tests.sessions import ROOT

PAGE: Final = (ROOT / "docs" / "reference-api.md").read_text()
ENTRIES: Final = dict(
    re.findall(r"^\.\. autoapi(?:class|data|function|module):: [\w.]+?(\w+)\n((?:   .*\n)*)", PAGE, re.MULTILINE)
)
"""The options of each class, value, function and module that the page names, by its own name."""

DOORS: Final = sorted(
    set(re.findall(r"^from (spark_throttle\.\S+) import", PAGE, re.MULTILINE)) - {"spark_throttle.errors"}
)
"""The packages from which the page says that names are imported; it has all of the module of errors."""

_BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def imported() -> dict[str, str]:
    """Return what the blocks of all pages import from the library, with the page of each."""
    found: dict[str, str] = {}
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_throttle."):
                    is_error = node.module == "spark_throttle.errors"
                    found |= {"errors" if is_error else alias.name: page.name for alias in node.names}
    return found


@pytest.mark.parametrize("door", DOORS)
def test_page_has_whatever_a_public_package_offers(door: str) -> None:
    assert set(import_module(door).__all__) - set(ENTRIES) == set()


@pytest.mark.parametrize("listed", [Throttle, ThrottledStreamWriter, ThrottledStreamReader])
def test_page_has_every_method_by_which_a_stream_is_throttled(listed: type) -> None:
    assert ":members:\n" in ENTRIES[listed.__name__]  # without a list: all of them


def test_page_has_whatever_a_page_imports_from_the_library() -> None:
    found = imported()
    assert {"Throttle", "HttpSender", "errors"} <= set(found)
    assert {name: page for name, page in found.items() if name not in ENTRIES} == {}


def test_attribute_keeps_what_its_docstring_says_before_a_colon() -> None:
    put_back = run_path(str(ROOT / "docs" / "_ext" / "attributes.py"))["put_back"]
    lines = ["at least those of the table.", "", ":type: The rows in the sink without transactions"]
    put_back(None, "property", "written", None, None, lines)
    assert lines == ["The rows in the sink without transactions: at least those of the table.", ""]
    put_back(None, "property", "written", None, None, lines)
    assert lines[0].count(":") == 1
