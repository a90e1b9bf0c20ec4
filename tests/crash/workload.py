"""What the crash program offers, and the policies that it puts in force by turns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_A_FILE: Final = 1_500
LARGEST_BYTES: Final = 200
SCHEMA: Final = pa.schema([("id", pa.int64()), ("namespace", pa.string()), ("size", pa.int64()), ("note", pa.string())])
_MTIME: Final = 1_700_000_000
"""Of the first file: the file source reads in the order of modification times."""

_DELAYED: Final = """\
resource_groups:
  later: {publish: {messages_per_second: 400, bytes_per_second: 40000, burst_seconds: 1}}
  never: {publish: {messages_per_second: 250, burst_seconds: 1, on_excess: reject}}
tenants:
  gold: {resource_group: later}
  silver: {resource_group: never, publish: {messages_per_second: 150, burst_seconds: 1}}
namespaces:
  gold/00: {resource_group: later, publish: {weight: 3}}
  open/02: {publish: {messages_per_second: 60, burst_seconds: 1}}
queue: {messages: 4000}
"""

REVISIONS: Final = (
    _DELAYED,
    _DELAYED.replace("400,", "150,").replace("weight: 3", "weight: 1").replace("4000", "2500"),
    _DELAYED.replace("250,", "80,").replace("150,", "500,").replace("40000", "15000"),
)
"""Of a file's 1,500 rows gold brings 675, silver 456 and open/02 106, of 100 bytes on average."""

AMPLE: Final = _DELAYED.replace("400,", "4000,").replace("40000", "1000000")
"""For the end, so that what waits drains."""


def add_files(root: Path, upto: int) -> None:
    """Offer files until there are `upto`, each a second younger than the one before."""
    source = root / "source"
    source.mkdir(parents=True, exist_ok=True)
    for number in range(len(list(source.glob("*.parquet"))), upto):
        path = source / f"{number:05}.parquet"
        written = root / f"{number:05}.tmp"
        pq.write_table(rows(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE), written)
        os.utime(written, (_MTIME + number, _MTIME + number))
        written.rename(path)


def rows(first: int, end: int) -> pa.Table:
    """Return rows: 20 namespaces of 3 tenants, unevenly, 1 to 200 bytes; two in 500 are unusable."""
    found = []
    for number in range(first, end):
        spread = number * 2_654_435_761 % 2**32
        k = (spread >> 16) * (spread >> 16) * 20 >> 32
        namespace: str | None = f"{('gold', 'silver', 'open')[k % 3]}/{k:02}"
        size = 1 + spread % LARGEST_BYTES
        namespace = None if number % 500 == 77 else namespace
        size = -1 if number % 500 == 78 else size
        found.append({"id": number, "namespace": namespace, "size": size, "note": f"row {number}"})
    return pa.Table.from_pylist(found, schema=SCHEMA)
