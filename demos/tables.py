"""The output of a finished query, read without Spark: its checkpoint's logs and its Delta tables.

What a job kept on an object store is copied to the disk first. So a run is recounted from the same bytes either way.
In every table, only batches in the checkpoint's commit log are counted. So the tables and the queue in the checkpoint's
state are of the same moment, even if a run was cut short.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import file_system
from spark_throttle.load.traffic import SCHEMA
from spark_throttle.record import unpack

Int64s: TypeAlias = npt.NDArray[np.int64]

_RETAIN: Final = "a run to be recounted needs spark.sql.streaming.minBatchesToRetain above the number of its batches"


@dataclass(frozen=True, slots=True)
class Batch:
    """A committed batch, and the rows of `throttle_load` that it read: `start_row` to `end_row` (excluded)."""

    batch_id: int
    time_ms: int
    start_row: int
    end_row: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A version of a Delta table that a batch wrote."""

    version: int
    batch_id: int
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """The rows of a table, each with the position of its batch."""

    rows: pa.Table
    """The columns of `throttle_load`."""

    batch: Int64s
    """Position in the list of batches."""

    def __len__(self) -> int:
        return len(self.batch)


def ask_for_place(parser: ArgumentParser) -> None:
    """Let a command name the place."""
    parser.add_argument(
        "--place",
        help="where the job keeps tables and checkpoint, empty at the start: a URI as s3a://lake/demo; by default OUT",
    )


def bring(place: str | None, out: Path) -> None:
    """Copy all files of a place on a store to a directory; a run that kept them there needs no copy."""
    if place is not None:
        files, root = file_system(place)
        fs.copy_files(root, str(out), source_filesystem=files, destination_filesystem=fs.LocalFileSystem())


def read_batches(checkpoint: Path) -> list[Batch]:
    """Return the committed batches of a checkpoint, from the first."""
    committed = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    if committed != list(range(len(committed))):
        raise DamagedError(f"the commit log in {checkpoint}", f"it does not begin with batch 0; {_RETAIN}")
    batches: list[Batch] = []
    for batch_id in committed:
        lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        start_row = batches[-1].end_row if batches else 0
        end_row = _load_offset(lines[2:], start_row, f"offset {batch_id} in {checkpoint}")
        batches.append(Batch(batch_id, int(json.loads(lines[1])["batchTimestampMs"]), start_row, end_row))
    return batches


def _load_offset(source_lines: Sequence[str], start_row: int, what: str) -> int:
    """Return the end offset of `throttle_load`: the one source whose offset is `{"rows": n}`."""
    offsets = [json.loads(line) for line in source_lines if line != "-"]
    ours = [offset["rows"] for offset in offsets if isinstance(offset, dict) and offset.keys() == {"rows"}]
    if len(ours) > 1:
        raise DamagedError(what, "two sources have an offset of throttle_load")
    return int(ours[0]) if ours else start_row


def read_batch_times_ms(checkpoint: Path) -> dict[int, int]:
    """Return the batch time of every batch in the offset log."""
    times_ms = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            times_ms[int(path.name)] = int(json.loads(path.read_text().splitlines()[1])["batchTimestampMs"])
    if sorted(times_ms) != list(range(len(times_ms))):
        raise DamagedError(f"the offset log in {checkpoint}", f"it does not begin with batch 0; {_RETAIN}")
    return dict(sorted(times_ms.items()))


def read_offsets(checkpoint: Path, batch: int) -> list[dict[str, Any]]:
    """Return the offsets of a batch, of those sources that have had one; the epoch's beside that of references."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
    offsets = [json.loads(line) for line in lines if line != "-"]
    return [each for offset in offsets for each in (offset, offset.get("control")) if each is not None]


def read_epoch_file(checkpoint: Path, batch: int) -> str:
    """Return the name of the epoch's file that a batch's offset names."""
    return next(str(offset["file"]) for offset in read_offsets(checkpoint, batch) if "epoch" in offset)


def read_epoch(checkpoint: Path, file: str) -> Epoch:
    """Return the epoch in a file of the control directory."""
    path = checkpoint / "throttle" / "epochs" / file
    return unpack(Epoch, path.read_bytes(), str(path))


def read_paying_times_ms(checkpoint: Path) -> dict[int, int]:
    """Return the paying time of every batch in the offset log (`spark_throttle.core.limits.token_bucket`).

    What is admitted is measured by it, not by Spark's times: a wall clock and a steady one differ by a millisecond, as
    each is rounded, and by more where the wall clock is set.
    """
    times_ms: dict[int, int] = {}
    before, paid_ms = "", 0
    for batch, time_ms in read_batch_times_ms(checkpoint).items():
        file = read_epoch_file(checkpoint, batch)
        epoch = read_epoch(checkpoint, file)
        paying = PayingTime(epoch.paid_ms, epoch.reading.wall_ms)
        paid_ms = paying.of_batch(time_ms, is_new=file != before, advanced_to_ms=paid_ms)
        times_ms[batch], before = paid_ms, file
    return times_ms


def read_commits(table: Path) -> list[Commit]:
    """Return the versions of a Delta table that added rows, with the batch that wrote each.

    The batch is the version of the application's transaction (`txnVersion`), which makes the write idempotent.
    """
    commits = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        if not log.stem.isdigit():
            continue
        actions: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines() if line]
        files = tuple(table / unquote(action["add"]["path"]) for action in actions if "add" in action)
        if any("remove" in action for action in actions):
            raise DamagedError(str(log), "it removes files, and only tables that were appended to can be recounted")
        batch_ids = [int(action["txn"]["version"]) for action in actions if "txn" in action]
        if not files:
            continue
        if len(batch_ids) != 1:
            raise DamagedError(str(log), f"it adds rows and names {len(batch_ids)} batches, not one")
        commits.append(Commit(int(log.stem), batch_ids[0], files))
    return commits


def read_rows(table: Path, batches: Sequence[Batch]) -> BatchRows:
    """Return the rows that committed batches wrote to a Delta table; no rows if there is no table."""
    position = {batch.batch_id: index for index, batch in enumerate(batches)}
    pieces: list[pa.Table] = []
    of_batch: list[int] = []
    for commit in read_commits(table):
        if commit.batch_id in position:
            pieces.extend(_read_file(file) for file in commit.files)
            of_batch.extend([position[commit.batch_id]] * len(commit.files))
    rows = pa.concat_tables([SCHEMA.empty_table(), *pieces])
    return BatchRows(rows, np.repeat(np.array(of_batch, dtype=np.int64), _lengths(pieces)))


def as_offered(rows: pa.Table) -> pa.Table:
    """Return the columns of `throttle_load` in a table, in their own types."""
    return rows.select(SCHEMA.names).cast(SCHEMA)


def _read_file(file: Path) -> pa.Table:
    # Spark writes timestamps as INT96, which reads as naive nanoseconds in UTC.
    return as_offered(pq.read_table(file, columns=SCHEMA.names, partitioning=None))


def _lengths(pieces: Iterable[pa.Table]) -> Int64s:
    return np.array([piece.num_rows for piece in pieces], dtype=np.int64)
