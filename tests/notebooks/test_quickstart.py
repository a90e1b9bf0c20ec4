"""The quickstart notebook runs, and shows the numbers that its text names."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sessions import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

NOTEBOOK = ROOT / "notebooks" / "01_quickstart.py"
HEADER = "# Databricks notebook source\n"
SEPARATOR = "\n# COMMAND ----------\n"


def code_cells(notebook: Path) -> Iterator[tuple[int, str]]:
    """Yield the Python cells of a notebook, each with the number of the line before its first."""
    source = notebook.read_text()
    assert source.startswith(HEADER)
    line = 0
    for cell in source.split(SEPARATOR):
        if not cell.removeprefix(HEADER).lstrip("\n").startswith("# MAGIC"):
            yield line, cell
        line += (cell + SEPARATOR).count("\n")


def run_cells(notebook: Path, names: dict[str, Any]) -> None:
    """Run the cells in their order; an error names the notebook's own line."""
    for line, cell in code_cells(notebook):
        exec(compile("\n" * line + cell, str(notebook), "exec"), names)  # noqa: S102 - as a notebook does


@pytest.fixture
def partitions_restored(spark: SparkSession) -> Iterator[None]:
    """Put back the setting that the notebook changes."""
    key = "spark.sql.shuffle.partitions"
    before = str(spark.conf.get(key))
    yield
    spark.conf.set(key, before)


@pytest.mark.usefixtures("partitions_restored")
def test_quickstart_shows_the_numbers_that_it_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}
    run_cells(NOTEBOOK, names)

    assert names["admitted"] == {"acme": 1000, "globex": 1000, "initech": 101}
    assert names["rejected"] == {"initech": 899, None: 1}
    first, *later = names["globex_batches"]
    assert (first["offered_messages"], first["admitted_messages"], first["waiting_messages"]) == (1000, 201, 799)
    assert sum(batch["admitted_messages"] for batch in later) == 799
    assert (later[-1]["batch_time"] - first["batch_time"]).total_seconds() >= 798 / 200

    assert "acme" not in names["tenants"]
    assert names["tenants"]["globex"].messages_per_second == 1
    assert names["tenants"]["globex"].waiting_messages > 990
    after = names["admitted_after"]
    assert (after["acme"], after["globex"]) == (2000, 2000)
    assert 202 <= after["initech"] < 2000
    assert (names["dry_run_counts"]["admitted"], names["dry_run_counts"]["observed"]) == (2000, 1899)

    shown = capsys.readouterr().out
    assert "namespace_missing" in shown
    assert "globex: quota 1.0/s" in shown
