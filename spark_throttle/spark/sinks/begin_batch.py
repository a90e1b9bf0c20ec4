"""Before a batch reaches its sinks: what they have of it already must have been decided by the same definition.

Runs where the sinks are written: on the driver, once an attempt at a batch. A Delta table is asked for the batch by the
query's name, and a folder of dead letters is there or not. What a function has made of a batch nobody knows, nor what a
user's own sink has. Other sinks promise no more than that no row is lost, and a batch that is decided anew loses none
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from spark_throttle.checkpoint.definition import FUNCTION, OWN_SINK, Definition
from spark_throttle.checkpoint.open_batch import begin, decided_digest
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import NativeWriterError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.delta.commit import open_table
from spark_throttle.spark.sinks.destination import batch_folder

SINK, DEAD_LETTERS, USAGE = "the sink", "the dead letters", "the usage table"
"""Kinds of rows, as `Definition.targets` names them."""

TABLE, NAMED_TABLE, FOLDERS = "Delta ", "Delta table ", "folders in "
"""How the words begin that say where rows go; what begins otherwise is no sink that could be asked."""

APP_SUFFIX: Final = {SINK: "", DEAD_LETTERS: "/rejected", USAGE: "/usage", OWN_SINK: ""}
"""By which the query's name differs in the transactions of each kind."""


def begin_batch(
    directory: Directory,
    query: str,
    batch: int,
    definition: str,
    reports: Iterable[UsageReport],
) -> None:
    """Note that a batch is about to reach its sinks; called once for every attempt at it, before the first of them.

    Raises
    ------
    DefinitionChangedError
        If a sink has the batch as another definition decided it.
    """
    if not definition:
        return
    begin(
        directory,
        batch,
        Definition.from_json(definition),
        lambda kind, target: has_rows(query + APP_SUFFIX[kind], batch, target),
        decided_digest(reports),
    )


def has_rows(app: str, batch: int, target: str, locate: Callable[[str], str | None] = lambda _: None) -> bool:
    """Return whether a target has a batch; `True` where it cannot be asked.

    Parameters
    ----------
    app
        What the query calls itself in transactions of the target.
    locate
        Returns where the Delta table of a name is, `None` where that cannot be told.
    """
    if target.startswith(FOLDERS):
        files = Directory(target.removeprefix(FOLDERS)).names(batch_folder(batch))
        return any(file.startswith("part-") for file in files)
    if not target.startswith(TABLE):
        return target == FUNCTION
    is_named = target.startswith(NAMED_TABLE)
    location = locate(target.removeprefix(NAMED_TABLE)) if is_named else target.removeprefix(TABLE)
    if location is None:
        return True
    try:
        table = open_table(location)
    except (ImportError, NativeWriterError):
        return True
    newest = table.transaction_version(app) if table is not None else None
    return newest is not None and newest >= batch
