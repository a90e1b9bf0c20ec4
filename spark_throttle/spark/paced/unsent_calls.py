"""Calls that a destination did not take, as tables: their rows, each with its call's key.

A call keeps its rows and its key, so a receiver that honours keys has every row once. Calls whose rows have the same
columns share a table; others have tables of their own, so that columns that a stream gets later change no bytes of a
call that is kept.

If the policy says so, rows are given up while their destination is unavailable. They were admitted, and count as such.
In the dead letters they look like rows that their resource group rejected, for the reason `DESTINATION_UNAVAILABLE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.core.quota import Level, Verdict
from spark_throttle.spark.columns.payload_columns import from_carried, leaving_schema
from spark_throttle.spark.decider.decider_batch import THROTTLE, VERDICT_TYPE
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.sending import Parcel
from spark_throttle.spark.rows.frames import FrameUnpacker, encode

DESTINATION_UNAVAILABLE: Final = "destination_unavailable"

_KEY = "__throttle_key"
_KEY_TYPE = pa.struct([
    ("query", pa.string()), ("batch", pa.int64()), ("identity", pa.string()), ("namespace", pa.string()),
    ("place", pa.int64()),
])  # fmt: skip


def tables_of(parcels: Sequence[Parcel]) -> list[bytes]:
    """Return calls in their order, as few tables as their columns allow."""
    return tables_with(parcels, _KEY, _KEY_TYPE, lambda parcel: _plain(parcel.key))


def tables_with(
    parcels: Sequence[Parcel], name: str, kind: pa.DataType, value_of: Callable[[Parcel], Mapping[str, Any]]
) -> list[bytes]:
    """Return the rows of calls in their order, each with a value of its call's in one more column.

    Parameters
    ----------
    name, kind
        The name and the type of the column.
    """
    found = list[bytes]()
    for _, alike in groupby(parcels, key=lambda parcel: parcel.rows.schema):
        together = list(alike)
        rows = pa.concat_tables([parcel.rows for parcel in together]).combine_chunks()  # else a slice looks at each
        values = [value_of(parcel) for parcel in together for _ in range(parcel.rows.num_rows)]
        found.append(_to_bytes(rows.append_column(name, pa.array(values, kind))))
    return found


def parcels_of_table(content: bytes, takes_ns: int) -> list[Parcel]:
    """Return the calls of a table.

    Parameters
    ----------
    takes_ns
        The time that a row takes.
    """
    table = table_in(content)
    keys = table.column(_KEY).to_pylist()
    rows, found, first = table.drop_columns([_KEY]), list[Parcel](), 0
    for key, group in groupby(keys):
        count = sum(1 for _ in group)
        found.append(Parcel(rows.slice(first, count), IdempotencyKey(**key), count * takes_ns))
        first += count
    return found


def by_namespace(contents: Sequence[bytes]) -> dict[str, list[bytes]]:
    """Return the calls in tables by namespace, each namespace's in their order."""
    found = dict[str, list[bytes]]()
    for content in contents:
        table = table_in(content)
        for name, rows in _runs(table):
            found.setdefault(name, []).append(_to_bytes(rows))
    return found


def rows_by_namespace(contents: Sequence[bytes]) -> Counter[str]:
    """Return how many rows of calls each namespace has in tables."""
    found = Counter[str]()
    for content in contents:
        names = pc.struct_field(table_in(content).column(_KEY), "namespace")
        for each in names.value_counts().to_pylist():
            found[each["values"]] += each["counts"]
    return found


def count_rows(contents: Sequence[bytes]) -> int:
    """Return the number of rows in tables."""
    return sum(table_in(content).num_rows for content in contents)


def given_up_tables(parcels: Sequence[Parcel], destination_of: Mapping[str, str]) -> list[bytes]:
    """Return the rows of calls with the ``throttle`` column, as tables of rows with the same columns."""
    return tables_with(parcels, THROTTLE, VERDICT_TYPE, lambda parcel: {
        "verdict": Verdict.REJECT.name,
        "reason": DESTINATION_UNAVAILABLE,
        "level": Level.RESOURCE_GROUP.name.lower(),
        "scope": destination_of[parcel.key.namespace],
    })  # fmt: skip


def given_up_rows(tables: Sequence[bytes], schema: StructType) -> DataFrame | None:
    """Return the rows in tables, with the ``throttle`` column and in the user's types; `None` if there are none."""
    if not tables:
        return None
    verdict = from_arrow_schema(pa.schema([(THROTTLE, VERDICT_TYPE)]))
    carried = StructType([*leaving_schema(schema), *verdict])
    return from_carried(_frame(SparkSession.active(), tables, carried), schema)


def rows_of(parcels: Sequence[Parcel], schema: StructType, spark: SparkSession) -> DataFrame:
    """Return the rows of calls in the form that travels (`leaving_schema`)."""
    alike = groupby(parcels, key=lambda parcel: parcel.rows.schema)
    tables = [pa.concat_tables([parcel.rows for parcel in together]) for _, together in alike]
    return _frame(spark, [frame for table in tables for frame in encode(table)], leaving_schema(schema))


def _frame(spark: SparkSession, tables: Sequence[bytes], schema: StructType) -> DataFrame:
    frames = spark.createDataFrame(pa.table({"frame": pa.array(tables, pa.binary())}))
    return frames.coalesce(1).mapInArrow(FrameUnpacker(to_arrow_schema(schema, timezone="UTC")), schema)


def _runs(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each namespace; those of one namespace follow one another in a task's table."""
    names = pc.struct_field(table.column(_KEY), "namespace").combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield names.dictionary[codes[start]].as_py(), table.slice(start, end - start)


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table_in(content: bytes) -> pa.Table:
    """Return a table that `tables_of` or `tables_with` has written."""
    return pa.ipc.open_stream(content).read_all().combine_chunks()


def _plain(key: IdempotencyKey) -> dict[str, str | int]:
    return {
        "query": key.query, "batch": key.batch, "identity": key.identity, "namespace": key.namespace,
        "place": key.place,
    }  # fmt: skip
