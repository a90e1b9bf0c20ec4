"""Runs a notebook in Databricks' source format as a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.sessions import ROOT

NOTEBOOKS = ROOT / "notebooks"
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


def run_cells(notebook: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Run the cells in their order, and return what they have named; an error names the notebook's own line."""
    for line, cell in code_cells(notebook):
        exec(compile("\n" * line + cell, str(notebook), "exec"), names)  # noqa: S102 - as a notebook does
    return names
