"""Rows of a table in another order, however large the table is.

pyarrow's own `take` first joins the chunks of a column. A column of text or bytes may then have no more than 2 GiB, or
it fails. Here a larger table is gathered from its chunks part by part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Int64s

_JOINED_BYTES: Final = 1 << 30
"""Chunks that have no more bytes together may be joined."""


def gathered(table: pa.Table, at: Int64s, *, joined_bytes: int = _JOINED_BYTES) -> pa.Table:
    """Return the rows at `at`, in that order.

    Examples
    --------
    >>> table = pa.concat_tables([pa.table({"n": [0, 1]}), pa.table({"n": [2]})])
    >>> gathered(table, np.array([2, 0])).column("n").to_pylist()
    [2, 0]
    """
    if table.nbytes <= joined_bytes:
        return table.take(pa.array(at))
    batches = table.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches[:-1])])
    # Rows differ in size, so a part of the usual size has half the bytes that it may have.
    some = np.array_split(at, min(len(at), 2 * table.nbytes // max(joined_bytes, 1)) + 1)
    parts = (part for each in some for part in _parts(batches, starts, each, joined_bytes))
    return pa.concat_tables([table.schema.empty_table(), *parts])


def _parts(batches: list[pa.RecordBatch], starts: Int64s, at: Int64s, joined_bytes: int) -> Iterator[pa.Table]:
    """Yield tables of the rows at `at`, none with more bytes than may be joined, unless it is of one row."""
    if not len(at):
        return
    layout = Segments.by_key(np.searchsorted(starts, at, side="right") - 1, len(batches))
    of_batch = np.split(at[layout.order], layout.starts[1:])
    rows = [batches[each].take(pa.array(of_batch[each] - starts[each])) for each in np.flatnonzero(layout.counts)]
    if len(at) > 1 and sum(part.nbytes for part in rows) > joined_bytes:
        del rows  # they are taken again, half by half
        for half in np.array_split(at, 2):
            yield from _parts(batches, starts, half, joined_bytes)
        return
    yield pa.Table.from_batches(rows).take(pa.array(layout.position))
