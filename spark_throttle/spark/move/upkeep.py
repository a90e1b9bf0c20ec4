"""Upkeep of staged files by the decider's answer: which rows a batch copies, and which files go when it is done.

Whoever acts on an answer does it in this order, the driver for a sink of `foreachBatch`, a task for a stream of rows:

1. what the *loaded state* says was copied in the batch before, and was not, is copied. That state may be a zombie's,
   an attempt whose files nobody cut. Their rows still lie where they were staged, for nothing but step 4 of this batch
   deletes them;
2. rows that wait are copied out of files that the batch cuts, and files with few waiting rows are packed;
3. the rows leave;
4. what the loaded state calls left over is deleted, and what no checkpoint needs any more; sometimes orphans too.

A copy is there when it is whole, and has the same rows under the same name at every attempt. So an attempt may end
anywhere, or run beside another: what is copied may be copied again, and what step 4 deletes no attempt at this batch
needs once step 1 is done. One that is still at step 1 fails, and finds the rows copied when it is run again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.move.answer import Answer, FileAnswer, LoadedFile, bits_of, mask_of
from spark_throttle.spark.move.cutting import RowsOfFile
from spark_throttle.spark.move.held_files import turn_in
from spark_throttle.spark.move.leaving import PlacedFile
from spark_throttle.spark.move.stager import STAGED, Hint, short_tenants, write_hint
from spark_throttle.spark.move.waiting_files import places_in

logger = logging.getLogger(__name__)

_NOTHING: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The files of one query: those in its control directory, and those in the sink's table that it may delete."""

    control_path: str
    kept_turns: int
    """Batches for which a file is kept of which no row waits any more."""

    table_root: str = ""
    """The sink's table, if it takes files as they lie: what else lies outside, nobody deletes."""

    copied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What this process copied in its last batch: by the copy's name, how many rows and the sum of positions."""

    left_out: set[str] = field(default_factory=set)
    """The files in the table's directory of which this process saw in its last batch that the table did not take them.
    The loaded state may be a zombie's that has one of these files cut which the driver's answer has whole, because a
    twin of its row lies in another file, which was staged anew. So no other file is deleted there: `VACUUM` does it."""

    @property
    def staged_root(self) -> str:
        """The folder of the files in the control directory."""
        return f"{self.control_path}/{STAGED}"

    def root_of(self, file: FileAnswer | LoadedFile) -> str:
        """Return the directory below which a file was staged."""
        return self.table_root if file.is_outside else self.staged_root

    def lost(self, answer: Answer) -> list[RowsOfFile]:
        """Return the rows that the loaded state says were copied, where they were not: all rows of their files."""
        lost = [file for file in answer.loaded if not self._is_copied(file)]
        if lost:
            logger.warning(
                "the state names files whose waiting rows were not copied (%d): they are copied now", len(lost)
            )
        return [
            RowsOfFile(
                self.root_of(file),
                file.name,
                file.name,
                rows=file.rows,
                rest_bits=bits_of(np.arange(file.rows), file.rows),
                rest=file.copy,
            )
            for file in lost
        ]

    def cuts(self, answer: Answer) -> list[RowsOfFile]:
        """Return the rows that are taken out of files in a batch, to rests, packs, and new files of the table."""
        found = []
        self.copied.clear()
        for file in answer.files:
            goes = file.admitted_bits
            if file.is_admitted_whole and not file.is_outside:
                goes = bits_of(np.arange(file.rows), file.rows)
            stays = file.rest_bits or file.pack_bits
            if not self.table_root:
                goes = None
            if file.is_inline or (goes is None and stays is None):  # what is inline, the decider cuts
                continue
            found.append(
                RowsOfFile(
                    self.staged_root if file.copy else self.root_of(file),
                    file.copy or file.name,
                    file.name,
                    rows=file.rows,
                    admitted_bits=goes,
                    rest_bits=stays,
                    rest=file.rest or file.pack,
                    has_places=bool(file.copy),
                )
            )
            if file.rest_bits is not None:
                at = np.flatnonzero(mask_of(file.rest_bits, file.rows))
                self.copied[file.rest] = len(at), int(at.sum())
        return found

    def placed(self, files: Iterable[FileAnswer]) -> list[PlacedFile]:
        """Return the places where the rows of files lie before the batch."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        copies = set[tuple[str, str]]()
        for file in files:
            place = (self.staged_root, file.copy) if file.copy else (self.root_of(file), file.name)
            found.setdefault(place, {})[file.name] = file.number
            if file.copy:
                copies.add(place)
        return [PlacedFile(*place, numbers, has_places=place in copies) for place, numbers in found.items()]

    def tell_stagers(self, answer: Answer, report: UsageReport) -> None:
        """Write the hint for those who stage the next batch."""
        write_hint(Directory(self.control_path), Hint(answer.turn + 1, tuple(short_tenants(report))))

    def clean(self, answer: Answer) -> None:
        """Delete what the loaded state does not need, and orphans if it is time to look for them."""
        staged, table = Directory(self.staged_root), Directory(self.table_root) if self.table_root else None
        for name, is_outside in answer.over:
            if not is_outside:
                staged.delete(name)
            elif table is not None and name in self.left_out:
                table.delete(name)
        self.left_out.clear()
        self.left_out.update(file.name for file in answer.files if file.is_outside and not file.is_admitted_whole)
        for name in answer.deletable:
            staged.delete(name)
        if answer.known is None:
            return
        oldest, known = answer.turn - self.kept_turns, set(answer.known)
        for name in Directory(self.control_path).names_below(STAGED):
            of_turn = turn_in(name.removeprefix("."))  # what was killed while it was written begins with a dot
            if name not in known and of_turn is not None and of_turn < oldest:
                staged.delete(name)

    def _is_copied(self, file: LoadedFile) -> bool:
        wanted = (file.waiting, file.positions)
        if self.copied.get(file.copy) == wanted:
            return True
        try:
            found = places_in(self.staged_root, file.copy).get(file.name, _NOTHING)
        except DamagedError:
            return False
        return len(found) == file.rows or (len(found), int(found.sum())) == wanted
