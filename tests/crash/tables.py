"""What the crash program finds in its tables and in its source: rows, with the batch that wrote them.

Text may be no UTF-8: it is read as bytes and told with surrogates in their place. What is missing stays told apart from
what is empty.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.crash.iceberg import batches_of_files, is_iceberg
from tests.crash.merge import is_merged, messages_of
from tests.crash.topic import ADMITTED_RECORDS, RECORDS
from tests.crash.workload import COLUMNS
from tests.ledger import BATCH

MISSING: Final = "\0missing"
"""Stands for a text that is missing."""

NO_SIZE: Final = -(2**62)
"""Stands for a size that is missing."""

ATTEMPT: Final = "attempt"
"""The column that tells the writes of a batch apart, in a sink that does not say in which batch a row came."""

COSTS_TOLD: Final = "costs-told"
"""The mark of a run whose rows are charged an estimate, and later what they really cost."""

COST: Final = "id * 37 % 201"
"""What a row really costs, as SQL."""

_VERDICT: Final = ["verdict", "reason", "scope"]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What is known of a file beside its rows."""

    batch: int
    """-1 where the sink does not say."""

    part: str | None = None
    """The partition that it is in, where the sink has some."""

    attempt: str = ""
    """Which of Spark's writes made it, where the sink does not say of which batch it is."""


def cost_of(ids: pd.Series[int]) -> pd.Series[int]:
    """Return what rows really cost, as `COST` says."""
    return ids * 37 % 201


def charged_units(root: Path) -> int | None:
    """Return what was charged for rows in all, by the usage table; `None` where rows have no units."""
    if not (root / COSTS_TOLD).exists():
        return None
    usage = DeltaTable(str(root / "usage")).to_pyarrow_table().to_pandas()
    job = usage[usage["level"] == "job"]
    return int((job["admitted_units"] + job["overdrawn_units"] - job["given_back_units"]).sum())


def read_offered(root: Path) -> pd.DataFrame:
    """Return the rows of the source with their partition and place in it: the number of their file, or their offset."""
    if (root / RECORDS).exists():
        records = pq.read_table(root / RECORDS)
        return _frame(records).assign(partition=records["partition"].to_numpy(), place=records["offset"].to_numpy())
    pieces = [
        _frame(pq.read_table(path, columns=COLUMNS)).assign(partition=0, place=number)
        for number, path in enumerate(sorted((root / "source").glob("*.parquet")))
    ]
    return pd.concat(pieces, ignore_index=True)


