"""What the crash program offers: rows of twenty namespaces, and among them every kind of row that cannot be taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

ROWS_A_FILE: Final = 1_500
LARGEST_BYTES: Final = 200
COLUMNS: Final = ["id", "namespace", "size", "note", "part"]
_MTIME: Final = 1_700_000_000
"""Of the first file: the file source reads in the order of modification times."""

UNWRITABLE: Final = b"a\x00b"
"""Value of `part` that no folder can be made of."""

_PERIOD: Final = 500
_NAMESPACES: Final[dict[int, bytes | None]] = {
    77: None, 78: b"", 79: b"gold/" + b"x" * 1_020, 80: b"gold/\xe9", 81: b"gold/\xe9", 82: b"gold/\xe9",
}  # fmt: skip
"""By place in 500 rows. The last three are no UTF-8, and a name like any other."""

_SIZES: Final[dict[int, int | None]] = {83: -1, 84: None, 85: 2**36 + 1}
_NOTES: Final = {80: b"\xe9t\xe9", 87: b"\xff\x00"}
_PARTS: Final = {88: UNWRITABLE}


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


def add_commits(root: Path, upto: int) -> None:
    """Offer files until there are `upto`, each in a commit of its own: the folder of the files is a Delta table."""
    add_files(root, upto)
    source = root / "source"
    table = DeltaTable.create(source, rows(0, 0).schema, mode="ignore")
    for number in range(table.version(), upto):  # version 0 has no file
        file = source / f"{number:05}.parquet"
        added = AddAction(file.name, file.stat().st_size, {}, (_MTIME + number) * 1_000, data_change=True, stats="{}")
        table.create_write_transaction([added], "append", table.schema())
        table.update_incremental()


def rows(first: int, end: int) -> pa.Table:
    """Return rows: 20 namespaces of 3 tenants, unevenly, 1 to 200 bytes; of each 500, seven are unusable.

    A namespace has one partition, so that its order can be seen in the files of a partitioned table.
    """
    names: list[bytes | None] = []
    sizes: list[int | None] = []
    notes, parts = list[bytes](), list[bytes]()
    for number in range(first, end):
        spread = number * 2_654_435_761 % 2**32
        k = (spread >> 16) * (spread >> 16) * 20 >> 32
        place = number % _PERIOD
        name = f"{('gold', 'silver', 'open')[k % 3]}/{k:02}".encode()
        names.append(_NAMESPACES.get(place, name))
        sizes.append(_SIZES.get(place, 1 + spread % LARGEST_BYTES))
        notes.append(_NOTES.get(place, b"row %d" % number))
        parts.append(_PARTS.get(place, b"a/b:c%" if (names[-1] or b"").startswith(b"open") else b"east"))
    return pa.table({
        "id": pa.array(range(first, end), pa.int64()), "namespace": texts(names), "size": pa.array(sizes, pa.int64()),
        "note": texts(notes), "part": texts(parts),
    })  # fmt: skip


def texts(values: list[bytes] | list[bytes | None]) -> pa.StringArray:
    """Return texts, which may be no UTF-8."""
    return pa.array(values, pa.binary()).view(pa.string())
