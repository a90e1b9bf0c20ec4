"""Which of Spark's state stores and formats a query may run on; another one is refused before the query starts.

Spark pins the store (``stateStore.providerClass``) of a checkpoint in its offsets, so a session that asks for another
one changes nothing. It does not pin the format of the state's checkpoints, and a run in the wrong one ends inside a
batch, in an error that names neither the setting nor the remedy. Tried on Spark 4.2.0, with rows that wait and a batch
that runs again (`docs/checkpoints.md` has the table).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_throttle.checkpoint.offset_log import OffsetLog, pinned_setting, read_offset_log
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory

_STORE: Final = "spark.sql.streaming.stateStore."
PROVIDER: Final = f"{_STORE}providerClass"
FORMAT: Final = f"{_STORE}checkpointFormatVersion"
ENCODING: Final = f"{_STORE}encodingFormat"
OFFSETS: Final = "spark.sql.streaming.offsetLog.formatVersion"
_HDFS: Final = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_FIRST_FORMAT: Final = "1"
_ROWS: Final = "unsaferow"


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
