"""Partitions in the log and on the disk, as Spark calls them; and the values that have no folder."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_throttle.spark.rows.partition_names import LONGEST_FOLDER_BYTES, folder, has_folder, partition_values

DATE = pa.date32()


def texts(*values: bytes | None) -> pa.StringArray:
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", None), (b"__HIVE_DEFAULT_PARTITION__", None), (None, None), (b" a ", " a "), (b"007", "007"),
        (b"a\xe9", "a\ufffd"), (b"\xed\xa0\x80", "\ufffd"), (b"\xed\xa0A", "\ufffdA"), (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xe0\x80\x9f\xf0\x90\x80A\xf5", "\ufffd\ufffd\ufffd\ufffdA\ufffd"),
    ],
)  # fmt: skip
def test_text_is_what_java_reads(value: bytes | None, expected: str | None) -> None:
    assert partition_values(texts(value)).to_pylist() == [expected]
    assert partition_values(texts(value).cast(pa.large_binary())).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        (-719_893, "-0001-01-01"), (-719_528, "0000-01-01"), (-719_162, "0001-01-01"), (2_932_896, "9999-12-31"),
        (2_932_897, "+10000-01-01"), (-(2**31), "-5877641-06-23"), (2**31 - 1, "+5881580-07-11"), (None, None),
    ],
)  # fmt: skip
def test_date_of_any_year_is_written_as_spark_does(day: int | None, expected: str | None) -> None:
    assert partition_values(pa.array([day], pa.int32()).view(DATE)).to_pylist() == [expected]


def test_numbers_and_booleans_are_words() -> None:
    assert partition_values(pa.array([-128, None], pa.int8())).to_pylist() == ["-128", None]
    assert partition_values(pa.array([True, False])).to_pylist() == ["true", "false"]


def test_folder_keeps_all_characters_but_those_that_spark_escapes() -> None:
    assert folder("p", "a b!$&()+,-.;<>@_`|}~ü漢\u2028\x80") == "p=a b!$&()+,-.;<>@_`|}~ü漢\u2028\x80"
    assert folder("p", "\x01\x1f\"#%'*/:=?\\{[]^\x7f") == "p=%01%1F%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E%7F"
    assert folder("a:b", None) == "a%3Ab=__HIVE_DEFAULT_PARTITION__"


def test_value_without_a_folder_is_known_and_its_files_still_have_a_place() -> None:
    longest = LONGEST_FOLDER_BYTES - len("p=")
    values = {
        b"a" * longest: True, b"a" * (longest + 1): False, b"a\0": False, "漢".encode() * 84: True,
        "漢".encode() * 85: False, b"=" * 84: True, b"=" * 85: False, b"\xff" * 84: True, b"\xff" * 85: False,
        b"": True,
    }  # fmt: skip
    rows = pa.table({"p": texts(*values, None), "q": ["x"] * (len(values) + 1)})
    found = has_folder(rows, ("p", "q"))
    assert found is not None
    assert found.tolist() == [*values.values(), True]
    for part in partition_values(rows["p"].combine_chunks()).to_pylist():
        assert len(folder("p", part).encode()) <= LONGEST_FOLDER_BYTES
        assert "\0" not in folder("p", part)
    assert folder("p", "b" * 300) != folder("p", "c" * 300)
    assert has_folder(rows.slice(len(values)), ("p", "q")) is None
    assert has_folder(rows, ("q",)) is None


def test_date_that_no_other_reader_knows_has_no_folder() -> None:
    days = pa.array([-96_465_292, -96_465_293, 95_026_236, 95_026_237, None], pa.int32()).view(DATE)
    found = has_folder(pa.table({"d": days}), ("d",))
    assert found is not None
    assert partition_values(days).to_pylist()[:4] == [
        "-262143-01-01", "-262144-12-31", "+262142-12-31", "+262143-01-01"
    ]  # fmt: skip
    assert found.tolist() == [True, False, True, False, True]
