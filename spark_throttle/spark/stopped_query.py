"""A stopped query's checkpoint, taken over by a tool: no run of the query goes on in it from here on.

A tool works on what the last committed batch has left. So it refuses a checkpoint with a planned batch that is not
committed, which only the query can finish, and one whose query gives signs of life. Spark may kill a query's source
before it gives the last sign, so after a recent one the tool waits until the next would be due. A silent run may still
be alive: the tool takes the control directory from it, as a new run of the query would (`control.run_fence`), and it
ends before it plans another batch. A batch that it was in the middle of shows in the log.

While a tool changes something, it is a run of its own: it owns the directory and gives signs of life, so that a second
tool is refused as a query would be. It writes first, then looks whether the directory is still its own. A query that
starts takes the directory first, then looks at what the tool writes (`query_plane`). So if they cross, one of the two
sees the other.

The positions of the query's sources say where another query goes on, in the words of their options. Spark logs a line
for each source, and its form tells the kind of the source. The control source's line is left out. Where an option of
the source takes the position, it is given ready to paste; elsewhere, in words.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_throttle.checkpoint.manifest import Manifest, read_manifest
from spark_throttle.checkpoint.offset_log import read_offset_log, source_positions
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import Pulse, read_sign_of_life
from spark_throttle.control.run_fence import RunFence, owner_of
from spark_throttle.errors import ConfigurationError, DamagedError, TakenOverError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import ExtentName, Extents
from spark_throttle.status.liveness import SignWatch

_LOOK_SECONDS: Final = 0.5

_DELTA_BEGINS: Final = (-1, -100)
"""Delta's positions before the first file of a version, in its first form of an offset and in the present one."""

_ONCE_THERE: Final = "once the table has that version"
"""Delta refuses a `startingVersion` that is not committed yet."""


@dataclass(frozen=True, slots=True)
class StoppedQuery:
    """The checkpoint of a query that has stopped after a batch was committed."""

    checkpoint: str
    """The checkpoint, as Spark resolves it."""

    directory: Directory
    """The control directory."""

    manifest: Manifest
    batch: int
    """The last batch, which is committed."""

    owner: str | None
    """The run that the control directory belongs to: the last one of the query, or the tool."""

    fence: RunFence
    """The tool's mark in the control directory."""

    clock: Clock

    def check(self) -> None:
        """Refuse to go on if the query was started meanwhile, or has planned a batch.

        Raises
        ------
        TakenOverError
            If the control directory belongs to another run, or the log has another batch.
        """
        log = read_offset_log(Directory(self.checkpoint))
        if (log.logged, log.committed) != (self.batch, self.batch) or owner_of(self.directory) != self.owner:
            raise TakenOverError(self.directory.location)

    @contextmanager
    def taken(self) -> Iterator[StoppedQuery]:
        """Own the control directory, and give signs of life in it, while the checkpoint is changed.

        Raises
        ------
        TakenOverError
            If another run has begun since the checkpoint was looked at, or the log has another batch.
        """
        self.check()
        self.fence.begin()
        pulse = Pulse(self.directory, self.fence, self.clock)
        pulse.beat()  # before anything is written: a second tool looks for it
        pulse.start()
        try:
            query = replace(self, owner=self.fence.run)
            query.check()
            yield query
        finally:
            pulse.stop()


def stopped_query(
    checkpoint: str, control_path: str, clock: Clock, pause: Callable[[float], object] | None = None
) -> StoppedQuery:
    """Return a query's checkpoint, after taking it over from the query.

    Parameters
    ----------
    pause
        Function that waits for a number of seconds.

    Raises
    ------
    ConfigurationError
        If no query has committed a batch there, if its last batch is not committed, or if the query runs.
    DamagedError
        If the offsets of the last batch are gone.
    """
    directory = Directory(control_path)
    fence = RunFence(directory)
    manifest = read_manifest(directory)
    if manifest is None or read_offset_log(Directory(checkpoint)).committed < 0:
        raise ConfigurationError(
            f"{checkpoint!r} is not the checkpoint of a throttled query that has committed a batch, or its control "
            f"directory is not {control_path!r}: give the checkpointLocation that the query was started with, and the "
            f"control path if it was given one, in a process that sees both: a client of Spark Connect may see neither"
        )
    has_ended = _has_ended(directory, clock, pause or threading.Event().wait)
    log = read_offset_log(Directory(checkpoint))  # after the wait, in which the query may have gone on
    if log.uncommitted is not None:
        raise ConfigurationError(
            f"batch {log.uncommitted} of {checkpoint!r} is planned and not committed, and its sinks may have it: start "
            f"the query as it was, with trigger(processingTime='1 day'), stop it after its first batch, then try again "
            f"(docs/changing-a-job.md, how to stop between two batches)"
        )
    if log.logged < log.committed:
        what = f"the offsets of batch {log.committed} in {checkpoint}"
        raise DamagedError(what, "they are gone, and the batch is committed")
    if not has_ended:
        fence.begin()
    query = StoppedQuery(checkpoint, directory, manifest, log.committed, owner_of(directory), fence, clock)
    query.check()
    return query


