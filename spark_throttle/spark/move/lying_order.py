"""Which files may be read as they lie, although a namespace's rows must leave in their order.

They are the new files each of whose namespaces sends rows from no other file, and the rows of each in the order in
which they lie. One task reads such a file, for it has one row group, and so a namespace's rows come to the sink as if
they had been shuffled and sorted. Rows of any other file are: a namespace of which rows waited in an older file, for
one, spans files.

The batch decides the same rows if it is run again, but maybe from other files. So the files differ that are read as
they lie, and neither the rows that leave nor the order of a namespace's do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Int64s
from spark_throttle.spark.delta.table_files import ROW_GROUP_ROWS


def files_in_order(
    namespaces: Mapping[int, pa.ChunkedArray], leaves: Mapping[int, Int64s], elsewhere: pa.StringArray
) -> frozenset[int]:
    """Return the numbers of the files whose rows leave in their order if each is read as it lies.

    Parameters
    ----------
    namespaces
        The namespaces of all rows of each file, dictionary-encoded.
    leaves
        The positions of the rows that leave of each file, in the order in which they leave.
    elsewhere
        The namespaces of which rows leave from other files, each once.

    Examples
    --------
    >>> named = pa.chunked_array([pa.array(["a", "b", "a"]).dictionary_encode()])
    >>> first, second = np.array([0, 2, 1]), np.array([2, 0])
    >>> (
    ...     sorted(files_in_order({0: named}, {0: first}, pa.array(["c"]))),
    ...     sorted(files_in_order({0: named}, {0: second}, pa.array(["c"]))),
    ... )
    ([0], [])
    """
    sent, lie_in_order = dict[int, pa.StringArray](), list[int]()
    for number, of_rows in namespaces.items():
        at = leaves.get(number)
        if at is None:
            continue
        coded = of_rows.unify_dictionaries().combine_chunks()
        code = coded.indices.fill_null(0).to_numpy()[at]  # a row without a namespace leaves nowhere
        sent[number] = coded.dictionary.take(pa.array(np.flatnonzero(np.bincount(code))))
        if len(of_rows) <= ROW_GROUP_ROWS and _is_ascending(at, code):
            lie_in_order.append(number)
    counted = pc.value_counts(pa.concat_arrays([elsewhere, *sent.values()]))
    shared = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
    return frozenset(number for number in lie_in_order if not pc.any(pc.is_in(sent[number], shared)).as_py())


def _is_ascending(at: Int64s, code: np.ndarray[tuple[int], np.dtype[np.integer]]) -> bool:
    """Return whether the positions of each code ascend."""
    if (at[1:] > at[:-1]).all():
        return True
    order = np.argsort(code, kind="stable")
    at, code = at[order], code[order]
    return bool(((at[1:] > at[:-1]) | (code[1:] != code[:-1])).all())
