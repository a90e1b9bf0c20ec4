"""Paths resolved as Spark resolves them, so that they name the same place in all of a query's processes.

Spark resolves a path without a scheme on its default file system, and a relative path below the directory in which its
JVM was started. Python would take the local disk and the current directory of each process, which may be different. So
Spark resolves such a path once, and the resolved path is passed on.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_throttle.errors import ConfigurationError

CONTROL_FOLDER: Final = "throttle"
"""The control directory, in a checkpoint."""

_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_SCHEME: Final = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:")
_LOCAL: Final = re.compile(r"^file:/+")


class SparkPaths:
    """A resolver of paths that gives the same result as Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._prefix: str | None = None

    def resolve(self, path: str) -> str:
        """Return a path with its scheme; a path that already has one is returned unchanged.

        A path that Spark resolves to the local disk is returned as an absolute path, which means the same to Python.

        Raises
        ------
        ConfigurationError
            If Spark does not report where the path is.
        """
        if _SCHEME.match(path):
            return path
        if not path.startswith("/"):
            return local_path(_asked(self._spark, path))
        if self._prefix is not None:
            return local_path(self._prefix + path)
        found = _asked(self._spark, path)
        if found.endswith(path):
            self._prefix = found.removesuffix(path)
        return local_path(found)

    def of_table(self, name: str) -> str:
        """Return the location of a Delta table in the catalog."""
        return str(self._spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])

    def query(self, checkpoint: str, control_path: str | None = None) -> tuple[str, str]:
        """Return the places of a query's checkpoint and of its control directory, which is in it by default."""
        place = self.resolve(checkpoint)
        return place, self.resolve(control_path) if control_path else f"{place.rstrip('/')}/{CONTROL_FOLDER}"


def _asked(spark: SparkSession, path: str) -> str:
    """Return the location of a path, taken from Spark's error when it is asked to read a missing file there.

    No job runs, and nothing is written.
    """
    missing = uuid.uuid4().hex
    there = f"{path.rstrip('/')}/{missing}"  # twice: of a single path that is missing, Spark warns with its stack
    try:
        spark.read.text([there, there]).schema  # noqa: B018 - asks the server, where there is one
        problem = "it found a file that cannot exist"
    except Exception as error:  # noqa: BLE001 - Spark's, or any exception of a file system in the JVM
        parameters = error.getMessageParameters() if isinstance(error, PySparkException) else None
        named = (parameters or {}).get("path") or ""
        found = re.search(rf"^(.*)/{missing}", named) or re.search(rf": (.*)/{missing}", str(error))
        if found is not None and _SCHEME.match(found[1]):
            return found[1]
        problem = " ".join(str(error).split("\n")[:2])
    raise ConfigurationError(
        f"Spark does not say where {path!r} is ({problem}); give the path with its scheme, such as file:/… or s3a://…"
    )


def local_path(location: str) -> str:
    """Return a location on the local disk as a plain path, and any other location unchanged.

    Examples
    --------
    >>> local_path("file:/lake/orders"), local_path("s3a://lake/orders")
    ('/lake/orders', 's3a://lake/orders')
    """
    return _LOCAL.sub("/", location)


def checkpoint_place(spark: SparkSession, asked: str | None, name: str | None, *, is_needed: bool) -> str:
    """Return where a query's checkpoint is: where it was asked for, or below the session's place for named queries.

    Raises
    ------
    ConfigurationError
        If nothing says so, and the query needs one that lasts.
    """
    if asked is not None:
        return asked
    root = spark.conf.get(_CHECKPOINTS, None)
    if root and name:
        return f"{root.rstrip('/')}/{name}"
    if not is_needed:
        return f"file:{tempfile.mkdtemp(prefix='throttle-checkpoint-')}"  # wherever Spark's own default is
    raise ConfigurationError(
        "the query needs a checkpoint: set option('checkpointLocation', …); queues and balances live in it"
    )
