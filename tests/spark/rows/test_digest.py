"""The helper columns that are not sent, and are found where they are needed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_throttle.spark.rows.digest import HelperColumns
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE


def test_helper_column_that_is_a_column_of_the_users_does_not_travel_twice() -> None:
    sent = pa.table({"id": [3, 1, 2], "ns": ["t/3", "t/1", "t/2"], SIZE: [1, 1, 1]})
    rows = HelperColumns({NAMESPACE: "ns", TIE: "id"}).restore(sent)
    assert rows.column(NAMESPACE).to_pylist() == ["t/3", "t/1", "t/2"]
    assert rows.column(TIE).to_pylist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("kind", "in_bytes", "sizes"),
    [
        (pa.string(), False, [0, 1, None, 3]), (pa.large_string(), False, [0, 1, None, 3]),
        (pa.string(), True, [0, 2, None, 8]), (pa.binary(), False, [0, 2, None, 8]),
        (pa.binary(), True, [0, 2, None, 8]),
    ],
)  # fmt: skip
def test_size_that_is_a_length_is_found_by_the_decider(
    kind: pa.DataType, in_bytes: bool, sizes: list[int | None]
) -> None:
    values = pa.array(["", "é", None, "a\U0001f600漢"], pa.string())
    sent = pa.table({"id": [0, 1, 2, 3], "value": values.cast(pa.binary()).cast(kind)})
    derived = HelperColumns(bytes_of="value") if in_bytes else HelperColumns(characters_of="value")
    assert derived.helpers == {SIZE}
    found = derived.restore(sent).column(SIZE)
    assert (found.type, found.to_pylist()) == (pa.int64(), sizes)
