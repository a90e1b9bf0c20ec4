"""What is damaged, missing or changed stops the query with one clear error, and costs no row."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.record import FORMAT
from spark_throttle.spark.move.decider import DigestDecider
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

SLOW = policies(tenants={"t": publish(messages_per_second=20, burst_seconds=0.5)})


def test_what_was_changed_or_is_missing_or_damaged_is_named_and_no_row_is_lost(lake: Lake) -> None:
    """One checkpoint, to which one thing after another happens; each is put back, and the query goes on."""
    lake.offer([(0, "t/n", 10)])
    lake.offer([(1, "t/n", 10)])

    def is_refused(words: str, **settings: Any) -> None:
        with pytest.raises(StreamingQueryException, match=words):
            lake.run({}, **settings)

    lake.run({})
    lake.crash_in(lake.last_batch())
    epoch = max((lake.control / "epochs").iterdir())
    content = epoch.read_bytes()
    epoch.unlink()
    is_refused(rf"the offset log names epoch \d+, but its file {epoch} is missing: restore")
    epoch.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    is_refused(f"DamagedError: the epoch file {epoch} is damaged: the checksum")
    epoch.write_bytes(content)

    manifest = lake.control / "manifest.json"
    known = manifest.read_bytes()
    manifest.unlink()
    is_refused(r"DamagedError: the control directory .* is damaged: its manifest\.json is missing")
    manifest.write_bytes(known)
    lake.run({})
    assert lake.admitted_ids == [0, 1]

    # Emptied around its control directory: its batches would begin at 0 again, and Delta would skip them.
    for path in (lake.root / "checkpoint").iterdir():
        if path.is_dir() and path != lake.control:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    is_refused(r"ConfigurationError: the control directory .* has run batch \d")
    shutil.rmtree(lake.control)
    lake.kept.clear()
    lake.run({})
    assert lake.admitted_ids == [0, 1]


def test_state_of_an_unknown_version_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(*args: Any, **named: Any) -> Any:
        """Return the decider of a later release, which stores its state in a format of its own."""
        decider = DigestDecider(*args, **named)

        def run(key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            yield from decider(key, pieces, state)
            state.update((99, *state.get[1:]))

        return run

    lake.offer([(0, "t/n", 10)])
    unknown = (
        "UnknownVersionError: the decider's state has format version 99 "
        rf"and this release reads up to {FORMAT}: run"
    )
    with monkeypatch.context() as later:
        later.setattr("spark_throttle.spark.pipeline.DigestDecider", newer)
        query = lake.writer(lake.throttle({})).format("noop").start()
    finish(query)
    lake.offer([(1, "t/n", 10)])
    with pytest.raises(StreamingQueryException, match=unknown):
        finish(lake.writer(lake.throttle({})).format("noop").start())


def test_function_that_throws_is_given_its_batch_again(lake: Lake) -> None:
    """Rows that are kept by the number of their batch are kept once, whatever the function did before it threw.

    It throws before it has written batch 1, and after it has written batch 2.
    """
    for part in range(3):
        lake.offer((part * 10 + i, f"t/n{i % 2}", 10) for i in range(10))
    kept: dict[int, list[tuple[Any, ...]]] = {}
    calls: list[int] = []

    def keep(rows: DataFrame, batch: int) -> None:
        is_first = batch not in calls
        calls.append(batch)
        if batch == 1 and is_first:
            raise OSError("the disk is full")
        found = sorted(map(tuple, rows.collect()))
        assert kept.setdefault(batch, found) == found
        if batch == 2 and is_first:
            raise OSError("the disk is full")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="OSError: the disk is full"):
            finish(lake.writer(lake.throttle(SLOW)).foreachBatch(keep).start())
    finish(lake.writer(lake.throttle(SLOW)).foreachBatch(keep).start())
    assert (calls.count(1), calls.count(2)) == (2, 2)
    assert sorted(row[0] for rows in kept.values() for row in rows) == list(range(30))


def test_policies_that_cannot_be_applied_never_start(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text("tenants: {t: {publish: {messages_per_second: -1}}}")
    with pytest.raises(Exception, match=r"tenants\.t\.publish\.messages_per_second: -1"):
        lake.throttle(str(path))
    assert not lake.spark.streams.active
