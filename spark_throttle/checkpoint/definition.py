"""The definition of a query: what decides a batch in addition to its rows and policies, as text that runs compare.

Policies and shares are pinned in epochs. The expressions of namespace, size and order, the columns of the stream (rows
that are equal in the order are put in order by their hash) and some settings of the session are given again at every
start. They may change between batches. They may not change over a batch that may already be in a sink, because its rows
would be decided differently from those that the sink has.

Expressions are compared as Spark prints them once it has resolved them. Expressions that print alike are taken to be
the same: two Python functions of one name, scalar subqueries that differ in the body, a word in quotes and a column of
that name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Difference: TypeAlias = tuple[str, str, str]
"""The name of what differs, its old text and its new text."""

FUNCTION: Final = "a function"
"""The target of rows that are given to a function, which cannot be asked what it has."""

OWN_SINK: Final = "the query's own sink"
"""The kind of all rows where the user's code writes them."""

NOTHING: Final = "not there"
"""The text for what one of two definitions lacks."""

_LONGEST_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class Definition:
    """What a run of a query decides by, and where it sends its rows.

    Examples
    --------
    >>> old = Definition({"namespace": "ns", "order_by[0]": "id"}, (("id", "bigint"), ("ns", "string")))
    >>> new = Definition({"namespace": "ns", "order_by[0]": "negative(id)"}, old.columns)
    >>> old.differences(new)
    [('order_by[0]', 'id', 'negative(id)')]
    """

    expressions: Mapping[str, str]
    """Texts of the expressions, by the name of the argument."""

    columns: tuple[tuple[str, str], ...]
    """The names and the types of the stream's columns, in their order."""

    ties: str = ""
    """Digest of how rows that are equal in the order are distinguished; it means nothing to a reader."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of the session that values depend on."""

    targets: Mapping[str, str] = field(default_factory=dict)
    """Where each kind of rows goes, in the words of `sinks.targets`; no decision depends on it."""

    def differences(self, new: Definition) -> list[Difference]:
        """Return the differences by which `new` would decide otherwise."""
        found = [*_differing("", self.expressions, new.expressions)]
        found += _differing("column ", dict(self.columns), dict(new.columns))
        if not found and self.ties != new.ties:
            found.append(
                ("the order of the columns", _names(self.columns), _names(new.columns))
                if self.columns != new.columns
                else ("the hash of a row", self.ties, new.ties)
            )
        return [*found, *_differing("", self.settings, new.settings)]

    def moved(self, new: Definition) -> list[Difference]:
        """Return the kinds of rows that go elsewhere in `new`."""
        return list(_differing("", self.targets, new.targets))


def _names(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(name for name, _ in columns)


def _differing(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    names = [*old, *(name for name in new if name not in old)]
    return [
        (f"{kind}{name}", old.get(name, NOTHING), new.get(name, NOTHING))
        for name in names
        if old.get(name) != new.get(name)
    ]


def digest(text: str) -> str:
    """Return a short digest in place of a long text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shown(differences: list[Difference]) -> str:
    """Return differences as the text of a message.

    Examples
    --------
    >>> shown([("namespace", "ns", "concat(tenant, ns)"), ("column x", "not there", "int")])
    'namespace was `ns` and is `concat(tenant, ns)`; column x was `not there` and is `int`'
    """
    return "; ".join(f"{what} was `{_short(old)}` and is `{_short(new)}`" for what, old, new in differences)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
