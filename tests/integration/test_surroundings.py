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

from spark_throttle.spark.move.decider import DigestDecider
from tests.integration import shifted_clock
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
FIVE_A_SECOND = policies(tenants={"t": publish(messages_per_second=5, burst_seconds=1, on_excess="reject")})
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


def test_read_only_checkpoint_and_full_disk_stop_the_query_and_it_goes_on_once_it_can_write(
    small_lake: Lake, small_disk: Path
) -> None:
    """Of the batch that cannot be written nothing is."""
    small_lake.offer((i, "t/n", 10) for i in range(20))
    small_lake.run(FIVE_A_SECOND)
    small_lake.offer((i, "t/n", 10) for i in range(20, 40))
    before = dict(small_lake.kept)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Exception, match="Read-only file system"):
        small_lake.run(FIVE_A_SECOND)
    assert small_lake.kept == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        fill(filler)
    with pytest.raises(StreamingQueryException, match="No space left on device"):
        small_lake.run(FIVE_A_SECOND)
    filler.unlink()
    small_lake.run(FIVE_A_SECOND)
    assert sorted(small_lake.admitted_ids + small_lake.rejected_ids) == list(range(40))
    assert all(len(rows) <= MOST_AT_ONCE for rows in small_lake.kept.values())


def test_damaged_feedback_cut_state_and_a_flipped_bit_are_found_and_what_is_restored_goes_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flipping(*arguments: Any, **named: Any) -> Any:
        """Return a decider that finds one bit of its state changed."""
        decider = DigestDecider(*arguments, **named)

        def run(key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            if state.exists:
                version, block, *others = state.get
                at = len(block) * 9 // 10
                state.update((version, bytes(block[:at]) + bytes([block[at] ^ 4]) + bytes(block[at + 1 :]), *others))
            yield from decider(key, pieces, state)

        return run

    held = policies(tenants=FIVE_A_SECOND["tenants"] | {"held": publish(messages_per_second=0)})
    lake.offer([*((i, "t/n", 10) for i in range(20)), *((i, f"held/{i % 4}", 10) for i in range(100, 300))])
    lake.run(held)
    lake.offer([*((i, "t/n", 10) for i in range(20, 40)), *((i, "held/1", 10) for i in range(300, 320))])

    file = max((lake.control / "batches").iterdir())
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(StreamingQueryException, match=f"DamagedError: the report {re.escape(str(file))}"):
        lake.run(held)
    file.write_bytes(content)

    states = sorted(Path(lake.checkpoint).glob("state/0/*/*.delta"), key=lambda path: path.stat().st_size)
    largest = states[-1]
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 2])
    with pytest.raises(StreamingQueryException):
        lake.run(held)
    largest.write_bytes(content)

    with monkeypatch.context() as damaged:
        damaged.setattr("spark_throttle.spark.pipeline.DigestDecider", flipping)
        with pytest.raises(StreamingQueryException, match="DamagedError: the decider's state is damaged"):
            finish(lake.writer(lake.throttle(held)).foreachBatch(lake.keep).start())
    assert all(row[1] == "t/n" for row in lake.admitted)

    lake.run(FIVE_A_SECOND)
    assert sorted(lake.admitted_ids + lake.rejected_ids) == [*range(40), *range(100, 320)]
    assert [row[0] for row in sorted(lake.admitted) if row[1] != "t/n"] == list(range(100, 320))
    assert all(sum(row[1] == "t/n" for row in rows) <= MOST_AT_ONCE for rows in lake.kept.values())


@pytest.mark.thorough
def test_clock_that_jumps_admits_no_more_than_a_burst(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps while the query runs, and between two of its runs."""
    path = tmp_path / "policies.yaml"
    # The bucket is full again a tenth of a second later: a batch takes longer, whichever way the clock had jumped.
    quota = publish(messages_per_second=50, burst_seconds=0.1, on_excess="reject")
    path.write_text(json.dumps(policies(tenants={"t": quota})))
    move_clock = shifted_clock.install(monkeypatch, path)
    admitted = []
    offered = 0
    for shifts_ms in ([0, -HOUR_MS, 60_000 - HOUR_MS], [YEAR_MS, 0, 60_000]):
        move_clock(shifts_ms[0])
        writer = lake.writer(lake.throttle(str(path))).foreachBatch(lake.keep)
        query = writer.trigger(processingTime="0 seconds").start()
        for shift_ms in shifts_ms:
            move_clock(shift_ms)
            before = len(lake.admitted_ids)
            lake.offer((i, "t/n", 10) for i in range(offered, offered + 20))
            offered += 20
            query.processAllAvailable()
            admitted.append(len(lake.admitted_ids) - before)
        query.stop()
    assert sorted(lake.admitted_ids + lake.rejected_ids) == list(range(120))
    assert max(admitted) <= MOST_AT_ONCE
    assert min(admitted) >= 5


@pytest.mark.thorough
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
