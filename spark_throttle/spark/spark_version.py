"""The adapter runs on one version of Spark: any other is refused by name, before a query can meet what it lacks.

The control source needs two things that Spark 4.2 brought: the offset at which a batch begins, which tells the source
after a restart which epoch the checkpoint goes on from, and `SupportsTriggerAvailableNow`, without which a query would
end while rows wait. The operator rests on more that tests pin on 4.2. docs/install.md names the versions.
"""

from __future__ import annotations

from typing import Final

from spark_throttle.errors import NotInstalledError

SUPPORTED: Final = "4.2"


def check_version(version: str, where: str = "this Python") -> None:
    """Refuse a version of Spark that is not supported.

    Parameters
    ----------
    where
        Where the version was found, for the message.

    Raises
    ------
    NotInstalledError
        If it is not supported.

    Examples
    --------
    >>> check_version("4.2.0")
    >>> check_version("4.1.4", "the Connect server")
    Traceback (most recent call last):
    ...
    spark_throttle.errors.NotInstalledError: Spark 4.2 is missing in the Connect server: it has Spark 4.1.4, on which \
spark-throttle does not run; install pyspark 4.2 there, or use a cluster with Spark 4.2 (docs/install.md)
    """
    if not version.startswith(f"{SUPPORTED}."):
        raise NotInstalledError(
            f"Spark {SUPPORTED}",
            where,
            f"it has Spark {version}, on which spark-throttle does not run; install pyspark {SUPPORTED} there, or use "
            f"a cluster with Spark {SUPPORTED}",
        )


def check_installed() -> None:
    """Refuse a Python without PySpark, or with a version that is not supported.

    Raises
    ------
    NotInstalledError
        If PySpark is missing or not supported.
    """
    try:
        from pyspark import __version__
    except ImportError:
        raise NotInstalledError(
            "pyspark",
            "this Python",
            "run it where Spark's own Python packages are, or pip install 'spark-throttle[spark]'",
        ) from None
    check_version(__version__)
