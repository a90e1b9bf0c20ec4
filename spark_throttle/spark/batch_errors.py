"""Errors of a batch's function, in words that Spark can read.

Of an error of Python's, Spark gets the traceback as text. When the query is stopped, Spark looks there for an error of
Java's that says that it was interrupted, with a regular expression that needs more stack for each character that
follows. A long text, such as that of an error with a stack of Java's and what came of it, ends the stream's thread with
a `StackOverflowError`.

So here an error of a batch that was interrupted says so in one line. In all others the words are changed with which
that expression begins.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

BatchFunction = Callable[[DataFrame, int], None]

_CALLED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""What Spark's expression (`StreamExecution.PROXY_ERROR`) begins with; one of the names below is to follow."""

_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


class BatchError(Exception):
    """What a batch's function raised, as text."""


@dataclass(frozen=True, slots=True)
class ReadableErrors:
    """A function for `foreachBatch` that raises what another one does, so that Spark can read it."""

    function: BatchFunction

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Call the function."""
        try:
            self.function(frames, batch)
        except Exception as error:
            text = readable("".join(traceback.format_exception(error)))
            if text is None:
                raise
            raise BatchError(text) from None


def readable(text: str) -> str | None:
    r"""Return a traceback as Spark can read it; `None` if it can read it as it is.

    Examples
    --------
    >>> java = "py4j.protocol.Py4JJavaError: An error occurred while calling o7.collect.\n: "
    >>> readable(java + "java.lang.InterruptedException\n\tat java.base/…")
    'py4j.protocol.Py4JJavaError: An error occurred while calling a batch: java.lang.InterruptedException'
    >>> readable(java + "java.io.IOException: No space left on device\n\tat …")
    'Py4JJavaError: An error occurred while calling o7.collect.\n: java.io.IOException: No space left on device\n\tat …'
    >>> readable("ValueError: no") is None
    True
    """
    _, called, after = text.partition(_CALLED)
    if not called:
        return None
    for name in _INTERRUPTIONS:
        if name in after:
            return f"{_CALLED} a batch: {name}"
    return text.replace(_CALLED, _CALLED.removeprefix("py4j.protocol."))
