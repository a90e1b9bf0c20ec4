"""A Delta table takes a batch as files once, however often it runs, or is left to Spark's writer, which is told why."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import CommitProperties, Transaction
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from spark_throttle.checkpoint.manifest import bind
from spark_throttle.errors import CheckpointMismatchError, ConfigurationError, ForeignFilesError
from spark_throttle.files.storage import Directory, file_system, write_block
from spark_throttle.spark.delta.table_files import TableFileWriter, WrittenFile
from spark_throttle.spark.delta.table_log import append_batch, has_batch, open_table
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.sinks.file_table import FileTable, check_table, check_types
from spark_throttle.status.usage_table import USAGE_SCHEMA
from tests.spark.delta.delta_tables import make_table, mark_of, rows_of
from tests.status.test_status import POLICY, report

ROWS = StructType().add("id", "long").add("ns", "string")
USAGE = from_arrow_schema(USAGE_SCHEMA)

PLAIN = StructType().add("id", "long").add("s", "string")
INNER = StructType().add("a", "integer").add("b", "string", nullable=False)


def file_table(path: Path, schema: StructType = ROWS, partition_columns: tuple[str, ...] = ()) -> FileTable:
    """Return a new table that takes files."""
    made = make_table(path, schema, partition_columns=partition_columns)
    return FileTable(f"file://{made}", schema.json(), partition_columns)


def files_of(table: FileTable, ids: Sequence[int]) -> list[WrittenFile]:
    """Write a file of rows in a table's directory, which no commit names."""
    files, root = file_system(table.location)
    writer = TableFileWriter(files, root, table.form(), "part-")
    rows = pa.table([pa.array(ids, pa.int64()), [f"n/{i % 3}" for i in ids]], schema=to_arrow_schema(ROWS))
    for batch in rows.to_batches():
        writer.add(batch)
    return writer.finish()


def append(table: FileTable, batch: int, ids: Sequence[int], identity: str = "a") -> None:
    table.append(mark_of(batch, identity), lambda: files_of(table, ids))


def ids_of(table: FileTable) -> list[int]:
    return [row[0] for row in rows_of(Path(table.location.removeprefix("file://")), "id")]


def opened(table: FileTable) -> DeltaTable:
    found = open_table(table.location)
    assert found is not None
    return found


def log_of(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020}.json"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admitted"


@pytest.fixture
def table(path: Path) -> FileTable:
    return file_table(path)


def test_batch_that_is_appended_again_changes_nothing_and_says_when_it_was_made(table: FileTable, path: Path) -> None:
    """A table that forgets old transactions would forget one without a time at once."""
    append(table, 0, range(10))
    version = opened(table).version()
    append(table, 0, range(10))
    assert (opened(table).version(), ids_of(table)) == (version, list(range(10)))
    (txn,) = [action["txn"] for action in map(json.loads, log_of(path, 1).read_text().splitlines()) if "txn" in action]
    assert (txn["appId"], txn["version"]) == ("q", 0)
    assert txn["lastUpdated"] > 1_700_000_000_000


def test_only_files_that_the_decider_names_and_that_leave_whole_are_committed(table: FileTable, path: Path) -> None:
    whole, cut, waiting, rest = (files_of(table, ids)[0] for ids in ([0, 1], [2, 3], [4, 5], [2]))
    (path / "part-torn.snappy.parquet").write_bytes(b"PAR1 torn")

    def answer(file: WrittenFile, admitted: int, *, is_outside: bool = True) -> FileAnswer:
        return FileAnswer(
            file.path, is_outside, 2, 0, 0, True, "", admitted, None, "", None, "", None, file.size_bytes, file.stats
        )

    files = [answer(whole, 2), answer(cut, 1), answer(waiting, 0), answer(waiting, 2, is_outside=False)]
    table.append_staged(mark_of(0), files, [rest])
    assert ids_of(table) == [0, 1, 2]