def read_decided(root: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return admitted and rejected rows in the order in which they were written, with their batch."""
    if (root / "decided").exists():
        decided = _read_file_sink(root / "decided")
        is_admitted = decided["verdict"] == "ADMIT"
        return decided[is_admitted], decided[~is_admitted]
    dead = root / "rejected" if (root / "rejected").exists() else root / "checkpoint" / "throttle" / "rejected"
    if (root / ADMITTED_RECORDS).exists():
        return _read_records(root / ADMITTED_RECORDS), read_table(dead)
    return read_table(root / "admitted"), read_table(dead)


def _read_records(path: Path) -> pd.DataFrame:
    """Return the rows of a topic, in the order in which each partition has them.

    An attempt has the rows of a namespace in their order, so where one stands behind a later one, another has begun.
    """
    rows = _frame(pq.read_table(path))
    is_begin = rows.groupby("namespace", sort=False)["id"].diff() <= 0
    told: dict[str, Any] = {BATCH: -1, ATTEMPT: is_begin.groupby(rows["namespace"], sort=False).cumsum()}
    return rows.assign(**told)


def is_partitioned(root: Path) -> bool:
    """Return whether the sink has partitions, so that it has no place for some rows."""
    table = root / "admitted"
    return (table / "_delta_log").exists() and any(file.part is not None for file in live_files(table).values())


def read_table(path: Path) -> pd.DataFrame:
    """Return the rows of a Delta table, of an Iceberg table, or of the folders of batches."""
    if (path / "_delta_log").exists():
        return _concat([_read_file(path / file, found) for file, found in live_files(path).items()])
    if is_iceberg(path):
        return _concat([_read_file(file, WrittenFile(batch)) for file, batch in batches_of_files(path)])
    files = (
        file for file in sorted(path.rglob("*.parquet"))
        if not any(part.startswith((".", "_temporary")) for part in file.relative_to(path).parts)
    )  # fmt: skip
    return _concat([_read_file(file, WrittenFile(_batch_of(file), attempt=_attempt_of(file))) for file in files])


def live_files(table: Path) -> dict[str, WrittenFile]:
    """Return the files of a Delta table as it is, in the order in which they were written.

    A table that was put back may list its files anew; their batch is that of their first commit.
    """
    first: dict[str, WrittenFile] = {}
    live: dict[str, None] = {}
    for log in sorted(file for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit()):
        actions = [json.loads(line) for line in log.read_text().splitlines() if line]
        batch = next((int(action["txn"]["version"]) for action in actions if "txn" in action), -1)
        for action in actions:
            if "add" in action:
                file = unquote(action["add"]["path"])
                first.setdefault(file, WrittenFile(batch, action["add"]["partitionValues"].get("part")))
                live[file] = None
            elif "remove" in action:
                live.pop(unquote(action["remove"]["path"]), None)
    return {file: written for file, written in first.items() if file in live}


def newest_batch(table: Path) -> int:
    """Return the newest batch that a Delta table has, -1 for none."""
    return max((written.batch for written in live_files(table).values()), default=-1)


def _batch_of(file: Path) -> int:
    """Return the batch that a folder names, -1 where the sink does not say."""
    return next((int(part.partition("=")[2]) for part in file.parts if part.startswith("batch=")), -1)


def _attempt_of(file: Path) -> str:
    """Return which write a file's name stands for.

    Examples
    --------
    >>> _attempt_of(Path("part-00001-0b5e3a52-6f4d-4f3e-8a51-0c5d0e3c7f11-c000.snappy.parquet"))
    '0b5e3a52-6f4d-4f3e-8a51-0c5d0e3c7f11'
    """
    return file.name.partition("-c")[0].split("-", 2)[-1]


def _read_file_sink(path: Path) -> pd.DataFrame:
    """Return the rows of the files that the sink's own log names."""
    first: dict[Path, int] = {}
    for log in sorted((path / "_spark_metadata").iterdir(), key=lambda entry: entry.name.rjust(20, "0")):
        if log.name.startswith("."):
            continue
        for line in log.read_text().splitlines()[1:]:
            entry: dict[str, Any] = json.loads(line)
            file = path / Path(unquote(urlsplit(entry["path"]).path)).name
            # A compacted log repeats what the logs before it said.
            batch = int(log.name.partition(".")[0])
            first[file] = min(batch, first.get(file, batch))
    return _concat([_read_file(file, WrittenFile(batch)) for file, batch in first.items()])


def _read_file(path: Path, written: WrittenFile) -> pd.DataFrame:
    with pq.ParquetFile(path) as file:
        found = file.read()
    if is_merged(found):
        messages = messages_of(found)
        return _frame(messages).assign(**{BATCH: messages["batch"].to_numpy(), ATTEMPT: ""})
    rows = _frame(found)
    # A partitioned table keeps the partition's value in its log alone.
    told: dict[str, Any] = {BATCH: written.batch, ATTEMPT: written.attempt}
    return rows.assign(**told | ({} if written.part is None else {"part": written.part}))


def _frame(table: pa.Table) -> pd.DataFrame:
    if "throttle" in table.column_names:
        verdict = table.column("throttle").combine_chunks()
        for name in _VERDICT:
            table = table.append_column(name, verdict.field(name))
    columns = {name: _values(table.column(name)) for name in (*COLUMNS, *_VERDICT) if name in table.column_names}
    return pd.DataFrame(columns)


def _values(column: pa.ChunkedArray) -> pd.Series:
    if not pa.types.is_string(column.type):
        return pd.Series(column.fill_null(NO_SIZE).to_numpy())
    raw = pa.chunked_array([chunk.view(pa.binary()) for chunk in column.chunks], pa.binary()).to_pylist()
    return pd.Series([MISSING if one is None else one.decode(errors="surrogateescape") for one in raw], dtype=object)


def _concat(pieces: list[pd.DataFrame]) -> pd.DataFrame:
    if not pieces:
        return pd.DataFrame(columns=[*COLUMNS, *_VERDICT, BATCH]).astype({"id": int, "size": int, BATCH: int})
    return pd.concat(pieces, ignore_index=True)
