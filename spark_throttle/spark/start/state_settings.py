"""The settings of a query's state: one partition, and a store and a format that keep what they are given.

One decider has one partition, whatever the session's other shuffles need.

Each further partition costs a task and a state file in every batch, and Spark's default is 200. A checkpoint keeps the
number with which it began.

Spark takes the number from ``spark.sql.shuffle.partitions``, which serves every shuffle of the session. Since 4.1 it
has a setting for stateful operators alone, which falls back on the other (`STATE_PARTITIONS`). Spark calls it internal:
a test holds what it does. A Spark that does not know it ignores it.

No supported setting has the same effect. A query copies the settings of its session when it starts, and none can be
given to it alone. ``spark.sql.shuffle.partitions`` around the start gives the state one partition too, but reaches
every shuffle that another thread plans meanwhile, and the query's own function until it starts again or each batch sets
it back (tried). A stream belongs to the session that made it, and cannot be started in another one.

Spark pins the store (``stateStore.providerClass``) of a checkpoint in its offsets, so a session that asks for another
one changes nothing. It does not pin the format of the state's checkpoints, and a run in the wrong one ends inside a
batch, in an error that names neither the setting nor the remedy. Tried on Spark 4.2.0, with rows that wait and a batch
that runs again (`docs/changing-a-job.md` says what works).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_throttle.checkpoint.offset_log import OffsetLog, pinned_setting, read_offset_log
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
STATE_PARTITIONS: Final = "spark.sql.streaming.internal.stateStore.partitions"

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 20.0

_starts = threading.Lock()
"""Held while a query starts for the first time: two that start in one session would take each other's number."""

_STORE: Final = "spark.sql.streaming.stateStore."
PROVIDER: Final = f"{_STORE}providerClass"
FORMAT: Final = f"{_STORE}checkpointFormatVersion"
ENCODING: Final = f"{_STORE}encodingFormat"
OFFSETS: Final = "spark.sql.streaming.offsetLog.formatVersion"
_HDFS: Final = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_FIRST_FORMAT: Final = "1"
_ROWS: Final = "unsaferow"


@contextmanager
def one_state_partition(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Give a query that starts inside, for the first time, one state partition.

    Stateful operators before the throttle have the same number. A query whose checkpoint has more partitions keeps
    them, and a warning says so. A session that has a number of state partitions of its own, or may have none, keeps
    what it has.

    The session has the number until the query has started, and another stateful query that a thread starts meanwhile
    without this takes it too. Spark tells its listeners of a start, and waits for them. A listener that then starts a
    throttled query waits in vain for this start to end, and starts its own with what the session has.

    Parameters
    ----------
    checkpoint
        The query's checkpoint, as Spark resolves it. One that this process cannot read is taken as new: Spark gives the
        query what it finds there.
    """
    kept = partitions_of(checkpoint)
    if kept is not None and kept > 1:
        logger.warning(
            "the checkpoint %s began with %d state partitions, of which the throttle uses one: each other one costs "
            "a task and a state file in every batch; to have one, drain the query, and start with a new checkpoint",
            checkpoint, kept,
        )  # fmt: skip
    if kept is not None:
        yield
        return
    with ExitStack() as behind:
        if _starts.acquire(timeout=_PATIENCE_SECONDS):
            behind.callback(_starts.release)
            if _give_one(spark):
                behind.callback(spark.conf.unset, STATE_PARTITIONS)
        yield


def _give_one(spark: SparkSession) -> bool:
    """Set the session's number of state partitions to 1, and return whether it was set here."""
    if spark.conf.get(STATE_PARTITIONS, None) is not None:
        return False
    try:
        spark.conf.set(STATE_PARTITIONS, 1)
    except PySparkException as error:  # a platform may forbid the setting
        logger.info("the query has as many state partitions as shuffles have: %s", error)
        return False
    return True


def partitions_of(checkpoint: str) -> int | None:
    """Return the number of state partitions that a checkpoint keeps; `None` where no batch was planned."""
    try:
        directory = Directory(checkpoint)
        # Under this name in the log, whichever setting it came from.
        return partitions_in(pinned_setting(directory, read_offset_log(directory).logged, SHUFFLE_PARTITIONS))
    except (ConfigurationError, OSError):
        return None  # the executors may see what this process does not


def partitions_in(setting: str | None) -> int | None:
    """Return the number that a session's setting names; `None` for a word, such as Databricks' ``auto``.

    Examples
    --------
    >>> partitions_in("8"), partitions_in("auto"), partitions_in(None)
    (8, None, None)
    """
    return int(setting) if setting is not None and setting.isdecimal() else None


def refuse_state_store(setting: Callable[[str, str], str | None], checkpoint: str) -> None:
    """Refuse a session whose settings of the state store Spark cannot run this query with.

    Parameters
    ----------
    setting
        Returns a setting of the session, or the default that it is given.
    checkpoint
        The query's checkpoint, as Spark resolves it. One that this process cannot read is taken as new.

    Raises
    ------
    ConfigurationError
        If the encoding is Avro, which Spark has for other operators only; if the state's checkpoints are in another
        format than the session asks for; if the store has no such format; or if the log of offsets would be in a format
        in which this release does not find the epochs that it pins.
    """
    offsets = setting(OFFSETS, _FIRST_FORMAT)
    if offsets != _FIRST_FORMAT:
        raise ConfigurationError(
            f"{OFFSETS} is {offsets}, and the throttle reads Spark's log of offsets in format {_FIRST_FORMAT} only: "
            f"unset it"
        )
    encoding = setting(ENCODING, _ROWS)
    if encoding != _ROWS:
        raise ConfigurationError(
            f"{ENCODING} is {encoding!r}, and Spark encodes the state of the throttle's operator as {_ROWS} only: "
            "unset it"
        )
    asked = setting(FORMAT, _FIRST_FORMAT)
    found, provider = _of_checkpoint(checkpoint)
    if found is not None and found != asked:
        raise ConfigurationError(
            f"{FORMAT} is {asked}, and the state of the checkpoint {checkpoint} is in format {found}, which Spark does "
            f"not convert: set it to {found}, or start with a new checkpoint"
        )
    if asked != _FIRST_FORMAT and (provider or setting(PROVIDER, _HDFS)) == _HDFS:
        remedy = f"set {PROVIDER} to {_ROCKSDB}" if provider is None else "the checkpoint keeps its store"
        raise ConfigurationError(
            f"{FORMAT} is {asked}, and Spark's store {_HDFS.rpartition('.')[2]} has format {_FIRST_FORMAT} only: "
            f"{remedy}, or set the format to {_FIRST_FORMAT}"
        )


def _of_checkpoint(checkpoint: str) -> tuple[str | None, str | None]:
    """Return the format of a checkpoint's state, and its store; `None` where no batch was committed, or planned."""
    try:
        directory = Directory(checkpoint)
        log = read_offset_log(directory)
        return _format_of(directory, log), pinned_setting(directory, log.logged, PROVIDER)
    except (ConfigurationError, OSError):
        return None, None  # the executors may see what this process does not


def _format_of(directory: Directory, log: OffsetLog) -> str | None:
    """Return the format of the newest committed batch: the first line of its commit is a version, as ``v2``."""
    content = directory.read(f"commits/{log.committed}") if log.committed >= 0 else None
    version = (content or b"").partition(b"\n")[0].decode("ascii", "replace").strip()
    return version.removeprefix("v") if version.startswith("v") else None
