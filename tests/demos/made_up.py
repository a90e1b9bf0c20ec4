"""Runs that never were: a checkpoint's logs and Delta tables, written by hand, to be recounted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.token_bucket import ClockReading
from spark_throttle.record import pack


def write_checkpoint(
    checkpoint: Path, batches: Sequence[tuple[int, int]], *, uncommitted: Sequence[tuple[int, int]] = ()
) -> Path:
    """Write the logs of batches of (time in ms, rows offered up to then), in Spark's form."""
    for name in ("offsets", "commits", "throttle/epochs"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    for batch_id, (time_ms, end_row) in enumerate([*batches, *uncommitted]):
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time_ms, "conf": {"spark.sql.shuffle.partitions": "2"}}
        control = {"epoch": batch_id, "revision": "0123456789abcdef", "tick": batch_id, "file": str(batch_id)}
        epoch = Epoch(batch_id, "0123456789abcdef", time_ms, ClockReading(time_ms, time_ms, time_ms, "boot"), -1)
        (checkpoint / "throttle" / "epochs" / str(batch_id)).write_bytes(pack(epoch))
        lines = ["v1", json.dumps(metadata), json.dumps({"rows": end_row}), json.dumps(control)]
        (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))
        if batch_id < len(batches):
            (checkpoint / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (checkpoint / "offsets" / f".{batch_id}.crc").write_text("")
    return checkpoint


def write_table(table: Path, by_batch: Mapping[int, pa.Table], app_id: str = "the-query") -> Path:
    """Write a Delta table that each batch appended to, in two files, with the application's transaction."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    commits: list[list[dict[str, object]]] = [[{"protocol": {"minReaderVersion": 1}}, {"metaData": {"id": "x"}}]]
    for batch_id, rows in by_batch.items():
        actions: list[dict[str, object]] = [{"txn": {"appId": app_id, "version": batch_id, "lastUpdated": 0}}]
        half = rows.num_rows // 2
        for part, piece in enumerate((rows.slice(0, half), rows.slice(half))):
            name = f"part {part} of {batch_id}.parquet"
            # INT96 is what Spark writes timestamps as.
            pq.write_table(piece, table / name, use_deprecated_int96_timestamps=True)
            actions.append({"add": {"path": name.replace(" ", "%20"), "dataChange": True}})
        commits.append(actions)
    for version, actions in enumerate(commits):
        (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))
    return table
