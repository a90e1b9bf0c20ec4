"""What a drain answers."""

from __future__ import annotations

from spark_throttle.spark.offline.drain import DrainedQuery


def test_drain_names_the_place_of_the_rows_only_if_there_are_any() -> None:
    assert str(DrainedQuery(12, 200, "/lake/waiting", ())) == "200 rows that waited after batch 12 are in /lake/waiting"
    assert str(DrainedQuery(12, 0, "/lake/waiting", ())) == "no row waited after batch 12, so none was written"
