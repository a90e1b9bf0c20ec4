"""Rows for `send`: broken text is readable, everything else is as Arrow gives it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.spark.paced.calls import IdempotencyKey, plain_rows

BROKEN, READ = b"na\xefve", "na\ufffdve"
TEXT = pa.array([BROKEN, None, b"fine"]).view(pa.string())
LARGE = TEXT.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
PAIRS = pa.MapArray.from_arrays([0, 2, 2, 3], pa.array([BROKEN, b"k", b"k"]).view(pa.string()), LARGE)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (TEXT, [READ, None, "fine"]),
        (LARGE, [READ, None, "fine"]),
        (pa.ListArray.from_arrays([0, 1, 3, 3], TEXT), [[READ], [None, "fine"], []]),
        (pa.LargeListArray.from_arrays([0, 1, 3, 3], TEXT), [[READ], [None, "fine"], []]),
        (PAIRS, [[(READ, READ), ("k", None)], [], [("k", "fine")]]),
        (pa.StructArray.from_arrays([TEXT, LARGE], ["a", "b"]), [{"a": r, "b": r} for r in (READ, None, "fine")]),
    ],
    ids=["text", "large text", "list", "large list", "map", "struct"],
)
def test_text_that_is_no_utf8_has_replacement_characters_wherever_it_stands(
    values: pa.Array, expected: list[Any]
) -> None:
    table = pa.table({"n": [1, 2, 3], "raw": [BROKEN, b"", None], "text": values})
    columns = zip((1, 2, 3), (BROKEN, b"", None), expected, strict=True)
    assert plain_rows(table) == [{"n": n, "raw": raw, "text": text} for n, raw, text in columns]


def test_a_key_fits_into_a_header_and_tells_long_namespaces_apart() -> None:
    texts = {IdempotencyKey("q", 1, "i", "é" * 10_000 + end, 0).text for end in "ab"}
    assert len(texts) == 2
    assert all(len(text) < 100 and text.isascii() for text in texts)
    assert IdempotencyKey("q", 1, "i", "a" * 4_000, 0).text == f"q/1/i/{'a' * 4_000}/0"
