"""The first reading: every row once, whatever the pieces, with Spark's types and the place of the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.errors import SourceChangedError
from spark_throttle.spark.references.extents import SourceFile
from spark_throttle.spark.references.reading import DecidingColumns, FirstReading, tasks_of
from spark_throttle.spark.references.row_expressions import ArrowExpression, arrow_expression, column
from spark_throttle.spark.rows.digest import PLACE, digest_of
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE

LONG, TEXT = pa.int64(), pa.string()


def reading(root: Path, **settings: Any) -> FirstReading:
    given = {
        "types": {"ns": TEXT, "size": LONG, "id": LONG},
        "namespace": column("ns"),
        "size": column("size"),
        "order": (column("id"),),
        "partition_columns": {},
        **settings,
    }
    return FirstReading.from_json(FirstReading(str(root), DecidingColumns(**given)).to_json())


def rows_of(found: FirstReading, files: list[SourceFile], tasks: int = 1) -> list[dict[str, Any]]:
    """Return the rows of all frames."""
    rows = [row for pieces in tasks_of(files, tasks) for row in rows_of_pieces(found, pieces)]
    return sorted(rows, key=lambda row: row[PLACE])


def write(root: Path, name: str, table: pa.Table, number: int = 0, **settings: Any) -> SourceFile:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / name, **settings)
    return SourceFile(number, name, (root / name).stat().st_size, 0)


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(1, 5),
)
def test_every_row_is_read_once_whatever_the_row_groups_and_tasks(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], group: int, tasks: int
) -> None:
    root = tmp_path_factory.mktemp("rows")
    files = []
    for number, count in enumerate(counts):
        table = pa.table({"ns": [f"t/{i % 3}" for i in range(count)], "size": range(count), "id": range(count)})
        files.append(write(root, f"{number}.parquet", table, number, row_group_size=group))
    total = sum(file.size_bytes for file in files)
    share = -(-total // tasks)
    rows = []
    for pieces in _cut(files, share):
        rows += rows_of_pieces(reading(root), pieces)
    places = sorted(row[PLACE] for row in rows)
    assert places == [(number << 32) + i for number, count in enumerate(counts) for i in range(count)]
    assert all(row["__throttle_order_000"] == row[PLACE] & 0xFFFFFFFF for row in rows)


def rows_of_pieces(found: FirstReading, pieces: Any) -> list[dict[str, Any]]:
    rows = []
    for batch in found.frames(pieces):
        for frame in batch.column("frame"):
            digest = digest_of(frame.as_py())
            assert digest.file.is_source
            rows += digest.placed(int(digest.file.name.partition("-")[0])).to_pylist()
    return rows


def _cut(files: list[SourceFile], share: int) -> Any:
    """Return tasks as `tasks_of` makes them, for files that are too small for a task of their own."""
    from spark_throttle.spark.references import reading as module

    kept, module._PIECE_BYTES = module._PIECE_BYTES, max(1, share)  # type: ignore[misc]
    try:
        return tasks_of(files, 1_000)
    finally:
        module._PIECE_BYTES = kept  # type: ignore[misc]


def test_rows_have_the_types_and_nulls_that_spark_gives_them(tmp_path: Path) -> None:
    old = write(tmp_path, "old.parquet", pa.table({"NS": ["t/a"], "size": pa.array([7], pa.int32())}))
    new = write(tmp_path, "new.parquet", pa.table({"ns": ["t/b", None], "size": [None, 9], "id": [1, 2]}), 1)
    rows = rows_of(reading(tmp_path), [old, new])
    assert [(row[NAMESPACE], row[SIZE], row["__throttle_order_000"], row[TIE]) for row in rows] == [
        ("t/a", 7, None, 0),
        ("t/b", None, 1, 1 << 32),
        (None, 9, 2, (1 << 32) + 1),
    ]


def test_bytes_are_text_where_spark_takes_them_for_text(tmp_path: Path) -> None:
    table = pa.table({"ns": [b"t/a", b"t/b"], "text": [b"ab", b"\xff"]})
    file = write(tmp_path, "a.parquet", table)
    length = ArrowExpression("bytes", of=(column("text"),))
    found = reading(tmp_path, types={"ns": TEXT, "text": TEXT}, size=length, order=())
    assert [(row[NAMESPACE], row[SIZE]) for row in rows_of(found, [file])] == [("t/a", 2), ("t/b", 1)]


@pytest.mark.parametrize("name", ["size", "SIZE"])
def test_value_of_a_partition_comes_from_the_name_of_its_folder(tmp_path: Path, name: str) -> None:
    path = f"{name}=5/a.parquet"
    written = write(tmp_path, path, pa.table({"ns": ["t/a"], "id": [1]}))
    file = SourceFile(0, path, written.size_bytes, 0, ((name, "5"),))
    (row,) = rows_of(reading(tmp_path), [file])
    assert row[SIZE] == 5


def test_value_of_a_partition_that_takes_spark_is_named(tmp_path: Path) -> None:
    written = write(tmp_path, "size=5,0/a.parquet", pa.table({"ns": ["t/a"], "id": [1]}))
    file = SourceFile(0, written.path, written.size_bytes, 0, (("size", "5,0"),))
    with pytest.raises(SourceChangedError, match=r"partition column 'size'.*spark\.readStream"):
        rows_of(reading(tmp_path), [file])


def test_file_that_was_replaced_before_a_batch_ran_again_is_refused_though_none_of_its_rows_is_left(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "a.parquet", pa.table({"ns": ["t/a"] * 9, "size": [1] * 9, "id": range(9)}))
    write(tmp_path, "a.parquet", pa.table({"ns": pa.array([], TEXT), "size": pa.array([], LONG)}))
    with pytest.raises(SourceChangedError, match="bytes and had"):
        rows_of(reading(tmp_path), [file])


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, harm: str) -> None:
    file = write(tmp_path, "a.parquet", pa.table({"ns": ["t/a"], "size": [1], "id": [1]}))
    if harm == "gone":
        (tmp_path / "a.parquet").unlink()
    else:
        (tmp_path / "a.parquet").write_bytes(b"x" * file.size_bytes)
    with pytest.raises(SourceChangedError, match=r"a\.parquet"):
        rows_of(reading(tmp_path), [file])


KINDS: dict[str, Any] = {"tenant": "text", "topic": "text", "value": "binary", "n": "number", "at": "other"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("concat(tenant, '/', topic)", ["a/x", None, None]),
        ("tenant || '/' || TOPIC", ["a/x", None, None]),
        ("coalesce(topic, 'none')", ["x", "none", "é"]),
        ("length(topic)", [1, None, 1]),
        ("octet_length(topic)", [1, None, 2]),
        ("coalesce(octet_length(value), 0)", [3, 0, 0]),
        ("length(value)", [3, None, 0]),
        ("(n)", [1, 2, None]),
        ("`n`", [1, 2, None]),
        ("'a/b'", ["a/b"] * 3),
    ],
)
def test_simple_expressions_are_computed_without_spark(text: str, values: list[Any]) -> None:
    table = pa.table({
        "tenant": ["a", "b", None], "topic": ["x", None, "é"], "value": [b"abc", None, b""], "n": [1, 2, None],
    })  # fmt: skip
    expression = arrow_expression(text, KINDS)
    assert expression is not None
    found = expression.values(table)
    assert (found.to_pylist() if not isinstance(found, pa.Scalar) else [found.as_py()] * 3) == values
    assert ArrowExpression.from_fields(expression.to_fields()) == expression


@pytest.mark.parametrize(
    "text",
    [
        "upper(tenant)", "n + 1", "-n", "other", "t.tenant", "concat(tenant, n)", "concat(tenant)||value",
        "coalesce(n, 'x')", "length(n)", "cast(n as string)", "concat(", "rand()", "current_user", "'a\\\\b'", "1.5",
        "null", "", "select 1", "tenant, topic", "concat_ws('/', tenant, topic)", "coalesce(n, 9223372036854775808)",
    ],
)  # fmt: skip
def test_expression_that_takes_spark_is_left_to_spark(text: str) -> None:
    assert arrow_expression(text, KINDS) is None


def test_characters_of_text_that_is_not_utf_8_are_those_that_spark_counts() -> None:
    content = pa.array([b"\xc3(\xff\xff", b"\xe9", None, b"", "aé€😀".encode()])
    text = pa.StringArray.from_buffers(len(content), content.buffers()[1], content.buffers()[2], content.buffers()[0])
    expression = arrow_expression("length(topic)", KINDS)
    assert expression is not None
    found = expression.values(pa.table({"topic": text}))
    assert found.to_pylist() == [3, 1, None, 0, 4]


def test_name_that_fits_two_columns_is_left_to_spark() -> None:
    assert arrow_expression("a", {"a": "text", "A": "text"}) is None
