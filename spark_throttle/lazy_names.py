"""Names of packages that are loaded when they are first asked for (PEP 562).

A package that users import from names its parts, and a process that needs one module of it does not load the others:
each of Spark's Python workers imports such packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loaded_when_asked(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Parameters
    ----------
    modules
        By name: the module that it is in.

    Examples
    --------
    >>> loaded_when_asked("made.up", {"Fraction": "fractions"})("Fraction")(1, 2)
    Fraction(1, 2)
    """

    def load(name: str) -> Any:  # noqa: ANN401 - whatever stands there
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return load
