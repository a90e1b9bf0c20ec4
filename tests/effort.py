"""How much of a costly test every run makes, the same each time: `make search` or `make test-all` make all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import product
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")

IS_SEARCH: Final = os.environ.get("HYPOTHESIS_PROFILE") == "search"
_TIMES_IN_A_SEARCH: Final = 10


def examples(count: int, *, in_search: int | None = None) -> settings:
    """Return the settings of a property whose examples are costly: so many in every run, ten times that in a search.

    Examples
    --------
    >>> examples(5).max_examples in {5, 50}
    True
    """
    most = _TIMES_IN_A_SEARCH * count if in_search is None else in_search
    return settings(max_examples=most if IS_SEARCH else count)


def first_of(count: int, cases: Iterable[Case]) -> list[Case]:
    """Return the cases of a test that is costly: in a search all, in every run so many of them.

    Examples
    --------
    >>> [] if IS_SEARCH else first_of(2, "abc")
    ['a', 'b']
    """
    return list(cases)[: None if IS_SEARCH else count]


def thorough_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a test that is costly: those after the first so many are marked `thorough`.

    Examples
    --------
    >>> thorough_after(1, ["a", "b"])[0], len(thorough_after(1, ["a", "b"]))
    ('a', 2)
    """
    return [case if number < count else _thorough(case) for number, case in enumerate(cases)]


def _thorough(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.thorough)


def crossed(*axes: Iterable[Any], of: int) -> list[tuple[Any, ...]]:
    """Return the combinations of all values: in a search all, in every run one `of` so many.

    Where each axis but one has `of` values or more, each value is in some of them.

    Examples
    --------
    >>> [] if IS_SEARCH else crossed("abc", (1, 2), of=2)
    [('a', 1), ('b', 2), ('c', 1)]
    """
    numbered = product(*(enumerate(axis) for axis in axes))
    kept = (pairs for pairs in numbered if IS_SEARCH or sum(at for at, _ in pairs) % of == 0)
    return [tuple(value for _, value in pairs) for pairs in kept]