def _has_ended(directory: Directory, clock: Clock, pause: Callable[[float], object]) -> bool:
    """Return whether the query is known to have ended; where its last sign is recent, wait for the next.

    Raises
    ------
    ConfigurationError
        If it gives another sign of life.
    """
    watch, first = SignWatch(directory, clock), read_sign_of_life(directory)
    watch.look()
    until_ms = clock.steady_ms() + (0 if first is None else first.interval_ms * 3 // 2)
    while watch.liveness().state in ("reporting", "hanging") and clock.steady_ms() < until_ms:
        pause(_LOOK_SECONDS)
        sign = read_sign_of_life(directory)
        if sign is not None and not sign.has_ended and sign != first:
            raise ConfigurationError(
                f"the query of the control directory {directory.location} runs: it gives signs of life; stop it first, "
                f"or let the drain that gives them end"
            )
        watch.look()
    return watch.liveness().state == "ended"


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The position of one source."""

    logged: str
    """The position as Spark logged it."""

    kind: str
    """The kind of the source, by the form of its position."""

    option: tuple[str, str] | None
    """The option of the source with which another query begins there, and its value; `None` where there is none."""

    advice: str = ""
    """What to do where no option takes the position, or what the option needs."""

    def __str__(self) -> str:
        if self.option is None:
            return f"{self.kind}: {self.advice} (its position is {self.logged})"
        name, value = self.option
        return f"{self.kind}{self.advice and f', {self.advice}'}: .option({name!r}, {value!r})"


def positions_after(checkpoint: str, directory: Directory, batch: int) -> list[SourcePosition]:
    """Return the positions of a query's sources after a batch, in their order, without the control source.

    Parameters
    ----------
    directory
        The control directory.
    """
    found = []
    for at, line in enumerate(source_positions(Directory(checkpoint), batch)):
        fields = None if line is None else _parsed(line)
        if isinstance(fields, dict) and "control" in fields:
            found.append(_of_references(line or "", ExtentName(int(fields["extent"]), str(fields["file"])), directory))
        elif not (isinstance(fields, dict) and fields.keys() == {"epoch", "file"}):
            found.append(_of_spark(line, fields, f"{checkpoint.rstrip('/')}/sources/{at}"))
    return found


def _parsed(line: str) -> Any:  # noqa: ANN401 - what json reads
    try:
        return json.loads(line)
    except ValueError:
        return line


def _of_spark(line: str | None, fields: Any, log: str) -> SourcePosition:  # noqa: ANN401 - what json reads
    if line is None:
        return SourcePosition("null", "a source without a position", None, "begin where the query began")
    if isinstance(fields, dict):
        if "reservoirVersion" in fields:
            return _of_delta(line, fields)
        if fields.keys() == {"logOffset"}:
            advice = f"no option takes its position; move the files that {log} lists out of the folder"
            return SourcePosition(line, "files", None, advice)
        if fields and all(isinstance(parts, dict) for parts in fields.values()):
            return SourcePosition(line, "Kafka", ("startingOffsets", line))
    return SourcePosition(line, "another source", None, "its documentation says which option takes its position")


def _of_delta(line: str, fields: dict[str, Any]) -> SourcePosition:
    version = int(fields["reservoirVersion"])
    if fields.get("isStartingVersion") or int(fields["index"]) not in _DELTA_BEGINS:
        return SourcePosition(line, "Delta", None, _part_of(version))
    return SourcePosition(line, "Delta", ("startingVersion", str(version)), _ONCE_THERE)


def _part_of(version: int) -> str:
    return (
        f"version {version} of the table was read in part, and no option takes such a position; let the query finish "
        f"the version and drain again, or read the table from there by a query of your own"
    )


def _of_references(line: str, extent: ExtentName, directory: Directory) -> SourcePosition:
    if not extent.number:
        return SourcePosition(line, "files", None, "none was read; begin where the query began")
    extents = Extents(directory)
    position = extents.load(extent).position
    if not position:
        files = extents.history(extent)
        advice = f"no option takes its position; {len(files)} files were read, the last one is {files[-1].path}"
        return SourcePosition(line, "files", None, f"{advice}: move them out of the folder")
    version = position["version"]
    if position["taken"] or position["is_snapshot"]:
        return SourcePosition(line, "Delta", None, _part_of(version))
    return SourcePosition(line, "Delta", ("startingVersion", str(version)), _ONCE_THERE)
