"""The adapter runs on Spark 4.1 and newer, and all that differs from one version to another is here.

Spark 4.1 asks a Python source for its newest offset without telling it where the batch begins: the checkpoint's log of
offsets holds that (`OffsetBefore`). Nor does it tell such a source that a query ends by itself, and reads in one batch
what is there: rows that then wait are left waiting. Spark 4.0 is refused, and a version that nobody has tried is used
with a warning. docs/install.md has the table of what was tried; `make versions` makes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_throttle.errors import ConfigurationError, NotInstalledError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OLDEST: Final = (4, 1)
NEWEST_TRIED: Final = (4, 3)

DELTA: Final = "4.4.0"
"""The version of Delta's jar, which has Spark's in its name."""

_DELTA_NEWEST: Final = (4, 2)
"""The newest Spark for which that version of Delta was made."""

_ENDS_WHEN_DRAINED: Final = (4, 2)
"""The first Spark that tells a Python source that a query ends by itself (`SupportsTriggerAvailableNow`)."""

_TAKES_ZONE: Final = (4, 2)
"""The first Spark whose conversion to Arrow is told the zone; those before know UTC alone."""

logger = logging.getLogger(__name__)

_Reader = TypeVar("_Reader", bound=type)


def minor_of(version: str) -> tuple[int, int]:
    """Return the two numbers of a version that say what Spark can do.

    Examples
    --------
    >>> minor_of("4.2.1"), minor_of("4.10.0-SNAPSHOT")
    ((4, 2), (4, 10))
    """
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def check_version(version: str, where: str = "this Python") -> None:
    """Refuse a version of Spark that is too old.

    Parameters
    ----------
    where
        Where the version was found, for the message.

    Raises
    ------
    NotInstalledError
        If it is too old.

    Examples
    --------
    >>> check_version("4.1.4")
    >>> check_version("4.0.2", "the Connect server")
    Traceback (most recent call last):
    ...
    spark_throttle.errors.NotInstalledError: Spark 4.1 or newer is missing in the Connect server: it has Spark 4.0.2, \
on which spark-throttle does not run; install pyspark 4.1 or newer there, or use a cluster with such a Spark \
(docs/install.md)
    """
    if minor_of(version) < OLDEST:
        oldest = _shown(OLDEST)
        raise NotInstalledError(
            f"Spark {oldest} or newer",
            where,
            f"it has Spark {version}, on which spark-throttle does not run; install pyspark {oldest} or newer there, "
            f"or use a cluster with such a Spark",
        )


def check_installed() -> None:
    """Refuse a Python without PySpark, or with a version that is too old.

    Raises
    ------
    NotInstalledError
        If PySpark is missing or too old.
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


def warn_of_version(version: str) -> None:
    """Warn of a version of Spark that nobody has tried."""
    if minor_of(version) > NEWEST_TRIED:
        logger.warning(
            "Spark %s is newer than %s, the newest that spark-throttle was tried on: run your tests on it first",
            version, _shown(NEWEST_TRIED),
        )  # fmt: skip


def ends_when_drained(version: str) -> bool:
    """Return whether Spark tells a Python source that its query ends by itself, so that it can wait for its rows."""
    return minor_of(version) >= _ENDS_WHEN_DRAINED


def warn_of_rows_left(version: str) -> None:
    """Warn that a query with the trigger ``availableNow`` may end while rows wait, where Spark ends it so."""
    if not ends_when_drained(version):
        logger.warning(
            "on Spark %s a query with availableNow runs one batch, and rows that exceed their quotas in it wait for "
            "the next run: use processingTime, or Spark %s, to have the query go on until they have left",
            version, _shown(_ENDS_WHEN_DRAINED),
        )  # fmt: skip


def delta_remedy(version: str) -> str:
    """Return what to do on a version of Spark to have Delta.

    Examples
    --------
    >>> delta_remedy("4.1.4").partition(" before")[0]
    'set spark.jars.packages to io.delta:delta-spark_4.1_2.13:4.4.0'
    >>> delta_remedy("4.3.0")
    'there is none for Spark 4.3 that spark-throttle was tried with: take Spark 4.2, or write to another format'
    """
    minor = minor_of(version)
    if minor > _DELTA_NEWEST:
        return (
            f"there is none for Spark {_shown(minor)} that spark-throttle was tried with: take Spark "
            f"{_shown(_DELTA_NEWEST)}, or write to another format"
        )
    return (
        f"set spark.jars.packages to io.delta:delta-spark_{_shown(minor)}_2.13:{DELTA} before the session starts; "
        f"spark-submit takes it by --packages, and not from the program"
    )


def told_of_available_now(reader: _Reader) -> _Reader:
    """Have Spark call `prepareForTriggerAvailableNow` of a class of readers, if it can."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before 4.2
        return reader
    SupportsTriggerAvailableNow.register(reader)
    return reader


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's columns, timestamps in UTC."""
    from pyspark import __version__
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if minor_of(__version__) >= _TAKES_ZONE else {}
    return to_arrow_schema(schema, **zone)


def from_arrow(schema: pa.Schema) -> StructType:
    """Return Spark's columns of an Arrow schema; a timestamp without a zone stays one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)  # not the default before 4.2


@dataclass(slots=True)
class OffsetBefore:
    """The offset at which a source's next batch begins, for a reader that Spark 4.1 does not tell.

    That is what the reader returned before, and at its first call the end of the newest batch in the checkpoint's log:
    Spark logs a batch before it runs, and runs one that was not committed again before it asks for the next.
    """

    _returned: dict[str, Any] | None = None

    def next(self, control_path: str, initial: dict[str, Any]) -> dict[str, Any]:
        """Return the offset, which before the first batch is `initial`.

        Parameters
        ----------
        control_path
            The query's control directory, which must lie in its checkpoint.

        Raises
        ------
        ConfigurationError
            If the control directory does not lie in the checkpoint, or its log names no offset of this source.
        """
        return self._returned or _logged(control_path, initial)

    def returned(self, offset: dict[str, Any]) -> None:
        """Remember what the reader answered."""
        self._returned = offset


def _logged(control_path: str, initial: dict[str, Any]) -> dict[str, Any]:
    from spark_throttle.checkpoint.offset_log import read_offset_log, source_offsets
    from spark_throttle.files.storage import Directory

    path = control_path.rstrip("/").rpartition("/")[0]
    checkpoint = Directory(path)
    if checkpoint.read("metadata") is None:  # Spark writes it before a query's first batch
        raise ConfigurationError(
            f"the control directory {control_path} is in no checkpoint, where Spark before "
            f"{_shown(_ENDS_WHEN_DRAINED)} tells no source from which batch it goes on: give apply a folder of the "
            f"query's checkpoint as control_path"
        )
    logged = read_offset_log(checkpoint).logged
    if logged < 0:
        return initial
    found = [each for each in source_offsets(checkpoint, logged) if each.keys() == initial.keys()]
    if len(found) != 1:
        raise ConfigurationError(f"batch {logged} in the log of {path} has {len(found)} control sources; needs one")
    return found[0]


def _shown(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"