def test_usage_of_a_batch_is_appended_once(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "control"))
    manifest = bind(directory, direction="publish")
    write_block(directory, f"policies/{POLICY.revision}", POLICY)
    usage, told = file_table(tmp_path / "usage", USAGE), report({"acme/0": (1, 1, 0, 0), "acme/1": (1, 1, 0, 0)})
    for _ in range(2):
        usage.append_usage(directory, mark_of(0).of_part("usage"), told, manifest)
    assert rows_of(tmp_path / "usage", "scope", "admitted_messages") == [
        ("acme", 2), ("acme/0", 1), ("acme/1", 1), ("gold", 0), ("idle", 0), ("job", 2)
    ]  # fmt: skip


def test_two_jobs_that_write_one_usage_table_at_once_lose_no_row_and_say_whose_each_is(tmp_path: Path) -> None:
    usage, told = file_table(tmp_path / "usage", USAGE), report({"acme/0": (1, 1, 0, 0)})
    begun = threading.Barrier(2)

    def write(job: str) -> str:
        directory = Directory(str(tmp_path / job))
        manifest = bind(directory, direction="publish")
        write_block(directory, f"policies/{POLICY.revision}", POLICY)
        begun.wait()
        for batch in range(6):
            usage.append_usage(directory, mark_of(batch, query=f"{job}/usage"), told, manifest)
        return manifest.job

    with ThreadPoolExecutor(2) as jobs:
        names = sorted(jobs.map(write, ("one", "other")))
    rows = rows_of(tmp_path / "usage", "job", "batch_id", "scope", "offered_messages")
    assert [row for row in rows if row[2] == "job"] == [(name, batch, "job", 1) for name in names for batch in range(6)]


@pytest.mark.slow
def test_table_that_changed_under_the_query_stops_it(table: FileTable) -> None:
    append(table, 0, range(4))
    opened(table).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(ForeignFilesError, match=r"it has a constraint \(positive: id >= 0\); restart the query"):
        append(table, 1, [4, 5])
    assert ids_of(table) == list(range(4))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [((), ("ns",)), (("ns",), ()), (("ns",), ("id",))])
