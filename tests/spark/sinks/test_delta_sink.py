"""The native sink without Spark: tasks write, the driver commits, a batch counts once however often it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import CommitProperties, Transaction
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.manifest import bind
from spark_throttle.control.feedback import newest_batch, read_reports
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError, DamagedError, ForeignFilesError
from spark_throttle.files.storage import Directory
from spark_throttle.record import pack
from spark_throttle.spark.delta.commit import append_batch, has_batch, open_table
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.rows.frames import FrameKind, decode, encode
from spark_throttle.spark.sinks import delta_sink, destination
from spark_throttle.spark.sinks.delta_sink import TaskOutput, ThrottleDeltaSink, ThrottleDeltaWriter
from spark_throttle.spark.sinks.destination import Destination, SinkPlan
from spark_throttle.spark.sinks.file_outlet import FileOutlet
from spark_throttle.status.usage_table import USAGE_SCHEMA
from tests.spark.delta.delta_tables import make_table, rows_of
from tests.status.test_status import POLICY, report

ROWS = StructType().add("id", "long").add("ns", "string")
USAGE = from_arrow_schema(USAGE_SCHEMA)


class Sink:
    """A sink of three destinations below a directory, and the batches that are run through it."""

    def __init__(self, root: Path, *, has_usage: bool = True, partition_columns: tuple[str, ...] = ("ns",)) -> None:
        self.root = root
        self.directory = Directory(str(root / "control"))
        self.query = bind(self.directory, direction="publish").query
        self.directory.write(f"policies/{POLICY.revision}", pack(POLICY))
        self.admitted = make_table(root / "admitted", ROWS, partition_columns=partition_columns)
        usage = Destination(str(make_table(root / "usage", USAGE)), is_table=True, schema_json=USAGE.json())
        self.plan = SinkPlan(
            self.directory.location,
            Destination(f"file://{self.admitted}", True, ROWS.json(), partition_columns),
            Destination(str(root / "rejected"), is_table=False, schema_json=ROWS.json(), compression="none"),
            usage if has_usage else None,
        )

    def writer(self) -> ThrottleDeltaWriter:
        """Return a writer as Spark makes one: from the data source's options."""
        return ThrottleDeltaSink({"plan": self.plan.to_json()}).streamWriter(StructType(), overwrite=False)

    def task(self, frames: Sequence[tuple[FrameKind, bytes]]) -> TaskOutput:
        kinds, blocks = zip(*frames, strict=True) if frames else ((), ())
        batch = pa.record_batch({"kind": pa.array(kinds, pa.int32()), "frame": pa.array(blocks, pa.binary())})
        return self.writer().write(iter([batch]))

    def run(self, number: int, admitted: Sequence[int], rejected: Sequence[int] = ()) -> list[TaskOutput]:
        """Write a batch of two tasks, and return what they say."""
        found = []
        for task in (0, 1):
            frames = [
                *((FrameKind.ADMITTED, frame) for frame in frames_of(admitted[task::2])),
                *((FrameKind.REJECTED, frame) for frame in frames_of(rejected[task::2])),
                (FrameKind.USAGE, pack_usage(report({f"acme/{task}": (number, 1, 0, 0)}))),
            ]
            found.append(self.task(frames))
        return found

    def commit(self, number: int, tasks: Sequence[Any]) -> None:
        self.writer().commit(list(tasks), number)

    @property
    def ids(self) -> list[int]:
        return [row[0] for row in rows_of(self.admitted, "id")]

    @property
    def rejected_ids(self) -> list[tuple[int, int]]:
        """What a reader of the dead letters finds: (batch, id)."""
        found = pads.dataset(self.root / "rejected", partitioning="hive").to_table().to_pylist()
        return sorted((row["batch"], row["id"]) for row in found)

    @property
    def versions(self) -> list[int]:
        return [DeltaTable(self.root / name).version() for name in ("admitted", "usage")]


def frames_of(ids: Sequence[int]) -> list[bytes]:
    schema = to_arrow_schema(ROWS)
    rows = pa.table([pa.array(ids, pa.int64()), pa.array([f"n/{i % 3}" for i in ids], pa.string())], schema=schema)
    return encode(rows)


