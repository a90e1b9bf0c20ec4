"""The files of which rows wait, as the decider's state names them: when a checkpoint is put back, so are they.

A waiting row keeps its place for good: the number of the file that it was staged in, and its position there. What
changes is where its bytes lie:

- *as staged*: in the file itself, in the control directory, if many of its rows wait;
- *a rest*: if the file lies in the table or in the stream's source, or few of its rows wait, they are copied, once, to
  a file of their own;
- *a pack*: if many files have few waiting rows left, these rows are written to one file.

A rest and a pack have the name of the file that a row was staged in, and its position there, as columns.

What is deleted follows this table, as the decider loaded it, never what the driver knows of a digest: a zombie of an
attempt may have committed the state that names *its* files. A file that the batch before has emptied or cut is *left
over*: the batch after it deletes it, for no state names it. A file of which rows once waited stays until no checkpoint
can be put back to a batch in which they did. What no state ever named is found by the number of the turn in its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.spark.rows.digest import StagedFile

IN_STATE: Final = "the table of files in the decider's state"
"""What errors call a stored table."""

_KEPT_SHARE: Final = 4
"""A file in the control directory stays as it is if one row in so many waits."""

_FEW_MESSAGES: Final = 1_000
_SPARSE: Final = 8
"""A file of which one row in so many waits, or few rows in all, is a leftover."""

_SPARSE_INLINE: Final = 2
"""The same of a file in the state, which every batch carries."""

_MANY_LEFTOVERS: Final = 32
_MANY_GONE_MESSAGES: Final = 1_000_000
"""So many leftovers, or so many rows in them that have left, are worth a pack."""

_TURN: Final = re.compile(r"(\d{12})-")
_NOTHING: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class HeldFiles:
    """The files of which rows wait after a batch; arrays run over them, in the order of their numbers."""

    turn: int = -1
    """How many batches the decider had decided before the one after which they wait. Spark tells a task no number of
    its batch where the session uses Spark Connect, and a state counts the same whenever a batch is run again."""

    next_number: int = 0
    """The number that the next file gets."""

    number: Int64s = field(default_factory=_NOTHING.copy)
    name: tuple[str, ...] = ()
    staged: Int64s = field(default_factory=_NOTHING.copy)
    """The turn in which each file was staged."""

    outside: Int64s = field(default_factory=_NOTHING.copy)
    """1 if it lies in the sink's table or in the stream's source, 0 if in the control directory or nowhere."""

    inline: Int64s = field(default_factory=_NOTHING.copy)
    """1 if the file that has its waiting rows is in the state (`waiting_files`), 0 if it lies in a directory."""

    rows: Int64s = field(default_factory=_NOTHING.copy)
    """The rows of each file, as it was staged."""

    copied: Int64s = field(default_factory=_NOTHING.copy)
    """The rows of the file that has its waiting rows now."""

    waiting: Int64s = field(default_factory=_NOTHING.copy)
    """How many of them wait."""

    waiting_positions: Int64s = field(default_factory=_NOTHING.copy)
    """The sum of their positions."""

    copy: tuple[str, ...] = ()
    """The name of the rest or the pack in the control directory; empty if the rows lie as they were staged."""

    over: tuple[tuple[str, bool], ...] = ()
    """The files of this batch that are neither whole in the table nor needed for rows that wait, each with whether it
    lies outside of the control directory; one of the source is nobody's to delete."""

    left: tuple[tuple[str, int], ...] = ()
    """The files in the control directory of which rows waited once, and the turn in which the last one left."""

    def __len__(self) -> int:
        return len(self.name)

    def with_arrived(self, arrived: Sequence[StagedFile]) -> HeldFiles:
        """Return these files and, behind them, those that arrive in the next turn, with all their rows."""
        more = len(arrived)
        rows = np.array([file.rows for file in arrived], dtype=np.int64)
        outside = np.array([file.is_outside for file in arrived], dtype=np.int64)
        return HeldFiles(
            self.turn + 1,
            self.next_number + more,
            np.append(self.number, np.arange(self.next_number, self.next_number + more)),
            (*self.name, *(file.name for file in arrived)),
            np.append(self.staged, np.full(more, self.turn + 1)),
            np.append(self.outside, outside),
            np.append(self.inline, np.array([file.is_inline for file in arrived], dtype=np.int64)),
            np.append(self.rows, rows),
            np.append(self.copied, rows),
            np.append(self.waiting, rows),
            np.append(self.waiting_positions, rows * (rows - 1) // 2),
            (*self.copy, *([""] * more)),
            left=self.left,
        )

    def without(self, gone: Mapping[int, Int64s]) -> HeldFiles:
        """Return the files with rows gone, given by the numbers of their files and their positions there."""
        waiting, waiting_positions = self.waiting.copy(), self.waiting_positions.copy()
        for number, row in gone.items():
            at = np.searchsorted(self.number, number)
            waiting[at] -= len(row)
            waiting_positions[at] -= int(row.sum())
        return replace(self, waiting=waiting, waiting_positions=waiting_positions)

    def settled(self, is_committed: Bools, kept_turns: int) -> tuple[HeldFiles, tuple[str, ...]]:
        """Return the files of which rows wait after a batch, and the names of those that no checkpoint needs any more.

        Parameters
        ----------
        is_committed
            Which of the files that are new become the table's as they lie; of the others it says nothing.

        Examples
        --------
        >>> files = [
        ...     StagedFile("a", True, 9, 99, ""),
        ...     StagedFile("b", False, 9, 99, ""),
        ...     StagedFile("c", True, 9, 99, ""),
        ... ]
        >>> batch = HeldFiles(turn=6).with_arrived(files)
        >>> left = batch.without({0: np.array([0]), 1: np.array([2]), 2: np.arange(9)})
        >>> after, _ = left.settled(np.array([False, False, True]), 100)
        >>> after.name, after.copy, after.over
        (('a', 'b'), ('000000000007-rest-a', ''), (('a', True),))
        """
        waits = self.waiting > 0
        is_new = self.staged == self.turn
        is_cut = is_new & waits & ((self.outside == 1) | (self.waiting * _KEPT_SHARE < self.rows))
        copy = tuple(
            rest_name(self.turn, name) if cut else old
            for name, old, cut in zip(self.name, self.copy, is_cut.tolist(), strict=True)
        )
        is_over = is_new & (is_cut | ~waits) & ~is_committed
        over = tuple((self.name[at], bool(self.outside[at])) for at in np.flatnonzero(is_over & (self.inline == 0)))
        kept = replace(self, copy=copy, copied=np.where(is_cut, self.waiting, self.copied), over=over)
        after = kept.only(waits)
        needed, physical = set(after.physical()), self.physical()
        gone = dict.fromkeys(physical[at] for at in np.flatnonzero(~waits & ~is_new & (self.inline == 0)))
        left = (*self.left, *((name, self.turn) for name in gone if name not in needed))
        oldest = self.turn - kept_turns
        deletable = tuple(name for name, since in left if since <= oldest)
        return replace(after, left=tuple(each for each in left if each[1] > oldest)), deletable

    def leftovers(self) -> Int64s:
        """Return the indices of the files that a batch packs, none of which arrived in it; none if it need not.

        All of them lie in the state, or all in the control directory.
        """
        inline = self._leftovers(is_inline=True)
        return inline if len(inline) else self._leftovers(is_inline=False)

    def _leftovers(self, *, is_inline: bool) -> Int64s:
        of_copy: dict[str, list[int]] = {}
        found: list[int] = []
        for at, name in enumerate(self.physical()):
            if self.inline[at] == is_inline:
                of_copy.setdefault(name, []).append(at)
        gone = copies = 0
        for name, of_name in of_copy.items():
            waiting, rows = int(self.waiting[of_name].sum()), int(self.copied[of_name].max())
            if int(self.staged[of_name].max()) == self.turn or name.startswith(f"{self.turn:012d}-"):
                continue
            if waiting <= _FEW_MESSAGES or waiting * (_SPARSE_INLINE if is_inline else _SPARSE) <= rows:
                found += of_name
                gone += rows - waiting
                copies += 1
        is_worth = copies >= _MANY_LEFTOVERS or gone >= _MANY_GONE_MESSAGES
        return np.array(sorted(found) if is_worth else [], dtype=np.int64)

    def packed(self, at: Int64s, name: str) -> HeldFiles:
        """Return the files after the waiting rows of those at `at` were written to one file of a name."""
        physical = self.physical()
        is_packed = np.zeros(len(self), dtype=bool)
        is_packed[at] = True
        gone = dict.fromkeys(physical[each] for each in at.tolist())
        copy = tuple(name if packed else old for old, packed in zip(self.copy, is_packed.tolist(), strict=True))
        copied = np.where(is_packed, int(self.waiting[at].sum()), self.copied)
        # What is packed in the state is nowhere else.
        left = self.left if self.inline[at].any() else (*self.left, *((each, self.turn) for each in gone))
        return replace(self, copy=copy, copied=copied, left=left)

    def in_directory(self) -> HeldFiles:
        """Return the files after those in the state were written to the control directory, under their names."""
        return replace(self, inline=np.zeros_like(self.inline))

    def physical(self) -> list[str]:
        """Return the names in the control directory of the files that have the waiting rows."""
        return [copy or name for copy, name in zip(self.copy, self.name, strict=True)]

    def known(self) -> set[str]:
        """Return the names of all files in the control directory that this state names."""
        over = (name for name, is_outside in self.over if not is_outside)
        return {*self.physical(), *over, *(name for name, _ in self.left)}

    def in_state(self) -> set[str]:
        """Return the names of the files that the state holds itself."""
        return {name for name, inline in zip(self.physical(), self.inline.tolist(), strict=True) if inline}

    def only(self, is_kept: Bools) -> HeldFiles:
        """Return some of the files."""
        at = np.flatnonzero(is_kept)
        return replace(
            self,
            number=self.number[at],
            name=tuple(self.name[each] for each in at.tolist()),
            staged=self.staged[at],
            outside=self.outside[at],
            inline=self.inline[at],
            rows=self.rows[at],
            copied=self.copied[at],
            waiting=self.waiting[at],
            waiting_positions=self.waiting_positions[at],
            copy=tuple(self.copy[each] for each in at.tolist()),
        )


def rest_name(turn: int, name: str) -> str:
    """Return the name in the control directory of the waiting rows of a file that was staged in a turn."""
    return f"{turn:012d}-rest-{name}"


def turn_in(name: str) -> int | None:
    """Return the turn that a file in the control directory is of; `None` if its name does not say.

    Examples
    --------
    >>> turn_in(rest_name(7, "part-0.parquet")), turn_in("part-0.parquet")
    (7, None)
    """
    found = _TURN.match(name)
    return None if found is None else int(found[1])
