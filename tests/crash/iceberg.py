"""The tables of the crash program's job, if its sink is Iceberg: of a catalog whose warehouse is the run's directory.

At the end Iceberg says which files a table has, and which batch the snapshot names that added each. The account reads
these files without Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ICEBERG: Final = "iceberg"
ADMITTED: Final = "lake.admitted"
REJECTED: Final = "lake.rejected"
FILES: Final = "files.json"
"""The file in a table's directory that says in which batch each of its files was added."""

_MARK: Final = "spark-throttle."
"""The beginning of the property of a snapshot's summary that has the batch."""


def warehouse_of(root: Path) -> dict[str, str]:
    """Return the setting by which the tables lie in a run's directory."""
    return {"spark.sql.catalog.lake.warehouse": str(root)}


def keep_files(spark: SparkSession, root: Path) -> None:
    """Write which files the tables have."""
    for table in (ADMITTED, REJECTED):
        if not spark.catalog.tableExists(table):
            continue
        entries, snapshots = (spark.table(f"{table}.{name}") for name in ("entries", "snapshots"))
        added = entries.where("status < 2").join(snapshots, "snapshot_id").select("data_file.file_path", "summary")
        batches = [(Path(row["file_path"]).name, batch_of(row["summary"])) for row in added.collect()]
        (root / table.partition(".")[2] / FILES).write_text(json.dumps(batches))


def batch_of(summary: dict[str, str]) -> int:
    """Return the batch that a snapshot's summary names.

    Examples
    --------
    >>> batch_of({"operation": "append", "spark-throttle.q": '{"throttle": {"query": "q", "batch": 7}}'})
    7
    """
    (mark,) = (json.loads(value) for name, value in summary.items() if name.startswith(_MARK))
    return int(mark["throttle"]["batch"])


def is_iceberg(table: Path) -> bool:
    """Return whether a directory is that of an Iceberg table."""
    return (table / "metadata").exists()


def batches_of_files(table: Path) -> list[tuple[Path, int]]:
    """Return the files of a table, with the batch that added each; a file that was added twice comes twice."""
    return [(table / "data" / name, batch) for name, batch in json.loads((table / FILES).read_text())]
