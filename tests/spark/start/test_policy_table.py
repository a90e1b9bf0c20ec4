"""A batch reads the policy table beside its rows; a catalog that does not answer holds back no other batch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json
from spark_throttle.spark.start import policy_table
from spark_throttle.spark.start.policy_table import TableReading
from spark_throttle.store.policy_table import NAME, TableRows


class Catalog:
    """A session whose catalog answers when it is let; `asked` counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()

    def rows(self, _spark: Any, table: str, run: str) -> TableRows:
        self.asked += 1
        assert self.answers.wait(60)
        return TableRows.of(table, run, [("exempt", "ops/*", None)])


def test_batch_goes_on_while_the_catalog_does_not_answer_and_takes_what_it_says_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    catalog, batches = Catalog(), list[int]()
    monkeypatch.setattr(policy_table, "_rows", catalog.rows)
    monkeypatch.setattr(policy_table, "PATIENCE_SECONDS", 0.01)
    frames: Any = type("Frames", (), {"sparkSession": None})()
    reading = TableReading(lambda _, batch: batches.append(batch), str(tmp_path), "main.ops.policies", "5eed")

    def left() -> TableRows:
        return of_json(TableRows, Directory(str(tmp_path)).read(NAME) or b"", "it")

    for batch in range(3):
        reading(frames, batch)
        assert left().problem == "it was not read within 0.01 s"
    assert (batches, catalog.asked) == ([0, 1, 2], 1)
    monkeypatch.setattr(policy_table, "PATIENCE_SECONDS", 60)
    catalog.answers.set()
    assert reading._reader is not None
    reading._reader.join()
    reading(frames, 3)
    assert left().rows == (("exempt", "ops/*", ""),)
    reading(frames, 4)
    assert (batches, catalog.asked) == ([0, 1, 2, 3, 4], 2)
