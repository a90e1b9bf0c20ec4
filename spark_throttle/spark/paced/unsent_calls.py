"""Calls that a destination did not take in the time of their batch: kept in a file, and sent first by the next batch.

The file of a batch holds every call that is unsent once the batch is over, those of earlier batches included. It is
written before the batch is committed. So a batch that is run again finds the same calls in the file of the batch before
it, and writes its own anew; and a checkpoint that is put back finds the calls that were unsent then. Each call keeps
its rows and its key, so a receiver that honours keys has every row once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.files.storage import Directory
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.sending import Parcel

_FOLDER = "unsent"
_KIND, _VERSION = "unst", 1
_KEY = "__throttle_key"
_KEY_TYPE = pa.struct([
    ("query", pa.string()), ("batch", pa.int64()), ("identity", pa.string()), ("namespace", pa.string()),
    ("place", pa.int64()),
])  # fmt: skip


def table_of(parcels: Sequence[Parcel]) -> pa.Table | None:
    """Return the rows of calls, each with its call's key; `None` of none."""
    if not parcels:
        return None
    rows = pa.concat_tables([parcel.rows for parcel in parcels], promote_options="permissive")
    keys = [_plain(parcel.key) for parcel in parcels for _ in range(parcel.rows.num_rows)]
    return rows.append_column(_KEY, pa.array(keys, _KEY_TYPE))


def parcels_of_table(table: pa.Table, takes_ns: int) -> list[Parcel]:
    """Return the calls of which `table_of` made a table.

    Parameters
    ----------
    takes_ns
        The time that a row takes.
    """
    keys = table.column(_KEY).to_pylist()
    rows, found, first = table.drop_columns([_KEY]), [], 0
    for key, group in groupby(keys):
        count = sum(1 for _ in group)
        found.append(Parcel(rows.slice(first, count), IdempotencyKey(**key), count * takes_ns))
        first += count
    return found


def namespaces_of(table: pa.Table) -> list[str]:
    """Return the namespace of each row."""
    names: list[str] = pa.compute.struct_field(table.column(_KEY), "namespace").to_pylist()
    return names


def to_bytes(table: pa.Table | None) -> bytes:
    """Return a table as bytes; none of `None`."""
    if table is None:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(content: bytes) -> pa.Table | None:
    """Return the table that `to_bytes` wrote."""
    return pa.ipc.open_stream(content).read_all() if content else None


def write_unsent(directory: Directory, batch: int, tables: Sequence[bytes]) -> None:
    """Write what is unsent after a batch; without any, remove what another batch of that number left."""
    kept = [table for table in tables if table]
    if kept:
        directory.write(_name(batch), pack(_KIND, _VERSION, {"tables": kept}))
    else:
        directory.delete(_name(batch))


def read_unsent(directory: Directory, batch: int) -> list[pa.Table]:
    """Return what is unsent after a batch."""
    content = directory.read(_name(batch))
    if content is None:
        return []
    tables = unpack(content, _KIND, _VERSION, f"the file {directory.path(_name(batch))}").blobs("tables")
    return [table for table in map(from_bytes, tables) if table is not None]


def forget_unsent(directory: Directory, batch: int) -> None:
    """Delete the file of a batch, to which no checkpoint is put back any more."""
    directory.delete(_name(batch))


def _name(batch: int) -> str:
    return f"{_FOLDER}/{batch:012d}"


def _plain(key: IdempotencyKey) -> dict[str, str | int]:
    return {
        "query": key.query, "batch": key.batch, "identity": key.identity, "namespace": key.namespace,
        "place": key.place,
    }  # fmt: skip
