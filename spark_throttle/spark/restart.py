"""A start on an existing checkpoint is refused, before anything is written, if the query could not go on from it.

A checkpoint may belong to a query without the throttle, or of the other direction, or its uncommitted batch may be in a
sink, decided otherwise. And rows may wait that cannot leave with the stream's columns. All of this would else end the
query later: in Spark's words, or in every batch in which such a row leaves.

A process that does not see the checkpoint, or cannot read its states, refuses nothing here. What can be is refused by
the control source, or inside a batch, in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.definition import Definition, OpenBatch, begin, read_open_batch
from spark_throttle.checkpoint.manifest import Manifest, read_manifest, refuse_drained, refuse_unbound
from spark_throttle.checkpoint.offset_log import read_offset_log
from spark_throttle.control.epochs import logged_epoch
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.model import Direction
from spark_throttle.spark.columns.late_costs import SETTLED_BY
from spark_throttle.spark.sinks.taken_batch import APP_SUFFIX, has_rows
from spark_throttle.spark.start.spark_paths import SparkPaths
from spark_throttle.spark.state_reader import is_readable, misfit

_PAGE: Final = "docs/changing-a-job.md"
_WIDENED: Final = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))
"""Types, each of which holds all values of those before it."""


def refuse_foreign(checkpoint: str, control_path: str) -> None:
    """Refuse a checkpoint that was drained, or with which a query without the throttle began.

    Raises
    ------
    DrainedError
        If the waiting rows of the checkpoint were written elsewhere.
    ConfigurationError
        If its batches were planned without a throttle.
    """
    control, directory = Directory(control_path), Directory(checkpoint)
    refuse_drained(control)
    planned = read_offset_log(directory).logged
    if planned >= 0 and read_manifest(control) is None and logged_epoch(directory, planned) is None:
        raise ConfigurationError(
            f"the checkpoint {checkpoint} is of a query without the throttle, which has planned batch {planned}, and "
            f"Spark goes on from a checkpoint only with the sources and operators that it began with: start the "
            f"throttled query with a new checkpoint, from the position of that query (docs/streams.md)"
        )


def refuse_restart(
    spark: SparkSession,
    checkpoint: str,
    control_path: str,
    definition: Definition,
    waiting_schema: StructType,
    *,
    direction: Direction,
) -> None:
    """Refuse to start a query on a checkpoint that is not of this query, or whose rows cannot go on.

    The waiting rows are looked at, by a Spark job, only if the columns changed since the last batch.

    Parameters
    ----------
    waiting_schema
        The columns with which waiting rows leave.

    Raises
    ------
    DefinitionChangedError
        If a sink has the uncommitted batch, or may have it, as decided by another definition.
    ConfigurationError
        If the checkpoint is of the other direction, or rows wait with a column that the stream no longer has, or with
        a value that its new type does not hold.
    """
    directory, log = Directory(control_path), Directory(checkpoint)
    manifest, before = read_manifest(directory), read_open_batch(directory)
    if manifest is None:
        return
    refuse_unbound(manifest, direction=direction)
    if before is None:
        return
    refuse_other_sources(before.definition, definition)
    if read_offset_log(log).committed >= 0 and is_readable(checkpoint):
        is_held = _holds_all(dict(before.definition.columns), dict(definition.columns))
        problem = None if is_held else misfit(spark, checkpoint, control_path, waiting_schema)
        if problem is not None:
            raise ConfigurationError(f"{problem} ({_PAGE})")
    _refuse_changed(spark, directory, log, manifest, before, definition)  # last, because it may record the definition


def refuse_other_sources(before: Definition, now: Definition) -> None:
    """Refuse a query that has a stream of costs, and had none, or the other way round."""
    had, has = (any(name.startswith(SETTLED_BY) for name in each.expressions) for each in (before, now))
    if had != has:
        change, remedy = ("none any more", "give it again") if had else ("one now", "start with a new checkpoint")
        raise ConfigurationError(
            f"of streams of costs (settled_by) the query has {change}, and Spark goes on from a checkpoint only with "
            f"the sources that it began with: {remedy} ({_PAGE})"
        )


def _refuse_changed(
    spark: SparkSession,
    directory: Directory,
    checkpoint: Directory,
    manifest: Manifest,
    before: OpenBatch,
    definition: Definition,
) -> None:
    """Refuse a query if a sink has its uncommitted batch as decided by another definition.

    If no sink has the batch, it is recorded under the new definition.
    """
    query, batch = manifest.query, before.batch
    if before.definition == definition or read_offset_log(checkpoint).uncommitted != batch:
        return
    begin(
        directory,
        batch,
        definition,
        lambda kind, target: has_rows(query + APP_SUFFIX[kind], batch, target, partial(_location_of, spark)),
    )


def _location_of(spark: SparkSession, name: str) -> str | None:
    """Return the location of a Delta table in the catalog; `None` if it cannot be determined."""
    try:
        if not spark.catalog.tableExists(name):
            return None
        return SparkPaths(spark).of_table(name)
    except PySparkException:
        return None


def _holds_all(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether columns hold all rows of former ones, whatever values those have."""
    return all(name in now and _holds(kind, now[name]) for name, kind in before.items())


def _holds(before: str, now: str) -> bool:
    if before == now:
        return True
    return any(before in kinds and now in kinds[kinds.index(before) :] for kinds in _WIDENED)
