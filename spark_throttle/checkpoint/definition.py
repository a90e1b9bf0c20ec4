"""The definition of a query: what decides a batch in addition to its rows and policies, as text that runs compare.

Policies and shares are pinned in epochs. The expressions of namespace, size and order, the columns of the stream (rows
that are equal in the order are put in order by their hash) and some settings of the session are given again at every
start. They may change between batches. They may not change over a batch that may already be in a sink, because its rows
would be decided differently from those that the sink has.

So before the first sink, a batch is noted as begun, with the definition that decides it (`OpenBatch`). Until Spark has
logged the batch as committed, it is run again at every start, and a sink that has it skips it. A run checks whether an
earlier attempt has begun it, and by which definition. A batch that failed before its sinks has left no trace here, and
may be decided by any definition.

Expressions are compared as Spark prints them once it has resolved them. Expressions that print alike are taken to be
the same: two Python functions of one name, scalar subqueries that differ in the body, a word in quotes and a column of
that name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import DefinitionChangedError
from spark_throttle.files.storage import Directory, read_note
from spark_throttle.record import Count, to_json

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


NAME: Final = "begun.json"
_COUNTS: Final = (
    "(by the stream, by a function that it calls, or by another release) the digest of each namespace's rows"
)


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that may be in its sinks already."""

    batch: Count
    decided: str
    """Digest of how many messages of each namespace came and left; empty where not all of them were counted."""

    definition: Definition


def read_open_batch(directory: Directory) -> OpenBatch | None:
    """Return the newest batch that has begun to reach its sinks; `None` before the first."""
    return read_note(directory, NAME, OpenBatch, "the begun batch")


def write_open_batch(directory: Directory, begun: OpenBatch) -> None:
    """Note that a batch is about to reach its sinks."""
    directory.write(NAME, to_json(begun))


def decided_digest(report: UsageReport | None) -> str:
    """Return a digest of how many messages a batch brought, admitted and rejected, by namespace.

    It leaves out sizes: what a decision took from a bucket shows in what was admitted.
    """
    whole = hashlib.sha256()
    if report is not None:
        counts = np.stack([report.offered[:, 0], report.admitted[:, 0], report.rejected[:, 0]], axis=1)
        moved = np.flatnonzero(counts.any(axis=1))
        names = report.names.cast(pa.binary()).take(pa.array(moved))
        order = pc.sort_indices(names)
        whole.update(b"\x00".join(names.take(order).to_pylist()))
        whole.update(counts[moved[order.to_numpy()]].tobytes())
        whole.update(f"{report.invalid_messages}".encode())
    return whole.hexdigest()[:16]


def begin(
    directory: Directory,
    batch: int,
    definition: Definition,
    is_held: Callable[[str, str], bool],
    decided: str = "",
) -> bool:
    """Note that a batch is about to reach its sinks; refuse one that they already hold, decided otherwise.

    Returns whether an earlier attempt has noted a batch of this number.

    Parameters
    ----------
    is_held
        Whether a target (`Definition.targets`: the kind of rows, and where they went) has the batch.

    Raises
    ------
    DefinitionChangedError
        If a target has the batch, and it was decided otherwise or its rows now go elsewhere.
    """
    before = read_open_batch(directory)
    now = OpenBatch(batch, decided, definition)
    if before == now:
        return True
    is_again = before is not None and before.batch == batch
    if before is not None and is_again:
        _refuse_other(directory, before, now, is_held)
    write_open_batch(directory, now)
    return is_again


def _refuse_other(directory: Directory, before: OpenBatch, now: OpenBatch, is_held: Callable[[str, str], bool]) -> None:
    """Refuse an attempt that would decide a batch otherwise than an earlier one did, or send its rows elsewhere.

    Raises
    ------
    DefinitionChangedError
        If a target of the earlier attempt has the batch.
    """
    differences = before.definition.differences(now.definition)
    if not differences and before.decided and now.decided and before.decided != now.decided:
        differences = [(_COUNTS, before.decided, now.decided)]
    targets = before.definition.targets
    if differences and any(is_held(kind, target) for kind, target in targets.items()):
        raise DefinitionChangedError(before.batch, shown(differences), directory.shown(NAME))
    left = [
        (kind, old, new)
        for kind, old, new in before.definition.moved(now.definition)
        if NOTHING not in (old, new) and old != FUNCTION and is_held(kind, old)
    ]
    if left:
        raise DefinitionChangedError(before.batch, shown(left), directory.shown(NAME))
