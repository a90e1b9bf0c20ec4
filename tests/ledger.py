"""What a run left behind, recounted from its tables and its offset log alone: without Spark, without the library.

A Delta sink names the batch of every commit (`txnVersion`), and the rows of a commit stand in its files in the order in
which they were written. So the order in which rows left, and the batch time at which they did, is in the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

BATCH = "batch_id"


def read_table(table: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Return the rows of a Delta table in the order in which they were written, with their batch.

    A batch must be one commit, and the table only appended to.
    """
    pieces: list[pd.DataFrame] = []
    seen: set[int] = set()
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines() if line]
        assert not any("remove" in action for action in actions), f"{log} removes files"
        files = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        batches = [int(action["txn"]["version"]) for action in actions if "txn" in action]
        if files:
            (batch,) = batches
            assert batch not in seen, f"batch {batch} is in {table} twice"
            seen.add(batch)
            pieces += [_read_file(table / file, columns).assign(**{BATCH: batch}) for file in files]
    if not pieces:
        return pd.DataFrame(columns=[*(columns or []), BATCH])
    return pd.concat(pieces, ignore_index=True)


def _read_file(path: Path, columns: list[str] | None) -> pd.DataFrame:
    frame: pd.DataFrame = pq.read_table(path, columns=columns, partitioning=None).to_pandas()
    return frame


def count_out_of_order(rows: pd.DataFrame, *, key: str, by: str) -> int:
    """Return how many rows stand behind one of their key that should have come after them."""
    latest = rows.groupby(key, sort=False)[by].cummax()
    return int((rows[by] < latest).sum())


def excess(
    admitted: Mapping[int, int] | pd.Series, times_ms: Mapping[int, int], *, per_second: float, burst: float
) -> float:
    """Return by how much the fullest window of batches passes ``burst + rate * duration``; negative if none does.

    A window is any run of batches, from the time of its first to the time of its last.

    Examples
    --------
    Of 5 a second with a burst of 10, the second batch may have 5 and has 6.

    >>> excess({0: 10, 1: 6}, {0: 0, 1: 1000}, per_second=5, burst=10)
    1.0
    """
    amounts = np.array([admitted.get(batch, 0) for batch in times_ms], dtype=np.float64)
    first_ms = min(times_ms.values(), default=0)  # of the epoch's seconds a float has too few digits left
    seconds = np.array([time_ms - first_ms for time_ms in times_ms.values()], dtype=np.float64) / 1000
    passed = np.concatenate([[0.0], np.cumsum(amounts)])
    # With s(i) = passed before i - rate * t(i), a window's excess is passed after j - rate * t(j) - s(i) - burst.
    lowest = np.minimum.accumulate(passed[:-1] - per_second * seconds)
    return round(float(np.max(passed[1:] - per_second * seconds - lowest) - burst), 6)
