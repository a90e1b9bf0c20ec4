"""Where a path is that Spark was given: the same place for all of a query's processes.

Spark takes a path without a scheme as one of its default file system, a relative one as below the directory that its
JVM was started in. Python's own idea, the local disk and the directory that each process is in, may be another. So such
a path is resolved once, by Spark, and travels as what it resolved to.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_throttle.errors import ConfigurationError

_SCHEME: Final = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:")
_LOCAL: Final = re.compile(r"^file:/+")


class SparkPaths:
    """Resolves paths as Spark does."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._prefix: str | None = None

    def resolve(self, path: str) -> str:
        """Return a path with its scheme; one that has a scheme stays as it is.

        A path that Spark takes for one of the local disk is returned absolute, and means the same to Python.

        Raises
        ------
        ConfigurationError
            If Spark does not say where the path is.
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


def _asked(spark: SparkSession, path: str) -> str:
    """Return where a path is: Spark is asked to read what is not there, and its refusal names the place.

    No job runs, and nothing is written.
    """
    missing = uuid.uuid4().hex
    try:
        spark.read.text(f"{path.rstrip('/')}/{missing}").schema  # noqa: B018 - asks the server, where there is one
        problem = "it found what cannot be there"
    except Exception as error:  # noqa: BLE001 - Spark's, or whatever a file system of the JVM throws
        parameters = error.getMessageParameters() if isinstance(error, PySparkException) else None
        named = (parameters or {}).get("path") or ""
        found = re.search(rf"^(.*)/{missing}", named) or re.search(rf": (.*)/{missing}", str(error))
        if found is not None and _SCHEME.match(found[1]):
            return found[1]
        problem = " ".join(str(error).split("\n")[:2])
    raise ConfigurationError(
        f"Spark does not say where {path!r} is ({problem}); give the path with its scheme, as file:/… or s3a://…"
    )


def local_path(location: str) -> str:
    """Return a location on the local disk as a plain path, and any other as it is.

    Examples
    --------
    >>> local_path("file:/lake/orders"), local_path("s3a://lake/orders")
    ('/lake/orders', 's3a://lake/orders')
    """
    return _LOCAL.sub("/", location)