def test_table_that_was_replaced_with_other_partitions_stops_the_query(
    path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """The files are in the folders of the partitions that the table had as the query began."""
    table = file_table(path, partition_columns=before)
    append(table, 0, range(4))
    rows = pa.table({"id": [100], "ns": ["n/0"]})
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite", partition_by=list(after))
    message = re.escape(f"was partitioned by {list(before)} when the query started, and is now by {list(after)}")
    with pytest.raises(ConfigurationError, match=f"{message}: restart the query"):
        append(table, 1, [4, 5])
    assert ids_of(table) == [100]


def test_location_that_holds_no_table_is_told_from_one_that_cannot_be_read(tmp_path: Path) -> None:
    assert open_table(str(tmp_path)) is None
    with pytest.raises(ForeignFilesError, match="its log cannot be read without Spark"):
        open_table("nowhere://lake/table")


# Commits of several processes


def commit(table: FileTable, to: DeltaTable, batch: int, identity: str = "a", query: str = "q") -> None:
    """Commit a batch to the table as it was when it was opened."""
    append_batch(to, table.location, mark_of(batch, identity, query), files_of(table, range(4)))


def has(table: FileTable, batch: int, identity: str = "a") -> bool:
    return has_batch(opened(table), table.location, mark_of(batch, identity))


@pytest.mark.slow
def test_commits_of_other_jobs_in_between_are_no_conflict(table: FileTable) -> None:
    before = opened(table)
    for number in range(3):
        commit(table, opened(table), 0, query=f"other-{number}")
    commit(table, before, 0)
    assert len(ids_of(table)) == 16
    assert has(table, 0)


def test_conflict_that_is_no_repetition_is_raised(table: FileTable) -> None:
    stale = opened(table)
    commit(table, opened(table), 0)
    with pytest.raises(CommitFailedError):
        commit(table, stale, 1)
    assert ids_of(table) == list(range(4))


# Batches of the same number that are not the same


@pytest.mark.slow
def test_another_batch_of_a_number_that_the_table_has_is_refused(table: FileTable) -> None:
    for number in range(3):
        append(table, number, [number])
    version = opened(table).version()
    with pytest.raises(CheckpointMismatchError, match=r"already has a batch 2 of this query, decided from other rows"):
        append(table, 2, [20, 21], "b")
    with pytest.raises(CheckpointMismatchError, match=r"already has batch 2 of this query, which now comes to batch 1"):
        append(table, 1, [10, 11], "b")
    assert (opened(table).version(), ids_of(table)) == (version, [0, 1, 2])


@pytest.mark.parametrize("text", [None, "loaded by hand", '{"throttle": 7}'])
def test_batch_without_an_identity_is_skipped_by_its_number(table: FileTable, text: str | None) -> None:
    more = {} if text is None else {"userMetadata": text}
    properties = CommitProperties(app_transactions=[Transaction("q", 0)], custom_metadata=more)
    to = opened(table)
    to.create_write_transaction([], "append", to.schema(), [], commit_properties=properties)
    append(table, 0, [1, 2])
    assert ids_of(table) == []


@pytest.mark.slow
def test_identity_is_found_behind_commits_of_others(table: FileTable) -> None:
    commit(table, opened(table), 0, "a")
    for number in range(12):
        commit(table, opened(table), 0, "z", f"other-{number}")
    assert has(table, 0, "a")
    with pytest.raises(CheckpointMismatchError):
        has(table, 0, "b")


def test_batch_whose_commit_was_cleaned_from_the_log_is_skipped_by_its_number(table: FileTable, path: Path) -> None:
    commit(table, opened(table), 0, "a")
    commit(table, opened(table), 0, "z", "other")
    opened(table).create_checkpoint()
    for version in (0, 1):
        log_of(path, version).unlink()
    assert has(table, 0, "b")
    with pytest.raises(CheckpointMismatchError, match="has batch 0"):
        has(table, -1)


def test_files_may_have_nulls_in_every_column(path: Path) -> None:
    """A row that waited lacks the columns that the stream got meanwhile."""
    strict = StructType().add("id", "long", nullable=False)
    assert all(field.nullable for field in FileTable(str(path), strict.json()).form().schema)


def features(*names: str, reader: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a protocol that lists features."""
    found: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7}
    return found | {"writerFeatures": [*names, *reader]} | ({"readerFeatures": list(reader)} if reader else {})


def check(path: Path, rows: StructType = PLAIN, asked: tuple[str, ...] = (), **table: Any) -> None:
    """Make a table and ask whether rows may be appended."""
    made = make_table(path / "t", table.pop("schema", rows), **table)
    check_table(DeltaTable(made), "the sink", rows, asked)


def with_metadata(**metadata: Any) -> StructType:
    return StructType(
        [PLAIN[0], StructField("s", StringType(), metadata={k.replace("__dot__", "."): v for k, v in metadata.items()})]
    )


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}},
        {"properties": {"delta.appendOnly": "true"}},
        {
            "properties": {"delta.columnMapping.mode": "none"},
            "protocol": features("columnMapping") | {"minReaderVersion": 2},
        },
        {"properties": {"delta.enableChangeDataFeed": "true"}, "protocol": features("changeDataFeed")},
        {"protocol": features("generatedColumns", "checkConstraints", "invariants")},
        {"protocol": features(reader=("deletionVectors", "timestampNtz"))},
        {"properties": {"delta.autoOptimize.optimizeWrite": "false"}},
        {"partition_columns": ("s",)},
        {"schema": StructType([*PLAIN, StructField("more", IntegerType())])},
    ],
    ids=str,
)
def test_table_that_asks_for_rows_alone_takes_them(tmp_path: Path, table: dict[str, Any]) -> None:
    check(tmp_path, **table)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, "it needs a writer of version 5"),
        ({"protocol": features("rowTracking", "domainMetadata")}, "the table feature domainMetadata, rowTracking"),
        ({"protocol": features("clustering")}, "the table feature clustering"),
        ({"protocol": features(reader=("v2Checkpoint",))}, "the table feature v2Checkpoint"),
        ({"protocol": features("somethingNew")}, "the table feature somethingNew"),
        ({"properties": {"delta.columnMapping.mode": "name"}}, r"uses column mapping .*mode is 'name'"),
        ({"properties": {"delta.constraints.pos": "id > 0"}}, r"it has a constraint \(pos: id > 0\)"),
        ({"properties": {"delta.autoOptimize.autoCompact": "auto"}}, "optimize .*autoCompact is auto"),
        ({"schema": with_metadata(delta__dot__generationExpression="id")}, "its column 's' is generated"),
        ({"schema": with_metadata(delta__dot__invariants="s > 1")}, "its column 's' has an invariant"),
        ({"schema": with_metadata(CURRENT_DEFAULT="'x'")}, "its column 's' has a default"),
        ({"schema": with_metadata(__CHAR_VARCHAR_TYPE_STRING="varchar(3)")}, "its column 's' has a bounded length"),
        ({"schema": StructType([StructField("id", LongType(), nullable=False), PLAIN[1]])}, "'id' takes no null"),
        ({"schema": StructType([*PLAIN, StructField("z", LongType(), nullable=False)])}, "'z' takes no null"),
        ({"schema": StructType([StructField("ID", LongType()), PLAIN[1]])}, "'id' is spelled 'ID' in the table"),
        ({"schema": StructType([StructField("id", IntegerType()), PLAIN[1]])}, "is long, and in the table integer"),
        ({"partition_columns": ("id", "s")}, "the rows have no column except"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_table_that_asks_for_more_is_left_to_spark(tmp_path: Path, table: dict[str, Any], why: str) -> None:
    with pytest.raises(ForeignFilesError, match=f"^the sink takes no files .*: .*{why}.*use Spark's writer"):
        check(tmp_path, **table)


def test_fields_of_structs_are_looked_at_too(tmp_path: Path) -> None:
    strict = StructType().add("id", "long").add("s", MapType(StringType(), INNER))
    loose = json.loads(strict.json())
    loose["fields"][1]["type"]["valueType"]["fields"][1]["nullable"] = True
    with pytest.raises(ForeignFilesError, match="its column 's' takes no null inside"):
        check(tmp_path / "strict", StructType.fromJson(loose), schema=strict)
    check(tmp_path / "loose", strict, schema=json.dumps(loose))
    loose["fields"][1]["type"]["valueType"]["fields"][0]["metadata"] = {"delta.typeChanges": []}
    with pytest.raises(ForeignFilesError, match=r"its column 's\.a' has a widened type"):
        check(tmp_path / "widened", strict, schema=json.dumps(loose))


@pytest.mark.parametrize("name", ["timestamp", "double", "decimal(10,2)"])
def test_partition_column_whose_text_depends_on_the_writer_is_left_to_spark(tmp_path: Path, name: str) -> None:
    rows = StructType().add("id", "long").add("p", name)
    with pytest.raises(ForeignFilesError, match=r"partitioned by 'p', which is"):
        check(tmp_path, rows, partition_columns=("p",))


@pytest.mark.parametrize(
    ("table", "asked", "message"),
    [
        ({"schema": StructType([PLAIN[0]])}, (), r"has no column 's', which the rows have: .*mergeSchema"),
        ({"schema": StructType([PLAIN[0], StructField("s", LongType())])}, (), "long and the rows .* as string: cast"),
        ({"partition_columns": ("s",)}, ("id",), r"is partitioned by \['s'\] and partitionBy says \['id'\]"),
        ({}, ("s",), r"is partitioned by \[\] and partitionBy says \['s'\]"),
    ],
)  # fmt: skip
def test_rows_that_no_writer_could_append_are_refused(
    tmp_path: Path, table: dict[str, Any], asked: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        check(tmp_path, PLAIN, asked, **table)
    assert not isinstance(refused.value, ForeignFilesError)


@pytest.mark.parametrize(
    "data_type",
    [
        YearMonthIntervalType(),
        DayTimeIntervalType(),
        VariantType(),
        VarcharType(3),
        StringType("UNICODE"),
        StructType(),
    ],
    ids=str,
)
def test_types_that_parquet_keeps_in_sparks_own_way_are_left_to_spark(data_type: Any) -> None:
    for nested in (data_type, ArrayType(data_type), MapType(StringType(), data_type), StructType().add("a", data_type)):
        with pytest.raises(ForeignFilesError, match=r"^the sink takes no files .*: the column 'x' is "):
            check_types("the sink", StructType().add("x", nested))
