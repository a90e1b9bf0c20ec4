"""Docstrings of attributes, as they are written.

Napoleon takes what their first line has before a colon for a type, and moves it below the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_TYPE = ":type: "
_AFTER_NAPOLEON = 600


def put_back(_app: object, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Put the words that were moved back to the beginning; Sphinx reads the changed lines.

    Examples
    --------
    >>> lines = ["the members live in one thread.", "", ":type: One"]
    >>> put_back(None, "property", "reads_at_once", None, None, lines)
    >>> lines
    ['One: the members live in one thread.', '']
    """
    if what not in ("attribute", "data", "property"):
        return
    moved = [at for at, line in enumerate(lines) if line.startswith(_TYPE)]
    if moved:
        lines[0] = f"{lines.pop(moved[-1]).removeprefix(_TYPE)}: {lines[0]}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx to call `put_back`."""
    app.connect("autodoc-process-docstring", put_back, priority=_AFTER_NAPOLEON)
    return {"parallel_read_safe": True}
