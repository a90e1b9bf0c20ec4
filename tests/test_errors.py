"""Every error survives a pickle: Spark's Python workers and the pacer's callers get it from another process."""

from __future__ import annotations

import pickle
from inspect import signature
from typing import Any, Final

import pytest

from spark_throttle import errors
from spark_throttle.errors import ThrottleError

VALUES: Final = {
    "str": "x", "int": 7, "bool": True, "str | None": "y", "int | None": None, "float | None": 2.5,
    "tuple[str, ...]": ("a", "b"), "Iterable[str]": ["a", "b"], "Remedy | None": None,
}  # fmt: skip
"""A value for each type of an argument."""

CLASSES: Final = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_is_the_same_after_a_pickle(kind: type[ThrottleError]) -> None:
    given: dict[str, Any] = {
        name: VALUES[str(parameter.annotation)]
        for name, parameter in list(signature(kind.__init__).parameters.items())[1:]
    }
    error = kind(**given)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))
