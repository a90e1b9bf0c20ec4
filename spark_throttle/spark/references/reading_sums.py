"""Whether both readings of a batch saw the same rows: sums of all that it brings, as each of them has it.

The decider takes them of the digests of the first reading, the second has Spark compute them of all files of the batch.
They are sums, so no order and no division into tasks matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.spark.rows.digest import positions
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE

_HALF_BITS: Final = 32
_HALF: Final = (1 << _HALF_BITS) - 1


@dataclass(frozen=True, slots=True)
class ReadingSums:
    """Sums over the rows of a batch."""

    messages: int = 0
    positions: int = 0
    """Of the rows in their files."""

    named_messages: int = 0
    """The rows with a namespace."""

    name_bytes: int = 0
    sized_messages: int = 0
    """The rows with a size."""

    low_size: int = 0
    """Of the lower 32 bits of their sizes: the sum of whole sizes may be too large for Spark."""

    high_size: int = 0
    """Of the upper 32 bits, with their sign."""

    @classmethod
    def of_rows(cls, rows: pa.Table) -> ReadingSums:
        """Return the sums over rows that arrived, given by their helper columns.

        Examples
        --------
        >>> rows = pa.table({TIE: [7, (1 << 32) + 2], NAMESPACE: ["a/b", None], SIZE: [10, -1]})
        >>> ReadingSums.of_rows(rows)  # doctest: +ELLIPSIS
        ReadingSums(messages=2, positions=9, named_messages=1, name_bytes=3, sized_messages=2, low_size=4294967305, ...
        """
        name, size = rows.column(NAMESPACE), rows.column(SIZE)
        name = name.cast(pa.string()) if pa.types.is_dictionary(name.type) else name
        sizes = size.drop_null().to_numpy()
        return cls(
            rows.num_rows,
            int(positions(rows.column(TIE).to_numpy()).sum()),
            rows.num_rows - name.null_count,
            int(pc.sum(pc.binary_length(name).cast(pa.int64())).as_py() or 0),
            len(sizes),
            int((sizes & _HALF).sum()),
            int((sizes >> _HALF_BITS).sum()),
        )

    def __add__(self, other: ReadingSums) -> ReadingSums:
        """Return the sums over the rows of both."""
        return ReadingSums(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def total(cls, parts: Iterable[ReadingSums]) -> ReadingSums:
        """Return the sums over the rows of all parts."""
        return sum(parts, cls())

    def comparable(self, *, has_positions: bool, has_sizes: bool) -> ReadingSums:
        """Return the sums of which Spark computes the same; the others are 0."""
        return ReadingSums(
            self.messages,
            self.positions if has_positions else 0,
            self.named_messages,
            self.name_bytes,
            *((self.sized_messages, self.low_size, self.high_size) if has_sizes else (0, 0, 0)),
        )


def text_of_sums(position: str | None, namespace: str, size: str | None) -> str:
    """Return the expression with which Spark computes the sums over columns, as an array of the fields' values.

    Examples
    --------
    >>> text_of_sums(None, "n", None)
    'array(count(1), 0L, count(n), sum(octet_length(n)), 0L, 0L, 0L)'
    """
    of_size = ["0L"] * 3
    if size is not None:
        of_size = [f"count({size})", f"sum({size} & {_HALF}L)", f"sum(shiftright({size}, {_HALF_BITS}))"]
    of_position = "0L" if position is None else f"sum({position})"
    found = ["count(1)", of_position, f"count({namespace})", f"sum(octet_length({namespace}))", *of_size]
    assert len(found) == len(fields(ReadingSums))  # noqa: S101 - one for each
    return f"array({', '.join(found)})"
