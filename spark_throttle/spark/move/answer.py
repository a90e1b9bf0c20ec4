"""The decider's answer: of each file of which rows leave or are moved, which rows, in a bit a row.

It is a record, in one frame a batch. Who acts on it has nothing else of a digest, so it acts on what the decider took,
with the files of the same attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.record import unpack
from spark_throttle.spark.references.second_reading import ReadingSums
from spark_throttle.spark.rows.frames import FrameKind, decode


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """What becomes of the rows of a file; bits are of its rows by their positions in it, the least first."""

    name: str
    is_outside: bool
    """Whether it lies in the sink's table or in the stream's source, and not in the control directory."""

    rows: int
    number: int
    staged: int
    """The turn in which it arrived."""

    is_new: bool
    """Whether it arrived in this batch."""

    copy: str
    """The file in the control directory that has its rows before the batch; empty if they lie as they were staged."""

    admitted: int
    """How many of its rows are admitted."""

    admitted_bits: bytes | None
    """Which; `None` if all or none of the file's rows are."""

    rest: str
    """The file of the control directory to which the rows that wait are copied in this batch; empty for none."""

    rest_bits: bytes | None

    pack: str
    """The file of the control directory in which the rows that wait are packed in this batch; empty for none."""

    pack_bits: bytes | None
    size_bytes: int = 0
    """Of a file that is new."""

    stats: str = ""
    is_inline: bool = False
    """Whether the file with its rows before the batch comes in a frame beside the answer (`waiting_files`)."""

    lies_in_order: bool = False
    """Whether its admitted rows may leave as they lie (`leaving`)."""

    @property
    def is_admitted_whole(self) -> bool:
        """Whether all of its rows are admitted in this batch, in which it arrived."""
        return self.is_new and self.admitted == self.rows


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A file whose waiting rows were copied in the batch that the loaded state is of, as that state knows it."""

    name: str
    is_outside: bool
    copy: str
    rows: int
    """All of its rows, as it was staged."""

    waiting: int
    positions: int
    """The sum of the positions of the rows that wait."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a batch."""

    turn: int
    """How many batches were decided before (`held_files`)."""

    files: tuple[FileAnswer, ...] = ()
    loaded: tuple[LoadedFile, ...] = ()
    over: tuple[tuple[str, bool], ...] = ()
    """The files that the loaded state calls left over, each with whether it lies outside of the control directory."""

    deletable: tuple[str, ...] = ()
    """The files in the control directory of which rows waited so long ago that no checkpoint needs them."""

    known: tuple[str, ...] | None = None
    """All files in the control directory that a state may need, in a batch in which orphans are looked for."""

    read: ReadingSums | None = None
    """The sums over the rows of the source's files as they were read to be decided on; `None` if none arrived."""


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """All that the decider returned of a batch."""

    answer: Answer | None = None
    """`None` of a batch that brought nothing to decide."""

    admitted: tuple[pa.Table, ...] = ()
    """The places of the admitted rows of files that do not lie in order, in the order in which they leave."""

    rejected: tuple[pa.Table, ...] = ()
    """The places of the rejected rows, with the ``throttle`` column."""

    usage: bytes = b""
    """The packed usage report; empty without an answer."""

    inline: tuple[bytes, ...] = ()
    """Frames of the inline files of which rows leave (`waiting_files`)."""


def decided_in(frames: Iterable[tuple[int, bytes]]) -> Decided:
    """Return what frames hold that the decider yielded, each given with its kind."""
    of_kind: dict[FrameKind, list[bytes]] = {}
    for kind, frame in frames:
        of_kind.setdefault(FrameKind(kind), []).append(frame)
    answers = [unpack(Answer, frame, "the decider's answer") for frame in of_kind.get(FrameKind.ANSWER, ())]
    admitted, rejected = (
        tuple(decode(frame) for frame in of_kind.get(kind, ())) for kind in (FrameKind.ADMITTED, FrameKind.REJECTED)
    )
    usage, inline = b"".join(of_kind.get(FrameKind.USAGE, ())), tuple(of_kind.get(FrameKind.INLINE, ()))
    return Decided(answers[0] if answers else None, admitted, rejected, usage, inline)


def bits_of(positions: Int64s, rows: int) -> bytes:
    """Return bits of so many rows, set at positions.

    Examples
    --------
    >>> mask_of(bits_of(np.array([0, 9]), 10), 10).nonzero()[0].tolist()
    [0, 9]
    """
    mask = np.zeros(rows, dtype=bool)
    mask[positions] = True
    return np.packbits(mask, bitorder="little").tobytes()


def mask_of(bits: bytes, rows: int) -> Bools:
    """Return which rows' bits are set."""
    found: Bools = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little").astype(bool)
    return found
