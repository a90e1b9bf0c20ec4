"""The decider: one call a batch decides for the whole job, on digests, and answers for each file which rows leave.

A file is one in which a task has staged rows, or one of the stream's source, which is decided on where it lies. Of such
a one the rows that wait are copied in the batch that brings it, and from then on it is as if it had been staged.

`applyInPandasWithState` calls it for the one key that the query has. Its state is the kernel's, with the places of the
rows that wait in place of their payload, and the table of the files that have them (`held_files`).

**A batch that is run again** is staged anew, into other files, and maybe dealt into them otherwise. The decider gets
the same rows and the same old state, and a row's turn depends on the row alone (`order_by`, then its hash). So it
admits the same rows, and the same rows wait. Then:

- Killed before the state is committed: nothing names what was staged. It is an orphan.
- Killed after that, before the sink's commit: Spark loads the state of the batch before again and commits over the
  other. The new state names the new files.
- Killed after the sink's commit, before Spark's: the table has the first attempt's files, and does not take the
  batch again (`txn`). The state has the second attempt's. Together they have every row once: the first attempt admitted
  the same rows as the second. The second's whole files are orphans.
- Rows that are equal in all that counts may change places: one is admitted in the one attempt, its twin in the other.
  They are equal, so nothing is lost or doubled.
- A zombie, an attempt that Spark gave up and that did not notice, may commit its state last. That state names the
  zombie's files, which the driver has not seen. So nothing is deleted that the driver only knows from an answer: the
  next answer says what the state named that was really loaded, and the driver copies and deletes by that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from spark_throttle.core.quota import Int64s, QueueBounds
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.state import StoredState
from spark_throttle.errors import DamagedError, UnknownVersionError
from spark_throttle.record import FORMAT, pack, unpack
from spark_throttle.spark.move.answer import Answer, FileAnswer, LoadedFile, bits_of
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from spark_throttle.spark.move.held_files import IN_STATE, HeldFiles
from spark_throttle.spark.move.leaving import files_in_order
from spark_throttle.spark.move.queue_frames import QueueFolder, QueueStorage
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.waiting_files import InlineFiles, inline_file_of, inline_files_of
from spark_throttle.spark.references.second_reading import ReadingSums, rows_by_file
from spark_throttle.spark.rows.digest import (
    PLACE,
    ROW_BITS,
    RUN_AGAIN,
    Digest,
    InlineFile,
    StagedFile,
    digest_of,
    file_numbers,
)
from spark_throttle.spark.rows.frames import NAMESPACE, FrameKind, decode, encode
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

if TYPE_CHECKING:
    from collections.abc import Sequence

STATE_SCHEMA: Final = "version int, block binary, files binary, inline binary"

SWEPT_EVERY: Final = 100
"""Turns after which orphans are looked for: they come from failures alone."""

_WHAT: Final = "the decider's state"
_NOTHING: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Leaving:
    """The rows that leave in a batch."""

    goes: Mapping[int, Int64s]
    """Their positions, by the numbers of their files."""

    lying: frozenset[int] | None
    """The numbers of the files whose rows may leave as they lie; `None` for all."""


@dataclass(frozen=True, slots=True)
class DigestDecider:
    """A function that decides a batch; called on an executor once per batch, again if the task fails.

    Its output and the new state depend only on the old state, the rows, the files that have them, and the batch time.
    """

    queue: QueueStorage
    """Where the places of waiting rows lie that are too many for the state."""

    kept_turns: int
    """Batches that it decides for which a file is kept of which no row waits any more."""

    keeps_order: bool = False
    """Whether the sink may depend on the order of a namespace's rows. The places of the admitted rows are returned in
    the order in which they leave, but for files of which it is known that they lie so."""

    inline: StagingPlace | None = None
    """The form of the files that the state holds, if the executors cannot write to the control directory."""

    room: QueueBounds | None = None
    """The queue's bounds when the query started; a batch that failed under smaller bounds is run again with these."""

    partition_columns: tuple[str, ...] = ()
    """Partition columns of the sink."""

    is_explained: bool = False
    """Whether the places of admitted rows have the ``throttle`` column."""

    keeps_left: bool = False
    """Whether rows that leave for a destination may come back, because the sink says what it did not deliver."""

    def __call__(
        self, _key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Yield the answer of a batch, the rejected rows' places, and the usage report last."""
        set_loaded_aside()
        control, digests, came, costs = _brought(pieces)
        block, loaded, inline = _stored(state)
        if self.inline is None and inline.names:
            inline.write(self.queue.control_path)
            loaded, inline = loaded.in_directory(), InlineFiles()
        inline = inline.with_arrived(came)
        files = files_of(digests, {*loaded.name, *loaded.known()})
        arrived = loaded.with_arrived(files)
        number_of = {file.name: loaded.next_number + at for at, file in enumerate(files)}
        folder = self.queue.folder()
        outcome = run_batch(
            block,
            control,
            [digest.placed(number_of[digest.file.name]) for digest in digests],
            now_ms=state.getCurrentProcessingTimeMs(),
            is_explained=self.is_explained,
            room=self.room,
            partition_columns=self.partition_columns,
            folder=folder,
            keeps_left=self.keeps_left,
            keeps_order=self.keeps_order,
            costs=costs,
        )
        folder.delete(outcome.deletable_files)
        goes = rows_by_file(_places(outcome.admitted))
        leaving = _Leaving(goes, self._lying(digests, number_of, goes, outcome.sent_before))
        dropped = _dropped(digests, number_of)
        after, answer = self._answer(loaded, arrived, files, dropped, outcome, leaving, folder)
        answer = replace(answer, read=_read(digests))
        kept = InlineFiles() if self.inline is None else inline.cut(answer.files, self.inline).only(after.in_state())
        state.update((FORMAT, outcome.state, pack(after, is_compressed=True), pack(kept) if kept.names else None))
        yield _row(FrameKind.ANSWER, pack(answer, is_compressed=True))
        for frame in inline.only(_with_leaving(arrived, outcome)).frames():
            yield _row(FrameKind.INLINE, frame)
        ranked = () if leaving.lying is None else _others_than(leaving.lying, outcome.admitted)
        for kind, tables in ((FrameKind.ADMITTED, ranked), (FrameKind.REJECTED, outcome.rejected)):
            for table in tables:
                for frame in encode(table):
                    yield _row(kind, frame)
        yield _row(FrameKind.USAGE, outcome.usage)

    def _lying(
        self,
        digests: Sequence[Digest],
        number_of: Mapping[str, int],
        goes: Mapping[int, Int64s],
        elsewhere: pa.StringArray,
    ) -> frozenset[int] | None:
        """Return the numbers of the files whose rows may leave as they lie; `None` for all."""
        if not self.keeps_order:
            return None
        if self.is_explained or any(digest.file.is_source for digest in digests):
            return frozenset()  # the reason of each row follows its place; Spark may split a file of the source
        named = dict[int, list[pa.ChunkedArray]]()
        for digest in sorted(digests, key=lambda each: each.first_row):
            named.setdefault(number_of[digest.file.name], []).append(digest.rows.column(NAMESPACE))
        of_files = {
            number: pa.chunked_array([chunk for part in parts for chunk in part.chunks])
            for number, parts in named.items()
        }
        return files_in_order(of_files, goes, elsewhere)

    def _answer(
        self,
        loaded: HeldFiles,
        arrived: HeldFiles,
        files: Sequence[StagedFile],
        dropped: Int64s,
        outcome: BatchOutcome,
        leaving: _Leaving,
        folder: QueueFolder,
    ) -> tuple[HeldFiles, Answer]:
        """Return the files of which rows wait after the batch, and the answer."""
        goes, refused = leaving.goes, rows_by_file(_places(outcome.rejected))
        gone = [*outcome.admitted, *outcome.rejected] if outcome.freed is None else outcome.freed
        freed = rows_by_file(np.concatenate([_places(gone), dropped]))
        left = arrived.without(freed)
        count = np.array([len(goes.get(number, ())) for number in arrived.number.tolist()], dtype=np.int64)
        is_committed = (arrived.outside == 1) & (count == arrived.rows)
        after, deletable = left.settled(is_committed, self.kept_turns)
        leftovers = after.leftovers()
        packed = frozenset(after.number[leftovers].tolist())
        pack, waits = "", dict[int, Int64s]()
        if packed:
            places = _waiting_places(outcome.state, folder)
            places = np.sort(places[np.isin(file_numbers(places), after.number[leftovers])])
            pack = f"{after.turn:012d}-pack-{_digest(after, leftovers, places)}.parquet"
            waits = rows_by_file(places)
        answers = []
        stays = dict(zip(after.number.tolist(), after.copy, strict=True))
        touched = {*goes, *refused, *packed} | set(arrived.number[arrived.staged == arrived.turn].tolist())
        for at, number in enumerate(arrived.number.tolist()):
            if number not in touched:
                continue
            is_new = at >= len(loaded)
            rest = stays.get(number, "") if is_new else ""
            mine, mine_wait = goes.get(number, _NOTHING), waits.get(number, _NOTHING)
            messages = int(arrived.rows[at])
            if rest:
                mine_wait = _others(messages, freed.get(number, _NOTHING))
            answers.append(
                FileAnswer(
                    arrived.name[at],
                    bool(arrived.outside[at]),
                    messages,
                    number,
                    int(arrived.staged[at]),
                    is_new,
                    arrived.copy[at],
                    len(mine),
                    bits_of(mine, messages) if len(mine) > 0 and not (is_new and len(mine) == messages) else None,
                    rest,
                    bits_of(mine_wait, messages) if rest else None,
                    pack if number in packed else "",
                    bits_of(mine_wait, messages) if number in packed else None,
                    files[at - len(loaded)].size_bytes if is_new else 0,
                    files[at - len(loaded)].stats if is_new else "",
                    bool(arrived.inline[at]),
                    leaving.lying is None or number in leaving.lying,
                )
            )
        if len(leftovers):
            after = after.packed(leftovers, pack)
        known = tuple(sorted(loaded.known() | after.known())) if after.turn % SWEPT_EVERY == 0 else None
        return after, Answer(after.turn, tuple(answers), _last_copied(loaded), loaded.over, deletable, known)


def _brought(pieces: Iterable[pd.DataFrame]) -> tuple[bytes | None, list[Digest], list[InlineFile], LateCosts]:
    """Return the control row of a batch, the digests, the files that came with them, and what rows really cost."""
    control, digests, inline, costs = None, list[Digest](), list[InlineFile](), list[LateCosts]()
    for piece in pieces:
        for kind, frame in zip(piece["kind"], piece["frame"], strict=True):
            if kind == FrameKind.CONTROL:
                control = bytes(frame)
            elif kind == FrameKind.INLINE:
                inline.append(inline_file_of(bytes(frame)))
            elif kind == FrameKind.COSTS:
                costs.append(unpack(LateCosts, bytes(frame), "the costs that a batch brings", remedy=RUN_AGAIN))
            else:
                digests.append(digest_of(bytes(frame)))
    return control, digests, inline, LateCosts.sum_of(costs)


def _stored(state: GroupState) -> tuple[bytes | None, HeldFiles, InlineFiles]:
    """Return the kernel's state, the files of which rows wait, and those of them that the state holds itself."""
    if not state.exists:
        return None, HeldFiles(), InlineFiles()
    version, block, files, inline = state.get
    if version != FORMAT:
        raise UnknownVersionError(_WHAT, int(version), FORMAT)
    return bytes(block), unpack(HeldFiles, bytes(files), IN_STATE), inline_files_of(inline)


def files_of(digests: Iterable[Digest], known: Collection[str] = ()) -> list[StagedFile]:
    """Return the files of digests, by their names.

    Parameters
    ----------
    known
        The files of earlier batches, none of which comes again.

    Raises
    ------
    DamagedError
        If the digests of a file do not have each of its rows once, or no row twice if it is the source's, or if they
        cannot be of one batch.
    """
    of_file: dict[str, list[Digest]] = {}
    for digest in digests:
        of_file.setdefault(digest.file.name, []).append(digest)
    columns = {digest.rows.schema for parts in of_file.values() for digest in parts}
    for name, parts in of_file.items():
        problem = "it is of an earlier batch" if name in known else _problem_of(parts)
        if len(columns) > 1:
            problem = "it has other columns than another of its batch"
        if problem is not None:
            raise DamagedError(f"the digest of the staged file {name}", problem, RUN_AGAIN)
    return [of_file[name][0].file for name in sorted(of_file)]


def _problem_of(parts: Sequence[Digest]) -> str | None:
    """Return what is wrong with the digests of a file, `None` if nothing is."""
    file, at = parts[0].file, np.concatenate([digest.positions for digest in parts])
    if any(digest.file != file for digest in parts):
        return "it describes the file in two ways"
    if file.rows != len(at) and not file.is_source:
        return f"it has {file.rows} rows, and its digest {len(at)}"
    is_within = len(at) > 0 and at.min() >= 0 and at.max() < file.rows
    if not is_within or file.rows - len(_others(file.rows, at)) < len(at):
        return "it has no row, a row twice, or one that is not in the file"
    return None


def _dropped(digests: Iterable[Digest], number_of: Mapping[str, int]) -> Int64s:
    """Return the places of the rows of the source's files that the stream drops: no digest has them."""
    kept: dict[StagedFile, list[Int64s]] = {}
    for digest in digests:
        if digest.file.is_source:
            kept.setdefault(digest.file, []).append(digest.positions)
    found = [_NOTHING]
    for file, rows in kept.items():
        if file.rows != sum(map(len, rows)):
            found.append((number_of[file.name] << ROW_BITS) + _others(file.rows, np.concatenate(rows)))
    return np.concatenate(found)


def _read(digests: Iterable[Digest]) -> ReadingSums | None:
    """Return the sums over the rows of the source's files; `None` if none arrived."""
    found = [ReadingSums.of_rows(digest.rows) for digest in digests if digest.file.is_source]
    return ReadingSums.total(found) if found else None


def _last_copied(loaded: HeldFiles) -> tuple[LoadedFile, ...]:
    """Return the files whose waiting rows were copied in the batch that the loaded state is of."""
    found = np.flatnonzero((loaded.staged == loaded.turn) & (loaded.inline == 0)).tolist()
    return tuple(
        LoadedFile(
            loaded.name[at],
            bool(loaded.outside[at]),
            loaded.copy[at],
            int(loaded.rows[at]),
            int(loaded.waiting[at]),
            int(loaded.waiting_positions[at]),
        )
        for at in found
        if loaded.copy[at]
    )


def _with_leaving(arrived: HeldFiles, outcome: BatchOutcome) -> list[str]:
    """Return the names of the inline files that have the rows which leave or are rejected."""
    if not arrived.inline.any():
        return []
    numbers = np.unique(file_numbers(_places([*outcome.admitted, *outcome.rejected])))
    physical = arrived.physical()
    return [physical[at] for at in np.searchsorted(arrived.number, numbers).tolist() if arrived.inline[at]]


def _waiting_places(block: bytes, folder: QueueFolder) -> Int64s:
    """Return the places of all rows that wait."""
    stored = unpack(StoredState, block, _WHAT)
    frames = [decode(frame).column(PLACE).to_numpy() for frame in folder.open(stored.frames)]
    ends = np.cumsum(np.bincount(stored.frame_of_row, minlength=len(frames)))[:-1]
    rows = np.split(stored.row_in_frame, ends)
    return np.concatenate([_NOTHING, *(places[at] for places, at in zip(frames, rows, strict=False))])


def _others_than(lying: frozenset[int], tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the places of tables that lie in other files."""
    numbers = sorted(lying)
    for table in tables:
        is_other = ~np.isin(file_numbers(table.column(PLACE).to_numpy()), numbers)
        yield table if is_other.all() else table.filter(pa.array(is_other))


def _others(rows: int, gone: Int64s) -> Int64s:
    """Return the positions of the other rows of a file."""
    stays = np.ones(rows, dtype=bool)
    stays[gone] = False
    return np.flatnonzero(stays)


def _digest(files: HeldFiles, at: Int64s, places: Int64s) -> str:
    """Return what names the rows of a pack: the same rows of the same files have the same name at every attempt."""
    named = "\0".join(files.name[each] for each in at.tolist()).encode()
    return hashlib.sha256(named + places.tobytes()).hexdigest()[:16]


def _places(tables: Iterable[pa.Table]) -> Int64s:
    return np.concatenate([_NOTHING, *(table.column(PLACE).to_numpy() for table in tables)])


def _row(kind: FrameKind, frame: bytes) -> pd.DataFrame:
    return pd.DataFrame({"kind": [int(kind)], "frame": [frame]})
