"""What fails around a query: its disk, its clock, its sink, its stored bytes. It recovers, or says what to do.

Nothing here may cost a row, double one, or let more pass than a quota allows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.spark.shard.operator import ShardOperator
from tests.integration import shifted_clock
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
FIVE_A_SECOND = policies(tenants={"t": publish(messages_per_second=5, burst_seconds=1, on_excess="reject")})
HELD = policies(tenants={"t": publish(messages_per_second=0)})
MOST_AT_ONCE = 6
"""A burst of five, and one message on credit (KIP-599)."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("to mount a small file system takes root")
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small_lake(spark: SparkSession, small_disk: Path) -> Iterator[Lake]:
    """Yield a lake on the small file system."""
    yield Lake(spark, small_disk)
    for query in spark.streams.active:
        query.stop()


def fill(path: Path) -> None:
    """Write a file until there is no room for more."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_full_disk_stops_the_query_and_room_lets_it_go_on(small_lake: Lake, small_disk: Path) -> None:
    small_lake.offer((i, "t/n", 10) for i in range(20))
    small_lake.run(FIVE_A_SECOND)
    small_lake.offer((i, "t/n", 10) for i in range(20, 40))
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        fill(filler)
    with pytest.raises(StreamingQueryException, match="No space left on device"):
        small_lake.run(FIVE_A_SECOND)
    filler.unlink()
    small_lake.run(FIVE_A_SECOND)
    assert sorted(small_lake.admitted_ids + small_lake.rejected_ids) == list(range(40))
    assert all(len(rows) <= MOST_AT_ONCE for rows in small_lake.kept.values())


def test_read_only_checkpoint_stops_the_query_and_nothing_of_the_batch_is_written(
    small_lake: Lake, small_disk: Path
) -> None:
    small_lake.offer((i, "t/n", 10) for i in range(20))
    small_lake.run(FIVE_A_SECOND)
    small_lake.offer((i, "t/n", 10) for i in range(20, 40))
    before = dict(small_lake.kept)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Exception, match="Read-only file system"):
        small_lake.run(FIVE_A_SECOND)
    assert small_lake.kept == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    small_lake.run(FIVE_A_SECOND)
    assert sorted(small_lake.admitted_ids + small_lake.rejected_ids) == list(range(40))


def test_damaged_feedback_is_named_and_restoring_it_goes_on(lake: Lake) -> None:
    lake.offer((i, "t/n", 10) for i in range(20))
    lake.run(FIVE_A_SECOND)
    lake.offer((i, "t/n", 10) for i in range(20, 40))
    file = max((lake.control / "feedback").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(StreamingQueryException, match=f"DamagedError: the feedback file {re.escape(str(file))}"):
        lake.run(FIVE_A_SECOND)
    file.write_bytes(content)
    lake.run(FIVE_A_SECOND)
    assert sorted(lake.admitted_ids + lake.rejected_ids) == list(range(40))
    assert all(len(rows) <= MOST_AT_ONCE for rows in lake.kept.values())


def test_state_file_that_is_cut_stops_the_query_and_restoring_it_goes_on(lake: Lake) -> None:
    lake.offer((i, "t/n", 10) for i in range(20))
    lake.run(HELD)
    lake.offer((i, "t/n", 10) for i in range(20, 40))
    states = sorted(Path(lake.checkpoint).glob("state/0/*/*.delta"), key=lambda path: path.stat().st_size)
    largest = states[-1]
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 2])
    with pytest.raises(StreamingQueryException):
        lake.run(HELD)
    largest.write_bytes(content)
    lake.run(policies())
    assert lake.admitted_ids == list(range(40))


def test_flipped_bit_in_a_queued_frame_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def flipping(*arguments: Any, **named: Any) -> Any:
        """Return an operator that finds one bit of its state changed."""
        operator = ShardOperator(*arguments, **named)

        def run(key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            if state.exists:
                version, block = state.get
                at = len(block) * 9 // 10
                state.update((version, bytes(block[:at]) + bytes([block[at] ^ 4]) + bytes(block[at + 1 :])))
            yield from operator(key, pieces, state)

        return run

    lake.offer((i, f"t/{i % 4}", 10) for i in range(200))
    lake.run(HELD)
    lake.offer((i, "t/1", 10) for i in range(200, 220))
    with monkeypatch.context() as damaged:
        damaged.setattr("spark_throttle.spark.pipeline.ShardOperator", flipping)
        with pytest.raises(StreamingQueryException, match=r"DamagedError: the state of shard \d is damaged"):
            finish(lake.writer(lake.throttle(HELD)).foreachBatch(lake.keep).start())
    assert lake.admitted_ids == []
    lake.run(policies())
    assert lake.admitted_ids == list(range(220))


def test_clock_that_jumps_admits_no_more_than_a_burst(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(json.dumps(FIVE_A_SECOND))
    move_clock = shifted_clock.install(monkeypatch, path)
    admitted = []
    for number, shift_ms in enumerate([0, -HOUR_MS, 60_000 - HOUR_MS, YEAR_MS, 0, 60_000]):
        move_clock(shift_ms)
        lake.offer((i, "t/n", 10) for i in range(20 * number, 20 * number + 20))
        before = len(lake.admitted_ids)
        lake.run(str(path), shards=1)
        admitted.append(len(lake.admitted_ids) - before)
    assert sorted(lake.admitted_ids + lake.rejected_ids) == list(range(120))
    assert max(admitted) <= MOST_AT_ONCE
    # A run takes longer than a bucket fills, whichever way the clock had jumped.
    assert min(admitted) >= 5


def test_sink_that_fails_every_third_time_gets_each_batch_until_it_takes_it(lake: Lake) -> None:
    calls = 0

    def failing(keep: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        def write(rows: DataFrame, batch: int) -> None:
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise OSError("the sink is away")
            keep(rows, batch)

        return write

    for number in range(5):
        lake.offer((i, "t/n", 10) for i in range(20 * number, 20 * number + 20))
    failures: list[str] = []
    has_ended = False
    while not has_ended:
        query = lake.writer(lake.throttle(FIVE_A_SECOND)).foreachBatch(failing(lake.keep)).start()
        try:
            finish(query)
        except StreamingQueryException as error:
            failures.append(str(error))
        else:
            has_ended = True
    assert len(failures) == calls // 3 >= 2
    assert all("the sink is away" in failure for failure in failures)
    assert sorted(lake.admitted_ids + lake.rejected_ids) == list(range(100))
    assert all(len(rows) <= MOST_AT_ONCE for rows in lake.kept.values())
