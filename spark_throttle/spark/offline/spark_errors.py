"""Errors of Spark as one sentence: what it says of itself is a stack of Java's, or of a worker's, of hundreds of lines.

An error that this package raised on an executor comes back as text, as the last line of that stack. It is raised again
as what it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_throttle.errors import ConfigurationError, DamagedError, FileUnusableError, ThrottleError
from spark_throttle.files.storage import one_line
from spark_throttle.spark.start.installation import missing_in

_OWN: Final = re.compile(r"^spark_throttle\.errors\.[\w.]+: (.+)$", re.MULTILINE)
_DAMAGED: Final = re.compile(r"(.+) is damaged: (.+); (.+)")
_CAUSE: Final = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CALLED: Final = re.compile(r"^An error occurred while calling \S+\.\n: ")


def spark_line(error: Exception) -> str:
    r"""Return what an error of Spark says: its last cause, or its first line where it names none.

    Examples
    --------
    >>> java = "An error occurred while calling o7.save.\n: org.apache.spark.SparkException: Job aborted\n\tat x.y(z)\n"
    >>> spark_line(RuntimeError(java))
    'org.apache.spark.SparkException: Job aborted'
    >>> spark_line(RuntimeError(f"{java}Caused by: java.io.IOException: No space left on device\n\tat x.y(z)"))
    'java.io.IOException: No space left on device'
    """
    text = str(error)
    causes = _CAUSE.findall(text)
    line = causes[-1] if causes else _CALLED.sub("", text).strip().split("\n")[0]
    return one_line(RuntimeError(line)).rstrip(";. ") if line else type(error).__name__


def known_error(error: Exception) -> ThrottleError | None:
    """Return the error of this package that an error of Spark carries as text; `None` if it carries none."""
    missing = missing_in(str(error))
    if missing is not None:
        return missing
    own = _OWN.findall(str(error))
    if not own:
        return None
    damaged = _DAMAGED.fullmatch(own[-1])
    return ConfigurationError(own[-1]) if damaged is None else DamagedError(*damaged.groups())


@contextmanager
def reading_state(place: str) -> Iterator[None]:
    """Turn errors of a reader of a checkpoint's states into one sentence.

    Raises
    ------
    DamagedError
        If a file of waiting rows is missing, or is not as it was written.
    FileUnusableError
        If Spark cannot read a state.
    """
    try:
        yield
    except ThrottleError:
        raise
    except Exception as error:  # noqa: BLE001 - PySpark's, or any of the JVM's
        known = known_error(error)
        if known is not None:
            raise known from None
        raise FileUnusableError(
            f"{place.rstrip('/')}/state",
            f"Spark cannot read the states of the query ({spark_line(error)}); where a file of the checkpoint is gone "
            f"or cut, restore the checkpoint from a backup, otherwise mend that, then run this again",
        ) from None
