"""Where another query goes on after a batch: the positions of a query's sources, in the words of their options.

Spark logs a line for each source of a query, and its form tells the kind of the source. The control source's line is
left out. Where an option of the source takes the position, it is given ready to paste; elsewhere, in words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from spark_throttle.checkpoint.offset_log import source_positions
from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import ExtentName, Extents

_DELTA_BEGINS: Final = (-1, -100)
"""Delta's positions before the first file of a version, in its first form of an offset and in the present one."""

_ONCE_THERE: Final = "once the table has that version"
"""Delta refuses a `startingVersion` that is not committed yet."""


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
