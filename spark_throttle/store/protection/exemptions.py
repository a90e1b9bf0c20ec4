"""What is exempt at one moment, and the names that an entry may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_throttle.core.names.globs import covers, is_glob
from spark_throttle.store.store import Kind


class Exemptions:
    """The names and globs that are exempt at one moment.

    Examples
    --------
    >>> exempt = Exemptions(["acme/*", "blue/x"])
    >>> exempt.covers("acme/a*"), exempt.covers("blue/x"), exempt.covers("blue/*")
    (True, True, False)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._globs = [name for name in self._names if is_glob(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def covers(self, name: str) -> bool:
        """Return whether a name, or each name that a glob matches, is exempt by one of them."""
        return name in self._names or any(covers(glob, name) for glob in self._globs)


def names_of(kind: Kind, name: str) -> tuple[str, ...]:
    """Return the names and globs that stand for all names that an entry may hold.

    Examples
    --------
    >>> names_of("tenant", "acme")
    ('acme', 'acme/*')
    """
    return {"tenant": (name, f"{name}/*"), "defaults": ("*",), "job": ("*",)}.get(kind, (name,))
