"""The namespaces of the rows that a metered function is given, in each form in which Spark gives rows.

Rows come as a pandas DataFrame, an Arrow RecordBatch, as the arguments of a UDF, one series or array each, or as lists
of Spark's Row, whose names are counted one by one: into one count for as long as possible, for each count has a cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import ConfigurationError

Place: TypeAlias = str | int
"""Where the namespace is: the name of a column, or the position of an argument of a UDF."""

Counts: TypeAlias = tuple[pa.StringArray, Int64s]
"""Namespaces, each once, null for rows of none; and the number of rows of each."""

_TEXT: Final = frozenset((str,))


def counts_of(given: Any, place: Place) -> Counts:  # noqa: ANN401 - what Spark gives
    """Return the namespaces of rows.

    Raises
    ------
    ConfigurationError
        If the rows have no such column or argument.

    Examples
    --------
    >>> names, rows = counts_of(pa.record_batch({"ns": ["acme/a", "acme/b", "acme/a"]}), "ns")
    >>> names.to_pylist(), rows.tolist()
    (['acme/a', 'acme/b'], [2, 1])
    """
    column = _column(given, place)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        if column.dtype == object:
            return counts_by_name(Counter(column.tolist()))
        column = pa.array(column, from_pandas=True)
    counted = column.value_counts()
    names = counted.field(0)
    return names if names.type == pa.string() else names.cast(pa.string()), counted.field(1).to_numpy()


def _column(given: Any, place: Place) -> Any:  # noqa: ANN401 - what Spark gives
    if isinstance(given, tuple) or not hasattr(type(given), "columns"):
        arguments = given if isinstance(given, tuple) else (given,)
        if isinstance(place, int) and 0 <= place < len(arguments):
            return arguments[place]
        raise _missing(place, f"{len(arguments)} arguments of a UDF")
    try:
        return given[place]
    except KeyError:
        names = given.schema.names if isinstance(given, pa.RecordBatch) else list(given.columns)
        raise _missing(place, f"the columns {names}") from None


def names_of_rows(rows: list[Row], place: Place) -> Iterator[Any]:
    """Return the namespace of each row.

    Raises
    ------
    ConfigurationError
        If the rows have no such column.

    Examples
    --------
    >>> list(names_of_rows([Row(ns="acme/a", value=1), Row(ns=None, value=2)], "ns"))
    ['acme/a', None]
    """
    try:
        at = rows[0].__fields__.index(place)
    except (AttributeError, ValueError):
        raise _missing(place, f"{rows[0]}") from None
    return islice(chain.from_iterable(rows), at, None, len(rows[0]))  # to ask row by row takes up to twice as long


def counts_by_name(found: Counter[Any]) -> Counts:
    """Return the namespaces that were counted; what is no text becomes one, or null where it stands for nothing."""
    names = list(found)
    if not _TEXT.issuperset(map(type, names)):
        names = [name if isinstance(name, str) else _text(name) for name in names]
    return pa.array(names, pa.string()), np.fromiter(found.values(), np.int64, len(found))


def _text(name: Any) -> str | None:  # noqa: ANN401 - what a row holds
    """Return a namespace that is no text as one; `None` for a missing one, for which pandas also has NaN and NA."""
    import pandas as pd  # where a process has none of its values, it need not be loaded

    return None if name is None or pd.isna(name) else str(name)


def _missing(place: Place, instead: str) -> ConfigurationError:
    return ConfigurationError(
        f"the namespace of the rows of a metered function is not found at {place!r}: it is given {instead}; give "
        f"metered(…, namespace=…) the name of the rows' column, or for a UDF the position of its argument, that holds "
        f"the namespace"
    )
