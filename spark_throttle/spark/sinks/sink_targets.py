"""The targets of a query's rows as text, by which two runs of the query are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from spark_throttle.checkpoint.definition import FUNCTION
from spark_throttle.spark.sinks.batch_sink import Target
from spark_throttle.spark.sinks.begin_batch import (
    DEAD_LETTERS,
    FOLDERS,
    NAMED_TABLE,
    SINK,
    TABLE,
    USAGE,
)


def targets_of(
    admitted: Target | Callable[[DataFrame, int], None], rejected: Target, usage: Target | None
) -> dict[str, str]:
    """Return the target of each kind of rows as text, in the form of `Definition.targets`."""
    found = {
        SINK: _words(admitted) if isinstance(admitted, Target) else FUNCTION,
        DEAD_LETTERS: f"{FOLDERS}{_location(rejected.path)}"
        if rejected.has_batch_folders and rejected.path is not None
        else _words(rejected),
    }
    return found if usage is None else {**found, USAGE: _words(usage)}


def _words(target: Target) -> str:
    if not target.is_delta:
        return " ".join(word for word in (target.format, target.path, target.table) if word)
    return f"{TABLE}{_location(target.path)}" if target.path is not None else f"{NAMED_TABLE}{target.table}"


def _location(path: str) -> str:
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").strip("/")
    return path.rstrip("/") if ":" in path.partition("/")[0] else str(Path(path).absolute())
