"""The targets of a query's rows: each is of a known format, which promises a delivery and says how it takes a batch.

A format that is not listed here is another system to which Spark writes batches, at least once. For the check before
the query runs (`start.start_check`) targets are places, and for the definition by which two runs differ they are text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.definition import FUNCTION
from spark_throttle.errors import ConfigurationError, did_you_mean
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.taken_batch import (
    DEAD_LETTERS,
    FOLDERS,
    NAMED_TABLE,
    SINK,
    TABLE,
    USAGE,
    check_taken,
)
from spark_throttle.spark.sinks.transactional import ICEBERG, MARKED, IcebergTable, commit_once
from spark_throttle.spark.start.spark_paths import SparkPaths, local_path
from spark_throttle.spark.start.start_check import BATCH_FOLDER, Sinks

BatchFunction: TypeAlias = Callable[[DataFrame, int], None]
Promise = Literal["exactly once", "at least once", "none", "the function's own"]

DELTA: Final = "delta"
_METADATA_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"
_OWN: Final = "throttle."
_WITHOUT_STRUCTS: Final = ("csv", "text")

PACED: Final = "throttle_paced"
"""The sink of ours that sends rows at a pace (`spark.paced`)."""

_PARTS = ("", "rejected", "usage")
"""Suffixes of the query's name in the transactions of the sink, the dead letters and the usage table."""


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """A format of a sink, and how it takes a batch."""

    name: str
    promise: Promise = "at least once"
    """The delivery guarantee for a batch that is written again after a crash."""

    has_files: bool = False
    """Whether it consists of plain files under a path, so that dead letters can have one folder per batch."""

    needs_checkpoint: bool = True
    """Whether a query must be given a checkpoint location."""

    refused: str = ""
    """Why it takes no batches, and what to do instead; empty if it takes them."""

    @property
    def has_path(self) -> bool:
        """Whether its path names files, so that Spark resolves it."""
        return self.has_files or self.name == DELTA

    @property
    def is_paid_by_bytes(self) -> bool:
        """Whether a write costs what its bytes cost; writes to other systems may need all tasks."""
        return self.has_files or self.promise != "at least once"


FORMATS: Final[Mapping[str, SinkFormat]] = {
    each.name: each
    for each in (
        SinkFormat(DELTA, "exactly once"),
        *(SinkFormat(name, has_files=True) for name in ("parquet", "json", "orc", "csv", "avro", "text", "xml")),
        SinkFormat(PACED),
        *(SinkFormat(name, "exactly once") for name in MARKED),
        *(SinkFormat(name, "none", needs_checkpoint=False) for name in ("console", "noop")),
        SinkFormat(
            "memory",
            refused="the memory sink takes no batches: use "
            "throttle.apply(events, control_path=…).writeStream.format('memory'), or foreachBatch",
        ),
    )
}


def refuse_dead_letters(name: str) -> None:
    """Refuse a format that cannot take dead letters, which have a struct.

    Raises
    ------
    ConfigurationError
        If it is such a format: the first rejected row would end the query.

    Examples
    --------
    >>> refuse_dead_letters("json")
    """
    if name in _WITHOUT_STRUCTS:
        raise ConfigurationError(
            f"dead letters cannot be {name!r} files, which hold no struct, as the column 'throttle' is: give 'delta', "
            f"'parquet', 'json' or 'orc'"
        )


def format_of(name: str | None) -> SinkFormat:
    """Return the entry for a format; `None` is the session's default format.

    Examples
    --------
    >>> format_of("delta").promise, format_of("kafka").promise
    ('exactly once', 'at least once')
    """
    return FORMATS.get(name or "") or SinkFormat(name or "")


