"""Where the rows of a query go, in words that two runs of it are compared by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_throttle.control.begun import Begun, newest_uncommitted, read_begun, refuse_other
from spark_throttle.control.definition import FUNCTION, Definition
from spark_throttle.control.manifest import read_manifest
from spark_throttle.control.storage import Directory
from spark_throttle.spark.batch_sink import DELTA, Target
from spark_throttle.spark.begin_batch import DEAD_LETTERS, FOLDERS, NAMED_TABLE, SINK, TABLE, USAGE, has_rows


def targets_of(
    spark: SparkSession,
    admitted: Target | Callable[[DataFrame, int], None],
    rejected: Target,
    usage: Target | None,
) -> dict[str, str]:
    """Return where the rows of a query go."""
    found = {
        SINK: _target(spark, admitted) if isinstance(admitted, Target) else FUNCTION,
        DEAD_LETTERS: f"{FOLDERS}{rejected.path}" if rejected.has_batch_folders else _target(spark, rejected),
    }
    return found if usage is None else {**found, USAGE: _target(spark, usage)}


def _target(spark: SparkSession, target: Target) -> str:
    if target.promise != "exactly once":
        return " ".join(word for word in (target.format, target.path, target.table) if word)
    if target.path is not None:
        return f"{TABLE}{_location(target.path)}"
    if target.table is not None and spark.catalog.tableExists(target.table):
        details = spark.sql(f"DESCRIBE DETAIL {target.table}").collect()[0]
        if details["format"] == DELTA:
            return f"{TABLE}{_location(str(details['location']))}"
    return f"{NAMED_TABLE}{target.table}"


def _location(path: str) -> str:
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").strip("/")
    return path.rstrip("/") if ":" in path.partition("/")[0] else str(Path(path).absolute())


def refuse_changed(control_path: str, checkpoint: str, definition: Definition) -> None:
    """Refuse to start a query whose uncommitted batch a sink has as another definition decided it.

    Where this process does not see the checkpoint, `begin_batch` refuses it later.

    Raises
    ------
    DefinitionChangedError
        If so.
    """
    directory = Directory(control_path)
    before, manifest = read_begun(directory), read_manifest(directory)
    if before is None or manifest is None or newest_uncommitted(Directory(checkpoint)) != before.batch:
        return
    query, batch = manifest.query, before.batch
    refuse_other(directory, before, Begun(batch, "", definition), lambda *target: has_rows(query, batch, *target))
