"""The source of control rows and references: one offset pins both, and a batch that runs again reads the same."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_throttle.spark.references.feeds import FolderFeed
from spark_throttle.spark.references.reading import DecidingColumns, FirstReading
from spark_throttle.spark.references.row_expressions import column
from spark_throttle.spark.rows.frames import TIE, FrameKind, decode
from spark_throttle.spark.sources.control_source import ThrottleControlReader
from spark_throttle.spark.sources.reference_source import (
    FilePartition,
    ThrottleReferenceReader,
    ThrottleReferenceSource,
)

LIMIT: Any = None


class Control(ThrottleControlReader):
    """A reader of control rows that says what it is told to say."""

    def __init__(self, *answers: tuple[int, int | None]) -> None:
        super().__init__({})
        self.answers = list(answers)
        self.waits: list[int] = []
        self.committed: list[dict[str, Any]] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"epoch": 0, "file": ""}

    def poll(self, start: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        epoch, wait_ms = self.answers.pop(0) if self.answers else (start["epoch"], None)
        return {"epoch": epoch, "file": str(epoch or "")}, wait_ms

    def wait(self, wait_ms: int) -> None:
        self.waits.append(wait_ms)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        return [] if start == end else [end["epoch"]]

    def commit(self, end: dict[str, Any]) -> None:
        self.committed.append(end)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    columns = DecidingColumns(column("ns"), column("size"), (), {"ns": pa.string(), "size": pa.int64()}, {})
    reading = FirstReading(str(tmp_path / "in"), columns)
    return {
        "controlpath": str(tmp_path / "control"),
        "feed": json.dumps(FolderFeed(str(tmp_path / "in"), 1).to_fields()),
        "reading": reading.to_json(),
        "tasks": "4",
    }


def put(tmp_path: Path, name: str, names: list[str]) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"ns": names, "size": [1] * len(names)}), tmp_path / "in" / name)


def places(reader: ThrottleReferenceReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found = []
    for partition in reader.partitions(start, end):
        if isinstance(partition, FilePartition):
            for batch in pickle.loads(pickle.dumps(reader)).read(partition):  # noqa: S301
                assert batch.column("kind").to_pylist() == [FrameKind.DIGEST]
                found += decode(batch.column("frame")[0].as_py()).column(TIE).to_pylist()
    return sorted(found)


def test_offset_names_an_epoch_and_an_extent_and_a_new_process_reads_the_same(
    tmp_path: Path, options: dict[str, str]
) -> None:
    put(tmp_path, "a.parquet", ["t/a", "t/b"])
    reader = ThrottleReferenceReader(options, control=Control((1, None), (1, None), (1, None)))
    first = reader.initialOffset()
    second = reader.latestOffset(first, LIMIT)
    assert (second["control"], second["extent"]) == ({"epoch": 1, "file": "1"}, 1)
    put(tmp_path, "b.parquet", ["t/c"])
    third = reader.latestOffset(second, LIMIT)
    assert third["extent"] == 2
    again = ThrottleReferenceReader(options, control=Control())
    assert places(again, first, second) == [0, 1]
    assert places(again, second, third) == [1 << 32]
    assert places(again, first, third) == [0, 1, 1 << 32]
    assert again.partitions(second, second) == []


def test_batch_without_a_new_file_brings_a_control_row_alone(tmp_path: Path, options: dict[str, str]) -> None:
    reader = ThrottleReferenceReader(options, control=Control((0, None), (1, None)))
    start = reader.initialOffset()
    assert reader.latestOffset(start, LIMIT) == start, "nothing is due"
    end = reader.latestOffset(start, LIMIT)
    assert [*map(str, reader.partitions(start, end))] == ["1"]
    assert places(reader, start, end) == []


def test_query_that_ends_waits_for_tokens_but_not_while_files_are_left(tmp_path: Path, options: dict[str, str]) -> None:
    put(tmp_path, "a.parquet", ["t/a"])
    control = Control((0, 700), (0, 700), (0, 600), (1, 500))
    reader = ThrottleReferenceReader(options, control=control)
    reader.prepareForTriggerAvailableNow()
    put(tmp_path, "late.parquet", ["t/b"])
    start = reader.initialOffset()
    second = reader.latestOffset(start, LIMIT)
    assert (second["extent"], control.waits) == (1, [])
    third = reader.latestOffset(second, LIMIT)
    assert (third["extent"], third["control"]["epoch"]) == (1, 1)
    assert control.waits == [700, 600]


def test_folder_without_a_new_file_is_not_listed_at_every_trigger(tmp_path: Path, options: dict[str, str]) -> None:
    now = [0.0]
    reader = ThrottleReferenceReader(options, control=Control(), seconds=lambda: now[0])
    start = reader.initialOffset()
    assert reader.latestOffset(start, LIMIT) == start
    put(tmp_path, "a.parquet", ["t/a"])
    now[0] += 0.05
    assert reader.latestOffset(start, LIMIT) == start
    now[0] += 0.06
    assert reader.latestOffset(start, LIMIT)["extent"] == 1


def test_source_is_known_by_its_name_and_passes_commits_on(options: dict[str, str]) -> None:
    control = Control()
    reader = ThrottleReferenceReader(options, control=control)
    reader.commit({"control": {"epoch": 4, "file": "4"}, "extent": 2, "file": "x"})
    assert control.committed == [{"epoch": 4, "file": "4"}]
    assert reader.reportLatestOffset() is None
    assert ThrottleReferenceSource.name() == "throttle_references"
