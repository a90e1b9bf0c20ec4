"""The epochs and the paying times of a run's batches, as the offset log and the control directory tell them.

What is admitted is measured by paying time (`spark_throttle.core.limits.paying`), not by Spark's times: a wall clock
and a steady one differ by a millisecond, as each is rounded, and by more where the wall clock is set.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_throttle.core.epoch import Epoch
from spark_throttle.core.limits.paying import PayingTime
from spark_throttle.record import unpack
from tests.ledger import read_batch_times_ms


def read_offsets(checkpoint: Path, batch: int) -> list[dict[str, Any]]:
    """Return the offsets of a batch, of those sources that have had one; the epoch's beside that of references."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
    offsets = [json.loads(line) for line in lines if line != "-"]
    return [each for offset in offsets for each in (offset, offset.get("control")) if each is not None]


def read_epoch_file(checkpoint: Path, batch: int) -> str:
    """Return the name of the epoch's file that a batch's offset names."""
    return next(str(offset["file"]) for offset in read_offsets(checkpoint, batch) if "epoch" in offset)


def read_epoch(checkpoint: Path, file: str) -> Epoch:
    path = checkpoint / "throttle" / "epochs" / file
    return unpack(Epoch, path.read_bytes(), str(path))


def read_paying_times_ms(checkpoint: Path) -> dict[int, int]:
    """Return the paying time of every batch in the offset log."""
    times_ms: dict[int, int] = {}
    before, paid_ms = "", 0
    for batch, time_ms in read_batch_times_ms(checkpoint).items():
        file = read_epoch_file(checkpoint, batch)
        epoch = read_epoch(checkpoint, file)
        paying = PayingTime(epoch.paid_ms, epoch.reading.wall_ms)
        paid_ms = paying.of_batch(time_ms, is_new=file != before, advanced_to_ms=paid_ms)
        times_ms[batch], before = paid_ms, file
    return times_ms
