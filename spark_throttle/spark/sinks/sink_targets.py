"""The targets of a query's rows as text, by which two runs of the query are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_throttle.checkpoint.definition import FUNCTION, Definition
from spark_throttle.checkpoint.drained import refuse_drained
from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.checkpoint.open_batch import begin, newest_uncommitted, read_open_batch
from spark_throttle.files.storage import Directory
from spark_throttle.spark.sinks.batch_sink import Target
from spark_throttle.spark.sinks.begin_batch import (
    APP_SUFFIX,
    DEAD_LETTERS,
    FOLDERS,
    NAMED_TABLE,
    SINK,
    TABLE,
    USAGE,
    has_rows,
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


def location_of(spark: SparkSession, name: str) -> str | None:
    """Return the location of a Delta table in the catalog; `None` if it cannot be determined."""
    try:
        if not spark.catalog.tableExists(name):
            return None
        return str(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])
    except PySparkException:
        return None


def refuse_changed(spark: SparkSession, control_path: str, checkpoint: str, definition: Definition) -> None:
    """Refuse to start a query if a sink has its uncommitted batch as decided by another definition.

    A checkpoint that was drained is refused too.

    If this process does not see the checkpoint, `begin_batch` refuses the batch later. If no sink has the batch, it is
    recorded under the new definition.

    Raises
    ------
    DrainedError
        If the waiting rows of the checkpoint were written elsewhere.
    DefinitionChangedError
        If a sink has the batch, or may have it, as decided by another definition.
    """
    directory = Directory(control_path)
    refuse_drained(directory)
    before, manifest = read_open_batch(directory), read_manifest(directory)
    if before is None or manifest is None or before.definition == definition:
        return
    query, batch = manifest.query, before.batch
    if newest_uncommitted(Directory(checkpoint)) != batch:
        return
    begin(
        directory,
        batch,
        definition,
        lambda kind, target: has_rows(query + APP_SUFFIX[kind], batch, target, partial(location_of, spark)),
    )
