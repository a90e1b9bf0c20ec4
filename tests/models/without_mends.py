"""Takes a mend of `tests.life.mends` back in this process, for as long as a test runs: functions get other code."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.life.mends import MENDS
from tests.life.taken_back import ROOT


def take_back(name: str, patch: pytest.MonkeyPatch) -> None:
    """Let the package be as it was without a mend."""
    (mend,) = [each for each in MENDS if each.name == name]
    for file, with_it, without_it in mend.changes:
        text = (ROOT / "spark_throttle" / file).read_text(encoding="utf-8")
        module = importlib.import_module(f"spark_throttle.{file.removesuffix('.py').replace('/', '.')}")
        codes = dict(_codes(compile(text.replace(with_it, without_it), file, "exec", dont_inherit=True)))
        for function in _functions(module):
            patch.setattr(function, "__code__", codes[function.__qualname__])


def _codes(code: CodeType, outer: str = "") -> Iterator[tuple[str, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType) and not each.co_name.startswith("<"):
            yield f"{outer}{each.co_name}", each
            yield from _codes(each, f"{outer}{each.co_name}.")


def _functions(place: ModuleType | type[Any]) -> Iterator[FunctionType]:
    module = place.__name__ if isinstance(place, ModuleType) else place.__module__
    for each in vars(place).values():
        found = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        if isinstance(found, FunctionType) and found.__module__ == module and found.__code__.co_filename != "<string>":
            if not found.__code__.co_freevars and not found.__qualname__.startswith("<"):
                yield found
        elif isinstance(found, type) and found.__module__ == module:
            yield from _functions(found)
