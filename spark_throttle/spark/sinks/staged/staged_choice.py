"""The choice between rows that are staged in files and rows in frames: a checkpoint keeps the way with which it began.

Spark writes the columns of a state once, when it plans a query's first batch. A query whose state has others ends
inside its first batch, in words that name no option of its user's. So the columns are looked at before it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.sinks.writer_choice import AUTO, STAGED, WRITER_OPTION

_OURS, _FILES = b'"name":"block"', b'"name":"files"'


def writer_of(asked: str, checkpoint: str) -> str:
    """Return the writer that is asked for; that which stages, if nothing is asked and the checkpoint began with it.

    Parameters
    ----------
    asked
        The writer that is asked for.
    checkpoint
        The query's checkpoint, as Spark resolves it. One that this process cannot read is taken as new.

    Raises
    ------
    ConfigurationError
        If the checkpoint began the other way.
    """
    begun = began_staged(checkpoint)
    if begun is not None and asked != AUTO and begun != (asked == STAGED):
        way, remedy = ("staged", STAGED) if begun else ("in frames", AUTO)
        raise ConfigurationError(
            f"option {WRITER_OPTION} is {asked!r}, and the checkpoint {checkpoint} began with rows that are {way}, a "
            f"state that Spark does not convert: start with option({WRITER_OPTION!r}, {remedy!r}), or drain the query "
            f"and start with a new checkpoint"
        )
    return STAGED if begun else asked


def began_staged(checkpoint: str) -> bool | None:
    """Return whether a checkpoint's state names staged files; `None` where no batch was planned that this process sees.

    Examples
    --------
    >>> began_staged("/nowhere") is None
    True
    """
    try:
        ours = [schema for schema in _state_schemas(Directory(checkpoint)) if _OURS in schema]
    except (ConfigurationError, OSError):
        return None  # the executors may see what this process does not
    return any(_FILES in schema for schema in ours) if ours else None


def _state_schemas(checkpoint: Directory) -> Iterator[bytes]:
    """Yield what Spark wrote of the columns of each stateful operator."""
    for operator in count():
        found = checkpoint.read(f"state/{operator}/0/_metadata/schema")
        if found is None:
            return
        yield found
