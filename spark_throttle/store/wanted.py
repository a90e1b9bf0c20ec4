"""Work on a store goes on only while somebody waits for its result.

Who works for a caller says how to find out whether that is so (`while_wanted`), for everything that the same thread or
task does. What reads or judges many entries asks on the way (`check_wanted`), and gives up where nobody waits. Nothing
has been changed then: a commit is asked about before it begins, and never while it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from spark_throttle.errors import UnwantedError


def _always() -> bool:
    return True


_is_wanted: ContextVar[Callable[[], bool]] = ContextVar("_is_wanted", default=_always)


@contextmanager
def while_wanted(is_wanted: Callable[[], bool] = _always) -> Iterator[None]:
    """Return a context in which work goes on only while `is_wanted` returns true; by default it always goes on.

    Examples
    --------
    >>> with while_wanted(lambda: False):
    ...     check_wanted()
    Traceback (most recent call last):
    ...
    spark_throttle.errors.UnwantedError: nobody waits any more for what takes so long, and nothing was changed; \
ask for less: a page, or fewer entries
    """
    token = _is_wanted.set(is_wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)


def check_wanted() -> None:
    """Give up what nobody waits for.

    Raises
    ------
    UnwantedError
        If the caller has left, or its time is up.
    """
    if not _is_wanted.get()():
        raise UnwantedError