@pytest.fixture(autouse=True)
def _task_of_batch_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "batch_of_task", lambda: 0)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def test_batch_reaches_all_that_it_is_for(sink: Sink) -> None:
    sink.commit(0, sink.run(0, range(10), [100, 101, 102]))
    assert sink.ids == list(range(10))
    assert sink.rejected_ids == [(0, 100), (0, 101), (0, 102)]
    usage = rows_of(sink.root / "usage", "scope", "admitted_messages")
    assert usage == [("acme", 2), ("acme/0", 1), ("acme/1", 1), ("gold", 0), ("idle", 0), ("job", 2)]
    reports = read_reports(sink.directory, after_batch=-1)[0]
    assert [report.names.to_pylist() for report in reports] == [["acme/0"], ["acme/1"]]
    log = [json.loads(line) for line in (sink.admitted / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    (txn,) = [action["txn"] for action in log if "txn" in action]
    assert (txn["appId"], txn["version"]) == (sink.query, 0)


@pytest.mark.slow
def test_batch_that_is_committed_again_changes_nothing(sink: Sink) -> None:
    first = sink.run(0, range(10), [100])
    sink.commit(0, first)
    before = sink.versions
    again = sink.run(0, range(10), [100])
    sink.commit(0, again)
    assert sink.versions == before
    assert sink.ids == list(range(10))
    assert sink.rejected_ids == [(0, 100)]
    assert {file.path for task in first for file in task.admitted}.isdisjoint(
        file.path for task in again for file in task.admitted
    )


@pytest.mark.slow
@pytest.mark.parametrize("point", ["admitted", "rejected", "usage", "feedback"])
def test_crash_between_two_commits_loses_and_doubles_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Whatever of a batch was committed before a crash, the batch that is run again completes it."""
    done = {"admitted": 0, "rejected": 1, "usage": 2, "feedback": 3}[point]
    calls: list[str] = []

    def crashing(name: str) -> Any:
        real = getattr(delta_sink, name)

        def call(*args: Any) -> None:
            calls.append(name)
            if len(calls) > done:
                raise KeyboardInterrupt
            real(*args)

        return call

    with monkeypatch.context() as crash:
        for name in ("append_once", "show_folder", "write_reports"):
            crash.setattr(delta_sink, name, crashing(name))
        with pytest.raises(KeyboardInterrupt):
            sink.commit(0, sink.run(0, range(6), [7]))
    assert newest_batch(sink.directory) == -1
    sink.commit(0, sink.run(0, range(6), [7]))
    assert sink.ids == list(range(6))
    assert sink.rejected_ids == [(0, 7)]
    assert sink.versions == [1, 1]
    assert newest_batch(sink.directory) == 0


def test_only_files_of_tasks_that_ended_well_count(sink: Sink) -> None:
    """A task that failed, or that ran twice at the same time, has written files that nothing names."""
    sink.run(0, range(100, 110), [200])
    (sink.admitted / "part-00000-torn.snappy.parquet").write_bytes(b"PAR1 torn")
    sink.commit(0, [*sink.run(0, range(4), [5]), None])
    assert sink.ids == list(range(4))
    assert sink.rejected_ids == [(0, 5)]


def test_empty_batch_commits_nothing(tmp_path: Path) -> None:
    sink = Sink(tmp_path, has_usage=False)
    sink.commit(0, [sink.task([])])
    assert sink.versions == [0, 0]
    assert not (tmp_path / "rejected").exists()
    assert newest_batch(sink.directory) == -1  # it moved nothing, so it has nothing to report


def test_dead_letters_are_not_seen_before_their_batch_is_committed(sink: Sink) -> None:
    tasks = sink.run(0, [], [1, 2, 3])
    (folder,) = (sink.root / "rejected").iterdir()
    assert folder.name == "batch=0"
    assert all(path.name.startswith(".") for path in folder.iterdir())
    sink.commit(0, tasks)
    assert not any(path.name.startswith(".") for path in folder.iterdir())
    (schema,) = {
        pq.read_metadata(path).metadata[b"org.apache.spark.sql.parquet.row.metadata"] for path in folder.iterdir()
    }
    assert schema.decode() == ROWS.json()


def test_dead_letters_of_another_attempt_or_writer_are_replaced(sink: Sink) -> None:
    folder = sink.root / "rejected" / "batch=0"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2], "ns": ["a", "b"]}), folder / "part-00000-of-sparks.snappy.parquet")
    (folder / "_SUCCESS").touch()
    sink.commit(0, sink.run(0, [], [1, 2]))
    assert sink.rejected_ids == [(0, 1), (0, 2)]


def test_failed_commit_deletes_no_file(sink: Sink) -> None:
    """Spark calls abort for a commit that failed after one of its tables had been committed."""
    tasks = sink.run(0, range(4))
    sink.commit(0, tasks)
    sink.writer().abort(list(tasks), 0)
    assert sink.ids == list(range(4))


def test_control_directory_that_vanished_is_named(sink: Sink) -> None:
    (sink.root / "control" / "manifest.json").unlink()
    with pytest.raises(DamagedError, match=r"its manifest\.json is missing"):
        sink.commit(0, sink.run(0, [1]))
    assert sink.ids == []


@pytest.mark.slow
def test_table_that_changed_under_the_query_stops_it(sink: Sink) -> None:
    sink.commit(0, sink.run(0, range(4)))
    DeltaTable(sink.admitted).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(ForeignFilesError, match=r"it has a constraint \(positive: id >= 0\)"):
        sink.commit(1, sink.run(1, [4, 5]))
    assert sink.ids == list(range(4))
    assert newest_batch(sink.directory) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [((), ("ns",)), (("ns",), ()), (("ns",), ("id",))])
def test_table_that_was_replaced_with_other_partitions_stops_the_query(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """The files are in the folders of the partitions that the table had as the query began."""
    sink = Sink(tmp_path, partition_columns=before)
    sink.commit(0, sink.run(0, range(4)))
    rows = pa.table({"id": [100], "ns": ["n/0"]})
    write_deltalake(sink.admitted, rows, mode="overwrite", schema_mode="overwrite", partition_by=list(after))
    message = re.escape(f"was partitioned by {list(before)} when the query started, and is now by {list(after)}")
    with pytest.raises(ConfigurationError, match=f"{message}: restart the query"):
        sink.commit(1, sink.run(1, [4, 5]))
    assert sink.ids == [100]
    assert newest_batch(sink.directory) == 0


def test_table_that_is_gone_stops_the_query(sink: Sink) -> None:
    for path in (sink.admitted / "_delta_log").iterdir():
        path.unlink()
    with pytest.raises(ConfigurationError, match=r"the Delta table .*admitted is gone: restore it"):
        sink.commit(0, sink.run(0, [1]))


def opened(sink: Sink) -> DeltaTable:
    table = open_table(str(sink.admitted))
    assert table is not None
    return table


def files_of(sink: Sink) -> list[WrittenFile]:
    return [file for task in sink.run(0, range(4)) for file in task.admitted]


def append(sink: Sink, table: DeltaTable, query: str, batch: int, identity: str = "a") -> None:
    append_batch(table, str(sink.admitted), BatchMark(query, batch, identity), files_of(sink))


def has(sink: Sink, query: str, batch: int, identity: str = "a") -> bool:
    return has_batch(opened(sink), str(sink.admitted), BatchMark(query, batch, identity))


@pytest.mark.slow
def test_commits_of_other_jobs_in_between_are_no_conflict(sink: Sink) -> None:
    table = opened(sink)
    for number in range(3):
        append(sink, opened(sink), f"other-{number}", 0)
    append(sink, table, sink.query, 0)
    assert len(sink.ids) == 16
    assert all(has(sink, app, 0) for app in (sink.query, "other-0", "other-1", "other-2"))


def test_two_processes_of_one_query_commit_a_batch_once(sink: Sink) -> None:
    first, second = opened(sink), opened(sink)
    append(sink, first, sink.query, 0)
    append(sink, second, sink.query, 0)
    assert sink.ids == list(range(4))
    assert not has(sink, sink.query, 1)


def test_conflict_that_is_no_repetition_is_raised(sink: Sink) -> None:
    stale = opened(sink)
    append(sink, opened(sink), sink.query, 0)
    with pytest.raises(CommitFailedError):
        append(sink, stale, sink.query, 1)
    assert sink.ids == list(range(4))


# Batches of the same number that are not the same


def another(sink: Sink, number: int, ids: Sequence[int]) -> list[TaskOutput]:
    """Write a batch as a checkpoint that was put back plans it: later, of other rows."""
    frames = [(FrameKind.ADMITTED, frame) for frame in frames_of(ids)]
    usage = replace(report({"acme/0": (len(ids), len(ids), 0, 0)}), now_ms=77_000 + number)
    return [sink.task([*frames, (FrameKind.USAGE, pack_usage(usage))])]


@pytest.mark.slow
def test_another_batch_of_a_number_that_the_table_has_is_refused(sink: Sink) -> None:
    for number in range(3):
        sink.commit(number, sink.run(number, [number]))
    before = sink.versions
    with pytest.raises(CheckpointMismatchError, match=r"already has a batch 2 of this query, decided from other rows"):
        sink.commit(2, another(sink, 2, [20, 21]))
    with pytest.raises(CheckpointMismatchError, match=r"already has batch 2 of this query, which now comes to batch 1"):
        sink.commit(1, another(sink, 1, [10, 11]))
    assert sink.ids == [0, 1, 2]
    assert sink.versions == before
    assert sorted(read_reports(sink.directory, after_batch=-1)) == [0, 1, 2]


@pytest.mark.parametrize("text", [None, "loaded by hand", '{"throttle": 7}'])
def test_batch_that_an_older_release_committed_is_skipped_by_its_number(sink: Sink, text: str | None) -> None:
    more = {} if text is None else {"userMetadata": text}
    properties = CommitProperties(app_transactions=[Transaction(sink.query, 0)], custom_metadata=more)
    table = opened(sink)
    table.create_write_transaction([], "append", table.schema(), ["ns"], commit_properties=properties)
    sink.commit(0, another(sink, 0, [1, 2]))
    assert sink.ids == []
    assert newest_batch(sink.directory) == 0


def test_two_copies_of_a_checkpoint_that_meet_at_a_batch_do_not_both_count(sink: Sink) -> None:
    first, second = opened(sink), opened(sink)
    append(sink, first, sink.query, 0, "a")
    with pytest.raises(CheckpointMismatchError, match="if a copy of the checkpoint runs too"):
        append(sink, second, sink.query, 0, "b")
    assert sink.ids == list(range(4))


@pytest.mark.slow
def test_identity_is_found_behind_commits_of_others(sink: Sink) -> None:
    append(sink, opened(sink), sink.query, 0, "a")
    for number in range(12):
        append(sink, opened(sink), f"other-{number}", 0, "z")
    assert has(sink, sink.query, 0, "a")
    with pytest.raises(CheckpointMismatchError):
        has(sink, sink.query, 0, "b")


def test_batch_whose_commit_was_cleaned_from_the_log_is_skipped_by_its_number(sink: Sink) -> None:
    append(sink, opened(sink), sink.query, 0, "a")
    append(sink, opened(sink), "other", 0, "z")
    opened(sink).create_checkpoint()
    for version in (0, 1):
        (sink.admitted / "_delta_log" / f"{version:020}.json").unlink()
    assert has(sink, sink.query, 0, "b")
    with pytest.raises(CheckpointMismatchError, match="has batch 0"):
        has(sink, sink.query, -1)


def test_transaction_says_when_it_was_made_for_tables_that_forget_old_ones(sink: Sink) -> None:
    sink.commit(0, sink.run(0, [1]))
    log = (sink.admitted / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    (txn,) = [action["txn"] for action in map(json.loads, log) if "txn" in action]
    assert txn["lastUpdated"] > 1_700_000_000_000


def test_location_that_holds_no_table_is_told_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    assert open_table(str(tmp_path)) is None
    with pytest.raises(ForeignFilesError, match="its log cannot be read without Spark"):
        open_table("nowhere://lake/table")


def test_files_that_the_operator_wrote_are_committed_with_those_of_the_sink(sink: Sink) -> None:
    outlet = FileOutlet(sink.plan, own_file_bytes=1)
    frames = [(kind, frame) for kind in (FrameKind.ADMITTED, FrameKind.REJECTED) for frame in frames_of([3, 4])]
    for kind, ids in ((FrameKind.ADMITTED, range(5, 9)), (FrameKind.REJECTED, [9])):
        files = outlet(kind, [decode(frame) for frame in frames_of(ids)])
        assert files is not None
        frames.append((FrameKind.FILES, files))
    assert sink.ids == []
    assert [path.name[0] for path in (sink.root / "rejected" / "batch=0").iterdir()] == ["."]
    sink.commit(0, [sink.task(frames)])
    assert sink.ids == [3, 4, 5, 6, 7, 8]
    assert sink.rejected_ids == [(0, 3), (0, 4), (0, 9)]


def test_rows_that_are_too_few_for_a_file_stay_frames(sink: Sink) -> None:
    rows = [decode(frame) for frame in frames_of(range(100))]
    few = FileOutlet(sink.plan, own_file_bytes=sum(table.nbytes for table in rows) + 1)
    assert few(FrameKind.ADMITTED, rows) is None
    assert few(FrameKind.REJECTED, []) is None
    assert not list(sink.admitted.rglob("*.parquet"))


def test_operator_writes_rows_that_were_queued_under_an_older_schema(sink: Sink) -> None:
    old = pa.table({"id": pa.array([1, 2], pa.int64())})
    new = pa.concat_tables([decode(frame) for frame in frames_of([3])])
    files = FileOutlet(sink.plan, own_file_bytes=1)(FrameKind.ADMITTED, [old, new])
    assert files is not None
    sink.commit(0, [sink.task([(FrameKind.FILES, files)])])
    assert rows_of(sink.admitted) == [(1, None), (2, None), (3, "n/0")]
    with pytest.raises(ConfigurationError, match="no longer has"):
        FileOutlet(sink.plan, own_file_bytes=1)(FrameKind.ADMITTED, [new.append_column("gone", pa.array([1]))])
