"""The sinks of a query: for the check before it runs (`start.start_check`), and as text by which two runs differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_throttle.checkpoint.definition import FUNCTION
from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.sinks.batch_sink import Target
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.tables import Targets
from spark_throttle.spark.sinks.taken_batch import (
    DEAD_LETTERS,
    FOLDERS,
    NAMED_TABLE,
    SINK,
    TABLE,
    USAGE,
)
from spark_throttle.spark.start.spark_paths import local_path
from spark_throttle.spark.start.start_check import Sinks

_PARTS = ("", "rejected", "usage")
"""Suffixes of the query's name in the transactions of the sink, the dead letters and the usage table."""


def sinks_of(spark: SparkSession, checkpoint: str, targets: Targets, usage: Target | FileTable | None) -> Sinks:
    """Return the sinks of a query."""
    tables, dead_letters = [], None
    for part, target in zip(_PARTS, (targets.admitted, targets.rejected, usage), strict=True):
        if isinstance(target, FileTable):
            tables.append((part, target.location))
        elif isinstance(target, Target):
            location = _location_of_table(spark, target)
            if location is not None:
                tables.append((part, location))
            elif part == "rejected" and target.has_batch_folders:
                dead_letters = local_path(str(target.path))
    return Sinks(checkpoint, tuple(tables), dead_letters, callable(targets.admitted))


def _location_of_table(spark: SparkSession, target: Target) -> str | None:
    """Return the location of a Delta table; `None` if the target is not a Delta table or does not exist yet."""
    if not target.is_delta:
        return None
    if target.path is not None:
        return local_path(target.path)
    if target.table is None or not spark.catalog.tableExists(target.table):
        return None
    return str(spark.sql(f"DESCRIBE DETAIL {target.table}").collect()[0]["location"])


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


def refuse_shared_places(
    admitted: Target | Callable[[DataFrame, int], None], rejected: Target, usage: Target | None
) -> None:
    """Refuse places in which readers could not tell one kind of rows from the other.

    One Delta table may take admitted rows and dead letters, whose column ``throttle`` tells them apart.

    Raises
    ------
    ConfigurationError
        If the usage table is also the table of other rows, or dead letters in files lie among the sink's own.
    """
    given = {SINK: admitted, DEAD_LETTERS: rejected, USAGE: usage}
    places = {kind: _place(target) for kind, target in given.items() if isinstance(target, Target)}
    pairs = [(USAGE, SINK), (USAGE, DEAD_LETTERS)] + ([(DEAD_LETTERS, SINK)] if rejected.has_batch_folders else [])
    for one, other in pairs:
        if places.get(one) is not None and places[one] == places.get(other):
            raise ConfigurationError(f"{one} and {other} are both {places[one]}: give each a place of its own")


def _place(target: Target) -> str | None:
    """Return where a target's rows are, by a path or the name of a table; `None` for another system."""
    if target.path is not None:
        return _location(target.path) if target.kind.has_path else None
    return None if target.table is None else target.table.lower()


def _words(target: Target) -> str:
    if not target.is_delta:
        return " ".join(word for word in (target.format, target.path, target.table) if word)
    return f"{TABLE}{_location(target.path)}" if target.path is not None else f"{NAMED_TABLE}{target.table}"


def _location(path: str) -> str:
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").strip("/")
    return path.rstrip("/") if ":" in path.partition("/")[0] else str(Path(path).absolute())