@dataclass(frozen=True, slots=True)
class Target:
    """A target of rows: a format and its options, or a table's name."""

    format: str | None
    options: dict[str, str] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    path: str | None = None
    table: str | None = None

    @property
    def kind(self) -> SinkFormat:
        """The entry for its format; a table without a format is a Delta table."""
        return format_of(DELTA if self.format is None and self.table is not None else self.format)

    @property
    def promise(self) -> Promise:
        """The target's delivery guarantee for a batch that is written again after a crash."""
        return self.kind.promise

    @property
    def is_delta(self) -> bool:
        """Whether it is a Delta table: its transactions tell whether it has a batch, and it may be written natively."""
        return self.kind.name == DELTA

    def resolved(self, paths: SparkPaths) -> Target:
        """Return the target with its path resolved by Spark; a format whose path names no file keeps it as it is."""
        if self.path is None or not self.kind.has_path:
            return self
        return replace(self, path=paths.resolve(self.path))

    def write(self, rows: DataFrame, mark: BatchMark) -> None:
        """Append a batch.

        Raises
        ------
        CheckpointMismatchError
            If a table has a different batch of that number, or a later one.
        """
        if self.format == ICEBERG:
            table = IcebergTable(rows.sparkSession, self.table, self.path, self.options, self._append)
            commit_once(table, f"the Iceberg table {self.table or self.path}", lambda: rows, mark)
            return
        if not self.is_delta:
            self._append(rows, {})
            return
        told = {"txnAppId": mark.query, "txnVersion": str(mark.batch)}
        if not self._has_own_metadata(rows):
            told["userMetadata"] = mark.to_text()
        self._append(rows, told)
        check_taken(rows.sparkSession, self.path, self.table, mark)

    def _append(self, rows: DataFrame, more: Mapping[str, str]) -> None:
        """Append rows, with more options than the user's."""
        writer = rows.write.mode("append").options(**{**self.options, **more})
        if self.partition_columns:
            writer = writer.partitionBy(*self.partition_columns)
        if self.format is not None:
            writer = writer.format(self.format)
        if self.table is not None:
            writer.saveAsTable(self.table)
        elif self.path is not None:
            writer.save(self.path)
        else:
            writer.save()

    def _has_own_metadata(self, rows: DataFrame) -> bool:
        if any(key.lower() == "usermetadata" for key in self.options):
            return True
        return bool(rows.sparkSession.conf.get(_METADATA_CONF, ""))

    def write_batch_folder(self, rows: DataFrame, batch: int) -> None:
        """Write a batch of dead letters into a folder of its own, replacing the files of an earlier attempt."""
        writer = rows.write.mode("overwrite").options(**self.options)
        if self.format is not None:
            writer = writer.format(self.format)
        writer.save(f"{self.path}/{BATCH_FOLDER}{batch}")

    @property
    def is_paid_by_bytes(self) -> bool:
        """Whether a write costs what its bytes cost, as for files; writes to other systems may need all tasks."""
        return self.format is None or self.kind.is_paid_by_bytes

    @property
    def has_batch_folders(self) -> bool:
        """Whether dead letters here have one folder per batch, which makes files exactly once."""
        return self.kind.has_files and self.path is not None


def sink_options(options: Mapping[str, str], beside: str, own: Sequence[str]) -> dict[str, str]:
    """Return the options of a query's sink: those that are neither Spark's option `beside` nor the throttle's own.

    Raises
    ------
    ConfigurationError
        If another option begins with ``throttle.``: no sink has such a one, so it is a slip.

    Examples
    --------
    >>> sink_options({"Throttle.Wait": "1", "mergeSchema": "true"}, "checkpointLocation", ["throttle.wait"])
    {'mergeSchema': 'true'}
    """
    others = {key: value for key, value in options.items() if key.lower() not in (beside.lower(), *own)}
    for key in others:
        if key.lower().startswith(_OWN):
            raise ConfigurationError(f"there is no option {key!r}{did_you_mean(key.lower(), own)}")
    return others


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a query's rows."""

    admitted: Target | Callable[[DataFrame, int], None]
    rejected: Target
    usage: Target | None
    has_shares: bool
    """Whether the job shares quotas with other jobs, which adds columns to its usage rows."""


