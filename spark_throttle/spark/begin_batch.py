"""Before a batch reaches its sinks: what they have of it already must have been decided by the same definition.

Runs where the sinks are written: on the driver, once an attempt at a batch. A Delta table is asked for the batch by the
query's name, and a folder of dead letters is there or not. What a function has made of a batch nobody knows, nor what a
user's own sink has. Other sinks promise no more than that no row is lost, and a batch that is decided anew loses none
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_throttle.control.begun import begin, decided_digest
from spark_throttle.control.definition import FUNCTION, Definition
from spark_throttle.control.storage import Directory
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import NativeWriterError
from spark_throttle.spark.delta_commit import has_batch, open_table
from spark_throttle.spark.destination import batch_folder

SINK, DEAD_LETTERS, USAGE = "the sink", "the dead letters", "the usage table"
"""Kinds of rows, as `Definition.targets` names them."""

TABLE, NAMED_TABLE, FOLDERS = "Delta ", "Delta table ", "folders in "
"""How the words begin that say where rows go; what begins otherwise is no sink that could be asked."""

_APP_SUFFIX: Final = {SINK: "", DEAD_LETTERS: "/rejected", USAGE: "/usage"}


def begin_batch(directory: Directory, query: str, batch: int, definition: str, reports: Iterable[UsageReport]) -> None:
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
        lambda kind, target: has_rows(query, batch, kind, target),
        decided_digest(reports),
    )


def has_rows(query: str, batch: int, kind: str, target: str) -> bool:
    """Return whether a target has a batch; `True` where it cannot be asked."""
    if target.startswith(FOLDERS):
        files = Directory(target.removeprefix(FOLDERS)).names(batch_folder(batch))
        return any(file.startswith("part-") for file in files)
    if target.startswith(NAMED_TABLE):
        return True
    if target.startswith(TABLE):
        try:
            table = open_table(target.removeprefix(TABLE))
        except (ImportError, NativeWriterError):
            return True
        return table is not None and has_batch(table, query + _APP_SUFFIX[kind], batch)
    return target == FUNCTION
