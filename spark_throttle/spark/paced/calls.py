"""The calls of one namespace in a batch: which rows each takes, its key, and when it may leave.

Which rows a call takes is a function of the rows, of their costs and of `rows_per_call` alone, so a batch that is run
again makes the same calls with the same keys. When they leave also depends on the time until the next batch.

The promise is: in any 100 ms a namespace sends at most what its rate gives in 116 ms (100 ms, and PIP-322's resolution
of 16 ms), and one message. It is divided: a namespace goes 8 % faster than its rate where it must, to make good for
the time in which a batch is planned and nothing is sent (8 ms); a call takes one message, and what the rate gives in 3
ms (`CALL_NS`); a call that the machine delays is caught up with for 4 ms (`SLACK_NS`, which costs 8 % more).

A call's key is the same for the same rows, however often the batch is run. A receiver that keeps the keys that it has
seen takes every row once. The identity tells a batch that is run again from another batch of
the same number, which a checkpoint that was put back plans: its rows get other keys, because a receiver that took them
for known would lose them.

A Spark string is bytes that claim to be UTF-8; `cast(value AS string)` does not look. Arrow refuses to decode one that
is not, and one such row would end its batch at every start. So what cannot be decoded is U+FFFD here, as it is in
every sink of the JVM. Only rows that cannot be decoded as they are take the slow way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import Int64s
from spark_throttle.spark.rows.frames import NAMESPACE
from spark_throttle.spark.rows.gathering import gathered

_LONGEST_NAMESPACE: Final = 4_000
"""Servers refuse headers from 8,000 characters on; a namespace that needs more than this is told by its SHA-256."""

CALL_NS: Final = 3_000_000
"""The cost of a call's rows, its first not counted, is at most this."""

SLACK_NS: Final = 4_000_000
"""For how long a flow that was delayed may catch up."""

HASTE: Final = (100, 108)
"""A batch whose rows cost 108 ms may be sent in 100."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What identifies the rows of one call.

    Examples
    --------
    >>> IdempotencyKey("6f1c", 12, "9a3e", "acme/orders", 40).text
    '6f1c/12/9a3e/acme%2Forders/40'
    """

    query: str
    """The query's name in its checkpoint."""

    batch: int
    identity: str
    """Digest of what was decided in the batch (`checkpoint.batch_mark`)."""

    namespace: str
    place: int
    """The number of the namespace's rows in the batch that come before the call's first."""

    @property
    def text(self) -> str:
        """The key in visible ASCII, for a header or a column."""
        namespace = quote(self.namespace, safe="")
        if len(namespace) > _LONGEST_NAMESPACE:  # a colon is never in what `quote` returns
            namespace = f"sha256:{hashlib.sha256(self.namespace.encode()).hexdigest()}"
        return f"{self.query}/{self.batch}/{self.identity}/{namespace}/{self.place}"


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    r"""Return the rows of a table.

    Examples
    --------
    >>> broken = pa.array([b"na\xc3\xafve", b"na\xefve"]).view(pa.string())
    >>> plain_rows(pa.table({"name": broken}))
    [{'name': 'naïve'}, {'name': 'na�ve'}]
    """
    try:
        return table.to_pylist()
    except UnicodeDecodeError:
        columns = [
            [_decoded(value, column.type) for chunk in column.chunks for value in _as_bytes(chunk).to_pylist()]
            for column in table.columns
        ]
        return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _as_bytes(values: pa.Array) -> pa.Array:
    return values.cast(_type_of_bytes(values.type))


def _type_of_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of text."""
    if kinds.is_string(kind):
        return pa.binary()
    if kinds.is_large_string(kind):
        return pa.large_binary()
    if kinds.is_map(kind):
        return pa.map_(_type_of_bytes(kind.key_type), _type_of_bytes(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        inner = kind.value_field.with_type(_type_of_bytes(kind.value_type))
        return pa.large_list(inner) if kinds.is_large_list(kind) else pa.list_(inner)
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_type_of_bytes(field.type)) for field in kind.fields])
    return kind


def _decoded(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - what Arrow makes of a column
    """Return a value with text in place of bytes, where its type is text."""
    if value is None:
        return None
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return value.decode(errors="replace")
    if kinds.is_map(kind):
        return [(_decoded(key, kind.key_type), _decoded(item, kind.item_type)) for key, item in value]
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return [_decoded(each, kind.value_type) for each in value]
    if kinds.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind.fields}
    return value


def sorted_by_namespace(table: pa.Table) -> tuple[pa.Table, list[tuple[str, int, int]]]:
    """Return rows with those of each namespace together, in their order, and where each namespace begins and ends.

    Examples
    --------
    >>> rows, namespaces = sorted_by_namespace(pa.table({NAMESPACE: ["b", "a", "b"], "id": [1, 2, 3]}))
    >>> rows.column("id").to_pylist(), namespaces
    ([1, 3, 2], [('b', 0, 2), ('a', 2, 3)])
    """
    coded = table.column(NAMESPACE).combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    ends = np.cumsum(np.bincount(codes, minlength=len(coded.dictionary))).tolist()
    names = shown(coded.dictionary).to_pylist()
    return gathered(table, np.argsort(codes, kind="stable")), list(zip(names, [0, *ends], ends, strict=False))


@dataclass(frozen=True, slots=True)
class Call:
    """Some consecutive rows of a namespace."""

    place: int
    """Position of the first row among the namespace's rows in the batch."""

    rows: int
    takes_ns: int
    """The time for which the namespace sends nothing else."""


def calls_of(costs_ns: Int64s, window_ns: int, rows_per_call: int) -> list[Call]:
    """Return the calls of a namespace, in the order of its rows.

    Parameters
    ----------
    costs_ns
        What each row costs at the namespace's rate (`batch_sending.row_costs`).
    window_ns
        The time until the next batch, over which the calls are spread. Where the rate needs longer, they take longer.

    Examples
    --------
    1,000 rows per second, of which 100 may leave within a second:

    >>> calls = calls_of(np.full(100, 1_000_000), 10**9, 100)
    >>> len(calls), calls[1]
    (25, Call(place=4, rows=4, takes_ns=40000000))

    The next batch comes sooner than the rate allows:

    >>> sum(call.takes_ns for call in calls_of(np.full(108, 1_000_000), 1, 100))
    100000000
    """
    ends_ns, starts = np.cumsum(costs_ns), [0]
    while starts[-1] < len(costs_ns):
        first = starts[-1]
        fits = int(np.searchsorted(ends_ns, ends_ns[first] + CALL_NS, side="right"))
        starts.append(min(fits, first + rows_per_call, len(costs_ns)))
    total = int(ends_ns[-1]) if len(ends_ns) else 0
    takes_ns = max(window_ns, -(-total * HASTE[0] // HASTE[1]))
    # Rows without a cost are spread by their number.
    parts = [place if total == 0 else int(ends_ns[place - 1]) if place else 0 for place in starts]
    due_ns = [part * takes_ns // parts[-1] for part in parts] if parts[-1] else []
    return [
        Call(first, after - first, due - before)
        for first, after, before, due in zip(starts, starts[1:], due_ns, due_ns[1:], strict=False)
    ]