def sinks_of(spark: SparkSession, checkpoint: str, targets: Targets, usage: Target | FileTable | None) -> Sinks:
    """Return the sinks of a query."""
    tables, dead_letters = [], None
    for part, target in zip(_PARTS, (targets.admitted, targets.rejected, usage), strict=True):
        if isinstance(target, FileTable):
            tables.append((part, target.location))
        elif isinstance(target, Target):
            location = _location_of_table(spark, target)
            if location is not None:
                tables.append((part, location))
            elif part == "rejected" and target.has_batch_folders:
                dead_letters = local_path(str(target.path))
    return Sinks(checkpoint, tuple(tables), dead_letters, callable(targets.admitted))


def _location_of_table(spark: SparkSession, target: Target) -> str | None:
    """Return the location of a Delta table; `None` if the target is not a Delta table or does not exist yet."""
    if not target.is_delta:
        return None
    if target.path is not None:
        return local_path(target.path)
    if target.table is None or not spark.catalog.tableExists(target.table):
        return None
    return SparkPaths(spark).of_table(target.table)


def targets_of(
    admitted: Target | Callable[[DataFrame, int], None], rejected: Target, usage: Target | None
) -> dict[str, str]:
    """Return the target of each kind of rows as text, in the form of `Definition.targets`."""
    found = {
        SINK: _words(admitted) if isinstance(admitted, Target) else FUNCTION,
        DEAD_LETTERS: f"{FOLDERS}{_location(rejected.path)}"
        if rejected.has_batch_folders and rejected.path is not None
        else _words(rejected),
    }
    return found if usage is None else {**found, USAGE: _words(usage)}


def refuse_shared_places(
    admitted: Target | Callable[[DataFrame, int], None], rejected: Target, usage: Target | None
) -> None:
    """Refuse places in which readers could not tell one kind of rows from the other.

    One Delta table may take admitted rows and dead letters, whose column ``throttle`` tells them apart.

    Raises
    ------
    ConfigurationError
        If the usage table is also the table of other rows, or dead letters in files lie among the sink's own.
    """
    given = {SINK: admitted, DEAD_LETTERS: rejected, USAGE: usage}
    places = {kind: _place(target) for kind, target in given.items() if isinstance(target, Target)}
    pairs = [(USAGE, SINK), (USAGE, DEAD_LETTERS)] + ([(DEAD_LETTERS, SINK)] if rejected.has_batch_folders else [])
    for one, other in pairs:
        if places.get(one) is not None and places[one] == places.get(other):
            raise ConfigurationError(f"{one} and {other} are both {places[one]}: give each a place of its own")


def refuse_branches(*targets: Target | Callable[[DataFrame, int], None]) -> None:
    """Refuse a branch of an Iceberg table: Spark shows which snapshots lead to the table's own, not to a branch's.

    Raises
    ------
    ConfigurationError
        If one is: a batch that a branch has would be written again.

    Examples
    --------
    >>> refuse_branches(Target(ICEBERG, table="lake.db.events"))
    """
    for target in targets:
        if not isinstance(target, Target) or target.format != ICEBERG:
            continue
        is_named = (target.table or "").rpartition(".")[2].lower().startswith("branch_")
        if is_named or any(key.lower() == "branch" for key in target.options):
            raise ConfigurationError(
                f"a branch of the Iceberg table {target.table or target.path} is given, and of a branch nobody can say "
                f"which batches it has: write to the table itself, or to the branch in foreachBatch"
            )


def _place(target: Target) -> str | None:
    """Return where a target's rows are, by a path or the name of a table; `None` for another system."""
    if target.path is not None:
        return _location(target.path) if target.kind.has_path else None
    return None if target.table is None else target.table.lower()


def _words(target: Target) -> str:
    if not target.is_delta:
        return " ".join(word for word in (target.format, target.path, target.table) if word)
    return f"{TABLE}{_location(target.path)}" if target.path is not None else f"{NAMED_TABLE}{target.table}"


def _location(path: str) -> str:
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").strip("/")
    return path.rstrip("/") if ":" in path.partition("/")[0] else str(Path(path).absolute())
