"""Lets a module of the package have other code: in this process, or as a plugin of pytest.

In a process that has loaded everything, functions get other code, which costs nothing. What else a change may touch (a
constant, a default, a decorator) takes effect as a module is loaded: for that a process begins anew, and the plugin
gives it the code in the file that `MUTANT` names, as JSON: the module's path below the root, and its text.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from hypothesis.internal.conjecture import engine

ROOT: Final = Path(__file__).parents[2]
MUTANT: Final = "MUTANT"
_OPTIMIZED: Final = inspect.CO_OPTIMIZED


def name_of(module: str) -> str:
    """Return a module's name by its path below the root."""
    return module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def change_functions(module: str, text: str) -> bool:
    """Give the functions of a module, which stays, the code that they have in a text; return whether that is all."""
    path = ROOT / module
    old, new = (compile(each, str(path), "exec", dont_inherit=True) for each in (path.read_text("utf-8"), text))
    if _outside(old) != _outside(new):
        return False
    before, after = dict(_codes(old)), dict(_codes(new))
    changed = {name: code for name, code in after.items() if code != before.get(name)}
    found = list(_functions(importlib.import_module(name_of(module))))
    takes = {each.__qualname__: each for each in found if each.__code__ == before.get(each.__qualname__)}
    engine.MAX_SHRINKS = 0  # which example fails does not matter
    if not changed.keys() <= takes.keys() or any(
        takes[e].__code__.co_freevars != changed[e].co_freevars for e in changed
    ):
        return False
    for name, code in changed.items():
        takes[name].__code__ = code
    return True


def _outside(code: CodeType) -> tuple[Any, ...]:
    """Return what runs as a module or a class is made: without the code of its functions."""
    consts = tuple(
        each
        if not isinstance(each, CodeType) or each.co_name.startswith("<")
        else each.co_qualname
        if each.co_flags & _OPTIMIZED
        else _outside(each)
        for each in code.co_consts
    )
    return code.co_code, code.co_names, consts


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType) and not each.co_name.startswith("<"):
            if each.co_flags & _OPTIMIZED:
                yield each.co_qualname, each
            else:
                yield from _codes(each)


def _functions(place: ModuleType | type[Any]) -> Iterator[FunctionType]:
    module = place.__name__ if isinstance(place, ModuleType) else place.__module__
    for each in vars(place).values():
        parts = (each.fget, each.fset) if isinstance(each, property) else (each,)
        for part in parts:
            inner = part.func if isinstance(part, functools.cached_property) else getattr(part, "__func__", part)
            found = inspect.unwrap(inner) if callable(inner) else inner
            if isinstance(found, FunctionType) and found.__module__ == module:
                yield found
            elif isinstance(found, type) and found.__module__ == module and found is not place:
                yield from _functions(found)


class _Loader(SourceFileLoader):
    """Loads a text in place of a file's."""

    text = ""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the text's code."""
        return compile(self.text, self.get_filename(fullname), "exec", dont_inherit=True)


class _Finder:
    """Finds the changed module before others do."""

    def __init__(self, module: str, text: str) -> None:
        self.name, self.path = name_of(module), str(ROOT / module)
        self.text = text

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> ModuleSpec | None:
        """Return the changed module's."""
        if name != self.name:
            return None
        loader = _Loader(name, self.path)
        loader.text = self.text
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)


if MUTANT in os.environ:
    engine.MAX_SHRINKS = 0
    sys.meta_path.insert(0, _Finder(*json.loads(Path(os.environ[MUTANT]).read_text())))
