"""The helper columns that the JVM need not send to the task that stages rows.

For the JVM, sending a value costs far more than computing it from Arrow columns. So helper columns that follow from the
user's columns are not sent: a copy of a user's column, and a size that is the length of one.

Lengths equal Spark's, except for text that is not valid UTF-8: there Arrow counts the bytes that begin a character,
while Spark skips as many bytes as the first byte announces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.spark.rows.frames import SIZE


@dataclass(frozen=True, slots=True)
class HelperColumns:
    """The helper columns that are not sent, and how to restore them."""

    same: Mapping[str, str] = field(default_factory=dict)
    """Names of the user's columns that helper columns copy, by the helper's name."""

    characters_of: str | None = None
    """Column whose length is the size: in characters, or in bytes for a binary column."""

    bytes_of: str | None = None
    """Column whose length in bytes is the size."""

    @property
    def helpers(self) -> frozenset[str]:
        """Names of the helper columns that are not sent."""
        is_measured = self.characters_of is not None or self.bytes_of is not None
        return frozenset(self.same) | ({SIZE} if is_measured else set())

    def restore(self, table: pa.Table) -> pa.Table:
        """Return rows with all helper columns."""
        for helper, name in self.same.items():
            table = table.append_column(helper, table.column(name))
        if self.characters_of is not None:
            table = table.append_column(SIZE, _length(table.column(self.characters_of), in_bytes=False))
        if self.bytes_of is not None:
            table = table.append_column(SIZE, _length(table.column(self.bytes_of), in_bytes=True))
        return table


def _length(column: pa.ChunkedArray, *, in_bytes: bool) -> pa.ChunkedArray:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    found = pc.utf8_length(column) if is_text and not in_bytes else pc.binary_length(column)
    return found.cast(pa.int64())
