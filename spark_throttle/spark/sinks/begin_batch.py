"""The check before a batch reaches its sinks: rows that they already have must come from the same definition.

It runs on the driver, where the sinks are written, once per attempt at a batch. A Delta table is asked for the batch by
the query's name, and dead letters are looked for in the batch's folder. What a function has done with a batch, or what
a user's own sink has of it, cannot be known. Other sinks promise only that no row is lost, and a batch that is decided
again loses none there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_throttle.checkpoint.definition import FUNCTION, OWN_SINK, Definition
from spark_throttle.checkpoint.open_batch import begin, decided_digest
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import ForeignFilesError
from spark_throttle.files.storage import Directory
from spark_throttle.record import of_json
from spark_throttle.spark.delta.commit import open_table

SINK, DEAD_LETTERS, USAGE = "the sink", "the dead letters", "the usage table"
"""Kinds of rows; the keys of `Definition.targets`."""

TABLE, NAMED_TABLE, FOLDERS = "Delta ", "Delta table ", "folders in "
"""Prefixes of a target's text. A target with another prefix is a sink that cannot be asked for a batch."""

APP_SUFFIX: Final = {SINK: "", DEAD_LETTERS: "/rejected", USAGE: "/usage", OWN_SINK: ""}
"""Suffix of the query's name in the transactions of each kind of rows."""


def batch_folder(batch: int) -> str:
    """Return the name of the folder of a batch's dead letters."""
    return f"batch={batch}"


def begin_batch(
    directory: Directory,
    query: str,
    batch: int,
    definition: str,
    report: UsageReport | None,
) -> bool:
    """Record that a batch is about to reach its sinks; called once per attempt, before the first sink is written.

    Returns whether an earlier attempt may have come so far.

    Raises
    ------
    DefinitionChangedError
        If a sink has the batch as decided by another definition.
    """
    if not definition:
        return True
    return begin(
        directory,
        batch,
        of_json(Definition, definition, "the definition"),
        lambda kind, target: has_rows(query + APP_SUFFIX[kind], batch, target),
        decided_digest(report),
    )


def has_rows(app: str, batch: int, target: str, locate: Callable[[str], str | None] = lambda _: None) -> bool:
    """Return whether a target has a batch; `True` for a function, and for a table that cannot be located or read.

    Parameters
    ----------
    app
        Name of the query in the target's transactions.
    locate
        Function that returns the location of a Delta table by its name, or `None` if it cannot be determined.
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
    except (ImportError, ForeignFilesError):
        return True
    newest = table.transaction_version(app) if table is not None else None
    return newest is not None and newest >= batch
